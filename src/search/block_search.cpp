#include "search/block_search.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <deque>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <thread>

#include "base/error.hpp"
#include "plan/schedule/schedule.hpp"
#include "search/depths.hpp"
#include "search/least_work.hpp"
#include "search/outer_choices.hpp"
#include "sim/sim.hpp"

namespace tessera::search {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Times that differ by less count as equal.
constexpr double kEqual = 1e-9;
// Outer choices that are expanded together, and whose bounds are found together.
constexpr std::size_t kBatch = 8;
constexpr std::size_t kBounds = 64 * kBatch;
// Outer choices whose options are listed together, between two looks at the clock: at first few, as the first plan rules out most.
constexpr std::size_t kPreparedFirst = 8;
constexpr std::size_t kPrepared = 64;
// One outer choice may use this part of the effort.
constexpr std::int64_t kEfforts = 3;
// In a uniform space: what simulating a plan counts for as effort; up to so many ways to cut the blocks are all simulated; and so much
// longer than simulated the closed form may take a step to be.
constexpr std::int64_t kSimulated = 6000;
constexpr int kMostCuts = 32;
constexpr double kLoose = 1.5;

struct Found {
  const Outer* outer = nullptr;
  double step = kNever;
  plan::Plan plan;
  std::vector<int> cuts = {};  // in a uniform space: the first block of each stage, then the number of blocks

  // Times are compared to about one part in a million; what is equal then is decided by simplicity.
  bool better_than(const Found& other) const {
    const auto rounded = [](double seconds) { return std::llround(std::log(seconds) * 1e6); };
    return std::tuple(rounded(step), outer->simplicity(), cuts) < std::tuple(rounded(other.step), other.outer->simplicity(), other.cuts);
  }
};

bool whole_backward(plan::Schedule schedule) { return schedule == plan::Schedule::one_f_one_b || schedule == plan::Schedule::gpipe; }

cost::CostModel cost_model_of(const BlockProblem& problem) {
  if (problem.profile == nullptr) return {problem.model, problem.cluster, problem.precision};
  model::TrainSpec train;
  train.precision = problem.precision;
  train.optimizer = problem.optimizer;
  return {problem.model, train, problem.cluster, *problem.profile};
}

// The last stages of a plan.
struct Tail {
  double busy = 0;     // of the busiest of them
  double warm_up = 0;  // of all
  const StageEntry* entry = nullptr;
  int end = 0;  // of the first of them
  const Tail* next = nullptr;
};

using AllOptions = std::map<StageRanks, StageOptions>;

// Everything that one thread remembers.
class Solver {
 public:
  Solver(const BlockProblem& problem, const AllOptions& options, const std::vector<cost::StageDevices>& devices)
      : problem_(problem), options_(options), cost_model_(cost_model_of(problem)) {
    for (const cost::StageDevices& each : devices) cost_model_.add(each);
  }

  cost::CostModel& cost_model() { return cost_model_; }
  Effort& effort() { return effort_; }

  // Whether every block has an option.
  bool possible(const Outer& outer) const {
    return std::all_of(outer.groups.begin(), outer.groups.end(),
                       [&](const GroupCut& cut) { return options_.at(outer.ranks(cut)).possible; });
  }

  // No plan of the outer choice is faster, with memory left aside.
  double bound(const Outer& outer) {
    const Kinds kinds = kinds_of(outer);
    if (kinds.empty()) return kNever;
    const std::vector<model::Repeat>& repeats = problem_.model.repeats;
    const std::vector<double> shares = shares_of(kinds);
    double work = 0;
    double most = 0;
    for (std::size_t r = 0; r < repeats.size(); ++r) {
      const int repeat = static_cast<int>(r);
      double busy = kNever;
      double share = kNever;
      for (std::size_t g = 0; g < kinds.size(); ++g) {
        busy = std::min(busy, kinds[g]->least_busy(repeat));
        share = std::min(share, shares[g] * kinds[g]->least_busy(repeat));
      }
      // Some stage holds at least an even share of the blocks, in whole blocks.
      const bool alike = kinds.size() == 1;
      most = std::max(most, (alike ? std::ceil(static_cast<double>(repeats[r].count) / outer.stages()) : 1) * busy);
      work += repeats[r].count * share;
    }
    double capacity = 0;
    for (std::size_t g = 0; g < kinds.size(); ++g) capacity += outer.groups[g].stages * shares[g];
    return std::max(most, work / capacity) + least_warm_up(kinds) + host(outer);
  }

