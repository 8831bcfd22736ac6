#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "model/forms.hpp"
#include "model/tensor_flow.hpp"
#include "plan/schedule/schedule.hpp"
#include "program/passes.hpp"
#include "program/peers.hpp"
#include "program/program.hpp"
#include "program/ties.hpp"

namespace tessera::program {
namespace {

using model::BlockInstance;
using plan::Slot;

// A shard starts on its own cache line.
constexpr std::int64_t kShardAlignment = 16;
// What reduce_norm carries: squared norm, loss, tokens, wishes to stop and to compare speeds; f64 each.
constexpr std::int64_t kScalarBytes = 40;

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

std::vector<int> all_ranks(const plan::Plan& plan) {
  std::vector<int> ranks(plan.world_size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Where a rank stands.
struct Seat {
  int pipeline_rank = 0;
  int index = 0;  // within the ranks of its stages
};

// Builds the program of one rank. Everything that peers must agree on (groups, buckets, order) is a function of the plan
// and the pipeline rank alone.
class Compiler {
 public:
  Compiler(const plan::Plan& plan, const std::vector<BlockInstance>& blocks, const std::vector<std::int64_t>& elements_before,
           const Ties& ties, int tables, const Seat& seat, bool for_all)
      : plan_(plan),
        blocks_(blocks),
        elements_before_(elements_before),
        ties_(ties),
        pipeline_(plan::pipeline_of(plan)),
        pipeline_rank_(seat.pipeline_rank),
        index_(seat.index),
        for_all_(for_all),
        stage_(plan.stages[seat.pipeline_rank]),
        samples_(plan.samples()),
        tables_(tables) {
    program_.rank = stage_.ranks[index_];
    program_.micro_batches = plan.micro_batches;
    for (int c = 0; c < pipeline_.chunks; ++c)
      program_.chunks.push_back(chunk_at(plan::stage_at(plan.schedule, pipeline_rank_, c, pipeline_.size)));
    program_.stage = program_.chunks.front().stage;
    for (const Chunk& chunk : program_.chunks)
      for (const plan::StrategyRun& run : plan.stages[chunk.stage].runs) add_cut(run);
    share_samples();
  }

  Program training() {
    const std::vector<Slot> order = plan::order_of(plan_, pipeline_rank_);
    add_groups();
    add_buckets(order);
    if (reads_tables()) add_pull(program_, tables_, *blocks_[tables_].spec);
    PassOptions passes = pass_options();
    program_.delayed = plan_.delayed_exchange;
    program_.stale = plan_.staleness > 0;
    program_.rows_ahead = plan_.rows_ahead;
    if (program_.delayed && !program_.stale) passes.before_first_use = [this](int first, int last) { return finish_previous(first, last); };
    // Where the pipeline begins, passes begin as soon as the first bucket is there; the others have time until the pipeline is filled.
    passes.cut_first_use = pipeline_rank_ == 0;
    passes_ = add_passes(order, passes, program_);
    reduced_ = add_shard_exchanges(program_, passes_, loss_block(), model::element_size(plan_.precision));
    add_reductions();
    if (reads_tables()) add_push(program_, tables_, {complete(tables_), norm_});
    return std::move(program_);
  }

  Program evaluation(std::int64_t micro_batches, std::int64_t samples) {
    program_.training = false;
    program_.micro_batches = micro_batches;
    samples_ = samples;
    share_samples();
    std::vector<Slot> forwards =
        plan::order_of(plan_.schedule, pipeline_rank_, pipeline_.size, static_cast<int>(micro_batches), pipeline_.chunks);
    std::erase_if(forwards, [](const Slot& slot) { return !slot.forward; });
    for (Slot& slot : forwards) slot.with_next = false;
    add_groups();
    add_buckets(plan::order_of(plan_, pipeline_rank_));
    if (reads_tables()) add_pull(program_, tables_, *blocks_[tables_].spec);
    passes_ = add_passes(forwards, pass_options(), program_);
    add_shard_exchanges(program_, passes_, -1, model::element_size(plan_.precision));
    if (reads_tables()) wait_for_pull(program_);
    emit(Op::reduce_norm, -1, world_group_, Bytes(kScalarBytes), {passes_.last_forward});
    return std::move(program_);
  }

 private:
  void add_cut(const plan::StrategyRun& run) {
    const plan::Strategy& strategy = run.strategy;
    Cut cut{run.first, run.last, index_ / (strategy.cp * strategy.tp), strategy.dp, index_ % strategy.tp, strategy.tp};
    cut.context_index = index_ / strategy.tp % strategy.cp;
    cut.context_size = strategy.cp;
    cut.expert_index = index_ / strategy.expert_tp() % strategy.ep;
    cut.expert_size = strategy.ep;
    cut.expert_step = strategy.expert_tp();
    std::vector<Cut>& cuts = program_.cuts;
    if (!cuts.empty() && cuts.back().last_block == run.first && cuts.back().same_layout(cut) &&
        cuts.back().expert_size == cut.expert_size && cuts.back().expert_step == cut.expert_step)
      cuts.back().last_block = run.last;
    else
      cuts.push_back(cut);
  }

  // The rank's part of a micro-batch.
  void share_samples() {
    program_.samples = samples_;
    for (Cut& cut : program_.cuts) {
      const std::int64_t replica = stage_.width() / cut.dp_size;
      cut.samples_before = plan_.items_before(stage_, cut.dp_index * replica, samples_);
      cut.micro_batch_size = plan_.items_before(stage_, (cut.dp_index + 1) * replica, samples_) - cut.samples_before;
    }
  }

  int add_group(std::string name, std::vector<int> ranks) {
    program_.groups.push_back({std::move(name), std::move(ranks)});
    return static_cast<int>(program_.groups.size()) - 1;
  }

  Chunk chunk_at(int stage) const {
    const plan::Stage& of = plan_.stages[stage];
    Chunk chunk{stage, of.first_block(), of.last_block(), {}};
    for (const auto& run : of.runs)
      for (int b = run.first; b < run.last; ++b) {
        chunk.strategies.push_back(run.strategy);
        if (b == 0 || b + 1 == static_cast<int>(blocks_.size())) chunk.strategies.back().recompute = model::Recompute::none;
      }
    return chunk;
  }

  // One group of each kind for each of its degrees, or pair of degrees.
  void add_groups() {
    for (std::size_t c = 0; c < program_.cuts.size(); ++c) {
      Cut& cut = program_.cuts[c];
      const int replica = index_ / cut.tp_size;
      if (cut.tp_size > 1)
        cut.tensor_group = group_named(text("tp.stage", program_.stage, ".dp", replica, degree_suffix(cut.tp_size)), replica * cut.tp_size,
                                       cut.tp_size, 1);
      if (cut.context_size > 1) cut.context_group = spaced_group("cp", cut.context_size, cut.tp_size, cut.tp_size);
      // Apart from those that reduce gradients, which do so beside passes.
      if (cut.dp_size > 1 && std::any_of(blocks_.begin() + cut.first_block, blocks_.begin() + cut.last_block,
                                         [](const BlockInstance& block) { return model::exchanges_over_replicas(*block.spec); }))
        cut.replica_group = spaced_group("replicas", cut.dp_size, cut.context_size * cut.tp_size, cut.tp_size);
      if (c > 0) add_anew_group(program_.cuts[c - 1], cut);
    }
    for (const Chunk& chunk : program_.chunks)
      for (const plan::StrategyRun& run : plan_.stages[chunk.stage].runs) {
        const plan::Strategy& strategy = run.strategy;
        add_data_group(strategy, false);
        add_data_group(strategy, true);
        if (strategy.ep > 1)
          program_.cuts[program_.cut_index(run.first)].expert_group =
              spaced_group(strategy.whole_experts ? "whole.ep" : "ep", strategy.ep, strategy.expert_tp(), strategy.tp);
      }
    if (plan_.world_size() > 1) world_group_ = add_group("world", all_ranks(plan_));
  }

  // Whole replicas of both cuts.
  void add_anew_group(const Cut& before, Cut& cut) {
    if (before.last_block != cut.first_block || before.same_layout(cut) || (before.context_size == 1 && cut.context_size == 1)) return;
    const int size = std::lcm(before.context_size * before.tp_size, cut.context_size * cut.tp_size);
    cut.anew_group = spaced_group("anew", size, 1, program_.cuts.front().tp_size);
  }

  // The rank's group of `size` ranks of its stage, each `step` after the one before it, of blocks that tensor parallelism cuts by `tp`.
  int spaced_group(const char* kind, int size, int step, int tp) {
    const int first = index_ / (step * size) * step * size + index_ % step;
    return group_named(text(kind, size, ".stage", program_.stage, ".", first, degree_suffix(tp)), first, size, step);
  }

  // The group of that name: `size` ranks of the rank's stage from index `first` on, each `step` after the one before it.
  int group_named(const std::string& name, int first, int size, int step) {
    const auto known = std::ranges::find(program_.groups, name, &CommGroup::name);
    if (known != program_.groups.end()) return static_cast<int>(known - program_.groups.begin());
    std::vector<int> ranks;
    for (int i = 0; i < size; ++i) ranks.push_back(stage_.ranks[first + i * step]);
    return add_group(name, std::move(ranks));
  }

  // Of the names of groups of blocks that are cut otherwise than the rank's first.
  std::string degree_suffix(int tp) const { return tp == program_.cuts.front().tp_size ? std::string() : text("of", tp); }

  // The ranks that hold the same weights.
  struct DataGroup {
    int group = -1;   // of those that shard them, or hold all of them
    int across = -1;  // of those with the same shard, where there are several such groups
  };
  // Degrees by which the parameters are cut, the second for experts that are spread, and ranks that shard where these are not all.
  using Sharing = std::tuple<int, int, int>;
  static Sharing sharing_of(const plan::Strategy& strategy, bool experts) {
    const int shards = experts ? strategy.experts_sharded_over() : strategy.sharded_over();
    const int copies = experts ? strategy.expert_copies() : strategy.copies();
    return {experts ? strategy.expert_tp() : strategy.tp, experts ? strategy.ep : 1, shards > 1 && shards < copies ? shards : 0};
  }

  // Whether ranks that hold the same of a block's other parameters hold other parts of its experts.
  static bool spreads_experts(const plan::Strategy& strategy) { return strategy.ep > 1 || strategy.expert_tp() != strategy.tp; }

  bool is_spread(int block, int parameter) const {
    return spreads_experts(strategy_of(block)) && blocks_[block].spec->parameters[parameter].expert_dim >= 0;
  }

  // One for each way in which parameters of the rank's blocks are cut and sharded. The ranks that hold the same are each `step` after the
  // one before it: so many hold another part of the block.
  void add_data_group(const plan::Strategy& strategy, bool experts) {
    if (experts && !spreads_experts(strategy)) return;
    const Sharing sharing = sharing_of(strategy, experts);
    const int copies = experts ? strategy.expert_copies() : strategy.copies();
    if (copies < 2 || data_groups_.contains(sharing)) return;
    const int step = experts ? strategy.expert_tp() * strategy.ep : strategy.tp;
    const int part = index_ % step;
    const int copy = index_ / step;
    const std::string within = experts ? text(".ep", part, "of", strategy.ep, "x", strategy.expert_tp()) : text(".tp", part);
    const std::string suffix = text(".stage", program_.stage, within, degree_suffix(strategy.tp));
    const auto every = [&](int first, int last, int stride) {
      std::vector<int> ranks;
      for (int i = first; i < last; i += stride) ranks.push_back(stage_.ranks[i * step + part]);
      return ranks;
    };
    const int shards = std::get<2>(sharing);
    if (shards == 0) {
      data_groups_[sharing].group = add_group("dp" + suffix, every(0, copies, 1));
    } else {
      const int first = copy / shards * shards;
      const int shard = copy - first;
      data_groups_[sharing] = {add_group(text("shard", shards, suffix, ".", first), every(first, first + shards, 1)),
                               add_group(text("across", shards, suffix, ".", shard), every(shard, copies, shards))};
    }
  }

  // Whose forward pass adds to gradients.
  int loss_block() const { return static_cast<int>(blocks_.size()) - 1; }

  int stage_of(int block) const {
    for (std::size_t s = 0; s < plan_.stages.size(); ++s)
      if (block >= plan_.stages[s].first_block() && block < plan_.stages[s].last_block()) return static_cast<int>(s);
    throw Error(ErrorCode::internal, text("block ", block, " is in no stage"));
  }

  const plan::Strategy& strategy_of(int block) const { return plan_.stages[stage_of(block)].strategy_of(block); }

  bool reads_tables() const { return tables_ >= 0 && holds(tables_); }

  bool holds(int block) const { return program_.chunk_of(block) >= 0; }

  // Of the blocks here that share a parameter, the one in whose bucket it stands.
  int home_of(const Tie& tie) const {
    return *std::ranges::find_if(tie.blocks, [&](int block) { return holds(block); });
  }

  bool is_elsewhere_too(const Tie& tie) const {
    return std::ranges::any_of(tie.blocks, [&](int block) { return !holds(block); });
  }

  bool is_cut_alike(const Tie& tie) const {
    const plan::Strategy& owner = strategy_of(tie.blocks.front());
    return std::ranges::all_of(tie.blocks, [&](int block) { return strategy_of(block).same_layout(owner); });
  }

  void close_bucket(Bucket& bucket, bool tied_elsewhere = false) {
    if (bucket.entries.empty()) return;
    const plan::Strategy& strategy = strategy_of(bucket.entries.front().block);
    const bool experts = is_spread(bucket.entries.front().block, bucket.entries.front().parameter);
    if ((experts ? strategy.expert_copies() : strategy.copies()) > 1) {
      const DataGroup& data = data_groups_.at(sharing_of(strategy, experts));
      const int copy = index_ / (experts ? strategy.expert_tp() * strategy.ep : strategy.tp);
      bucket.group = data.group;
      bucket.across = data.across;
      bucket.shards = experts ? strategy.experts_sharded_over() : strategy.sharded_over();
      bucket.shard = copy % bucket.shards;
      bucket.copy = copy / bucket.shards;
      if (bucket.sharded()) {
        // What is exchanged with other stages is kept whole until the step.
        bucket.zero = tied_elsewhere ? 1 : strategy.zero;
        bucket.count = round_up(bucket.count, kShardAlignment * bucket.shards);
      }
    }
    for (const BucketEntry& entry : bucket.entries) {
      bucket.blocks.push_back(entry.block);
      if (const Tie* const tie = ties_.of(blocks_[entry.block], blocks_[entry.block].spec->parameters[entry.parameter]))
        std::ranges::copy_if(tie->blocks, std::back_inserter(bucket.blocks), [&](int block) { return holds(block); });
    }
    std::sort(bucket.blocks.begin(), bucket.blocks.end());
    bucket.blocks.erase(std::unique(bucket.blocks.begin(), bucket.blocks.end()), bucket.blocks.end());
    program_.buckets.push_back(std::move(bucket));
    bucket = {};
  }

  void add_entry(Bucket& bucket, int block, int parameter) {
    const auto& spec = blocks_[block].spec->parameters[parameter];
    const plan::Strategy& strategy = strategy_of(block);
    const std::int64_t count =
        is_spread(block, parameter) ? spec.shard_count(strategy.expert_tp()) / strategy.ep : spec.shard_count(strategy.tp);
    bucket.entries.push_back({block, parameter, bucket.count, count});
    bucket.count += count;
  }

  // Chunk by chunk, by when their gradients are complete; on all data-parallel peers the same.
  void add_buckets(const std::vector<Slot>& order) {
    std::vector<std::size_t> end(program_.chunks.size(), 0);
    for (std::size_t i = 0; i < order.size(); ++i) end[order[i].chunk] = i;
    std::vector<int> chunks(program_.chunks.size());
    std::iota(chunks.begin(), chunks.end(), 0);
    std::ranges::stable_sort(chunks, {}, [&](int chunk) { return end[chunk]; });
    for (const int c : chunks) add_buckets(program_.chunks[c]);
  }

  // Backward order: the last blocks' gradients are complete first. A block is never cut between buckets, so that its
  // parameters stay neighbours; blocks that are cut or sharded differently never share one; a parameter that another rank's
  // stage also holds gets a bucket of its own.
  void add_buckets(const Chunk& chunk) {
    const std::int64_t target = plan_.bucket_size.value / 4;
    Bucket bucket;
    Bucket experts;  // that are spread
    for (int b = chunk.last_block - 1; b >= chunk.first_block; --b) {
      const BlockInstance& block = blocks_[b];
      const plan::Strategy& strategy = strategy_of(b);
      std::int64_t size = 0;
      for (const auto& parameter : block.spec->parameters)
        if (!parameter.sparse) size += parameter.count() / strategy.tp / (parameter.expert_dim >= 0 ? strategy.ep : 1);
      if (!bucket.entries.empty()) {
        const plan::Strategy& open = strategy_of(bucket.entries.front().block);
        // Under ZeRO-2 and 3 a rank holds whole buckets of few blocks at a time.
        if (bucket.count + experts.count + size > target || strategy.zero >= 2 || !strategy.same_layout(open) ||
            strategy.zero != open.zero || strategy.sharded_over() != open.sharded_over() || strategy.ep != open.ep ||
            strategy.expert_tp() != open.expert_tp()) {
          close_bucket(bucket);
          close_bucket(experts);
        }
      }
      for (std::size_t i = 0; i < block.spec->parameters.size(); ++i) {
        if (block.spec->parameters[i].sparse) continue;  // it is with parameter servers
        const Tie* const tie = ties_.of(block, block.spec->parameters[i]);
        if (tie != nullptr && home_of(*tie) != b) continue;
        if (tie != nullptr && is_elsewhere_too(*tie)) {
          Bucket alone;
          add_entry(alone, b, static_cast<int>(i));
          if (!is_cut_alike(*tie)) alone.whole = block.spec->parameters[i].count();
          close_bucket(alone, true);
          tied_[static_cast<int>(program_.buckets.size()) - 1] = tie;
        } else {
          add_entry(is_spread(b, static_cast<int>(i)) ? experts : bucket, b, static_cast<int>(i));
        }
      }
    }
    close_bucket(bucket);
    close_bucket(experts);
  }

  // Of all of a bucket; `bytes` of its buffer.
  int emit(Op op, int bucket, int group, Bytes bytes, std::vector<int> after, bool finishes_previous = false) {
    return append(program_, {op, -1, -1, -1, -1, bucket, group, bytes, std::move(after), {}, finishes_previous});
  }
  // Steps a bucket; `gathers` get what then brings its parameters, where passes do not. Returns the step.
  int emit_step(int index, std::vector<int> after, bool finishes_previous, std::vector<int>& gathers) {
    const Bucket& of = program_.buckets[index];
    const Bytes bytes = of.count * model::element_size(plan_.precision);
    const int step = emit(Op::optimizer_step, index, -1, {}, std::move(after), finishes_previous);
    if (of.sharded() && of.zero < 3) gathers.push_back(emit(Op::gather_parameters, index, of.group, bytes, {step}, finishes_previous));
    return step;
  }

  // What a stage of this rank exchanges of the tensors before `block`.
  Boundary boundary(int stage, int other, int block) {
    if (other < 0 || other == static_cast<int>(plan_.stages.size())) return {};
    if (plan_.stages[stage].ranks == plan_.stages[other].ranks) return {.peers = {{program_.rank, {}, {}}}};
    const BoundaryTensors tensors{samples_ * elements_before_[block], model::element_size(plan_.precision)};
    Boundary out = for_all_ ? boundary_of_all(plan_, stage, other, tensors) : boundary_of(plan_, stage, other, index_, tensors);
    for (std::size_t peer = 0; peer < out.crossed.size(); ++peer) {
      out.peers[peer].crossed = static_cast<int>(program_.crossed.size());
      program_.crossed.push_back(out.crossed[peer]);
    }
    if (out.gathered.value > 0) out.gather_group = gather_group(stage, strategy_of(stage < other ? block - 1 : block).tp);
    return out;
  }

  // Beside the group of the passes, whose exchanges do not queue behind messages.
  int gather_group(int stage, int tp) {
    return group_named(text("inputs.stage", stage, ".", index_ / tp, "of", stage_.width() / tp), index_ / tp * tp, tp, 1);
  }

  // Where the last micro-batch's backward is cut: below the lowest block of each bucket, so that the bucket's reduction
  // can start while the blocks below are still computing.
  std::vector<int> backward_cuts(const Chunk& chunk) const {
    std::set<int, std::greater<>> cuts = {chunk.first_block};
    for (const auto& bucket : program_.buckets)
      if (const int lowest = lowest_block(bucket); lowest >= chunk.first_block && lowest < chunk.last_block) cuts.insert(lowest);
    return {cuts.begin(), cuts.end()};
  }

  // Entries stand in backward order.
  static int lowest_block(const Bucket& bucket) { return bucket.entries.back().block; }

  PassOptions pass_options() {
    PassOptions out;
    for (const Chunk& chunk : program_.chunks) {
      out.peers.push_back(
          {boundary(chunk.stage, chunk.stage - 1, chunk.first_block), boundary(chunk.stage, chunk.stage + 1, chunk.last_block)});
      out.cuts.push_back(backward_cuts(chunk));
    }
    return out;
  }

  // The instruction after which the gradients of a block are complete.
  int complete(int block) const { return std::prev(passes_.completes[program_.chunk_of(block)].upper_bound(block))->second; }

  // Those after which all gradients of a bucket are: of its blocks, and of others here that share its parameters.
  std::vector<int> gradients_complete(const Bucket& bucket) const {
    std::vector<int> out = {complete(lowest_block(bucket))};
    for (const BucketEntry& entry : bucket.entries) {
      const Tie* const tie = ties_.of(blocks_[entry.block], blocks_[entry.block].spec->parameters[entry.parameter]);
      if (tie == nullptr) continue;
      for (const int block : tie->blocks)
        if (holds(block) && (program_.chunk_of(block) != program_.chunk_of(entry.block) || block < entry.block))
          out.push_back(complete(block));
    }
    return out;
  }

  // All that hold a parameter add their gradients: those of equal index where all of them cut it alike, and elsewhere all of them, each its
  // part of the whole.
  int reduce_tied(int index, const Tie& tie, std::vector<int> ready) {
    const Bucket& bucket = program_.buckets[index];
    const bool alike = bucket.whole == 0;
    std::set<int> ranks;
    for (const int block : tie.blocks) {
      const std::vector<int>& holders = plan_.stages[stage_of(block)].ranks;
      ranks.insert(alike ? holders.begin() + index_ : holders.begin(), alike ? holders.begin() + index_ + 1 : holders.end());
    }
    // Stages may pad it to different lengths.
    const std::int64_t count = alike ? bucket.entries.front().count : bucket.whole;
    const int group = add_group(text("tied.", tie.name, alike ? text(".", index_) : ""), {ranks.begin(), ranks.end()});
    return emit(Op::reduce_tied, index, group, count * Bytes(4), std::move(ready));
  }

  // Steps the buckets that blocks [first, last) use first, with the gradients of the step before; what the blocks wait for.
  std::vector<int> finish_previous(int first, int last) {
    std::vector<int> out;
    for (const int index : exchange_order())
      if (const int lowest = lowest_block(program_.buckets[index]); lowest >= first && lowest < last) emit_step(index, {}, true, out);
    return out;
  }

  std::vector<int> exchange_order() const {
    std::vector<std::int64_t> counts;
    for (const Bucket& bucket : program_.buckets) counts.push_back(bucket.count);
    return plan::exchange_order(plan_, counts);
  }

  void add_reductions() {
    const Bytes element(4);
    std::map<int, int> steps;  // of the step before, by bucket
    for (std::size_t i = 0; i < program_.instructions.size(); ++i)
      if (program_.instructions[i].op == Op::optimizer_step) steps[program_.instructions[i].bucket] = static_cast<int>(i);
    std::vector<int> reduced, gathers;
    for (const int index : exchange_order()) {
      const Bucket& bucket = program_.buckets[index];
      std::vector<int> ready = gradients_complete(bucket);
      if (program_.stale) ready.push_back(steps[index] = emit_step(index, {}, true, gathers));
      if (const auto tied = tied_.find(index); tied != tied_.end()) ready = {reduce_tied(index, *tied->second, ready)};
      if (const auto reduced = reduced_.find(index); reduced != reduced_.end())
        ready = {reduced->second};
      else if (bucket.group >= 0 && bucket.whole == 0)
        ready = {emit(Op::reduce_gradients, index, bucket.group, bucket.count * element, ready)};
      if (bucket.across >= 0 && bucket.whole == 0)
        ready = {emit(Op::reduce_shards, index, bucket.across, bucket.shard_count() * element, ready)};
      // Computing of the step before is over anyway.
      if (program_.delayed && !is_compute(program_.instructions[ready.front()].op))
        program_.instructions[steps.at(index)].after_previous = ready;
      reduced.insert(reduced.end(), ready.begin(), ready.end());
    }
    norm_ =
        emit(Op::reduce_norm, -1, world_group_, Bytes(kScalarBytes), program_.delayed ? std::vector<int>{passes_.last_forward} : reduced);
    if (program_.delayed) return;
    for (int index = 0; index < std::ssize(program_.buckets); ++index) emit_step(index, {norm_}, false, gathers);
  }

  const plan::Plan& plan_;
  const std::vector<BlockInstance>& blocks_;
  const std::vector<std::int64_t>& elements_before_;  // by block: of one sample
  const Ties& ties_;
  plan::Pipeline pipeline_;
  int pipeline_rank_;
  int index_;                 // within the ranks of its stages
  bool for_all_;              // the program stands for those of all of them
  const plan::Stage& stage_;  // of the first chunk
  std::int64_t samples_;      // of a micro-batch, over a whole stage
  Program program_;
  PassResult passes_;
  std::map<Sharing, DataGroup> data_groups_;
  int world_group_ = -1;
  int norm_ = -1;                   // the reduction that says whether gradients are finite
  int tables_;                      // the block that reads rows from parameter servers; -1: none does
  std::map<int, const Tie*> tied_;  // bucket -> the parameter in it that other ranks share
  std::map<int, int> reduced_;      // ZeRO-2 and 3: bucket -> its last reduction beside the passes
};

std::vector<Seat> seats_of(const plan::Plan& plan) {
  std::vector<Seat> seats(plan.world_size());
  for (int pipeline_rank = 0; pipeline_rank < plan::pipeline_of(plan).size; ++pipeline_rank)
    for (int i = 0; i < plan.stages[pipeline_rank].width(); ++i) seats[plan.stages[pipeline_rank].ranks[i]] = {pipeline_rank, i};
  return seats;
}

// The programs of `ranks`, made by `build` from each rank's compiler.
template <typename Build>
std::vector<Program> for_ranks(const plan::Plan& plan, const model::ModelSpec& model, const std::vector<int>& ranks, bool for_all,
                               const Build& build) {
  const std::vector<BlockInstance> blocks = model.blocks();
  const std::vector<std::int64_t> elements = model::elements_before(model::tensor_flow(model));
  const Ties ties(blocks);
  const std::vector<Seat> seats = seats_of(plan);
  const int tables = model::reads_clicks(model) ? model::tables_block(model) : -1;
  std::vector<Program> programs;
  for (const int rank : ranks) {
    Compiler compiler(plan, blocks, elements, ties, tables, seats[rank], for_all);
    programs.push_back(build(compiler));
  }
  return programs;
}

}  // namespace

std::vector<Program> compile(const plan::Plan& plan, const model::ModelSpec& model, const std::vector<int>& ranks) {
  return for_ranks(plan, model, ranks, false, [](Compiler& compiler) { return compiler.training(); });
}

std::vector<Program> compile(const plan::Plan& plan, const model::ModelSpec& model) { return compile(plan, model, all_ranks(plan)); }

std::vector<Program> compile_folded(const plan::Plan& plan, const model::ModelSpec& model, const std::vector<int>& ranks) {
  return for_ranks(plan, model, ranks, true, [](Compiler& compiler) { return compiler.training(); });
}

std::vector<Program> compile_evaluation(const plan::Plan& plan, const model::ModelSpec& model, std::int64_t micro_batches,
                                        std::int64_t samples) {
  plan::Plan even = plan;
  for (plan::Stage& stage : even.stages) stage.shares.clear();
  return for_ranks(even, model, all_ranks(plan), false, [&](Compiler& compiler) { return compiler.evaluation(micro_batches, samples); });
}

}  // namespace tessera::program
