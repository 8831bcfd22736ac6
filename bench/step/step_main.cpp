// Training steps of a Llama, straight from nn's blocks in one process on one device: what the trainer can reach at best.
// Prints one JSON line: {"tokens_per_s": median, "steps": [seconds...], "loss": of the last step, "peak_bytes": of an accelerator's
// memory}.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <algorithm>
#include <array>
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
#include "nn/device.hpp"
#include "nn/memory.hpp"
#include "nn/optimizer.hpp"

namespace {

using namespace tessera;

struct Bucket {
  std::unique_ptr<nn::Block> block;
  at::Tensor master, grad, exp_avg, exp_avg_sq, compute;
};

Bucket make_bucket(const model::BlockInstance& instance, model::Precision precision, at::Device device) {
  Bucket bucket;
  std::int64_t count = 0;
  for (const auto& parameter : instance.spec->parameters) count += parameter.count();
  const auto f32 = at::TensorOptions(device).dtype(at::kFloat);
  bucket.master = at::empty({count}, f32);
  for (at::Tensor* t : {&bucket.grad, &bucket.exp_avg, &bucket.exp_avg_sq}) *t = at::zeros({count}, f32);
  if (precision == model::Precision::bf16) bucket.compute = at::empty({count}, f32.dtype(at::kBFloat16));
  std::vector<nn::Parameter> parameters;
  std::int64_t offset = 0;
  for (const auto& spec : instance.spec->parameters) {
    const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, offset, spec.count()).view(spec.shape); };
    at::Tensor initial = at::empty(spec.shape, at::kFloat);
    const std::string name = instance.parameter_name(spec);
    nn::initialize(spec, name, 1, {}, initial);
    part(bucket.master).copy_(initial);
    parameters.push_back({&spec, name, part(bucket.compute.defined() ? bucket.compute : bucket.master), part(bucket.grad)});
    offset += spec.count();
  }
  if (bucket.compute.defined()) bucket.compute.copy_(bucket.master);
  nn::BlockPlacement placement;
  placement.device = device;
  bucket.block = nn::make_block(*instance.spec, placement);
  bucket.block->bind(std::move(parameters));
  return bucket;
}

double train_step(std::vector<Bucket>& buckets, const nn::Pass& pass, std::int64_t step) {
  for (Bucket& bucket : buckets) bucket.grad.zero_();
  std::vector<nn::Saved> saved(buckets.size());
  nn::Tensors values;
  for (std::size_t b = 0; b < buckets.size(); ++b) values = buckets[b].block->forward(values, saved[b], pass);
  const at::Tensor loss = values[0];  // read when all is queued
  nn::Tensors grads;
  for (std::size_t b = buckets.size(); b-- > 0;) {
    grads = buckets[b].block->backward_input(grads, saved[b], pass);
    buckets[b].block->backward_weight(saved[b], pass);
  }
  nn::Tensors bucket_grads;
  for (const Bucket& bucket : buckets) bucket_grads.push_back(bucket.grad);
  const double clip = std::min(1.0, 1.0 / (std::sqrt(nn::squared_norm(bucket_grads)) + 1e-6));
  for (Bucket& bucket : buckets) {
    nn::adamw_step(bucket.master, bucket.grad, bucket.exp_avg, bucket.exp_avg_sq, bucket.compute, {3e-4, 0.9, 0.95, 1e-8, 0.1, step, clip});
  }
  return loss.item<double>() * pass.loss_scale;
}

struct Timing {
  std::vector<double> seconds;
  double loss = 0;
};

// What is queued on an accelerator is done.
void finish(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

Timing run_steps(std::int64_t count, std::int64_t& step, std::vector<Bucket>& buckets, const nn::Pass& pass) {
  Timing timing;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto start = std::chrono::steady_clock::now();
    timing.loss = train_step(buckets, pass, ++step);
    finish(buckets.front().master.device());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    timing.seconds.push_back(took.count());
  }
  return timing;
}