  // Lagrange's bound on the same with memory. With a share a for each stage, however the blocks are dealt to stages that keep to
  // their memory,
  //   sum a (busy + fill + price (bytes - memory)) <= X sum a + max a F,  X the busiest stage, F the sum of fill,
  // and the left side is at least what each block takes at its best. A stage's workspace is at least the least of all blocks, and of one
  // stage that of the block which needs most.
  double bound_with_memory(const Outer& outer) {
    const Kinds kinds = kinds_of(outer);
    const std::vector<double> shares = shares_of(kinds);
    double all = 0;
    double largest = 0;
    double largest_workspace = 0;
    std::vector<const std::vector<std::vector<double>>*> least;
    std::vector<double> workspace;  // of a stage at least
    int stage = 0;
    for (std::size_t g = 0; g < kinds.size(); ++g) {
      const GroupCut& cut = outer.groups[g];
      stage += cut.stages;
      const auto held = static_cast<std::uint64_t>(plan::in_flight(outer.schedule, stage - 1, outer.stages(), outer.micro_batches));
      // Fewer held is a bound too: powers of two make few tables.
      least.push_back(&kinds[g]->priced(static_cast<double>(std::bit_floor(held))));
      const std::vector<double>& workspaces = kinds[g]->workspaces(static_cast<double>(std::bit_floor(held)));
      workspace.push_back(*std::min_element(workspaces.begin(), workspaces.end()));
      // Stages alike: one of them holds the block that needs most.
      if (kinds.size() == 1) largest_workspace = *std::max_element(workspaces.begin(), workspaces.end()) - workspace.back();
      all += cut.stages * shares[g];
      largest = std::max(largest, shares[g]);
    }
    double best = 0;
    for (std::size_t price = 0; price < kinds.front()->prices().size(); ++price) {
      double left = 0;
      for (std::size_t r = 0; r < problem_.model.repeats.size(); ++r) {
        double each = kNever;
        for (std::size_t g = 0; g < kinds.size(); ++g) each = std::min(each, shares[g] * (*least[g])[r][price]);
        left += problem_.model.repeats[r].count * each;
      }
      for (std::size_t g = 0; g < kinds.size(); ++g) {
        const GroupCut& cut = outer.groups[g];
        const double room = problem_.space.memory * cost_model_.memory_limit(cut.devices) - cost_model_.process_bytes(cut.devices);
        left -= shares[g] * kinds[g]->prices()[price] * (cut.stages * (room - workspace[g]) - largest_workspace);
      }
      best = std::max(best, left);
    }
    return best / all + least_warm_up(kinds) * (1 - largest / all) + host(outer);
  }

  // The best plan of the outer choice if it is not slower than `incumbent`.
  std::optional<Found> solve(const Outer& outer, double incumbent, bool rough) {
    const double host = this->host(outer);
    const Stages stages = stages_of(outer);
    if (too_large(outer)) return {};
    start(outer, rough);
    std::deque<Tail> tails;
    const Tail* best = best_tail(outer, stages, incumbent * (rough ? 1 : 1 - problem_.tolerance) * (1 + kEqual) - host, tails);
    std::optional<Found> found;
    if (best != nullptr) {
      found = Found{&outer, best->busy + best->warm_up + host, plan_of(outer, stages, best)};
      found->plan.predicted = predict(found->plan, cost_model_);
    }
    forget(outer);
    return found;
  }

  // The following are of uniform spaces.

  // No step is shorter than all micro-batches through a stage and one of them through those before it, forward and back: with the work p_s
  // of the stages before stage s, T >= p_s + m w_s. The cut with the least T has them all equal, so what is left of T, T - p_s, shrinks by
  // a factor of 1 - 1/m from stage to stage. Where the weight half of a backward pass may wait, no stage is shorter than the mean.
  double least_step(const Outer& outer) {
    double total = 0;
    for (std::size_t r = 0; r < problem_.model.repeats.size(); ++r) {
      double least = kNever;
      for (const GroupCut& cut : outer.groups) least = std::min(least, passes(outer, cut, static_cast<int>(r)));
      total += problem_.model.repeats[r].count * least;
    }
    const auto m = static_cast<double>(outer.micro_batches);
    return whole_backward(outer.schedule) ? total / (1 - std::pow(1 - 1 / m, outer.stages())) : total / outer.stages() * m;
  }

  // The best of the outer choice by the simulator, cut in every way if those are few, or else as the closed form likes best.
  std::optional<Found> simulate(const Outer& outer, double incumbent) {
    if (too_large(outer)) return {};
    const Stages stages = stages_of(outer);
    start(outer, true);
    std::vector<std::vector<int>> ways = all_cuts(static_cast<int>(cost_model_.repeat_of().size()), outer.stages(), kMostCuts);
    std::optional<Found> best;
    try {
      if (ways.empty()) {
        std::deque<Tail> tails;
        if (const Tail* tail = best_tail(outer, stages, kLoose * incumbent, tails); tail != nullptr) ways.push_back(cuts_of(tail));
      }
      for (const std::vector<int>& cuts : ways) {
        if (least_step(outer, stages, cuts) > std::min(incumbent, best ? best->step : kNever) * (1 + kEqual)) continue;
        effort_.watch();
        std::optional<Found> found = simulated(outer, stages, cuts);
        if (found && (!best || found->better_than(*best))) best = std::move(found);
      }
    } catch (const Effort::OutOfEffort&) {
      if (!best) throw;
    }
    forget(outer);
    return best;
  }

