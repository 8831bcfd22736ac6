#include "search/accelerators.hpp"
#include "cost/cost.hpp"
#include "search/search.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "cost/cost_model.hpp"
#include "cost/warm_up.hpp"
#include "search/exhausted.hpp"
#include "search/front.hpp"
#include "search/given.hpp"
#include "search/templates.hpp"

namespace tessera::search {
namespace {

// A plan this close to the optimum is good enough.
constexpr double kTolerance = 1e-3;
// So many further plans are kept for the simulator.
constexpr int kClose = 7;
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

class Accelerators {
 public:
  Accelerators(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const SearchOptions& options)
      : job_(job),
        cluster_(cluster),
        options_(options),
        begin_(options.clock->now()),
        space_(space_of(job.parallel)),
        cost_model_(job.model, cluster, job.train.precision) {}

  SearchResult run() {
    check_given(job_, cluster_);
    SearchResult out;
    if (cuts_blocks(space_)) search_blocks(out);
    std::optional<plan::Plan> smallest;  // of the templates
    for (int group = 0; group < static_cast<int>(cluster_.groups.size()); ++group) {
      TemplateAnswer answer = add_templates(group, out.close);
      if (!cuts_blocks(space_)) out.considered += answer.considered;
      if (answer.smallest) smallest = std::move(answer.smallest);
    }
    if (found_.empty() && smallest) throw nothing_fits(fullest(*smallest, smallest->predicted->memory, cluster_).share(), *smallest);
    if (found_.empty()) throw nothing_divides();
    if (options_.top > 0 && cuts_blocks(space_))
      for (const Family& family : families()) {
        try {
          if (out_of_time()) break;
          BlockAnswer answer = searched(family.space, options_.effort / 2);
          if (!answer.plans.empty())
            add(family.name, std::move(answer.plans.front()));
          else if (!out_of_time())
            add_too_large(family, out.too_large);
        } catch (const Error& error) {
          // No degrees of this part of the space divide.
          if (error.code() != ErrorCode::invalid_config) throw;
        }
      }
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.plan.predicted->step < b.plan.predicted->step; });
    drop_repeated();
    if (options_.front) out.front = front();
    out.best = std::move(found_.front().plan);
    out.best_family = std::move(found_.front().family);
    out.bound = may_delay() ? 0 : std::min(out.bound, out.best.predicted->step.value);
    for (std::size_t i = 1; i < found_.size() && static_cast<int>(i) <= options_.top; ++i) out.runners_up.push_back(std::move(found_[i]));
    return out;
  }

