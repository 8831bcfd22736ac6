#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <optional>

#include "interop/galvatron/front.hpp"
#include "interop/galvatron/space.hpp"

namespace tessera::interop::galvatron {
namespace {

std::vector<Item> items_of(const Menu& menu, std::size_t stage) {
  std::vector<Item> items;
  for (std::size_t i = 0; i < menu.strategies.size(); ++i)
    items.push_back({menu.times[i].compute, menu.times[i].synchronised - menu.times[i].compute, menu.memory[stage][i]});
  return items;
}

// For each stage, less than what its layers, embedding and head can compute in.
std::vector<double> stage_bounds(const Choice& choice, const Menu& menu) {
  std::vector<double> bounds;
  for (std::size_t stage = 0; stage < choice.division.size(); ++stage)
    bounds.push_back(choice.other_time[stage] + least(items_of(menu, stage), choice.division[stage], choice.room[stage], 1, 0));
  return bounds;
}

// Steps are never shorter than without any gradient reduction, and grow with the compute of every stage.
double step_bound(const std::vector<double>& stages, int chunks) {
  if (std::ranges::find(stages, kInfinity) != stages.end()) return kInfinity;
  std::vector<Times> times;
  for (double seconds : stages) times.push_back({seconds, 0});
  return pipeline_time(times, chunks);
}

// How often the first or the last stage computes within a step at least, as the formula of the pipeline has it.
int times_at_end(const Choice& choice, std::size_t stage) {
  const int depth = static_cast<int>(choice.division.size());
  return stage + 1 == choice.division.size() || choice.chunks >= depth ? choice.chunks : std::max(1, choice.chunks - 1);
}

// A step is at least so many times the compute of its first stage, or of its last, plus what that stage's reduction exposes
// beyond the embedding or the head.
double exposed_bound(const Choice& choice, const Menu& menu) {
  double bound = 0;
  for (const std::size_t stage : {std::size_t{0}, choice.division.size() - 1}) {
    const int times = times_at_end(choice, stage);
    bound = std::max(
        bound, (times - 1) * choice.other_time[stage] + least(items_of(menu, stage), choice.division[stage], choice.room[stage], times, 1));
  }
  return bound;
}

// The most that stage `stage` may compute for the step to stay below `limit` when the others do as well as they can.
double compute_limit(std::vector<double> bounds, std::size_t stage, int chunks, double limit) {
  if (limit == kInfinity) return kInfinity;
  // The step is piecewise linear in one stage, with at least slope one (in the middle: only beyond what the ends hide).
  double low = bounds[stage], high = low + limit;
  for (int i = 0; i < 60; ++i) {
    bounds[stage] = (low + high) / 2;
    (step_bound(bounds, chunks) <= limit ? low : high) = bounds[stage];
  }
  return high;
}

struct Solution {
  double step = 0;
  std::vector<Mix> stages;
};

// One mix per stage for the shortest step; depth-first, quickest mixes first, cut by the bound of the stages not yet chosen.
class StageSearch {
 public:
  StageSearch(const Choice& choice, const std::vector<double>& bounds, const std::vector<std::vector<Mix>>& mixes, double limit)
      : choice_(choice), mixes_(mixes), best_(limit), bounds_(bounds), times_(bounds.size()), picked_(bounds.size(), 0) {}

  // None when no step is below the limit.
  std::optional<Solution> run() {
    descend(0);
    if (found_.empty()) return std::nullopt;
    Solution out{best_, {}};
    for (std::size_t stage = 0; stage < found_.size(); ++stage) out.stages.push_back(mixes_[stage][found_[stage]]);
    return out;
  }

 private:
  void descend(std::size_t stage) {
    if (stage == mixes_.size()) {
      const double step = pipeline_time(times_, choice_.chunks);
      if (step < best_) {
        best_ = step;
        found_ = picked_;
      }
      return;
    }
    const double relaxed = bounds_[stage];
    for (std::size_t i = 0; i < mixes_[stage].size(); ++i) {
      const Mix& mix = mixes_[stage][i];
      times_[stage] = {mix.compute + choice_.other_time[stage], mix.compute + mix.exposed};
      bounds_[stage] = times_[stage].compute;
      if (step_bound(bounds_, choice_.chunks) >= best_) break;
      picked_[stage] = static_cast<int>(i);
      descend(stage + 1);
    }
    bounds_[stage] = relaxed;
  }

