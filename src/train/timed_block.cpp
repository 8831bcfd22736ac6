#include "train/timed_block.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <algorithm>

#include "base/random.hpp"
#include "model/forms.hpp"

namespace tessera::train {
namespace {

nn::Tensors random_tensors(const std::vector<model::TensorSpec>& specs, std::int64_t micro_batch, std::int64_t positions,
                           at::ScalarType type) {
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(1);
  nn::Tensors out;
  for (const auto& spec : specs) {
    std::vector<std::int64_t> extents = {micro_batch};
    extents.insert(extents.end(), spec.shape.begin(), spec.shape.end());
    if (positions > 0) extents.at(1) = std::min(extents.at(1), positions);
    const at::Tensor tensor = random_tensor(extents, type, random);
    // Maps lie as blocks pass them on, with the channels of a pixel side by side.
    out.push_back(extents.size() == 4 ? tensor.contiguous(at::MemoryFormat::ChannelsLast) : tensor);
  }
  return out;
}

// The share of the targets that count.
double counted_share(const model::JobSpec& job) {
  if (!job.data.mask) return 1;
  const model::MaskSpec& mask = *job.data.mask;
  if (!mask.decoder_seq) return mask.share;
  // Of the text, of which the encoder reads the rest and a sentinel for each span.
  const double masked = mask.share * static_cast<double>(job.model.dim("seq")) / (1 - mask.share + mask.share / mask.span);
  return std::min(1.0, (masked + masked / mask.span + 1) / static_cast<double>(*mask.decoder_seq));
}

}  // namespace

nn::Batch random_batch(const model::ModelSpec& model, std::int64_t samples, double counted) {
  nn::Batch batch;
  Random random(1);
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const auto fill = [&](const char* name, const std::vector<std::int64_t>& shape, std::int64_t below) {
    at::Tensor& tensor = batch.tensors[name] = at::empty(shape, at::kLong);
    for (std::int64_t i = 0; i < tensor.numel(); ++i)
      tensor.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(below)));
  };
  if (model::reads_images(model)) {
    const std::int64_t side = model.dim("image");
    batch.tensors["images"] = random_tensor({samples, model.dim("channels"), side, side}, at::kFloat, generator);
    fill("labels", {samples}, model.dim("classes"));
    return batch;
  }
  if (model::reads_clicks(model)) {
    const model::BlockSpec& tables = *model.blocks().at(static_cast<std::size_t>(model::tables_block(model))).spec;
    batch.tensors["rows"] = random_tensor({samples, tables.dim("tables"), tables.dim("dim")}, at::kFloat, generator);
    batch.tensors["row_gradients"] = at::zeros({samples, tables.dim("tables"), tables.dim("dim")}, at::kFloat);
    if (const std::int64_t history = model::history_of(model); history > 0) {
      batch.tensors["history_rows"] = random_tensor({samples, history, tables.dim("dim")}, at::kFloat, generator);
      batch.tensors["history_gradients"] = at::zeros({samples, history, tables.dim("dim")}, at::kFloat);
      batch.tensors["history"] = at::zeros({samples, history}, at::kLong);
    }
    batch.tensors["dense"] = random_tensor({samples, model.dim("dense")}, at::kFloat, generator);
    fill("labels", {samples}, 2);
    return batch;
  }
  const std::int64_t vocab = std::max<std::int64_t>(1, model.dim("vocab"));
  const std::vector<std::int64_t> written = {samples, model.dim(model::predicts_masked_spans(model) ? "decoder_seq" : "seq")};
  fill("tokens", {samples, model.dim("seq")}, vocab);
  if (model::classifies(model)) {
    fill("labels", {samples}, model.dim("classes"));
    return batch;
  }
  if (model::predicts_masked_spans(model)) fill("decoder_tokens", written, vocab);
  fill("targets", written, vocab);
  if (counted < 1) batch.tensors["targets"].masked_fill_(at::rand(written, generator) >= counted, -1);
  return batch;
}

at::ScalarType type_of(model::Precision precision) { return precision == model::Precision::f32 ? at::kFloat : at::kBFloat16; }

at::Tensor random_tensor(const std::vector<std::int64_t>& shape, at::ScalarType type, at::Generator& random) {
  return at::rand(shape, random, at::kFloat).sub_(0.5).to(type);
}

Weights::Weights(const model::JobSpec& job) {
  std::int64_t most = std::min(job.model.parameter_count(), static_cast<std::int64_t>(kBeyondCaches) / 4);
  for (const model::Repeat& repeat : job.model.repeats) {
    std::int64_t count = 0;
    for (const auto& spec : repeat.block.parameters) count += spec.sparse ? 0 : spec.count();
    most = std::max(most, count);
  }
  at::Generator random = at::make_generator<at::CPUGeneratorImpl>(2);
  constexpr double kScale = 0.1;
  values_ = random_tensor({most}, at::kFloat, random).mul_(kScale).to(type_of(job.train.precision));
  grads_ = at::zeros({most}, at::kFloat);
}

std::vector<nn::Parameter> Weights::of(const model::BlockInstance& instance, int tensor_parallel, int copy) const {
  std::int64_t all = 0;
  for (const auto& spec : instance.spec->parameters) all += spec.sparse ? 0 : spec.shard_count(tensor_parallel);
  std::vector<nn::Parameter> out;
  std::int64_t offset = copy % std::max<std::int64_t>(1, values_.numel() / std::max<std::int64_t>(1, all)) * all;
  for (const auto& spec : instance.spec->parameters) {
    if (spec.sparse) continue;
    const auto shape = nn::shard_shape(spec, {0, tensor_parallel});
    const std::int64_t count = spec.shard_count(tensor_parallel);
    const auto shard = [&](const at::Tensor& flat) { return flat.narrow(0, offset, count).view(shape); };
    out.push_back({&spec, instance.parameter_name(spec), shard(values_), shard(grads_)});
    offset += count;
  }
  return out;
}

bool may_be_cut_short(const model::BlockSpec& block) {
  return model::cut_by_nn(block) && !block.inputs.empty() && block.outputs.front().name != "loss";
}

TimedBlock::TimedBlock(const model::JobSpec& job, const model::BlockInstance& instance, std::int64_t micro_batch, int tensor_parallel,
                       const Weights& weights, int copy, std::int64_t positions)
    : block_(nn::make_block(*instance.spec, {0, tensor_parallel})),
      batch_(random_batch(job.model, micro_batch, counted_share(job))),
      inputs_(random_tensors(instance.spec->inputs, micro_batch, positions, type_of(job.train.precision))) {
  if (instance.spec->outputs.front().name != "loss")
    output_grads_ = random_tensors(instance.spec->outputs, micro_batch, positions, type_of(job.train.precision));
  block_->bind(weights.of(instance, tensor_parallel, copy));
  pass_.batch = &batch_;
  pass_.precision = job.train.precision;
  pass_.loss_scale = 1e-4;
  pass_.drops = true;
}

void TimedBlock::forward(const comm::Group& group) {
  pass_.tensor_group = group;
  outputs_ = block_->forward(inputs_, saved_, pass_);
}

void TimedBlock::backward_input() { block_->backward_input(output_grads_, saved_, pass_); }

void TimedBlock::backward_weight() {
  block_->backward_weight(saved_, pass_);
  saved_ = {};
  outputs_.clear();
}

void TimedBlock::passes(int times, const comm::Group& group) {
  for (int i = 0; i < times; ++i) {
    forward(group);
    backward_input();
    backward_weight();
  }
}

}  // namespace tessera::train
