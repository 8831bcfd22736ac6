// Rows of a table whose dimension grows with how often they are seen: in memory as long as they are, stored at full length.
#include <cstring>
#include <vector>

#include "base/hash.hpp"
#include "ps/initial_values.hpp"
#include "ps/row_values.hpp"
#include "ps/table_state.hpp"

namespace tessera::ps {
namespace {

// Of a stored row the bytes with its first values. They are the same however many follow.
std::size_t used_bytes(RowType type, int dimension) {
  const auto values = static_cast<std::size_t>(dimension);
  switch (type) {
    case RowType::fp32: return 4 * values;
    case RowType::bf16: return 2 * values;
    case RowType::int8: return sizeof(float) + values;
  }
  return 0;
}

}  // namespace

std::span<float> Table::State::growing_state_of(std::uint32_t row) const {
  const std::size_t floats = state_floats(spec.optimizer, static_cast<int>(head_of(row).dimension));
  return {reinterpret_cast<float*>(states_of(row).at(row)) + kHeadFloats, floats};
}

GrowingHead Table::State::head_in(std::span<const std::byte> stored) const {
  GrowingHead head;
  std::memcpy(&head, stored.last(sizeof head).data(), sizeof head);
  return head;
}

void Table::State::copy_out_growing(std::uint32_t row, std::span<std::byte> stored) const {
  const GrowingHead& head = head_of(row);
  const auto dimension = static_cast<int>(head.dimension);
  const std::size_t used = used_bytes(spec.type, dimension);
  std::memcpy(stored.data(), values_of(row).at(row), used);
  std::memset(stored.data() + used, 0, value_bytes - used);
  copy_state(spec.optimizer, growing_state_of(row), dimension, stored_state, spec.dimension);
  if (state_count > 0) std::memcpy(stored.data() + value_bytes, stored_state.data(), state_count * sizeof(float));
  std::memcpy(stored.last(sizeof head).data(), &head, sizeof head);
}

void Table::State::copy_in_growing(std::span<const std::byte> stored, std::uint32_t row) {
  const GrowingHead head = head_in(stored);
  const auto dimension = static_cast<int>(head.dimension);
  head_of(row) = head;
  std::memcpy(values_of(row).at(row), stored.data(), used_bytes(spec.type, dimension));
  if (state_count > 0) std::memcpy(stored_state.data(), stored.data() + value_bytes, state_count * sizeof(float));
  copy_state(spec.optimizer, stored_state, spec.dimension, growing_state_of(row), dimension);
}

void Table::State::grow_stored(Key key, std::span<std::byte> stored, int dimension) {
  GrowingHead head = head_in(stored);
  const std::vector<float> before = [&] {
    std::vector<float> values_now(head.dimension);
    ps::load_row(spec.type, stored.data(), values_now);
    return values_now;
  }();
  start_values(spec.initializer, key, scratch);
  std::ranges::copy(before, scratch.begin());
  Random random(seed_of(spec.initializer.seed, key, static_cast<std::uint64_t>(dimension), 4));
  store_row(spec.type, std::span(scratch).first(static_cast<std::size_t>(dimension)), random, stored.data());
  head.dimension = static_cast<std::uint32_t>(dimension);
  std::memcpy(stored.last(sizeof head).data(), &head, sizeof head);
}

std::uint32_t Table::State::restore_growing(Key key, std::uint32_t row, std::span<const std::byte> stored) {
  // Files of a table with other steps have rows of other dimensions.
  const int had = static_cast<int>(head_in(stored).dimension);
  if (had < 1 || had > spec.dimension)
    throw Error(ErrorCode::corrupt, text("table ", spec.name, ": a stored row has ", had, " values"), {}, text("1 to ", spec.dimension));
  const int dimension = life->dimension_for(had);
  std::vector<std::byte> grown;
  if (dimension != had) {
    grown.assign(stored.begin(), stored.end());
    grow_stored(key, grown, dimension);
    stored = grown;
  }
  std::uint32_t to = row;
  if (!widths.empty() && widths.of(row).dimension != dimension) {
    to = take_row(dimension);
    reserve_free(1);
    mark(to) = mark(row);
    index.replace(key, to);
    widths.free(row);
    swept[0] = ++erased;  // the tickets of all rows are void
  }
  copy_in(stored.data(), to);
  return to;
}

void Table::State::grow(std::span<const Key> keys) {
  std::vector<std::byte> stored(stored_bytes());
  for (std::size_t begin = 0; begin < keys.size(); begin += chunk()) {
    const std::span<const Key> some = keys.subspan(begin, std::min(chunk(), keys.size() - begin));
    if (cold) resolve(some, {}, Missing::leave);
    for (std::size_t i = 0; i < some.size(); ++i) {
      // One that has grown just now is elsewhere.
      std::uint32_t row = widths.empty() ? found[i] : index.find(some[i]);
      const GrowingHead& head = head_of(row);
      const int dimension = life->rules_of(some[i]).dimension_at(head.statistics.shows);
      if (dimension <= static_cast<int>(head.dimension)) continue;
      before_change(some[i], row);
      copy_out(row, stored.data());
      grow_stored(some[i], stored, dimension);
      row = restore_growing(some[i], row, stored);
      mark(row) = static_cast<unsigned char>((mark(row) | Mark::kChanged) & ~Mark::kOnDisk);
    }
  }
}

}  // namespace tessera::ps
