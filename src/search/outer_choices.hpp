// Internal to the search over blocks: outer choices, everything that is fixed before the blocks are cut into stages.
#pragma once

#include <cstdint>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "search/block_search.hpp"
#include "search/stage_options.hpp"

namespace tessera::search {

// Pipeline ranks of equal width on equal devices, one after the other.
struct GroupCut {
  int devices = 0;  // of a pipeline rank: an id of the CostModel
  int width = 1;
  int stages = 1;  // pipeline ranks; each may hold several stages (Outer::chunks)
};

struct Outer {
  std::vector<GroupCut> groups;
  std::int64_t micro_batches = 1;
  plan::Schedule schedule = plan::Schedule::one_f_one_b;
  int chunks = 1;           // stages of a pipeline rank; more than one only with one group cut
  FixedDegrees fixed = {};  // in a uniform space
  std::size_t family = 0;   // plans compete only within their family; outside uniform spaces there is one
  double bound = 0;
  bool with_memory = false;  // whether `bound` takes memory into account
  std::size_t number = 0;    // its place in the order in which options were listed

  // The number of pipeline ranks.
  int stages() const {
    int out = 0;
    for (const GroupCut& cut : groups) out += cut.stages;
    return out;
  }
  int world() const {
    int out = 0;
    for (const GroupCut& cut : groups) out += cut.stages * cut.width;
    return out;
  }
  StageRanks ranks(const GroupCut& cut) const { return {cut.devices, cut.width, micro_batches, fixed}; }
  // Orders equally fast choices: the simplest comes first.
  auto simplicity() const {
    std::vector<std::pair<int, int>> cuts;
    for (const GroupCut& cut : groups) cuts.emplace_back(cut.devices, cut.width);
    return std::tuple(groups.size(), fixed.tensor > 0 ? world() : 0, stages(), fixed, chunks, schedule, micro_batches, cuts);
  }
};

struct OuterChoices {
  bool able = false;  // some group that may be used computes in the precision
  std::vector<Outer> outers;
  std::size_t alone = 0;                    // the first `alone` outers use one group each
  std::vector<cost::StageDevices> devices;  // other than whole groups; GroupCut::devices counts them after the cluster's groups
};
// The most interleaved stages of a rank that are tried, unless the user gives a number.
inline constexpr int kMostChunks = 8;
// The largest power of two, or three times a power of two, up to `nodes`: degrees that divide batches and models multiply to such numbers.
int round_number(int nodes);
// The widths tp x cp x dp that a stage on a group can have: degrees that divide every block and a micro-batch of so many samples.
std::set<std::int64_t> widths_of(const BlockProblem& problem, int group, std::int64_t samples);
OuterChoices outer_choices(const BlockProblem& problem);
// Whether the space allows a group of the cluster and its devices compute in the precision.
bool may_use(const BlockProblem& problem, int group);
// The speed of one of the group's devices, for comparing groups.
double speed_of(const BlockProblem& problem, int group);

// The outer choices that add one group to `outer`, at any place in the pipeline, with as many of its nodes as its stages can use. Tried are
// the few stage widths that make its stages about as fast as the others; the same number of micro-batches, half and twice of it; and every
// schedule of one stage a rank.
std::vector<Outer> with_one_group_more(const BlockProblem& problem, const cost::CostModel& cost_model, const Outer& outer);

// The ranks of one kind in a stage of several kinds.
struct SharePart {
  int ranks = 1;
  double speed = 1;  // of all of them together, in any unit
};
// At most `most` ways to share the samples of a micro-batch among the parts, in the order of the parts: those nearest to proportional to
// speed come first, in steps that the replicas divide. Empty if there are fewer samples than parts.
std::vector<std::vector<std::int64_t>> batch_shares(const std::vector<SharePart>& parts, std::int64_t samples, std::size_t most);

// A plan without ranks and stages.
plan::Plan frame_of(const BlockProblem& problem, std::int64_t micro_batches, plan::Schedule schedule);
// Adds the next block of a stage.
void add_block(plan::Stage& stage, int block, const plan::Strategy& strategy);

}  // namespace tessera::search
