// Internal. What a Table holds, and how rows come to memory and leave it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"
#include "ps/cold_rows.hpp"
#include "ps/in_flight.hpp"
#include "ps/key_index.hpp"
#include "ps/ps.hpp"
#include "ps/slab.hpp"
#include "ps/table_lifecycle.hpp"
#include "ps/update.hpp"
#include "ps/widths.hpp"

namespace tessera::ps {

// Keys that are searched at once, before their rows are used. Few keep their lines of the index and their rows in the cache (512 measured
// better than 4096); many let the disk work on all that lie there at the same time.
constexpr std::size_t kChunk = 512, kMostChunk = 4096;

struct RowPlace {
  std::uint64_t hash;
  Key key;
  std::uint32_t row;
};

// What is known of a row in memory, in one byte.
struct Mark {
  static constexpr unsigned kUses = 7;     // how often it was asked for: up to 7, halved when the hand comes by and too few rows leave
  static constexpr unsigned kChanged = 8;  // in this period
  static constexpr unsigned kGiven = 16;   // to the snapshot that is being made, or not part of it
  static constexpr unsigned kOnDisk = 32;  // as it is here
};

constexpr std::size_t kHeadFloats = sizeof(GrowingHead) / sizeof(float);

// What becomes of a key without a row. `admit`: its row is made where the table's lifecycle admits it. `blank`: a row whose bytes the
// caller fills in.
enum class Missing { leave, create, admit, blank };

// Keys that are to be resolved soon.
struct Scouted {
  std::vector<Ticket> tickets;
  std::vector<std::size_t> without_row;  // places among the keys
  std::shared_ptr<Ahead> ahead;          // null, or of those without a row
};

struct Table::State {
  State(TableSpec given, const std::optional<TableStorage>& storage);

  std::size_t chunk() const { return cold ? kMostChunk : kChunk; }
  std::span<float> state_of(std::uint32_t row) {
    return state_count == 0 ? std::span<float>() : std::span(reinterpret_cast<float*>(states.at(row)), state_count);
  }
  // Whether rows have dimensions of their own. Then what lies where is said by these:
  bool grows() const { return life && !life->dimensions.empty(); }
  const Slab& values_of(std::uint32_t row) const { return widths.empty() ? values : widths.of(row).values; }
  const Slab& states_of(std::uint32_t row) const { return widths.empty() ? states : widths.of(row).states; }
  GrowingHead& head_of(std::uint32_t row) const { return *reinterpret_cast<GrowingHead*>(states_of(row).at(row)); }
  int dimension_of(std::uint32_t row) const { return widths.empty() ? static_cast<int>(head_of(row).dimension) : widths.of(row).dimension; }
  std::span<float> growing_state_of(std::uint32_t row) const;
  int first_dimension(Key key) const { return grows() ? life->rules_of(key).first_dimension() : spec.dimension; }
  // Rows of these keys, which may repeat, that have been seen often enough get their next dimension.
  void grow(std::span<const Key> keys);
  // A row as it is stored, with values up to the `dimension`.
  void grow_stored(Key key, std::span<std::byte> stored, int dimension);
  // Over the key's row; returns where it is then.
  std::uint32_t restore_growing(Key key, std::uint32_t row, std::span<const std::byte> stored);
  GrowingHead head_in(std::span<const std::byte> stored) const;
  // Beside the optimizer's state, of a table with a lifecycle.
  Statistics& statistics_in(float* state) const { return *reinterpret_cast<Statistics*>(state + state_count); }
  Statistics& statistics_of(std::uint32_t row) const {
    return grows() ? head_of(row).statistics : statistics_in(reinterpret_cast<float*>(states.at(row)));
  }
  unsigned char& mark(std::uint32_t row) { return reinterpret_cast<unsigned char&>(*marks.at(row)); }
  // Whether marks are kept of what changes. Before the first snapshot all rows are as new as when they were made, and a push need not touch
  // the memory of their marks: a fifth of its time.
  bool marks_changes() const { return cold.has_value() || period > 0; }
  std::int64_t bytes_in_memory() const;  // of a row, with its place in the index
  std::size_t stored_bytes() const { return value_bytes + state_bytes; }
  void count_use(std::uint32_t row) {
    unsigned char& known = mark(row);
    known = static_cast<unsigned char>(known + ((known & Mark::kUses) < Mark::kUses ? 1 : 0));
  }
  void ask(std::uint32_t row) const {
    values_of(row).ask_to_read(row);
    if (state_bytes > 0) states_of(row).ask_to_read(row);
    marks.ask_to_write(row);
  }
  void copy_out(std::uint32_t row, std::byte* stored) const;
  void copy_in(const std::byte* stored, std::uint32_t row);
  void copy_out_growing(std::uint32_t row, std::span<std::byte> stored) const;
  void copy_in_growing(std::span<const std::byte> stored, std::uint32_t row);

