#include "search/exhausted.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "cost/cost.hpp"

namespace tessera::search {
namespace {

// The largest parts of the fullest rank: "optimizer state 13.4 GiB, weights 4.5 GiB".
std::string largest_parts(const plan::Plan& plan, cost::CostModel& cost_model) {
  const std::vector<Bytes>& memory = plan.predicted->memory;
  std::vector<std::pair<std::string, Bytes>> parts =
      memory_terms(plan, static_cast<int>(std::ranges::max_element(memory) - memory.begin()), cost_model);
  std::ranges::stable_sort(parts, [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr std::size_t kShown = 3;
  std::string out;
  for (std::size_t i = 0; i < std::min(kShown, parts.size()); ++i)
    out += text(i == 0 ? "" : ", ", parts[i].first, ' ', to_text(parts[i].second));
  return out;
}

// In whole units, so that what is printed is enough.
std::string rounded_up(double bytes) {
  const int shift = bytes > 16.0 * (1 << 30) ? 30 : 20;
  return text(static_cast<std::int64_t>(std::ceil(bytes / static_cast<double>(std::int64_t{1} << shift))), shift == 30 ? " GiB" : " MiB");
}

// Bytes of a parameter's weight, gradient and optimizer states where calibrations say the times.
constexpr double kState = 18;

// For workers, of the devices together.
double whole_memory(const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  double out = 0;
  for (const cluster::ResourceGroup& group : cluster.groups)
    if (group.device.has(job.train.precision))
      out += static_cast<double>(cost::memory_limit(group.device).value) * group.nodes * group.devices_per_node;
  return out;
}

}  // namespace

Usage fullest(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  std::map<std::tuple<int, int, int>, Bytes> held;  // by device, or host where ranks share it
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    const plan::RankPlace& place = plan.ranks[rank];
    held[{place.group, place.node, cluster.groups[place.group].device.shares_host() ? -1 : place.device}] += plan.predicted->memory[rank];
  }
  Usage most{Bytes(0), Bytes(1)};
  for (const auto& [where, bytes] : held) {
    const Usage here{bytes, cost::memory_limit(cluster.groups[std::get<0>(where)].device)};
    if (here.share() > most.share()) most = here;
  }
  return most;
}

FrontPoint front_point(const plan::Plan& plan, const std::string& family, const cluster::ClusterSpec& cluster) {
  // Of most blocks of the first stage.
  const auto blocks = [](const plan::StrategyRun& run) { return run.last - run.first; };
  const plan::Strategy& strategy = std::ranges::max_element(plan.stages.front().runs, {}, blocks)->strategy;
  std::string detail = text(plan.micro_batches, plan.micro_batches == 1 ? " micro-batch of " : " micro-batches of ",
                            plan.micro_batch_text(), ", ", plan.schedule_text());
  if (strategy.zero > 0) detail += text(", zero ", strategy.zero);
  if (strategy.recompute != model::Recompute::none) detail += text(", recompute ", model::name_of(strategy.recompute));
  const Usage usage = fullest(plan, cluster);
  return {family, detail, plan.predicted->step, usage.memory, usage.limit};
}

std::vector<FrontPoint> front_of(std::vector<FrontPoint> points) {
  constexpr double kApart = 0.99;
  const auto share_of = [](const FrontPoint& point) { return point.memory / point.limit; };
  std::ranges::stable_sort(points, {}, [&](const FrontPoint& point) { return std::pair(point.step, share_of(point)); });
  std::vector<FrontPoint> out;
  for (FrontPoint& point : points)
    if (out.empty() || share_of(point) < kApart * share_of(out.back())) out.push_back(std::move(point));
  return out;
}

Error nothing_fits(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Devices& devices, double factor,
                   const std::optional<plan::Plan>& smallest, cost::CostModel& cost_model, std::vector<std::string> ideas) {
  const auto memory_of = [&](int group) { return cluster.groups[group].device.memory; };
  const cluster::Device& largest = cluster.groups[std::ranges::max(devices.groups, {}, memory_of)].device;
  const double limit = static_cast<double>(cost::memory_limit(largest).value);
  const double parameters = static_cast<double>(job.model.parameter_count());
  const std::string owner = devices.workers ? "host" : largest.name;
  std::string what = "no plan fits: ";
  if (const double all = whole_memory(job, cluster); !devices.uniform && kState * parameters > all)
    what += text("weights, gradients and optimizer states of ", count_text(parameters), " parameters alone are ",
                 rounded_up(kState * parameters), ", the devices of ", cluster.name, " have ",
                 to_text(Bytes(static_cast<std::int64_t>(all))), " for them", smallest ? "; " : "");
  if (smallest)
    what += text("the smallest plan needs ", rounded_up(factor * limit), " of each ", owner, ", ", rounded_up((factor - 1) * limit),
                 " more than the ", to_text(Bytes(static_cast<std::int64_t>(limit))), " that it has for a plan; its largest parts",
                 devices.workers && smallest->world_size() > 1 ? " on one worker: " : ": ", largest_parts(*smallest, cost_model));
  else if (what.ends_with(": "))
    what += text("no plan is known for ", cluster.name);
  if (factor > 0)
    ideas.push_back(
        text(devices.workers ? "a host with " : "devices with ", rounded_up(factor * static_cast<double>(largest.memory.value))));
  std::string hint;
  for (const std::string& idea : ideas) hint += (hint.empty() ? "" : "; ") + idea;
  return {ErrorCode::resource_exhausted, what, job.parallel.where, {}, hint.empty() ? hint : "what would fit: " + hint};
}

std::optional<model::JobSpec> with_sequence(const model::JobSpec& job, std::int64_t tokens) {
  try {
    model::JobSpec out = model::read_job(ConfigNode::parse(job.resolved_yaml, job.file.string()).with_override("model.seq", text(tokens)));
    out.cluster = job.cluster;
    return out;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace tessera::search
