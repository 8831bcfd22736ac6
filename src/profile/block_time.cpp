#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "profile/roofline.hpp"

namespace tessera::profile {
namespace {

// Everything of a sample but its micro-batch.
struct Shape {
  int tensor_parallel = 1;
  int threads = 1;
  int neighbours = 1;
  auto key() const { return std::tie(tensor_parallel, threads, neighbours); }
  bool operator==(const Shape&) const = default;
};

Shape shape_of(const BlockSample& sample) { return {sample.tensor_parallel, sample.threads, sample.neighbours}; }

// How far a measurement is from what is asked: how the worker is built matters more than how the block is cut.
double distance(const Shape& a, const Shape& b) {
  const auto factor = [](int x, int y) { return std::abs(std::log2(static_cast<double>(x) / y)); };
  return 4 * factor(a.threads, b.threads) + 2 * factor(a.neighbours, b.neighbours) + factor(a.tensor_parallel, b.tensor_parallel);
}

// What is surely the same for all micro-batches, of the times `a` of `n` samples and `b` of more. Chance in two short measurements would
// otherwise be several times as large in what a long micro-batch is said to take.
double fixed_part(const MeasuredValue& a, double n, const MeasuredValue& b, double more) {
  const auto at_none = [&](double few, double many) { return (more * few - n * many) / (more - n); };
  const double least = at_none(a.low, b.high), most = at_none(a.high, b.low);
  return std::clamp(0.0, std::min(least, most), std::max(least, most));
}

// The times of one shape over the micro-batch: linear between neighbours, and on from the last two.
class Curve {
 public:
  void add(const BlockSample& sample) {
    points_[sample.micro_batch_size] = {{sample.forward.value, sample.forward_low.value, sample.forward_high.value},
                                        {sample.backward.value, sample.backward_low.value, sample.backward_high.value},
                                        sample.weight_share};
  }

  BlockTime at(std::int64_t micro_batch) const {
    const auto n = static_cast<double>(micro_batch);
    const auto last = std::prev(points_.end());
    if (points_.size() == 1 || micro_batch > last->first) {
      const auto most = static_cast<double>(last->first);
      const auto on = [&](MeasuredValue Point::*figure) {
        const MeasuredValue& of_last = last->second.*figure;
        double fixed = 0;
        if (points_.size() > 1) {
          const auto before = std::prev(last);
          // More samples take no less time, whatever chance says.
          fixed = std::min(fixed_part(before->second.*figure, static_cast<double>(before->first), of_last, most), of_last.median);
        }
        return Seconds(fixed + (of_last.median - fixed) * n / most);
      };
      return {on(&Point::forward), on(&Point::backward), last->second.weight_share};
    }
    auto upper = points_.lower_bound(micro_batch);
    if (upper == points_.begin()) ++upper;
    const auto lower = std::prev(upper);
    const double share = (n - static_cast<double>(lower->first)) / static_cast<double>(upper->first - lower->first);
    const Point &low = lower->second, &high = upper->second;
    const auto line = [&](MeasuredValue Point::*figure) {
      const double a = (low.*figure).median, b = (high.*figure).median;
      return Seconds(std::max(a + share * (b - a), std::min(a, b) * 0.1));
    };
    const double weight_share = low.weight_share + std::clamp(share, 0.0, 1.0) * (high.weight_share - low.weight_share);
    return {line(&Point::forward), line(&Point::backward), weight_share};
  }

