#include "search/search.hpp"
#include "model/forms.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/parallel.hpp"
#include "cost/cost_model.hpp"
#include "cost/warm_up.hpp"
#include "plan/schedule/schedule.hpp"
#include "plan/tensor_cut.hpp"
#include "search/as_trained.hpp"
#include "search/devices.hpp"
#include "search/exhausted.hpp"
#include "search/serving.hpp"
#include "search/templates.hpp"

namespace tessera::search {
namespace {

// A plan this close to the optimum is good enough.
constexpr double kTolerance = 1e-3;
// The least effort for each way to share samples of different lengths.
constexpr std::int64_t kOfAWay = 200'000;
// So many further plans are kept for the simulator.
constexpr int kFurtherPlans = 7;
// Searches of parts of the space at the same time: more would need as much more memory.
constexpr std::size_t kBesides = 2;
// The part of the time, where it is limited, that the search over all blocks may take; families and the front share the rest.
constexpr double kOfBlocks = 0.7;
// Shares of the memory at which the front is looked for.
constexpr double kShares[] = {0.85, 0.7, 0.55, 0.45, 0.35, 0.25};
// How much more memory a device would need is looked for up to this factor.
constexpr double kMostMemory = 4096;
// The effort after which nothing is taken to fit.
constexpr std::int64_t kEnough = 300'000;
// For a part of the space in which nothing fits, up to this.
constexpr double kMostShown = 4;

// A part of the space under a name that people know.
struct Family {
  std::string name;
  BlockSpace space;
};

// The degrees of a plan of a uniform space: "dp2 x tp2 x pp4", "dp2 x cp2", "one worker".
std::string family_of(const plan::Plan& plan) {
  const plan::Strategy& strategy = plan.stages.front().runs.front().strategy;
  int most_tensor = strategy.tp;  // of the blocks that do not stand whole
  for (const plan::Stage& stage : plan.stages)
    for (const plan::StrategyRun& run : stage.runs) most_tensor = std::max(most_tensor, run.strategy.tp);
  std::string out;
  for (const auto& [name, degree] :
       {std::pair{"dp", strategy.dp}, {"tp", strategy.tp}, {"cp", strategy.cp}, {"pp", pipeline_of(plan).size}})
    if (degree > 1) out += text(out.empty() ? "" : " x ", name, degree);
  if (most_tensor > strategy.tp) out += text(" with tp", most_tensor, " of some blocks");
  const bool mixed = std::ranges::any_of(plan.ranks, [&](const auto& place) { return place.group != plan.ranks.front().group; });
  return out.empty() ? "one worker" : out + (mixed ? " on all kinds" : "");
}

// Plans on devices that may be in one plan.
class PlanSearch {
 public:
  PlanSearch(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const profile::Profile& profile, const SearchOptions& options,
             const Devices& devices)
      : job_(job),
        cluster_(cluster),
        profile_(profile),
        options_(options),
        devices_(devices),
        begin_(options.clock->now()),
        space_(space_of(job, devices)),
        cost_model_(job.model, job.train, cluster, profile) {}

  SearchResult run() {
    check_given(job_, cluster_, devices_);
    SearchResult out;
    job_.data.lengths ? run_lengths(out) : space_.uniform ? run_uniform(out) : run_free(out);
    finish(out);
    return out;
  }

 private:
  // The best plan of each degrees.
  void run_uniform(SearchResult& out) {
    BlockAnswer answer = search_all(options_.top, out);
    std::set<std::string> fitting;
    for (plan::Plan& plan : answer.plans) {
      const std::string family = family_of(plan);
      fitting.insert(family);
      add(family, std::move(plan));
    }
    if (options_.top > 0) add_too_large(std::move(fitting), out.too_large);
  }

