#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "cost/cost_model.hpp"
#include "search/accelerators.hpp"
#include "search/balance.hpp"
#include "search/exhausted.hpp"
#include "search/front.hpp"
#include "search/search.hpp"
#include "search/space.hpp"
#include "sim/sim.hpp"

namespace tessera::search {
namespace {

// Times are compared to about one part in a million; what is equal then is decided by simplicity.
std::int64_t rounded(double seconds) { return std::llround(std::log(seconds) * 1e6); }

struct Found {
  Point point;
  Variant variant;
  std::vector<int> cuts;
  plan::Plan plan;
  double step = std::numeric_limits<double>::infinity();

  auto simplicity() const {
    return std::tuple(point.layout.world(), point.pp, point.tp, variant.zero, variant.delayed_exchange, -variant.exchanged_early,
                      point.recompute, variant.schedule, point.micro_batches, point.layout.threads, point.layout.group, cuts);
  }
};

bool better(const Found& a, const Found& b) {
  const std::int64_t left = rounded(a.step);
  const std::int64_t right = rounded(b.step);
  return left != right ? left < right : a.simplicity() < b.simplicity();
}

// What a delayed exchange must save of a step: it costs a little that is not priced (./dev bench delayed).
constexpr double kWorth = 0.04;
// Up to so many ways to cut the blocks are all priced.
constexpr int kMostCuts = 32;

// A point with one of its variants, and what no step of it is shorter than.
struct Choice {
  Point point;
  Variant variant;
  double bound = 0;
};

bool whole_backward(const Variant& variant) {
  return variant.schedule == plan::Schedule::one_f_one_b || variant.schedule == plan::Schedule::gpipe;
}

// No step is shorter than all micro-batches through a stage and one of them through those before it, forward and back: with the work p_s of
// the stages before stage s, T >= p_s + m w_s. The cut with the least T has them all equal, so what is left of T, T - p_s, shrinks by a
// factor of 1 - 1/m from stage to stage. Where the weight half of a backward pass may wait, no stage is shorter than the mean.
double least_step(double total, const Point& point, const Variant& variant) {
  const auto m = static_cast<double>(point.micro_batches);
  return whole_backward(variant) ? total / (1 - std::pow(1 - 1 / m, point.pp)) : total / point.pp * m;
}

// The same with the blocks cut so.
double least_step(const std::vector<double>& seconds, const std::vector<int>& cuts, const Choice& choice) {
  double out = 0;
  double before = 0;
  for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
    const double stage = std::accumulate(seconds.begin() + cuts[s], seconds.begin() + cuts[s + 1], 0.0);
    out = std::max(out, (whole_backward(choice.variant) ? before : 0) + static_cast<double>(choice.point.micro_batches) * stage);
    before += stage;
  }
  return out;
}

using Families = std::map<std::pair<int, std::string>, Found>;

class Search {
 public:
  Search(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const profile::Profile& profile, const SearchOptions& options)
      : job_(job), cluster_(cluster), options_(options), profile_(profile), cost_model_(job.model, job.train, cluster, profile) {}

  SearchResult run() {
    const std::vector<WorkerLayout> all = layouts(job_, cluster_, options_.vendors);
    check_fixed(job_, cluster_, all);
    for (const WorkerLayout& layout : all)
      for (const Point& point : points(job_, cluster_, layout)) list(point);
    // The most promising first, so that the bounds of others rule them out.
    std::stable_sort(choices_.begin(), choices_.end(), [](const Choice& a, const Choice& b) { return a.bound < b.bound; });
    for (const Choice& choice : choices_) consider(choice);
    if (best_.empty() && too_large_.empty()) throw nothing_divides(job_, cluster_, all);
    if (best_.empty()) throw nothing_fits(job_, cluster_, smallest(), profile_);
    for (auto& [family, found] : best_) {
      refine(found);
      delay_if_worth_it(found);
    }
    return result();
  }

 private:
  void list(const Point& point) {
    const std::vector<double> seconds = block_seconds(job_, point, cost_model_);
    const double total = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    for (const Variant& variant : variants(job_, point)) choices_.push_back({point, variant, least_step(total, point, variant)});
  }

  void consider(const Choice& choice) {
    const Point& point = choice.point;
    const std::pair<int, std::string> family{point.layout.group, family_of(point)};
    const auto is_behind = [&](double bound) {
      const auto known = best_.find(family);
      return known != best_.end() && bound > known->second.step * (1 + 1e-5);
    };
    const bool behind = is_behind(choice.bound);
    if (behind && !options_.front) return;
    const std::vector<double> seconds = block_seconds(job_, point, cost_model_);
    if (behind) return consider_for_front({point, choice.variant, balance(seconds, point.pp), {}, choice.bound});
    std::vector<std::vector<int>> cuts = all_cuts(static_cast<int>(seconds.size()), point.pp, kMostCuts);
    if (cuts.empty()) cuts.push_back(balance(seconds, point.pp));
    for (const auto& cut : cuts)
      if (options_.front || !is_behind(least_step(seconds, cut, choice)))
        consider(family, {point, choice.variant, cut, plan_of(job_, cluster_, point, choice.variant, cut), choice.bound});
  }

