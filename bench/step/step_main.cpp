// One training step of a small Llama, straight from nn's blocks in one process: what the trainer can reach at best.
// Prints one JSON line: {"tokens_per_s": median, "steps": [seconds...], "loss": of the last step}.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

#include "autograd_model.hpp"
#include "base/random.hpp"
#include "model/model.hpp"
#include "nn/block.hpp"
#include "nn/memory.hpp"
#include "nn/optimizer.hpp"

namespace {

using namespace tessera;

constexpr std::int64_t kLayers = 6, kHidden = 384, kHeads = 6, kKvHeads = 2, kFfn = 1024, kVocab = 8192, kSeq = 256;

struct Bucket {
  std::unique_ptr<nn::Block> block;
  at::Tensor master, grad, exp_avg, exp_avg_sq, compute;
};

Bucket make_bucket(const model::BlockInstance& instance, model::Precision precision) {
  Bucket bucket;
  std::int64_t count = 0;
  for (const auto& parameter : instance.spec->parameters) count += parameter.count();
  bucket.master = at::empty({count}, at::kFloat);
  for (at::Tensor* t : {&bucket.grad, &bucket.exp_avg, &bucket.exp_avg_sq}) *t = at::zeros({count}, at::kFloat);
  if (precision == model::Precision::bf16) bucket.compute = at::empty({count}, at::kBFloat16);
  std::vector<nn::Parameter> parameters;
  std::int64_t offset = 0;
  for (const auto& spec : instance.spec->parameters) {
    const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, offset, spec.count()).view(spec.shape); };
    at::Tensor initial = part(bucket.master);
    const std::string name = instance.parameter_name(spec);
    nn::initialize(spec, name, 1, {}, initial);
    parameters.push_back({&spec, name, part(bucket.compute.defined() ? bucket.compute : bucket.master), part(bucket.grad)});
    offset += spec.count();
  }
  if (bucket.compute.defined()) bucket.compute.copy_(bucket.master);
  bucket.block = nn::make_block(*instance.spec, {});
  bucket.block->bind(std::move(parameters));
  return bucket;
}

double train_step(std::vector<Bucket>& buckets, const nn::Pass& pass, std::int64_t step) {
  for (Bucket& bucket : buckets) bucket.grad.zero_();
  std::vector<nn::Saved> saved(buckets.size());
  nn::Tensors values;
  for (std::size_t b = 0; b < buckets.size(); ++b) values = buckets[b].block->forward(values, saved[b], pass);
  const double loss = values[0].item<double>() * pass.loss_scale;
  nn::Tensors grads;
  for (std::size_t b = buckets.size(); b-- > 0;) {
    grads = buckets[b].block->backward_input(grads, saved[b], pass);
    buckets[b].block->backward_weight(saved[b], pass);
  }
  double squares = 0;
  for (Bucket& bucket : buckets) squares += nn::squared_norm(bucket.grad);
  const double clip = std::min(1.0, 1.0 / (std::sqrt(squares) + 1e-6));
  for (Bucket& bucket : buckets) {
    nn::adamw_step(bucket.master, bucket.grad, bucket.exp_avg, bucket.exp_avg_sq, bucket.compute, {3e-4, 0.9, 0.95, 1e-8, 0.1, step, clip});
  }
  return loss;
}

struct Timing {
  std::vector<double> seconds;
  double loss = 0;
};

Timing run_steps(std::int64_t count, std::int64_t& step, std::vector<Bucket>& buckets, const nn::Pass& pass) {
  Timing timing;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto start = std::chrono::steady_clock::now();
    timing.loss = train_step(buckets, pass, ++step);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    timing.seconds.push_back(took.count());
  }
  return timing;
}

void report(const Timing& timing, std::int64_t tokens) {
  std::vector<double> sorted = timing.seconds;
  std::sort(sorted.begin(), sorted.end());
  std::printf("{\"tokens_per_s\": %.1f, \"loss\": %.6f, \"steps\": [", static_cast<double>(tokens) / sorted.at(sorted.size() / 2),
              timing.loss);
  for (std::size_t i = 0; i < sorted.size(); ++i) std::printf("%s%.4f", i == 0 ? "" : ", ", timing.seconds[i]);
  std::puts("]}");
  std::fflush(stdout);
}

bool has_flag(int argc, char** argv, const char* flag) {
  return std::any_of(argv + 1, argv + argc, [&](const char* given) { return std::strcmp(given, flag) == 0; });
}

std::string argument(int argc, char** argv, const char* flag, const char* otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], flag) == 0) return argv[i + 1];
  }
  return otherwise;
}

}  // namespace

// tessera_bench_step [--precision fp32|bf16] [--gradients own|autograd] [--threads N] [--batch N] [--steps N] [--warmup N] [--serve]
// --serve runs --steps steps for each line read, until the input ends.
int main(int argc, char** argv) {
  const model::Precision precision = argument(argc, argv, "--precision", "fp32") == "bf16" ? model::Precision::bf16 : model::Precision::f32;
  const std::int64_t samples = std::atol(argument(argc, argv, "--batch", "8").c_str());
  const std::int64_t steps = std::atol(argument(argc, argv, "--steps", "10").c_str());
  const std::int64_t warmup = std::atol(argument(argc, argv, "--warmup", "2").c_str());
  nn::configure_memory();
  at::set_num_threads(std::atoi(argument(argc, argv, "--threads", "2").c_str()));

  const bool by_autograd = argument(argc, argv, "--gradients", "own") == "autograd";
  const model::ModelSpec spec =
      by_autograd
          ? bench::autograd_model({kLayers, kHidden, kHeads, kKvHeads, kFfn, kVocab, kSeq})
          : model::read_model(ConfigNode::parse(text("{arch: llama, hidden: ", kHidden, ", layers: ", kLayers, ", heads: ", kHeads,
                                                     ", kv_heads: ", kKvHeads, ", ffn: ", kFfn, ", vocab: ", kVocab, ", seq: ", kSeq, "}"),
                                                "bench"));
  std::vector<Bucket> buckets;
  for (const model::BlockInstance& instance : spec.blocks()) buckets.push_back(make_bucket(instance, precision));

  Random random(1);
  nn::Batch batch;
  for (const char* name : {"tokens", "targets"}) {
    const at::Tensor values = batch.tensors[name] = at::empty({samples, kSeq}, at::kLong);
    for (std::int64_t i = 0; i < values.numel(); ++i) values.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random.below(kVocab));
  }
  nn::Pass pass;
  pass.batch = &batch;
  pass.precision = precision;
  pass.loss_scale = 1.0 / static_cast<double>(samples * kSeq);

  std::int64_t step = 0;
  run_steps(warmup, step, buckets, pass);
  if (!has_flag(argc, argv, "--serve")) {
    report(run_steps(steps, step, buckets, pass), samples * kSeq);
    return 0;
  }
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) report(run_steps(steps, step, buckets, pass), samples * kSeq);
}
