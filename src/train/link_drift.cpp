#include "train/link_drift.hpp"

#include <algorithm>
#include <set>

#include "base/error.hpp"
#include "program/program.hpp"

namespace tessera::train {
namespace {

using profile::CommSample;

constexpr double kAlike = 1.25;
constexpr int kMostNamed = 6;

double slowest_hop(const std::vector<int>& ring, const profile::HostLinks& links) {
  double out = 0;
  for (std::size_t i = 0; i < ring.size(); ++i)
    out = std::max(out, links.seconds(ring[i], ring[(i + 1) % ring.size()], profile::kRingPiece));
  return out;
}

double best_hop(const profile::HostLinks& links) {
  return slowest_hop(profile::shortest_ring(links.hosts(), [&](int a, int b) { return links.seconds(a, b, profile::kRingPiece); }), links);
}

CommSample* find(std::vector<CommSample>& samples, const std::string& operation, const std::string& link) {
  const auto found =
      std::find_if(samples.begin(), samples.end(), [&](const CommSample& one) { return one.operation == operation && one.link == link; });
  return found == samples.end() ? nullptr : &*found;
}

// Of a message of the largest size that was measured, by the fastest, as profile::HostLinks takes it.
double seconds_of(const CommSample& sample) {
  if (sample.points.empty()) return (sample.latency + profile::kRingPiece / sample.bandwidth).value;
  const profile::MeasuredValue& value = sample.points.back().seconds;
  return value.low > 0 ? value.low : value.median;
}

std::string rate_of(const CommSample& sample) { return fixed(sample.bandwidth.value * 8e-9, 2); }

void slow_down(CommSample& sample, double times) {
  sample.latency = sample.latency * times;
  sample.bandwidth = sample.bandwidth / times;
  for (auto* const points : {&sample.points, &sample.in_turn})
    for (profile::CommPoint& point : *points)
      for (double* const seconds : {&point.seconds.median, &point.seconds.low, &point.seconds.high}) *seconds *= times;
}

}  // namespace

double measured_hop(const profile::Profile& profile, const cluster::ResourceGroup& hosts) {
  if (const auto links = profile::HostLinks::of(profile, hosts.network.name, hosts.nodes)) return best_hop(*links);
  return profile::collective_time(profile, "send", profile::kRingPiece, 2, hosts.network, profile::Medium::adapter).value;
}

Drift drift_of(const plan::Plan& plan, const model::ModelSpec& model, const profile::HostLinks& links, int group, double hop) {
  const auto seconds = [&](int a, int b) {
    const plan::RankPlace &from = plan.ranks[static_cast<std::size_t>(a)], &to = plan.ranks[static_cast<std::size_t>(b)];
    return from.group != group || to.group != group ? 0 : links.seconds(from.node, to.node, profile::kRingPiece);
  };
  double ring = 0, message = 0;
  for (const program::Program& program : program::compile(plan, model)) {
    std::set<int> scalars, of_parts,
        to_all;  // groups: of the step's few scalars; of parts of sequences, which pass on messages; of all-to-all
    for (const program::Instruction& instruction : program.instructions) {
      if (instruction.op == program::Op::reduce_norm) scalars.insert(instruction.group);
      if (instruction.peer >= 0) message = std::max(message, seconds(program.rank, instruction.peer));
    }
    for (const program::Cut& cut : program.cuts) {
      of_parts.insert(cut.context_group);
      to_all.insert({cut.anew_group, cut.expert_group});
      if (program.strategy_of(cut.first_block).context == model::ContextKind::ulysses) to_all.insert(cut.context_group);
    }
    for (std::size_t g = 0; g < program.groups.size(); ++g) {
      const int index = static_cast<int>(g);
      if (scalars.contains(index)) continue;
      const std::vector<int>& ranks = program.groups[g].ranks;
      double slowest = 0;
      for (std::size_t i = 0; i < ranks.size(); ++i)
        for (std::size_t ahead = 1; ahead < (to_all.contains(index) ? ranks.size() : 2); ++ahead)
          slowest = std::max(slowest, seconds(ranks[i], ranks[(i + ahead) % ranks.size()]));
      ring = std::max(ring, slowest);
      if (of_parts.contains(index)) message = std::max(message, slowest);
    }
  }
  return {ring > 0 ? ring / hop : 1, message > 0 ? message / hop : 1};
}

Drift least_drift(const profile::HostLinks& links, double hop) {
  const double times = best_hop(links) / hop;
  return {times, times};
}

void apply(const Drift& drift, int group, profile::Profile& profile, cluster::ClusterSpec& cluster) {
  cluster::Link& network = cluster.groups.at(static_cast<std::size_t>(group)).network;
  if (find(profile.communication, "send", network.name) == nullptr && drift.messages != drift.collectives) {
    CommSample& send = profile.communication.emplace_back();
    send.operation = "send";
    send.link = network.name;
    send.latency = network.latency;
    send.bandwidth = network.bandwidth;
  }
  for (CommSample& sample : profile.communication)
    if (sample.link == network.name) slow_down(sample, sample.operation == "send" ? drift.messages : drift.collectives);
  network.latency = network.latency * drift.collectives;
  network.bandwidth = network.bandwidth / drift.collectives;
}

std::string take_links(const std::vector<CommSample>& links, const cluster::ResourceGroup& hosts, profile::Profile& profile) {
  std::string out;
  int changed = 0, same = 0;
  for (int a = 0; a < hosts.nodes; ++a)
    for (int b = a + 1; b < hosts.nodes; ++b) {
      const std::string name = profile::pair_link(hosts.network.name, a, b);
      const auto fresh = std::find_if(links.begin(), links.end(), [&](const CommSample& sample) { return sample.link == name; });
      if (fresh == links.end()) continue;
      CommSample* const known = find(profile.communication, fresh->operation, name);
      if (known != nullptr) {
        const double ratio = seconds_of(*fresh) / seconds_of(*known);
        if (ratio < kAlike && ratio > 1 / kAlike) {
          ++same;
          continue;
        }
      }
      if (++changed <= kMostNamed) {
        out += text(out.empty() ? "" : ", ", rate_of(*fresh), " Gbit/s between hosts ", a, " and ", b);
        if (known != nullptr) out += text(" (", rate_of(*known), " before)");
      }
      if (known != nullptr)
        *known = *fresh;
      else
        profile.communication.push_back(*fresh);
    }
  if (changed > kMostNamed) out += text(", others between ", changed - kMostNamed, " more pairs");
  if (changed == 0) return "all as before";
  return same > 0 ? out + ", the others as before" : out;
}

}  // namespace tessera::train
