#include "train/measure_communication.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <list>
#include <optional>
#include <span>

#include "base/clock.hpp"
#include "model/forms.hpp"
#include "plan/tensor_cut.hpp"
#include "profile/host_links.hpp"

namespace tessera::train {
namespace {

constexpr std::size_t kSizes[] = {16 << 10, 128 << 10, 1 << 20, 8 << 20};
// The sizes that activations have.
constexpr std::size_t kLeastActivations = 128 << 10;
constexpr std::size_t kMostActivations = 1 << 20;

// What is exchanged, one exchange at a time.
struct Buffers {
  std::vector<float> own = std::vector<float>(kSizes[3] / 4);
  std::vector<float> other = std::vector<float>(kSizes[3] / 4);
};

// The collectives of neighbouring ranks in groups of one size, all groups at once.
class Exchange {
 public:
  // `seconds`: of a hop between two ranks.
  Exchange(comm::Communicator& comm, int size, Buffers& buffers, const std::function<double(int, int)>& seconds)
      : size_(size), buffers_(buffers) {
    const int first = comm.rank() / size * size;
    std::vector<int> ranks;
    for (const int i : profile::shortest_ring(size, [&](int a, int b) { return seconds(first + a, first + b); }))
      ranks.push_back(first + i);
    group_ = comm.group(ranks, text("measure.", size));
    rank_ = group_.rank();
  }

  // `back`: a message goes the other way.
  comm::Handle start(const std::string& operation, std::size_t bytes, bool back = false) {
    const std::size_t count = bytes / 4;
    if (operation == "all_reduce") return group_.all_reduce(buffers_.own.data(), count, comm::DataType::f32);
    if (operation == "reduce_scatter")
      return group_.reduce_scatter(buffers_.own.data(), buffers_.other.data(), count / size_, comm::DataType::f32);
    if (operation == "all_gather") return group_.all_gather(buffers_.own.data(), buffers_.other.data(), count / size_, comm::DataType::f32);
    // Between pairs, as between pipeline stages.
    if ((rank_ % 2 == 0) != back) return group_.send(std::as_bytes(std::span(buffers_.own.data(), count)), rank_ ^ 1, 7);
    return group_.receive(std::as_writable_bytes(std::span(buffers_.other.data(), count)), rank_ ^ 1, 7);
  }

  const comm::Group& group() const { return group_; }
  int size() const { return size_; }

 private:
  int size_;
  int rank_ = 0;
  comm::Group group_;
  Buffers& buffers_;
};

// One size of one operation.
struct Point {
  Bytes size;
  Samples samples{};

  profile::CommPoint median() const { return {size, samples.median()}; }
};

// What alternates with computing.
struct Turns {
  Bytes size;
  std::int64_t micro_batch = 1;  // of the computing
  int exchanges = 1;             // in one turn
  int turns = 0;                 // that make a sample
  double computing = 0;          // seconds for each exchange
  Samples samples{};

  bool settled() const { return samples.settled(computing); }
};

// The layer that computes beside communication.
struct Layer {
  // A pass of as many positions of one sample as take about as long as a sample of `meter`, or of all.
  Layer(const model::JobSpec& of_job, const model::BlockInstance& of_instance, const Weights& of_weights, const Meter& meter)
      : job(of_job), instance(of_instance), weights(of_weights) {
    std::int64_t positions = may_be_cut_short(*instance.spec) ? job.model.dim("seq") : 0;
    for (;; positions /= 2) {
      block.emplace(job, instance, 1, 1, weights, 0, positions);
      passes(1);
      seconds = meter.time([&] { passes(1); });
      if (positions < 2 * kLeastPositions || seconds <= 2 * meter.sample()) break;
    }
    seconds = meter.time([&] { passes(4); }) / 4;
  }
  void passes(int times) { block->passes(times); }

  const model::JobSpec& job;
  const model::BlockInstance& instance;
  const Weights& weights;
  std::optional<TimedBlock> block;  // made anew for fewer positions
  double seconds = 0;               // of a pass
};

class Operation {
 public:
  Operation(const std::string& name, Exchange& exchange, const Layer& layer, const std::string& link) : name_(name), exchange_(exchange) {
    sample_.operation = name;
    sample_.link = link;
    sample_.ranks = exchange.size();
    for (const std::size_t bytes : kSizes) {
      const Bytes size(static_cast<std::int64_t>(bytes));
      points_.push_back({size, {}});
      if (name == "send" && bytes >= kLeastActivations && bytes <= kMostActivations) turns_.push_back({size});
    }
    if (name == "all_reduce" && divides(layer.job.model, *layer.instance.spec, exchange.size())) add_layers(layer);
  }

