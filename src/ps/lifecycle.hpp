// How rows of a table come to be, how much they are worth, and when they go: for tables whose keys are users and ads that never stop
// coming.
//
// Each row counts its shows (how often samples looked it up) and its clicks (how many of these samples were positive), both decayed from
// period to period, and remembers in which period it was seen last. A period is what the caller makes of it: a day, or so many steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tessera::ps {

// What samples say of a key: of one look-up in one sample, {1, label}; of several, their sum. Both at least 0.
struct Impressions {
  float shows = 1, clicks = 0;
};
inline constexpr std::size_t kImpressionFloats = 2;
static_assert(sizeof(Impressions) == kImpressionFloats * sizeof(float));
inline std::span<const float> floats_of(std::span<const Impressions> impressions) {
  return {reinterpret_cast<const float*>(impressions.data()), impressions.size() * kImpressionFloats};
}

// When a key without a row gets one. Until then a pull gives zeros, as it does for a key without a row where a model serves: what trains
// is what serves. Gradients of it are dropped, and counted (LifecycleCounts::held_back).
struct Admission {
  // A key that has been seen so often, shows rounded down, but at least once a push: 1 to 15, and 1 admits at once. Which keys were seen is
  // kept in a few bits of a hash (waiting_keys.hpp): of a hundred keys about one is taken for another one and admitted early.
  int after = 1;
  // In place of counting: at each push of a key without a row, with this probability, a function of the table's seed, the key and the
  // number of the push. More than 0, up to 1.
  std::optional<float> probability = {};
};

// When a row goes, at the end of a period. Either is enough; without both, none goes.
struct Eviction {
  std::optional<int> unseen = {};   // not seen in the last so many periods, 1 or more
  std::optional<float> below = {};  // its score, decayed to this day, is smaller
};

// From how many shows on a row has how many values. A row with the first so many of its table's dimension pulls zeros for the others,
// which take no memory, have no optimizer's state and get no gradient. At the end of a push that has brought a row to the shows of a step
// it grows: its new values begin as the initializer says, their state as that of a new row; what a row keeps once (row_moment, Adam's
// count) goes on. A row never shrinks.
struct GrowthStep {
  float seen = 0;     // its shows, decayed to this day: 0 of the first step, rising
  int dimension = 0;  // rising, up to the table's
};

// What is special about the keys of one slot: of one feature of the samples, such as the users.
struct SlotLifecycle {
  std::uint32_t slot = 0;
  float learning_rate_scale = 1;
  std::optional<Admission> admission = {};  // in place of the table's
  std::optional<Eviction> eviction = {};    // in place of the table's
  std::vector<GrowthStep> growth = {};      // in place of the table's, unless empty
};

struct Lifecycle {
  float decay = 0.98f;  // what is left of shows and clicks after a period: more than 0, up to 1
  // score = click_weight * clicks + unclicked_weight * (shows - clicks)
  float click_weight = 1, unclicked_weight = 0.1f;
  Admission admission = {};
  // Keys that are counted at once before they are admitted, about: 2.7 bytes each, at every server, from the start. With more of them those
  // that were seen least are forgotten.
  std::uint64_t waiting_keys = std::uint64_t{1} << 22;
  // A key is counted anew once it was not seen for this many periods; at the latest, for twice as many.
  int forget_after = 7;
  Eviction eviction = {};
  std::vector<GrowthStep> growth = {};  // empty: rows have all values from the start
  // The number of a key's upper bits that say its slot, 0 to 16. A model's tables use 16 (data/clicks/keys.hpp).
  int slot_bits = 16;
  std::vector<SlotLifecycle> slots = {};  // each slot at most once
};

// Whether rows grow, of some slot at least.
bool grows(const Lifecycle& lifecycle);

// What a row with a lifecycle knows of itself, in 12 bytes behind its optimizer's state. Shows and clicks are as they were in the period
// `seen`; since then they have decayed.
struct Statistics {
  float shows = 0, clicks = 0;
  std::uint32_t seen = 0;
};
static_assert(sizeof(Statistics) == 12);

// `statistics` with shows and clicks decayed to `period`, which is not before the one in which they were seen.
Statistics decayed(const Lifecycle& lifecycle, const Statistics& statistics, std::uint32_t period);
float score(const Lifecycle& lifecycle, const Statistics& statistics);

// Since the server began. A key that was admitted, evicted and admitted again counts twice.
struct LifecycleCounts {
  std::uint64_t admitted = 0;   // rows that pushes have made
  std::uint64_t held_back = 0;  // pushes of a key that had no row and got none
  std::uint64_t evicted = 0;    // rows
};

}  // namespace tessera::ps
