#include "search/space.hpp"
#include "search/search.hpp"

#include <algorithm>

#include "plan/divisors.hpp"
#include "plan/tensor_cut.hpp"
#include "search/batch_shares.hpp"

namespace tessera::search {
namespace {

// So many ways to share a micro-batch among groups are tried.
constexpr std::size_t kMostShares = 12;

int fixed_product(const model::ParallelChoice& parallel) {
  return std::max(1, parallel.dp) * std::max(1, parallel.pp) * std::max(1, parallel.tp);
}
bool all_fixed(const model::ParallelChoice& parallel) { return parallel.dp > 0 && parallel.pp > 0 && parallel.tp > 0; }

std::vector<int> node_counts(int nodes) {
  std::vector<int> out;
  for (std::int64_t count : plan::divisors_of(nodes)) out.push_back(static_cast<int>(count));
  return out;
}

void add_cpu_layouts(const model::JobSpec& job, const cluster::ResourceGroup& group, int index, std::vector<WorkerLayout>& out) {
  const model::ParallelChoice& parallel = job.parallel;
  const int cores = std::max(1, group.device.cores);
  const auto threads_for = [&](int workers) { return parallel.threads > 0 ? parallel.threads : std::max(1, cores / workers); };
  std::vector<int> workers;
  for (std::int64_t count : plan::divisors_of(cores))
    if (count <= group.devices_per_node) workers.push_back(static_cast<int>(count));
  if (workers.empty()) workers.push_back(1);
  for (int nodes : node_counts(group.nodes)) {
    for (int count : workers) out.push_back({index, nodes, count, threads_for(count)});
    // Degrees that the user fixes may ask for more workers than there are cores, or for a number that does not divide them.
    const int product = fixed_product(parallel);
    if (nodes == 1 && product > 1 && std::find(workers.begin(), workers.end(), product) == workers.end() &&
        (all_fixed(parallel) || product > workers.back()))
      out.push_back({index, 1, product, threads_for(product)});
  }
}

void add_accelerator_layouts(const cluster::ResourceGroup& group, int index, std::vector<WorkerLayout>& out) {
  for (int count = 1; count <= group.devices_per_node; ++count) out.push_back({index, 1, count, 1});
  for (int nodes : node_counts(group.nodes))
    if (nodes > 1) out.push_back({index, nodes, group.devices_per_node, 1});
}

// All CPU hosts of several groups: one worker on each host, or one on each core.
void add_joined_layouts(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const std::vector<std::string>& vendors,
                        std::vector<WorkerLayout>& out) {
  const int threads = job.parallel.threads;
  std::vector<WorkerLayout> before;
  for (const bool whole_hosts : {true, false}) {
    std::vector<WorkerLayout> parts;
    for (std::size_t g = 0; g < cluster.groups.size(); ++g) {
      const cluster::ResourceGroup& group = cluster.groups[g];
      if (!group.device.is_cpu() || !group.device.has(job.train.precision)) continue;
      if (!vendors.empty() && std::find(vendors.begin(), vendors.end(), group.device.vendor) == vendors.end()) continue;
      const int cores = std::max(1, group.device.cores);
      const int workers = whole_hosts ? 1 : std::max(1, std::min(cores, group.devices_per_node));
      parts.push_back({static_cast<int>(g), group.nodes, workers, threads > 0 ? threads : std::max(1, cores / workers), {}});
    }
    if (parts.size() < 2) return;
    if (std::equal(parts.begin(), parts.end(), before.begin(), before.end(),
                   [](const WorkerLayout& a, const WorkerLayout& b) { return a.per_node == b.per_node; }))
      return;
    before = parts;
    WorkerLayout joined = parts.front();
    joined.beside.assign(parts.begin() + 1, parts.end());
    out.push_back(joined);
  }
}

[[noreturn]] void refuse(const model::JobSpec& job, const std::string& message, const std::string& expected, const std::string& hint) {
  throw Error(ErrorCode::invalid_config, "parallel: " + message, job.parallel.where, expected, hint);
}

}  // namespace

std::vector<WorkerLayout> layouts(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const std::vector<std::string>& vendors) {
  std::vector<WorkerLayout> out;
  for (std::size_t g = 0; g < cluster.groups.size(); ++g) {
    const cluster::ResourceGroup& group = cluster.groups[g];
    const int index = static_cast<int>(g);
    if (!vendors.empty() && std::find(vendors.begin(), vendors.end(), group.device.vendor) == vendors.end()) continue;
    if (!group.device.has(job.train.precision)) continue;
    if (job.cluster.kind == model::ClusterChoice::Kind::local) {
      if (!group.device.is_cpu()) continue;
      const int threads = job.cluster.threads > 0 ? job.cluster.threads : job.parallel.threads;
      out.push_back({index, 1, job.cluster.devices, threads > 0 ? threads : std::max(1, group.device.cores / job.cluster.devices)});
    } else if (job.cluster.kind == model::ClusterChoice::Kind::lab) {
      out.push_back({index, group.nodes, 1, job.parallel.threads > 0 ? job.parallel.threads : std::max(1, group.device.cores)});
    } else if (group.device.is_cpu()) {
      add_cpu_layouts(job, group, index, out);
    } else {
      add_accelerator_layouts(group, index, out);
    }
  }
  if (job.cluster.kind != model::ClusterChoice::Kind::local && job.cluster.kind != model::ClusterChoice::Kind::lab)
    add_joined_layouts(job, cluster, vendors, out);
  std::stable_sort(out.begin(), out.end(), [](const WorkerLayout& a, const WorkerLayout& b) { return a.world() < b.world(); });
  return out;
}

void check_fixed(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const std::vector<WorkerLayout>& layouts) {
  const model::ParallelChoice& parallel = job.parallel;
  if (layouts.empty())
    throw Error(ErrorCode::invalid_config, text("no device of ", cluster.name, " computes in ", model::name_of(job.train.precision)),
                job.cluster.where, "a device that does, or another train.precision");
  const auto accelerators_only = [&](const std::string& what) {
    refuse(job, what + " is planned for accelerators in 16 or fewer bits alone",
           "zero 0 or 1, cp 1, ep 1, schedule 1f1b, gpipe, zb-h1 or zb-h2, recompute none or full", {});
  };
  if (parallel.cp > 1) accelerators_only(text("cp ", parallel.cp));
  if (parallel.ep > 1) accelerators_only(text("ep ", parallel.ep));
  if (parallel.zero.value_or(0) > 1) accelerators_only(text("zero ", *parallel.zero));
  constexpr std::string_view kSchedules[] = {"", "1f1b", "gpipe", "zb-h1", "zb-h2"};
  if (std::find(std::begin(kSchedules), std::end(kSchedules), parallel.schedule) == std::end(kSchedules))
    accelerators_only("schedule " + parallel.schedule);
  if (parallel.recompute == "selective") accelerators_only("recompute selective");
  if (parallel.tp > 0)
    if (const auto fault = plan::tensor_fault(job.model, parallel.tp))
      refuse(job, text("tp ", parallel.tp, " ", fault->what()), fault->expected(),
             text("nearest: tp ", plan::nearest_of(plan::tensor_degrees(job.model, 2 * std::int64_t{parallel.tp}), parallel.tp)));
  if (parallel.pp > job.model.block_count())
    refuse(job, text("pp ", parallel.pp, " is more than the model's ", job.model.block_count(), " blocks"), {},
           text("nearest: pp ", job.model.block_count()));
  const std::int64_t batch = job.train.global_batch;
  // Replicas on several kinds of hosts need not have equal shares.
  const bool even = std::none_of(layouts.begin(), layouts.end(), [](const WorkerLayout& layout) { return !layout.beside.empty(); });
  if (even && parallel.dp > 0 && batch % parallel.dp != 0)
    refuse(job, text("dp ", parallel.dp, " does not divide train.global_batch ", batch), {},
           text("nearest: dp ", plan::nearest_of(plan::divisors_of(batch), parallel.dp)));
  const std::int64_t share = batch / std::max(1, parallel.dp);
  if (even && parallel.micro_batches > 0 && share % parallel.micro_batches != 0)
    refuse(job,
           parallel.dp > 1 ? text("micro_batches ", parallel.micro_batches, " does not divide the ", share, " samples of each of ",
                                  parallel.dp, " replicas")
                           : text("micro_batches ", parallel.micro_batches, " does not divide train.global_batch ", batch),
           {}, text("nearest: micro_batches ", plan::nearest_of(plan::divisors_of(share), parallel.micro_batches)));
  const int product = fixed_product(parallel);
  const bool reachable = std::any_of(layouts.begin(), layouts.end(), [&](const WorkerLayout& layout) {
    return all_fixed(parallel) ? layout.world() == product : layout.world() % product == 0;
  });
  if (reachable) return;
  std::vector<std::int64_t> worlds;
  for (const WorkerLayout& layout : layouts) worlds.push_back(layout.world());
  const std::int64_t nearest_world = plan::nearest_of(worlds, product);
  const std::string needs = text("the degrees need ", product, " workers");
  if (job.cluster.kind == model::ClusterChoice::Kind::local)
    refuse(job, text(needs, "; cluster.local.devices is ", job.cluster.devices), text("degrees whose product is ", job.cluster.devices),
           text("or cluster: {local: {devices: ", product, "}}"));
  refuse(job, text(needs, "; ", cluster.name, " offers ", worlds.back()), text("degrees whose product is ", nearest_world),
         text("nearest: ", nearest_world, " workers"));
}

std::vector<WorkerShape> worker_shapes(const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  std::vector<WorkerShape> out;
  for (const WorkerLayout& layout : layouts(job, cluster, {"cpu"})) {
    const WorkerShape shape{layout.per_node, layout.threads};
    if (std::find(out.begin(), out.end(), shape) == out.end() && !points(job, cluster, layout).empty()) out.push_back(shape);
  }
  return out;
}

namespace {

// Those of a layout over several groups: replicas that share each micro-batch by their speed, or one pipeline over all.
std::vector<Point> joined_points(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const WorkerLayout& layout) {
  const model::ParallelChoice& parallel = job.parallel;
  const auto may = [](int fixed, int degree) { return fixed == 0 || fixed == degree; };
  if (!may(parallel.tp, 1)) return {};
  const int world = layout.world();
  std::vector<Point> out;
  std::vector<SharePart> parts;
  for (const WorkerLayout& part : layout.parts())
    parts.push_back({part.world(), part.world() * part.threads *
                                       cluster.groups[static_cast<std::size_t>(part.group)].device.peak_of(job.train.precision).value});
  for (const std::int64_t micro_batches : plan::divisors_of(job.train.global_batch)) {
    if (parallel.micro_batches > 0 && micro_batches != parallel.micro_batches) continue;
    for (const model::Recompute recompute : {model::Recompute::none, model::Recompute::full}) {
      if (!parallel.recompute.empty() && parallel.recompute != model::name_of(recompute)) continue;
      if (may(parallel.dp, world) && may(parallel.pp, 1))
        for (const std::vector<std::int64_t>& shares : batch_shares(parts, job.train.global_batch / micro_batches, kMostShares)) {
          Point point{layout, world, 1, 1, micro_batches, recompute, {}};
          bool divides = true;
          for (std::size_t p = 0; p < parts.size(); ++p) {
            divides = divides && shares[p] % parts[p].ranks == 0;
            point.shares.push_back({parts[p].ranks, shares[p]});
          }
          if (divides) out.push_back(point);
        }
      if (may(parallel.dp, 1) && may(parallel.pp, world) && world <= job.model.block_count())
        out.push_back({layout, 1, 1, world, micro_batches, recompute, {}});
    }
  }
  return out;
}

}  // namespace

std::vector<Point> points(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const WorkerLayout& layout) {
  if (!layout.beside.empty()) return joined_points(job, cluster, layout);
  const model::ParallelChoice& parallel = job.parallel;
  const std::int64_t batch = job.train.global_batch;
  std::vector<Point> out;
  for (std::int64_t pp : plan::divisors_of(layout.world())) {
    if (pp > job.model.block_count() || (parallel.pp > 0 && pp != parallel.pp)) continue;
    for (std::int64_t tp : plan::divisors_of(layout.world() / pp)) {
      if (plan::tensor_fault(job.model, tp) || (parallel.tp > 0 && tp != parallel.tp)) continue;
      const std::int64_t dp = layout.world() / pp / tp;
      if (batch % dp != 0 || (parallel.dp > 0 && dp != parallel.dp)) continue;
      for (std::int64_t micro_batches : plan::divisors_of(batch / dp)) {
        if (parallel.micro_batches > 0 && micro_batches != parallel.micro_batches) continue;
        for (const model::Recompute recompute : {model::Recompute::none, model::Recompute::full})
          if (parallel.recompute.empty() || parallel.recompute == model::name_of(recompute))
            out.push_back({layout, static_cast<int>(dp), static_cast<int>(tp), static_cast<int>(pp), micro_batches, recompute, {}});
      }
    }
  }
  return out;
}

std::vector<Variant> variants(const model::JobSpec& job, const Point& point) {
  const model::ParallelChoice& parallel = job.parallel;
  std::vector<Variant> out;
  using plan::Schedule;
  for (const Schedule schedule : {Schedule::one_f_one_b, Schedule::gpipe, Schedule::zb_h1, Schedule::zb_h2}) {
    if (!parallel.schedule.empty() && parallel.schedule != name_of(schedule)) continue;
    // A profile times whole backward passes: how long their halves take is not known well enough to choose by.
    if (parallel.schedule.empty() && (schedule == Schedule::zb_h1 || schedule == Schedule::zb_h2)) continue;
    // Without a pipeline GPipe only holds more activations.
    if (parallel.schedule.empty() && schedule == plan::Schedule::gpipe && point.pp == 1) continue;
    for (const int zero : {0, 1}) {
      if (zero == 1 && point.dp == 1) continue;
      if (parallel.zero && point.dp > 1 && zero != *parallel.zero) continue;
      if (!parallel.delayed_exchange) {
        out.push_back({schedule, zero});
      } else {
        for (const double early : kEarly) out.push_back({schedule, zero, true, early});
      }
    }
  }
  return out;
}

std::string family_of(const Point& point) {
  std::string out;
  const auto add = [&](const char* name, int degree) {
    if (degree > 1) out += text(out.empty() ? "" : " x ", name, degree);
  };
  add("dp", point.dp);
  add("tp", point.tp);
  add("pp", point.pp);
  if (!point.layout.beside.empty()) out += " on all kinds";
  return out.empty() ? "one worker" : out;
}

plan::Plan plan_of(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Point& point, const Variant& variant,
                   const std::vector<int>& cuts) {
  plan::Plan plan;
  plan.model_fingerprint = job.model.fingerprint();
  plan.cluster_fingerprint = cluster.fingerprint();
  plan.precision = job.train.precision;
  plan.global_batch = job.train.global_batch;
  plan.micro_batches = point.micro_batches;
  plan.schedule = variant.schedule;
  plan.delayed_exchange = variant.delayed_exchange;
  plan.exchanged_early = variant.exchanged_early;
  for (const WorkerLayout& part : point.layout.parts())
    for (int rank = 0; rank < part.world(); ++rank)
      plan.ranks.push_back({part.group, rank / part.per_node, rank % part.per_node, part.threads});
  int next = 0;
  for (int s = 0; s < point.pp; ++s) {
    plan::Stage stage;
    for (int i = 0; i < point.dp * point.tp; ++i) stage.ranks.push_back(next++);
    stage.runs.push_back({cuts[s], cuts[s + 1], {point.dp, point.tp, variant.zero, point.recompute}});
    stage.shares = point.shares;
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

std::vector<double> block_seconds(const model::JobSpec& job, const Point& point, cost::CostModel& cost_model) {
  const plan::Strategy strategy{.dp = point.dp, .tp = point.tp, .recompute = point.recompute};
  std::vector<double> out;
  std::size_t at = 0;
  for (const WorkerLayout& part : point.layout.parts()) {
    const int devices = cost_model.add({{{part.group, 0, 0, part.threads, part.per_node}}});
    const std::int64_t micro_batch = point.shares.empty() ? job.train.global_batch / (point.micro_batches * point.dp)
                                                          : point.shares[at].samples / point.shares[at].ranks;
    std::vector<double> here;
    for (const int repeat : cost_model.repeat_of()) {
      const cost::BlockLoad& load = cost_model.block(repeat, devices, strategy, micro_batch * point.dp);
      here.push_back(load.forward + load.backward());
    }
    if (at++ == 0) out = here;
    for (std::size_t b = 0; b < out.size(); ++b) out[b] = std::min(out[b], here[b]);
  }
  return out;
}

}  // namespace tessera::search
