#include "plan/batch_shares.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace tessera::plan {
namespace {

// A micro-batch is shared in steps of this part, or of whole replicas.
constexpr std::int64_t kShareSteps = 16;

}  // namespace

std::vector<std::vector<std::int64_t>> batch_shares(const std::vector<SharePart>& parts, std::int64_t samples, std::size_t most) {
  const auto count = static_cast<std::int64_t>(parts.size());
  if (samples < count) return {};
  std::vector<double> share;
  for (const SharePart& part : parts) share.push_back(part.speed);
  const double all = std::accumulate(share.begin(), share.end(), 0.0);
  for (double& each : share) each *= static_cast<double>(samples) / all;
  const std::int64_t step = std::max<std::int64_t>(1, samples / kShareSteps);
  if (count > 2) {
    // Whole steps for each, the last one the rest.
    std::vector<std::int64_t> out;
    std::int64_t left = samples;
    for (std::size_t p = 0; p + 1 < parts.size(); ++p) {
      out.push_back(step * std::max<std::int64_t>(1, std::llround(share[p] / static_cast<double>(step))));
      left -= out.back();
    }
    out.push_back(left);
    if (left <= 0) return {};
    return {out};
  }
  std::set<std::int64_t> firsts;
  for (std::int64_t first = step; first < samples; first += step) firsts.insert(first);
  for (std::int64_t first = parts[0].ranks; first < samples; first += parts[0].ranks) firsts.insert(first);
  for (std::int64_t second = parts[1].ranks; second < samples; second += parts[1].ranks) firsts.insert(samples - second);
  std::vector<std::int64_t> nearest(firsts.begin(), firsts.end());
  const auto distance = [&](std::int64_t first) { return std::abs(static_cast<double>(first) - share.front()); };
  std::stable_sort(nearest.begin(), nearest.end(), [&](std::int64_t a, std::int64_t b) { return distance(a) < distance(b); });
  std::vector<std::vector<std::int64_t>> out;
  for (const std::int64_t first : nearest)
    if (out.size() < most) out.push_back({first, samples - first});
  return out;
}

}  // namespace tessera::plan
