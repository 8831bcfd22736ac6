// Internal to the search over blocks: what is fixed before stages are cut.
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
  int devices = 0;  // of a pipeline rank, as CostModel knows them
  int width = 1;
  int stages = 1;  // pipeline ranks: their stages, where each has one
};

struct Outer {
  std::vector<GroupCut> groups;
  std::int64_t micro_batches = 1;
  plan::Schedule schedule = plan::Schedule::one_f_one_b;
  int chunks = 1;           // stages of a pipeline rank; more than one where there is one group cut
  FixedDegrees fixed = {};  // in a uniform space
  std::size_t family = 0;   // plans of a family compete with each other alone; in other spaces all are of one
  double bound = 0;
  bool with_memory = false;  // the bound counts with memory
  std::size_t number = 0;    // in the order in which options were listed for them

  // Pipeline ranks.
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
  // The simplest first among equally fast ones.
  auto simplicity() const {
    std::vector<std::pair<int, int>> cuts;
    for (const GroupCut& cut : groups) cuts.emplace_back(cut.devices, cut.width);
    return std::tuple(groups.size(), fixed.tensor > 0 ? world() : 0, stages(), fixed, chunks, schedule, micro_batches, cuts);
  }
};

struct OuterChoices {
  bool able = false;  // some group that may be used computes in the precision
  std::vector<Outer> outers;
  std::size_t alone = 0;                    // the first so many are of one group each
  std::vector<cost::StageDevices> devices;  // that are no group alone; an index into them counts on from the groups of the cluster
};
// Interleaved stages of one rank are tried up to this number, where none is given.
inline constexpr int kMostChunks = 8;
// The largest power of two, or three times one, up to `nodes`: what degrees that divide batches and models make up.
int round_number(int nodes);
// How wide a stage on a group of the cluster can be: tp x cp x dp that divide every block and so many samples of a micro-batch.
std::set<std::int64_t> widths_of(const BlockProblem& problem, int group, std::int64_t samples);
OuterChoices outer_choices(const BlockProblem& problem);
// Whether the space allows a group of the cluster, and its devices compute in the precision.
bool may_use(const BlockProblem& problem, int group);
// Of one of its devices, to compare groups by.
double speed_of(const BlockProblem& problem, int group);

// The outer choices that have one group more, at any place in the pipeline, with as many of its nodes as its stages can take. Of the widths
// that its stages may have the few with which they are about as fast as the others; with the same number of micro-batches, half and twice
// as many; under every schedule of one stage a rank.
std::vector<Outer> with_one_group_more(const BlockProblem& problem, const cost::CostModel& cost_model, const Outer& outer);

// Ranks of one kind beside others in a stage.
struct SharePart {
  int ranks = 1;
  double speed = 1;  // of all of them together, in any unit
};
// The ways that the searches try to share so many samples of a micro-batch, in the order of the parts, at most `most` of them: around what
// the speeds say, the nearest first, in steps with which replicas divide. None where there are fewer samples than parts.
std::vector<std::vector<std::int64_t>> batch_shares(const std::vector<SharePart>& parts, std::int64_t samples, std::size_t most);

// A plan without ranks and stages.
plan::Plan frame_of(const BlockProblem& problem, std::int64_t micro_batches, plan::Schedule schedule);
// Adds the next block of a stage.
void add_block(plan::Stage& stage, int block, const plan::Strategy& strategy);

}  // namespace tessera::search
