#include "train/measure.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <functional>
#include <set>

#include "base/clock.hpp"
#include "base/random.hpp"
#include "nn/block.hpp"
#include "nn/optimizer.hpp"
#include "train/trainer.hpp"

namespace tessera::train {
namespace {

constexpr int kRepeats = 5;

struct Median {
  double middle = 0;
  double low = 0;
  double high = 0;
};

// With five samples the interval from the smallest to the largest covers the median with 94 %.
Median median_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples.front(), samples.back()};
}

at::ScalarType type_of(model::Precision precision) { return precision == model::Precision::f32 ? at::kFloat : at::kBFloat16; }

// Times pieces of work on all workers at once.
class Meter {
 public:
  Meter(comm::Communicator& comm, Seconds budget) : comm_(comm), deadline_(real_clock().now().value + budget.value) {}

  double once(const std::function<void()>& work) const {
    const double begin = real_clock().now().value;
    work();
    return real_clock().now().value - begin;
  }
  // The slowest worker's value.
  double slowest(double seconds) const {
    comm_.world().all_reduce(&seconds, 1, comm::DataType::f64, comm::Reduction::max).wait();
    return seconds;
  }
  // Equal on all workers.
  bool out_of_time() const { return slowest(real_clock().now().value - deadline_) > 0; }
  void together() const { comm_.world().barrier().wait(); }

 private:
  comm::Communicator& comm_;
  double deadline_;
};

nn::Batch random_batch(std::int64_t rows, std::int64_t seq, std::int64_t vocab) {
  nn::Batch batch{at::empty({rows, seq}, at::kLong), at::empty({rows, seq}, at::kLong)};
  Random random(1);
  for (at::Tensor* tensor : {&batch.tokens, &batch.targets})
    for (std::int64_t i = 0; i < tensor->numel(); ++i)
      tensor->data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(vocab)));
  return batch;
}

at::Tensor random_tensor(const std::vector<std::int64_t>& shape, at::ScalarType type) {
  at::Tensor out = at::empty(shape, at::kFloat);
  Random random(2);
  for (std::int64_t i = 0; i < out.numel(); ++i) out.data_ptr<float>()[i] = static_cast<float>(random.uniform() - 0.5);
  return out.to(type);
}

// One block with weights of its own, bound back to back as the trainer binds them.
struct BoundBlock {
  std::unique_ptr<nn::Block> block;

  BoundBlock(const model::BlockInstance& instance, int tensor_size, model::Precision precision) {
    const nn::BlockPlacement placement{0, tensor_size};
    block = nn::make_block(*instance.spec, placement);
    std::int64_t total = 0;
    for (const auto& spec : instance.spec->parameters) total += spec.count() / (spec.split_dim >= 0 ? tensor_size : 1);
    const at::Tensor values = at::zeros({total}, at::kFloat);
    const at::Tensor grads = at::zeros({total}, at::kFloat);
    const at::Tensor compute = precision == model::Precision::f32 ? values : at::zeros({total}, at::kBFloat16);
    std::vector<nn::Parameter> parameters;
    std::int64_t offset = 0;
    for (const auto& spec : instance.spec->parameters) {
      const auto shape = nn::shard_shape(spec, placement);
      const std::int64_t count = spec.count() / (spec.split_dim >= 0 ? tensor_size : 1);
      at::Tensor value = values.narrow(0, offset, count).view(shape);
      nn::initialize(spec, instance.parameter_name(spec), 1, placement, value);
      parameters.push_back({&spec, instance.parameter_name(spec), compute.narrow(0, offset, count).view(shape), grads.narrow(0, offset, count).view(shape)});
      offset += count;
    }
    if (precision != model::Precision::f32) compute.copy_(values);
    block->bind(std::move(parameters));
  }
};

