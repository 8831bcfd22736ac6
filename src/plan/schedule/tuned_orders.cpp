#include "plan/schedule/tuned_orders.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>

namespace tessera::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
// Steps in a row after which one takes as long as the next.
constexpr int kSteps = 3;
// At first annealing goes on from a step that is longer by this part in about one of three cases.
constexpr double kHeat = 0.003;
// A pass moves by so many places at most.
constexpr int kFarthest = 3;

enum Part { forward, input, weight };
constexpr std::array kParts = {forward, input, weight};
constexpr std::array kBackward = {Backward::whole, Backward::input, Backward::weight};  // of a Slot, by Part

// A pass of the next micro-batch of its chunk: micro-batches pass each part of a chunk in their order.
struct Pass {
  Part part = forward;
  int chunk = 0;
};
using Passes = std::vector<std::vector<Pass>>;  // by pipeline rank

Passes passes_of(const Orders& orders) {
  Passes out;
  for (const std::vector<Slot>& order : orders) {
    out.emplace_back();
    for (const Slot& slot : order) {
      if (slot.forward || slot.part != Backward::weight) out.back().push_back({slot.forward ? forward : input, slot.chunk});
      if (!slot.forward && slot.part != Backward::input) out.back().push_back({weight, slot.chunk});
    }
  }
  return out;
}

Orders orders_of(const Passes& passes, int chunks) {
  Orders out;
  for (const std::vector<Pass>& of_rank : passes) {
    std::vector<std::array<int, 3>> next(chunks, {0, 0, 0});
    out.emplace_back();
    for (const Pass& pass : of_rank) {
      const int micro_batch = next[pass.chunk][pass.part]++;
      out.back().push_back({pass.part == forward, micro_batch, pass.chunk, kBackward[pass.part]});
    }
  }
  return out;
}

// Plays orders through.
class Player {
 public:
  explicit Player(const TimedPipeline& of)
      : of_(of), stages_(of.pipeline.size * of.pipeline.chunks), rank_of_(stages_), chunk_of_(stages_) {
    for (int rank = 0; rank < of.pipeline.size; ++rank)
      for (int chunk = 0; chunk < of.pipeline.chunks; ++chunk) {
        rank_of_[stage(rank, chunk)] = rank;
        chunk_of_[stage(rank, chunk)] = chunk;
      }
    for (const StageTimes& times : of.stages)
      seconds_.push_back({times.forward.value, times.backward_input.value, times.backward_weight.value});
  }

  int ranks() const { return of_.pipeline.size; }
  int stages() const { return stages_; }
  int stage(int rank, int chunk) const { return stage_at(of_.placement, rank, chunk, of_.pipeline.size); }
  double seconds(int stage, Part part) const { return seconds_[stage][part]; }

  // The stage whose pass of the same micro-batch comes before, and that pass; -1: none does.
  std::pair<int, Part> before(int stage, Part part) const {
    if (part == forward) return {stage - 1, forward};
    if (part == weight) return {stage, input};
    return stage + 1 == stages_ ? std::pair(stage, forward) : std::pair(stage + 1, input);
  }
  // From the end of that pass on.
  double message(int from, int to) const {
    if (rank_of_[from] == rank_of_[to]) return 0;
    return of_.stages[std::min(from, to)].message.value;
  }

  std::int64_t count() const { return std::int64_t{kSteps} * stages_ * of_.micro_batches * 3; }

  double step(const Passes& passes) {
    for (int rank = 0; rank < ranks(); ++rank)
      if (!fits(rank, passes[rank])) return kNever;
    const int steps = of_.steps_overlap ? kSteps : 1;
    ends_.assign(steps * stages_ * of_.micro_batches * 3, -1);
    next_.assign(steps * stages_ * 3, 0);
    at_.assign(ranks(), 0);
    free_.assign(ranks(), 0);
    sent_.assign(steps * stages_ * of_.micro_batches * 2, 0);
    sends_.assign(ranks() * ranks() * 2, 0);
    receives_ = sends_;
    std::vector<std::array<double, kSteps>> begun(ranks());
    std::size_t left = 0;
    for (const std::vector<Pass>& of_rank : passes) left += of_rank.size() * steps;
    for (bool moved = true; left > 0 && moved;) {
      moved = false;
      for (int rank = 0; rank < ranks(); ++rank) {
        const std::vector<Pass>& own = passes[rank];
        for (; at_[rank] < own.size() * steps; ++at_[rank], --left) {
          const int step = static_cast<int>(at_[rank] / own.size());
          if (!run(rank, step, own[at_[rank] % own.size()])) break;
          moved = true;
          if ((at_[rank] + 1) % own.size() != 0) continue;
          free_[rank] += of_.between[rank].value;
          begun[rank][step] = free_[rank];
        }
        if (overtaken_) return overtaken_ = false, kNever;
      }
    }
    if (left > 0) return kNever;
    double out = 0;
    for (const auto& of_rank : begun) out = std::max(out, steps == 1 ? of_rank[0] : of_rank[kSteps - 1] - of_rank[kSteps - 2]);
    return out;
  }

