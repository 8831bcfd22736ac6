#include "model/measured_cost.hpp"

#include "model/work.hpp"

namespace tessera::model {
namespace {

std::int64_t bytes_of(const std::vector<TensorSpec>& tensors, std::int64_t element) {
  std::int64_t bytes = 0;
  for (const TensorSpec& tensor : tensors) {
    std::int64_t count = element;
    for (const std::int64_t extent : tensor.shape) count *= extent;
    bytes += count;
  }
  return bytes;
}

}  // namespace

BlockCost measured_cost(const BlockSpec& block, const BlockShard& shard) {
  const MeasuredCost& one = *block.measured;
  const std::int64_t element = element_size(shard.precision).value;
  const std::int64_t samples = shard.micro_batch_size;
  const auto of_all = [&](Bytes measured) { return Bytes(samples * measured.value * element / kF32Bytes); };
  const std::int64_t weights = block.parameter_count();
  BlockCost cost;
  cost.forward = static_cast<double>(samples) * one.forward;
  cost.backward = static_cast<double>(samples) * one.backward;
  // What is kept is written once and read once, at least.
  cost.forward_traffic = Bytes(2 * of_all(one.kept).value + weights * element);
  cost.backward_traffic = Bytes(3 * of_all(one.kept).value + weights * (element + 2 * kF32Bytes));
  cost.output = Bytes(samples * bytes_of(block.outputs, element));
  cost.forward_workspace = of_all(one.forward_workspace);
  cost.backward_workspace = Bytes(of_all(one.backward_workspace).value + weights * element);
  cost.saved = of_all(one.kept);
  // Autograd makes the gradients of the weights beside those of the inputs.
  cost.saved_for_weight = Bytes(weights * element);
  const auto whole = [](const char* name, Flops flops, Bytes traffic) {
    Operator made;
    made.name = name;
    made.flops = flops;
    made.traffic = traffic;
    return made;
  };
  cost.forward_operators = {whole("forward", cost.forward, cost.forward_traffic)};
  cost.backward_operators = {whole("backward", cost.backward, cost.backward_traffic)};
  if (shard.recompute == Recompute::full) {
    cost.saved = Bytes(samples * bytes_of(block.inputs, element));
    cost.backward_workspace = Bytes(cost.backward_workspace.value + of_all(one.kept).value - cost.saved.value);
    cost.recomputed_operators = cost.forward_operators;
  }
  return cost;
}

}  // namespace tessera::model
