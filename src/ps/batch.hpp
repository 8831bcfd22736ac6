// Internal. The keys of a batch: which of them are the same, and on which server each lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ps/ps.hpp"

namespace tessera::ps {

// Which of so many servers holds a key's row. Each has an interval of the keys' hashes, as large as the others'.
std::size_t server_of(Key key, std::size_t servers);
inline bool has(const Share& share, Key key) { return share.servers > 0 && server_of(key, share.servers) == share.server; }

class Batch {
 public:
  // Different keys that one server holds, in the order in which they first come.
  struct Part {
    std::vector<Key> keys;
    std::vector<std::uint32_t> positions;  // where each first stands
    std::vector<Ticket> tickets;           // of the last pull; empty without one
    std::uint64_t instance = 0;            // of the server that gave them
  };
  // A key that came before, at `first`.
  struct Repeat {
    std::uint32_t first, position;
  };

  // Begins with a batch of fewer than 2^32 - 1 keys, none of which is dealt yet.
  void start(std::span<const Key> keys, std::size_t servers);
  // Deals at most so many more; false once all are dealt.
  bool deal(std::size_t most);
  bool is_of(std::span<const Key> keys) const;

  std::vector<Part>& parts() { return parts_; }
  const std::vector<Repeat>& repeats() const { return repeats_; }
  // For each key in [begin, end) of a part: the sum of its rows in `rows`, which has a row for every key of the batch.
  void add_up(const Part& part, std::size_t begin, std::size_t end, std::span<const float> rows, std::span<float> sums) const;

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  struct Slot {
    Key key;
    std::uint32_t stamp;  // of the batch that it belongs to
    std::uint32_t first;
  };
  std::vector<Slot> slots_;
  std::uint32_t stamp_ = 0;
  std::vector<Key> keys_;
  std::size_t dealt_ = 0;
  std::vector<Part> parts_;
  std::vector<Repeat> repeats_;
  std::vector<std::uint32_t> next_, last_;  // by place: the next one of its key; by first place: the last one
};

}  // namespace tessera::ps
