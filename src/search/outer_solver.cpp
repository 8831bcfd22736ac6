#include "search/outer_solver.hpp"

#include <algorithm>
#include <array>

#include "plan/schedule/schedule.hpp"

namespace tessera::search {
namespace {

cost::CostModel cost_model_of(const BlockProblem& problem) {
  if (problem.profile == nullptr) return {problem.model, problem.cluster, problem.precision};
  model::TrainSpec train;
  train.precision = problem.precision;
  train.optimizer = problem.optimizer;
  return {problem.model, train, problem.cluster, *problem.profile};
}

// What the stages before a block take at least.
class Prefix {
 public:
  Prefix(const std::vector<int>& repeat_of, const std::vector<StageFronts*>& kinds, const std::vector<const GroupCut*>& cuts) {
    by_kind_.resize(kinds.size());
    for (std::size_t s = 0; s < kinds.size(); ++s) {
      if (s > 0 && cuts[s] == cuts[s - 1]) {
        by_kind_[s] = by_kind_[s - 1];
        factors_.push_back(factors_.back());
        continue;
      }
      by_kind_[s] = {0};
      for (const int repeat : repeat_of) by_kind_[s].push_back(by_kind_[s].back() + kinds[s]->least(repeat).busy);
      factors_.push_back(s == 0 ? 1 : least_factor(s));
    }
    for (const int repeat : repeat_of) {
      double least = kNever;
      for (const StageFronts* kind : kinds) least = std::min(least, kind->least(repeat).warm_up);
      warm_up_.push_back(warm_up_.back() + least);
    }
  }
  // Of the busiest of the stages before `stage`, which hold the blocks before `first`.
  double busy(int stage, int first) const {
    double capacity = 0;
    for (int s = 0; s < stage; ++s) capacity += 1 / factors_[s];
    return capacity > 0 ? by_kind_[0][first] / capacity : 0;
  }
  double warm_up(int first) const { return warm_up_[first]; }
  double least(int stage, int first, int last) const { return by_kind_[stage][last] - by_kind_[stage][first]; }

 private:
  // How much longer than on the first stage's kind the blocks take at least.
  double least_factor(std::size_t stage) const {
    double factor = kNever;
    const std::vector<double>& base = by_kind_[0];
    const std::vector<double>& sums = by_kind_[stage];
    for (std::size_t b = 0; b + 1 < sums.size(); ++b)
      if (base[b + 1] > base[b]) factor = std::min(factor, (sums[b + 1] - sums[b]) / (base[b + 1] - base[b]));
    return factor > 0 && factor < kNever ? factor : 1e-12;
  }

