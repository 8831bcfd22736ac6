#include "search/block_search.hpp"

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>

#include "base/error.hpp"
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
// One outer choice may use this part of the effort.
constexpr std::int64_t kEfforts = 3;

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
    for (int t = 0; t < wanted; ++t) solvers_.push_back(std::make_unique<OuterSolver>(problem_, options_, choices_.devices));
    order_waiting();
    // Roughly first: a good plan early rules out more.
    expand_roughly();
    if (outers_.empty())
      throw Error(ErrorCode::invalid_config,
                  text("no parallel degrees divide the devices of ", problem_.cluster.name, ", the model and a global batch of ",
                       problem_.global_batch),
                  {}, "for example a global batch that is a multiple of the devices");
    expanded_ = 0;
    unseen_ = kNever;
    ended_ = false;
    const bool all = waiting_.empty() || ruled_out(waiting_.front(), false);
    ended_ |= !all;
    if (!all) unseen_ = waiting_.front().bound;
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
                  [&](OuterSolver& solver, std::size_t i) { choices_.outers[i].bound = solver.least_step(choices_.outers[i]); });
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
    in_parallel(next.size(), [&](OuterSolver& solver, std::size_t i) {
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
                [&](OuterSolver& solver, std::size_t i) { fresh[i]->second = options_of(problem_, solver.cost_model(), fresh[i]->first); });
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
        if (!ruled_out(*outer, rough)) unseen_ = std::min(unseen_, outer->bound);
      ended_ = true;
      return;
    }
    // What an exact search has left is shared among the batch.
    const auto open = std::count_if(batch.begin(), batch.end(), [&](const auto& outer) { return !ruled_out(*outer, rough); });
    const std::int64_t left =
        rough ? problem_.effort / kEfforts : std::min(problem_.effort / kEfforts, (problem_.effort / 2 - used) / open);
    std::vector<Outcome> outcomes(count);
    in_parallel(count, [&](OuterSolver& solver, std::size_t i) { outcomes[i] = expand(solver, *batch[i], rough, left); });
    for (std::size_t i = 0; i < count; ++i) {
      Outcome& outcome = outcomes[i];
      used += outcome.used;
      expanded_ += outcome.used > 0 ? 1 : 0;
      if (outcome.skipped || outcome.unproven) unseen_ = std::min(unseen_, batch[i]->bound);
      ended_ |= outcome.skipped;
      if (!outcome.found) continue;
      incumbents_[batch[i]->family] = std::min(incumbent(*batch[i]), outcome.found->step);
      found_.push_back(std::move(*outcome.found));
    }
  }

  struct Outcome {
    std::optional<Found> found;
    std::int64_t used = 0;
    bool skipped = false;   // effort or time ran out
    bool unproven = false;  // some plan of the outer choice may be better than the one that was found
  };

  // Counts with memory in the bounds of the next outer choices. False: they do already.
  bool raise_bounds(std::size_t begin) {
    if (problem_.space.uniform) return false;
    const auto low = [&](const std::unique_ptr<Outer>& outer) { return !outer->with_memory && !ruled_out(*outer, true); };
    const std::size_t count = std::min(found_.empty() ? kBatch : kBounds, outers_.size() - begin);
    const std::span<const std::unique_ptr<Outer>> next(outers_.data() + begin, count);
    if (std::none_of(next.begin(), next.begin() + static_cast<std::ptrdiff_t>(std::min(kBatch, count)), low)) return false;
    in_parallel(count, [&](OuterSolver& solver, std::size_t i) {
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
  Outcome expand(OuterSolver& solver, const Outer& outer, bool rough, std::int64_t most) {
    if (ruled_out(outer, rough)) return {};
    solver.effort() = {};
    if (may_end())
      solver.effort() = {.most = problem_.effort > 0 ? std::max<std::int64_t>(1, most) : 0, .clock = problem_.clock, .deadline = deadline_};
    Outcome out;
    try {
      out.found = problem_.space.uniform ? solver.simulate(outer, incumbent(outer)) : solver.solve(outer, incumbent(outer), rough);
      out.unproven = !problem_.space.uniform && !rough && !solver.exhausts(outer);
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
    in_parallel(found_.size(), [&](OuterSolver& solver, std::size_t i) {
      solver.effort() = {};
      if (!out_of_time()) found_[i] = solver.refined(std::move(found_[i]));
    });
  }

  void sort_found() {
    std::sort(found_.begin(), found_.end(), [](const Found& a, const Found& b) { return a.better_than(b); });
  }

  BlockAnswer answer() {
    sort_found();
    BlockAnswer out;
    out.considered = considered_;
    out.expanded = expanded_;
    out.complete = !ended_;
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
  OuterChoices choices_;
  std::deque<Outer> waiting_;                   // without options yet, by their bounds
  std::vector<std::unique_ptr<Outer>> outers_;  // stay where they are
  std::int64_t all_ = 0;                        // outer choices
  std::int64_t considered_ = 0;
  AllOptions options_;
  std::vector<std::unique_ptr<OuterSolver>> solvers_;
  std::vector<double> incumbents_ = {kNever};  // by family
  std::int64_t expanded_ = 0;
  double unseen_ = kNever;  // no plan that was not looked at is faster
  bool ended_ = false;      // effort or time ran out
  std::vector<Found> found_;
};

}  // namespace

BlockAnswer search(const BlockProblem& problem) { return Search(problem).run(); }

}  // namespace tessera::search
