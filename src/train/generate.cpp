#include "train/generate.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "nn/autograd.hpp"
#include "plan/plan.hpp"
#include "program/program.hpp"
#include "train/store.hpp"
#include "train/tensor_passing.hpp"

namespace tessera::train {
namespace {

// The whole model on one rank.
plan::Plan single_plan(const model::ModelSpec& model) {
  plan::Plan plan;
  plan.ranks.push_back({});
  plan.stages.push_back({{0}, {{0, model.block_count(), {}}}});
  return plan;
}

model::OptimizerSpec no_state() {
  model::OptimizerSpec optimizer;
  optimizer.kind = model::OptimizerKind::sgd;
  return optimizer;
}

}  // namespace

struct Predictor::Impl {
  const model::ModelSpec model;
  const std::vector<model::BlockFlow> flow;
  Store store;
  std::vector<nn::KeyValueCache> caches;  // by block; undefined where there is nothing to keep

  explicit Impl(const model::ModelSpec& spec)
      : model(spec),
        flow(model::tensor_flow(model)),
        store(model, program::compile(single_plan(model), model).front(), model::Precision::f32, no_state()) {}

  void reset_caches() {
    caches.assign(model.block_count(), {});
    for (const auto& block : model.blocks()) {
      // Of the blocks those between the first and the last have attention.
      if (block.index == 0 || block.index + 1 == model.block_count()) continue;
      const std::vector<std::int64_t> shape = {1, block.spec->dim("kv_heads"), model.dim("seq"), block.spec->dim("head_dim")};
      caches[block.index] = {at::zeros(shape, at::kFloat), at::zeros(shape, at::kFloat)};
    }
  }

  at::Tensor forward(const std::vector<std::uint32_t>& tokens, std::int64_t position, bool cached) {
    const nn::WithoutAutograd plain;
    nn::Batch batch;
    at::Tensor& row = batch.tensors["tokens"] = at::empty({1, static_cast<std::int64_t>(tokens.size())}, at::kLong);
    std::copy(tokens.begin(), tokens.end(), row.data_ptr<std::int64_t>());
    nn::Pass pass;
    pass.batch = &batch;
    pass.training = false;
    pass.position = position;
    nn::Tensors tensors;
    nn::Tensors outputs;
    for (int b = 0; b < model.block_count(); ++b) {
      nn::Saved saved;
      pass.cache = cached && caches[b].keys.defined() ? &caches[b] : nullptr;
      outputs = store.block(b).forward(read_by(flow[b], tensors), saved, pass);
      tensors = tensors_after(flow[b], tensors, outputs);
    }
    return outputs.at(0).to(at::kFloat).contiguous();
  }

  std::vector<float> last_row(const at::Tensor& logits) const {
    const std::int64_t vocab = logits.size(-1);
    const float* end = logits.data_ptr<float>() + logits.numel();
    return {end - vocab, end};
  }
};

Predictor::Predictor(const model::ModelSpec& model, const std::filesystem::path& checkpoint) : impl_(std::make_unique<Impl>(model)) {
  const checkpoint::Reader reader(checkpoint);
  if (reader.state().model_fingerprint != model.fingerprint())
    throw Error(ErrorCode::invalid_config, "the checkpoint is of another model", {checkpoint.string(), 0, 0, -1, {}},
                "model " + model.fingerprint(), "use the train.yaml that lies in the run's folder");
  impl_->store.load(reader, false);
}
Predictor::~Predictor() = default;

std::vector<float> Predictor::logits(const std::vector<std::uint32_t>& tokens) {
  const at::Tensor logits = impl_->forward(tokens, 0, false);
  return {logits.data_ptr<float>(), logits.data_ptr<float>() + logits.numel()};
}

void Predictor::generate(const std::vector<std::uint32_t>& prompt, std::int64_t max_tokens, const Sampling& sampling, std::uint32_t end,
                         const std::function<bool(std::uint32_t)>& emit) {
  const std::size_t window = static_cast<std::size_t>(impl_->model.dim("seq"));
  std::vector<std::uint32_t> context = prompt;
  if (context.empty()) context.push_back(end);
  std::vector<float> logits;
  std::size_t seen = 0;  // tokens of the context that are in the caches
  for (std::int64_t i = 0; i < max_tokens; ++i) {
    // Blocks of a plug-in keep no keys and values: they see all of the text each time.
    const bool cached = impl_->model.plugin.empty();
    if (!cached) seen = 0;
    if (seen == 0 || context.size() > window) {
      if (context.size() > window) context.erase(context.begin(), context.end() - static_cast<std::ptrdiff_t>(window / 2));
      if (cached) impl_->reset_caches();
      seen = 0;
    }
    const std::vector<std::uint32_t> fresh(context.begin() + static_cast<std::ptrdiff_t>(seen), context.end());
    logits = impl_->last_row(impl_->forward(fresh, static_cast<std::int64_t>(seen), cached));
    seen = context.size();
    const std::uint32_t token = sample(logits, sampling, static_cast<std::uint64_t>(i));
    if (token == end || !emit(token)) return;
    context.push_back(token);
  }
}

}  // namespace tessera::train