  // Each rank, whenever it is free, runs of the passes that can begin first the one that `urgency` puts first.
  template <typename Urgency>
  Passes greedy(const Urgency& urgency) const {
    Passes out(ranks());
    std::vector<std::array<std::vector<double>, 3>> ends(stages_);
    std::vector<double> free(ranks(), 0.0);
    for (std::int64_t left = count() / kSteps; left > 0; --left) {
      std::tuple<double, decltype(urgency(0, forward, 0)), int, int, Part> best{kNever, {}, 0, 0, forward};
      bool found = false;
      for (int stage = 0; stage < stages_; ++stage)
        for (const Part part : kParts) {
          const int micro_batch = static_cast<int>(ends[stage][part].size());
          const auto [from, needed] = before(stage, part);
          if (micro_batch == of_.micro_batches) continue;
          if (from >= 0 && std::ssize(ends[from][needed]) <= micro_batch) continue;
          const double ready = from < 0 ? 0 : ends[from][needed][micro_batch] + message(from, stage);
          const int rank = rank_of_[stage];
          const std::tuple candidate{std::max(ready, free[rank]), urgency(stage, part, micro_batch), rank, stage, part};
          if (!found || candidate < best) best = candidate;
          found = true;
        }
      const auto& [begin, urgent, rank, stage, part] = best;
      const double end = begin + seconds(stage, part);
      ends[stage][part].push_back(end);
      free[rank] = end;
      out[rank].push_back({part, chunk_of_[stage]});
    }
    return out;
  }

 private:
  bool fits(int rank, const std::vector<Pass>& own) const {
    if (of_.room.empty()) return true;
    std::int64_t held = 0;
    for (const Pass& pass : own) {
      const ChunkBytes& bytes = of_.bytes[rank][pass.chunk];
      held += pass.part == forward ? bytes.saved : pass.part == input ? bytes.saved_for_weight - bytes.saved : -bytes.saved_for_weight;
      if (held > of_.room[rank]) return false;
    }
    return true;
  }

  double& end(int step, int stage, Part part, int micro_batch) {
    return ends_[((step * stages_ + stage) * of_.micro_batches + micro_batch) * 3 + part];
  }

  // False: what it needs is not there yet.
  bool run(int rank, int step, const Pass& pass) {
    const int stage = this->stage(rank, pass.chunk);
    int& micro_batch = next_[(step * stages_ + stage) * 3 + pass.part];
    const auto [from, needed] = before(stage, pass.part);
    const int kind = pass.part == forward ? 0 : 1;
    double& free = free_[rank];
    if (from >= 0) {
      const double ready = end(step, from, needed, micro_batch);
      if (ready < 0) return false;
      free = std::max(free, ready + message(from, stage));
      if (const int sender = rank_of_[from]; sender != rank)
        overtaken_ |= sent(step, from, kind, micro_batch) != receives_[(sender * ranks() + rank) * 2 + kind]++;
    }
    free += seconds(stage, pass.part);
    end(step, stage, pass.part, micro_batch) = free;
    const int to = pass.part == forward ? stage + 1 : stage - 1;
    if (pass.part != weight && to >= 0 && to < stages_) {
      const int receiver = rank_of_[to];
      if (receiver != rank) sent(step, stage, kind, micro_batch) = sends_[(rank * ranks() + receiver) * 2 + kind]++;
    }
    ++micro_batch;
    return true;
  }

  // Which of all messages of the kind between two ranks it was.
  int& sent(int step, int stage, int kind, int micro_batch) {
    return sent_[((step * stages_ + stage) * of_.micro_batches + micro_batch) * 2 + kind];
  }

