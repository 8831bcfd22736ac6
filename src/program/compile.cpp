#include <algorithm>
#include <map>

#include "plan/schedule.hpp"
#include "program/passes.hpp"
#include "program/program.hpp"

namespace tessera::program {
namespace {

using model::BlockInstance;
using plan::Slot;

// A shard starts on its own cache line.
constexpr std::int64_t kShardAlignment = 16;
// What reduce_norm carries: squared norm, loss, tokens, wish to stop; f64 each.
constexpr std::int64_t kScalarBytes = 32;

std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

// Builds the program of one rank. Everything that peers must agree on (groups, buckets, order) is a function of the plan
// and the place in the pipeline alone.
class Compiler {
 public:
  Compiler(const plan::Plan& plan, const std::vector<BlockInstance>& blocks, int place, int dp_index, int tp_index)
      : plan_(plan), blocks_(blocks), pipeline_(plan::pipeline_of(plan)), place_(place), stage_(plan.stages[place]) {
    const plan::Strategy& strategy = stage_.runs.front().strategy;
    program_.dp_index = dp_index;
    program_.dp_size = strategy.dp;
    program_.tp_index = tp_index;
    program_.tp_size = strategy.tp;
    program_.rank = rank_in(stage_);
    program_.micro_batches = plan.micro_batches;
    program_.micro_batch = plan.micro_batch(strategy.dp);
    for (int c = 0; c < pipeline_.chunks; ++c) program_.chunks.push_back(chunk_at(plan::stage_at(plan.schedule, place, c, pipeline_.places)));
    const Chunk& first = program_.chunks.front();
    program_.stage = first.stage;
    program_.first_block = first.first_block;
    program_.last_block = first.last_block;
    program_.recompute = first.recompute;
  }

  Program training() {
    const std::vector<Slot> order = plan::order_of(plan_, place_);
    add_groups();
    add_buckets(order);
    passes_ = add_passes(order, pass_plan(), program_);
    add_reductions();
    return std::move(program_);
  }

  Program evaluation(std::int64_t micro_batches, std::int64_t micro_batch) {
    program_.training = false;
    program_.micro_batches = micro_batches;
    program_.micro_batch = micro_batch;
    std::vector<Slot> forwards = plan::order_of(plan_.schedule, place_, pipeline_.places, static_cast<int>(micro_batches), pipeline_.chunks);
    std::erase_if(forwards, [](const Slot& slot) { return !slot.forward; });
    for (Slot& slot : forwards) slot.with_next = false;
    add_groups();
    add_buckets(forwards);
    passes_ = add_passes(forwards, pass_plan(), program_);
    emit({Op::reduce_norm, -1, -1, -1, -1, -1, world_group_, Bytes(kScalarBytes), {passes_.last_forward}});
    return std::move(program_);
  }

 private:
  int add_group(std::string name, std::vector<int> ranks) {
    program_.groups.push_back({std::move(name), std::move(ranks)});
    return static_cast<int>(program_.groups.size()) - 1;
  }