 private:
  struct Point {
    MeasuredValue forward, backward;
    double weight_share;
  };
  std::map<std::int64_t, Point> points_;
};

}  // namespace

BlockTime block_time(const Profile& profile, const model::BlockSpec& block, const model::BlockShard& shard, const cluster::Device& device,
                     int threads, int neighbours) {
  const Shape wanted{shard.tensor_parallel, threads, neighbours};
  const BlockSample* nearest_sample = nullptr;
  const std::string kind = block.profile_key();
  for (const BlockSample& sample : profile.blocks) {
    if (!device.is_cpu() || sample.kind != kind || sample.precision != shard.precision || sample.positions != 0) continue;
    const Shape shape = shape_of(sample);
    if (nearest_sample == nullptr) nearest_sample = &sample;
    const Shape best = shape_of(*nearest_sample);
    const double here = distance(shape, wanted);
    const double there = distance(best, wanted);
    if (here < there || (here == there && shape.key() < best.key())) nearest_sample = &sample;
  }
  const BlockTime estimate = roofline(model::cost_of(block, shard), rates_of(device, shard.precision, threads, neighbours));
  if (nearest_sample == nullptr) return estimate;
  const Shape found = shape_of(*nearest_sample);
  Curve curve;
  for (const BlockSample& sample : profile.blocks)
    if (sample.kind == kind && sample.precision == shard.precision && sample.positions == 0 && shape_of(sample) == found) curve.add(sample);
  BlockTime time = curve.at(shard.micro_batch_size);
  // Blocks are measured with whole sequences.
  model::BlockShard measured = shard;
  measured.tensor_parallel = found.tensor_parallel;
  measured.sequence_parallel = false;
  measured.context_parallel = 1;
  time.measured = found == wanted && measured == shard;
  if (time.measured) return time;
  // Another shape was measured: as much faster or slower as the roofline says.
  const BlockTime reference = roofline(model::cost_of(block, measured), rates_of(device, shard.precision, found.threads, found.neighbours));
  const auto scale = [](Seconds& time, Seconds to, Seconds from) {
    if (from.value > 0) time = time * (to.value / from.value);
  };
  scale(time.forward, estimate.forward, reference.forward);
  scale(time.backward, estimate.backward, reference.backward);
  return time;
}

std::optional<double> share_of_pairs(const Profile& profile, const model::BlockSpec& block, model::Precision precision,
                                     std::int64_t positions) {
  const std::string kind = block.profile_key();
  double sum = 0;
  int pairs = 0;
  for (const BlockSample& shorter : profile.blocks)
    for (const BlockSample& whole : profile.blocks) {
      if (shorter.positions == 0 || whole.positions != 0 || shape_of(shorter) != shape_of(whole)) continue;
      if (shorter.micro_batch_size != whole.micro_batch_size) continue;
      if (!std::ranges::all_of(std::array{&shorter, &whole},
                               [&](const BlockSample* s) { return s->kind == kind && s->precision == precision; }))
        continue;
      // Seconds beside the whole's: (1 - share) * length + share * length^2.
      const double length = static_cast<double>(shorter.positions) / static_cast<double>(positions);
      const double seconds = (shorter.forward + shorter.backward) / (whole.forward + whole.backward);
      sum += std::clamp((length - seconds) / (length - length * length), 0.0, 1.0);
      ++pairs;
    }
  return pairs > 0 ? std::optional(sum / pairs) : std::nullopt;
}

Seconds optimizer_time(const Profile& profile, const std::string& kind, std::int64_t parameters, model::Precision precision,
                       const cluster::Device& device, int threads, int neighbours) {
  const OptimizerSample* best = nullptr;
  double best_distance = 0;
  for (const OptimizerSample& sample : profile.optimizers) {
    if (!device.is_cpu() || sample.kind != kind || sample.precision != precision) continue;
    const double here = distance({1, sample.threads, sample.neighbours}, {1, threads, neighbours});
    if (best != nullptr && here >= best_distance) continue;
    best = &sample;
    best_distance = here;
  }
  const Seconds estimate = optimizer_roofline(kind, parameters, precision, rates_of(device, precision, threads, neighbours));
  if (best == nullptr) return estimate;
  const Seconds measured(best->seconds_per_parameter.median * static_cast<double>(parameters));
  if (best_distance == 0) return measured;
  const Seconds reference = optimizer_roofline(kind, parameters, precision, rates_of(device, precision, best->threads, best->neighbours));
  return reference.value > 0 ? Seconds(measured.value * estimate.value / reference.value) : measured;
}

cluster::ClusterSpec at_measured_speeds(const cluster::ClusterSpec& cluster, const Profile& profile) {
  const std::size_t hosts = cluster::speeds_of_hosts(cluster).size();
  return profile.speeds.size() == hosts ? cluster::with_speeds(cluster, profile.speeds) : cluster;
}

}  // namespace tessera::profile
