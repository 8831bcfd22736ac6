#include "search/block_search.hpp"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "search/least_work.hpp"
#include "search/outer_solver.hpp"

namespace tessera::search {
namespace {

// Outer choices that are expanded together, and whose bounds are found together.
constexpr std::size_t kBatch = 8;
constexpr std::size_t kBounds = 64 * kBatch;
// Outer choices whose options are listed together, between two looks at the clock: at first few, as the first plan rules out most.
constexpr std::size_t kPreparedFirst = 8;
constexpr std::size_t kPrepared = 64;
// In a uniform space, plans that may yet become the fastest: their steps are longer than the shortest by this factor at most.
constexpr double kNear = 1.3;
// So many of the best of these are cut otherwise.
constexpr std::size_t kRecut = 2;
// One outer choice may use this part of the effort.
constexpr std::int64_t kEfforts = 3;
// A search that has a plan prices at most this part of its effort in strategies of blocks. Where several groups stand side by side, nearly
// every outer choice has prices of its own.
constexpr std::int64_t kPricing = 2;

// Of two outer choices, the one with the lesser bound is looked at first.
struct Earlier {
  bool operator()(const Outer* a, const Outer* b) const { return std::tie(a->bound, a->number) < std::tie(b->bound, b->number); }
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
    const std::size_t wanted = problem_.threads > 0 ? static_cast<std::size_t>(problem_.threads) : threads_of_machine();
    for (std::size_t t = 0; t < wanted; ++t) solvers_.push_back(std::make_unique<OuterSolver>(problem_, options_, choices_.devices));
    const auto all = static_cast<std::int64_t>(choices_.outers.size());
    // Roughly first: a good plan early rules out more.
    problem_.space.uniform || choices_.alone == choices_.outers.size() ? expand_all() : expand_group_by_group();
    if (prepared_.empty() && !stopped())
      throw Error(ErrorCode::invalid_config,
                  text("no parallel degrees divide the devices of ", problem_.cluster.name, ", the model and a global batch of ",
                       problem_.global_batch),
                  {}, "for example a global batch that is a multiple of the devices");
    unseen_ = std::min(waiting_.empty() ? kNever : waiting_.front().bound, ready_.empty() ? kNever : (*ready_.begin())->bound);
    const bool ended = unseen_ <= best_step() * (1 - problem_.tolerance) * (1 + kEqual);
    if (!ended) unseen_ = kNever;
    problem_.space.uniform ? refine() : expand_exactly();
    return answer(ended ? all - static_cast<std::int64_t>(waiting_.size()) : all);
  }

 private:
  bool stopped() const { return is_set(problem_.stop); }
  bool out_of_time() const { return stopped() || (deadline_ && problem_.clock->now() > *deadline_); }

  // Of all families.
  double best_step() const { return std::ranges::max(incumbents_); }

  void expand_all() {
    if (problem_.space.uniform) {
      in_parallel(choices_.outers.size(),
                  [&](OuterSolver& solver, std::size_t i) { choices_.outers[i].bound = solver.least_step(choices_.outers[i]); });
      name_families();
    } else {
      bound_cheaply(choices_.outers);
    }
    wait(std::move(choices_.outers));
    expand_roughly(problem_.effort);
  }

  // Bounds alone lead a search over several groups astray: where all devices work they are lowest, however badly the stages fit each other.
  // So first each group alone, then the best plan with one further group beside it as long as that is faster, and then all the rest.
  void expand_group_by_group() {
    bound_cheaply(choices_.outers);
    const auto alone = choices_.outers.begin() + choices_.alone;
    wait({choices_.outers.begin(), alone});
    expand_roughly(problem_.effort / 4);
    std::deque<Outer> waiting = std::exchange(waiting_, {});
    std::set<Outer*, Earlier> ready = std::exchange(ready_, {});
    for (double before = kNever; !found_.empty() && best_step() < before * (1 - kEqual);) {
      before = best_step();
      const Outer& best = *std::ranges::min_element(found_, &Found::better_than)->outer;
      std::vector<Outer> more = with_one_group_more(problem_, solvers_.front()->cost_model(), best);
      bound_cheaply(more);
      wait(std::move(more));
      expand_roughly(problem_.effort / 2);
    }
    ready_.merge(ready);
    waiting.insert(waiting.end(), std::make_move_iterator(waiting_.begin()), std::make_move_iterator(waiting_.end()));
    waiting.insert(waiting.end(), std::make_move_iterator(alone), std::make_move_iterator(choices_.outers.end()));
    choices_.outers.clear();
    wait({std::make_move_iterator(waiting.begin()), std::make_move_iterator(waiting.end())});
    expand_roughly(problem_.effort);
  }

