#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"
#include "ps/initial_values.hpp"
#include "ps/key_index.hpp"
#include "ps/ps.hpp"
#include "ps/row_values.hpp"
#include "ps/slab.hpp"
#include "ps/update.hpp"

namespace tessera::ps {
namespace {

// Keys of a block, whose lines and rows are on their way from memory at once. Of 16, 32, 48 and 64 the last measured best, above all for
// keys that are often asked for.
constexpr std::size_t kAhead = 64;

// What of a gradient is pushed, so that its norm is at most `most`.
float clip_scale(std::span<const float> gradient, float most) {
  float sum = 0;
  for (const float value : gradient) sum += value * value;
  return sum > most * most ? most / std::sqrt(sum) : 1.0f;
}

void copy_floats(const float* __restrict from, float* __restrict to, int count) {
  for (; count >= 16; count -= 16, from += 16, to += 16) std::memcpy(to, from, 64);
  for (int i = 0; i < count; ++i) to[i] = from[i];
}

}  // namespace

struct Table::State {
  explicit State(TableSpec given)
      : spec(std::move(given)),
        update(update_of(spec.optimizer)),
        state_count(state_floats(spec.optimizer, spec.dimension)),
        values(row_bytes(spec.type, spec.dimension)),
        states(state_count * sizeof(float)),
        scratch(static_cast<std::size_t>(spec.dimension)),
        clipped(spec.optimizer.clip_norm ? scratch.size() : 0) {}

  std::span<float> state_of(std::uint32_t row) {
    return state_count == 0 ? std::span<float>() : std::span(reinterpret_cast<float*>(states.at(row)), state_count);
  }
  std::uint32_t add_row(Key key);
  std::uint32_t find_or_add(Key key, KeyIndex::Place asked) {
    const std::uint32_t row = index.find(key, asked);
    return row == KeyIndex::kNone ? add_row(key) : row;
  }
  // False for a gradient that is not finite.
  bool apply(std::byte* stored, float* state, std::span<const float> gradient, Random& random);

  TableSpec spec;
  Update update;
  std::size_t state_count;
  KeyIndex index;
  Slab values, states;  // apart, so that pulls read values alone
  std::vector<std::uint32_t> free_rows;
  std::uint32_t rows_begun = 0;
  std::uint32_t erased = 0;  // calls that erased rows: tickets from before are void
  std::uint64_t pushes = 0;  // calls, of which each rounds by random numbers of its own
  std::vector<float> scratch, clipped;
};

std::uint32_t Table::State::add_row(Key key) {
  const bool reused = !free_rows.empty();
  if (!reused && rows_begun == KeyIndex::kNone)
    throw Error(ErrorCode::resource_exhausted, text("table ", spec.name, " holds ", rows_begun, " rows, the most that one server can"), {},
                "", "give the table to more servers");
  const std::uint32_t row = reused ? free_rows.back() : rows_begun;
  if (!reused) {
    values.grow_to(std::size_t{row} + 1);
    states.grow_to(std::size_t{row} + 1);
  }
  index.insert(key, row);
  if (reused)
    free_rows.pop_back();
  else
    ++rows_begun;
  Random random(seed_of(spec.initializer.seed, key, 1));
  start_values(spec.initializer, key, scratch);
  store_row(spec.type, scratch, random, values.at(row));
  start_state(spec.optimizer, state_of(row));
  return row;
}

bool Table::State::apply(std::byte* stored, float* state, std::span<const float> gradient, Random& random) {
  if (!all_finite(gradient)) return false;
  if (spec.optimizer.clip_norm) {
    const float scale = clip_scale(gradient, *spec.optimizer.clip_norm);
    std::ranges::transform(gradient, clipped.begin(), [scale](float value) { return scale * value; });
    gradient = clipped;
  }
  if (spec.type == RowType::fp32) {
    update(spec.optimizer, spec.optimizer.learning_rate, gradient.data(), reinterpret_cast<float*>(stored), state, spec.dimension);
    return true;
  }
  load_row(spec.type, stored, scratch);
  update(spec.optimizer, spec.optimizer.learning_rate, gradient.data(), scratch.data(), state, spec.dimension);
  store_row(spec.type, scratch, random, stored);
  return true;
}

Table::Table(TableSpec spec) {
  check(spec);
  state_ = std::make_unique<State>(std::move(spec));
}
Table::~Table() = default;
Table::Table(Table&&) noexcept = default;
Table& Table::operator=(Table&&) noexcept = default;

const TableSpec& Table::spec() const { return state_->spec; }
std::size_t Table::size() const { return state_->index.size(); }
TableMemory Table::memory() const {
  const std::size_t rows = state_->values.bytes() + state_->states.bytes() + state_->free_rows.capacity() * sizeof(std::uint32_t);
  return {.index = Bytes(static_cast<std::int64_t>(state_->index.bytes())), .rows = Bytes(static_cast<std::int64_t>(rows))};
}
void Table::set_learning_rate(float learning_rate) { state_->spec.optimizer.learning_rate = learning_rate; }

namespace {

// Calls the three for each of so many items, in order and a block at a time, the first one block ahead: what one asks memory for is there
// when the next needs it.
template <typename AskLine, typename AskRow, typename Use>
void in_flight(std::size_t count, const AskLine& ask_line, const AskRow& ask_row, const Use& use) {
  for (std::size_t i = 0; i < std::min(count, kAhead); ++i) ask_line(i);
  for (std::size_t begin = 0; begin < count; begin += kAhead) {
    const std::size_t end = std::min(begin + kAhead, count), next_end = std::min(end + kAhead, count);
    for (std::size_t i = end; i < next_end; ++i) ask_line(i);
    for (std::size_t i = begin; i < end; ++i) ask_row(i);
    for (std::size_t i = begin; i < end; ++i) use(i);
  }
}

// Of the items in two of in_flight's blocks.
template <typename T>
class Ring {
 public:
  T& operator[](std::size_t i) { return items_[i % items_.size()]; }