  // The cut that is best by the closed form need not be the fastest: moves the ends of stages by a block as long as that is faster.
  Found refined(Found found) {
    const Outer& outer = *found.outer;
    const Stages stages = stages_of(outer);
    start(outer, true);
    for (bool improved = outer.stages() > 1; improved;) {
      improved = false;
      for (std::size_t s = 1; s + 1 < found.cuts.size(); ++s)
        for (const int move : {-1, 1}) {
          std::vector<int> cuts = found.cuts;
          cuts[s] += move;
          if (cuts[s] <= cuts[s - 1] || cuts[s] >= cuts[s + 1]) continue;
          std::optional<Found> other = simulated(outer, stages, cuts);
          if (!other || other->step >= found.step * (1 - 1e-6)) continue;
          found = std::move(*other);
          improved = true;
        }
    }
    forget(outer);
    return found;
  }

 private:
  // By stage: the fronts of its kind, and what it stands on.
  struct Stages {
    std::vector<StageFronts*> kinds;
    std::vector<const GroupCut*> cuts;
  };
  Stages stages_of(const Outer& outer) {
    Stages out;
    for (const GroupCut& cut : outer.groups)
      for (int s = 0; s < cut.stages; ++s) {
        out.kinds.push_back(&fronts(outer, cut));
        out.cuts.push_back(&cut);
      }
    return out;
  }
  void start(const Outer& outer, bool rough) {
    for (const GroupCut& cut : outer.groups) fronts(outer, cut).start(rough);
  }
  void forget(const Outer& outer) {
    for (const GroupCut& cut : outer.groups) fronts(outer, cut).forget();
  }

  // The stages of which the busiest and the fill take least together, and no more than `most`; in `tails`.
  const Tail* best_tail(const Outer& outer, const Stages& of, double most, std::deque<Tail>& tails) {
    const auto& [kinds, cuts] = of;
    const int stages = outer.stages();
    const int blocks = static_cast<int>(cost_model_.repeat_of().size());
    const Prefix prefix(*this, kinds, cuts);
    const Tail& end = tails.emplace_back();
    std::vector<std::vector<const Tail*>> behind(static_cast<std::size_t>(blocks) + 1);
    behind[static_cast<std::size_t>(blocks)] = {&end};
    for (int s = stages - 1; s >= 0; --s) {
      std::vector<std::vector<const Tail*>> here(static_cast<std::size_t>(blocks) + 1);
      const auto held = static_cast<double>(plan::in_flight(outer.schedule, s, stages, outer.micro_batches));
      for (int first = s == 0 ? 0 : s; first <= (s == 0 ? 0 : blocks - (stages - s)); ++first) {
        if (prefix.busy(s, first) + prefix.warm_up(first) > most) continue;
        std::vector<Tail> made;
        for (int last = s + 1 == stages ? blocks : first + 1; last <= blocks - (stages - 1 - s); ++last) {
          if (behind[static_cast<std::size_t>(last)].empty()) continue;
          if (prefix.least(s, first, last) > most) break;
          const double seconds =
              s + 1 == stages ? 0 : message(outer, *cuts[static_cast<std::size_t>(s)], *cuts[static_cast<std::size_t>(s) + 1], last);
          StageFronts& kind = *kinds[static_cast<std::size_t>(s)];
          for (const StageEntry* entry :
               kind.front(first, last, held, most - prefix.warm_up(blocks) + prefix.warm_up(last) - prefix.warm_up(first)))
            for (const Tail* tail : behind[static_cast<std::size_t>(last)]) {
              const Tail next{std::max(entry->busy + kind.busy_of(seconds), tail->busy),
                              entry->warm_up + kind.warm_up_of(seconds) + tail->warm_up, entry, last, tail};
              if (std::max(next.busy, prefix.busy(s, first)) + next.warm_up + prefix.warm_up(first) <= most) made.push_back(next);
            }
        }
        std::stable_sort(made.begin(), made.end(),
                         [](const Tail& a, const Tail& b) { return std::tuple(a.busy, a.warm_up) < std::tuple(b.busy, b.warm_up); });
        double least = kNever;
        for (const Tail& tail : made) {
          if (tail.warm_up >= least) continue;
          least = tail.warm_up;
          tails.push_back(tail);
          here[static_cast<std::size_t>(first)].push_back(&tails.back());
        }
      }
      behind = std::move(here);
    }
    const Tail* best = nullptr;
    for (const Tail* tail : behind.front())
      if (best == nullptr || tail->busy + tail->warm_up < best->busy + best->warm_up) best = tail;
    return best;
  }

