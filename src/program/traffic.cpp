#include "program/traffic.hpp"

#include <array>
#include <utility>

#include "model/tensor_flow.hpp"

namespace tessera::program {
namespace {

using model::Exchange;

constexpr Bytes kCountBytes(8);
constexpr Bytes kWeightBytes(4);

class Counter {
 public:
  Counter(const Program& program, const std::vector<model::BlockInstance>& blocks, const std::vector<std::int64_t>& elements_before,
          model::Precision precision, std::map<Exchanged, std::int64_t>& out)
      : program_(program), blocks_(blocks), elements_before_(elements_before), precision_(precision), out_(out) {}

  void count() {
    for (const Instruction& instruction : program_.instructions) {
      if (instruction.op == Op::forward || instruction.op == Op::backward || instruction.op == Op::backward_input)
        count_pass(instruction);
      else if (is_send(instruction.op))
        add(kPipelineGroup, "send", 1, instruction.bytes);
      else if (instruction.group >= 0)
        count_collective(instruction);
    }
  }

 private:
  void add(const std::string& dimension, const std::string& operation, int ranks, Bytes bytes, int times = 1) {
    if (!dimension.empty()) out_[{dimension, operation, ranks, bytes}] += times;
  }

  void count_collective(const Instruction& instruction) {
    const CommGroup& group = program_.groups[instruction.group];
    const char* operation = "all_reduce";
    if (is_gather_of_inputs(instruction.op) || instruction.op == Op::gather_parameters) operation = "all_gather";
    if (instruction.op == Op::reduce_gradients && program_.buckets[instruction.bucket].sharded()) operation = "reduce_scatter";
    add(dimension_of(group.name), operation, static_cast<int>(group.ranks.size()), instruction.bytes);
  }

  void count_pass(const Instruction& pass) {
    for (int block = pass.first_block; block < pass.last_block; ++block) {
      const model::BlockCost cost = model::cost_of(*blocks_[block].spec, shard_of(block));
      const bool forward = pass.op == Op::forward;
      count_exchanges(block, forward ? cost.forward_exchanges : cost.backward_exchanges, forward);
      if (!forward) count_exchanges(block, cost.recomputed_exchanges, program_.recomputes(block));
      if (block > pass.first_block) count_cut(block, forward ? block - 1 : block, forward ? block : block - 1);
    }
  }

  model::BlockShard shard_of(int block) const {
    const plan::Strategy& strategy = program_.strategy_of(block);
    return {program_.cut_of(block).micro_batch_size,
            strategy.tp,
            precision_,
            strategy.recompute,
            strategy.sequence_parallel,
            strategy.cp,
            strategy.context,
            strategy.ep,
            strategy.whole_experts,
            program_.training && model::exchanges_over_replicas(*blocks_[block].spec) ? strategy.dp : 1};
  }

  void count_exchanges(int block, const std::vector<Exchange>& exchanges, bool routes) {
    const model::BlockSpec& spec = *blocks_[block].spec;
    const Cut& cut = program_.cut_of(block);
    std::int64_t rows = 0;  // that a rank sends to experts, its own among them
    for (const Exchange& exchange : exchanges) {
      const int times = exchange.messages * exchange.pieces;
      const Bytes each(exchange.bytes.value / times);
      switch (exchange.axis) {
        case Exchange::Axis::tensor: add("tensor", exchange.operation, cut.tp_size, each, times); break;
        case Exchange::Axis::context:
          add("context", exchange.operation, exchange.operation == "send" ? 1 : cut.context_size, each, times);
          break;
        case Exchange::Axis::replica: add("data", exchange.operation, cut.dp_size, each, times); break;
        case Exchange::Axis::expert:
          // Ranks have different numbers of rows for each other, so that they send them as messages.
          add("expert", "send", 1, Bytes(each.value / cut.expert_size), cut.expert_size - 1);
          rows = each.value / (model::element_size(precision_).value * spec.dim("hidden"));
          break;
      }
    }
    if (rows == 0) return;
    // Each row has a weight, whose gradient comes back; and ranks tell each other how many rows come whenever tokens are routed.
    add("expert", "send", 1, rows / cut.expert_size * kWeightBytes, cut.expert_size - 1);
    if (routes) add("expert", "all_to_all", cut.expert_size, spec.dim("experts") * kCountBytes);
  }

  // Where the blocks of a pass are cut in different ways, the tensor-parallel ranks of the next one gather what it needs, in equal places.
  void count_cut(int block, int from, int to) {
    const Cut& after = program_.cut_of(to);
    const bool cuts_rows = program_.strategy_of(to).sequence_parallel;
    const bool alike = program_.cut_of(from).same_layout(after) && program_.strategy_of(from).sequence_parallel == cuts_rows;
    if (alike || after.tp_size == 1 || cuts_rows) return;
    const std::int64_t held = after.micro_batch_size * elements_before_[block] / after.context_size;
    const std::int64_t place = (held + after.tp_size - 1) / after.tp_size;
    add("tensor", "all_gather", after.tp_size, place * after.tp_size * model::element_size(precision_));
  }

  const Program& program_;
  const std::vector<model::BlockInstance>& blocks_;
  const std::vector<std::int64_t>& elements_before_;  // by block
  const model::Precision precision_;
  std::map<Exchanged, std::int64_t>& out_;
};

}  // namespace

std::string dimension_of(const std::string& group) {
  if (group.ends_with(".evaluation")) return {};
  static constexpr std::array<std::pair<const char*, const char*>, 10> kKinds = {{{"dp", "data"},
                                                                                  {"replicas", "data"},
                                                                                  {"shard", "sharding"},
                                                                                  {"across", "sharding"},
                                                                                  {"tp", "tensor"},
                                                                                  {"cp", "context"},
                                                                                  {"ep", "expert"},
                                                                                  {"placement", "placement"},
                                                                                  {"tied", "tied"},
                                                                                  {kPipelineGroup, "pipeline"}}};
  const std::string kind = group.substr(0, group.find_first_of(".0123456789"));
  for (const auto& [name, dimension] : kKinds)
    if (kind == name) return dimension;
  return {};
}

std::map<Exchanged, std::int64_t> exchanged_in_step(const std::vector<Program>& programs, const model::ModelSpec& model,
                                                    model::Precision precision) {
  const std::vector<model::BlockInstance> blocks = model.blocks();
  const std::vector<std::int64_t> elements = model::elements_before(model::tensor_flow(model));
  std::map<Exchanged, std::int64_t> out;
  for (const Program& program : programs) Counter(program, blocks, elements, precision, out).count();
  return out;
}

}  // namespace tessera::program