profile::BlockSample measure_block(const Meter& meter, const model::BlockInstance& instance, const profile::BlockSample& shape, std::int64_t seq,
                                   std::int64_t vocab) {
  BoundBlock bound(instance, shape.tensor_parallel, shape.precision);
  const nn::Batch batch = random_batch(shape.micro_batch, seq, vocab);
  nn::Pass pass;
  pass.batch = &batch;
  pass.precision = shape.precision;
  pass.loss_scale = 1e-4;
  const auto tensors = [&](const std::vector<model::TensorSpec>& specs) {
    nn::Tensors out;
    for (const auto& spec : specs) {
      std::vector<std::int64_t> extents = {shape.micro_batch};
      extents.insert(extents.end(), spec.shape.begin(), spec.shape.end());
      out.push_back(random_tensor(extents, type_of(shape.precision)));
    }
    return out;
  };
  const bool loss = instance.spec->outputs.front().name == "loss";
  const nn::Tensors inputs = tensors(instance.spec->inputs);
  const nn::Tensors output_grads = loss ? nn::Tensors{} : tensors(instance.spec->outputs);
  std::vector<double> forwards;
  std::vector<double> backwards;
  for (int i = -1; i < kRepeats; ++i) {
    meter.together();
    nn::Saved saved;
    nn::Tensors outputs;
    const double forward = meter.once([&] { outputs = bound.block->forward(inputs, saved, pass); });
    const double backward = meter.once([&] {
      bound.block->backward_input(output_grads, saved, pass);
      bound.block->backward_weight(saved, pass);
    });
    const double slowest_forward = meter.slowest(forward);
    const double slowest_backward = meter.slowest(backward);
    if (i < 0) continue;  // the first pass pays for page faults and kernel choice
    forwards.push_back(slowest_forward);
    backwards.push_back(slowest_backward);
  }
  profile::BlockSample sample = shape;
  const Median forward = median_of(forwards);
  const Median backward = median_of(backwards);
  sample.forward = Seconds(forward.middle);
  sample.forward_low = Seconds(forward.low);
  sample.forward_high = Seconds(forward.high);
  sample.backward = Seconds(backward.middle);
  sample.backward_low = Seconds(backward.low);
  sample.backward_high = Seconds(backward.high);
  return sample;
}

bool divides(const model::ModelSpec& model, int tensor_parallel) {
  for (const char* key : {"heads", "kv_heads", "ffn", "vocab"})
    if (model.dim(key) % tensor_parallel != 0) return false;
  return true;
}

void measure_blocks(const model::JobSpec& job, const Meter& meter, int threads, int workers, profile::Profile& profile) {
  std::vector<model::BlockInstance> kinds;
  std::set<std::string> seen;
  const auto blocks = job.model.blocks();
  for (const auto& block : blocks)
    if (seen.insert(block.spec->kind).second) kinds.push_back(block);
  std::vector<int> tensor_degrees = {1};
  if (workers > 1 && divides(job.model, workers)) tensor_degrees.push_back(workers);
  for (std::int64_t micro_batch = 1; micro_batch <= job.train.global_batch; micro_batch *= 2)
    for (int tensor_parallel : tensor_degrees) {
      if (micro_batch > 1 && meter.out_of_time()) return;
      for (const auto& block : kinds) {
        profile::BlockSample shape;
        shape.kind = block.spec->kind;
        shape.micro_batch = micro_batch;
        shape.tensor_parallel = tensor_parallel;
        shape.threads = threads;
        shape.neighbours = workers;
        shape.precision = job.train.precision;
        profile.blocks.push_back(measure_block(meter, block, shape, job.model.dim("seq"), job.model.dim("vocab")));
      }
    }
}

void measure_optimizer(const model::JobSpec& job, const Meter& meter, int threads, int workers, profile::Profile& profile) {
  const std::int64_t count = std::min<std::int64_t>(4 << 20, std::max<std::int64_t>(1 << 16, job.model.parameter_count()));
  const bool adamw = job.train.optimizer.kind == model::OptimizerKind::adamw;
  at::Tensor master = random_tensor({count}, at::kFloat);
  const at::Tensor grad = random_tensor({count}, at::kFloat);
  at::Tensor first = at::zeros({count}, at::kFloat);
  at::Tensor second = at::zeros({count}, at::kFloat);
  at::Tensor compute = job.train.precision == model::Precision::f32 ? at::Tensor() : at::zeros({count}, at::kBFloat16);
  std::vector<double> samples;
  for (int i = -1; i < kRepeats; ++i) {
    meter.together();
    const double seconds = meter.once([&] {
      // A step also clears the gradients and sums their squares.
      nn::squared_norm(grad);
      if (adamw)
        nn::adamw_step(master, grad, first, second, compute, {1e-4, 0.9, 0.95, 1e-8, 0.1, i + 2, 1.0});
      else
        nn::sgd_step(master, grad, first, compute, {1e-4, 0.9, 0.1, false, 1.0});
    });
    const double slowest = meter.slowest(seconds);
    if (i >= 0) samples.push_back(slowest);
  }
  profile.optimizers.push_back({adamw ? "adamw" : "sgd", threads, workers, job.train.precision, median_of(samples).middle / static_cast<double>(count)});
}