  static std::vector<int> cuts_of(const Tail* tail) {
    std::vector<int> out = {0};
    for (; tail->next != nullptr; tail = tail->next) out.push_back(tail->end);
    return out;
  }

  // Seconds of both passes of a micro-batch through a block at the degrees of a uniform space, at least.
  double passes(const Outer& outer, const GroupCut& cut, int repeat) {
    plan::Strategy strategy;
    strategy.tp = outer.fixed.tensor;
    strategy.dp = cut.width / strategy.tp;
    strategy.zero = outer.fixed.zero;
    const cost::BlockLoad& load = cost_model_.block(repeat, cut.devices, strategy, problem_.global_batch / outer.micro_batches);
    return load.forward + load.backward();
  }

  // The same bound with the blocks cut so.
  double least_step(const Outer& outer, const Stages& stages, const std::vector<int>& cuts) {
    double out = 0;
    double before = 0;
    for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
      double stage = 0;
      for (int b = cuts[s]; b < cuts[s + 1]; ++b)
        stage += passes(outer, *stages.cuts[s], cost_model_.repeat_of()[static_cast<std::size_t>(b)]);
      out = std::max(out, (whole_backward(outer.schedule) ? before : 0) + static_cast<double>(outer.micro_batches) * stage);
      before += stage;
    }
    return out;
  }

  // Nothing where a stage does not fit its memory.
  std::optional<Found> simulated(const Outer& outer, const Stages& of, const std::vector<int>& cuts) {
    const int stages = outer.stages();
    std::deque<Tail> tails;
    const Tail* tail = &tails.emplace_back();
    for (int s = stages - 1; s >= 0; --s) {
      const int first = cuts[static_cast<std::size_t>(s)];
      const int last = cuts[static_cast<std::size_t>(s) + 1];
      const auto held = static_cast<double>(plan::in_flight(outer.schedule, s, stages, outer.micro_batches));
      const StageEntry* best = nullptr;
      for (const StageEntry* entry : of.kinds[static_cast<std::size_t>(s)]->front(first, last, held, kNever))
        if (best == nullptr || entry->busy + entry->warm_up < best->busy + best->warm_up) best = entry;
      if (best == nullptr) return {};
      tail = &tails.emplace_back(Tail{0, 0, best, last, tail});
    }
    Found out{&outer, kNever, plan_of(outer, of, tail), cuts};
    effort_.used += kSimulated;
    out.plan.predicted = sim::predict(out.plan, cost_model_);
    out.step = out.plan.predicted->step.value;
    return out;
  }

  // Of the groups of an outer choice.
  using Kinds = std::vector<StageFronts*>;

  // None when a block has no option on one of them.
  Kinds kinds_of(const Outer& outer) {
    Kinds out;
    if (!possible(outer)) return {};
    for (const GroupCut& cut : outer.groups) out.push_back(&fronts(outer, cut));
    return out;
  }

  // How fast the stages of each group run the model, those of the first being 1. Bounds hold with any shares; these are near the best.
  std::vector<double> shares_of(const Kinds& kinds) const {
    std::vector<double> out;
    double base = 0;
    for (const StageFronts* kind : kinds) {
      double work = 0;
      for (std::size_t r = 0; r < problem_.model.repeats.size(); ++r)
        work += problem_.model.repeats[r].count * kind->least_busy(static_cast<int>(r));
      if (out.empty()) base = work;
      out.push_back(work > 0 && base > 0 ? base / work : 1);
    }
    return out;
  }

  // Whether the blocks do not fit all stages' memory together, however they are dealt.
  bool too_large(const Outer& outer) {
    double room = 0;
    for (const GroupCut& cut : outer.groups)
      room += cut.stages * (problem_.space.memory * cost_model_.memory_limit(cut.devices) - cost_model_.process_bytes(cut.devices));
    double bytes = 0;
    for (std::size_t r = 0; r < problem_.model.repeats.size(); ++r) {
      double least = kNever;
      for (const GroupCut& cut : outer.groups) least = std::min(least, fronts(outer, cut).least_bytes(static_cast<int>(r)));
      bytes += problem_.model.repeats[r].count * least;
    }
    return bytes > room;
  }

  double least_warm_up(const Kinds& kinds) const {
    double out = 0;
    for (std::size_t r = 0; r < problem_.model.repeats.size(); ++r) {
      double least = kNever;
      for (const StageFronts* kind : kinds) least = std::min(least, kind->least_warm_up(static_cast<int>(r)));
      out += problem_.model.repeats[r].count * least;
    }
    return out;
  }

