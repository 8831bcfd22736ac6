#include "train/measure.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <cmath>
#include <list>
#include <optional>
#include <set>

#include "base/clock.hpp"
#include "model/forms.hpp"
#include "nn/autograd.hpp"
#include "nn/optimizer.hpp"
#include "train/measure_communication.hpp"
#include "train/measure_links.hpp"
#include "train/timed_block.hpp"
#include "train/timed_rows.hpp"
#include "train/trainer.hpp"

namespace tessera::train {
namespace {

constexpr double kMostCopies = 8;
// A part of the positions that tells attention from the rest, and still fills what computes.
constexpr std::int64_t kShorter = 8;

// A block cut in one way, at one micro-batch, on this worker.
struct BlockCell {
  const model::BlockInstance* instance;
  profile::BlockSample shape;
  int passes = 0;  // that make a sample
  Samples forward{};
  Samples backward{};
  Samples weight_share{};
};

class Blocks {
 public:
  Blocks(const model::JobSpec& job, const Meter& meter, const Weights& weights, const MeasureOptions& options, int ranks, int workers)
      : job_(job), meter_(meter), weights_(weights), options_(options), workers_(workers), instances_(job.model.blocks()) {
    std::set<std::string> seen;
    for (const auto& block : instances_)
      if (seen.insert(block.spec->profile_key()).second) kinds_.push_back(&block);
    for (int degree : group_sizes(ranks)) tensor_degrees_.push_back(degree);
  }

  // The first says which micro-batches there is time for. Samples take less time or more where there are several of them, so that there are
  // 4 unless one sample takes the whole budget. Of images there are 16 too: a sample may be a single row to maps whose weights take most of
  // the time.
  void first_round() {
    const Seconds begin = real_clock().now();
    const std::int64_t in_any_case = model::reads_images(job_.model) ? 16 : 1;
    const std::int64_t most = job_.train.global_batch;
    for (std::int64_t micro_batch = 1, last = 0; micro_batch > last; last = micro_batch, micro_batch = std::min(4 * micro_batch, most)) {
      // This round takes up to twice as long as each of those that follow.
      const Seconds budget = micro_batch <= 4 ? options_.budget : options_.budget / 4;
      if (micro_batch > in_any_case && meter_.past(begin + budget)) return;
      for (int tensor_parallel : tensor_degrees_)
        for (const model::BlockInstance* block : kinds_) {
          if (!divides(job_.model, *block->spec, tensor_parallel)) continue;
          profile::BlockSample shape;
          shape.kind = block->spec->profile_key();
          shape.micro_batch_size = micro_batch;
          shape.tensor_parallel = tensor_parallel;
          shape.threads = options_.threads;
          shape.neighbours = workers_;
          shape.precision = job_.train.precision;
          cells_.push_back({block, shape});
          round(cells_.back());
          if (micro_batch > 1 || tensor_parallel > 1 || !timed_shorter(*block->spec)) continue;
          shape.positions = job_.model.dim("seq") / kShorter;
          cells_.push_back({block, shape});
          round(cells_.back());
        }
    }
  }
  void next_round() {
    for (BlockCell& cell : cells_) round(cell);
  }

  // The least embedding beside a large layer may scatter as it likes.
  bool settled() const {
    const bool here = std::all_of(cells_.begin(), cells_.end(), [&](const BlockCell& cell) {
      double scale = 0;
      for (const BlockCell& other : cells_)
        if (other.shape.micro_batch_size == cell.shape.micro_batch_size && other.shape.tensor_parallel == cell.shape.tensor_parallel)
          scale = std::max(scale, other.forward.median().median);
      return cell.forward.settled(scale) && cell.backward.settled(scale);
    });
    return meter_.all(here);
  }

  // Profile::speeds, where consecutive ranks share hosts, each with as many.
  std::vector<double> speeds() const {
    const std::vector<double> seconds = by_host(&profile::MeasuredValue::median);
    const std::vector<double> low = by_host(&profile::MeasuredValue::low), high = by_host(&profile::MeasuredValue::high);
    const auto [fastest, slowest] = std::minmax_element(seconds.begin(), seconds.end());
    // What may be chance would make a plan for hosts that there are not.
    const bool sure = low[static_cast<std::size_t>(slowest - seconds.begin())] > high[static_cast<std::size_t>(fastest - seconds.begin())];
    return sure ? speeds_of(seconds) : std::vector<double>();
  }