  // Of samples of different lengths: the best of each degrees, whatever micro-batches. What it takes to deal samples depends on how many
  // ranks may share one, and on how many tokens a rank holds at once, and little on what a step of samples of one length takes.
  void run_lengths(SearchResult& out) {
    const std::vector<BlockSpace> ways = ways_to_share();
    for (const BlockSpace& way : ways) {
      if (out_of_time() && !found_.empty()) break;
      try {
        BlockProblem problem = problem_of(job_, cluster_, way, std::max(kOfAWay, options_.effort / static_cast<std::int64_t>(ways.size())));
        problem.top = kFurtherPlans;
        problem.watch = options_.watch;
        BlockAnswer answer = search(problem);
        out.considered += answer.considered;
        for (plan::Plan& plan : answer.plans)
          if (found_.empty() || !out_of_time()) add_dealt(std::move(plan));
      } catch (const Error& error) {
        // Nothing divides.
        if (error.code() != ErrorCode::invalid_config) throw;
      }
    }
    if (!found_.empty()) return;
    BlockAnswer answer = search_all(options_.top, out);
    for (plan::Plan& plan : answer.plans) add(family_of(plan), std::move(plan));
  }

  // Unless it is clear that its family has a better one.
  void add_dealt(plan::Plan plan) {
    const std::string family = family_of(plan);
    const auto better = std::ranges::find(found_, family, &Candidate::family);
    const Seconds most = better == found_.end() ? Seconds(std::numeric_limits<double>::infinity()) : better->plan.predicted->step;
    plan.lengths = length_prices(plan, job_, profile_, cost_model_);
    if (!options_.lengths.empty() && !price_by_lengths(plan, options_.lengths, job_.model.dim("seq"), most)) return;
    const Seconds step = plan.predicted->step;
    if (step >= most) return;
    if (better == found_.end())
      found_.push_back({std::move(plan), family});
    else
      better->plan = std::move(plan);
    if (options_.watch != nullptr) options_.watch->found(step);
  }

  // The space, for each number of ranks that share a sample at most, each number of micro-batches, and each way to exchange.
  std::vector<BlockSpace> ways_to_share() const {
    std::vector<BlockSpace> out;
    int most = 1;
    for (const int group : devices_.groups) most = std::max(most, most_ranks(cluster_.groups[group], devices_.node_ranks[group]));
    for (const std::int64_t degree : space_.given.context > 0 ? std::vector<std::int64_t>{space_.given.context} : plan::divisors_of(most)) {
      if (degree > space_.most_context) continue;
      for (const std::int64_t micro_batches : plan::divisors_of(job_.train.global_batch)) {
        if (!GivenDegrees::allows(space_.given.micro_batches, micro_batches)) continue;
        BlockSpace way = space_;
        way.given.context = static_cast<int>(degree);
        way.given.micro_batches = micro_batches;
        if (degree > 1 && !space_.context) {
          way.context = model::ContextKind::ring;
          out.push_back(way);
          way.context = model::ContextKind::ulysses;
        }
        out.push_back(way);
      }
    }
    return out;
  }

  // With more memory, those that are missing without it.
  void add_too_large(std::set<std::string> seen, std::vector<Candidate>& out) const {
    if (out_of_time()) return;
    BlockSpace space = space_;
    space.memory = kMostShown;
    BlockProblem problem = problem_of(job_, cluster_, space, options_.effort / 4);
    problem.top = options_.top;
    const auto fits = [&](const plan::Plan& plan) { return fullest(plan, cluster_).share() <= 1; };
    for (plan::Plan& plan : search(problem).plans)
      if (const std::string family = family_of(plan); !fits(plan) && seen.insert(family).second) out.push_back({std::move(plan), family});
  }