  const Choice& choice_;
  const std::vector<std::vector<Mix>>& mixes_;
  double best_;
  std::vector<double> bounds_;
  std::vector<Times> times_;
  std::vector<int> picked_, found_;
};

// The best mixes for one choice, if they take less than `limit`. The integer optimum is mostly within a hair of the bound, and
// fronts stay short below it; whatever is found under a lower limit is the best of all, so the limit is raised step by step.
std::optional<Solution> solve(const Choice& choice, const Menu& menu, const std::vector<double>& bounds, double bound, double limit) {
  for (const double slack : {1.001, 1.01, 1.1, kInfinity}) {
    const double within = std::min(limit, bound * slack);
    std::vector<std::vector<Mix>> mixes;
    for (std::size_t stage = 0; stage < choice.division.size(); ++stage) {
      std::vector<Cutoff> cutoffs = {{1, 0, compute_limit(bounds, stage, choice.chunks, within) - choice.other_time[stage]}};
      if (stage == 0 || stage + 1 == choice.division.size()) {
        const int times = times_at_end(choice, stage);
        cutoffs.push_back({static_cast<double>(times), 1, within - (times - 1) * choice.other_time[stage]});
      }
      mixes.push_back(pareto_mixes(items_of(menu, stage), choice.division[stage], choice.room[stage], cutoffs));
    }
    if (auto solution = StageSearch(choice, bounds, mixes, within).run()) return solution;
    if (within == limit) break;
  }
  return std::nullopt;
}

// Layers with the same strategy stand together, and the widest split first, so that few borders need data to move.
Plan assemble(const Choice& choice, const Menu& menu, const Solution& solution) {
  Plan plan{choice.global_batch, choice.chunks, choice.division, {}, choice.embedding, choice.counted_split};
  std::vector<int> order(menu.strategies.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return menu.strategies[a].split() > menu.strategies[b].split(); });
  for (const Mix& mix : solution.stages)
    for (int i : order) plan.layers.insert(plan.layers.end(), mix.counts[i], menu.strategies[i]);
  return plan;
}

// The smallest limit in GB under which some choice fits.
Error nothing_fits(const Inputs& inputs) {
  const Space space = enumerate(inputs, 0);
  if (space.choices.empty())
    return Error(
        ErrorCode::invalid_config,
        text("nothing divides: ", inputs.settings.devices(), " devices, ", inputs.settings.layers, " layers, and what the YAML leaves on"),
        {inputs.settings.file.string(), 0, 0, -1, {}},
        "a strategy that is not disabled, with profiles of its degrees, and a batch with a sample for every rank of each micro-batch");
  long long least = std::numeric_limits<long long>::max();
  for (const Choice& choice : space.choices) {
    long long most = 0;
    for (std::size_t stage = 0; stage < choice.division.size(); ++stage) {
      const std::vector<int>& memory = space.menus[choice.menu].memory[stage];
      most = std::max(most, static_cast<long long>(choice.division[stage]) * std::ranges::min(memory) - choice.room[stage]);
    }
    least = std::min(least, most);
  }
  Settings settings = inputs.settings;
  while (usable_memory(settings) < least) ++settings.memory_gb;
  return Error(
      ErrorCode::resource_exhausted,
      text("no plan fits into ", inputs.settings.memory_gb, " GB (", usable_memory(inputs.settings), " MB after Galvatron's reserve)"),
      {inputs.settings.file.string(), 0, 0, -1, {}}, text("search_engine.hardware_info.memory_constraint of at least ", settings.memory_gb),
      text("the leanest plan needs ", least, " MB"));
}

}  // namespace

SearchResult search(const Inputs& inputs) {
  if (!std::has_single_bit(static_cast<unsigned>(inputs.settings.devices())))
    throw Error(ErrorCode::invalid_config, text(inputs.settings.devices(), " devices cannot be halved down to one"),
                {inputs.settings.file.string(), 0, 0, -1, {}}, "a power of two for num_nodes x num_gpus_per_node");
  const Space space = enumerate(inputs, usable_memory(inputs.settings));
  // Seconds per sample: what batches of different sizes are compared by.
  struct Candidate {
    double per_sample;
    std::size_t choice;
    std::vector<double> bounds;
  };
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < space.choices.size(); ++i) {
    const Choice& choice = space.choices[i];
    std::vector<double> bounds = stage_bounds(choice, space.menus[choice.menu]);
    const double bound = std::max(step_bound(bounds, choice.chunks), exposed_bound(choice, space.menus[choice.menu]));
    if (bound < kInfinity) candidates.push_back({bound / choice.global_batch, i, std::move(bounds)});
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::per_sample);
  SearchResult result{{}, {}, static_cast<std::int64_t>(space.choices.size()), 0};
  double best = kInfinity;  // seconds per sample
  for (const Candidate& candidate : candidates) {
    if (candidate.per_sample >= best) break;
    ++result.examined;
    const Choice& choice = space.choices[candidate.choice];
    const Menu& menu = space.menus[choice.menu];
    const auto solution = solve(choice, menu, candidate.bounds, candidate.per_sample * choice.global_batch, best * choice.global_batch);
    if (!solution) continue;
    best = solution->step / choice.global_batch;
    result.plan = assemble(choice, menu, *solution);
  }
  if (best == kInfinity) throw nothing_fits(inputs);
  result.cost = cost_of(inputs, result.plan);
  return result;
}

}  // namespace tessera::interop::galvatron
