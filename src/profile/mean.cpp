#include "profile/mean.hpp"

#include <algorithm>
#include <tuple>

namespace tessera::profile {
namespace {

double mean_of(double a, double b) { return (a + b) / 2; }
Seconds mean_of(Seconds a, Seconds b) { return Seconds(mean_of(a.value, b.value)); }
MeasuredValue mean_of(const MeasuredValue& a, const MeasuredValue& b) {
  return {mean_of(a.median, b.median), mean_of(a.low, b.low), mean_of(a.high, b.high)};
}
MeasuredValue mean_of_known(const MeasuredValue& a, const MeasuredValue& b) {
  if (a.median <= 0) return b;
  return b.median <= 0 ? a : mean_of(a, b);
}

// The means of those pairs of `a` and `b` that are of the same thing.
template <typename Sample, typename Same, typename Mean>
std::vector<Sample> means_of(const std::vector<Sample>& a, const std::vector<Sample>& b, const Same& same, const Mean& mean) {
  std::vector<Sample> out;
  for (const Sample& sample : a) {
    const auto other = std::ranges::find_if(b, [&](const Sample& candidate) { return same(sample, candidate); });
    if (other != b.end()) out.push_back(mean(sample, *other));
  }
  return out;
}

std::vector<CommPoint> means_of(const std::vector<CommPoint>& a, const std::vector<CommPoint>& b) {
  return means_of(
      a, b, [](const CommPoint& x, const CommPoint& y) { return x.size == y.size; },
      [](const CommPoint& x, const CommPoint& y) {
        return CommPoint{x.size, mean_of(x.seconds, y.seconds)};
      });
}

std::vector<BlockSample> means_of(const std::vector<BlockSample>& a, const std::vector<BlockSample>& b) {
  const auto key = [](const BlockSample& s) {
    return std::tie(s.kind, s.micro_batch_size, s.tensor_parallel, s.threads, s.neighbours, s.precision, s.positions);
  };
  return means_of(
      a, b, [&](const BlockSample& x, const BlockSample& y) { return key(x) == key(y); },
      [](const BlockSample& x, const BlockSample& y) {
        BlockSample out = x;
        for (const auto figure : {&BlockSample::forward, &BlockSample::forward_low, &BlockSample::forward_high, &BlockSample::backward,
                                  &BlockSample::backward_low, &BlockSample::backward_high})
          out.*figure = mean_of(x.*figure, y.*figure);
        out.weight_share = mean_of(x.weight_share, y.weight_share);
        return out;
      });
}

std::vector<CommSample> means_of(const std::vector<CommSample>& a, const std::vector<CommSample>& b) {
  const auto key = [](const CommSample& s) { return std::tie(s.operation, s.link, s.ranks); };
  return means_of(
      a, b, [&](const CommSample& x, const CommSample& y) { return key(x) == key(y); },
      [](const CommSample& x, const CommSample& y) {
        CommSample out = x;
        out.latency = mean_of(x.latency, y.latency);
        out.bandwidth = BytesPerSecond(mean_of(x.bandwidth.value, y.bandwidth.value));
        out.points = means_of(x.points, y.points);
        out.in_turn = means_of(x.in_turn, y.in_turn);
        out.slows = mean_of_known(x.slows, y.slows);
        out.slowed = mean_of_known(x.slowed, y.slowed);
        return out;
      });
}

std::vector<OptimizerSample> means_of(const std::vector<OptimizerSample>& a, const std::vector<OptimizerSample>& b) {
  const auto key = [](const OptimizerSample& s) { return std::tie(s.kind, s.threads, s.neighbours, s.precision); };
  return means_of(
      a, b, [&](const OptimizerSample& x, const OptimizerSample& y) { return key(x) == key(y); },
      [](const OptimizerSample& x, const OptimizerSample& y) {
        OptimizerSample out = x;
        out.seconds_per_parameter = mean_of(x.seconds_per_parameter, y.seconds_per_parameter);
        return out;
      });
}

std::vector<RowsSample> means_of(const std::vector<RowsSample>& a, const std::vector<RowsSample>& b) {
  return means_of(
      a, b, [](const RowsSample& x, const RowsSample& y) { return x.operation == y.operation; },
      [](const RowsSample& x, const RowsSample& y) {
        return RowsSample{x.operation, mean_of(x.client, y.client), mean_of(x.server, y.server), mean_of(x.bytes, y.bytes)};
      });
}

std::vector<double> speeds_of(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return a.empty() ? b : a;
  std::vector<double> out(a.size());
  std::ranges::transform(a, b, out.begin(), [](double x, double y) { return mean_of(x, y); });
  return out;
}

}  // namespace

Profile mean_of(const Profile& a, const Profile& b) {
  Profile out = a;
  out.blocks = means_of(a.blocks, b.blocks);
  out.communication = means_of(a.communication, b.communication);
  out.optimizers = means_of(a.optimizers, b.optimizers);
  out.rows = means_of(a.rows, b.rows);
  out.speeds = speeds_of(a.speeds, b.speeds);
  out.process_baseline = std::max(a.process_baseline, b.process_baseline);
  out.overlap_slowdown = mean_of(a.overlap_slowdown, b.overlap_slowdown);
  return out;
}

}  // namespace tessera::profile