  void run_free(SearchResult& out) {
    BlockAnswer best = search_all(kFurtherPlans, out);
    // The search counts with exchanges at the end of each step, and its bound holds for those alone.
    if (!may_delay(job_)) out.bound = best.bound;
    add("blocks cut one by one", std::move(best.plans.front()));
    for (std::size_t i = 1; i < best.plans.size(); ++i) out.close.push_back({as_trained(std::move(best.plans[i])), found_.front().family});
    const std::vector<Family> parts = options_.top > 0 ? families() : std::vector<Family>();
    std::vector<Candidate> of_templates;
    std::vector<BestOfFamily> best_of(parts.size());
    // Widest first, as these take longest; and before them those over several groups, which one thread lists.
    std::vector<std::size_t> order(parts.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
    std::ranges::stable_partition(order, [&](std::size_t part) { return parts[part].space.mixed_groups; });
    // One of these alone seldom keeps all cores busy. Templates have one thread.
    in_parallel(kBesides, 1 + order.size(), [&](std::size_t, std::size_t i) {
      if (i == 0)
        of_templates = templates();
      else
        best_of[order[i - 1]] = best_of_family(parts[order[i - 1]]);
    });
    for (Candidate& candidate : of_templates) add(candidate.family, std::move(candidate.plan));
    for (BestOfFamily& best : best_of) {
      if (best.fits) add(best.fits->family, std::move(best.fits->plan));
      if (best.too_large) out.too_large.push_back(std::move(*best.too_large));
    }
  }

  // At most one of them is set; neither, if the time was up or no degrees of the family divide.
  struct BestOfFamily {
    std::optional<Candidate> fits;
    std::optional<Candidate> too_large;
  };

  BestOfFamily best_of_family(const Family& family) const {
    try {
      if (out_of_time()) return {};
      BlockAnswer answer = searched(family.space, options_.effort / 2);
      if (!answer.plans.empty()) return {.fits = Candidate{std::move(answer.plans.front()), family.name}, .too_large = {}};
      return {.fits = {}, .too_large = out_of_time() ? std::nullopt : too_large(family)};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_config) throw;
      return {};
    }
  }

  // The best of what was found, the front and the runners-up.
  void finish(SearchResult& out) {
    if (job_.train.placement.kind != model::PlacementKind::off) keep_placeable(out.close);
    std::ranges::stable_sort(found_, {}, &Candidate::step);
    // A family whose best plan is also that of a wider one says nothing new.
    std::set<std::string> seen;
    std::erase_if(found_, [&](const Candidate& candidate) { return !seen.insert(to_json(candidate.plan)).second; });
    if (options_.front) out.front = front();
    out.best = std::move(found_.front().plan);
    out.best_family = std::move(found_.front().family);
    out.bound = std::min(out.bound, out.best.predicted->step.value);
    for (std::size_t i = 1; i < found_.size() && static_cast<int>(i) <= options_.top; ++i) out.runners_up.push_back(std::move(found_[i]));
    order_by_links(out.best, cluster_, profile_);
    for (Candidate& candidate : out.runners_up) order_by_links(candidate.plan, cluster_, profile_);
  }

  // What train.placement needs of a plan not every plan of the space has.
  void keep_placeable(std::vector<Candidate>& close) {
    std::optional<Error> refused;
    const auto faulty = [&](const Candidate& candidate) {
      try {
        plan::check(candidate.plan, job_, cluster_);
        return false;
      } catch (const Error& error) {
        refused = error;
        return true;
      }
    };
    std::erase_if(close, faulty);
    std::erase_if(found_, faulty);
    if (found_.empty()) throw *refused;
  }

  // The search of the whole space, which has found some plan.
  BlockAnswer search_all(int top, SearchResult& out) {
    BlockProblem problem = problem_of(job_, cluster_, space_, options_.effort);
    problem.top = top;
    problem.give_up = false;
    problem.watch = options_.watch;
    if (options_.seconds > 0) {
      problem.effort = 0;
      problem.seconds = kOfBlocks * options_.seconds;
    }
    BlockAnswer answer;
    try {
      answer = search(problem);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_config || !fixed()) throw;
      throw Error(ErrorCode::invalid_config,
                  text("parallel: no plan with ", given_text(job_.parallel), " divides the devices of ", cluster_.name,
                       " and a global batch of ", job_.train.global_batch),
                  job_.parallel.where,
                  std::ranges::all_of(space_.schedules, cost::several_stages_a_rank)
                      ? "a block for each stage, on the devices of one kind, and micro-batches enough to fill the pipeline"
                      : "degrees that divide them",
                  "`parallel: auto`, or fewer of the degrees, leaves the choice to the planner");
    }
    out.considered = answer.considered;
    if (answer.plans.empty()) {
      if (is_set(stop())) throw Error(ErrorCode::interrupted, "stopped before the search had found a plan");
      throw nothing_fits();
    }
    return answer;
  }

