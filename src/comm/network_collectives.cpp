#include "comm/network_collectives.hpp"

#include <algorithm>
#include <cstring>

#include "comm/card.hpp"
#include "comm/engine.hpp"
#include "comm/network_levels.hpp"
#include "comm/reduce.hpp"

namespace tessera::comm {
namespace {

// Below these sizes the number of steps matters, above them the number of bytes.
constexpr std::size_t kTree = 64 << 10;   // broadcast
constexpr std::size_t kLane = 128 << 10;  // smallest piece of a message that gets a lane of its own
constexpr std::size_t kMostLanes = 8;
constexpr std::size_t kSegment = 512 << 10;  // of a pipelined chain

Task all_reduce_lane(Ring ring) {
  Operation& op = ring.operation;
  std::vector<std::byte> arrived((op.count / ring.size / ring.lanes + 2) * ring.width);
  for (std::size_t step = 0; step + 1 < ring.size; ++step) {
    const Piece mine = piece_of(ring, op.output, op.count, ring.wrap(ring.rank + ring.size - step));
    const Piece next = piece_of(ring, op.output, op.count, ring.wrap(ring.rank + 2 * ring.size - step - 1));
    Transfer in = ring.receive({arrived.data(), next.bytes}, ring.left());
    Transfer out = ring.send(mine.span(), ring.right());
    co_await in;
    reduce_pair(next.data, arrived.data(), next.data, next.count, op.type, op.reduction);
    co_await out;
  }
  for (std::size_t step = 0; step + 1 < ring.size; ++step) {
    const Piece mine = piece_of(ring, op.output, op.count, ring.wrap(ring.rank + 1 + ring.size - step));
    const Piece next = piece_of(ring, op.output, op.count, ring.wrap(ring.rank + ring.size - step));
    Transfer in = ring.receive(next.span(), ring.left(), 1);
    Transfer out = ring.send(mine.span(), ring.right(), 1);
    co_await in;
    co_await out;
  }
}

Task all_reduce_doubling(Ring ring) {
  Operation& op = ring.operation;
  const std::size_t bytes = op.count * ring.width;
  const WritableBytes data{op.output, bytes};
  std::vector<std::byte> arrived(bytes);
  std::size_t power = 1;
  while (power * 2 <= ring.size) power *= 2;
  // The first ranks fold into pairs until a power of two is left; the odd one of a pair goes on.
  const std::size_t extra = ring.size - power;
  const bool folded = ring.rank < 2 * extra;
  if (folded && ring.rank % 2 == 0) {
    Transfer out = ring.send(data, ring.right(), 0);
    co_await out;
    Transfer in = ring.receive(data, ring.right(), 1);
    co_await in;
    co_return;
  }
  if (folded) {
    Transfer in = ring.receive(arrived, ring.left(), 0);
    co_await in;
    reduce_pair(op.output, arrived.data(), op.output, op.count, op.type, op.reduction);
  }
  const std::size_t place = folded ? ring.rank / 2 : ring.rank - extra;
  for (std::size_t distance = 1; distance < power; distance *= 2) {
    const std::size_t other = place ^ distance;
    const int partner = static_cast<int>(other < extra ? 2 * other + 1 : other + extra);
    Transfer in = ring.receive(arrived, partner, 1 + distance);
    Transfer out = ring.send(data, partner, 1 + distance);
    co_await in;
    co_await out;
    // The lower side is always the left operand, so both sides compute the same bits.
    const void* low = other < place ? arrived.data() : op.output;
    const void* high = other < place ? op.output : arrived.data();
    reduce_pair(op.output, low, high, op.count, op.type, op.reduction);
  }
  if (folded) {
    Transfer out = ring.send(data, ring.left(), 1);
    co_await out;
  }
}

Task reduce_scatter_lane(Ring ring) {
  Operation& op = ring.operation;
  const auto [first, last] = ring.share(op.count);
  const std::size_t count = last - first;
  const std::size_t bytes = count * ring.width;
  const auto own = [&](std::size_t chunk) { return op.input + (ring.wrap(chunk) * op.count + first) * ring.width; };
  std::vector<std::byte> partial(bytes);
  std::vector<std::byte> arrived(bytes);
  for (std::size_t step = 0; step + 1 < ring.size; ++step) {
    Transfer in = ring.receive(arrived, ring.left());
    Transfer out = ring.send({step == 0 ? own(ring.rank + ring.size - 1) : partial.data(), bytes}, ring.right());
    co_await in;
    co_await out;
    const bool last_step = step + 2 == ring.size;
    std::byte* target = last_step ? op.output + first * ring.width : partial.data();
    reduce_pair(target, arrived.data(), own(ring.rank + 2 * ring.size - step - 2), count, op.type, op.reduction);
  }
}

Task reduce_scatter_direct(Ring ring) {
  Operation& op = ring.operation;
  const std::size_t bytes = op.count * ring.width;
  std::vector<std::byte> arrived(bytes * ring.size);
  std::vector<Transfer> transfers;
  for (std::size_t other = 0; other < ring.size; ++other) {
    if (other == ring.rank) continue;
    transfers.push_back(ring.receive({arrived.data() + other * bytes, bytes}, static_cast<int>(other)));
    transfers.push_back(ring.send({op.input + other * bytes, bytes}, static_cast<int>(other)));
  }
  for (Transfer& transfer : transfers) co_await transfer;
  std::vector<const void*> sources;
  for (std::size_t other = 0; other < ring.size; ++other) {
    sources.push_back(other == ring.rank ? op.input + other * bytes : arrived.data() + other * bytes);
  }
  reduce_all(op.output, sources, op.count, op.type, op.reduction);
}

Task all_gather_lane(Ring ring) {
  Operation& op = ring.operation;
  const auto [first, last] = ring.share(op.count);
  const std::size_t bytes = (last - first) * ring.width;
  const auto place = [&](std::size_t chunk) {
    return WritableBytes(op.output + (ring.wrap(chunk) * op.count + first) * ring.width, bytes);
  };
  for (std::size_t step = 0; step + 1 < ring.size; ++step) {
    Transfer in = ring.receive(place(ring.rank + 2 * ring.size - step - 1), ring.left());
    Transfer out = ring.send(place(ring.rank + ring.size - step), ring.right());
    co_await in;
    co_await out;
  }
}

// One of several tasks that share the partners of an all-to-all (or of a small all-gather) among them.
Task exchange_directly(Ring ring, bool same_to_all) {
  Operation& op = ring.operation;
  const std::size_t bytes = op.count * ring.width;
  for (std::size_t step = 1 + ring.lane; step < ring.size; step += ring.lanes) {
    const std::size_t to = ring.wrap(ring.rank + step);
    const std::size_t from = ring.wrap(ring.rank + ring.size - step);
    // Each partner meets this rank once, so that the lane does not matter to the stream.
    Ring whole = ring;
    whole.lane = 0;
    Transfer in = whole.receive({op.output + from * bytes, bytes}, static_cast<int>(from));
    Transfer out = whole.send({same_to_all ? op.output + ring.rank * bytes : op.input + to * bytes, bytes}, static_cast<int>(to));
    co_await in;
    co_await out;
  }
}

Task broadcast_tree(Ring ring) {
  Operation& op = ring.operation;
  const WritableBytes data{op.output, op.count * ring.width};
  const std::size_t root = static_cast<std::size_t>(op.peer);
  const std::size_t place = ring.wrap(ring.rank + ring.size - root);
  const auto rank_at = [&](std::size_t virtual_rank) { return static_cast<int>(ring.wrap(virtual_rank + root)); };
  std::size_t reach = 1;
  while (reach < ring.size && !(place & reach)) reach *= 2;
  if (place != 0) {
    Transfer in = ring.receive(data, rank_at(place - reach));
    co_await in;
  }
  std::vector<Transfer> sends;
  for (std::size_t distance = reach / 2; distance > 0; distance /= 2) {
    if (place + distance < ring.size) sends.push_back(ring.send(data, rank_at(place + distance)));
  }
  for (Transfer& out : sends) co_await out;
}

Task broadcast_chain(Ring ring) {
  Operation& op = ring.operation;
  const std::size_t bytes = op.count * ring.width;
  const std::size_t place = ring.wrap(ring.rank + ring.size - static_cast<std::size_t>(op.peer));
  const std::size_t segments = (bytes + kSegment - 1) / kSegment;
  const auto segment = [&](std::size_t index) {
    return WritableBytes(op.output + index * kSegment, std::min(kSegment, bytes - index * kSegment));
  };
  std::vector<Transfer> arriving;
  std::vector<Transfer> leaving;
  constexpr std::size_t kAhead = 4;
  for (std::size_t index = 0; index < segments; ++index) {
    if (place != 0) {
      while (arriving.size() < std::min(segments, index + kAhead)) arriving.push_back(ring.receive(segment(arriving.size()), ring.left()));
      Transfer& in = arriving[index];
      co_await in;
    }
    if (place + 1 < ring.size) leaving.push_back(ring.send(segment(index), ring.right()));
    if (leaving.size() > kAhead) {
      Transfer& out = leaving[leaving.size() - 1 - kAhead];
      co_await out;
    }
  }
  for (Transfer& out : leaving) co_await out;
}

Task barrier(Ring ring) {
  std::byte nothing{};
  for (std::size_t distance = 1; distance < ring.size; distance *= 2) {
    std::byte ignored{};
    Transfer in = ring.receive({&ignored, 1}, static_cast<int>(ring.wrap(ring.rank + ring.size - distance)), distance);
    Transfer out = ring.send({&nothing, 1}, static_cast<int>(ring.wrap(ring.rank + distance)), distance);
    co_await in;
    co_await out;
  }
}

// Shown to the right neighbour alone: any difference in a group shows somewhere along the ring.
Task compare_cards(Ring ring) {
  const Card own = card_of(ring.operation);
  Card theirs;
  Transfer in = ring.receive(std::as_writable_bytes(std::span(&theirs, 1)), ring.left(), 1000);
  // Not through the ring, which counts what is sent: a card is none of the operation's own bytes.
  Transfer out = ring.network.send(ring.operation, std::as_bytes(std::span(&own, 1)), ring.right(), ring.stream(1000));
  co_await in;
  co_await out;
  check_card(ring.operation, theirs, ring.left());
}

// One of several tasks side by side, which wait for messages: that it ran out of memory must be known before they end, as they may never.
// Ranks that parted are named best by the comparison of cards.
Task watched(Operation& operation, Task task) {
  try {
    co_await task;
  } catch (const Error&) {
    throw;
  } catch (...) {
    operation.group->engine->fail_with_current_exception();
    throw;
  }
}

Task in_lanes(Ring ring, Task (*lane_task)(Ring), std::size_t bytes) {
  ring.lanes = std::clamp<std::size_t>(bytes / kLane, 1, kMostLanes);
  std::vector<Task> lanes;
  for (ring.lane = 0; ring.lane < ring.lanes; ++ring.lane) lanes.push_back(watched(ring.operation, lane_task(ring)));
  co_await AllOf(lanes);
}

Task in_partners(Ring ring, bool same_to_all) {
  ring.lanes = std::min<std::size_t>(4, ring.size - 1);
  std::vector<Task> tasks;
  for (ring.lane = 0; ring.lane < ring.lanes; ++ring.lane) tasks.push_back(watched(ring.operation, exchange_directly(ring, same_to_all)));
  co_await AllOf(tasks);
}

void place_own(const Ring& ring, const std::byte* source) {
  const std::size_t bytes = ring.operation.count * ring.width;
  std::byte* target = ring.operation.output + ring.rank * bytes;
  if (target != source) std::memcpy(target, source, bytes);
}

Task body_of(Ring ring) {
  Operation& op = ring.operation;
  const std::size_t bytes = op.count * ring.width;
  const bool on_levels = op.group->levels.has_value();
  const bool direct = static_cast<std::int64_t>(bytes) <= kLargestDirect;
  switch (op.kind) {
    case Kind::all_reduce:
      if (static_cast<std::int64_t>(bytes) <= largest_doubled(static_cast<int>(ring.size))) return all_reduce_doubling(ring);
      return in_lanes(ring, on_levels ? all_reduce_on_levels : all_reduce_lane, bytes / ring.size);
    case Kind::reduce_scatter:
      if (direct) return reduce_scatter_direct(ring);
      return in_lanes(ring, on_levels ? reduce_scatter_on_levels : reduce_scatter_lane, bytes);
    case Kind::all_gather:
      place_own(ring, op.input);
      if (direct) return in_partners(ring, true);
      return in_lanes(ring, on_levels ? all_gather_on_levels : all_gather_lane, bytes);
    case Kind::broadcast: return bytes <= kTree ? broadcast_tree(ring) : broadcast_chain(ring);
    case Kind::all_to_all: place_own(ring, op.input + ring.rank * bytes); return in_partners(ring, false);
    default: return barrier(ring);
  }
}

Task message(Network& network, Operation& op) {
  const std::uint64_t stream = seed_of(op.group->key, op.tag, 0, 0);
  const std::size_t bytes = op.count;
  if (op.kind == Kind::send) op.group->count_sent(bytes, op.peer);
  Transfer transfer = op.kind == Kind::send ? network.send(op, {op.input, bytes}, op.peer, stream)
                                            : network.receive(op, {op.output, bytes}, op.peer, stream);
  co_await transfer;
}

Task collective(Network& network, Operation& op) {
  const Ring ring = ring_of(network, op);
  std::vector<Task> tasks;
  tasks.push_back(compare_cards(ring));
  if (op.count > 0 || op.kind == Kind::barrier) tasks.push_back(watched(op, body_of(ring)));
  co_await AllOf(tasks);
}

}  // namespace

Task run_over_network(Network& network, Operation& operation) {
  return operation.collective() ? collective(network, operation) : message(network, operation);
}

}  // namespace tessera::comm
