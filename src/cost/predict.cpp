#include <algorithm>
#include <functional>

#include "cost/cost_model.hpp"
#include "cost/fluid.hpp"
#include "cost/lanes.hpp"
#include "cost/prices.hpp"
#include "cost/stage_costs.hpp"
#include "plan/schedule/schedule.hpp"
#include "plan/trainable.hpp"

namespace tessera::cost {
namespace {

constexpr double kUnknown = -1;

struct Reduction {
  double ready = 0;
  double tied = 0;  // duration of the exchange between the tied stages
  double data_parallel = 0;
  int tied_stage = -1;
};

// By stage, after the pipeline has drained.
struct StageEnd {
  double backward = 0;
  std::vector<Reduction> reductions;
  double reduced = 0;
  double end = 0;
  double stepped = 0;
};

// What the first forward pass of a stage does with the step before it.
struct FirstPass {
  double waited = 0;  // for exchanges, and what they slow it down
  double stepped = 0;
};

// Steps in a row after which one is like the next: the first has nothing to finish.
constexpr int kSettled = 4;

class Predictor {
 public:
  Predictor(const plan::Plan& plan, Prices& prices)
      : plan_(plan),
        prices_(prices),
        costs_(plan, prices),
        times_(costs_.times()),
        stage_count_(static_cast<int>(plan.stages.size())),
        micro_batches_(static_cast<int>(plan.micro_batches)) {}

  plan::Prediction predict() {
    free_.assign(stage_count_, 0);
    step();
    if (plan_.delayed_exchange) return settled();
    finish_steps();
    return prediction();
  }

 private:
  // Up to the end of its exchanges.
  void step() {
    run_pipeline();
    ends_.clear();
    for (int s = 0; s < stage_count_; ++s) ends_.push_back(drain(s));
    finish_reductions();
  }

  // A step whose exchanges go on in the next one takes what one more adds to several in a row.
  plan::Prediction settled() {
    double before = 0;
    double after = 0;
    for (int steps = 1; steps < kSettled; ++steps) {
      before = passes_end();
      for (int s = 0; s < stage_count_; ++s) free_[s] = ends_[s].backward;
      finishing_ = true;
      step();
      after = passes_end();
    }
    return prediction(after - before);
  }

  double passes_end() const {
    double out = 0;
    for (const StageEnd& end : ends_) out = std::max(out, end.backward);
    return out;
  }

  // The first micro-batch's pass through a stage, which begins with what the step before has left: in the first stage bucket by
  // bucket, elsewhere all of it before the activations come.
  double first_forward(int s, double start) {
    const StageTimes& times = times_[s];
    if (!finishing_) return start + times.whole_forward();
    FirstPass& pass = firsts_[s];
    const std::vector<BucketShape> buckets = prices_.buckets(plan_, s);
    const std::vector<int> order = exchange_order(plan_, counts_of(buckets));
    const auto finish = [&](double now, int first, int last) {
      for (const int b : order) {
        if (buckets[b].lowest_block < first || buckets[b].lowest_block >= last) continue;
        const double stepped = costs_.step_time(s, buckets[b].count);
        pass.stepped += stepped;
        now = std::max(now, exchanged_[s][b]) + stepped + costs_.gather_time(s, buckets[b].count);
      }
      return now;
    };
    const std::vector<int> cuts = s == 0 ? cuts_of(s, buckets) : std::vector<int>{plan_.stages[s].first_block()};
    const double all = *std::max_element(exchanged_[s].begin(), exchanged_[s].end());
    const double slows = costs_.overlap(s, costs_.reduction(s)).slows;
    const double share = times.forward > 0 ? times.whole_forward() / times.forward : 1;
    double now = start;
    for (std::size_t c = cuts.size(); c-- > 0;) {
      const int upper = c == 0 ? plan_.stages[s].last_block() : cuts[c - 1];
      now = std::max(now, finish(s == 0 ? now : free_[s], cuts[c], upper));
      double forward = 0;
      for (const BlockSegment& segment : prices_.segments(plan_.stages[s])) {
        const int count = std::min(upper, segment.first + segment.count) - std::max(cuts[c], segment.first);
        if (count > 0) forward += count * costs_.block(s, segment).forward * share;
      }
      const double beside = std::clamp((all - now) / slows, 0.0, forward);
      now += forward + beside * (slows - 1);
    }
    pass.waited = std::max(0.0, now - start - times.whole_forward() - pass.stepped);
    return now;
  }