  double seconds_left() const { return options_.seconds - (options_.clock->now() - begin_).value; }
  const std::atomic<bool>* stop() const { return options_.watch != nullptr ? &options_.watch->stop : nullptr; }
  bool out_of_time() const { return is_set(stop()) || (options_.seconds > 0 && seconds_left() <= 0); }

  bool fixed() const { return job_.parallel.kind == model::ParallelChoice::Kind::degrees; }

  // The plan of a family that would fit with the least multiple of the memory.
  std::optional<Candidate> too_large(const Family& family) const {
    BlockSpace space = family.space;
    for (space.memory = 2; space.memory <= kMostShown; space.memory *= 2)
      if (BlockAnswer answer = any_plan(space, job_, cluster_); !answer.plans.empty())
        return Candidate{std::move(answer.plans.front()), family.name};
    return {};
  }

  BlockProblem problem_of(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const BlockSpace& space,
                          std::int64_t effort) const {
    return {.model = job.model,
            .cluster = cluster,
            .precision = job.train.precision,
            .global_batch = job.train.global_batch,
            .rows_ahead = job.parameter_servers.allows_rows_ahead(),
            .delayed_exchange = space.uniform && may_delay(job_),
            .space = space,
            .tolerance = kTolerance,
            .effort = effort,
            .give_up = true,
            .stop = stop(),
            .clock = options_.clock,
            .optimizer = job.train.optimizer,
            .profile = &profile_};
  }

  // Beside the search of the whole space. Of the time that is left it may take half.
  BlockAnswer searched(const BlockSpace& space, std::int64_t effort) const {
    BlockProblem problem = problem_of(job_, cluster_, space, effort);
    problem.watch = options_.watch;
    problem.give_up = options_.seconds > 0;
    if (options_.seconds > 0) problem.seconds = seconds_left() / 2;
    return search(problem);
  }

  // For whether anything fits.
  BlockAnswer any_plan(const BlockSpace& space, const model::JobSpec& job, const cluster::ClusterSpec& cluster) const {
    return search(problem_of(job, cluster, space, kEnough));
  }

  bool fits_somehow(const BlockSpace& space, const model::JobSpec& job, const cluster::ClusterSpec& cluster) const {
    try {
      return !any_plan(space, job, cluster).plans.empty();
    } catch (const Error&) {
      // Nothing divides.
      return false;
    }
  }

  void add(const std::string& family, plan::Plan plan) {
    found_.push_back({as_trained(std::move(plan)), family});
    if (options_.watch != nullptr) options_.watch->found(found_.back().plan.predicted->step);
  }

  plan::Plan as_trained(plan::Plan plan) {
    plan = delayed_if_faster(std::move(plan), job_, cost_model_);
    if (!job_.data.lengths) return plan;
    plan.lengths = length_prices(plan, job_, profile_, cost_model_);
    if (!options_.lengths.empty())
      price_by_lengths(plan, options_.lengths, job_.model.dim("seq"), Seconds(std::numeric_limits<double>::infinity()));
    return plan;
  }

  // The best of each group.
  std::vector<Candidate> templates() {
    std::vector<Candidate> out;
    for (const int group : devices_.groups) {
      TemplateSpace space{.group = group};
      if (!job_.parallel.schedule.empty()) space.schedules = space_.schedules;
      if (job_.parallel.zero) space.zero = space_.zero;
      if (options_.seconds > 0) space.deadline = begin_ + Seconds(options_.seconds);
      if (auto best = best_template(problem_of(job_, cluster_, space_, 0), space, cost_model_))
        out.push_back(
            {std::move(*best), "one dp x tp x pp for all" + (cluster_.groups.size() > 1 ? " on " + cluster_.groups[group].name : "")});
    }
    return out;
  }

  std::vector<Family> families() const {
    BlockSpace data = space_;
    data.most_tensor = data.most_context = data.most_stages = 1;
    data.offload = false;
    data.mixed_groups = false;
    BlockSpace sharded = data;
    std::erase_if(data.zero, [](int zero) { return zero > 1; });
    std::erase_if(sharded.zero, [](int zero) { return zero < 3; });
    BlockSpace flat = space_;
    flat.most_stages = 1;
    std::vector<Family> out = {{"data parallel", data}, {"data parallel, ZeRO-3", sharded}, {"no pipeline", flat}};
    std::erase_if(out, [](const Family& family) { return family.space.zero.empty(); });
    if (cluster_.groups.size() > 1) {
      BlockSpace alone = space_;
      alone.mixed_groups = false;
      out.push_back({"one kind of device", alone});
    }
    return out;
  }

