// How devices of several kinds share the samples of a micro-batch.
#include "search/outer_choices.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace tessera::search {
namespace {

// Of two parts, a micro-batch is shared in steps of this part, or of whole replicas.
constexpr std::int64_t kShareSteps = 16;

// In samples, or of `replicas` in multiples of each part's ranks: what the speeds say, rounded down, and the rest one by one to who is then
// done first. Empty where something is left over.
std::vector<std::int64_t> by_units(const std::vector<SharePart>& parts, const std::vector<double>& share, std::int64_t samples,
                                   bool replicas) {
  const auto unit_of = [&](std::size_t p) { return replicas ? std::int64_t{parts[p].ranks} : 1; };
  std::vector<std::int64_t> out;
  std::int64_t left = samples;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    out.push_back(unit_of(p) * std::max<std::int64_t>(1, static_cast<std::int64_t>(share[p] / static_cast<double>(unit_of(p)))));
    left -= out.back();
  }
  while (left > 0) {
    std::size_t next = parts.size();
    const auto done = [&](std::size_t p) { return static_cast<double>(out[p] + unit_of(p)) / parts[p].speed; };
    for (std::size_t p = 0; p < parts.size(); ++p)
      if (unit_of(p) <= left && (next == parts.size() || done(p) < done(next))) next = p;
    if (next == parts.size()) return {};
    out[next] += unit_of(next);
    left -= unit_of(next);
  }
  return left == 0 ? out : std::vector<std::int64_t>{};
}

}  // namespace

std::vector<std::vector<std::int64_t>> batch_shares(const std::vector<SharePart>& parts, std::int64_t samples, std::size_t most) {
  const auto count = static_cast<std::int64_t>(parts.size());
  if (samples < count) return {};
  std::vector<double> share;
  for (const SharePart& part : parts) share.push_back(part.speed);
  const double all = std::accumulate(share.begin(), share.end(), 0.0);
  for (double& each : share) each *= static_cast<double>(samples) / all;
  if (count > 2) {
    std::vector<std::vector<std::int64_t>> out;
    for (const bool replicas : {true, false}) {
      const std::vector<std::int64_t> shares = by_units(parts, share, samples, replicas);
      if (!shares.empty() && std::ranges::find(out, shares) == out.end()) out.push_back(shares);
    }
    return out;
  }
  const std::int64_t step = std::max<std::int64_t>(1, samples / kShareSteps);
  std::set<std::int64_t> firsts;
  for (std::int64_t first = step; first < samples; first += step) firsts.insert(first);
  for (std::int64_t first = parts[0].ranks; first < samples; first += parts[0].ranks) firsts.insert(first);
  for (std::int64_t second = parts[1].ranks; second < samples; second += parts[1].ranks) firsts.insert(samples - second);
  std::vector<std::int64_t> nearest(firsts.begin(), firsts.end());
  // Those that every replica divides first.
  const auto order = [&](std::int64_t first) {
    const bool whole = first % parts[0].ranks == 0 && (samples - first) % parts[1].ranks == 0;
    return std::pair(!whole, std::abs(static_cast<double>(first) - share.front()));
  };
  std::ranges::stable_sort(nearest, {}, order);
  std::vector<std::vector<std::int64_t>> out;
  for (const std::int64_t first : nearest)
    if (out.size() < most) out.push_back({first, samples - first});
  return out;
}

}  // namespace tessera::search