  double host(const Outer& outer) const {
    double out = 0;
    for (const GroupCut& cut : outer.groups) out = std::max(out, cost_model_.step_host(cut.devices));
    return out;
  }

  StageFronts& fronts(const Outer& outer, const GroupCut& cut) {
    const StageRanks ranks = outer.ranks(cut);
    auto& known = fronts_[{ranks, outer.schedule}];
    if (!known) known = std::make_unique<StageFronts>(problem_, cost_model_, ranks, outer.schedule, options_.at(ranks), effort_, memory_);
    return *known;
  }

  // What the stages before a block take at least.
  class Prefix {
   public:
    Prefix(Solver& solver, const std::vector<StageFronts*>& kinds, const std::vector<const GroupCut*>& cuts) {
      const std::vector<int>& repeat_of = solver.cost_model_.repeat_of();
      const std::size_t blocks = repeat_of.size();
      warm_up_.assign(blocks + 1, 0);
      by_kind_.resize(kinds.size());
      for (std::size_t s = 0; s < kinds.size(); ++s) {
        if (s > 0 && cuts[s] == cuts[s - 1]) {
          by_kind_[s] = by_kind_[s - 1];
          factors_.push_back(factors_.back());
          continue;
        }
        auto sums = std::make_shared<std::vector<double>>(blocks + 1, 0.0);
        for (std::size_t b = 0; b < blocks; ++b) (*sums)[b + 1] = (*sums)[b] + kinds[s]->least_busy(repeat_of[b]);
        by_kind_[s] = std::move(sums);
        factors_.push_back(s == 0 ? 1 : least_factor(s));
      }
      for (std::size_t b = 0; b < blocks; ++b) {
        double least = kNever;
        for (const StageFronts* kind : kinds) least = std::min(least, kind->least_warm_up(repeat_of[b]));
        warm_up_[b + 1] = warm_up_[b] + least;
      }
    }
    // Of the busiest of the stages before `stage`, which hold the blocks before `first`.
    double busy(int stage, int first) const {
      if (stage == 0) return 0;
      double capacity = 0;
      const double work = (*by_kind_[0])[static_cast<std::size_t>(first)];
      for (int s = 0; s < stage; ++s) capacity += 1 / factors_[static_cast<std::size_t>(s)];
      return capacity > 0 ? work / capacity : 0;
    }
    double warm_up(int first) const { return warm_up_[static_cast<std::size_t>(first)]; }
    double least(int stage, int first, int last) const {
      const std::vector<double>& sums = *by_kind_[static_cast<std::size_t>(stage)];
      return sums[static_cast<std::size_t>(last)] - sums[static_cast<std::size_t>(first)];
    }

   private:
    // How much longer than on the first stage's kind the blocks take at least.
    double least_factor(std::size_t stage) const {
      double factor = kNever;
      const std::vector<double>& base = *by_kind_[0];
      const std::vector<double>& sums = *by_kind_[stage];
      for (std::size_t b = 0; b + 1 < sums.size(); ++b)
        if (base[b + 1] > base[b]) factor = std::min(factor, (sums[b + 1] - sums[b]) / (base[b + 1] - base[b]));
      return factor > 0 && factor < kNever ? factor : 1e-12;
    }

    std::vector<std::shared_ptr<std::vector<double>>> by_kind_;
    std::vector<double> factors_;
    std::vector<double> warm_up_;
  };

  double message(const Outer& outer, const GroupCut& from, const GroupCut& to, int block) {
    const double bytes =
        cost_model_.input_bytes(cost_model_.repeat_of()[static_cast<std::size_t>(block)], problem_.global_batch / outer.micro_batches);
    return cost_model_.messages(bytes, from.devices, from.width, to.devices, to.width);
  }