  // What computes with more than one sample, and has not been measured until `last`, is left out.
  void round(const Meter& meter, const comm::Communicator& comm, Layer& layer, Seconds last) {
    for (Point& point : points_) {
      const auto exchange = [&] { exchange_.start(name_, static_cast<std::size_t>(point.size.value)).wait(); };
      if (point.samples.empty()) meter.time(exchange);  // connects
      point.samples.add(meter.time(exchange));
    }
    for (auto turns = turns_.begin(); turns != turns_.end(); ++turns) {
      if (turns->samples.empty() && turns->micro_batch > 1 && meter.past(last)) {
        turns_.erase(turns, turns_.end());
        break;
      }
      name_ == "send" ? messages_in_turn(meter, comm, layer, *turns) : layers_in_turn(meter, layer, *turns);
    }
  }

  bool settled(double computing) const {
    return std::all_of(points_.begin(), points_.end(), [&](const Point& point) { return point.samples.settled(computing); }) &&
           std::all_of(turns_.begin(), turns_.end(), [](const Turns& turns) { return turns.settled(); });
  }

  // How computing and this communication slow each other down: exchanges wait for each other, as those of a step do, and last as long as
  // a sample, as who has a share of a core is stopped for a part of each tenth of a second. The computing lasts longer, so that it covers
  // all of them; half of it alone before and half of it after is what it is held against. After the rounds.
  void overlap_round(const Meter& meter, Layer& layer) {
    constexpr double kLongest = 0.3;
    profile::CommPoint point = points_.front().median();
    for (const Point& candidate : points_)
      if (candidate.samples.median().median <= kLongest) point = candidate.median();
    const int exchanges = meter.repeats(point.seconds.median);
    const double alone = exchanges * point.seconds.median;
    const int times = 2 * (static_cast<int>(std::ceil(0.75 * alone / layer.seconds)) + 1);
    const auto half = [&] { layer.passes(times / 2); };
    meter.warm([&] { layer.passes(1); });
    const double before = meter.time(half);
    comm::Handle last;
    const double seconds = meter.time([&] {
      for (int i = 0; i < exchanges; ++i) last = exchange_.start(name_, static_cast<std::size_t>(point.size.value));
      layer.passes(times);
    });
    last.wait();
    const double undisturbed = before + meter.time(half);
    const double beside = std::min(seconds, meter.slowest(last.elapsed().value));
    // During `beside` seconds computing got on by `beside` - (seconds - undisturbed).
    slows_.add(beside / std::max(0.1 * beside, beside - std::max(0.0, seconds - undisturbed)));
    slowed_.add(std::max(1.0, beside / alone));
  }
  bool overlap_settled() const { return slows_.settled() && slowed_.settled(); }

  profile::CommSample sample() const {
    profile::CommSample out = sample_;
    for (const Point& point : points_) out.points.push_back(point.median());
    for (const Turns& turns : turns_) out.in_turn.push_back({turns.size, turns.samples.median()});
    // A line through the smallest and the largest: latency + bytes / bandwidth.
    const profile::CommPoint& small = out.points.front();
    const profile::CommPoint& large = out.points.back();
    const double bandwidth =
        static_cast<double>((large.size - small.size).value) / std::max(1e-9, large.seconds.median - small.seconds.median);
    out.bandwidth = BytesPerSecond(bandwidth);
    out.latency = Seconds(std::max(1e-7, small.seconds.median - static_cast<double>(small.size.value) / bandwidth));
    out.slows = slows_.median();
    out.slowed = slowed_.median();
    return out;
  }

 private:
  // A layer that is cut over the group, by micro-batch.
  void add_layers(const Layer& layer) {
    for (std::int64_t micro_batch = 1; micro_batch <= layer.job.train.global_batch; micro_batch *= 2) {
      const model::BlockCost cost =
          model::cost_of(*layer.instance.spec, {micro_batch, exchange_.size(), layer.job.train.precision, model::Recompute::none});
      const int exchanges = cost.forward_all_reduces + cost.backward_all_reduces;
      if (exchanges > 0) turns_.push_back({cost.all_reduce_size, micro_batch, exchanges});
    }
  }

