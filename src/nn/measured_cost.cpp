#include "nn/measured_cost.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <algorithm>
#include <string_view>

#include "nn/memory_meter.hpp"

namespace tessera::nn {
namespace {

std::int64_t bytes_of(const Tensors& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

std::vector<std::int64_t> with_batch(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> out = {1};
  out.insert(out.end(), shape.begin(), shape.end());
  return out;
}

thread_local double counted_flops = 0;

// Multiplications, each with an addition, for an element of what a function makes.
struct Products : at::ObserverContext {
  explicit Products(double each) : each(each) {}
  double each;
};

// Of functions that multiply matrices; inputs are there before a function runs, outputs behind it.
std::unique_ptr<at::ObserverContext> products_of(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  const auto size = [&](std::size_t place, std::int64_t dim) { return static_cast<double>(function.inputs()[place].toTensor().size(dim)); };
  if (name == "aten::mm" || name == "aten::bmm") return std::make_unique<Products>(size(0, -1));
  if (name == "aten::addmm" || name == "aten::baddbmm") return std::make_unique<Products>(size(1, -1));
  // Scores, and their product with the values.
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu")
    return std::make_unique<Products>(size(1, -2) * (size(0, -1) + size(2, -1)) / size(2, -1));
  if (name == "aten::convolution") {
    const at::Tensor& weight = function.inputs()[1].toTensor();
    return std::make_unique<Products>(static_cast<double>(weight.numel()) / static_cast<double>(weight.size(0)));
  }
  return nullptr;
}

void count(const at::RecordFunction& function, at::ObserverContext* context) {
  if (const auto* products = static_cast<Products*>(context); products != nullptr)
    counted_flops += 2 * products->each * static_cast<double>(function.outputs().front().toTensor().numel());
}

// Counts what this thread computes while it stands, as torch's FlopCounterMode does.
class FlopCounter {
 public:
  FlopCounter() : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(products_of, count).needsInputs(true).needsOutputs(true))) {
    counted_flops = 0;
  }
  ~FlopCounter() { at::removeCallback(handle_); }
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

 private:
  at::RecordFunctionGuard on_{true};
  at::CallbackHandle handle_;
};

void check_outputs(const model::BlockInstance& instance, const Tensors& outputs) {
  const std::vector<model::TensorSpec>& specs = instance.spec->outputs;
  const auto refuse = [&](const std::string& what, const std::string& expected) {
    throw Error(ErrorCode::invalid_config, text("block ", instance.name(), " ", what), {}, expected);
  };
  const bool loss = specs.size() == 1 && specs.front().name == "loss";
  if (outputs.size() != (loss ? 2 : specs.size()))
    refuse(text("returns ", outputs.size(), " tensors"),
           loss ? "two of its loss: the sum, and how many it is the sum of" : text(specs.size(), " of them, as its outputs say"));
  for (std::size_t i = 0; i < specs.size() && !loss; ++i)
    if (outputs[i].sizes() != at::IntArrayRef(with_batch(specs[i].shape)))
      refuse(text("returns ", specs[i].name, " as ", outputs[i].sizes(), " of one sample"),
             text("its output's shape ", at::IntArrayRef(with_batch(specs[i].shape))));
}

}  // namespace

model::MeasuredCost measured_cost(const model::BlockInstance& instance, const Batch& batch) {
  const model::BlockSpec& spec = *instance.spec;
  const std::unique_ptr<Block> block = make_block(spec, {});
  std::vector<Parameter> parameters;
  std::int64_t weights = 0;
  for (const model::ParameterSpec& parameter : spec.parameters) {
    at::Tensor value = at::zeros(parameter.shape, at::kFloat);
    initialize(parameter, instance.parameter_name(parameter), 1, {}, value);
    parameters.push_back({&parameter, instance.parameter_name(parameter), value, at::zeros(parameter.shape, at::kFloat)});
    weights += static_cast<std::int64_t>(value.nbytes());
  }
  block->bind(std::move(parameters));
  Tensors inputs;
  for (const model::TensorSpec& tensor : spec.inputs) inputs.push_back(at::rand(with_batch(tensor.shape), at::kFloat) - 0.5);
  Pass pass;
  pass.batch = &batch;
  pass.drops = true;

  const auto meter = std::make_shared<MemoryMeter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  Saved saved;
  Tensors outputs;
  {
    const FlopCounter counter;
    try {
      outputs = block->forward(inputs, saved, pass);
    } catch (const c10::Error& error) {
      throw Error(ErrorCode::invalid_config,
                  text("block ", instance.name(), ": its forward pass failed: ", error.what_without_backtrace()));
    }
  }
  check_outputs(instance, outputs);
  model::MeasuredCost cost;
  cost.forward = Flops(counted_flops);
  cost.backward = 2.0 * cost.forward;
  const std::int64_t held = meter->held();
  const std::int64_t passed = bytes_of(outputs);
  cost.kept = Bytes(std::max<std::int64_t>(0, held - passed) + bytes_of(inputs));
  cost.forward_workspace = Bytes(meter->peak() - held);

  Tensors gradients;
  const bool loss = spec.outputs.size() == 1 && spec.outputs.front().name == "loss";
  for (const at::Tensor& output : outputs)
    if (!loss) gradients.push_back(at::ones_like(output));
  meter->restart();
  const std::int64_t before = meter->held();
  const Tensors back = block->backward_input(gradients, saved, pass);
  block->backward_weight(saved, pass);
  // Gradients of weights are as large whatever the batch is: the cost adds them (model/measured_cost.hpp).
  cost.backward_workspace = Bytes(std::max<std::int64_t>(0, meter->peak() - before - bytes_of(back) - weights));
  return cost;
}

}  // namespace tessera::nn
