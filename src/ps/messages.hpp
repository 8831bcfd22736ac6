// Internal. What clients ask servers, as bytes: a header, then arrays of `count` items each. Both sides are little-endian.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/requests.hpp"
#include "ps/client.hpp"
#include "ps/ps.hpp"

namespace tessera::ps {

enum class Ask : std::uint32_t {
  join,       // the Joining as JSON, `count` bytes; answered by nothing
  open,       // the TableSpec as JSON, `count` bytes; answered by an Opened
  who_leads,  // of a pair's server, `number` its Pair::First, `table` 1 where it leads and 0 where it holds nothing; answered by a Leads
  status,     // answered by a ServerStatus as JSON, by a standby, too
  pull,       // keys; answered by a Seen, tickets, then values
  pull_or_zeros,  // as pull, where keys without a row stay so
  wait,           // until all workers have ended `number` steps; answered by a Seen
  save,           // the SaveOrder as JSON, `count` bytes: begins it; answered by nothing
  saved,          // until it is done; answered by the SavedTables as JSON, or by nothing: it takes longer
  load,           // the SaveOrder as JSON; answered by nothing
  // Of rows that go to other servers (shards_move.cpp), while pushes go on.
  move_begin,    // a MoveOrder; answered by a MoveBegun, or by nothing: a save takes longer
  move_rows,     // `count`: which batch of them, from 1, the last one or the next; answered by a MoveRows, keys of erased rows, keys, rows
  move_waiting,  // of a table with a lifecycle, a byte's place; answered by Table::waiting() from there on, or nothing behind its end
  // Of a server to its backup: everything it holds (shards_copy.cpp); answered by nothing.
  copy_begin,    // workers and tables as JSON, `count` bytes
  copy_rows,     // keys, then stored rows
  copy_sums,     // of a step that is not over: a SumsHeader, keys, gradients, then impressions where the table has a lifecycle
  copy_waiting,  // of a table with a lifecycle: `count` bytes of Table::waiting(), from the byte `number` of it on
  copy_end,
  // Of a server's log alone (write_ahead_log.cpp).
  log_behind,   // `number`: the bytes of the file of records before this one
  log_refused,  // the message before this one could not be worked at: the disk was full, or there was no memory
  // What follows changes tables and clocks: a server does it once, however often it is asked.
  push,           // keys, gradients, then impressions where the table has a lifecycle; answered by a PushResult
  push_tickets,   // the instance of the Seen, keys, tickets, then as push
  learning_rate,  // a float
  end_step,       // of this client's worker; answered by nothing
  end_period,     // of a table with a lifecycle; answered by a PushResult that has applied it to as many rows as there are
  evict,          // an EvictPart of such a table; answered by a PushResult that has applied it to as many rows as went
  put,            // a PutHeader, keys of erased rows, keys, then stored rows; answered by a PushResult, as those behind it
  put_waiting,    // a byte's place, then bytes of Table::waiting() from there on
  put_counts,     // a MoveBegun
  keep            // a KeepPart; answered by a PushResult that has applied it to as many rows as went
};
inline bool is_numbered(Ask ask) { return ask >= Ask::push; }
inline bool is_copy(Ask ask) { return ask >= Ask::copy_begin && ask <= Ask::copy_end; }
// What a backup has to do as well.
inline bool changes(Ask ask) { return ask == Ask::join || ask == Ask::open || is_numbered(ask); }

struct AskHeader {
  Ask ask;
  std::uint32_t table;
  std::uint64_t count;
  std::uint64_t client;  // a number that it has drawn; of a server to the other one of its pair: its process's
  std::uint64_t number;  // of a numbered one: which of this client's to this server, from 1; of others: steps that the client has ended
};
static_assert(sizeof(AskHeader) == 32);

struct Joining {
  std::optional<Worker> worker = {};
  Seconds patience = {};  // how long a request may wait for other workers
};

struct EvictPart {
  std::uint32_t part, parts;
};

// Which rows of a table: those that are this server's and will be another one's.
struct MoveOrder {
  Share before, after;    // of the server that is asked
  std::uint32_t changed;  // 0: all of them; 1: those that have changed since the last order, which all rows have been given to
};
struct MoveBegun {
  std::uint64_t push_count;
  std::uint32_t period;
  std::uint32_t padding;
};
struct MoveRows {
  std::uint64_t erased, rows;
  std::uint64_t more;  // 0: these were the last
};
struct PutHeader {
  std::uint64_t erased;
};
struct KeepPart {
  std::uint32_t part, parts;
  Share share;
};

struct Opened {
  std::uint32_t table;
};

struct Leads {
  std::uint32_t leads;
  std::uint32_t padding;
  std::uint64_t process;  // of the server that says so
};

struct SumsHeader {
  std::int64_t step;
  std::int64_t worker;
};

struct Seen {
  std::int64_t slowest;    // steps that the slowest worker had ended; those of the client itself where it is none
  std::uint64_t instance;  // of the server's process: its tickets mean nothing to another one
};

// Of keys in one message, whatever is asked: few enough that a server works on one while the next is on its way.
inline std::size_t keys_of_a_message(int dimension) {
  constexpr std::size_t kMost = 8192;
  const std::size_t bytes = sizeof(Key) + sizeof(Ticket) + sizeof(Impressions) + static_cast<std::size_t>(dimension) * sizeof(float);
  return std::min(kMost, (comm::kMostMessageBytes - sizeof(AskHeader) - sizeof(Seen)) / bytes);
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
std::string to_json(const Joining& joining);
std::string to_json(const ServerStatus& status);
// Throw Error(corrupt).
TableSpec spec_from_json(const std::string& json);
Joining joining_from_json(const std::string& json);
ServerStatus status_from_json(const std::string& json);

}  // namespace tessera::ps