  plan::Plan plan_of(const Outer& outer, const Stages& of, const Tail* tail) {
    const auto& [kinds, cuts] = of;
    plan::Plan plan;
    plan.model_fingerprint = problem_.model.fingerprint();
    plan.cluster_fingerprint = problem_.cluster.fingerprint();
    plan.precision = problem_.precision;
    plan.global_batch = problem_.global_batch;
    plan.micro_batches = outer.micro_batches;
    plan.schedule = outer.schedule;
    int first = 0;
    int of_cut = 0;
    std::map<int, int> next;  // device of each group
    for (std::size_t s = 0; s < kinds.size(); ++s, tail = tail->next) {
      const GroupCut& cut = *cuts[s];
      of_cut = s > 0 && cuts[s - 1] == &cut ? of_cut + 1 : 0;
      plan::Stage stage;
      const cost::StageDevices& on = cost_model_.parts_of(cut.devices);
      for (const cost::StageDevices::Part& part : on.parts) {
        const cluster::ResourceGroup& group = problem_.cluster.groups[static_cast<std::size_t>(part.group)];
        const int ranks = on.parts.size() == 1 ? cut.width : part.ranks;
        const int on_node = part.neighbours > 0 ? part.neighbours : group.devices_per_node;
        const int before = plan.world_size();
        for (int i = 0; i < ranks; ++i) {
          const int device =
              on.per_node > 0 ? i / on.per_node * group.domain() + of_cut * on.per_node + i % on.per_node : next[part.group]++;
          stage.ranks.push_back(before + (on.dealt_over > 0 ? i % on.dealt_over * group.domain() + i / on.dealt_over : i));
          plan.ranks.push_back({part.group, device / on_node, device % on_node, std::max(1, part.threads)});
        }
        if (on.parts.size() > 1) stage.shares.push_back({part.ranks, part.samples});
      }
      const std::vector<plan::Strategy> strategies = kinds[s]->strategies(*tail->entry, first, tail->end);
      for (const plan::Strategy& strategy : strategies) {
        if (!stage.runs.empty() && stage.runs.back().strategy == strategy)
          ++stage.runs.back().last;
        else
          stage.runs.push_back({first, first + 1, strategy});
        ++first;
      }
      plan.stages.push_back(std::move(stage));
    }
    return plan;
  }

  const BlockProblem& problem_;
  const AllOptions& options_;
  Effort effort_;
  cost::CostModel cost_model_;
  std::pmr::unsynchronized_pool_resource memory_;  // of the fronts' entries, which come and go with every outer choice
  std::map<std::pair<StageRanks, plan::Schedule>, std::unique_ptr<StageFronts>> fronts_;
};

class Search {
 public:
  explicit Search(const BlockProblem& problem) : problem_(problem), begin_(problem.clock->now()), choices_(outer_choices(problem)) {
    if (problem.seconds > 0) deadline_ = begin_ + Seconds(problem.seconds);
    if (!choices_.able)
      throw Error(ErrorCode::invalid_config,
                  text("no device of ", problem.cluster.name, " computes in ", model::name_of(problem.precision)), {},
                  "a device that does, or another precision");
  }

  BlockAnswer run() {
    const int wanted = problem_.threads > 0 ? problem_.threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    for (int t = 0; t < wanted; ++t) solvers_.push_back(std::make_unique<Solver>(problem_, options_, choices_.devices));
    order_waiting();
    // Roughly first: a good plan early rules out more.
    expand_roughly();
    if (outers_.empty())
      throw Error(ErrorCode::invalid_config,
                  text("no parallel degrees divide the devices of ", problem_.cluster.name, ", the model and a global batch of ",
                       problem_.global_batch),
                  {}, "for example a global batch that is a multiple of the devices");
    expanded_ = 0;
    skipped_ = kNever;
    const bool all = waiting_.empty() || ruled_out(waiting_.front(), false);
    if (!all) skipped_ = waiting_.front().bound;
    considered_ = all ? all_ : all_ - static_cast<std::int64_t>(waiting_.size());
    problem_.space.uniform ? refine() : expand_exactly();
    return answer();
  }

 private:
  bool out_of_time() const { return deadline_ && problem_.clock->now() > *deadline_; }
  // With the clock, where the outer choices so far have no plan.
  bool may_go_on() const { return found_.empty() && !waiting_.empty() && !problem_.give_up; }

  // By bounds that cost next to nothing.
  void order_waiting() {
    all_ = static_cast<std::int64_t>(choices_.outers.size());
    if (problem_.space.uniform) {
      in_parallel(choices_.outers.size(),
                  [&](Solver& solver, std::size_t i) { choices_.outers[i].bound = solver.least_step(choices_.outers[i]); });
      name_families();
    } else {
      const LeastWork work(problem_, solvers_.front()->cost_model());
      for (Outer& outer : choices_.outers) outer.bound = work.step(outer);
    }
    std::stable_sort(choices_.outers.begin(), choices_.outers.end(), [](const Outer& a, const Outer& b) { return a.bound < b.bound; });
    waiting_.assign(std::make_move_iterator(choices_.outers.begin()), std::make_move_iterator(choices_.outers.end()));
    choices_.outers.clear();
  }

  // In a uniform space plans of equal degrees on the same groups make a family, of which the best is looked for.
  void name_families() {
    std::map<std::tuple<std::vector<int>, int, int, int>, int> known;
    for (Outer& outer : choices_.outers) {
      std::vector<int> groups;
      for (const GroupCut& cut : outer.groups)
        for (const cost::StageDevices::Part& part : solvers_.front()->cost_model().parts_of(cut.devices).parts)
          groups.push_back(part.group);
      std::sort(groups.begin(), groups.end());
      const std::tuple key{std::move(groups), outer.groups.front().width, outer.fixed.tensor, outer.stages()};
      outer.family = static_cast<std::size_t>(known.try_emplace(key, static_cast<int>(known.size())).first->second);
    }
    incumbents_.assign(std::max<std::size_t>(1, known.size()), kNever);
  }

