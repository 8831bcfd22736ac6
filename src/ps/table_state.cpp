#include "ps/table_state.hpp"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/hash.hpp"
#include "ps/initial_values.hpp"
#include "ps/row_values.hpp"

namespace tessera::ps {
namespace {

constexpr std::int64_t kIndexBytes = 30;                         // of a row, at most
constexpr std::int64_t kPartitionBytes = std::int64_t{4} << 20;  // of the limit: what leaves at once is some of them
constexpr std::size_t kFewRows = 16;                             // whose bytes are on their way from memory
constexpr std::size_t kFewLeave = 4;                             // of a partition's rows: one in so many
constexpr std::uint32_t kFewestRows = Slab::kChunkRows;

// What of a gradient is pushed, so that its norm is at most `most`.
float clip_scale(std::span<const float> gradient, float most) {
  float sum = 0;
  for (const float value : gradient) sum += value * value;
  return sum > most * most ? most / std::sqrt(sum) : 1.0f;
}

}  // namespace

Table::State::State(TableSpec given, const std::optional<TableStorage>& storage)
    : spec(std::move(given)),
      update(update_of(spec.optimizer)),
      state_count(state_floats(spec.optimizer, spec.dimension)),
      life(spec.lifecycle ? std::optional<LifecycleState>(std::in_place, *spec.lifecycle, spec.dimension) : std::nullopt),
      value_bytes(row_bytes(spec.type, spec.dimension)),
      state_bytes(state_count * sizeof(float) + (grows() ? sizeof(GrowingHead)
                                                 : life  ? sizeof(Statistics)
                                                         : 0)),
      values(grows() && !storage ? 0 : value_bytes),
      states(grows() && !storage ? 0 : state_bytes),
      marks(1),
      scratch(static_cast<std::size_t>(spec.dimension)),
      clipped(spec.optimizer.clip_norm ? scratch.size() : 0),
      stored_state(grows() ? state_count : 0) {
  swept.resize(1);
  if (grows() && !storage) widths.begin(spec, life->dimensions);
  if (!storage) return;
  memory_limit = storage->memory_limit.value - (life ? static_cast<std::int64_t>(life->waiting.bytes().size()) : 0);
  const auto partitions = static_cast<std::uint64_t>(std::clamp<std::int64_t>(memory_limit / kPartitionBytes, 4, 1024));
  cold.emplace(storage->folder, stored_bytes(), std::bit_width(partitions) - 1,
               static_cast<std::size_t>(std::max<std::int64_t>(0, memory_limit / 2)));
  swept.resize(cold->partitions());
  share_memory();
  if (rows_that_fit() < kFewestRows)
    throw Error(ErrorCode::invalid_config, text("table ", spec.name, ": the memory limit is ", to_text(storage->memory_limit)), {},
                text("room for ", kFewestRows, " rows: ",
                     to_text(Bytes(2 * kFewestRows * bytes_in_memory() + storage->memory_limit.value - memory_limit)), " will do"));
}

std::int64_t Table::State::bytes_in_memory() const {
  return static_cast<std::int64_t>(stored_bytes() + 1 + sizeof(std::uint32_t)) + kIndexBytes;
}

std::int64_t Table::State::rows_that_fit() const {
  const std::int64_t bytes = memory_limit - cold_memory, row = bytes_in_memory();
  // The index does not shrink with the rows.
  const std::int64_t rows = std::min(bytes / row, (bytes - static_cast<std::int64_t>(index.bytes())) / (row - kIndexBytes));
  return rows / Slab::kChunkRows * Slab::kChunkRows;
}

void Table::State::share_memory() {
  index_bytes = index.bytes();
  cold_memory = static_cast<std::int64_t>(cold->memory_bytes()) * 9 / 8 + memory_limit / 16;
  // However many rows there are on disk, some stay in memory.
  most_rows = static_cast<std::uint32_t>(std::clamp<std::int64_t>(rows_that_fit(), kFewestRows, KeyIndex::kNone - 1));
  if (rows_begun <= most_rows) return;
  sweeps_to_shrink = cold->partitions();
  std::erase_if(free_rows, [this](std::uint32_t row) { return row >= most_rows; });
}

void Table::State::give_back_memory() {
  rows_begun = std::min(rows_begun, most_rows);
  for (Slab* const slab : {&values, &states, &marks}) slab->shrink_to(rows_begun);
}

void Table::State::copy_out(std::uint32_t row, std::byte* stored) const {
  if (grows()) return copy_out_growing(row, {stored, stored_bytes()});
  std::memcpy(stored, values.at(row), values.row_bytes());
  if (states.row_bytes() > 0) std::memcpy(stored + values.row_bytes(), states.at(row), states.row_bytes());
}

void Table::State::copy_in(const std::byte* stored, std::uint32_t row) {
  if (grows()) return copy_in_growing({stored, stored_bytes()}, row);
  std::memcpy(values.at(row), stored, values.row_bytes());
  if (states.row_bytes() > 0) std::memcpy(states.at(row), stored + values.row_bytes(), states.row_bytes());
}

std::uint32_t Table::State::take_row(int dimension) {
  if (!widths.empty()) {
    const std::uint32_t row = widths.take(dimension, rows_begun);
    marks.grow_to(rows_begun);
    if (row != KeyIndex::kNone) return row;
  }
  if (!free_rows.empty()) {
    const std::uint32_t row = free_rows.back();
    free_rows.pop_back();
    return row;
  }
  if (rows_begun == KeyIndex::kNone || !widths.empty())
    throw Error(ErrorCode::resource_exhausted, text("table ", spec.name, " holds ", rows_begun, " rows, the most that one server can"), {},
                "", "give the table to more servers");
  for (Slab* const slab : {&values, &states, &marks}) slab->grow_to(std::size_t{rows_begun} + 1);
  return rows_begun++;
}

std::uint32_t Table::State::add_row(Key key, Missing missing) {
  const std::uint32_t row = take_row(first_dimension(key));
  try {
    index.insert(key, row);
  } catch (...) {
    free_row(row);
    throw;
  }
  ++row_count;
  mark(row) = static_cast<unsigned char>(1 | Mark::kChanged | (snapshot_wants(hash_of(key)) ? Mark::kGiven : 0));
  if (missing == Missing::blank) return row;
  if (grows()) {
    head_of(row) = {.dimension = static_cast<std::uint32_t>(first_dimension(key)), .statistics = {.seen = life->period}};
    first_values(key, first_dimension(key), values_of(row).at(row));
    start_state(spec.optimizer, growing_state_of(row));
    return row;
  }
  first_values(key, spec.dimension, values.at(row));
  start_state(spec.optimizer, state_of(row));
  if (life) statistics_of(row) = {.seen = life->period};
  return row;
}

void Table::State::first_values(Key key, int dimension, std::byte* stored) {
  const auto count = static_cast<std::size_t>(dimension);
  if (spec.type == RowType::fp32) return start_values(spec.initializer, key, {reinterpret_cast<float*>(stored), count});
  Random random(seed_of(spec.initializer.seed, key, 1));
  start_values(spec.initializer, key, std::span(scratch).first(count));
  store_row(spec.type, std::span(scratch).first(count), random, stored);
}

std::uint32_t Table::State::load_row(Key key, const std::byte* record) {
  const std::uint32_t row = take_row(spec.dimension);
  index.insert(key, row);
  // What the snapshot has not had yet was last changed before it.
  const bool changed = Record::period(record) == (snapshot_wants(hash_of(key)) ? period - 1 : period);
  mark(row) = static_cast<unsigned char>(Mark::kOnDisk | (changed ? Mark::kChanged : 0));
  copy_in(Record::row(record), row);
  if (free_rows.size() > kFewRows) ask(free_rows[free_rows.size() - kFewRows]);
  return row;
}

void Table::State::resolve(std::span<const Key> keys, std::span<const Ticket> tickets, Missing missing,
                           std::span<const Impressions> impressions, const Scouted* scouted) {
  std::optional<Error> refused;
  try {
    make_room(keys.size());
  } catch (const Error& problem) {
    refused = problem;  // which matters if there is too little room for what comes
  }
  missed.clear();
  Ring<KeyIndex::Place> places;
  const auto ask = [&](std::size_t i) {
    if (tickets.empty() || !leads(tickets[i], keys[i])) places[i] = index.ask(keys[i]);
  };
  const auto find = [&](std::size_t i) {
    found[i] = !tickets.empty() && leads(tickets[i], keys[i]) ? tickets[i].row : index.find(keys[i], places[i]);
    if (found[i] == KeyIndex::kNone) missed.push_back(i);
  };
  in_flight(keys.size(), ask, find);
  hits += keys.size() - missed.size();
  if (missed.empty()) return;
  if (refused && missed.size() > room()) throw *refused;
  if (cold) {
    missed_keys.clear();
    places_ahead.clear();
    for (const std::size_t i : missed) {
      missed_keys.push_back(keys[i]);
      if (scouted == nullptr) continue;
      std::size_t place = places_ahead.empty() ? 0 : places_ahead.back();
      while (place < scouted->without_row.size() && scouted->without_row[place] < i) ++place;
      places_ahead.push_back(place);
    }
    cold->find(
        missed_keys,
        [&](std::size_t item, const std::byte* record) {
          const Key key = missed_keys[item];
          if (index.find(key) != KeyIndex::kNone) return;  // its second place in the batch
          load_row(key, record);
          ++misses;
        },
        scouted == nullptr ? nullptr : scouted->ahead.get(), places_ahead);
  }
  const auto gets_row = [&](std::size_t i) {
    if (missing != Missing::admit) return missing != Missing::leave;
    const Impressions seen = impressions.empty() ? Impressions{} : impressions[i];
    return LifecycleState::valid(seen) && life->admits(keys[i], seen, spec.initializer.seed, pushes);
  };
  in_flight(
      missed.size(),
      [&](std::size_t item) {
        const Key key = keys[missed[item]];
        places[item] = index.ask(key);
        if (missing == Missing::admit) life->waiting.ask(key);
      },
      [&](std::size_t item) {
        const std::size_t i = missed[item];
        found[i] = index.find(keys[i], places[item]);
        if (found[i] == KeyIndex::kNone && gets_row(i)) found[i] = add_row(keys[i], missing);
      });
}

void Table::State::scout(std::span<const Key> keys, Scouted& scouted) {
  scouted.tickets.resize(keys.size());
  scouted.without_row.clear();
  missed_keys.clear();
  Ring<KeyIndex::Place> places;
  in_flight(
      keys.size(), [&](std::size_t i) { places[i] = index.ask(keys[i]); },
      [&](std::size_t i) {
        scouted.tickets[i] = {index.find(keys[i], places[i]), erased};
        if (scouted.tickets[i].row != KeyIndex::kNone) return;
        scouted.without_row.push_back(i);
        missed_keys.push_back(keys[i]);
      });
  scouted.ahead = cold->look_ahead(missed_keys);
}

void Table::State::make_room(std::size_t count) {
  if (!cold) return;
  const bool index_grew = index.bytes() > std::max(index_bytes, static_cast<std::size_t>(kIndexBytes) * most_rows);
  if (sweeps_to_shrink == 0 && (index_grew || static_cast<std::int64_t>(cold->memory_bytes()) > cold_memory)) share_memory();
  if (sweeps_to_shrink > 0) sweep();
  while (room() < count) sweep();
}

void Table::State::write(std::span<const RowPlace> rows) {
  try {
    cold->add(hand, rows.size(), [&](std::size_t i, std::byte* record) {
      if (i + kFewRows < rows.size()) ask(rows[i + kFewRows].row);
      copy_out(rows[i].row, Record::begin(record, rows[i].key, (mark(rows[i].row) & Mark::kChanged) != 0 ? period : 0));
    });
  } catch (const Error& problem) {
    throw Error(problem.code(), text("table ", spec.name, " cannot move rows to disk: ", problem.message()), problem.where(), "",
                "make room there, or give the table more memory; it goes on with the rows that it has in memory, and none is lost");
  }
}

void Table::State::sweep() {
  const HashRange range = cold->range(hand);
  if (snapshot && range.last >= snapshot->frontier) give_up_to(range.last);
  std::vector<RowPlace> rows, to_write;
  index.for_each(range, [&](Key key, std::uint32_t row) { rows.push_back({hash_of(key), key, row}); });
  std::vector<bool> leaves(rows.size());
  std::size_t leaving = 0;
  in_flight(
      rows.size(), [&](std::size_t i) { marks.ask_to_write(rows[i].row); },
      [&](std::size_t i) {
        const unsigned known = mark(rows[i].row);
        // One use does not keep a row: most of those that are asked for once are not asked for again soon.
        leaves[i] = (known & Mark::kUses) <= 1 || rows[i].row >= most_rows;
        if (!leaves[i]) return;
        ++leaving;
        if ((known & Mark::kOnDisk) == 0) to_write.push_back(rows[i]);
      });
  std::ranges::sort(to_write, {}, [](const RowPlace& row) { return std::pair(row.hash, row.key); });
  free_rows.reserve(free_rows.size() + leaving);
  if (!to_write.empty()) write(to_write);
  std::size_t next = 0;
  index.erase_if(range, [&](Key, std::uint32_t row) {
    const bool left = leaves[next++];
    if (left && row < most_rows) free_rows.push_back(row);
    return left;
  });
  // What is known of the others grows old only where too few leave: so rows of middling use are told from those of less.
  if (leaving < rows.size() / kFewLeave)
    for (std::size_t i = 0; i < rows.size(); ++i) {
      unsigned char& known = mark(rows[i].row);
      if (!leaves[i]) known = static_cast<unsigned char>((known & ~Mark::kUses) | ((known & Mark::kUses) + 1) / 2);
    }
  swept[hand] = ++erased;
  if (sweeps_to_shrink > 0 && --sweeps_to_shrink == 0) give_back_memory();
  hand = (hand + 1) % cold->partitions();
}

bool Table::State::apply(std::byte* stored, float* state, std::span<const float> gradient, float learning_rate, Random& random) {
  if (!all_finite(gradient)) return false;
  const auto dimension = static_cast<int>(gradient.size());
  if (spec.optimizer.clip_norm) {
    const float scale = clip_scale(gradient, *spec.optimizer.clip_norm);
    std::ranges::transform(gradient, clipped.begin(), [scale](float value) { return scale * value; });
    gradient = std::span(clipped).first(gradient.size());
  }
  if (spec.type == RowType::fp32) {
    update(spec.optimizer, learning_rate, gradient.data(), reinterpret_cast<float*>(stored), state, dimension);
    return true;
  }
  const std::span<float> values_now = std::span(scratch).first(gradient.size());
  ps::load_row(spec.type, stored, values_now);
  update(spec.optimizer, learning_rate, gradient.data(), scratch.data(), state, dimension);
  store_row(spec.type, values_now, random, stored);
  return true;
}

}  // namespace tessera::ps