  // What a message adds where it goes to a rank that waits for it, computes and answers, as in a pipeline.
  void messages_in_turn(const Meter& meter, const comm::Communicator& comm, Layer& layer, Turns& turns) {
    if (turns.turns == 0) {
      const auto alone = std::find_if(points_.begin(), points_.end(), [&](const Point& point) { return point.size == turns.size; });
      turns.turns = std::clamp(meter.repeats(layer.seconds + alone->samples.median().median), 4, 32);
    }
    meter.warm([&] { layer.passes(1); });
    const double undisturbed = meter.time([&] { layer.passes(turns.turns); });
    const double seconds = meter.time([&] {
      for (int turn = 0; turn < turns.turns; ++turn) {
        if (turn % 2 == comm.rank() % 2) layer.passes(1);
        exchange_.start("send", static_cast<std::size_t>(turns.size.value), turn % 2 != 0).wait();
      }
    });
    add(turns, undisturbed, seconds);
  }

  // What each exchange adds to a layer that is cut over the group.
  void layers_in_turn(const Meter& meter, const Layer& layer, Turns& turns) {
    TimedBlock block(layer.job, layer.instance, turns.micro_batch, exchange_.size(), layer.weights);
    meter.warm([&] { block.passes(1); });
    if (turns.turns == 0) turns.turns = meter.repeats(meter.time([&] { block.passes(1); }));
    const double undisturbed = meter.time([&] { block.passes(turns.turns); });
    const double seconds = meter.time([&] { block.passes(turns.turns, exchange_.group()); });
    add(turns, undisturbed, seconds);
  }

  static void add(Turns& turns, double undisturbed, double seconds) {
    const double count = static_cast<double>(turns.turns) * turns.exchanges;
    turns.computing = undisturbed / count;
    turns.samples.add(std::max(1e-6, (seconds - undisturbed) / count));
  }

  std::string name_;
  Exchange& exchange_;
  profile::CommSample sample_;
  std::vector<Point> points_;
  std::vector<Turns> turns_;
  Samples slows_;
  Samples slowed_;
};

const model::BlockInstance& first_layer(const std::vector<model::BlockInstance>& blocks) {
  const auto layer = std::find_if(blocks.begin(), blocks.end(), [](const model::BlockInstance& block) {
    return !block.spec->inputs.empty() && block.spec->outputs.front().name != "loss";
  });
  return layer == blocks.end() ? blocks.back() : *layer;
}

}  // namespace

std::vector<int> group_sizes(int ranks) {
  std::vector<int> out;
  for (int size = 2; size <= ranks; ++size)
    if (ranks % size == 0) out.push_back(size);
  return out;
}

bool divides(const model::ModelSpec& model, const model::BlockSpec& block, int tensor_parallel) {
  if (tensor_parallel == 1) return true;
  return model::cut_by_nn(block) && std::none_of(model.repeats.begin(), model.repeats.end(), [&](const model::Repeat& repeat) {
           return model::cut_by_nn(repeat.block) && plan::tensor_fault(model, repeat.block, tensor_parallel);
         });
}

std::vector<profile::CommSample> measure_communication(const model::JobSpec& job, const Meter& meter, comm::Communicator& comm,
                                                       const Weights& weights, const MeasureOptions& options,
                                                       const profile::Profile& links) {
  const auto blocks = job.model.blocks();
  const model::BlockInstance& instance = first_layer(blocks);
  Layer layer(job, instance, weights, meter);
  const int per_host = options.per_host > 0 ? options.per_host : comm.world_size();
  const auto pairs = profile::HostLinks::of(links, options.link, comm.world_size() / per_host);
  const auto hop = [&](int a, int b) { return pairs ? pairs->seconds(a / per_host, b / per_host, profile::kRingPiece) : 0; };
  Buffers buffers;
  std::list<Exchange> exchanges;
  std::vector<Operation> operations;
  for (const int size : group_sizes(comm.world_size())) {
    Exchange& exchange = exchanges.emplace_back(comm, size, buffers, hop);
    for (const char* name : {"all_reduce", "reduce_scatter", "all_gather", "send"})
      // A message concerns two ranks; of an odd number one would have no partner.
      if (name != std::string("send") || size == 2) operations.emplace_back(name, exchange, layer, options.link);
  }
  const Seconds begin = real_clock().now();
  const auto all = [&](const auto& holds) { return std::all_of(operations.begin(), operations.end(), holds); };
  meter.rounds(
      options.budget,
      [&](int) {
        for (Operation& operation : operations) operation.round(meter, comm, layer, begin + options.budget / 4);
      },
      [&] { return all([&](const Operation& operation) { return operation.settled(layer.seconds); }); });
  meter.rounds(
      options.budget / 2,
      [&](int) {
        for (Operation& operation : operations) operation.overlap_round(meter, layer);
      },
      [&] { return all([](const Operation& operation) { return operation.overlap_settled(); }); });
  std::vector<profile::CommSample> out;
  for (const Operation& operation : operations) out.push_back(operation.sample());
  return out;
}

}  // namespace tessera::train
