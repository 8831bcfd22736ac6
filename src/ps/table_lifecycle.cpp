#include "ps/table_lifecycle.hpp"

#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"
#include "ps/table_state.hpp"

namespace tessera::ps {
namespace {

// By multiplication alone: the same bits on every machine.
float power(float base, std::uint32_t exponent) {
  float result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base)
    if ((exponent & 1) != 0) result *= base;
  return result;
}

bool counts_keys(const Lifecycle& lifecycle) {
  const auto counts = [](const Admission& admission) { return !admission.probability && admission.after > 1; };
  return counts(lifecycle.admission) ||
         std::ranges::any_of(lifecycle.slots, [&](const SlotLifecycle& slot) { return slot.admission && counts(*slot.admission); });
}

}  // namespace

Statistics decayed(const Lifecycle& lifecycle, const Statistics& statistics, std::uint32_t period) {
  const float left = power(lifecycle.decay, period - std::min(period, statistics.seen));
  return {.shows = left * statistics.shows, .clicks = left * statistics.clicks, .seen = statistics.seen};
}

float score(const Lifecycle& lifecycle, const Statistics& statistics) {
  return lifecycle.click_weight * statistics.clicks + lifecycle.unclicked_weight * (statistics.shows - statistics.clicks);
}

bool grows(const Lifecycle& lifecycle) {
  return !lifecycle.growth.empty() || std::ranges::any_of(lifecycle.slots, [](const SlotLifecycle& slot) { return !slot.growth.empty(); });
}

int LifecycleState::Rules::dimension_at(float shows) const {
  int dimension = growth.front().dimension;
  for (const GrowthStep& step : growth)
    if (shows >= step.seen) dimension = step.dimension;
  return dimension;
}

LifecycleState::LifecycleState(const Lifecycle& lifecycle, int dimension)
    : spec(lifecycle), waiting(counts_keys(lifecycle) ? spec.waiting_keys : 0) {
  const std::vector<GrowthStep> whole = {{.seen = 0, .dimension = dimension}};
  const Rules all{.admission = spec.admission, .eviction = spec.eviction, .growth = spec.growth.empty() ? whole : spec.growth};
  std::size_t listed = 0;
  for (const SlotLifecycle& slot : spec.slots) listed = std::max(listed, std::size_t{slot.slot} + 1);
  rules.assign(listed + 1, all);
  for (const SlotLifecycle& slot : spec.slots)
    rules[slot.slot] = {.learning_rate_scale = slot.learning_rate_scale,
                        .admission = slot.admission.value_or(all.admission),
                        .eviction = slot.eviction.value_or(all.eviction),
                        .growth = slot.growth.empty() ? all.growth : slot.growth};
  if (grows(spec)) {
    dimensions.push_back(dimension);
    for (const Rules& one : rules)
      for (const GrowthStep& step : one.growth) dimensions.push_back(step.dimension);
    std::ranges::sort(dimensions);
    dimensions.erase(std::ranges::unique(dimensions).begin(), dimensions.end());
  }
  evicts = std::ranges::any_of(rules, [](const Rules& one) { return one.eviction.unseen || one.eviction.below; });
}

bool LifecycleState::valid(const Impressions& seen) {
  return std::isfinite(seen.shows) && std::isfinite(seen.clicks) && seen.shows >= 0 && seen.clicks >= 0;
}

bool LifecycleState::admits(std::uint64_t key, const Impressions& seen, std::uint64_t seed, std::uint64_t push) {
  const Admission& admission = rules_of(key).admission;
  bool admitted = false;
  if (admission.probability) {
    admitted = Random(seed_of(seed, key, push, 3)).uniform() < *admission.probability;
  } else {
    const float times = std::clamp(seen.shows, 1.0f, static_cast<float>(WaitingKeys::kMostCount));
    admitted = waiting.admit(key, static_cast<unsigned>(times), static_cast<unsigned>(admission.after));
  }
  ++(admitted ? counts.admitted : counts.held_back);
  return admitted;
}

