// A table's rows as they were at one moment: in the order of their hashes, but for those that change before it is their turn.
#include <cmath>
#include <cstring>
#include <utility>

#include "ps/table_state.hpp"

namespace tessera::ps {

SnapshotBegun Table::begin_snapshot(SnapshotRows rows, TakeRow take) {
  State& state = *state_;
  ensure(!state.snapshot, "a table makes one snapshot at a time");
  if (!state.complete) rows = SnapshotRows::all;
  SnapshotBegun begun{.rows = rows, .erased = std::exchange(state.erased_keys, {})};
  if (rows == SnapshotRows::all) begun.erased.clear();
  state.snapshot.emplace(State::Snapshot{.rows = rows, .take = std::move(take), .stored = std::vector<std::byte>(stored_row_bytes())});
  ++state.period;
  state.complete = false;
  state.name.clear();
  // Rows go to disk only after they were given: so the hand follows the snapshot.
  state.hand = 0;
  return begun;
}

bool Table::continue_snapshot(std::size_t rows) {
  State& state = *state_;
  if (!state.snapshot) return false;
  const double share = static_cast<double>(rows) / static_cast<double>(std::max<std::uint64_t>(1, state.row_count));
  const std::uint64_t from = state.snapshot->frontier, rest = ~std::uint64_t{0} - from;
  const double step = std::ldexp(share, 64);
  state.give_up_to(step < static_cast<double>(rest) ? from + static_cast<std::uint64_t>(step) : ~std::uint64_t{0});
  return state.snapshot.has_value();
}

void Table::abandon_snapshot() {
  State& state = *state_;
  state.complete = false;
  state.name.clear();
  if (!state.snapshot) return;
  state.snapshot.reset();
  for (std::uint32_t row = 0; row < state.rows_begun; ++row) state.mark(row) &= static_cast<unsigned char>(~Mark::kGiven);
}

const std::string& Table::snapshot_name() const { return state_->name; }
void Table::name_snapshot(std::string name) { state_->name = std::move(name); }

void Table::State::give(Key key, std::uint32_t row) {
  unsigned char& known = mark(row);
  if (snapshot->rows == SnapshotRows::all || (known & Mark::kChanged) != 0) {
    copy_out(row, snapshot->stored.data());
    snapshot->take(key, snapshot->stored);
  }
  known = static_cast<unsigned char>((known | Mark::kGiven) & ~Mark::kChanged);
}

void Table::State::give_up_to(std::uint64_t last) {
  const HashRange range{snapshot->frontier, last};
  std::vector<std::pair<Key, std::uint32_t>> rows;
  index.for_each(range, [&](Key key, std::uint32_t row) { rows.emplace_back(key, row); });
  // The disk first: where it refuses, nothing was given, and nothing is forgotten.
  std::vector<std::byte> on_disk;
  if (cold)
    cold->for_each(range, [&](const std::byte* record) {
      const bool wanted = snapshot->rows == SnapshotRows::all || Record::period(record) == period - 1;
      if (!wanted || index.find(Record::key(record)) != KeyIndex::kNone) return;
      on_disk.insert(on_disk.end(), record, record + Record::kHead + stored_bytes());
    });
  for (std::size_t at = 0; at < on_disk.size(); at += Record::kHead + stored_bytes()) {
    const std::byte* const record = on_disk.data() + at;
    snapshot->take(Record::key(record), {Record::row(record), stored_bytes()});
  }
  in_flight(
      rows.size(), [&](std::size_t i) { ask(rows[i].second); },
      [&](std::size_t i) {
        const auto [key, row] = rows[i];
        if ((mark(row) & Mark::kGiven) == 0) give(key, row);
        mark(row) &= static_cast<unsigned char>(~Mark::kGiven);
      });
  if (last == ~std::uint64_t{0}) {
    snapshot.reset();
    complete = true;
  } else {
    snapshot->frontier = last + 1;
  }
}

}  // namespace tessera::ps
