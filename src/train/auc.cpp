#include "train/auc.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace tessera::train {

std::optional<double> area_under_curve(const at::Tensor& scored) {
  const at::Tensor values = scored.contiguous();
  const std::int64_t count = values.size(1);
  const float* const scores = values.data_ptr<float>();
  std::vector<std::pair<float, bool>> samples;
  samples.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) samples.emplace_back(scores[i], scores[count + i] > 0);
  std::sort(samples.begin(), samples.end());
  double positives = 0, negatives = 0;
  double won = 0;  // pairs in which the positive has the higher score
  for (auto first = samples.begin(); first != samples.end();) {
    const auto last = std::find_if(first, samples.end(), [&](const auto& sample) { return sample.first != first->first; });
    const auto equal = static_cast<double>(last - first);
    const auto clicks = static_cast<double>(std::count_if(first, last, [](const auto& sample) { return sample.second; }));
    won += clicks * (negatives + (equal - clicks) / 2);
    positives += clicks;
    negatives += equal - clicks;
    first = last;
  }
  if (positives == 0 || negatives == 0) return std::nullopt;
  return won / (positives * negatives);
}

std::optional<double> area_under_curve(comm::Communicator& comm, const at::Tensor& scored) {
  const comm::Group& world = comm.world();
  const at::Tensor own = scored.contiguous();
  const std::int64_t count = own.size(1);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(comm.world_size()));
  world.all_gather(&count, counts.data(), 1, comm::DataType::i64).wait();
  constexpr std::uint32_t kTag = 0;
  double area = std::numeric_limits<double>::quiet_NaN();
  if (comm.rank() == 0) {
    std::vector<at::Tensor> all = {own};
    for (int rank = 1; rank < comm.world_size(); ++rank) {
      all.push_back(at::empty({2, counts[static_cast<std::size_t>(rank)]}, at::kFloat));
      world
          .receive(std::as_writable_bytes(std::span(all.back().data_ptr<float>(), static_cast<std::size_t>(all.back().numel()))), rank,
                   kTag)
          .wait();
    }
    area = area_under_curve(at::cat(all, 1)).value_or(area);
  } else {
    world.send(std::as_bytes(std::span(own.data_ptr<float>(), static_cast<std::size_t>(own.numel()))), 0, kTag).wait();
  }
  world.broadcast(&area, 1, comm::DataType::f64, 0).wait();
  return std::isnan(area) ? std::nullopt : std::optional(area);
}

double calibrated_log_loss(comm::Communicator& comm, const at::Tensor& scored, double negatives) {
  const at::Tensor own = scored.contiguous();
  const std::int64_t count = own.size(1);
  const float* const values = own.data_ptr<float>();
  std::array<double, 2> sums = {0, static_cast<double>(count)};
  for (std::int64_t i = 0; i < count; ++i) {
    const double logit = values[i] + std::log(negatives);
    // log(1 + exp(logit)) without overflow, less the logit of a click.
    sums[0] += std::max(logit, 0.0) + std::log1p(std::exp(-std::abs(logit))) - values[count + i] * logit;
  }
  comm.world().all_reduce(sums.data(), std::ssize(sums), comm::DataType::f64, comm::Reduction::sum).wait();
  return sums[0] / sums[1];
}

}  // namespace tessera::train