  // Of the worker that is slowest in all of them together. How they compare with each other, the rounds and the workers say in common: a
  // host that is slower for seconds is so in all blocks of a round, chance strikes one worker in one block, and the largest of several
  // medians lies above their middle, most in blocks that scatter most.
  std::vector<profile::BlockSample> samples() const {
    const std::vector<double> totals = of_workers(&profile::MeasuredValue::median);
    const Samples rounds = of_rounds();
    const double slowest = *std::max_element(totals.begin(), totals.end());
    const auto common = [&](double own) {
      std::vector<double> shares = meter_.of_all(own);
      for (std::size_t worker = 0; worker < shares.size(); ++worker) shares[worker] /= totals[worker];
      return Seconds(slowest * median_of(std::move(shares)));
    };
    std::vector<profile::BlockSample> out;
    for (const BlockCell& cell : cells_) {
      profile::BlockSample& sample = out.emplace_back(cell.shape);
      const profile::MeasuredValue forward = within(rounds, cell.forward).median(), backward = within(rounds, cell.backward).median();
      sample.forward = common(forward.median);
      sample.forward_low = common(forward.low);
      sample.forward_high = common(forward.high);
      sample.backward = common(backward.median);
      sample.backward_low = common(backward.low);
      sample.backward_high = common(backward.high);
      sample.weight_share = median_of(meter_.of_all(cell.weight_share.median().median));
    }
    return out;
  }

 private:
  // Of samples of different lengths two tell what of a layer grows with the square of a length.
  bool timed_shorter(const model::BlockSpec& block) const {
    return job_.data.lengths && job_.model.dim("seq") >= kLeastPositions * kShorter && may_be_cut_short(block);
  }

  // Seconds of all blocks together, by round.
  Samples of_rounds() const {
    Samples out;
    for (std::size_t round = 0; round < cells_.front().forward.count(); ++round) {
      double seconds = 0;
      for (const BlockCell& cell : cells_) seconds += cell.forward.at(round) + cell.backward.at(round);
      out.add(seconds);
    }
    return out;
  }

  // What `own` would be if all rounds had taken as long as the one in their middle.
  static Samples within(const Samples& rounds, const Samples& own) {
    const double middle = rounds.median().median;
    Samples out;
    for (std::size_t round = 0; round < rounds.count(); ++round) out.add(own.at(round) * middle / rounds.at(round));
    return out;
  }

  // Seconds of all blocks together, by worker.
  std::vector<double> of_workers(double profile::MeasuredValue::*figure) const {
    double own = 0;
    for (const BlockCell& cell : cells_) own += cell.forward.median().*figure + cell.backward.median().*figure;
    return meter_.of_all(own);
  }

  // The same of each host's slowest worker.
  std::vector<double> by_host(double profile::MeasuredValue::*figure) const {
    const std::vector<double> seconds = of_workers(figure);
    std::vector<double> out;
    for (std::size_t first = 0; first < seconds.size(); first += static_cast<std::size_t>(workers_))
      out.push_back(*std::max_element(seconds.begin() + static_cast<std::ptrdiff_t>(first),
                                      seconds.begin() + static_cast<std::ptrdiff_t>(first) + workers_));
    return out;
  }

  // How many copies of a block a step would find outside of the caches; no more than a step has, or as many weights of a block that it has
  // once.
  int copies_of(const BlockCell& cell) const {
    const model::BlockCost cost = model::cost_of(
        *cell.instance->spec, {cell.shape.micro_batch_size, cell.shape.tensor_parallel, job_.train.precision, model::Recompute::none});
    double bytes = static_cast<double>((cost.saved + cost.output).value);
    for (const auto& spec : cell.instance->spec->parameters)
      bytes += spec.sparse ? 0 : 8.0 * static_cast<double>(spec.shard_count(cell.shape.tensor_parallel));
    return static_cast<int>(std::clamp(std::ceil(kBeyondCaches / bytes), 1.0, kMostCopies));
  }

  // Blocks that a model has several times are passed one after the other, forward and then back, as in a step; others alone, each time
  // with other weights.
  void round(BlockCell& cell) {
    const int copies = copies_of(cell);
    const int in_a_row = std::min(copies, count_of(cell.shape.kind));
    std::list<TimedBlock> blocks;
    for (int copy = 0; copy < copies; ++copy)
      blocks.emplace_back(job_, *cell.instance, cell.shape.micro_batch_size, cell.shape.tensor_parallel, weights_, copy,
                          cell.shape.positions);
    double forward = 0;
    double backward = 0;
    double weights = 0;  // of backward
    int passed = 0;
    const auto pass = [&] {
      for (auto first = blocks.begin(); first != blocks.end();) {
        const auto last = std::next(first, std::min<std::ptrdiff_t>(in_a_row, std::distance(first, blocks.end())));
        const double begin = real_clock().now().value;
        for (auto block = first; block != last; ++block) block->forward();
        const double middle = real_clock().now().value;
        for (auto block = last; block != first;) {
          (--block)->backward_input();
          const double halfway = real_clock().now().value;
          block->backward_weight();
          weights += real_clock().now().value - halfway;
        }
        forward += middle - begin;
        backward += real_clock().now().value - middle;
        first = last;
      }
      passed += copies;
    };
    if (cell.passes == 0) {
      pass();  // pays for page faults and kernel choice
      forward = backward = 0;
      pass();
      cell.passes = meter_.repeats(forward + backward);
    } else {
      meter_.warm(pass);
    }
    forward = backward = weights = 0;
    passed = 0;
    for (int i = 0; i < cell.passes; ++i) pass();
    cell.forward.add(forward / passed);
    cell.backward.add(backward / passed);
    cell.weight_share.add(weights / backward);
  }