  // When the message of micro-batch m over the boundary is there: it starts when the sender has it, the receiver has a free
  // buffer (two are in turn), and the one before is through.
  static double arrival(double sent, const std::vector<double>& consumed, const std::vector<double>& arrived, int m, double duration) {
    if (sent < 0) return kUnknown;
    double start = sent;
    if (m >= 2) start = std::max(start, consumed[m - 2]);
    if (m >= 1) start = std::max(start, arrived[m - 1]);
    return start + duration;
  }

  void run_pipeline() {
    const std::vector<double> none(micro_batches_, kUnknown);
    forward_end_.assign(stage_count_, none);
    backward_end_.assign(stage_count_, none);
    std::vector<std::vector<double>> activations(stage_count_, none);
    std::vector<std::vector<double>> gradients(stage_count_, none);
    std::vector<std::vector<plan::Slot>> orders;
    std::vector<std::size_t> next(stage_count_, 0);
    std::vector<double> free = free_;
    firsts_.assign(stage_count_, {});
    final_start_.assign(stage_count_, 0);
    for (int s = 0; s < stage_count_; ++s) orders.push_back(order_of(plan_.schedule, s, stage_count_, micro_batches_));
    const auto advance = [&](int s) {
      while (next[s] < orders[s].size()) {
        const bool forward = orders[s][next[s]].forward;
        const int m = orders[s][next[s]].micro_batch;
        double ready = free_[s];
        if (forward && s > 0) {
          ready = activations[s][m] = arrival(forward_end_[s - 1][m], forward_end_[s], activations[s], m, times_[s - 1].activation_send);
        } else if (!forward && s + 1 < stage_count_) {
          ready = gradients[s][m] = arrival(backward_end_[s + 1][m], backward_end_[s], gradients[s], m, times_[s].gradient_send);
        }
        if (ready < 0) return;
        const double start = std::max(free[s], ready);
        if (forward) {
          free[s] = forward_end_[s][m] = m == 0 ? first_forward(s, start) : start + times_[s].whole_forward();
        } else {
          const bool last = m + 1 == micro_batches_;
          if (last) final_start_[s] = start;
          free[s] = backward_end_[s][m] = last ? final_backward(s, start).compute : start + times_[s].whole_backward();
        }
        ++next[s];
      }
    };
    std::size_t open = 1;
    while (open > 0) {
      for (int s = 0; s < stage_count_; ++s) advance(s);
      for (int s = stage_count_ - 1; s >= 0; --s) advance(s);
      open = 0;
      for (int s = 0; s < stage_count_; ++s) open += orders[s].size() - next[s];
    }
  }

  // The last micro-batch's backward pass is cut below each bucket, and the buckets are reduced behind it.
  struct FinalWork {
    std::vector<LaneWork> works;
    std::vector<int> released_at;  // by bucket: which work completes it
  };
  FinalWork final_work(int s) {
    FinalWork out;
    const std::vector<BucketShape> buckets = prices_.buckets(plan_, s);
    const std::vector<int> cuts = cuts_of(s, buckets);
    const double total = times_[s].backward;
    const double exchange = total > 0 ? times_[s].backward_exchange / total : 0;
    const auto segments = prices_.segments(plan_.stages[s]);
    int upper = plan_.stages[s].last_block();
    for (int lower : cuts) {
      LaneWork work;
      for (const BlockSegment& segment : segments) {
        const int count = std::min(upper, segment.first + segment.count) - std::max(lower, segment.first);
        if (count > 0) work.compute += count * costs_.block(s, segment).backward * (1 + exchange);
      }
      out.works.push_back(std::move(work));
      upper = lower;
    }
    for (const BucketShape& bucket : buckets)
      out.released_at.push_back(static_cast<int>(std::find(cuts.begin(), cuts.end(), bucket.lowest_block) - cuts.begin()));
    int at = 0;
    for (const int b : exchange_order(plan_, counts_of(buckets))) {
      // What waits for another stage is added after the pipeline has drained.
      if (buckets[b].tied_stage >= 0) break;
      at = std::max(at, out.released_at[b]);
      if (costs_.strategy(s).dp > 1) out.works[at].released.push_back(costs_.reduce_time(s, buckets[b].count));
    }
    return out;
  }

  static std::vector<std::int64_t> counts_of(const std::vector<BucketShape>& buckets) {
    std::vector<std::int64_t> out;
    for (const BucketShape& bucket : buckets) out.push_back(bucket.count);
    return out;
  }

