#include <algorithm>
#include <map>

#include "program/program.hpp"
#include "plan/schedule.hpp"

namespace tessera::program {
namespace {

using model::BlockInstance;
using plan::Slot;
using plan::order_of;

// A shard starts on its own cache line.
constexpr std::int64_t kShardAlignment = 16;
// What reduce_norm carries: squared norm, loss, tokens, wish to stop; f64 each.
constexpr std::int64_t kScalarBytes = 32;

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

// Builds the program of one rank. Everything that peers must agree on (groups, buckets, order) is a function of the plan
// and the stage alone.
class Compiler {
 public:
  Compiler(const plan::Plan& plan, const model::ModelSpec& model, int stage, int dp_index, int tp_index)
      : plan_(plan), blocks_(model.blocks()), stage_(plan.stages[stage]) {
    const plan::Strategy& strategy = stage_.runs.front().strategy;
    program_.stage = stage;
    program_.dp_index = dp_index;
    program_.dp_size = strategy.dp;
    program_.tp_index = tp_index;
    program_.tp_size = strategy.tp;
    program_.rank = stage_.ranks[dp_index * strategy.tp + tp_index];
    program_.first_block = stage_.first_block();
    program_.last_block = stage_.last_block();
    program_.micro_batches = plan.micro_batches;
    program_.micro_batch = plan.micro_batch(strategy.dp);
    for (const auto& run : stage_.runs)
      for (int b = run.first; b < run.last; ++b)
        program_.recompute.push_back(run.strategy.recompute == model::Recompute::full && b > 0 && b + 1 < static_cast<int>(blocks_.size()));
    zero_ = strategy.zero >= 1 && strategy.dp > 1;
  }

  Program training() {
    add_groups();
    add_buckets();
    add_schedule(order_of(plan_.schedule, program_.stage, stage_count(), static_cast<int>(program_.micro_batches)));
    add_reductions();
    return std::move(program_);
  }

  Program evaluation(std::int64_t micro_batches, std::int64_t micro_batch) {
    program_.training = false;
    program_.micro_batches = micro_batches;
    program_.micro_batch = micro_batch;
    add_groups();
    add_buckets();
    std::vector<Slot> forwards;
    for (int m = 0; m < micro_batches; ++m) forwards.push_back({true, m});
    add_schedule(forwards);
    emit({Op::reduce_norm, -1, -1, -1, -1, -1, world_group_, Bytes(kScalarBytes), {last_forward_}});
    return std::move(program_);
  }

 private:
  int add_group(std::string name, std::vector<int> ranks) {
    program_.groups.push_back({std::move(name), std::move(ranks)});
    return static_cast<int>(program_.groups.size()) - 1;
  }

  int rank_in(const plan::Stage& stage) const {
    return stage.ranks[program_.dp_index * program_.tp_size + program_.tp_index];
  }

  void add_groups() {
    const Program& p = program_;
    if (p.tp_size > 1) {
      const auto first = stage_.ranks.begin() + p.dp_index * p.tp_size;
      program_.tensor_group = add_group(text("tp.stage", p.stage, ".dp", p.dp_index), {first, first + p.tp_size});
    }
    if (p.dp_size > 1) {
      std::vector<int> ranks;
      for (int d = 0; d < p.dp_size; ++d) ranks.push_back(stage_.ranks[d * p.tp_size + p.tp_index]);
      data_group_ = add_group(text("dp.stage", p.stage, ".tp", p.tp_index), std::move(ranks));
    }
    std::vector<int> world(plan_.world_size());
    for (int rank = 0; rank < plan_.world_size(); ++rank) world[rank] = rank;
    if (world.size() > 1) world_group_ = add_group("world", std::move(world));
  }

  int stage_of(int block) const {
    for (std::size_t s = 0; s < plan_.stages.size(); ++s)
      if (block >= plan_.stages[s].first_block() && block < plan_.stages[s].last_block()) return static_cast<int>(s);
    throw Error(ErrorCode::internal, text("block ", block, " is in no stage"));
  }

  // The stage that owns the parameter that (block, parameter) is tied to.
  int owner_stage(const std::string& name) const {
    for (const auto& block : blocks_)
      for (const auto& parameter : block.spec->parameters)
        if (parameter.tied_to.empty() && block.parameter_name(parameter) == name) return stage_of(block.index);
    throw Error(ErrorCode::internal, "no block owns the tied parameter " + name);
  }

