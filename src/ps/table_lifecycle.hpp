// Internal. What a table with a lifecycle knows beside its rows, and what it decides of one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ps/lifecycle.hpp"
#include "ps/waiting_keys.hpp"

namespace tessera::ps {

// A function of the calls alone, so that a backup that is given the same ones decides the same.
struct LifecycleState {
  LifecycleState(const Lifecycle& lifecycle, int dimension);

  struct Rules {
    float learning_rate_scale = 1;
    Admission admission;
    Eviction eviction;
    std::vector<GrowthStep> growth;  // never empty
    int first_dimension() const { return growth.front().dimension; }
    int dimension_at(float shows) const;
    bool admits_at_once() const { return admission.probability ? *admission.probability >= 1 : admission.after <= 1; }
  };
  const Rules& rules_of(std::uint64_t key) const {
    const std::uint64_t slot = spec.slot_bits == 0 ? 0 : key >> (64 - spec.slot_bits);
    return rules[std::min(static_cast<std::size_t>(slot), rules.size() - 1)];
  }
  static bool valid(const Impressions& seen);
  // Whether the push with this number gives the key a row, which it has not. `seen` is valid.
  bool admits(std::uint64_t key, const Impressions& seen, std::uint64_t seed, std::uint64_t push);
  void count(Statistics& statistics, const Impressions& seen) const;
  bool is_to_go(std::uint64_t key, const Statistics& statistics) const;
  void end_period();

  Lifecycle spec;
  std::vector<Rules> rules;     // by slot; the last one's are those of all further slots
  bool evicts = false;          // some rows, some time
  std::vector<int> dimensions;  // that rows can have, rising; none where all rows have the table's
  // The smallest of `dimensions` that is no less.
  int dimension_for(int least) const { return *std::ranges::lower_bound(dimensions, least); }
  std::uint32_t period = 0;
  LifecycleCounts counts;
  WaitingKeys waiting;
};

}  // namespace tessera::ps