  // Fills `found` with the rows of up to chunk() keys, kNone where there is none. Those on disk come to memory, for which others may leave.
  // Between two calls no row leaves. `tickets`: none, or one a key; `impressions`, too, and only where a key may be admitted.
  // `scouted`: null, or as scout() said of just these keys, with its tickets.
  void resolve(std::span<const Key> keys, std::span<const Ticket> tickets, Missing missing, std::span<const Impressions> impressions = {},
               const Scouted* scouted = nullptr);
  // Finds the rows of up to chunk() keys that are to be resolved soon; another thread looks meanwhile for those on disk.
  void scout(std::span<const Key> keys, Scouted& scouted);
  bool leads(const Ticket& ticket, Key key) const { return ticket.row < rows_begun && ticket.erased >= swept[partition_of(key)]; }
  std::size_t partition_of(Key key) const { return cold ? cold->partition_of(hash_of(key)) : 0; }
  std::size_t room() const { return free_rows.size() + (most_rows - std::min(most_rows, rows_begun)); }
  void make_room(std::size_t count);
  std::int64_t rows_that_fit() const;
  // Sets `most_rows`, so that they and what finds those on disk keep within the limit.
  void share_memory();
  // Of rows that lie behind `most_rows` none is left.
  void give_back_memory();
  // Moves rows of the hand's partition to the disk.
  void sweep();
  void write(std::span<const RowPlace> rows);
  std::uint32_t take_row(int dimension);
  // Of one that has left the index.
  void free_row(std::uint32_t row) {
    if (!widths.empty()) return widths.free(row);
    if (row < most_rows) free_rows.push_back(row);  // else its memory is about to be given back
  }
  // So that as many calls of free_row throw nothing.
  void reserve_free(std::size_t count) {
    if (!widths.empty()) return widths.reserve_free(count);
    free_rows.reserve(free_rows.size() + count);
  }
  std::uint32_t add_row(Key key, Missing missing);
  // The values that a key's row begins with, as they are stored.
  void first_values(Key key, int dimension, std::byte* stored);
  std::uint32_t load_row(Key key, const std::byte* record);

  // As Table::pull.
  template <bool kGrows>
  void pull(std::span<const Key> keys, std::span<float> values, std::span<Ticket> tickets, Absent absent);
  // As Table::push, of a table with a lifecycle or without one.
  template <bool kLives, bool kGrows>
  PushResult push(std::span<const Key> keys, std::span<const float> gradients, std::span<const Ticket> tickets,
                  std::span<const Impressions> impressions);
  // False for a gradient that is not finite.
  bool apply(std::byte* stored, float* state, std::span<const float> gradient, float learning_rate, Random& random);

  bool snapshot_wants(std::uint64_t hash) const { return snapshot && hash >= snapshot->frontier; }
  // To be called before a row changes or goes.
  void before_change(Key key, std::uint32_t row) {
    if (snapshot && snapshot_wants(hash_of(key)) && (mark(row) & Mark::kGiven) == 0) give(key, row);
  }
  void give(Key key, std::uint32_t row);
  // Gives all rows up to this hash that the snapshot has not had.
  void give_up_to(std::uint64_t last);

  struct Snapshot {
    SnapshotRows rows;
    TakeRow take;
    std::uint64_t frontier = 0;  // rows with a smaller hash were given
    std::vector<std::byte> stored;
  };

  TableSpec spec;
  Update update;
  std::size_t state_count;  // the optimizer's
  std::optional<LifecycleState> life;
  std::size_t value_bytes, state_bytes;  // of a stored row
  KeyIndex index;
  Slab values, states;  // apart, so that pulls read values alone; `states` also has the Statistics
  Slab marks;
  // In place of `values` and `states`, of a table in memory whose rows grow. One that also has a disk gives each row in memory the room
  // that the table's dimension takes.
  Widths widths;
  std::vector<std::uint32_t> free_rows;
  std::uint32_t rows_begun = 0;
  std::uint32_t most_rows = KeyIndex::kNone;  // in memory; with a smaller number than before, those behind it leave as the hand comes by
  std::uint32_t erased = 0;                   // how often rows left
  std::vector<std::uint32_t> swept;           // for each partition, `erased` when one of its rows last left: tickets from before are void
  std::uint64_t row_count = 0;
  std::uint64_t pushes = 0;  // calls, of which each rounds by random numbers of its own
  std::vector<float> scratch, clipped;
  mutable std::vector<float> stored_state;  // of a row that grows, on its way to its stored form or from there
  std::array<std::uint32_t, kMostChunk> found;

  std::optional<ColdRows> cold;
  std::int64_t memory_limit = 0, cold_memory = 0;  // of the limit, what `cold` may have
  std::size_t index_bytes = 0;                     // when the limit was last shared
  std::size_t hand = 0;                            // the partition that is next to be swept
  std::size_t sweeps_to_shrink = 0;                // until no row lies behind `most_rows`
  std::uint64_t hits = 0, misses = 0;
  std::vector<std::size_t> missed, places_ahead;
  std::vector<Key> missed_keys;
  std::array<Scouted, 2> scouted;  // of a pull's next chunks

  std::uint32_t period = 0;  // snapshots that began so far
  bool complete = false;     // the last one
  std::string name = {};     // of it
  std::optional<Snapshot> snapshot;
  std::vector<Key> erased_keys;  // in this period, once there was a snapshot
};

}  // namespace tessera::ps