  const TimedPipeline& of_;
  int stages_;
  std::vector<int> rank_of_, chunk_of_;         // by stage
  std::vector<std::array<double, 3>> seconds_;  // by stage and part
  // While orders are played through.
  std::vector<double> ends_;
  std::vector<int> next_;  // micro-batch, by step, stage and part
  std::vector<std::size_t> at_;
  std::vector<double> free_;
  std::vector<int> sent_, sends_, receives_;
  bool overtaken_ = false;
};

// What rules make that differ in what they hold for urgent.
std::vector<Passes> greedy_passes(const Player& player) {
  const int stages = player.stages();
  std::vector<double> to_end(stages, 0.0);  // of a micro-batch from its forward pass on, and the way back
  std::vector<double> to_begin(stages, 0.0);
  double back = 0;
  for (int s = 0; s < stages; ++s) to_begin[s] = back += player.seconds(s, input);
  double ahead = back;
  for (int s = stages - 1; s >= 0; --s) to_end[s] = ahead += player.seconds(s, forward);
  using Urgency = std::tuple<double, double, double>;
  const auto by_part = [](const std::array<int, 3>& rank_of, bool deep) {
    return [=](int stage, Part part, int micro_batch) {
      return Urgency(rank_of[part], deep ? -stage : micro_batch, deep ? micro_batch : -stage);
    };
  };
  std::vector<Passes> out;
  for (const bool deep : {false, true}) {
    out.push_back(player.greedy(by_part({1, 0, 2}, deep)));
    out.push_back(player.greedy(by_part({0, 1, 2}, deep)));
  }
  out.push_back(player.greedy([&](int stage, Part part, int micro_batch) {
    return Urgency(part == forward ? -to_end[stage] : part == input ? -to_begin[stage] : 0, micro_batch, stage);
  }));
  return out;
}

// With one stage on each rank: ZB-H2 fitted to what stages take on average.
Orders fitted_orders(const TimedPipeline& of) {
  StageTimes mean{};
  const double share = 1.0 / static_cast<double>(of.stages.size());
  for (const StageTimes& stage : of.stages) {
    mean.forward += stage.forward * share;
    mean.backward_input += stage.backward_input * share;
    mean.backward_weight += stage.backward_weight * share;
    mean.message += stage.message * share;
  }
  Orders out;
  for (int rank = 0; rank < of.pipeline.size; ++rank) out.push_back(fitted_order(rank, of.pipeline.size, of.micro_batches, mean));
  return out;
}

}  // namespace

Seconds step_of(const TimedPipeline& pipeline, const Orders& orders) { return Seconds(Player(pipeline).step(passes_of(orders))); }

Orders tuned_orders(const TimedPipeline& pipeline, const Orders& first, std::int64_t effort) {
  Player player(pipeline);
  Passes best = passes_of(first);
  double step = player.step(best);
  std::vector<Passes> others = greedy_passes(player);
  if (pipeline.pipeline.chunks == 1) others.push_back(passes_of(fitted_orders(pipeline)));
  for (Passes& passes : others)
    if (const double other = player.step(passes); other < step) {
      step = other;
      best = std::move(passes);
    }
  if (step == kNever) return first;
  // Not std::uniform_*_distribution, of which the standard does not say what it draws.
  std::mt19937_64 random(1);
  const auto below = [&](std::size_t count) { return static_cast<std::size_t>(random() % count); };
  const std::int64_t tries = effort / player.count();
  Passes now = best;
  double current = step;
  for (std::int64_t i = 0; i < tries; ++i) {
    std::vector<Pass>& own = now[below(now.size())];
    const std::size_t from = below(own.size());
    const std::size_t far = 1 + below(kFarthest);
    const bool earlier = below(2) == 0;
    const std::size_t to = earlier ? from - std::min(from, far) : std::min(own.size() - 1, from + far);
    const auto move = [&](std::size_t a, std::size_t b) {
      const auto begin = own.begin();
      if (a < b) std::rotate(begin + a, begin + a + 1, begin + b + 1);
      if (a > b) std::rotate(begin + b, begin + a, begin + a + 1);
    };
    move(from, to);
    const double other = player.step(now);
    const double heat = kHeat * step * (1 - static_cast<double>(i) / static_cast<double>(tries)) + 1e-12;
    const double chance = static_cast<double>(random() >> 11) * 0x1p-53;
    if (other <= current || chance < std::exp((current - other) / heat)) {
      current = other;
      if (current >= step * (1 - 1e-9)) continue;
      step = current;
      best = now;
    } else {
      move(to, from);
    }
  }
  return orders_of(best, pipeline.pipeline.chunks);
}

}  // namespace tessera::plan