  // The other stage that holds a copy of this parameter, or -1.
  int tied_stage(const BlockInstance& block, const model::ParameterSpec& parameter) const {
    if (!parameter.tied_to.empty()) {
      const int owner = owner_stage(parameter.tied_to);
      return owner == program_.stage ? -1 : owner;
    }
    const std::string name = block.parameter_name(parameter);
    for (const auto& other : blocks_)
      for (const auto& candidate : other.spec->parameters)
        if (candidate.tied_to == name && stage_of(other.index) != program_.stage) return stage_of(other.index);
    return -1;
  }

  void close_bucket(Bucket& bucket) {
    if (bucket.entries.empty()) return;
    bucket.group = data_group_;
    bucket.sharded = zero_;
    if (zero_) bucket.count = round_up(bucket.count, kShardAlignment * program_.dp_size);
    program_.buckets.push_back(std::move(bucket));
    bucket = {};
  }

  void append(Bucket& bucket, int block, int parameter) {
    const auto& spec = blocks_[block].spec->parameters[parameter];
    const std::int64_t count = spec.split_dim >= 0 ? spec.count() / program_.tp_size : spec.count();
    bucket.entries.push_back({block, parameter, bucket.count, count});
    bucket.count += count;
  }

  // Backward order: the last blocks' gradients are complete first. A block is never cut between buckets, so that its
  // parameters stay neighbours; a parameter that another stage also holds gets a bucket of its own.
  void add_buckets() {
    const std::int64_t target = plan_.bucket.value / 4;
    Bucket bucket;
    for (int b = program_.last_block - 1; b >= program_.first_block; --b) {
      const BlockInstance& block = blocks_[b];
      std::int64_t size = 0;
      for (const auto& parameter : block.spec->parameters) size += parameter.count() / program_.tp_size;
      if (bucket.count > 0 && bucket.count + size > target) close_bucket(bucket);
      for (std::size_t i = 0; i < block.spec->parameters.size(); ++i) {
        const auto& parameter = block.spec->parameters[i];
        const int other = tied_stage(block, parameter);
        if (other >= 0) {
          Bucket alone;
          append(alone, b, static_cast<int>(i));
          close_bucket(alone);
          tied_[static_cast<int>(program_.buckets.size()) - 1] = other;
        } else if (parameter.tied_to.empty()) {
          append(bucket, b, static_cast<int>(i));
        }
      }
    }
    close_bucket(bucket);
  }

  int emit(Instruction instruction) {
    program_.instructions.push_back(std::move(instruction));
    return static_cast<int>(program_.instructions.size()) - 1;
  }

  Bytes boundary_bytes(int block) const {
    Bytes total;
    for (const auto& tensor : blocks_[block].spec->inputs) {
      std::int64_t count = program_.micro_batch;
      for (std::int64_t extent : tensor.shape) count *= extent;
      total += count * model::element_size(plan_.precision);
    }
    return total;
  }

  // Where the last micro-batch's backward is cut: below the lowest block of each bucket, so that the bucket's reduction
  // can start while the blocks below are still computing.
  std::vector<int> backward_cuts() const {
    std::vector<int> cuts;
    for (const auto& bucket : program_.buckets) {
      int lowest = program_.last_block;
      for (const auto& entry : bucket.entries) lowest = std::min(lowest, entry.block);
      cuts.push_back(lowest);
    }
    cuts.push_back(program_.first_block);
    std::sort(cuts.begin(), cuts.end(), std::greater<>());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    return cuts;
  }

  int stage_count() const { return static_cast<int>(plan_.stages.size()); }

  void add_schedule(const std::vector<Slot>& order) {
    const bool first_stage = program_.stage == 0;
    const bool last_stage = program_.stage == stage_count() - 1;
    const int before = first_stage ? -1 : rank_in(plan_.stages[program_.stage - 1]);
    const int behind = last_stage ? -1 : rank_in(plan_.stages[program_.stage + 1]);
    const int begin = program_.first_block;
    const int end = program_.last_block;
    std::vector<int> forwards;
    std::vector<int> backwards;
    for (const Slot& slot : order) {
      const int m = slot.micro_batch;
      if (slot.forward) {
        std::vector<int> needs;
        if (!first_stage) {
          // Two receive buffers: the one in use, and the one that fills meanwhile.
          std::vector<int> free;
          if (forwards.size() >= 2) free.push_back(forwards[forwards.size() - 2]);
          needs.push_back(emit({Op::receive_activation, m, begin, end, before, -1, -1, boundary_bytes(begin), free}));
        }
        // Without backward passes nothing else keeps a stage from running ahead of the next one, with all that it sends.
        if (!program_.training && sends_.size() >= 2) needs.push_back(sends_[sends_.size() - 2]);
        forwards.push_back(emit({Op::forward, m, begin, end, -1, -1, -1, {}, needs}));
        last_forward_ = forwards.back();
        if (!last_stage) sends_.push_back(emit({Op::send_activation, m, end, end, behind, -1, -1, boundary_bytes(end), {forwards.back()}}));
        continue;
      }
      std::vector<int> needs;
      if (!last_stage) {
        std::vector<int> free;
        if (backwards.size() >= 2) free.push_back(backwards[backwards.size() - 2]);
        needs.push_back(emit({Op::receive_gradient, m, end, end, behind, -1, -1, boundary_bytes(end), free}));
      }
      const bool final_micro_batch = backwards.size() + 1 == static_cast<std::size_t>(program_.micro_batches);
      const std::vector<int> cuts = final_micro_batch ? backward_cuts() : std::vector<int>{begin};
      int upper = end;
      int last = -1;
      for (int lower : cuts) {
        if (lower >= upper) continue;
        last = emit({Op::backward, m, lower, upper, -1, -1, -1, {}, needs});
        needs = {last};
        upper = lower;
        if (final_micro_batch) final_backward_[lower] = last;
      }
      backwards.push_back(last);
      if (!first_stage) emit({Op::send_gradient, m, begin, end, before, -1, -1, boundary_bytes(begin), {last}});
    }
  }