 private:
  void search_blocks(SearchResult& out) {
    BlockProblem problem = problem_of(job_, cluster_, space_, options_.effort);
    problem.top = kClose;
    if (options_.seconds > 0) {
      problem.effort = 0;
      problem.seconds = kOfBlocks * options_.seconds;
    }
    BlockAnswer best;
    try {
      best = search(problem);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_config || !fixed()) throw;
      throw nothing_divides();
    }
    out.considered = best.considered;
    out.bound = best.bound;
    if (best.plans.empty()) {
      const auto [factor, smallest] = smallest_plan();
      throw nothing_fits(factor, smallest);
    }
    add("blocks cut one by one", std::move(best.plans.front()));
    for (std::size_t i = 1; i < best.plans.size(); ++i)
      out.close.push_back({delayed_if_faster(std::move(best.plans[i])), found_.front().family});
  }

  double seconds_left() const { return options_.seconds - (options_.clock->now() - begin_).value; }
  bool out_of_time() const { return options_.seconds > 0 && seconds_left() <= 0; }

  bool fixed() const { return job_.parallel.kind == model::ParallelChoice::Kind::degrees; }

  // Otherwise templates alone know the schedule.
  static bool cuts_blocks(const BlockSpace& space) {
    return std::none_of(space.schedules.begin(), space.schedules.end(), cost::several_stages_a_rank);
  }

  Error nothing_divides() const {
    return {ErrorCode::invalid_config,
            text("parallel: no plan with ", given_text(job_.parallel), " divides the devices of ", cluster_.name, " and a global batch of ",
                 job_.train.global_batch),
            job_.parallel.where,
            cuts_blocks(space_) ? "degrees that divide them"
                                : "a block for each stage, on the devices of one kind, and micro-batches enough to fill the pipeline",
            "`parallel: auto`, or fewer of the degrees, leaves the choice to the planner"};
  }

  // A family whose best plan is also that of a wider one says nothing new.
  void drop_repeated() {
    std::set<std::string> seen;
    std::erase_if(found_, [&](const Candidate& candidate) { return !seen.insert(to_json(candidate.plan)).second; });
  }

  // The plan of a family that would fit with the least multiple of the memory.
  void add_too_large(const Family& family, std::vector<Candidate>& out) const {
    BlockSpace space = family.space;
    for (space.memory = 2; space.memory <= kMostShown; space.memory *= 2) {
      BlockAnswer answer = any_plan(space, job_, cluster_);
      if (answer.plans.empty()) continue;
      out.push_back({std::move(answer.plans.front()), family.name});
      return;
    }
  }

  BlockProblem problem_of(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const BlockSpace& space,
                          std::int64_t effort) const {
    return {.model = job.model,
            .cluster = cluster,
            .precision = job.train.precision,
            .global_batch = job.train.global_batch,
            .space = space,
            .tolerance = kTolerance,
            .effort = effort,
            .clock = options_.clock};
  }

  // Beside the search of the whole space. Of the time that is left it may take half.
  BlockAnswer searched(const BlockSpace& space, std::int64_t effort) const {
    BlockProblem problem = problem_of(job_, cluster_, space, effort);
    if (options_.seconds > 0) {
      problem.seconds = seconds_left() / 2;
      problem.give_up = true;
    }
    return search(problem);
  }

  // For whether anything fits.
  BlockAnswer any_plan(const BlockSpace& space, const model::JobSpec& job, const cluster::ClusterSpec& cluster) const {
    BlockProblem problem = problem_of(job, cluster, space, kEnough);
    problem.give_up = true;
    return search(problem);
  }

  void add(const std::string& family, plan::Plan plan) { found_.push_back({delayed_if_faster(std::move(plan)), family}); }

  // The search counts with exchanges at the end of each step, and its bound holds for those alone.
  bool may_delay() const { return job_.train.optimizer.clip == 0 && (!fixed() || job_.parallel.delayed_exchange); }

  plan::Plan delayed_if_faster(plan::Plan plan) {
    if (!may_delay()) return plan;
    plan::Plan delayed = plan;
    delayed.delayed_exchange = true;
    delayed.predicted = predict(delayed, cost_model_);
    return job_.parallel.delayed_exchange || delayed.predicted->step.value < plan.predicted->step.value * (1 - kTolerance) ? delayed : plan;
  }

  std::string on(int group) const {
    return cluster_.groups.size() > 1 ? " on " + cluster_.groups[static_cast<std::size_t>(group)].name : std::string();
  }

  TemplateAnswer add_templates(int group, std::vector<Candidate>& close) {
    const BlockProblem problem = problem_of(job_, cluster_, space_, 0);
    std::vector<std::pair<const char*, TemplateSpace>> templates = {{"one dp x tp x pp for all", {.group = group}}};
    if (job_.parallel.schedule.empty())
      templates.push_back({"one dp x tp x pp, zero bubble", {.group = group, .schedules = {plan::Schedule::zb_v}, .zero = {1}}});
    else
      templates.front().second.schedules = space_.schedules;
    TemplateAnswer first;
    for (auto& [name, space] : templates) {
      if (job_.parallel.zero) space.zero = space_.zero;
      if (!cuts_blocks(space_)) space.most_context = space_.most_context;
      if (options_.seconds > 0) space.deadline = begin_ + Seconds(options_.seconds);
      space.needed = found_.empty();
      // Otherwise the search over blocks has them.
      if (!cuts_blocks(space_)) space.further = kClose;
      TemplateAnswer answer = best_template(problem, space, cost_model_);
      if (answer.best) add(name + on(group), std::move(*answer.best));
      for (plan::Plan& plan : answer.further) close.push_back({delayed_if_faster(std::move(plan)), name + on(group)});
      if (&space == &templates.front().second) first = std::move(answer);
    }
    return first;
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

  // Plans for less memory than there is.
  std::vector<FrontPoint> front() {
    Front front;
    const auto add = [&](const plan::Plan& plan, const std::string& family) {
      const Usage usage = fullest(plan, plan.predicted->memory, cluster_);
      if (front.admits(plan.predicted->step.value, usage.share())) front.add(front_point(plan, family, usage));
    };
    for (const Candidate& candidate : found_) add(candidate.plan, candidate.family);
    if (!cuts_blocks(space_)) return front.points();
    for (const double share : kShares) {
      BlockSpace space = space_;
      space.memory = share;
      if (out_of_time()) break;
      const BlockAnswer answer = searched(space, options_.effort / 4);
      if (answer.plans.empty()) break;
      add(delayed_if_faster(answer.plans.front()), "blocks cut one by one");
    }
    return front.points();
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
      const BlockSpace space = space_of(parallel);
      try {
        return cuts_blocks(space) && !any_plan(space, job_, cluster_).plans.empty();
      } catch (const Error&) {
        return false;
      }
    };
    const model::ParallelChoice& all = job_.parallel;
    const auto without = [&](auto model::ParallelChoice::*field) {
      model::ParallelChoice rest = all;
      rest.*field = {};
      return rest;
    };
    for (const model::ParallelChoice& rest :
         {without(&model::ParallelChoice::recompute), without(&model::ParallelChoice::zero), without(&model::ParallelChoice::micro_batches),
          without(&model::ParallelChoice::schedule), without(&model::ParallelChoice::ep), without(&model::ParallelChoice::cp),
          without(&model::ParallelChoice::tp), without(&model::ParallelChoice::dp), without(&model::ParallelChoice::pp)})
      if (given_text(rest) != given_text(all) && fits(rest))
        return given_text(rest).empty() ? "parallel: auto" : "parallel with " + given_text(rest) + " alone";
    return fits({}) ? "parallel: auto" : "";
  }

  // `smallest` needs `factor` times the memory; 0 and nothing where no plan is known at all.
  Error nothing_fits(double factor, const std::optional<plan::Plan>& smallest) {
    const cluster::ResourceGroup* largest = nullptr;
    for (const cluster::ResourceGroup& group : cluster_.groups)
      if (group.device.has(job_.train.precision) && (largest == nullptr || group.device.memory > largest->device.memory)) largest = &group;
    const double state = 18 * static_cast<double>(job_.model.parameter_count());
    const Bytes limit = cost::memory_limit(largest->device);
    std::string what = "no plan fits";
    if (state > whole_memory())
      what += text(": weights, gradients and optimizer states of ", count_text(static_cast<double>(job_.model.parameter_count())),
                   " parameters alone are ", rounded_up(state), ", the devices of ", cluster_.name, " have ",
                   to_text(Bytes(static_cast<std::int64_t>(whole_memory()))), " for them");
    if (smallest)
      what += text(state > whole_memory() ? "; " : ": ", "the smallest plan needs ", rounded_up(factor * static_cast<double>(limit.value)),
                   " of each ", largest->device.name, ", which has ", to_text(limit),
                   "; its largest parts: ", largest_parts(*smallest, smallest->predicted->memory, cost_model_));
    std::string hint;
    const auto idea = [&](const std::string& words) { hint += (hint.empty() ? "" : "; ") + words; };
    if (const std::string less = fixed() ? superfluous() : ""; !less.empty()) idea(less);
    if (const int nodes = factor_of_nodes(); nodes > 0) idea(text(nodes, " times the nodes"));
    if (factor > 0) idea(text("devices with ", rounded_up(factor * static_cast<double>(largest->device.memory.value))));
    return {ErrorCode::resource_exhausted, what, job_.parallel.where, {}, hint.empty() ? hint : "what would fit: " + hint};
  }

  double whole_memory() const {
    double out = 0;
    for (const cluster::ResourceGroup& group : cluster_.groups)
      if (group.device.has(job_.train.precision))
        out += static_cast<double>(cost::memory_limit(group.device).value) * group.nodes * group.devices_per_node;
    return out;
  }

  int factor_of_nodes() const {
    constexpr int kMost = 64;
    if (!cuts_blocks(space_)) return 0;
    for (int factor = 2; factor <= kMost; factor *= 2) {
      cluster::ClusterSpec larger = cluster_;
      for (cluster::ResourceGroup& group : larger.groups) group.nodes *= factor;
      try {
        if (!any_plan(space_, job_, larger).plans.empty()) return factor;
      } catch (const Error&) {
        return 0;
      }
    }
    return 0;
  }

  const model::JobSpec& job_;
  const cluster::ClusterSpec& cluster_;
  const SearchOptions& options_;
  const Seconds begin_;
  const BlockSpace space_;  // what `parallel:` leaves open
  cost::CostModel cost_model_;
  std::vector<Candidate> found_;
};

}  // namespace

SearchResult search_accelerators(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const SearchOptions& options) {
  return Accelerators(job, cluster, options).run();
}

}  // namespace tessera::search