  int count_of(const std::string& kind) const {
    int count = 0;
    for (const model::Repeat& repeat : job_.model.repeats)
      if (repeat.block.profile_key() == kind) count += repeat.count;
    return count;
  }

  const model::JobSpec& job_;
  const Meter& meter_;
  const Weights& weights_;
  const MeasureOptions& options_;
  const int workers_;
  const std::vector<model::BlockInstance> instances_;
  std::vector<const model::BlockInstance*> kinds_;
  std::vector<int> tensor_degrees_ = {1};
  std::vector<BlockCell> cells_;
};

class OptimizerStep {
 public:
  OptimizerStep(const model::JobSpec& job, const Meter& meter)
      : job_(job),
        meter_(meter),
        adamw_(job.train.optimizer.kind == model::OptimizerKind::adamw),
        count_(std::min<std::int64_t>(4 << 20, std::max<std::int64_t>(1 << 16, job.model.parameter_count()))) {
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(3);
    master_ = random_tensor({count_}, at::kFloat, random);
    grad_ = random_tensor({count_}, at::kFloat, random);
    first_ = at::zeros({count_}, at::kFloat);
    second_ = at::zeros({count_}, at::kFloat);
    if (job.train.precision != model::Precision::f32) compute_ = at::zeros({count_}, at::kBFloat16);
  }

  void round() {
    if (steps_ == 0) {
      step();  // pays for page faults
      steps_ = meter_.repeats(meter_.time([&] { step(); }));
    }
    meter_.warm([&] { step(); });
    const double seconds = meter_.time([&] {
      for (int i = 0; i < steps_; ++i) step();
    });
    samples_.add(seconds / (steps_ * static_cast<double>(count_)));
  }
  bool settled() const { return samples_.settled(); }

  profile::OptimizerSample sample(int threads, int workers) const {
    return {adamw_ ? "adamw" : "sgd", threads, workers, job_.train.precision, samples_.median()};
  }

 private:
  void step() {
    // A step also clears the gradients and sums their squares.
    grad_.zero_();
    nn::squared_norm(grad_);
    if (adamw_)
      nn::adamw_step(master_, grad_, first_, second_, compute_, {1e-4, 0.9, 0.95, 1e-8, 0.1, 1, 1.0});
    else
      nn::sgd_step(master_, grad_, first_, compute_, {1e-4, job_.train.optimizer.momentum, 0.1, false, 1.0});
  }

  const model::JobSpec& job_;
  const Meter& meter_;
  const bool adamw_;
  const std::int64_t count_;
  at::Tensor master_, grad_, first_, second_, compute_;
  int steps_ = 0;
  Samples samples_;
};

}  // namespace

profile::Profile measure(const model::JobSpec& job, comm::Communicator& comm, const MeasureOptions& options) {
  const nn::WithoutAutograd plain;  // as in training
  profile::Profile profile;
  profile.model_fingerprint = job.model.fingerprint();
  profile.process_baseline = peak_resident();
  const Meter meter(comm, options.sample);
  const int workers = options.per_host > 0 ? options.per_host : comm.world_size();
  const Weights weights(job);
  profile.communication = measure_links(meter, comm, options.link, first_ranks(comm.world_size(), workers));
  if (comm.world_size() > 1) {
    const auto collectives = measure_communication(job, meter, comm, weights, options, profile);
    profile.communication.insert(profile.communication.end(), collectives.begin(), collectives.end());
  }
  for (const profile::CommSample& sample : profile.communication)
    profile.overlap_slowdown = std::max(profile.overlap_slowdown, sample.slows.median);
  OptimizerStep optimizer(job, meter);
  std::optional<TimedRows> rows;
  if (model::reads_clicks(job.model)) rows.emplace(job, meter, comm.world_size());
  Blocks blocks(job, meter, weights, options, comm.world_size(), workers);
  meter.rounds(
      options.budget,
      [&](int round) {
        optimizer.round();
        if (rows) rows->round();
        if (round == 0)
          blocks.first_round();
        else
          blocks.next_round();
      },
      [&] { return optimizer.settled() && blocks.settled() && (!rows || rows->settled()); });
  profile.optimizers.push_back(optimizer.sample(options.threads, workers));
  profile.blocks = blocks.samples();
  if (rows) profile.rows = rows->samples();
  profile.speeds = blocks.speeds();
  return profile;
}

}  // namespace tessera::train
