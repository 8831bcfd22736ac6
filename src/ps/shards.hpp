// Internal. What a server holds, and what it answers: a function of the messages alone, in their order, whoever carries them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ps/client.hpp"
#include "ps/latencies.hpp"
#include "ps/messages.hpp"
#include "ps/ps.hpp"
#include "ps/step_sums.hpp"
#include "ps/workers.hpp"

namespace tessera::ps {

// Not thread-safe.
class Shards {
 public:
  // `storage`: of each table.
  explicit Shards(const std::optional<TableStorage>& storage = {});
  // See comm::RequestServer::Answer. Unset: the request waits for workers. Throws deadline_exceeded when its client does not wait any
  // longer.
  std::optional<std::size_t> answer(std::span<const std::byte> request, std::span<std::byte> reply, Seconds waited = {});
  // How long the answer to `request`, which these have given, took with whoever carries it: for the status of its table.
  void took(std::span<const std::byte> request, Seconds seconds);
  ServerStatus status() const;
  const Workers& workers() const { return workers_; }

  std::vector<Table*> tables();
  // Tables without rows in place of those that are there.
  void empty_tables();

  // Ends what gives rows to other servers, who have to ask for all of them again.
  void stop_moves();

  // Whether a copy has begun that is not whole.
  bool incomplete() const { return incomplete_; }
  // Whether rows go to other servers: from the snapshot that gives them on until they are kept no longer.
  bool moving() const;

  // What these hold, as requests that make others equal to them: each is written into what `next` returns, and then `send` is told its
  // bytes. `process`: a number of the server's, for their headers. `left_out`: rows, and keys that wait, come by another way.
  enum class Rows { all, left_out };
  using Next = std::function<std::span<std::byte>()>;
  using Send = std::function<void(std::size_t bytes)>;
  void copy(std::uint64_t process, const Next& next, const Send& send, Rows rows = Rows::all) const;

 private:
  // Rows that go to other servers, between the snapshot that has given them and the request that takes them.
  struct Move {
    MoveOrder order = {};
    std::vector<Key> erased = {}, keys = {};
    std::vector<std::byte> rows = {};
    // Of the last batch, which may be asked for again: it stays until the next one is.
    std::uint64_t batch = 0;
    std::size_t sent_erased = 0, sent_rows = 0;
    bool over = false;      // the snapshot has given all
    bool too_many = false;  // nobody took them
  };
  struct Shard {
    Shard(const TableSpec& opened, const std::optional<TableStorage>& storage) : spec(opened), table(opened, storage) {}
    TableSpec spec;  // as it was opened, whatever its learning rate is now
    Table table;
    StepSums sums = {};                                 // of a synchronous table
    std::uint64_t pulled = 0, pushed = 0, refused = 0;  // keys
    AnswerLatencies latencies = {};
    std::unique_ptr<Move> move = {};
  };

  void renew_instance();
  Shard& shard_of(const AskHeader& header);
  Opened open(std::span<const char> json);
  void join(const AskHeader& header, std::span<const char> json);
  void answer_numbered(const AskHeader& header, MessageReader& in, MessageWriter& out);
  PushResult apply(const AskHeader& header, const Workers::Client& client, MessageReader& in);
  // Nothing: not all workers that the client waits for have come so far.
  std::optional<Seen> seen(const AskHeader& header, int staleness);
  [[noreturn]] void throw_waited(const AskHeader& header, Seconds waited);
  bool wait(const AskHeader& header, MessageWriter& out);
  bool pull(const AskHeader& header, MessageReader& in, MessageWriter& out);
  PushResult push(const AskHeader& header, const Workers::Client& client, MessageReader& in);
  // Of rows as they cross the network. Valid until the next call of either.
  std::span<const float> take_gradients(const TableSpec& spec, std::size_t rows, MessageReader& in);
  std::span<float> scratch(std::size_t floats);
  void end_step(const Workers::Client& client);
  PushResult end_period(const AskHeader& header, MessageReader& in);
  void take_copy(const AskHeader& header, MessageReader& in);
  void stop_move(Shard& shard);
  void begin_move(const AskHeader& header, MessageReader& in, MessageWriter& out);
  void move_rows(const AskHeader& header, MessageWriter& out);
  void next_batch(Shard& shard);
  void move_waiting(const AskHeader& header, MessageReader& in, MessageWriter& out);
  PushResult put(const AskHeader& header, MessageReader& in);

  std::optional<TableStorage> storage_;
  std::deque<Shard> shards_;
  Workers workers_;
  std::uint64_t instance_ = 0;  // random, of these rows
  bool incomplete_ = false;
  std::vector<float> scratch_;
};

}  // namespace tessera::ps