  std::vector<std::vector<double>> by_kind_;
  std::vector<double> factors_;
  std::vector<double> warm_up_ = {0};
};

}  // namespace

OuterSolver::OuterSolver(const BlockProblem& problem, const AllOptions& options, const std::vector<cost::StageDevices>& devices)
    : problem_(problem), options_(options), cost_model_(cost_model_of(problem)) {
  for (const cost::StageDevices& each : devices) cost_model_.add(each);
}

std::optional<Found> OuterSolver::solve(const Outer& outer, double incumbent, bool rough) {
  const double host = this->host(outer);
  const double most = incumbent * (rough ? 1 : 1 - problem_.tolerance) * (1 + kEqual) - host;
  if (too_large(outer)) return {};
  start(outer, rough);
  std::optional<Found> found;
  if (outer.chunks > 1) {
    if (const auto best = best_entries(outer, most, rough)) found = Found{&outer, best->step + host, plan_of(outer, *best)};
  } else {
    std::deque<Tail> tails;
    if (const Tail* best = best_tail(outer, most, tails)) found = Found{&outer, best->busy + best->warm_up + host, plan_of(outer, best)};
  }
  if (found) found->plan.predicted = predict(found->plan, cost_model_);
  forget();
  return found;
}

void OuterSolver::start(const Outer& outer, bool rough) {
  stages_ = {};
  for (const GroupCut& cut : outer.groups) {
    StageFronts& kind = fronts(outer, cut);
    kind.start(rough);
    stages_.kinds.insert(stages_.kinds.end(), cut.stages, &kind);
    stages_.cuts.insert(stages_.cuts.end(), cut.stages, &cut);
  }
}

void OuterSolver::forget() {
  for (StageFronts* kind : stages_.kinds) kind->forget();
}

const Tail* OuterSolver::best_tail(const Outer& outer, double most, std::deque<Tail>& tails) {
  const auto& [kinds, cuts] = stages_;
  const int stages = outer.stages();
  const int blocks = static_cast<int>(cost_model_.repeat_of().size());
  const Prefix prefix(cost_model_.repeat_of(), kinds, cuts);
  const Tail& end = tails.emplace_back();
  std::vector<std::vector<const Tail*>> behind(blocks + 1);
  behind[blocks] = {&end};
  for (int s = stages - 1; s >= 0; --s) {
    std::vector<std::vector<const Tail*>> here(blocks + 1);
    const auto held = static_cast<double>(plan::in_flight(outer.schedule, s, stages, outer.micro_batches));
    for (int first = s == 0 ? 0 : s; first <= (s == 0 ? 0 : blocks - (stages - s)); ++first) {
      if (prefix.busy(s, first) + prefix.warm_up(first) > most) continue;
      std::vector<Tail> made;
      for (int last = s + 1 == stages ? blocks : first + 1; last <= blocks - (stages - 1 - s); ++last) {
        if (behind[last].empty()) continue;
        if (prefix.least(s, first, last) > most) break;
        const double seconds = s + 1 == stages ? 0 : message(outer, *cuts[s], *cuts[s + 1], last);
        StageFronts& kind = *kinds[s];
        for (const StageEntry* entry : kind.front(std::array{Segment{first, last, held}},
                                                  most - prefix.warm_up(blocks) + prefix.warm_up(last) - prefix.warm_up(first)))
          for (const Tail* tail : behind[last]) {
            const Tail next{std::max(entry->busy + kind.busy_of(seconds), tail->busy),
                            entry->warm_up + kind.warm_up_of(seconds) + tail->warm_up, entry, last, tail};
            if (std::max(next.busy, prefix.busy(s, first)) + next.warm_up + prefix.warm_up(first) <= most) made.push_back(next);
          }
      }
      std::ranges::stable_sort(made, {}, [](const Tail& tail) { return std::tuple(tail.busy, tail.warm_up); });
      double least = kNever;
      for (const Tail& tail : made) {
        if (tail.warm_up >= least) continue;
        least = tail.warm_up;
        tails.push_back(tail);
        here[first].push_back(&tails.back());
      }
    }
    behind = std::move(here);
  }
  const auto best = std::ranges::min_element(behind.front(), {}, [](const Tail* tail) { return tail->busy + tail->warm_up; });
  return best != behind.front().end() ? *best : nullptr;
}

std::vector<int> OuterSolver::cuts_of(const Tail* tail) {
  std::vector<int> out = {0};
  for (; tail->next != nullptr; tail = tail->next) out.push_back(tail->end);
  return out;
}

StageFronts& OuterSolver::fronts(const Outer& outer, const GroupCut& cut) {
  const StageRanks ranks = outer.ranks(cut);
  auto& known = fronts_[{ranks, outer.schedule, outer.chunks}];
  if (!known)
    known = std::make_unique<StageFronts>(problem_, cost_model_, ranks, outer.schedule, outer.chunks, options_.at(ranks), effort_, memory_);
  return *known;
}

double OuterSolver::message(const Outer& outer, const GroupCut& from, const GroupCut& to, int block) {
  const double bytes = cost_model_.input_bytes(cost_model_.repeat_of()[block], problem_.global_batch / outer.micro_batches);
  return cost_model_.messages(bytes, from.devices, from.width, to.devices, to.width);
}

plan::Plan OuterSolver::frame_of(const Outer& outer) {
  const std::vector<const GroupCut*>& cuts = stages_.cuts;
  plan::Plan plan = search::frame_of(problem_, outer.micro_batches, outer.schedule);
  int of_cut = 0;
  std::map<int, int> next;  // device of each group
  for (std::size_t s = 0; s < cuts.size(); ++s) {
    const GroupCut& cut = *cuts[s];
    of_cut = s > 0 && cuts[s - 1] == &cut ? of_cut + 1 : 0;
    plan::Stage stage;
    const cost::StageDevices& on = cost_model_.parts_of(cut.devices);
    for (const cost::StageDevices::Part& part : on.parts) {
      const cluster::ResourceGroup& group = problem_.cluster.groups[part.group];
      const int ranks = on.parts.size() == 1 ? cut.width : part.ranks;
      const int on_node = part.neighbours > 0 ? part.neighbours : group.devices_per_node;
      const int before = plan.world_size();
      for (int i = 0; i < ranks; ++i) {
        const int device = on.per_node > 0 ? i / on.per_node * group.domain() + of_cut * on.per_node + i % on.per_node : next[part.group]++;
        stage.ranks.push_back(before + (on.dealt_over > 0 ? i % on.dealt_over * group.domain() + i / on.dealt_over : i));
        plan.ranks.push_back({part.group, device / on_node, device % on_node, std::max(1, part.threads)});
      }
      if (on.parts.size() > 1) stage.shares.push_back({part.ranks, part.samples});
    }
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

plan::Plan OuterSolver::plan_of(const Outer& outer, const Tail* tail) {
  plan::Plan plan = frame_of(outer);
  int first = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s, tail = tail->next)
    for (const plan::Strategy& strategy : stages_.kinds[s]->strategies(*tail->entry, std::array{Segment{first, tail->end}}))
      add_block(plan.stages[s], first++, strategy);
  return plan;
}

}  // namespace tessera::search
