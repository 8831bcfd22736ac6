#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/hash.hpp"
#include "base/random.hpp"
#include "train/generate.hpp"

namespace tessera::train {

std::uint32_t sample(std::vector<float> logits, const Sampling& sampling, std::uint64_t draw) {
  const auto most_likely = [&] { return static_cast<std::uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()); };
  if (sampling.temperature <= 0) return most_likely();
  const double top = logits[most_likely()];
  std::vector<std::uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  // Ties are broken by the token's number, so that the result does not depend on the sort.
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  if (sampling.top_k > 0) order.resize(std::min<std::size_t>(order.size(), static_cast<std::size_t>(sampling.top_k)));
  std::vector<double> weights;
  double total = 0;
  for (std::uint32_t token : order) {
    weights.push_back(std::exp((logits[token] - top) / sampling.temperature));
    total += weights.back();
  }
  if (sampling.top_p < 1) {
    double sum = 0;
    std::size_t kept = 0;
    while (kept < weights.size() && (kept == 0 || sum < sampling.top_p * total)) sum += weights[kept++];
    weights.resize(kept);
    total = sum;
  }
  double point = Random(seed_of(sampling.seed, draw)).uniform() * total;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    point -= weights[i];
    if (point < 0) return order[i];
  }
  return order[weights.size() - 1];
}

}  // namespace tessera::train