  Chunk chunk_at(int stage) const {
    const plan::Stage& held = plan_.stages[stage];
    Chunk chunk{stage, held.first_block(), held.last_block(), {}};
    for (const auto& run : held.runs)
      for (int b = run.first; b < run.last; ++b)
        chunk.recompute.push_back(run.strategy.recompute == model::Recompute::full && b > 0 && b + 1 < static_cast<int>(blocks_.size()));
    return chunk;
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

  bool holds(int stage) const {
    return std::any_of(program_.chunks.begin(), program_.chunks.end(), [&](const Chunk& chunk) { return chunk.stage == stage; });
  }

  // The stage that owns the parameter that (block, parameter) is tied to.
  int owner_stage(const std::string& name) const {
    for (const auto& block : blocks_)
      for (const auto& parameter : block.spec->parameters)
        if (parameter.tied_to.empty() && block.parameter_name(parameter) == name) return stage_of(block.index);
    throw Error(ErrorCode::internal, "no block owns the tied parameter " + name);
  }

  // The stage of another rank that holds a copy of this parameter, or -1.
  int tied_stage(const BlockInstance& block, const model::ParameterSpec& parameter) const {
    if (!parameter.tied_to.empty()) {
      const int owner = owner_stage(parameter.tied_to);
      return holds(owner) ? -1 : owner;
    }
    const std::string name = block.parameter_name(parameter);
    for (const auto& other : blocks_)
      for (const auto& candidate : other.spec->parameters)
        if (candidate.tied_to == name && !holds(stage_of(other.index))) return stage_of(other.index);
    return -1;
  }

  void close_bucket(Bucket& bucket, const Chunk& chunk) {
    if (bucket.entries.empty()) return;
    bucket.group = data_group_;
    bucket.sharded = program_.dp_size > 1 && plan_.stages[chunk.stage].runs.front().strategy.zero >= 1;
    if (bucket.sharded) bucket.count = round_up(bucket.count, kShardAlignment * program_.dp_size);
    program_.buckets.push_back(std::move(bucket));
    bucket = {};
  }

  void append(Bucket& bucket, int block, int parameter) {
    const auto& spec = blocks_[block].spec->parameters[parameter];
    const std::int64_t count = spec.split_dim >= 0 ? spec.count() / program_.tp_size : spec.count();
    bucket.entries.push_back({block, parameter, bucket.count, count});
    bucket.count += count;
  }

  // Chunks by when their gradients are complete; on all data-parallel peers the same.
  std::vector<int> by_completion(const std::vector<Slot>& order) const {
    std::vector<std::size_t> end(program_.chunks.size(), 0);
    for (std::size_t i = 0; i < order.size(); ++i) end[order[i].chunk] = i;
    std::vector<int> chunks(program_.chunks.size());
    for (std::size_t c = 0; c < chunks.size(); ++c) chunks[c] = static_cast<int>(c);
    std::stable_sort(chunks.begin(), chunks.end(), [&](int a, int b) { return end[a] < end[b]; });
    return chunks;
  }

  void add_buckets(const std::vector<Slot>& order) {
    for (const int c : by_completion(order)) add_buckets(program_.chunks[c]);
  }

  // Backward order: the last blocks' gradients are complete first. A block is never cut between buckets, so that its
  // parameters stay neighbours; a parameter that another rank's stage also holds gets a bucket of its own.
  void add_buckets(const Chunk& chunk) {
    const std::int64_t target = plan_.bucket.value / 4;
    Bucket bucket;
    for (int b = chunk.last_block - 1; b >= chunk.first_block; --b) {
      const BlockInstance& block = blocks_[b];
      std::int64_t size = 0;
      for (const auto& parameter : block.spec->parameters) size += parameter.count() / program_.tp_size;
      if (bucket.count > 0 && bucket.count + size > target) close_bucket(bucket, chunk);
      for (std::size_t i = 0; i < block.spec->parameters.size(); ++i) {
        const auto& parameter = block.spec->parameters[i];
        const int other = tied_stage(block, parameter);
        if (other >= 0) {
          Bucket alone;
          append(alone, b, static_cast<int>(i));
          close_bucket(alone, chunk);
          tied_[static_cast<int>(program_.buckets.size()) - 1] = other;
        } else if (parameter.tied_to.empty()) {
          append(bucket, b, static_cast<int>(i));
        }
      }
    }
    close_bucket(bucket, chunk);
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
  std::vector<int> backward_cuts(const Chunk& chunk) const {
    std::vector<int> cuts = {chunk.first_block};
    for (const auto& bucket : program_.buckets)
      if (const int lowest = lowest_block(bucket); lowest >= chunk.first_block && lowest < chunk.last_block) cuts.push_back(lowest);
    std::sort(cuts.begin(), cuts.end(), std::greater<>());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    return cuts;
  }

  int lowest_block(const Bucket& bucket) const {
    int lowest = bucket.entries.front().block;
    for (const auto& entry : bucket.entries) lowest = std::min(lowest, entry.block);
    return lowest;
  }

  PassPlan pass_plan() const {
    PassPlan out;
    const int last = static_cast<int>(plan_.stages.size()) - 1;
    for (const Chunk& chunk : program_.chunks) {
      out.neighbours.push_back({chunk.stage == 0 ? -1 : rank_in(plan_.stages[chunk.stage - 1]), chunk.stage == last ? -1 : rank_in(plan_.stages[chunk.stage + 1])});
      out.cuts.push_back(backward_cuts(chunk));
    }
    out.boundary_bytes = [this](int block) { return boundary_bytes(block); };
    return out;
  }

  // The instruction after which the gradients of a block are complete.
  int complete(int block) const {
    return std::prev(passes_.completes[program_.chunk_of(block)].upper_bound(block))->second;
  }

  // Those after which all gradients of a bucket are: of its blocks, and of blocks of other chunks that share its parameters.
  std::vector<int> gradients_complete(const Bucket& bucket) const {
    std::vector<int> out = {complete(lowest_block(bucket))};
    for (const BucketEntry& entry : bucket.entries) {
      const std::string name = blocks_[entry.block].parameter_name(blocks_[entry.block].spec->parameters[entry.parameter]);
      for (const Chunk& chunk : program_.chunks) {
        if (chunk.stage == program_.chunks[program_.chunk_of(entry.block)].stage) continue;
        for (int b = chunk.first_block; b < chunk.last_block; ++b)
          for (const auto& candidate : blocks_[b].spec->parameters)
            if (candidate.tied_to == name) out.push_back(complete(b));
      }
    }
    return out;
  }

  void add_reductions() {
    const Bytes element(4);
    std::vector<int> reduced;
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      const Bucket& bucket = program_.buckets[b];
      const int index = static_cast<int>(b);
      std::vector<int> ready = gradients_complete(bucket);
      if (const auto tied = tied_.find(index); tied != tied_.end()) {
        std::vector<int> pair = {program_.rank, rank_in(plan_.stages[tied->second])};
        std::sort(pair.begin(), pair.end());
        const int group = add_group(text("tied.dp", program_.dp_index, ".tp", program_.tp_index), std::move(pair));
        ready = {emit({Op::reduce_tied, -1, -1, -1, -1, index, group, bucket.count * element, ready})};
      }
      if (bucket.group >= 0) ready = {emit({Op::reduce_gradients, -1, -1, -1, -1, index, bucket.group, bucket.count * element, ready})};
      reduced.insert(reduced.end(), ready.begin(), ready.end());
    }
    const int norm = emit({Op::reduce_norm, -1, -1, -1, -1, -1, world_group_, Bytes(kScalarBytes), reduced});
    for (std::size_t b = 0; b < program_.buckets.size(); ++b) {
      const Bucket& bucket = program_.buckets[b];
      const int index = static_cast<int>(b);
      const int step = emit({Op::optimizer_step, -1, -1, -1, -1, index, -1, {}, {norm}});
      if (bucket.sharded)
        emit({Op::gather_parameters, -1, -1, -1, -1, index, bucket.group, bucket.count * model::element_size(plan_.precision), {step}});
    }
  }

  const plan::Plan& plan_;
  const std::vector<BlockInstance>& blocks_;
  plan::Pipeline pipeline_;
  int place_;
  const plan::Stage& stage_;           // of the first chunk
  Program program_;
  PassResult passes_;
  int data_group_ = -1;
  int world_group_ = -1;
  std::map<int, int> tied_;            // bucket -> the other stage
};

// Where a rank stands.
struct Seat {
  int place = 0;
  int dp_index = 0;
  int tp_index = 0;
};

std::vector<Seat> seats_of(const plan::Plan& plan) {
  std::vector<Seat> seats(plan.world_size());
  for (int place = 0; place < plan::pipeline_of(plan).places; ++place) {
    const plan::Stage& stage = plan.stages[place];
    const int tp = stage.runs.front().strategy.tp;
    for (int i = 0; i < static_cast<int>(stage.ranks.size()); ++i) seats[stage.ranks[i]] = {place, i / tp, i % tp};
  }
  return seats;
}

// The programs of `ranks`, made by `build` from each rank's compiler.
template <typename Build>
std::vector<Program> for_ranks(const plan::Plan& plan, const model::ModelSpec& model, const std::vector<int>& ranks, const Build& build) {
  const std::vector<BlockInstance> blocks = model.blocks();
  const std::vector<Seat> seats = seats_of(plan);
  std::vector<Program> programs;
  for (const int rank : ranks) {
    Compiler compiler(plan, blocks, seats[rank].place, seats[rank].dp_index, seats[rank].tp_index);
    programs.push_back(build(compiler));
  }
  return programs;
}

std::vector<int> all_ranks(const plan::Plan& plan) {
  std::vector<int> ranks(plan.world_size());
  for (int rank = 0; rank < plan.world_size(); ++rank) ranks[rank] = rank;
  return ranks;
}

}  // namespace

std::vector<Program> compile(const plan::Plan& plan, const model::ModelSpec& model, const std::vector<int>& ranks) {
  return for_ranks(plan, model, ranks, [](Compiler& compiler) { return compiler.training(); });
}

std::vector<Program> compile(const plan::Plan& plan, const model::ModelSpec& model) { return compile(plan, model, all_ranks(plan)); }

std::vector<Program> compile_evaluation(const plan::Plan& plan, const model::ModelSpec& model, std::int64_t micro_batches,
                                        std::int64_t micro_batch) {
  return for_ranks(plan, model, all_ranks(plan), [&](Compiler& compiler) { return compiler.evaluation(micro_batches, micro_batch); });
}

}  // namespace tessera::program
