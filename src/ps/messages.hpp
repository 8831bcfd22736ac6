// Internal. What clients ask servers, as bytes: a header, then arrays of `count` items each. Both sides are little-endian.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/requests.hpp"
#include "ps/client.hpp"
#include "ps/ps.hpp"

namespace tessera::ps {

enum class Ask : std::uint32_t {
  open,           // the TableSpec as JSON, `count` bytes; answered by an Opened
  pull,           // keys; answered by tickets, then values
  pull_or_zeros,  // as pull, where keys without a row stay so
  push,           // keys, then gradients; answered by a PushResult
  push_tickets,   // keys, tickets, then gradients
  status          // answered by the TableStatus of all tables as JSON
};

struct AskHeader {
  Ask ask;
  std::uint32_t table;
  std::uint64_t count;
};
static_assert(sizeof(AskHeader) == 16);

struct Opened {
  std::uint32_t table;
};

// Of keys in one message, whatever is asked: few enough that a server works on one while the next is on its way.
inline std::size_t keys_of_a_message(int dimension) {
  constexpr std::size_t kMost = 8192;
  const std::size_t bytes = sizeof(Key) + sizeof(Ticket) + static_cast<std::size_t>(dimension) * sizeof(float);
  return std::min(kMost, (comm::kMostMessageBytes - sizeof(AskHeader)) / bytes);
}

// Takes arrays from a message, one after the other.
class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  // Throws Error(corrupt) where the message is shorter.
  template <typename T>
  std::span<const T> take(std::size_t count) {
    if (bytes_.size() / sizeof(T) < count)
      throw Error(ErrorCode::corrupt, text("a message of a parameter server ends too early: ", bytes_.size(), " bytes are left for ", count,
                                           " items of ", sizeof(T)));
    const auto* const begin = reinterpret_cast<const T*>(bytes_.data());
    bytes_ = bytes_.subspan(count * sizeof(T));
    return {begin, count};
  }

  std::span<const char> take_rest() { return take<char>(bytes_.size()); }

 private:
  std::span<const std::byte> bytes_;
};

// Lays arrays into a buffer that has room for them.
class MessageWriter {
 public:
  explicit MessageWriter(std::span<std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  std::span<T> add(std::size_t count) {
    auto* const begin = reinterpret_cast<T*>(bytes_.data() + written_);
    written_ += count * sizeof(T);
    return {begin, count};
  }
  template <typename T>
  void add(std::span<const T> items) {
    std::ranges::copy(items, add<T>(items.size()).begin());
  }
  std::size_t written() const { return written_; }

 private:
  std::span<std::byte> bytes_;
  std::size_t written_ = 0;
};

std::string to_json(const TableSpec& spec);
std::string to_json(const std::vector<TableStatus>& tables);
// Throw Error(corrupt).
TableSpec spec_from_json(const std::string& json);
std::vector<TableStatus> status_from_json(const std::string& json);

}  // namespace tessera::ps