  // Also of plans for less memory than there is.
  std::vector<FrontPoint> front() {
    std::vector<FrontPoint> out;
    for (const Candidate& candidate : found_) out.push_back(front_point(candidate.plan, candidate.family, cluster_));
    for (const double share : kShares) {
      BlockSpace space = space_;
      space.memory = share;
      if (out_of_time()) break;
      const BlockAnswer answer = searched(space, options_.effort / 4);
      if (answer.plans.empty()) break;
      const std::string family = space_.uniform ? family_of(answer.plans.front()) : "blocks cut one by one";
      out.push_back(front_point(as_trained(answer.plans.front()), family, cluster_));
    }
    return front_of(std::move(out));
  }

  // The least multiple of the devices' memory with which some plan fits, and the plan; 0 when none is found.
  std::pair<double, std::optional<plan::Plan>> smallest_plan() const {
    std::optional<plan::Plan> plan;
    BlockSpace space = space_;
    const auto fits = [&](double factor) {
      space.memory = factor;
      BlockAnswer answer = any_plan(space, job_, cluster_);
      if (answer.plans.empty()) return false;
      plan = std::move(answer.plans.front());
      return true;
    };
    double high = 2;
    while (!fits(high)) {
      high *= 2;
      if (high > kMostMemory) return {0, std::nullopt};
    }
    double low = high / 2;
    while (high / low > 1.02) {
      const double middle = std::sqrt(low * high);
      (fits(middle) ? high : low) = middle;
    }
    return {high, std::move(plan)};
  }

  // One thing that `parallel:` need not say for a plan to fit; the whole of it where one is not enough; empty where nothing helps.
  std::string superfluous() const {
    const auto fits = [&](const model::ParallelChoice& parallel) {
      model::JobSpec job = job_;
      job.parallel = parallel;
      return fits_somehow(space_of(job, devices_), job, cluster_);
    };
    const model::ParallelChoice& all = job_.parallel;
    const auto without = [&](auto model::ParallelChoice::*field) {
      model::ParallelChoice rest = all;
      rest.*field = {};
      return rest;
    };
    for (const model::ParallelChoice& rest :
         {without(&model::ParallelChoice::recompute), without(&model::ParallelChoice::sequence_parallel),
          without(&model::ParallelChoice::zero), without(&model::ParallelChoice::micro_batches), without(&model::ParallelChoice::schedule),
          without(&model::ParallelChoice::ep), without(&model::ParallelChoice::cp), without(&model::ParallelChoice::tp),
          without(&model::ParallelChoice::dp), without(&model::ParallelChoice::pp)})
      if (given_text(rest) != given_text(all) && fits(rest))
        return given_text(rest).empty() ? "parallel: auto" : "parallel with " + given_text(rest) + " alone";
    return fits({}) ? "parallel: auto" : "";
  }

  Error nothing_fits() {
    const auto [factor, smallest] = smallest_plan();
    std::vector<std::string> ideas;
    if (fixed())
      if (const std::string less = superfluous(); !less.empty()) ideas.push_back(less);
    if (const int workers = fewer_workers(); workers > 0) ideas.push_back(text("cluster.local.devices=", workers));
    if (const int nodes = factor_of_nodes(); nodes > 0) ideas.push_back(text(nodes, " times the nodes"));
    if (const std::int64_t tokens = shorter_sequence(); tokens > 0) ideas.push_back(text("model.seq=", tokens));
    return search::nothing_fits(job_, cluster_, devices_, factor, smallest, cost_model_, ideas);
  }