  // Bounds that cost next to nothing.
  void bound_cheaply(std::vector<Outer>& outers) {
    const LeastWork work(problem_, solvers_.front()->cost_model());
    for (Outer& outer : outers) outer.bound = work.step(outer);
  }

  // By their bounds.
  void wait(std::vector<Outer> outers) {
    std::ranges::stable_sort(outers, {}, &Outer::bound);
    waiting_.assign(std::make_move_iterator(outers.begin()), std::make_move_iterator(outers.end()));
  }

  // In a uniform space plans of equal degrees on the same groups make a family, of which the best is looked for.
  void name_families() {
    std::map<std::tuple<std::vector<int>, int, int, int, int>, std::size_t> known;
    for (Outer& outer : choices_.outers) {
      std::vector<int> groups;
      for (const GroupCut& cut : outer.groups)
        for (const cost::StageDevices::Part& part : solvers_.front()->cost_model().parts_of(cut.devices).parts)
          groups.push_back(part.group);
      std::ranges::sort(groups);
      const std::tuple key{std::move(groups), outer.groups.front().width, outer.fixed.tensor, outer.fixed.context, outer.stages()};
      outer.family = known.try_emplace(key, known.size()).first->second;
    }
    incumbents_.assign(std::max<std::size_t>(1, known.size()), kNever);
  }

  // Makes the next batch that of the least bounds of all. By the clock, half of the time may go into it; more where the outer choices so
  // far have no plan.
  void prepare() {
    for (;;) {
      while (!waiting_.empty() && ruled_out(waiting_.front(), true)) waiting_.pop_front();
      if (waiting_.empty() || stopped()) return;
      if (may_end() && problem_.effort > 0 && priced_ > problem_.effort / kPricing) return;
      if (ready_.size() >= kBatch && (*std::next(ready_.begin(), kBatch - 1))->bound <= waiting_.front().bound) return;
      if (deadline_ && !prepared_.empty() && (!ready_.empty() || !found_.empty() || problem_.give_up) &&
          problem_.clock->now() >= begin_ + Seconds(problem_.seconds / 2))
        return;
      prepare_next();
    }
  }

  // Options and bounds of the next outer choices.
  void prepare_next() {
    std::vector<Outer*> next;
    const std::size_t count = std::clamp(prepared_.size(), kPreparedFirst, kPrepared);
    for (; next.size() < count && !waiting_.empty(); waiting_.pop_front()) {
      prepared_.push_back(std::move(waiting_.front()));
      prepared_.back().number = prepared_.size();
      next.push_back(&prepared_.back());
    }
    list_options(next);
    in_parallel(next.size(), [&](OuterSolver& solver, std::size_t i) {
      if (!problem_.space.uniform)
        next[i]->bound = std::max(next[i]->bound, solver.bound(*next[i]));
      else if (!solver.possible(*next[i]))
        next[i]->bound = kNever;
    });
    for (Outer* outer : next)
      if (outer->bound < kNever) ready_.insert(outer);
  }

  // Of the stages of all these outer choices.
  void list_options(const std::vector<Outer*>& outers) {
    std::vector<AllOptions::value_type*> fresh;
    for (const Outer* outer : outers)
      for (const GroupCut& cut : outer->groups)
        if (const auto [found, is_new] = options_.try_emplace(outer->ranks(cut)); is_new) fresh.push_back(&*found);
    in_parallel(fresh.size(),
                [&](OuterSolver& solver, std::size_t i) { fresh[i]->second = options_of(problem_, solver.cost_model(), fresh[i]->first); });
    for (const AllOptions::value_type* one : fresh) priced_ += one->second.priced;
  }