void LifecycleState::count(Statistics& statistics, const Impressions& seen) const {
  if (statistics.seen != period) statistics = decayed(spec, statistics, period);
  statistics.shows += seen.shows;
  statistics.clicks += seen.clicks;
  statistics.seen = period;
}

bool LifecycleState::is_to_go(std::uint64_t key, const Statistics& statistics) const {
  const Eviction& eviction = rules_of(key).eviction;
  const std::uint32_t since = period - std::min(period, statistics.seen);
  if (eviction.unseen && since > static_cast<std::uint32_t>(*eviction.unseen)) return true;
  return eviction.below && score(spec, decayed(spec, statistics, period)) < *eviction.below;
}

void LifecycleState::end_period() {
  ++period;
  if (period % static_cast<std::uint32_t>(spec.forget_after) == 0) waiting.forget_old();
}

std::uint32_t Table::period() const { return state_->life ? state_->life->period : 0; }
LifecycleCounts Table::lifecycle_counts() const { return state_->life ? state_->life->counts : LifecycleCounts{}; }

void Table::end_period() {
  ensure(state_->life.has_value(), "periods are of tables with a lifecycle");
  state_->life->end_period();
}

Statistics Table::statistics(std::span<const std::byte> stored) const {
  ensure(state_->life.has_value(), "statistics are of tables with a lifecycle");
  Statistics statistics;
  std::memcpy(&statistics, stored.data() + stored.size() - sizeof statistics, sizeof statistics);
  return statistics;
}

std::span<const std::byte> Table::waiting() const { return state_->life ? state_->life->waiting.bytes() : std::span<const std::byte>(); }
void Table::add_waiting(std::size_t offset, std::span<const std::byte> bytes) {
  if (state_->life) state_->life->waiting.add(offset / WaitingKeys::kLineBytes, bytes);
}
void Table::set_lifecycle(std::uint32_t period, const LifecycleCounts& counts) {
  if (!state_->life) return;
  state_->life->period = period;
  state_->life->counts = counts;
}

std::uint64_t Table::evict(std::uint32_t part, std::uint32_t parts) {
  State& state = *state_;
  ensure(state.life && part < parts, "rows of a table with a lifecycle are evicted, part by part");
  if (!state.life->evicts) return 0;
  const HashRange range = part_of_all(part, parts);
  std::vector<RowPlace> rows;
  state.index.for_each(range, [&](Key key, std::uint32_t row) { rows.push_back({hash_of(key), key, row}); });
  std::vector<bool> leaves(rows.size());
  std::size_t leaving = 0;
  in_flight(
      rows.size(), [&](std::size_t i) { __builtin_prefetch(&state.statistics_of(rows[i].row)); },
      [&](std::size_t i) {
        leaves[i] = state.life->is_to_go(rows[i].key, state.statistics_of(rows[i].row));
        leaving += leaves[i] ? 1 : 0;
      });
  std::vector<Key> on_disk;
  if (state.cold)
    state.cold->for_each(range, [&](const std::byte* record) {
      const Key key = Record::key(record);
      const bool to_go = state.life->is_to_go(key, statistics({Record::row(record), state.stored_bytes()}));
      if (to_go && state.index.find(key) == KeyIndex::kNone) on_disk.push_back(key);
    });
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!leaves[i]) continue;
    state.before_change(rows[i].key, rows[i].row);
    if (!state.cold) continue;
    // Where the disk refuses, the row stays, in memory alone.
    state.mark(rows[i].row) &= static_cast<unsigned char>(~Mark::kOnDisk);
    state.cold->erase(rows[i].key);
  }
  if (leaving > 0) {
    ++state.erased;
    state.reserve_free(leaving);
    std::size_t next = 0;
    state.index.erase_if(range, [&](Key key, std::uint32_t row) {
      if (!leaves[next++]) return false;
      state.free_row(row);
      state.swept[state.partition_of(key)] = state.erased;
      if (state.complete || state.snapshot) state.erased_keys.push_back(key);
      return true;
    });
    state.row_count -= leaving;
  }
  const std::uint64_t evicted = leaving + erase(on_disk);
  state.life->counts.evicted += evicted;
  return evicted;
}

}  // namespace tessera::ps