  // Makes the next outer choices, from `begin` on, those with the least bounds of all. By the clock, half of the time may go into it.
  void prepare(std::size_t begin) {
    for (;;) {
      while (!waiting_.empty() && ruled_out(waiting_.front(), true)) waiting_.pop_front();
      if (waiting_.empty()) return;
      if (begin + kBatch <= outers_.size() && outers_[begin + kBatch - 1]->bound <= waiting_.front().bound) return;
      if (deadline_ && !outers_.empty() && (begin < outers_.size() || !may_go_on()) &&
          problem_.clock->now() >= begin_ + Seconds(problem_.seconds / 2))
        return;
      prepare_next();
      sort_by_bound(begin);
    }
  }

  // Options and bounds of the next outer choices.
  void prepare_next() {
    std::vector<std::unique_ptr<Outer>> next;
    const std::size_t count = std::clamp(outers_.size(), kPreparedFirst, kPrepared);
    for (; next.size() < count && !waiting_.empty(); waiting_.pop_front())
      next.push_back(std::make_unique<Outer>(std::move(waiting_.front())));
    list_options(next);
    in_parallel(next.size(), [&](Solver& solver, std::size_t i) {
      if (!problem_.space.uniform)
        next[i]->bound = std::max(next[i]->bound, solver.bound(*next[i]));
      else if (!solver.possible(*next[i]))
        next[i]->bound = kNever;
    });
    for (std::unique_ptr<Outer>& outer : next)
      if (outer->bound < kNever) outers_.push_back(std::move(outer));
  }

  void sort_by_bound(std::size_t begin) {
    std::stable_sort(outers_.begin() + static_cast<std::ptrdiff_t>(begin), outers_.end(),
                     [](const auto& a, const auto& b) { return a->bound < b->bound; });
  }

  // Of the stages of all these outer choices.
  void list_options(const std::vector<std::unique_ptr<Outer>>& outers) {
    std::vector<AllOptions::value_type*> fresh;
    for (const std::unique_ptr<Outer>& outer : outers)
      for (const GroupCut& cut : outer->groups)
        if (const auto [found, is_new] = options_.try_emplace(outer->ranks(cut)); is_new) fresh.push_back(&*found);
    in_parallel(fresh.size(),
                [&](Solver& solver, std::size_t i) { fresh[i]->second = options_of(problem_, solver.cost_model(), fresh[i]->first); });
  }

  template <typename Work>
  void in_parallel(std::size_t count, const Work& work) {
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::mutex mutex;
    {
      std::vector<std::jthread> threads;
      for (auto& solver : solvers_)
        threads.emplace_back([&, this] {
          try {
            for (std::size_t i = next++; i < count; i = next++) work(*solver, i);
          } catch (...) {
            const std::lock_guard lock(mutex);
            failure = std::current_exception();
          }
        });
    }
    if (failure) std::rethrow_exception(failure);
  }

  // In seconds; the least of its family.
  double incumbent(const Outer& outer) const { return incumbents_[outer.family]; }
  bool ruled_out(const Outer& outer, bool rough) const {
    return outer.bound > incumbent(outer) * (rough ? 1 : 1 - problem_.tolerance) * (1 + kEqual);
  }

  // Batch by batch: what a batch may know does not depend on who is faster.
  void expand_roughly() {
    std::int64_t used = 0;
    for (std::size_t begin = 0;; begin = std::min(begin + kBatch, outers_.size())) {
      do prepare(begin);
      while (raise_bounds(begin));
      if (begin == outers_.size()) return;
      expand_batch(begin, true, used);
    }
  }

  void expand_exactly() {
    std::int64_t used = 0;
    for (std::size_t begin = 0; begin < outers_.size(); begin += kBatch) expand_batch(begin, false, used);
  }

