// Tables of sparse parameters: rows of a model that are found by a 64-bit key and exist from the first time that a batch names them.
//
// A table is what one server holds of a model's table, its shard. Clients pull the rows of a batch, compute gradients, and push these;
// the optimizer runs where the rows are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "ps/lifecycle.hpp"

namespace tessera::ps {

using Key = std::uint64_t;

// How a row's values are stored. `int8`: a scale for each row, its largest value / 127. Rounding to bf16 and int8 is random, up or
// down with the probabilities that keep the mean, so that small updates are not lost; the same pushes give the same bits.
enum class RowType { fp32, bf16, int8 };
// The bytes of a row of so many values, a multiple of 4.
std::size_t row_bytes(RowType type, int dimension);

// What a push does to a row w with the gradient g.
//   add      w += g, whatever the learning rate: for differences that a client has computed
//   sgd      w -= lr g
//   adagrad  n += g^2; w -= lr g / (sqrt(n) + epsilon)                                        (Duchi, Hazan, Singer 2011)
//   adam     m, v as usual, the bias corrected by how many pushes this row has had            (Kingma, Ba 2015)
//   ftrl     FTRL-Proximal with l1, l2, beta and lr as alpha                                  (McMahan et al. 2013, algorithm 1)
enum class Rule { add, sgd, adagrad, adam, ftrl };

struct OptimizerSpec {
  Rule rule = Rule::adagrad;
  // One second moment for a row, the mean over its values, in place of one for each value (AdaGrad's n, Adam's v).
  bool row_moment = false;
  float learning_rate = 0.05f;
  float epsilon = 1e-8f;
  float initial_moment = 0;  // of AdaGrad's n
  float beta1 = 0.9f, beta2 = 0.999f;
  float l1 = 0, l2 = 0, beta = 1;
  // A row's gradient whose Euclidean norm is larger is scaled down to it.
  std::optional<float> clip_norm = {};
};

// A row's first values: a function of (seed, key, place in the row) alone, so that they do not depend on how many shards there are.
enum class InitialValues { zero, uniform, normal };
struct InitializerSpec {
  InitialValues kind = InitialValues::uniform;
  float scale = 0.01f;  // uniform in [-scale, scale); or the standard deviation
  std::uint64_t seed = 1;
};

// When workers that train together see each other's pushes. A worker's step ends where it says so (Client::end_step).
//   synchronous    The gradients of all workers in a step are added up, in the workers' order, and applied once when the last of them has
//                  ended it. A pull waits for that of the step before.
//   asynchronous   A push is applied when it comes. A pull waits until no worker is more than `staleness` steps behind the puller: in
//                  step 7, with 1, until all have ended step 5 (steps count from 0).   (Stale synchronous parallel, Ho et al. 2013)
enum class Consistency { synchronous, asynchronous };

struct TableSpec {
  std::string name = {};
  int dimension = 0;  // values of a row, 1 to 65536
  RowType type = RowType::fp32;
  OptimizerSpec optimizer = {};
  InitializerSpec initializer = {};
  Consistency consistency = Consistency::asynchronous;
  int staleness = 1;  // of asynchronous tables, in steps
  // None: a row is made when a key is first asked for, and stays until it is erased.
  std::optional<Lifecycle> lifecycle = {};
  // How values and gradients cross the network. Values are rounded to the nearest, gradients up or down as RowType says: their mean stays.
  // Clients and servers compute and add up in fp32.
  RowType wire = RowType::fp32;
};

// Throws Error(invalid_config) that names the table and the member.
void check(const TableSpec& spec);

// Where a pull has found a row, so that the push that belongs to it need not search again. A ticket is valid for the table that gave it,
// also after rows have been erased or gone to disk: one that may no longer lead to its key's row is searched anew.
struct Ticket {
  std::uint32_t row = 0;
  std::uint32_t erased = 0;
};

// What a pull does where a key has no row. Of a table with a lifecycle it makes none: pushes do. `create` then gives the values that the
// row will begin with where the next push admits the key for certain, and else zeros.
enum class Absent { create, zeros };

// Where a table keeps the rows that its memory has no room for, those that are seldom asked for. What lies there goes with the process.
struct TableStorage {
  std::filesystem::path folder;  // of a disk that reads single blocks fast; made where it is missing
  Bytes memory_limit;            // of all that the table holds in memory
};

struct TableMemory {
  Bytes index, rows;  // reserved from the system, whether filled or not; `index` also finds the rows on disk
  Bytes disk = {};
  // Keys whose rows were in memory, and on disk, so far.
  std::uint64_t hits = 0, misses = 0;
};

// Which rows a snapshot has: all, or those that were created or changed since the last snapshot began.
enum class SnapshotRows { all, changed };
struct SnapshotBegun {
  SnapshotRows rows;        // `all` also where `changed` was asked for and there is no earlier snapshot that has been completed
  std::vector<Key> erased;  // for `changed`: keys whose rows were erased since the last one; some have come back since
};
using TakeRow = std::function<void(Key, std::span<const std::byte> stored)>;

// One of a number of servers: keys are dealt over them by intervals of their hashes, all as large.
struct Share {
  std::uint32_t server = 0;
  std::uint32_t servers = 0;  // 0: a server that has none of the keys
};

struct PushResult {
  std::int64_t applied = 0;
  std::int64_t refused = 0;  // gradients with a NaN or an infinity, which change nothing
};

// Not thread-safe: a table belongs to one thread. Holds at most 2^32 - 2 rows in memory, and without a TableStorage none elsewhere. Throws
// Error(resource_exhausted) when the system gives no more memory, and Error(io) when rows are to come from the disk or go there and it
// refuses; what a call has done until then stays, and calls for rows in memory go on. A disk that fails under rows that are read through a
// map of its file, without system calls, ends the process with SIGBUS.
class Table {
 public:
  // Throws Error(invalid_config) where the limit has no room for some ten thousand rows.
  explicit Table(TableSpec spec, const std::optional<TableStorage>& storage = {});
  ~Table();
  Table(Table&&) noexcept;
  Table& operator=(Table&&) noexcept;

