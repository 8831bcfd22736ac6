// Internal. What the algorithms over messages are written with: a rank's place in the ring of its group, and a lane of one collective.
#pragma once

#include <span>
#include <utility>

#include "base/hash.hpp"
#include "comm/network.hpp"
#include "comm/operation.hpp"

namespace tessera::comm {

using WritableBytes = std::span<std::byte>;

struct Ring {
  Network& network;
  Operation& operation;
  std::size_t size;
  std::size_t rank;
  std::size_t width;  // bytes of an element
  std::size_t lane = 0;
  std::size_t lanes = 1;

  std::size_t wrap(std::size_t rank_plus_anything) const { return rank_plus_anything % size; }
  int right() const { return static_cast<int>(wrap(rank + 1)); }
  int left() const { return static_cast<int>(wrap(rank + size - 1)); }
  // Messages of one lane to one neighbour keep their order, so a lane is a stream.
  std::uint64_t stream(std::uint64_t purpose = 0) const { return seed_of(operation.group->key, operation.sequence, lane, purpose + 1); }
  Transfer send(std::span<const std::byte> data, int to, std::uint64_t purpose = 0) const {
    operation.group->count_sent(data.size(), to);
    return network.send(operation, data, to, stream(purpose));
  }
  Transfer receive(WritableBytes data, int from, std::uint64_t purpose = 0) const {
    return network.receive(operation, data, from, stream(purpose));
  }
  // This lane's share of elements [0, count).
  std::pair<std::size_t, std::size_t> share(std::size_t count) const { return {count * lane / lanes, count * (lane + 1) / lanes}; }
};

inline Ring ring_of(Network& network, Operation& operation) {
  return {network, operation, operation.group->ranks.size(), static_cast<std::size_t>(operation.group->rank), size_of(operation.type)};
}

// Element range [first, last) of this lane within chunk c of an all-reduce.
struct Piece {
  std::byte* data;
  std::size_t count;
  std::size_t bytes;
  WritableBytes span() const { return {data, bytes}; }
};

inline Piece piece_of(const Ring& ring, std::byte* data, std::size_t count, std::size_t chunk) {
  const std::size_t begin = count * chunk / ring.size;
  const std::size_t end = count * (chunk + 1) / ring.size;
  const auto [first, last] = ring.share(end - begin);
  return {data + (begin + first) * ring.width, last - first, (last - first) * ring.width};
}

}  // namespace tessera::comm