  template <typename Work>
  void in_parallel(std::size_t count, const Work& work) {
    tessera::in_parallel(solvers_.size(), count, [&](std::size_t thread, std::size_t i) { work(*solvers_[thread], i); });
  }

  // In seconds; the least of its family.
  double incumbent(const Outer& outer) const { return incumbents_[outer.family]; }
  bool ruled_out(const Outer& outer, bool rough) const {
    return outer.bound > incumbent(outer) * (rough ? 1 : 1 - problem_.tolerance) * (1 + kEqual);
  }

  // Whether no more may be tried. `most`: effort; 0: any.
  bool ends(std::int64_t used, std::int64_t most) const { return may_end() && ((most > 0 && used > most) || out_of_time()); }

  // Batch by batch: what a batch may know does not depend on who is faster. `most`: the effort of all rough expansions so far and of these.
  void expand_roughly(std::int64_t most) {
    while (!ends(rough_effort_, most)) {
      do prepare();
      while (raise_bounds());
      if (ready_.empty()) return;
      const std::size_t begin = outers_.size();
      for (std::size_t i = 0; i < kBatch && !ready_.empty(); ++i) outers_.push_back(ready_.extract(ready_.begin()).value());
      expand_batch(begin, true, rough_effort_);
    }
  }

  void expand_exactly() {
    std::int64_t used = 0;
    for (std::size_t begin = 0; begin < outers_.size(); begin += kBatch) expand_batch(begin, false, used);
  }

  void expand_batch(std::size_t begin, bool rough, std::int64_t& used) {
    const std::size_t count = std::min(kBatch, outers_.size() - begin);
    const std::span<Outer* const> batch(outers_.data() + begin, count);
    const auto open = std::ranges::count_if(batch, [&](const auto& outer) { return !ruled_out(*outer, rough); });
    if (open == 0) return;
    if (!rough && ends(used, problem_.effort / 2)) {
      // Only their bounds are still of interest.
      for (const Outer* outer : batch)
        if (!ruled_out(*outer, rough)) unseen_ = std::min(unseen_, outer->bound);
      return;
    }
    // What an exact search has left is shared among the batch.
    const std::int64_t left =
        rough ? problem_.effort / kEfforts : std::min(problem_.effort / kEfforts, (problem_.effort / 2 - used) / open);
    if (problem_.watch != nullptr) problem_.watch->considered += static_cast<std::int64_t>(count);
    std::vector<Outcome> outcomes(count);
    in_parallel(count, [&](OuterSolver& solver, std::size_t i) { outcomes[i] = expand(solver, *batch[i], rough, left); });
    for (std::size_t i = 0; i < count; ++i) {
      Outcome& outcome = outcomes[i];
      used += outcome.used;
      if (outcome.unproven) unseen_ = std::min(unseen_, batch[i]->bound);
      if (!outcome.found) continue;
      incumbents_[batch[i]->family] = std::min(incumbent(*batch[i]), outcome.found->step);
      if (problem_.watch != nullptr) problem_.watch->found(Seconds(outcome.found->step));
      found_.push_back(std::move(*outcome.found));
    }
  }

  struct Outcome {
    std::optional<Found> found;
    std::int64_t used = 0;
    bool unproven = false;  // some plan of the outer choice may be better than the one that was found
  };

  // Counts with memory in the bounds of the next outer choices. False: they do already.
  bool raise_bounds() {
    if (problem_.space.uniform || stopped()) return false;
    const auto low = [&](const Outer* outer) { return !outer->with_memory && !ruled_out(*outer, true); };
    const auto next_of = [&](std::size_t count) {
      return std::next(ready_.begin(), static_cast<std::ptrdiff_t>(std::min(count, ready_.size())));
    };
    if (std::none_of(ready_.begin(), next_of(kBatch), low)) return false;
    std::vector<Outer*> raised;
    std::copy_if(ready_.begin(), next_of(found_.empty() ? kBatch : kBounds), std::back_inserter(raised), low);
    for (Outer* outer : raised) ready_.erase(outer);
    in_parallel(raised.size(), [&](OuterSolver& solver, std::size_t i) {
      raised[i]->bound = std::max(raised[i]->bound, solver.bound_with_memory(*raised[i]));
      raised[i]->with_memory = true;
    });
    ready_.insert(raised.begin(), raised.end());
    return true;
  }

