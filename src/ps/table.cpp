#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"
#include "ps/batch.hpp"
#include "ps/ps.hpp"
#include "ps/row_values.hpp"
#include "ps/table_state.hpp"

namespace tessera::ps {
namespace {

void copy_floats(const float* __restrict from, float* __restrict to, int count) {
  for (; count >= 16; count -= 16, from += 16, to += 16) std::memcpy(to, from, 64);
  for (int i = 0; i < count; ++i) to[i] = from[i];
}

// Calls with the begin and the length of each chunk.
template <typename Visit>
void in_chunks(std::size_t count, std::size_t chunk, const Visit& visit) {
  for (std::size_t begin = 0; begin < count; begin += chunk) visit(begin, std::min(chunk, count - begin));
}

}  // namespace

Table::Table(TableSpec spec, const std::optional<TableStorage>& storage) {
  check(spec);
  state_ = std::make_unique<State>(std::move(spec), storage);
}
Table::~Table() = default;
Table::Table(Table&&) noexcept = default;
Table& Table::operator=(Table&&) noexcept = default;

const TableSpec& Table::spec() const { return state_->spec; }
std::size_t Table::size() const { return state_->row_count; }
TableMemory Table::memory() const {
  const State& state = *state_;
  const std::size_t rows = state.values.bytes() + state.widths.bytes() + state.states.bytes() + state.marks.bytes() +
                           state.free_rows.capacity() * sizeof(std::uint32_t) + state.erased_keys.capacity() * sizeof(Key);
  const std::size_t index =
      state.index.bytes() + (state.cold ? state.cold->memory_bytes() : 0) + (state.life ? state.life->waiting.bytes().size() : 0);
  return {.index = Bytes(static_cast<std::int64_t>(index)),
          .rows = Bytes(static_cast<std::int64_t>(rows)),
          .disk = Bytes(static_cast<std::int64_t>(state.cold ? state.cold->disk_bytes() : 0)),
          .hits = state.hits,
          .misses = state.misses};
}
void Table::set_learning_rate(float learning_rate) { state_->spec.optimizer.learning_rate = learning_rate; }

void Table::pull(std::span<const Key> keys, std::span<float> values, std::span<Ticket> tickets, Absent absent) {
  return state_->grows() ? state_->pull<true>(keys, values, tickets, absent) : state_->pull<false>(keys, values, tickets, absent);
}

template <bool kGrows>
void Table::State::pull(std::span<const Key> keys, std::span<float> out, std::span<Ticket> tickets, Absent absent) {
  const auto dimension = static_cast<std::size_t>(spec.dimension);
  const bool plain = spec.type == RowType::fp32, counts = cold.has_value();
  const bool creates = absent == Absent::create && !life, gives_first = absent == Absent::create && life;
  std::vector<std::byte> first(gives_first ? value_bytes : 0);
  // Two chunks ahead: while one is used, the other thread has the time to finish the next.
  const auto scout_from = [&](std::size_t begin, Scouted& into) {
    if (cold && begin < keys.size()) scout(keys.subspan(begin, std::min(chunk(), keys.size() - begin)), into);
  };
  scout_from(chunk(), scouted[1]);
  in_chunks(keys.size(), chunk(), [&](std::size_t begin, std::size_t count) {
    Scouted& mine = scouted[begin / chunk() % 2];
    const bool was_scouted = cold && begin > 0;
    resolve(keys.subspan(begin, count), was_scouted ? std::span<const Ticket>(mine.tickets) : std::span<const Ticket>(),
            creates ? Missing::create : Missing::leave, {}, was_scouted ? &mine : nullptr);
    mine.ahead.reset();
    scout_from(begin + 2 * chunk(), mine);
    Ring<const std::byte*> rows;
    const auto ask = [&](std::size_t i) {
      const std::uint32_t row = found[i];
      if constexpr (kGrows)
        rows[i] = row == KeyIndex::kNone ? nullptr : values_of(row).ask_to_read(row);
      else
        rows[i] = row == KeyIndex::kNone ? nullptr : values.ask_to_read(row);
      if (counts && rows[i] != nullptr) marks.ask_to_write(row);
      if (!tickets.empty()) tickets[begin + i] = {row, erased};
    };
    const auto copy = [&](std::size_t i) {
      float* const to = out.data() + (begin + i) * dimension;
      if (rows[i] == nullptr) {
        std::fill_n(to, dimension, 0.0f);
        if (!gives_first || !life->rules_of(keys[begin + i]).admits_at_once()) return;
        const int begins = first_dimension(keys[begin + i]);
        first_values(keys[begin + i], begins, first.data());
        ps::load_row(spec.type, first.data(), {to, static_cast<std::size_t>(begins)});
        return;
      }
      if constexpr (kGrows) {
        const auto has = static_cast<std::size_t>(dimension_of(found[i]));
        ps::load_row(spec.type, rows[i], {to, has});
        std::fill(to + has, to + dimension, 0.0f);
      } else if (plain)
        copy_floats(reinterpret_cast<const float*>(rows[i]), to, static_cast<int>(dimension));
      else
        ps::load_row(spec.type, rows[i], {to, dimension});
      if (counts) count_use(found[i]);
    };
    in_flight(count, ask, copy);
  });
}

PushResult Table::push(std::span<const Key> keys, std::span<const float> gradients, std::span<const Ticket> tickets,
                       std::span<const Impressions> impressions) {
  State& state = *state_;
  if (!state.life) return state.push<false, false>(keys, gradients, tickets, {});
  return state.grows() ? state.push<true, true>(keys, gradients, tickets, impressions)
                       : state.push<true, false>(keys, gradients, tickets, impressions);
}

// Tables without a lifecycle pay nothing for it.
template <bool kLives, bool kGrows>
PushResult Table::State::push(std::span<const Key> keys, std::span<const float> gradients, std::span<const Ticket> tickets,
                              std::span<const Impressions> impressions) {
  const auto dimension = static_cast<std::size_t>(spec.dimension);
  Random random(seed_of(spec.initializer.seed, ++pushes, 2));
  struct Row {
    std::byte* values;
    float* state;
    unsigned char* mark;
  };
  std::vector<Key> to_grow;
  const bool marked = marks_changes();
  PushResult result;
  in_chunks(keys.size(), chunk(), [&](std::size_t begin, std::size_t count) {
    const auto of_chunk = [&](auto all) { return all.empty() ? all : all.subspan(begin, count); };
    resolve(keys.subspan(begin, count), of_chunk(tickets), kLives ? Missing::admit : Missing::create, of_chunk(impressions));
    Ring<Row> rows;
    const auto ask = [&](std::size_t i) {
      const std::uint32_t row = found[i];
      if (kLives && row == KeyIndex::kNone) return;
      if constexpr (kGrows) {
        rows[i] = {.values = values_of(row).ask_to_write(row),
                   .state = reinterpret_cast<float*>(states_of(row).ask_to_write(row)),
                   .mark = marked ? &mark(row) : nullptr};
        return;
      }
      rows[i] = {.values = values.ask_to_write(row),
                 .state = !kLives && state_count == 0 ? nullptr : reinterpret_cast<float*>(states.ask_to_write(row)),
                 .mark = marked ? reinterpret_cast<unsigned char*>(marks.ask_to_write(row)) : nullptr};
    };
    const auto seen = [&](std::size_t i) { return impressions.empty() ? Impressions{} : impressions[begin + i]; };
    const auto apply_one = [&](std::size_t i) {
      if constexpr (kLives) {
        if (!LifecycleState::valid(seen(i))) {
          ++result.refused;
          return;
        }
        if (found[i] == KeyIndex::kNone) return;  // it is not admitted
      }
      const Row& row = rows[i];
      const Key key = keys[begin + i];
      before_change(key, found[i]);
      if (marked) *row.mark = static_cast<unsigned char>((*row.mark | Mark::kChanged) & ~Mark::kOnDisk);
      float learning_rate = spec.optimizer.learning_rate;
      if constexpr (kLives) learning_rate *= life->rules_of(key).learning_rate_scale;
      if constexpr (kGrows) {
        GrowingHead& head = *reinterpret_cast<GrowingHead*>(row.state);
        const std::span<const float> gradient = gradients.subspan((begin + i) * dimension, head.dimension);
        const bool applied = apply(row.values, row.state + kHeadFloats, gradient, learning_rate, random);
        ++(applied ? result.applied : result.refused);
        if (!applied) return;
        life->count(head.statistics, seen(i));
        if (life->rules_of(key).dimension_at(head.statistics.shows) > static_cast<int>(head.dimension)) to_grow.push_back(key);
        return;
      }
      const bool applied = apply(row.values, row.state, gradients.subspan((begin + i) * dimension, dimension), learning_rate, random);
      ++(applied ? result.applied : result.refused);
      if constexpr (kLives)
        if (applied) life->count(statistics_in(row.state), seen(i));
    };
    in_flight(count, ask, apply_one);
  });
  if constexpr (kGrows) grow(to_grow);
  return result;
}

std::size_t Table::erase(std::span<const Key> keys) {
  State& state = *state_;
  std::size_t erased = 0;
  ++state.erased;
  in_chunks(keys.size(), state.chunk(), [&](std::size_t begin, std::size_t count) {
    // A snapshot may want the rows that lie on disk.
    if (state.snapshot && state.cold) state.resolve(keys.subspan(begin, count), {}, Missing::leave);
    state.reserve_free(count);
    for (const Key key : keys.subspan(begin, count)) {
      const std::uint32_t row = state.index.find(key);
      if (row != KeyIndex::kNone) state.before_change(key, row);
      const bool on_disk = state.cold && state.cold->erase(key);
      if (row == KeyIndex::kNone && !on_disk) continue;
      if (row != KeyIndex::kNone) {
        state.index.erase(key);
        state.free_row(row);
        state.swept[state.partition_of(key)] = state.erased;
      }
      --state.row_count;
      ++erased;
      if (state.complete || state.snapshot) state.erased_keys.push_back(key);
    }
  });
  return erased;
}

std::size_t Table::stored_row_bytes() const { return state_->stored_bytes(); }

void Table::for_each(const TakeRow& visit) const {
  const State& state = *state_;
  std::vector<std::byte> stored(stored_row_bytes());
  state.index.for_each({}, [&](Key key, std::uint32_t row) {
    state.copy_out(row, stored.data());
    visit(key, stored);
  });
  if (!state.cold) return;
  state.cold->for_each({}, [&](const std::byte* record) {
    const Key key = Record::key(record);
    if (state.index.find(key) == KeyIndex::kNone) visit(key, {Record::row(record), stored.size()});
  });
}

void Table::copy_stored(std::span<const Key> keys, std::span<std::byte> stored) {
  State& state = *state_;
  in_chunks(keys.size(), state.chunk(), [&](std::size_t begin, std::size_t count) {
    state.resolve(keys.subspan(begin, count), {}, Missing::create);
    for (std::size_t i = 0; i < count; ++i) state.copy_out(state.found[i], stored.data() + (begin + i) * stored_row_bytes());
  });
}

void Table::restore(std::span<const Key> keys, std::span<const std::byte> stored) {
  State& state = *state_;
  in_chunks(keys.size(), state.chunk(), [&](std::size_t begin, std::size_t count) {
    state.resolve(keys.subspan(begin, count), {}, Missing::blank);
    for (std::size_t i = 0; i < count; ++i) {
      // A row that grows moves, and a key may stand here twice.
      std::uint32_t row = state.widths.empty() ? state.found[i] : state.index.find(keys[begin + i]);
      state.before_change(keys[begin + i], row);
      const std::span<const std::byte> one = stored.subspan((begin + i) * stored_row_bytes(), stored_row_bytes());
      if (state.grows())
        row = state.restore_growing(keys[begin + i], row, one);
      else
        state.copy_in(one.data(), row);
      state.mark(row) = static_cast<unsigned char>((state.mark(row) | Mark::kChanged) & ~Mark::kOnDisk);
    }
  });
}

std::uint64_t Table::erase_others(std::uint32_t part, std::uint32_t parts, const Share& share) {
  ensure(part < parts, "rows are looked at part by part");
  const State& state = *state_;
  const HashRange range = part_of_all(part, parts);
  std::vector<Key> others;
  const auto look_at = [&](Key key) {
    if (!has(share, key)) others.push_back(key);
  };
  state.index.for_each(range, [&](Key key, std::uint32_t) { look_at(key); });
  if (state.cold)
    state.cold->for_each(range, [&](const std::byte* record) {
      if (state.index.find(Record::key(record)) == KeyIndex::kNone) look_at(Record::key(record));
    });
  return erase(others);
}

std::uint64_t Table::push_count() const { return state_->pushes; }
void Table::set_push_count(std::uint64_t count) { state_->pushes = count; }

}  // namespace tessera::ps