 private:
  std::array<T, 2 * kAhead> items_;
};

}  // namespace

void Table::pull(std::span<const Key> keys, std::span<float> values, std::span<Ticket> tickets, Absent absent) {
  State& state = *state_;
  const auto dimension = static_cast<std::size_t>(state.spec.dimension);
  const bool plain = state.spec.type == RowType::fp32;
  Ring<KeyIndex::Place> places;
  Ring<const std::byte*> rows;
  const auto ask_line = [&](std::size_t i) { places[i] = state.index.ask(keys[i]); };
  const auto ask_row = [&](std::size_t i) {
    const std::uint32_t row = absent == Absent::create ? state.find_or_add(keys[i], places[i]) : state.index.find(keys[i], places[i]);
    rows[i] = row == KeyIndex::kNone ? nullptr : state.values.ask_to_read(row);
    if (!tickets.empty()) tickets[i] = {row, state.erased};
  };
  const auto copy = [&](std::size_t i) {
    float* const to = values.data() + i * dimension;
    if (rows[i] == nullptr)
      std::fill_n(to, dimension, 0.0f);
    else if (plain)
      copy_floats(reinterpret_cast<const float*>(rows[i]), to, static_cast<int>(dimension));
    else
      load_row(state.spec.type, rows[i], {to, dimension});
  };
  in_flight(keys.size(), ask_line, ask_row, copy);
}

PushResult Table::push(std::span<const Key> keys, std::span<const float> gradients, std::span<const Ticket> tickets) {
  State& state = *state_;
  const auto dimension = static_cast<std::size_t>(state.spec.dimension);
  Random random(seed_of(state.spec.initializer.seed, ++state.pushes, 2));
  struct Row {
    std::byte* values;
    float* state;
  };
  Ring<KeyIndex::Place> places;
  Ring<Row> rows;
  const auto leads = [&](std::size_t i) {
    return !tickets.empty() && tickets[i].row < state.rows_begun && tickets[i].erased == state.erased;
  };
  const auto ask_line = [&](std::size_t i) {
    if (!leads(i)) places[i] = state.index.ask(keys[i]);
  };
  const auto ask_row = [&](std::size_t i) {
    const std::uint32_t row = leads(i) ? tickets[i].row : state.find_or_add(keys[i], places[i]);
    rows[i] = {state.values.ask_to_write(row), state.state_count == 0 ? nullptr : reinterpret_cast<float*>(state.states.ask_to_write(row))};
  };
  PushResult result;
  const auto apply = [&](std::size_t i) {
    ++(state.apply(rows[i].values, rows[i].state, gradients.subspan(i * dimension, dimension), random) ? result.applied : result.refused);
  };
  in_flight(keys.size(), ask_line, ask_row, apply);
  return result;
}

std::size_t Table::erase(std::span<const Key> keys) {
  State& state = *state_;
  state.free_rows.reserve(state.free_rows.size() + keys.size());
  const std::size_t before = state.free_rows.size();
  for (const Key key : keys)
    if (const std::uint32_t row = state.index.erase(key); row != KeyIndex::kNone) state.free_rows.push_back(row);
  const std::size_t erased = state.free_rows.size() - before;
  if (erased > 0) ++state.erased;
  return erased;
}

std::size_t Table::stored_row_bytes() const { return state_->values.row_bytes() + state_->states.row_bytes(); }

void Table::for_each(const std::function<void(Key, std::span<const std::byte>)>& visit) const {
  const State& state = *state_;
  std::vector<std::byte> stored(stored_row_bytes());
  state.index.for_each([&](Key key, std::uint32_t row) {
    std::memcpy(stored.data(), state.values.at(row), state.values.row_bytes());
    if (state.state_count > 0) std::memcpy(stored.data() + state.values.row_bytes(), state.states.at(row), state.states.row_bytes());
    visit(key, stored);
  });
}

void Table::restore(std::span<const Key> keys, std::span<const std::byte> stored) {
  State& state = *state_;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::uint32_t row = state.find_or_add(keys[i], state.index.ask(keys[i]));
    const std::byte* const from = stored.data() + i * stored_row_bytes();
    std::memcpy(state.values.at(row), from, state.values.row_bytes());
    if (state.state_count > 0) std::memcpy(state.states.at(row), from + state.values.row_bytes(), state.states.row_bytes());
  }
}

std::uint64_t Table::push_count() const { return state_->pushes; }
void Table::set_push_count(std::uint64_t count) { state_->pushes = count; }

}  // namespace tessera::ps
