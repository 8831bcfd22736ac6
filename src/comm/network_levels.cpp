#include "comm/network_levels.hpp"

#include <algorithm>
#include <functional>
#include <memory>

#include "comm/engine.hpp"
#include "comm/reduce.hpp"

namespace tessera::comm {
namespace {

// A ring of some of the group's ranks.
struct Circle {
  std::vector<int> ranks;  // group ranks
  std::size_t place = 0;   // of this rank
  std::size_t size() const { return ranks.size(); }
  // So many places before this rank's, at most twice around.
  std::size_t before(std::size_t steps) const { return (place + 2 * size() - steps) % size(); }
  int right() const { return ranks[(place + 1) % size()]; }
  int left() const { return ranks[before(1)]; }
};

// One lane's view of a collective on two levels.
struct Lane {
  Ring ring;
  const Levels& levels;
  Circle host;    // the ranks of this host
  Circle column;  // the ranks in this rank's place on each host
  // This lane's part of the chunk that belongs to a group rank.
  std::function<WritableBytes(std::size_t)> part;

  WritableBytes chunk(std::size_t of_host, std::size_t place) const { return part(static_cast<std::size_t>(levels.ranks[of_host][place])); }
  std::size_t largest() const {
    std::size_t bytes = 0;
    for (std::size_t rank = 0; rank < ring.size; ++rank) bytes = std::max(bytes, part(rank).size());
    return bytes;
  }
  void reduce(std::byte* out, const std::byte* a, const std::byte* b, std::size_t bytes) const {
    reduce_pair(out, a, b, bytes / ring.width, ring.operation.type, ring.operation.reduction);
  }
};

Lane lane_of(const Ring& ring, std::function<WritableBytes(std::size_t)> part) {
  const Levels& levels = *ring.operation.group->levels;
  Lane lane{ring, levels, {levels.ranks[levels.host], levels.place}, {{}, levels.host}, std::move(part)};
  for (const std::vector<int>& ranks : levels.ranks) lane.column.ranks.push_back(ranks[levels.place]);
  return lane;
}

// Purposes of messages: those of sums and those of gathers may be under way at once.
constexpr std::uint64_t kSums = 0;
constexpr std::uint64_t kGathers = 1;

// Of the chunks that belong to the ranks of host `of`, the sum of this host's ranks of the one in this rank's column, into `sum`. The
// buffers hold a chunk each.
Task sum_on_host(const Lane& lane, std::size_t of, std::byte* arrived, std::byte* partial, std::byte* sum) {
  const Circle& host = lane.host;
  WritableBytes mine = lane.chunk(of, host.before(1));
  for (std::size_t step = 0; step + 1 < host.size(); ++step) {
    const WritableBytes own = lane.chunk(of, host.before(step + 2));
    Transfer in = lane.ring.receive({arrived, own.size()}, host.left(), kSums);
    Transfer out = lane.ring.send(mine, host.right(), kSums);
    co_await in;
    co_await out;
    std::byte* const target = step + 2 == host.size() ? sum : partial;
    lane.reduce(target, arrived, own.data(), own.size());
    mine = {target, own.size()};
  }
}

// The sum of all ranks of this rank's chunk, into `result`, which nothing else is read from by then. `in_place`: the chunks may be written
// to.
Task scatter(const Lane& lane, std::byte* result, bool in_place) {
  const Circle& column = lane.column;
  const std::size_t largest = lane.largest();
  // Not filled with zeros: whole pages are written to here for the first time.
  const auto buffers = std::make_unique_for_overwrite<std::byte[]>((in_place ? 3 : 5) * largest);
  std::byte* const from_host = buffers.get();
  std::byte* const partial = from_host + largest;
  std::byte* const from_column = partial + largest;
  const auto sum_of = [&](std::size_t host, std::size_t step) {
    return in_place ? lane.chunk(host, lane.host.place).data() : from_column + (1 + step % 2) * largest;
  };
  std::byte* running = sum_of(column.before(1), 0);  // the sum of the hosts so far
  Task first = sum_on_host(lane, column.before(1), from_host, partial, running);
  co_await first;
  for (std::size_t step = 0; step + 1 < column.size(); ++step) {
    const std::size_t next = column.before(step + 2);
    const std::size_t leaving = lane.chunk(column.before(step + 1), lane.host.place).size();
    const std::size_t arriving = lane.chunk(next, lane.host.place).size();
    std::byte* const here = sum_of(next, step + 1);  // the sum of this host
    Transfer in = lane.ring.receive({from_column, arriving}, column.left(), kSums);
    Transfer out = lane.ring.send({running, leaving}, column.right(), kSums);
    Task sum = sum_on_host(lane, next, from_host, partial, here);
    co_await sum;
    co_await in;
    co_await out;
    running = step + 2 == column.size() ? result : here;
    lane.reduce(running, from_column, here, arriving);
  }
}

// The chunks that belong to the ranks of host `of`, of which this rank holds the one in its column.
Task spread_on_host(const Lane& lane, std::size_t of) {
  const Circle& host = lane.host;
  for (std::size_t step = 0; step + 1 < host.size(); ++step) {
    Transfer in = lane.ring.receive(lane.chunk(of, host.before(step + 1)), host.left(), kGathers);
    Transfer out = lane.ring.send(lane.chunk(of, host.before(step)), host.right(), kGathers);
    co_await in;
    co_await out;
  }
}

Task gather(const Lane& lane) {
  const Circle& column = lane.column;
  const auto chunk = [&](std::size_t steps) { return lane.chunk(column.before(steps), lane.host.place); };
  for (std::size_t step = 0; step + 1 < column.size(); ++step) {
    Transfer in = lane.ring.receive(chunk(step + 1), column.left(), kGathers);
    Transfer out = lane.ring.send(chunk(step), column.right(), kGathers);
    Task spread = spread_on_host(lane, column.before(step));
    co_await spread;
    co_await in;
    co_await out;
  }
  Task last = spread_on_host(lane, column.before(column.size() - 1));
  co_await last;
}

// Of a collective whose chunks have `count` elements each.
auto equal_parts(const Ring& ring, std::byte* data) {
  const auto [first, last] = ring.share(ring.operation.count);
  const std::size_t begin = first * ring.width;
  const std::size_t bytes = (last - first) * ring.width;
  const std::size_t whole = ring.operation.count * ring.width;
  return [=](std::size_t rank) { return WritableBytes(data + rank * whole + begin, bytes); };
}

}  // namespace

Task all_reduce_on_levels(Ring ring) {
  Operation& op = ring.operation;
  const Lane lane = lane_of(ring, [&](std::size_t rank) { return piece_of(ring, op.output, op.count, rank).span(); });
  Task sums = scatter(lane, lane.part(ring.rank).data(), true);
  co_await sums;
  Task rest = gather(lane);
  co_await rest;
}

Task reduce_scatter_on_levels(Ring ring) {
  Operation& op = ring.operation;
  // Nothing is written there.
  const Lane lane = lane_of(ring, equal_parts(ring, const_cast<std::byte*>(op.input)));
  Task sums = scatter(lane, op.output + ring.share(op.count).first * ring.width, false);
  co_await sums;
}

Task all_gather_on_levels(Ring ring) {
  const Lane lane = lane_of(ring, equal_parts(ring, ring.operation.output));
  Task rest = gather(lane);
  co_await rest;
}

}  // namespace tessera::comm
