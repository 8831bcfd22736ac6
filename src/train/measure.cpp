#include "train/measure.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <cmath>
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

// With five samples the interval from the smallest to the largest covers the median with 94 %.
profile::Measured median_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples.front(), samples.back()};
}

at::ScalarType type_of(model::Precision precision) { return precision == model::Precision::f32 ? at::kFloat : at::kBFloat16; }

// Times pieces of work on all workers at once.
class Meter {
 public:
  Meter(comm::Communicator& comm, Seconds sample) : comm_(comm), sample_(sample.value) {}

  // How often to repeat what takes `seconds`, so that a sample lasts long enough. Equal on all workers.
  int repeats(double seconds) const { return static_cast<int>(slowest(std::clamp(std::ceil(sample_ / seconds), 1.0, 256.0))); }

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
  profile::Measured slowest(profile::Measured measured) const {
    double values[] = {measured.median, measured.low, measured.high};
    comm_.world().all_reduce(values, 3, comm::DataType::f64, comm::Reduction::max).wait();
    return {values[0], values[1], values[2]};
  }
  // Equal on all workers.
  bool past(double deadline) const { return slowest(real_clock().now().value - deadline) > 0; }
  void together() const { comm_.world().barrier().wait(); }

 private:
  comm::Communicator& comm_;
  double sample_;
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
      parameters.push_back(
          {&spec, instance.parameter_name(spec), compute.narrow(0, offset, count).view(shape), grads.narrow(0, offset, count).view(shape)});
      offset += count;
    }
    if (precision != model::Precision::f32) compute.copy_(values);
    block->bind(std::move(parameters));
  }
};

profile::BlockSample measure_block(const Meter& meter, const model::BlockInstance& instance, const profile::BlockSample& shape,
                                   std::int64_t seq, std::int64_t vocab) {
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
  double forward = 0;
  double backward = 0;
  const auto pass_once = [&] {
    nn::Saved saved;
    nn::Tensors outputs;
    forward += meter.once([&] { outputs = bound.block->forward(inputs, saved, pass); });
    backward += meter.once([&] {
      bound.block->backward_input(output_grads, saved, pass);
      bound.block->backward_weight(saved, pass);
    });
  };
  pass_once();  // the first pays for page faults and kernel choice
  forward = backward = 0;
  pass_once();
  // Without a rest between them, as in training: who has waited may compute ahead of its share of a core for a moment.
  const int passes = meter.repeats(forward + backward);
  std::vector<double> forwards;
  std::vector<double> backwards;
  meter.together();
  for (int i = -1; i < kRepeats; ++i) {
    forward = backward = 0;
    for (int k = 0; k < passes; ++k) pass_once();
    if (i < 0) continue;
    forwards.push_back(forward / passes);
    backwards.push_back(backward / passes);
  }
  profile::BlockSample sample = shape;
  const profile::Measured of_forward = meter.slowest(median_of(forwards));
  const profile::Measured of_backward = meter.slowest(median_of(backwards));
  sample.forward = Seconds(of_forward.median);
  sample.forward_low = Seconds(of_forward.low);
  sample.forward_high = Seconds(of_forward.high);
  sample.backward = Seconds(of_backward.median);
  sample.backward_low = Seconds(of_backward.low);
  sample.backward_high = Seconds(of_backward.high);
  return sample;
}

bool divides(const model::ModelSpec& model, int tensor_parallel) {
  for (const char* key : {"heads", "kv_heads", "ffn", "vocab"})
    if (model.dim(key) % tensor_parallel != 0) return false;
  return true;
}

// What a group of ranks may be among so many.
std::vector<int> group_sizes(int ranks) {
  std::vector<int> out;
  for (int size = 2; size <= ranks; ++size)
    if (ranks % size == 0) out.push_back(size);
  return out;
}

