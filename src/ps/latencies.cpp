#include "ps/latencies.hpp"

#include <numeric>

namespace tessera::ps {

double Latencies::end(std::size_t place) {
  // Divided, so that each is the double that its decimal digits name.
  constexpr std::array<double, 7> kDecades = {1e5, 1e4, 1e3, 1e2, 1e1, 1, 0.1};
  return kInDecade[place % kInDecade.size()] / kDecades.at(place / kInDecade.size());
}

void Latencies::add(Seconds took) {
  std::size_t place = 0;
  while (place < kEnds && took.value > end(place)) ++place;
  ++counts[place];
  sum += took;
}

std::uint64_t Latencies::count() const { return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}); }

std::optional<Seconds> Latencies::quantile(double share) const {
  const std::uint64_t all = count();
  if (all == 0) return {};
  const double wanted = share * static_cast<double>(all);
  double before = 0;
  for (std::size_t place = 0; place < kEnds; ++place) {
    const auto here = static_cast<double>(counts[place]);
    const double low = place == 0 ? 0 : end(place - 1);
    if (here > 0 && before + here >= wanted) return Seconds(low + (end(place) - low) * (wanted - before) / here);
    before += here;
  }
  return Seconds(end(kEnds - 1));
}

Latencies& Latencies::operator+=(const Latencies& other) {
  for (std::size_t place = 0; place < counts.size(); ++place) counts[place] += other.counts[place];
  sum += other.sum;
  return *this;
}

Latencies since(const Latencies& before, const Latencies& after) {
  Latencies out = after;
  for (std::size_t place = 0; place < out.counts.size(); ++place) {
    if (after.counts[place] < before.counts[place]) return after;
    out.counts[place] -= before.counts[place];
  }
  out.sum -= before.sum;
  return out;
}

}  // namespace tessera::ps