void measure_collectives(const Meter& meter, comm::Communicator& comm, const std::string& link, profile::Profile& profile) {
  const comm::Group world = comm.world();
  const int size = comm.world_size();
  constexpr std::size_t small = 16 << 10;
  constexpr std::size_t large = 8 << 20;
  std::vector<float> buffer(large / 4, 0.0f);
  std::vector<float> other(large / 4, 0.0f);
  const auto run = [&](const std::string& operation, std::size_t bytes) {
    const std::size_t count = bytes / 4;
    if (operation == "all_reduce") return world.all_reduce(buffer.data(), count, comm::DataType::f32).wait();
    if (operation == "reduce_scatter") return world.reduce_scatter(buffer.data(), other.data(), count / size, comm::DataType::f32).wait();
    if (operation == "all_gather") return world.all_gather(buffer.data(), other.data(), count / size, comm::DataType::f32).wait();
    // A pair at a time, as between pipeline stages.
    const int rank = comm.rank();
    const int peer = rank ^ 1;
    if (peer >= size) return;
    if (rank < peer)
      world.send(std::as_bytes(std::span(buffer.data(), count)), peer, 7).wait();
    else
      world.receive(std::as_writable_bytes(std::span(other.data(), count)), peer, 7).wait();
  };
  for (const char* operation : {"all_reduce", "reduce_scatter", "all_gather", "send"}) {
    const auto time_of = [&](std::size_t bytes) {
      std::vector<double> samples;
      for (int i = -1; i < 2 * kRepeats; ++i) {
        meter.together();
        const double slowest = meter.slowest(meter.once([&] { run(operation, bytes); }));
        if (i >= 0) samples.push_back(slowest);
      }
      return median_of(samples).middle;
    };
    const double at_small = time_of(small);
    const double at_large = time_of(large);
    const double bandwidth = static_cast<double>(large - small) / std::max(1e-9, at_large - at_small);
    const double latency = std::max(1e-7, at_small - static_cast<double>(small) / bandwidth);
    profile.communication.push_back({operation, link, size, Seconds(latency), BytesPerSecond(bandwidth)});
  }
}

// How much longer a block takes while a collective runs beside it.
double measure_overlap(const model::JobSpec& job, const Meter& meter, comm::Communicator& comm) {
  for (const auto& instance : job.model.blocks()) {
    if (instance.spec->inputs.empty() || instance.spec->outputs.front().name == "loss") continue;
    BoundBlock bound(instance, 1, job.train.precision);
    std::vector<std::int64_t> extents = {1};
    const auto& shape = instance.spec->inputs.front().shape;
    extents.insert(extents.end(), shape.begin(), shape.end());
    const nn::Tensors inputs = {random_tensor(extents, type_of(job.train.precision))};
    const nn::Batch batch = random_batch(1, job.model.dim("seq"), job.model.dim("vocab"));
    nn::Pass pass;
    pass.batch = &batch;
    pass.precision = job.train.precision;
    std::vector<float> buffer(8 << 20, 0.0f);
    const auto work = [&] {
      nn::Saved saved;
      bound.block->forward(inputs, saved, pass);
      bound.block->backward_input(inputs, saved, pass);
      bound.block->backward_weight(saved, pass);
    };
    work();
    std::vector<double> alone;
    for (int i = 0; i < kRepeats; ++i) {
      meter.together();
      alone.push_back(meter.slowest(meter.once(work)));
    }
    const double undisturbed = median_of(alone).middle;
    std::vector<double> slowdowns;
    for (int i = 0; i < kRepeats; ++i) {
      meter.together();
      const comm::Handle handle = comm.world().all_reduce(buffer.data(), buffer.size(), comm::DataType::f32);
      const double seconds = meter.once(work);
      const bool covered = !handle.done();
      handle.wait();
      // A collective that ended earlier slowed only a part of the work.
      const double share = covered ? 1.0 : std::clamp(handle.elapsed().value / seconds, 0.1, 1.0);
      slowdowns.push_back(meter.slowest(1 + (seconds / undisturbed - 1) / share));
    }
    return std::max(1.0, median_of(slowdowns).middle);
  }
  return 1.0;
}

}  // namespace

profile::Profile measure(const model::JobSpec& job, comm::Communicator& comm, const MeasureOptions& options) {
  profile::Profile profile;
  profile.model_fingerprint = job.model.fingerprint();
  profile.process_baseline = peak_resident();
  const Meter meter(comm, options.budget);
  measure_optimizer(job, meter, options.threads, comm.world_size(), profile);
  if (comm.world_size() > 1) {
    measure_collectives(meter, comm, options.link, profile);
    profile.overlap_slowdown = measure_overlap(job, meter, comm);
  }
  measure_blocks(job, meter, options.threads, comm.world_size(), profile);
  return profile;
}

}  // namespace tessera::train