void measure_blocks(const model::JobSpec& job, const Meter& meter, const MeasureOptions& options, int all, int workers,
                    profile::Profile& profile) {
  std::vector<model::BlockInstance> kinds;
  std::set<std::string> seen;
  const auto blocks = job.model.blocks();
  for (const auto& block : blocks)
    if (seen.insert(block.spec->kind).second) kinds.push_back(block);
  std::vector<int> tensor_degrees = {1};
  for (int degree : group_sizes(all))
    if (divides(job.model, degree)) tensor_degrees.push_back(degree);
  const double deadline = real_clock().now().value + options.budget.value;
  for (std::int64_t micro_batch = 1; micro_batch <= job.train.global_batch; micro_batch *= 2)
    for (int tensor_parallel : tensor_degrees) {
      if (micro_batch > 1 && meter.past(deadline)) return;
      for (const auto& block : kinds) {
        profile::BlockSample shape;
        shape.kind = block.spec->kind;
        shape.micro_batch = micro_batch;
        shape.tensor_parallel = tensor_parallel;
        shape.threads = options.threads;
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
  at::Tensor grad = random_tensor({count}, at::kFloat);
  at::Tensor first = at::zeros({count}, at::kFloat);
  at::Tensor second = at::zeros({count}, at::kFloat);
  at::Tensor compute = job.train.precision == model::Precision::f32 ? at::Tensor() : at::zeros({count}, at::kBFloat16);
  const auto step = [&] {
    // A step also clears the gradients and sums their squares.
    grad.zero_();
    nn::squared_norm(grad);
    if (adamw)
      nn::adamw_step(master, grad, first, second, compute, {1e-4, 0.9, 0.95, 1e-8, 0.1, 1, 1.0});
    else
      nn::sgd_step(master, grad, first, compute, {1e-4, 0.9, 0.1, false, 1.0});
  };
  step();
  const int steps = meter.repeats(meter.once(step));
  std::vector<double> samples;
  meter.together();
  for (int i = 0; i < kRepeats; ++i)
    samples.push_back(meter.once([&] {
      for (int k = 0; k < steps; ++k) step();
    }) / steps);
  const profile::Measured all = meter.slowest(median_of(samples));
  const auto each = static_cast<double>(count);
  profile.optimizers.push_back(
      {adamw ? "adamw" : "sgd", threads, workers, job.train.precision, {all.median / each, all.low / each, all.high / each}});
}

// A block's passes, to compute with beside communication.
class Work {
 public:
  Work(const model::JobSpec& job, const model::BlockInstance& instance, std::int64_t micro_batch = 1, int tensor_parallel = 1)
      : bound_(instance, tensor_parallel, job.train.precision) {
    std::vector<std::int64_t> extents = {micro_batch};
    const auto& shape = instance.spec->inputs.front().shape;
    extents.insert(extents.end(), shape.begin(), shape.end());
    inputs_ = {random_tensor(extents, type_of(job.train.precision))};
    batch_ = random_batch(micro_batch, job.model.dim("seq"), job.model.dim("vocab"));
    pass_.batch = &batch_;
    pass_.precision = job.train.precision;
  }
  // With the exchanges of a block that is cut over a group, where there is one.
  void run(int times, const comm::Group& group = {}) {
    pass_.tensor_group = group;
    for (int i = 0; i < times; ++i) {
      nn::Saved saved;
      bound_.block->forward(inputs_, saved, pass_);
      bound_.block->backward_input(inputs_, saved, pass_);
      bound_.block->backward_weight(saved, pass_);
    }
  }

 private:
  BoundBlock bound_;
  nn::Tensors inputs_;
  nn::Batch batch_;
  nn::Pass pass_;
};

// The collectives of neighbouring ranks in groups of one size, all groups at once.
class Exchange {
 public:
  Exchange(comm::Communicator& comm, int size) : size_(size), buffer_(kLargest / 4, 0.0f), other_(kLargest / 4, 0.0f) {
    std::vector<int> ranks;
    for (int i = 0; i < size; ++i) ranks.push_back(comm.rank() / size * size + i);
    group_ = comm.group(ranks, text("measure.", size));
    rank_ = comm.rank() % size;
  }

  // `back`: a message goes the other way.
  comm::Handle start(const std::string& operation, std::size_t bytes, bool back = false) {
    const std::size_t count = bytes / 4;
    if (operation == "all_reduce") return group_.all_reduce(buffer_.data(), count, comm::DataType::f32);
    if (operation == "reduce_scatter") return group_.reduce_scatter(buffer_.data(), other_.data(), count / size_, comm::DataType::f32);
    if (operation == "all_gather") return group_.all_gather(buffer_.data(), other_.data(), count / size_, comm::DataType::f32);
    // Between pairs, as between pipeline stages.
    if ((rank_ % 2 == 0) != back) return group_.send(std::as_bytes(std::span(buffer_.data(), count)), rank_ ^ 1, 7);
    return group_.receive(std::as_writable_bytes(std::span(other_.data(), count)), rank_ ^ 1, 7);
  }

  const comm::Group& group() const { return group_; }

  static constexpr std::size_t kLargest = 8 << 20;

 private:
  int size_;
  int rank_ = 0;
  comm::Group group_;
  std::vector<float> buffer_;
  std::vector<float> other_;
};

// A line through the smallest and the largest: latency + bytes / bandwidth.
void fit(profile::CommSample& sample) {
  const profile::CommPoint& small = sample.points.front();
  const profile::CommPoint& large = sample.points.back();
  const double bandwidth =
      static_cast<double>((large.size - small.size).value) / std::max(1e-9, large.seconds.median - small.seconds.median);
  sample.bandwidth = BytesPerSecond(bandwidth);
  sample.latency = Seconds(std::max(1e-7, small.seconds.median - static_cast<double>(small.size.value) / bandwidth));
}

// What a message adds where it goes to a rank that waits for it, computes and answers, as in a pipeline. `unit`: about the seconds
// of one turn of computing.
profile::CommPoint message_in_turn(const Meter& meter, comm::Communicator& comm, Work& work, double unit, Exchange& exchange,
                                   const profile::CommPoint& alone) {
  const int turns = std::clamp(meter.repeats(unit + alone.seconds.median), 4, 32);
  std::vector<double> samples;
  for (int i = -1; i < kRepeats; ++i) {
    meter.together();
    const double undisturbed = meter.slowest(meter.once([&] { work.run(turns); }));
    meter.together();
    const double seconds = meter.slowest(meter.once([&] {
      for (int turn = 0; turn < turns; ++turn) {
        if (turn % 2 == comm.rank() % 2) work.run(1);
        exchange.start("send", static_cast<std::size_t>(alone.size.value), turn % 2 != 0).wait();
      }
    }));
    if (i >= 0) samples.push_back(std::max(1e-6, (seconds - undisturbed) / turns));
  }
  return {alone.size, meter.slowest(median_of(samples))};
}

// What each exchange adds to a layer that is cut over `group`, by micro-batch.
std::vector<profile::CommPoint> all_reduces_in_turn(const model::JobSpec& job, const Meter& meter, const comm::Group& group, int size,
                                                    const model::BlockInstance& layer) {
  std::vector<profile::CommPoint> out;
  for (std::int64_t micro_batch = 1; micro_batch <= job.train.global_batch; micro_batch *= 2) {
    const model::BlockCost cost = model::cost_of(*layer.spec, {micro_batch, size, job.train.precision, model::Recompute::none});
    const int exchanges = cost.forward_all_reduces + cost.backward_all_reduces;
    if (exchanges == 0) continue;
    Work work(job, layer, micro_batch, size);
    work.run(1);
    const int turns = meter.repeats(meter.once([&] { work.run(1); }));
    std::vector<double> samples;
    for (int i = -1; i < kRepeats; ++i) {
      meter.together();
      const double undisturbed = meter.slowest(meter.once([&] { work.run(turns); }));
      meter.together();
      const double seconds = meter.slowest(meter.once([&] { work.run(turns, group); }));
      if (i >= 0) samples.push_back(std::max(1e-6, (seconds - undisturbed) / (turns * exchanges)));
    }
    out.push_back({cost.all_reduce_size, meter.slowest(median_of(samples))});
  }
  return out;
}

// How computing and this communication slow each other down. The computing lasts longer, so that it covers all of it.
void measure_overlap(const Meter& meter, Work& work, double unit, Exchange& exchange, profile::CommSample& sample) {
  constexpr double kLongest = 0.3;
  profile::CommPoint point = sample.points.front();
  for (const profile::CommPoint& candidate : sample.points)
    if (candidate.seconds.median <= kLongest) point = candidate;
  const double alone = point.seconds.median;
  const int times = static_cast<int>(std::ceil(1.5 * std::max(alone, 0.02) / unit)) + 1;
  std::vector<double> slows;
  std::vector<double> slowed;
  for (int i = -1; i < kRepeats; ++i) {
    meter.together();
    const double undisturbed = meter.slowest(meter.once([&] { work.run(times); }));
    meter.together();
    const comm::Handle handle = exchange.start(sample.operation, static_cast<std::size_t>(point.size.value));
    const double seconds = meter.slowest(meter.once([&] { work.run(times); }));
    handle.wait();
    const double beside = std::min(seconds, meter.slowest(handle.elapsed().value));
    if (i < 0) continue;
    // During `beside` seconds computing got on by `beside` - (seconds - undisturbed).
    slows.push_back(beside / std::max(0.1 * beside, beside - std::max(0.0, seconds - undisturbed)));
    slowed.push_back(std::max(1.0, beside / alone));
  }
  sample.slows = meter.slowest(median_of(slows));
  sample.slowed = meter.slowest(median_of(slowed));
}

constexpr std::size_t kLeastActivations = 128 << 10;
constexpr std::size_t kMostActivations = 1 << 20;

void measure_communication(const model::JobSpec& job, const Meter& meter, comm::Communicator& comm, const std::string& link,
                           profile::Profile& profile) {
  const auto blocks = job.model.blocks();
  const auto layer = std::find_if(blocks.begin(), blocks.end(), [](const model::BlockInstance& block) {
    return !block.spec->inputs.empty() && block.spec->outputs.front().name != "loss";
  });
  const model::BlockInstance& instance = layer == blocks.end() ? blocks.back() : *layer;
  Work work(job, instance);
  work.run(1);
  const double unit = meter.slowest(meter.once([&] { work.run(4); })) / 4;
  for (const int size : group_sizes(comm.world_size())) {
    Exchange exchange(comm, size);
    for (const char* operation : {"all_reduce", "reduce_scatter", "all_gather", "send"}) {
      // A message concerns two ranks; of an odd number one would have no partner.
      if (operation == std::string("send") && size != 2) continue;
      profile::CommSample sample{operation, link, size, {}, {}};
      for (const std::size_t bytes : {std::size_t{16} << 10, std::size_t{128} << 10, std::size_t{1} << 20, Exchange::kLargest}) {
        std::vector<double> samples;
        for (int i = -1; i < kRepeats; ++i) {
          meter.together();
          const double slowest = meter.slowest(meter.once([&] { exchange.start(operation, bytes).wait(); }));
          if (i >= 0) samples.push_back(slowest);
        }
        sample.points.push_back({Bytes(static_cast<std::int64_t>(bytes)), median_of(samples)});
        // Of the sizes that activations have.
        if (operation == std::string("send") && bytes >= kLeastActivations && bytes <= kMostActivations)
          sample.in_turn.push_back(message_in_turn(meter, comm, work, unit, exchange, sample.points.back()));
      }
      if (operation == std::string("all_reduce") && divides(job.model, size))
        sample.in_turn = all_reduces_in_turn(job, meter, exchange.group(), size, instance);
      fit(sample);
      measure_overlap(meter, work, unit, exchange, sample);
      profile.overlap_slowdown = std::max(profile.overlap_slowdown, sample.slows.median);
      profile.communication.push_back(std::move(sample));
    }
  }
}

}  // namespace

profile::Profile measure(const model::JobSpec& job, comm::Communicator& comm, const MeasureOptions& options) {
  profile::Profile profile;
  profile.model_fingerprint = job.model.fingerprint();
  profile.process_baseline = peak_resident();
  const Meter meter(comm, options.sample);
  const int workers = options.per_host > 0 ? options.per_host : comm.world_size();
  measure_optimizer(job, meter, options.threads, workers, profile);
  if (comm.world_size() > 1) measure_communication(job, meter, comm, options.link, profile);
  measure_blocks(job, meter, options, comm.world_size(), workers, profile);
  return profile;
}

}  // namespace tessera::train
