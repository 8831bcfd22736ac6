// A worker's end of the parameter servers: one table, whichever servers hold its shards.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "ps/latencies.hpp"
#include "ps/ps.hpp"

namespace tessera::comm {
class Requester;
}

namespace tessera::ps {

// A server's part of a table.
struct TableStatus {
  std::string name;
  int dimension = 0;
  std::uint64_t rows = 0;
  TableMemory memory;
  std::uint64_t keys_pulled = 0, keys_pushed = 0;  // since the server began
  std::uint64_t gradients_refused = 0;             // of the pushed, as they were not finite
  struct Life {
    std::uint32_t period = 0;  // periods that have ended
    LifecycleCounts counts;
  };
  std::optional<Life> lifecycle = {};  // of a table that has one
  AnswerLatencies latencies = {};      // of messages, each of up to 8192 keys
};

struct ServerStatus {
  std::optional<std::string> backup;      // of one of a pair: where the other is, that has everything of it; empty: none has
  int workers = 0;                        // that train together
  std::int64_t slowest = 0, fastest = 0;  // steps that these of them have ended
  std::vector<TableStatus> tables;
};

// One of the workers of a run, who see each other's steps (Consistency).
struct Worker {
  int index = 0;
  int count = 1;
  std::uint64_t run = 0;        // equal for the workers of a run, and another number for each run
  std::int64_t first_step = 0;  // how many steps the run has made before; equal for all
  // A run takes the place of an earlier one of its name at once. Of one of another name, whose workers are still connected, it does not:
  // what it asks for first throws invalid_config.
  std::string name = {};
};

struct ClientOptions {
  Seconds deadline = Seconds(60);  // of an answer; also of connecting, which takes a minute at most
  // For how long a lost connection is tried anew. A push is applied once, however often the connection is lost meanwhile.
  Seconds reconnect = Seconds(10);
  const std::atomic<bool>* interrupted = nullptr;  // as comm::RequestClient's
  std::optional<Worker> worker = {};  // none: no pull waits, and a push is applied when it comes, whatever the table's consistency
};

// Rows as servers store them, on their way from some to others.
struct MovedRows {
  std::vector<Key> erased;  // which have gone since
  std::vector<Key> keys;
  std::vector<std::byte> rows;  // one a key, as Table::copy_stored gives them
};
// How far a table has come.
struct TableCounts {
  std::uint64_t pushes = 0;
  std::uint32_t period = 0;  // of a table with a lifecycle
};

// How far what pulls have seen was behind this worker's own step.
struct Staleness {
  std::int64_t pulls = 0;
  std::int64_t most = 0;  // steps of the slowest worker that were missing
  double mean = 0;
};

// Not thread-safe. Errors are those of comm::RequestClient and of the servers' tables, and invalid_config where values, gradients or
// impressions are not as many as the keys ask for; after peer_lost and deadline_exceeded the client is
// of no more use, and part of a push may have been applied.
class Client {
 public:
  // Every client of a table names the same servers in the same order: a key's place among them says where it lives.
  Client(std::vector<std::string> places, const std::string& secret, const ClientOptions& options = {});
  // Over a requester that is connected; `reconnect` and `interrupted` are its affair.
  explicit Client(std::unique_ptr<comm::Requester> requests, const ClientOptions& options = {});
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  // Makes the table where it is not there yet. Throws invalid_config where one of this name is another one.
  using TableId = std::size_t;
  TableId open(const TableSpec& spec);

  // `values`: [keys, dimension]. A key that repeats crosses the network once. Waits for other workers as the table's consistency says;
  // throws deadline_exceeded, which names the worker that is waited for. `ahead`: so many steps before the one that uses the rows, while
  // this worker has not ended those between; its own count as another's do, so that a staleness below `ahead` would wait forever.
  void pull(TableId table, std::span<const Key> keys, std::span<float> values, Absent absent = Absent::create, int ahead = 0);
  // `gradients`: [keys, dimension]. Those of a key that repeats are added up and applied once. Of keys that were pulled last, or last but
  // one, the servers need not search again.
  // `impressions`: of a table with a lifecycle, what samples say of each key, or empty: one show each; those of a key that repeats are
  // added up.
  PushResult push(TableId table, std::span<const Key> keys, std::span<const float> gradients,
                  std::span<const Impressions> impressions = {});
  // Sets the learning rate of the pushes that follow, from all workers.
  void set_learning_rate(TableId table, float learning_rate);

  // Ends a period of a table with a lifecycle, and has the servers erase the rows that are to go then, a part at a time, between which
  // they answer others. Returns how many went. Of a synchronous table, what was pushed in a step that is not over was not seen yet.
  std::uint64_t end_period(TableId table);

  // For a worker: ends its step, after all its pushes of the step.
  void end_step();
  // Waits until all workers have ended as many steps as this one.
  void wait_for_workers();
  Staleness staleness() const;

  // All tables of the servers into `folder`, which servers and client reach by this path: as they are when the servers are asked, while
  // pushes go on. `changed`: behind what was saved there last, by as many servers, only the rows that have changed since. What was there
  // before is whole until finish_save() returns. Throws io.
  void begin_save(const std::filesystem::path& folder, SnapshotRows rows = SnapshotRows::all);
  // Waits until they are written.
  void finish_save();
  // The rows that were saved there, by however many servers, in place of those of all tables that the servers have. Throws not_found where
  // a table that this client has opened was not saved, and invalid_config where a server has rows of another one: they stay. Throws as
  // load_table (ps/table_file.hpp); then tables may be empty.
  void load(const std::filesystem::path& folder);

  // For a table whose rows move to other servers (ps/move.hpp), which another client asks. `after`: the share of the keys that each of
  // these servers will have then. Begins to take the rows that they will not have any more: all of them, or those that have changed since
  // the last of these calls, whose rows have all been taken. Throws not_found if a save, or another process of a server, has come between;
  // then all rows have to be taken again.
  TableCounts begin_move(TableId table, std::span<const Share> after, SnapshotRows rows);
  // Some more of them; nothing once there are no more. Each as it is when it is its turn.
  std::optional<MovedRows> moved_rows(TableId table);
  // What waits to be admitted at a server, whole.
  std::vector<std::byte> waiting(TableId table, std::size_t server);
  // Lays rows, what waits to be admitted, and counts, in place of what these servers have of them.
  void put(TableId table, const MovedRows& moved);
  void put_waiting(TableId table, std::size_t server, std::span<const std::byte> waiting);
  void put_counts(TableId table, const TableCounts& counts);
  // Each server erases the rows that are none of its share, a part at a time. Returns how many there were.
  std::uint64_t keep(TableId table, std::span<const Share> shares);
  // Once they are there, between two steps of all workers: from now on this is a client of those servers, with the same tables, and the
  // worker that it was in a run of this number.
  void go_on_at(std::vector<std::string> places, const std::string& secret, std::uint64_t run);
  // The tables as they were opened.
  std::vector<TableSpec> opened() const;

  // For each server, in the servers' order: its tables, whoever opened them.
  std::vector<ServerStatus> status();
  // Connections that were lost and made anew.
  std::int64_t reconnections() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::ps