  // Too slow to be chosen; may still be the fastest in so little memory.
  void consider_for_front(Found found) {
    found.plan = plan_of(job_, cluster_, found.point, found.variant, found.cuts);
    add_to_front(found, memory_of(found.plan, cost_model_));
  }

  // `found.step` is a lower bound where the plan has no prediction yet.
  void add_to_front(const Found& found, const std::vector<Bytes>& memory) {
    if (!options_.front) return;
    const Usage usage = fullest(found.plan, memory, cluster_);
    if (!front_.admits(found.step, usage.share())) return;
    Found priced = found;
    if (!priced.plan.predicted) price(priced);
    front_.add(front_point(priced.plan, family_of(priced.point), usage));
  }

  void consider(const std::pair<int, std::string>& family, Found found) {
    const std::vector<Bytes> memory = memory_of(found.plan, cost_model_);
    if (shortfall(found.plan, memory, cluster_) > Bytes(0)) {
      add_to_front(found, memory);
      keep_too_large(family, std::move(found), memory);
      return;
    }
    price(found);
    add_to_front(found, memory);
    const auto known = best_.find(family);
    if (known == best_.end() || better(found, known->second)) best_.insert_or_assign(family, std::move(found));
  }

  void price(Found& found) {
    found.plan.predicted = sim::predict(found.plan, cost_model_);
    found.step = found.plan.predicted->step.value;
  }

  void keep_too_large(const std::pair<int, std::string>& family, Found found, const std::vector<Bytes>& memory) {
    // The need decides here, in place of the time.
    found.step = static_cast<double>(shortfall(found.plan, memory, cluster_).value);
    const auto known = too_large_.find(family);
    if (known == too_large_.end() || better(found, known->second)) too_large_.insert_or_assign(family, std::move(found));
  }

  // The cut that balances the stages need not be the fastest: the first and last stages also fill and drain the pipeline.
  void refine(Found& found) {
    bool improved = found.point.pp > 1;
    while (improved) {
      improved = false;
      for (std::size_t s = 1; s + 1 < found.cuts.size(); ++s) {
        for (const int move : {-1, 1}) {
          Found other = found;
          other.cuts[s] += move;
          if (other.cuts[s] <= other.cuts[s - 1] || other.cuts[s] >= other.cuts[s + 1]) continue;
          other.plan = plan_of(job_, cluster_, other.point, other.variant, other.cuts);
          if (shortfall(other.plan, memory_of(other.plan, cost_model_), cluster_) > Bytes(0)) continue;
          price(other);
          if (rounded(other.step) >= rounded(found.step)) continue;
          found = std::move(other);
          add_to_front(found, found.plan.predicted->memory);
          improved = true;
        }
      }
    }
  }

  // Exchanging gradients in the next step, where nothing asks for the norm of all of them before.
  void delay_if_worth_it(Found& found) {
    if (found.point.dp == 1 || job_.train.optimizer.clip > 0 || job_.parallel.kind != model::ParallelChoice::Kind::automatic) return;
    const double at_once = found.step;
    for (const double early : kEarly) {
      Found other = found;
      other.variant.delayed_exchange = true;
      other.variant.exchanged_early = early;
      other.plan = plan_of(job_, cluster_, other.point, other.variant, other.cuts);
      price(other);
      add_to_front(other, other.plan.predicted->memory);
      if (other.step < at_once * (1 - kWorth) && better(other, found)) found = std::move(other);
    }
  }

  std::vector<Found> sorted(Families& families) const {
    std::vector<Found> out;
    for (auto& [family, found] : families) out.push_back(std::move(found));
    std::sort(out.begin(), out.end(), better);
    return out;
  }

  const plan::Plan& smallest() const {
    const Found* best = nullptr;
    for (const auto& [family, found] : too_large_)
      if (best == nullptr || better(found, *best)) best = &found;
    return best->plan;
  }

  SearchResult result() {
    SearchResult out;
    out.considered = static_cast<std::int64_t>(choices_.size());
    out.front = front_.points();
    std::vector<Found> fitting = sorted(best_);
    out.best = std::move(fitting.front().plan);
    out.best_family = family_of(fitting.front().point);
    for (std::size_t i = 1; i < fitting.size() && static_cast<int>(i) <= options_.top; ++i)
      out.runners_up.push_back({std::move(fitting[i].plan), family_of(fitting[i].point)});
    for (Found& found : sorted(too_large_)) {
      if (static_cast<int>(out.too_large.size()) == options_.top) break;
      if (best_.contains({found.point.layout.group, family_of(found.point)})) continue;
      found.plan.predicted = sim::predict(found.plan, cost_model_);
      out.too_large.push_back({std::move(found.plan), family_of(found.point)});
    }
    return out;
  }

  const model::JobSpec& job_;
  const cluster::ClusterSpec& cluster_;
  const SearchOptions& options_;
  const profile::Profile& profile_;
  cost::CostModel cost_model_;
  Families best_;
  Families too_large_;
  Front front_;
  std::vector<Choice> choices_;
};

}  // namespace

SearchResult search(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const profile::Profile& profile,
                    const SearchOptions& options) {
  if (options.vendors.empty() && cost::CostModel::supports(cluster, job.train.precision)) return search_accelerators(job, cluster, options);
  return Search(job, cluster, profile, options).run();
}

}  // namespace tessera::search