  const TableSpec& spec() const;
  std::size_t size() const;
  TableMemory memory() const;

  // `values`: [keys, dimension], in the order of the keys, which may repeat. `tickets`: empty, or one a key, which are filled; where
  // `zeros` finds no row, the ticket leads nowhere and push searches.
  void pull(std::span<const Key> keys, std::span<float> values, std::span<Ticket> tickets = {}, Absent absent = Absent::create);

  // `gradients`: [keys, dimension]. A key that repeats is updated as often; one without a row gets it first. `tickets`: empty, or those of
  // a pull of the same keys. `impressions`: of a table with a lifecycle, one a key, or empty: one show each. Those with a NaN, an infinity
  // or less than 0 are refused like such gradients.
  PushResult push(std::span<const Key> keys, std::span<const float> gradients, std::span<const Ticket> tickets = {},
                  std::span<const Impressions> impressions = {});

  // Sets the learning rate of the pushes that follow.
  void set_learning_rate(float learning_rate);

  // The number of rows that were there.
  std::size_t erase(std::span<const Key> keys);

  // The rows of one part of the table, whose parts 0 to `parts` - 1 are about as large, that a server with this share does not have.
  // Returns how many they were.
  std::uint64_t erase_others(std::uint32_t part, std::uint32_t parts, const Share& share);

  // Calls of push so far, which decide how they round: a table that goes on from stored rows goes on from their count.
  std::uint64_t push_count() const;
  void set_push_count(std::uint64_t count);

  // For a table with a lifecycle: the number of periods that have ended, which a row that is pushed to keeps as its last.
  std::uint32_t period() const;
  // What decays with periods does so by being read: this takes no time.
  void end_period();
  // Erases the rows that are to go, among those of one part of the table, whose parts 0 to `parts` - 1 are about as large. Returns how many
  // they were. Takes the time to look at that part, and of rows that go from the disk a read and a write each.
  std::uint64_t evict(std::uint32_t part, std::uint32_t parts);
  LifecycleCounts lifecycle_counts() const;
  // The statistics of a row as it is stored.
  Statistics statistics(std::span<const std::byte> stored) const;
  // The keys that wait to be admitted, as bytes (WaitingKeys), and what another table of this kind knows of such keys, from the byte
  // `offset` of it on, a multiple of 64.
  std::span<const std::byte> waiting() const;
  void add_waiting(std::size_t offset, std::span<const std::byte> bytes);
  // A table that goes on from stored rows goes on from their period.
  void set_lifecycle(std::uint32_t period, const LifecycleCounts& counts = {});

  // A row as it is stored: its values, the optimizer's state, then its Statistics where the table has a lifecycle. The format belongs to
  // the TableSpec: equal specs read each other's rows.
  std::size_t stored_row_bytes() const;
  // Calls with each key once, in no particular order. The table must not be changed meanwhile.
  void for_each(const TakeRow& visit) const;
  // Copies rows as they are stored; a key without a row gets it first. `stored`: [keys, stored_row_bytes()].
  void copy_stored(std::span<const Key> keys, std::span<std::byte> stored);
  // Puts stored rows in, over those that are there. `stored`: [keys, stored_row_bytes()].
  void restore(std::span<const Key> keys, std::span<const std::byte> stored);

  // The rows as they are now, for `take`, which must not throw: each once, while calls to the table go on. A row that one of these calls
  // changes is given before; the others when continue_snapshot comes to them. One snapshot at a time.
  SnapshotBegun begin_snapshot(SnapshotRows rows, TakeRow take);
  // Goes through about so many rows; false once there are no more, which ends the snapshot. Throws Error(io) as pull does; it can be called
  // again.
  bool continue_snapshot(std::size_t rows);
  // Gives up the snapshot that is being made, or what came of the last one: the next one has all rows.
  void abandon_snapshot();
  // The last snapshot's name, once it is complete and until the next one begins; changes count from it. Empty: it was not named.
  const std::string& snapshot_name() const;
  void name_snapshot(std::string name);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::ps
