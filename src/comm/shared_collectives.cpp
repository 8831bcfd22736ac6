#include "comm/shared_collectives.hpp"

#include <algorithm>
#include <cstring>

#include "comm/reduce.hpp"

namespace tessera::comm {
namespace {

// Up to here every rank reduces everything itself: one meeting instead of two.
constexpr std::size_t kSmall = 16 << 10;

// Phases of a block.
constexpr std::uint64_t kShown = 1;
constexpr std::uint64_t kReduced = 2;
constexpr std::uint64_t kFinished = 4;

std::uint64_t at(std::uint64_t block, std::uint64_t phase) { return 4 * block + phase; }
// A half may be written again once everybody has finished the block before the last.
std::uint64_t half_free(std::uint64_t block) { return block < 2 ? 0 : at(block - 2, kFinished); }

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

Task all_reduce(Channel& channel, Operation& op) {
  const std::size_t n = channel.size();
  const std::size_t me = channel.rank();
  const std::size_t width = size_of(op.type);
  const std::size_t per_block = kBlock / width;
  std::vector<const void*> sources(n);
  for (std::size_t done = 0; done < op.count || done == 0; done += per_block) {
    const std::size_t count = std::min(per_block, op.count - done);
    const std::uint64_t block = channel.next_block++;
    std::byte* data = op.output + done * width;
    const bool small = count * width <= kSmall;
    const auto begin = [&](std::size_t rank) { return small ? 0 : count * rank / n; };
    const auto end = [&](std::size_t rank) { return small ? count : count * (rank + 1) / n; };
    co_await channel.all_at(half_free(block));
    if (done == 0) channel.show_card(op);
    std::byte* shown = channel.half(me, block);
    if (small) {
      copy_bytes(shown, data, count * width);
    } else {
      copy_bytes(shown, data, begin(me) * width);
      copy_bytes(shown + end(me) * width, data + end(me) * width, (count - end(me)) * width);
    }
    channel.publish(at(block, kShown));
    co_await channel.all_at(at(block, kShown));
    if (done == 0 && !channel.compare_cards(op, -1)) co_await channel.all_at(~std::uint64_t{0});
    for (std::size_t rank = 0; rank < n; ++rank) sources[rank] = (rank == me ? data : channel.half(rank, block)) + begin(me) * width;
    std::byte* own = data + begin(me) * width;
    if (count > 0) reduce_all(own, sources, end(me) - begin(me), op.type, op.reduction);
    if (!small) {
      copy_bytes(shown + kBlock, own, (end(me) - begin(me)) * width);
      channel.publish(at(block, kReduced));
      for (std::size_t step = 1; step < n; ++step) {
        const std::size_t other = (me + step) % n;
        co_await channel.one_at(static_cast<int>(other), at(block, kReduced));
        copy_bytes(data + begin(other) * width, channel.half(other, block) + kBlock, (end(other) - begin(other)) * width);
      }
    }
    channel.publish(at(block, kFinished));
    if (op.count == 0) break;
  }
}

// Reduce-scatter, and all-to-all as the same exchange without the sum.
Task scatter(Channel& channel, Operation& op) {
  const std::size_t n = channel.size();
  const std::size_t me = channel.rank();
  const std::size_t width = size_of(op.type);
  const std::size_t per_block = kBlock / n / 64 * 64 / width;
  std::vector<const void*> sources(n);
  for (std::size_t done = 0; done < op.count || done == 0; done += per_block) {
    const std::size_t count = std::min(per_block, op.count - done);
    const std::uint64_t block = channel.next_block++;
    const auto input = [&](std::size_t chunk) { return op.input + (chunk * op.count + done) * width; };
    co_await channel.all_at(half_free(block));
    if (done == 0) channel.show_card(op);
    std::byte* shown = channel.half(me, block);
    for (std::size_t rank = 0; rank < n; ++rank) {
      if (rank != me) copy_bytes(shown + rank * count * width, input(rank), count * width);
    }
    channel.publish(at(block, kShown));
    co_await channel.all_at(at(block, kShown));
    if (done == 0 && !channel.compare_cards(op, -1)) co_await channel.all_at(~std::uint64_t{0});
    for (std::size_t rank = 0; rank < n; ++rank) sources[rank] = rank == me ? input(me) : channel.half(rank, block) + me * count * width;
    if (count > 0 && op.kind == Kind::reduce_scatter) reduce_all(op.output + done * width, sources, count, op.type, op.reduction);
    if (count > 0 && op.kind == Kind::all_to_all) {
      for (std::size_t rank = 0; rank < n; ++rank)
        copy_bytes(op.output + (rank * op.count + done) * width, static_cast<const std::byte*>(sources[rank]), count * width);
    }
    channel.publish(at(block, kFinished));
    if (op.count == 0) break;
  }
}

Task all_gather(Channel& channel, Operation& op) {
  const std::size_t n = channel.size();
  const std::size_t me = channel.rank();
  const std::size_t width = size_of(op.type);
  const std::size_t per_block = kBlock / width;
  for (std::size_t done = 0; done < op.count || done == 0; done += per_block) {
    const std::size_t bytes = std::min(per_block, op.count - done) * width;
    const std::uint64_t block = channel.next_block++;
    const auto output = [&](std::size_t rank) { return op.output + (rank * op.count + done) * width; };
    co_await channel.all_at(half_free(block));
    if (done == 0) channel.show_card(op);
    copy_bytes(channel.half(me, block), op.input + done * width, bytes);
    channel.publish(at(block, kShown));
    copy_bytes(output(me), op.input + done * width, bytes);
    for (std::size_t step = 1; step < n; ++step) {
      const std::size_t other = (me + step) % n;
      co_await channel.one_at(static_cast<int>(other), at(block, kShown));
      if (done == 0 && !channel.compare_cards(op, static_cast<int>(other))) co_await channel.all_at(~std::uint64_t{0});
      copy_bytes(output(other), channel.half(other, block), bytes);
    }
    channel.publish(at(block, kFinished));
    if (op.count == 0) break;
  }
}

Task broadcast(Channel& channel, Operation& op) {
  const std::size_t width = size_of(op.type);
  const std::size_t per_block = kBlock / width;
  const bool root = op.group->rank == op.peer;
  for (std::size_t done = 0; done < op.count || done == 0; done += per_block) {
    const std::size_t bytes = std::min(per_block, op.count - done) * width;
    const std::uint64_t block = channel.next_block++;
    co_await channel.all_at(half_free(block));
    if (done == 0) channel.show_card(op);
    if (root) copy_bytes(channel.half(channel.rank(), block), op.output + done * width, bytes);
    channel.publish(at(block, kShown));
    if (!root) {
      co_await channel.one_at(op.peer, at(block, kShown));
      if (done == 0 && !channel.compare_cards(op, op.peer)) co_await channel.all_at(~std::uint64_t{0});
      copy_bytes(op.output + done * width, channel.half(static_cast<std::size_t>(op.peer), block), bytes);
    }
    channel.publish(at(block, kFinished));
    if (op.count == 0) break;
  }
}

Task barrier(Channel& channel, Operation& op) {
  const std::uint64_t block = channel.next_block++;
  co_await channel.all_at(half_free(block));
  channel.show_card(op);
  channel.publish(at(block, kShown));
  co_await channel.all_at(at(block, kShown));
  if (!channel.compare_cards(op, -1)) co_await channel.all_at(~std::uint64_t{0});
  channel.publish(at(block, kFinished));
}

}  // namespace

Task run_in_shared_memory(Channel& channel, Operation& operation) {
  switch (operation.kind) {
    case Kind::all_reduce: return all_reduce(channel, operation);
    case Kind::reduce_scatter:
    case Kind::all_to_all: return scatter(channel, operation);
    case Kind::all_gather: return all_gather(channel, operation);
    case Kind::broadcast: return broadcast(channel, operation);
    default: return barrier(channel, operation);
  }
}

}  // namespace tessera::comm
