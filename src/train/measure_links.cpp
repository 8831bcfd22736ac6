#include "train/measure_links.hpp"

#include <algorithm>
#include <span>

#include "base/clock.hpp"
#include "profile/host_links.hpp"

namespace tessera::train {
namespace {

constexpr std::size_t kLinkSizes[] = {16 << 10, 1 << 20};
constexpr int kRepeats = 5;
constexpr double kOfRepeats = 0.25;  // seconds, about, for those of one size

// Whom a host meets in a round: the last one stays, and the others go round a circle. `hosts` is even; the host itself never comes out.
int partner_of(int host, int round, int hosts) {
  const int circle = hosts - 1;
  if (host == circle) return round;
  if (host == round) return circle;
  return ((2 * round - host) % circle + circle) % circle;
}

// Seconds of a message one way, as half of one there and back.
double exchanged(const comm::Group& pair, std::span<std::byte> data) {
  const double begin = real_clock().now().value;
  if (pair.rank() == 0) {
    pair.send(data, 1, 0).wait();
    pair.receive(data, 1, 0).wait();
  } else {
    pair.receive(data, 0, 0).wait();
    pair.send(data, 0, 0).wait();
  }
  return (real_clock().now().value - begin) / 2;
}

profile::CommSample sample_of(const std::string& link, int a, int b, const std::vector<profile::CommPoint>& points) {
  const profile::CommPoint& small = points.front();
  const profile::CommPoint& large = points.back();
  const double bytes = static_cast<double>((large.size - small.size).value);
  profile::CommSample out;
  out.operation = "send";
  out.link = profile::pair_link(link, a, b);
  out.bandwidth = BytesPerSecond(bytes / std::max(1e-9, large.seconds.median - small.seconds.median));
  out.latency = Seconds(std::max(1e-7, small.seconds.median - static_cast<double>(small.size.value) / out.bandwidth.value));
  out.points = points;
  return out;
}

}  // namespace

RankOfHost first_ranks(int ranks, int per_host) {
  RankOfHost out;
  for (int rank = 0; rank < ranks; rank += per_host) out[rank / per_host] = rank;
  return out;
}

RankOfHost first_ranks(const plan::Plan& plan) {
  RankOfHost out;
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    if (plan.ranks[rank].group != plan.ranks.front().group) return {};
    out.try_emplace(plan.ranks[rank].node, static_cast<int>(rank));
  }
  return out;
}

std::vector<profile::CommSample> measure_links(const Meter& meter, comm::Communicator& comm, const std::string& link,
                                               const RankOfHost& hosts) {
  const std::vector<std::pair<int, int>> seats(hosts.begin(), hosts.end());
  const int taken = static_cast<int>(seats.size());
  if (taken < 3) return {};
  const auto rank_at = [&](int seat) { return seats[static_cast<std::size_t>(seat)].second; };
  const int even = taken + taken % 2;
  int own = 0;
  while (own < taken && rank_at(own) != comm.rank()) ++own;
  std::vector<std::byte> data(std::max(kLinkSizes[0], kLinkSizes[1]));
  std::vector<profile::CommSample> out;
  for (int round = 0; round + 1 < even; ++round) {
    const int partner = own < taken ? partner_of(own, round, even) : taken;
    const bool meets = partner < taken;
    comm::Group pair;
    if (meets) {
      pair = comm.group({rank_at(std::min(own, partner)), rank_at(std::max(own, partner))}, "measure.links");
      exchanged(pair, std::span(data).first(kLinkSizes[0]));  // connects
    }
    std::vector<std::vector<profile::MeasuredValue>> of_size;  // by rank
    for (const std::size_t size : kLinkSizes) {
      Samples samples;
      meter.together();
      const double slowest = meter.slowest(meets ? exchanged(pair, std::span(data).first(size)) : 0);
      const int repeats = std::clamp(static_cast<int>(kOfRepeats / (2 * std::max(1e-6, slowest))), 1, kRepeats);
      for (int i = 0; i < repeats; ++i) samples.add(meets ? exchanged(pair, std::span(data).first(size)) : 0);
      const profile::MeasuredValue value = samples.median();
      const std::vector<double> medians = meter.of_all(value.median), lows = meter.of_all(value.low), highs = meter.of_all(value.high);
      auto& values = of_size.emplace_back();
      for (std::size_t rank = 0; rank < medians.size(); ++rank) values.push_back({medians[rank], lows[rank], highs[rank]});
    }
    for (int a = 0; a < taken; ++a) {
      const int b = partner_of(a, round, even);
      if (b <= a || b >= taken) continue;
      std::vector<profile::CommPoint> points;
      for (std::size_t i = 0; i < std::size(kLinkSizes); ++i)
        points.push_back({Bytes(static_cast<std::int64_t>(kLinkSizes[i])), of_size[i][static_cast<std::size_t>(rank_at(a))]});
      out.push_back(sample_of(link, seats[static_cast<std::size_t>(a)].first, seats[static_cast<std::size_t>(b)].first, points));
    }
  }
  return out;
}

}  // namespace tessera::train