void report(const Timing& timing, std::int64_t tokens, at::Device device) {
  std::vector<double> sorted = timing.seconds;
  std::sort(sorted.begin(), sorted.end());
  std::printf("{\"tokens_per_s\": %.1f, \"loss\": %.6f, \"steps\": [", static_cast<double>(tokens) / sorted.at(sorted.size() / 2),
              timing.loss);
  for (std::size_t i = 0; i < sorted.size(); ++i) std::printf("%s%.4f", i == 0 ? "" : ", ", timing.seconds[i]);
  std::printf("], \"peak_bytes\": %lld}\n", static_cast<long long>(nn::peak_memory(device).value));
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

// "layers,hidden,heads,kv_heads,ffn,vocab,seq"
bench::LlamaShape read_shape(const std::string& words) {
  std::array<long, 7> n{};
  ensure(std::sscanf(words.c_str(), "%ld,%ld,%ld,%ld,%ld,%ld,%ld", &n[0], &n[1], &n[2], &n[3], &n[4], &n[5], &n[6]) == 7,
         text("--shape ", words, ": layers,hidden,heads,kv_heads,ffn,vocab,seq were expected"));
  return {n[0], n[1], n[2], n[3], n[4], n[5], n[6]};
}

model::ModelSpec llama(const bench::LlamaShape& s) {
  return model::read_model(
      ConfigNode::parse(text("{arch: llama, hidden: ", s.hidden, ", layers: ", s.layers, ", heads: ", s.heads, ", kv_heads: ", s.kv_heads,
                             ", ffn: ", s.ffn, ", vocab: ", s.vocab, ", seq: ", s.seq, "}"),
                        "bench"));
}

}  // namespace

// tessera_bench_step [--precision fp32|bf16] [--gradients own|autograd] [--shape LAYERS,...] [--device cpu|cuda:0] [--threads N] [--batch
// N]
//                    [--steps N] [--warmup N] [--serve]
// --serve runs --steps steps for each line read, until the input ends.
int main(int argc, char** argv) {
  const model::Precision precision = argument(argc, argv, "--precision", "fp32") == "bf16" ? model::Precision::bf16 : model::Precision::f32;
  const std::int64_t samples = std::atol(argument(argc, argv, "--batch", "8").c_str());
  const std::int64_t steps = std::atol(argument(argc, argv, "--steps", "10").c_str());
  const std::int64_t warmup = std::atol(argument(argc, argv, "--warmup", "2").c_str());
  const bench::LlamaShape shape = read_shape(argument(argc, argv, "--shape", "6,384,6,2,1024,8192,256"));
  const at::Device asked(argument(argc, argv, "--device", "cpu"));
  const at::Device device = nn::device_of(asked.is_cpu() ? "cpu" : "nvidia", asked.index());
  nn::configure_memory();
  at::set_num_threads(std::atoi(argument(argc, argv, "--threads", "2").c_str()));

  const bool by_autograd = argument(argc, argv, "--gradients", "own") == "autograd";
  const model::ModelSpec spec = by_autograd ? bench::autograd_model(shape) : llama(shape);
  std::vector<Bucket> buckets;
  for (const model::BlockInstance& instance : spec.blocks()) buckets.push_back(make_bucket(instance, precision, device));

  Random random(1);
  nn::Batch batch;
  for (const char* name : {"tokens", "targets"}) {
    const at::Tensor values = at::empty({samples, shape.seq}, at::kLong);
    for (std::int64_t i = 0; i < values.numel(); ++i)
      values.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(shape.vocab)));
    batch.tensors[name] = values.to(device);
  }
  nn::Pass pass;
  pass.batch = &batch;
  pass.precision = precision;
  pass.loss_scale = 1.0 / static_cast<double>(samples * shape.seq);

  std::int64_t step = 0;
  run_steps(warmup, step, buckets, pass);
  if (!has_flag(argc, argv, "--serve")) {
    report(run_steps(steps, step, buckets, pass), samples * shape.seq, device);
    return 0;
  }
  std::puts("ready");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) report(run_steps(steps, step, buckets, pass), samples * shape.seq, device);
}