  // The backward instruction after which all gradients of a bucket are complete.
  int gradients_complete(const Bucket& bucket) const {
    int lowest = program_.last_block;
    for (const auto& entry : bucket.entries) lowest = std::min(lowest, entry.block);
    return std::prev(final_backward_.upper_bound(lowest))->second;
  }

  void add_reductions() {
    const Bytes element(4);
    std::vector<int> reduced(program_.buckets.size(), -1);
    std::vector<int> complete;
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      const Bucket& bucket = program_.buckets[b];
      const int index = static_cast<int>(b);
      int ready = gradients_complete(bucket);
      if (const auto tied = tied_.find(index); tied != tied_.end()) {
        std::vector<int> pair = {program_.rank, rank_in(plan_.stages[tied->second])};
        std::sort(pair.begin(), pair.end());
        const int group = add_group(text("tied.dp", program_.dp_index, ".tp", program_.tp_index), std::move(pair));
        ready = emit({Op::reduce_tied, -1, -1, -1, -1, index, group, bucket.count * element, {ready}});
      }
      if (bucket.group >= 0) ready = emit({Op::reduce_gradients, -1, -1, -1, -1, index, bucket.group, bucket.count * element, {ready}});
      reduced[b] = ready;
      complete.push_back(ready);
    }
    const int norm = emit({Op::reduce_norm, -1, -1, -1, -1, -1, world_group_, Bytes(kScalarBytes), complete});
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      const Bucket& bucket = program_.buckets[b];
      const int index = static_cast<int>(b);
      const int step = emit({Op::optimizer_step, -1, -1, -1, -1, index, -1, {}, {norm}});
      if (bucket.sharded)
        emit({Op::gather_parameters, -1, -1, -1, -1, index, bucket.group, bucket.count * model::element_size(plan_.precision), {step}});
    }
  }

  const plan::Plan& plan_;
  std::vector<BlockInstance> blocks_;
  const plan::Stage& stage_;
  Program program_;
  bool zero_ = false;
  int data_group_ = -1;
  int world_group_ = -1;
  int last_forward_ = -1;
  std::vector<int> sends_;             // of activations, in order
  std::map<int, int> tied_;            // bucket -> the other stage
  std::map<int, int> final_backward_;  // lowest block -> instruction
};

// One program per rank, made by `build` from each rank's compiler.
template <typename Build>
std::vector<Program> for_all_ranks(const plan::Plan& plan, const model::ModelSpec& model, const Build& build) {
  std::vector<Program> programs(plan.world_size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::Strategy& strategy = plan.stages[s].runs.front().strategy;
    for (int d = 0; d < strategy.dp; ++d)
      for (int t = 0; t < strategy.tp; ++t) {
        Compiler compiler(plan, model, static_cast<int>(s), d, t);
        Program program = build(compiler);
        programs[program.rank] = std::move(program);
      }
  }
  return programs;
}

}  // namespace

std::vector<Program> compile(const plan::Plan& plan, const model::ModelSpec& model) {
  return for_all_ranks(plan, model, [](Compiler& compiler) { return compiler.training(); });
}

std::vector<Program> compile_evaluation(const plan::Plan& plan, const model::ModelSpec& model, std::int64_t micro_batches,
                                        std::int64_t micro_batch) {
  return for_all_ranks(plan, model, [&](Compiler& compiler) { return compiler.evaluation(micro_batches, micro_batch); });
}

}  // namespace tessera::program