  // Where the last backward pass is cut, downwards.
  std::vector<int> cuts_of(int s, const std::vector<BucketShape>& buckets) const {
    std::vector<int> cuts = {plan_.stages[s].first_block()};
    for (const BucketShape& bucket : buckets) cuts.push_back(bucket.lowest_block);
    std::sort(cuts.begin(), cuts.end(), std::greater<>());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    return cuts;
  }

  LaneEnd final_backward(int s, double start) { return run_lanes(start, final_work(s).works, costs_.overlap(s, costs_.reduction(s))); }

  StageEnd drain(int s) {
    StageEnd end;
    const FinalWork work = final_work(s);
    const LaneEnd lanes = run_lanes(final_start_[s], work.works, costs_.overlap(s, costs_.reduction(s)));
    end.backward = lanes.compute;
    const std::vector<BucketShape> buckets = prices_.buckets(plan_, s);
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      Reduction reduction;
      reduction.ready = lanes.compute_ends[work.released_at[b]];
      reduction.data_parallel = costs_.reduce_time(s, buckets[b].count);
      reduction.tied_stage = buckets[b].tied_stage;
      if (reduction.tied_stage >= 0) reduction.tied = costs_.tied_time(s, reduction.tied_stage, buckets[b].count);
      end.reductions.push_back(reduction);
    }
    return end;
  }

  void finish_reductions() {
    std::vector<FluidQueue> queues;
    std::vector<std::vector<int>> orders;
    for (int s = 0; s < stage_count_; ++s) {
      FluidQueue queue = costs_.data_queue(s);
      orders.push_back(exchange_order(plan_, counts_of(prices_.buckets(plan_, s))));
      queue.beside_until = ends_[s].backward;
      queue.slowed = costs_.overlap(s, costs_.reduction(s)).slowed;
      for (const int b : orders[s]) {
        const Reduction& reduction = ends_[s].reductions[b];
        double ready = reduction.ready;
        if (reduction.tied_stage >= 0) {
          for (const Reduction& other : ends_[reduction.tied_stage].reductions)
            if (other.tied_stage == s) ready = std::max(ready, other.ready);
          ready += reduction.tied;
        }
        queue.items.push_back({ready, reduction.data_parallel, 0});
      }
      queues.push_back(std::move(queue));
    }
    run_fluid(queues);
    exchanged_.resize(stage_count_);
    for (int s = 0; s < stage_count_; ++s) {
      ends_[s].reduced = ends_[s].backward;
      for (const FluidItem& item : queues[s].items) ends_[s].reduced = std::max(ends_[s].reduced, item.end);
      exchanged_[s].resize(orders[s].size());
      for (std::size_t i = 0; i < orders[s].size(); ++i) exchanged_[s][orders[s][i]] = queues[s].items[i].end;
    }
  }

  void finish_steps() {
    norm_ = 0;
    for (const StageEnd& end : ends_) norm_ = std::max(norm_, end.reduced);
    if (plan_.world_size() > 1) {
      std::vector<int> world(plan_.world_size());
      for (int rank = 0; rank < plan_.world_size(); ++rank) world[rank] = rank;
      constexpr std::int64_t kScalars = 32;
      norm_ += prices_.collective("all_reduce", kScalars, plan_.world_size(), link_among(plan_, prices_.cluster(), world));
    }
    std::vector<FluidQueue> queues;
    for (int s = 0; s < stage_count_; ++s) {
      const plan::Strategy& of = costs_.strategy(s);
      const bool sharded = of.zero > 0 && of.dp > 1;
      FluidQueue gathers = costs_.data_queue(s);
      std::vector<LaneWork> works;
      for (const BucketShape& bucket : prices_.buckets(plan_, s)) {
        LaneWork work;
        work.compute = costs_.step_time(s, bucket.count);
        if (sharded) work.released.push_back(costs_.gather_time(s, bucket.count));
        works.push_back(std::move(work));
      }
      const LaneEnd lanes = run_lanes(norm_, works, costs_.overlap(s, "all_gather"));
      for (std::size_t b = 0; b < works.size() && sharded; ++b)
        gathers.items.push_back({lanes.compute_ends[b], works[b].released.front(), 0});
      gathers.beside_until = lanes.compute;
      gathers.slowed = costs_.overlap(s, "all_gather").slowed;
      queues.push_back(std::move(gathers));
      ends_[s].stepped = ends_[s].end = lanes.compute;
    }
    run_fluid(queues);
    for (int s = 0; s < stage_count_; ++s)
      for (const FluidItem& item : queues[s].items) ends_[s].end = std::max(ends_[s].end, item.end);
  }