  // Of a host's workers, so many as fit; 0 where their number is not given, or none do.
  int fewer_workers() const {
    if (job_.cluster.kind != model::ClusterChoice::Kind::local) return 0;
    for (int count = job_.cluster.devices - 1; count > 0; --count) {
      BlockSpace space = space_;
      for (std::vector<NodeRanks>& ways : space.node_ranks)
        for (NodeRanks& ranks : ways) ranks.count = count;
      if (fits_somehow(space, job_, cluster_)) return count;
    }
    return 0;
  }

  // Halved until something fits; 0 where nothing does.
  std::int64_t shorter_sequence() const {
    constexpr std::int64_t kShortest = 128;
    if (!job_.model.dims.contains("seq")) return 0;
    for (std::int64_t tokens = job_.model.dim("seq") / 2; tokens >= kShortest; tokens /= 2)
      if (const auto job = with_sequence(job_, tokens); job && fits_somehow(space_, *job, cluster_)) return tokens;
    return 0;
  }

  int factor_of_nodes() const {
    constexpr int kMost = 64;
    constexpr std::int64_t kMostDevices = 1 << 17;
    if (counts_hosts(job_)) return 0;
    std::int64_t devices = 0;
    for (const cluster::ResourceGroup& group : cluster_.groups) devices += std::int64_t{group.nodes} * group.devices_per_node;
    for (int factor = 2; factor <= kMost && factor * devices <= kMostDevices; factor *= 2) {
      cluster::ClusterSpec larger = cluster_;
      for (cluster::ResourceGroup& group : larger.groups) group.nodes *= factor;
      if (fits_somehow(space_, job_, larger)) return factor;
    }
    return 0;
  }

  const model::JobSpec& job_;
  const cluster::ClusterSpec& cluster_;
  const profile::Profile& profile_;
  const SearchOptions& options_;
  const Devices& devices_;
  const Seconds begin_;
  const BlockSpace space_;  // what `parallel:` leaves open
  cost::CostModel cost_model_;
  std::vector<Candidate> found_;
};

SearchResult search_groups(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const profile::Profile& profile,
                           const SearchOptions& options) {
  const std::vector<Devices> all = devices_of(job, cluster, options.vendors);
  if (all.empty())
    throw Error(ErrorCode::invalid_config, text("no device of ", cluster.name, " computes in ", model::name_of(job.train.precision)),
                job.cluster.where, "a device that does, or another train.precision");
  std::optional<SearchResult> best;
  std::optional<Error> refusal;
  for (const Devices& devices : all) {
    if (best && options.watch != nullptr && options.watch->stop) break;
    try {
      SearchResult result = PlanSearch(job, cluster, profile, options, devices).run();
      if (best && best->best.predicted->step <= result.best.predicted->step) std::swap(*best, result);
      if (best) {
        // Of the slower devices the best plan is a runner-up.
        result.considered += best->considered;
        result.runners_up.insert(result.runners_up.begin(), {std::move(best->best), std::move(best->best_family)});
      }
      best = std::move(result);
    } catch (const Error& error) {
      if (best && error.code() == ErrorCode::interrupted) break;
      if (error.code() != ErrorCode::invalid_config && error.code() != ErrorCode::resource_exhausted) throw;
      if (!refusal) refusal = error;
    }
  }
  if (!best) throw *refusal;
  return std::move(*best);
}

// On hosts of one group that may differ in speed.
SearchResult search_hosts(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const profile::Profile& profile,
                          const SearchOptions& options) {
  const BySpeed by_speed(cluster);
  SearchResult result = search_groups(job, by_speed.cluster(), profile, options);
  by_speed.restore(result.best);
  for (std::vector<Candidate>* const candidates : {&result.runners_up, &result.close, &result.too_large})
    for (Candidate& candidate : *candidates) by_speed.restore(candidate.plan);
  return result;
}

}  // namespace

SearchResult search(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const profile::Profile& profile,
                    const SearchOptions& options) {
  const bool own_servers = model::reads_clicks(job.model) && (job.parameter_servers.places.empty() || !options.serving.empty());
  if (!own_servers) return search_hosts(job, cluster, profile, options);
  return search_serving(job, cluster, profile, options, [&](const cluster::ClusterSpec& hosts, const SearchOptions& with) {
    return search_hosts(job, hosts, profile, with);
  });
}

}  // namespace tessera::search