  void expand_batch(std::size_t begin, bool rough, std::int64_t& used) {
    const std::size_t count = std::min(kBatch, outers_.size() - begin);
    const std::span<const std::unique_ptr<Outer>> batch(outers_.data() + begin, count);
    if (std::all_of(batch.begin(), batch.end(), [&](const auto& outer) { return ruled_out(*outer, rough); })) return;
    if (may_end() && ((problem_.effort > 0 && used > problem_.effort / (rough ? 1 : 2)) || out_of_time())) {
      // Only their bounds are still of interest.
      for (const std::unique_ptr<Outer>& outer : batch)
        if (!ruled_out(*outer, rough)) skipped_ = std::min(skipped_, outer->bound);
      return;
    }
    // What an exact search has left is shared among the batch.
    const auto open = std::count_if(batch.begin(), batch.end(), [&](const auto& outer) { return !ruled_out(*outer, rough); });
    const std::int64_t left =
        rough ? problem_.effort / kEfforts : std::min(problem_.effort / kEfforts, (problem_.effort / 2 - used) / open);
    std::vector<Outcome> outcomes(count);
    in_parallel(count, [&](Solver& solver, std::size_t i) { outcomes[i] = expand(solver, *batch[i], rough, left); });
    for (std::size_t i = 0; i < count; ++i) {
      Outcome& outcome = outcomes[i];
      used += outcome.used;
      expanded_ += outcome.used > 0 ? 1 : 0;
      if (outcome.skipped) skipped_ = std::min(skipped_, batch[i]->bound);
      if (!outcome.found) continue;
      incumbents_[batch[i]->family] = std::min(incumbent(*batch[i]), outcome.found->step);
      found_.push_back(std::move(*outcome.found));
    }
  }

  struct Outcome {
    std::optional<Found> found;
    std::int64_t used = 0;
    bool skipped = false;
  };

  // Counts with memory in the bounds of the next outer choices. False: they do already.
  bool raise_bounds(std::size_t begin) {
    if (problem_.space.uniform) return false;
    const auto low = [&](const std::unique_ptr<Outer>& outer) { return !outer->with_memory && !ruled_out(*outer, true); };
    const std::size_t count = std::min(found_.empty() ? kBatch : kBounds, outers_.size() - begin);
    const std::span<const std::unique_ptr<Outer>> next(outers_.data() + begin, count);
    if (std::none_of(next.begin(), next.begin() + static_cast<std::ptrdiff_t>(std::min(kBatch, count)), low)) return false;
    in_parallel(count, [&](Solver& solver, std::size_t i) {
      if (!low(next[i])) return;
      next[i]->bound = std::max(next[i]->bound, solver.bound_with_memory(*next[i]));
      next[i]->with_memory = true;
    });
    sort_by_bound(begin);
    return true;
  }

  // Before there is any plan, nothing ends the search, unless it was told to.
  bool may_end() const { return !found_.empty() || problem_.give_up; }

  // `most`: effort.
  Outcome expand(Solver& solver, const Outer& outer, bool rough, std::int64_t most) {
    if (ruled_out(outer, rough)) return {};
    solver.effort() = {};
    if (may_end())
      solver.effort() = {.most = problem_.effort > 0 ? std::max<std::int64_t>(1, most) : 0, .clock = problem_.clock, .deadline = deadline_};
    Outcome out;
    try {
      out.found = problem_.space.uniform ? solver.simulate(outer, incumbent(outer)) : solver.solve(outer, incumbent(outer), rough);
    } catch (const Effort::OutOfEffort&) {
      out.skipped = true;
    }
    out.used = std::max<std::int64_t>(1, solver.effort().used);
    return out;
  }

  // Of a uniform space: the best of each family, as far as they may be wanted.
  void refine() {
    sort_found();
    std::set<std::size_t> taken;
    std::erase_if(found_, [&](const Found& found) { return !taken.insert(found.outer->family).second; });
    found_.resize(std::min(found_.size(), 2 * static_cast<std::size_t>(problem_.top + 1)));
    in_parallel(found_.size(), [&](Solver& solver, std::size_t i) { found_[i] = solver.refined(std::move(found_[i])); });
  }

  void sort_found() {
    std::sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) { return a.better_than(b); });
  }

  BlockAnswer answer() {
    sort_found();
    BlockAnswer out;
    out.considered = considered_;
    out.expanded = expanded_;
    out.complete = skipped_ == kNever;
    if (!problem_.space.uniform) out.bound = std::min(skipped_, incumbents_.front() * (1 - problem_.tolerance));
    std::set<const Outer*> taken;
    for (Found& found : found_)
      if (static_cast<int>(out.plans.size()) <= problem_.top && taken.insert(found.outer).second)
        out.plans.push_back(std::move(found.plan));
    return out;
  }

  const BlockProblem& problem_;
  const Seconds begin_;
  std::optional<Seconds> deadline_;
  OuterChoices choices_;
  std::deque<Outer> waiting_;                   // without options yet, by their bounds
  std::vector<std::unique_ptr<Outer>> outers_;  // stay where they are
  std::int64_t all_ = 0;                        // outer choices
  std::int64_t considered_ = 0;
  AllOptions options_;
  std::vector<std::unique_ptr<Solver>> solvers_;
  std::vector<double> incumbents_ = {kNever};  // by family
  std::int64_t expanded_ = 0;
  double skipped_ = kNever;
  std::vector<Found> found_;
};

}  // namespace

BlockAnswer search(const BlockProblem& problem) { return Search(problem).run(); }

}  // namespace tessera::search