  // Before there is any plan, nothing ends the search, unless it was told to.
  bool may_end() const { return !found_.empty() || problem_.give_up || stopped(); }

  // `most`: effort.
  Outcome expand(OuterSolver& solver, const Outer& outer, bool rough, std::int64_t most) {
    if (ruled_out(outer, rough)) return {};
    solver.effort() = {.stop = problem_.stop};
    if (may_end())
      solver.effort() = {.most = problem_.effort > 0 ? std::max<std::int64_t>(1, most) : 0,
                         .clock = problem_.clock,
                         .deadline = deadline_,
                         .stop = problem_.stop};
    Outcome out;
    try {
      out.found = problem_.space.uniform ? solver.simulate(outer, incumbent(outer)) : solver.solve(outer, incumbent(outer), rough);
      out.unproven = !problem_.space.uniform && !rough && !solver.exhausts(outer);
    } catch (const Effort::OutOfEffort&) {
      out.unproven = true;
    }
    out.used = std::max<std::int64_t>(1, solver.effort().used);
    return out;
  }

  // Of a uniform space: the best of each family, as far as they may be wanted.
  void refine() {
    sort_found();
    // Of each family the best with one stage and with two a rank, and near the best of all also those with other micro-batches: what makes
    // them faster is not the same.
    std::set<std::tuple<std::size_t, int, std::int64_t>> taken;
    const double near = found_.empty() ? 0 : kNear * found_.front().step;
    std::erase_if(found_, [&](const Found& found) {
      const auto& [family, chunks] = std::pair(found.outer->family, found.outer->chunks);
      return !taken.insert({family, chunks, found.step < near ? found.outer->micro_batches : 0}).second;
    });
    found_.resize(std::min(found_.size(), 3 * static_cast<std::size_t>(problem_.top + 1)));
    in_parallel(found_.size(), [&](OuterSolver& solver, std::size_t i) {
      solver.effort() = {};
      if (!out_of_time()) found_[i] = solver.refined(std::move(found_[i]));
      if (!out_of_time()) found_[i] = solver.tuned(std::move(found_[i]));
    });
    sort_found();
    in_parallel(std::min(found_.size(), kRecut), [&](OuterSolver& solver, std::size_t i) {
      if (!out_of_time()) found_[i] = solver.recut(std::move(found_[i]));
    });
    sort_found();
    std::set<std::size_t> families;
    std::erase_if(found_, [&](const Found& found) { return !families.insert(found.outer->family).second; });
  }

  void sort_found() { std::ranges::sort(found_, &Found::better_than); }

  BlockAnswer answer(std::int64_t considered) {
    sort_found();
    BlockAnswer out;
    out.considered = considered;
    if (!problem_.space.uniform) out.bound = std::min(unseen_, incumbents_.front() * (1 - problem_.tolerance));
    std::set<const Outer*> taken;
    for (Found& found : found_)
      if (static_cast<int>(out.plans.size()) <= problem_.top && taken.insert(found.outer).second)
        out.plans.push_back(std::move(found.plan));
    return out;
  }

  const BlockProblem& problem_;
  const Seconds begin_;
  std::optional<Seconds> deadline_;
  std::int64_t priced_ = 0;  // strategies of blocks
  OuterChoices choices_;
  std::deque<Outer> waiting_;        // without options yet, by their bounds
  std::deque<Outer> prepared_;       // with options
  std::set<Outer*, Earlier> ready_;  // of these, those that are not expanded yet
  std::vector<Outer*> outers_;       // and those that are, in that order
  AllOptions options_;
  std::vector<std::unique_ptr<OuterSolver>> solvers_;
  std::vector<double> incumbents_ = {kNever};  // by family
  std::int64_t rough_effort_ = 0;
  double unseen_ = kNever;  // no plan that was not looked at is faster
  std::vector<Found> found_;
};

}  // namespace

BlockAnswer search(const BlockProblem& problem) { return Search(problem).run(); }

}  // namespace tessera::search