  // The stage with the most to compute.
  int critical_stage() const {
    const auto work = [&](const StageTimes& times) { return times.whole_forward() + times.whole_backward(); };
    return static_cast<int>(
        std::max_element(times_.begin(), times_.end(), [&](const auto& a, const auto& b) { return work(a) < work(b); }) - times_.begin());
  }

  // `stepped`: by stage, seconds of its steps.
  double idle_share(double step, const std::vector<double>& stepped) const {
    double busy = 0;
    for (int s = 0; s < stage_count_; ++s)
      busy += (micro_batches_ * (times_[s].forward + times_[s].backward) + stepped[s]) * static_cast<double>(plan_.stages[s].ranks.size());
    return std::clamp(1 - busy / (step * plan_.world_size()), 0.0, 1.0);
  }

  // Of steps that begin with the end of the one before.
  plan::Prediction prediction(double period) {
    plan::Prediction out;
    out.step = Seconds(period);
    const int critical = critical_stage();
    const StageTimes& times = times_[critical];
    const double m = micro_batches_;
    const double slowed = ends_[critical].backward - final_start_[critical] - times.whole_backward();
    double rest = period;
    const auto add = [&](const char* name, double seconds) {
      seconds = std::min(seconds, rest);
      rest -= seconds;
      if (seconds > 0) out.parts.emplace_back(name, Seconds(seconds));
    };
    add("forward", m * times.forward);
    add("backward", m * (times.backward - times.recompute));
    add("recompute", m * times.recompute);
    add("tensor exchange", m * (times.forward_exchange + times.backward_exchange));
    add("gradient exchange", firsts_[critical].waited + slowed);
    add("optimizer", firsts_[critical].stepped);
    add("pipeline idle", rest);
    out.memory = memory_of(plan_, prices_);
    std::vector<double> stepped;
    for (const FirstPass& first : firsts_) stepped.push_back(first.stepped);
    out.bubble = idle_share(period, stepped);
    return out;
  }

  plan::Prediction prediction() {
    plan::Prediction out;
    double drained = 0;
    std::vector<double> stepped;
    for (const StageEnd& end : ends_) {
      out.step = std::max(out.step, Seconds(end.end));
      drained = std::max(drained, end.backward);
      stepped.push_back(end.stepped - norm_);
    }
    const int critical = critical_stage();
    const StageTimes& times = times_[critical];
    const StageEnd& end = ends_[critical];
    const double m = micro_batches_;
    const double working = m * (times.whole_forward() + times.whole_backward());
    const auto add = [&](const char* name, double seconds) {
      if (seconds > 0) out.parts.emplace_back(name, Seconds(seconds));
    };
    add("forward", m * times.forward);
    add("backward", m * (times.backward - times.recompute));
    add("recompute", m * times.recompute);
    add("tensor exchange", m * (times.forward_exchange + times.backward_exchange));
    // The exchange costs what it adds at the end and what it slows the last backward pass down.
    const double slowed = end.backward - final_start_[critical] - times.whole_backward();
    add("pipeline idle", drained - working - slowed);
    add("gradient exchange", norm_ - drained + slowed);
    add("optimizer", end.stepped - norm_);
    add("parameter gather", out.step.value - end.stepped);
    out.memory = memory_of(plan_, prices_);
    out.bubble = idle_share(out.step.value, stepped);
    return out;
  }

  const plan::Plan& plan_;
  Prices& prices_;
  StageCosts costs_;
  const std::vector<StageTimes>& times_;
  int stage_count_;
  int micro_batches_;
  std::vector<std::vector<double>> forward_end_;
  std::vector<std::vector<double>> backward_end_;
  std::vector<double> final_start_;
  std::vector<StageEnd> ends_;
  double norm_ = 0;
  // With a delayed exchange, of the step before: when each stage was done with its passes, and by stage and bucket the exchanges.
  std::vector<double> free_;
  std::vector<std::vector<double>> exchanged_;
  bool finishing_ = false;         // whether there is one
  std::vector<FirstPass> firsts_;  // by stage
};

}  // namespace

plan::Prediction predict(const plan::Plan& plan, Prices& prices) { return Predictor(plan, prices).predict(); }

plan::Prediction predict(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train,
                         const cluster::ClusterSpec& cluster, const profile::Profile& profile) {
  if (CostModel::supports(cluster, plan.precision)) {
    CostModel cost_model(model, cluster, plan.precision);
    return predict(plan, cost_model);
  }
  check_uniform(plan, "the plan cannot be priced from a profile");
  Prices prices(model, train, cluster, profile);
  return predict(plan, prices);
}

}  // namespace tessera::cost
