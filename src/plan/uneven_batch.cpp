#include "plan/uneven_batch.hpp"

#include <algorithm>
#include <numeric>
#include <queue>

#include "base/error.hpp"

namespace tessera::plan {
namespace {

// Of which each deals the batch once.
constexpr int kMostTrials = 400;

using Indices = std::vector<std::int64_t>;

class Dealer {
 public:
  Dealer(std::span<const std::int64_t> samples, const Lengths& lengths, int ranks, std::int64_t tokens)
      : samples_(samples), lengths_(lengths), ranks_(ranks), tokens_(tokens), by_length_(samples.size()) {
    std::iota(by_length_.begin(), by_length_.end(), 0);
    std::stable_sort(by_length_.begin(), by_length_.end(), [&](auto a, auto b) { return length(a) > length(b); });
  }

  UnevenBatch run() {
    std::vector<std::size_t> ends = least_ends();
    UnevenBatch best = dealt(ends);
    best.bound = bound();
    for (int trials = 1; trials < kMostTrials;) {
      // Widen the groups of the longest samples of one degree, of one or of many, as long as the best of these steps helps.
      std::vector<std::size_t> next;
      for (std::size_t g = 0; g + 1 < lengths_.groups.size(); ++g) {
        const std::size_t of_degree = (g == 0 ? samples_.size() : ends[g - 1]) - ends[g];
        for (std::size_t count = 1; count < 2 * of_degree && trials < kMostTrials; count *= 2, ++trials) {
          std::vector<std::size_t> tried = ends;
          tried[g] += std::min(count, of_degree);
          UnevenBatch batch = dealt(tried);
          if (batch.seconds >= best.seconds) continue;
          batch.bound = best.bound;
          best = std::move(batch);
          next = std::move(tried);
        }
      }
      if (next.empty()) break;
      ends = std::move(next);
    }
    return best;
  }

  // All work on the groups that do it with the least ranks' time, evenly on all ranks; and the longest sample alone.
  double bound() const {
    double work = 0, longest = 0;
    for (const std::int64_t tokens : samples_) {
      double least_work = -1, least = -1;
      for (const Lengths::Group& group : lengths_.groups) {
        if (tokens > room(group)) continue;
        const double alone = seconds(tokens, group) + lengths_.pass;
        const double shared = seconds(tokens, group) + lengths_.pass * static_cast<double>(tokens) / static_cast<double>(room(group));
        if (least < 0 || alone < least) least = alone;
        if (least_work < 0 || shared * group.degree < least_work) least_work = shared * group.degree;
      }
      work += least_work;
      longest = std::max(longest, least);
    }
    return std::max(longest, work / ranks_);
  }

 private:
  std::int64_t length(std::int64_t sample) const { return samples_[sample]; }
  std::int64_t room(const Lengths::Group& group) const {
    const std::int64_t parts = group.degree > 1 ? 2 * group.degree : 1;
    return tokens_ * group.degree / parts * parts;
  }

  // Of one sample in a pass on a group.
  double seconds(std::int64_t tokens, const Lengths::Group& group) const {
    const auto count = static_cast<double>(tokens);
    // A causal mask leaves half of the pairs.
    return ((lengths_.token + group.exchange) * count + lengths_.pair * count * count / 2) / group.degree;
  }

  // By group but the last: how many samples, of the longest, need a wider one.
  std::vector<std::size_t> least_ends() const {
    const Lengths::Group& widest = lengths_.groups.back();
    if (!samples_.empty() && length(by_length_.front()) > room(widest))
      throw Error(ErrorCode::resource_exhausted,
                  text("a sample of ", length(by_length_.front()), " tokens is longer than what ", widest.degree,
                       widest.degree == 1 ? " rank holds" : " ranks hold", " at once"),
                  {}, text("at most ", room(widest), " tokens"), "a larger parallel.cp, fewer micro_batches, or a shorter model.seq");
    std::vector<std::size_t> ends;
    for (std::size_t g = 0; g + 1 < lengths_.groups.size(); ++g)
      ends.push_back(std::ranges::partition_point(by_length_, [&](auto sample) { return length(sample) > room(lengths_.groups[g]); }) -
                     by_length_.begin());
    return ends;
  }

  // The longest samples, up to the last of `ends`, go to the widest groups, and so on; within a degree the longest first, each to the group
  // that is through first. Wide passes come before narrow ones, whose ranks are then even out what wide ones leave uneven.
  UnevenBatch dealt(const std::vector<std::size_t>& ends) const {
    UnevenBatch out;
    std::vector<double> through(ranks_, 0.0);
    for (std::size_t g = lengths_.groups.size(); g-- > 0;) {
      const std::size_t begin = g + 1 == lengths_.groups.size() ? 0 : ends[g];
      const std::size_t end = g == 0 ? samples_.size() : ends[g - 1];
      if (begin < end) deal_to(lengths_.groups[g], std::span(by_length_).subspan(begin, end - begin), through, out);
    }
    out.seconds = std::ranges::max(through);
    out.idle = out.seconds > 0 ? 1 - std::accumulate(through.begin(), through.end(), 0.0) / (ranks_ * out.seconds) : 0;
    return out;
  }

  void deal_to(const Lengths::Group& group, std::span<const std::int64_t> samples, std::vector<double>& through, UnevenBatch& out) const {
    const auto ranks_of = [&](int lane) { return std::span(through).subspan(lane * group.degree, group.degree); };
    const auto begin_of = [&](int lane) { return std::ranges::max(ranks_of(lane)); };
    // When the ranks of a group are through with what they have so far, and which group it is.
    using Lane = std::pair<double, int>;
    std::priority_queue<Lane, std::vector<Lane>, std::greater<>> lanes;
    for (int lane = 0; lane < ranks_ / group.degree; ++lane) lanes.push({begin_of(lane), lane});
    std::vector<Indices> held(lanes.size());
    const double pass_share = lengths_.pass / static_cast<double>(room(group));
    for (const std::int64_t sample : samples) {
      auto [end, lane] = lanes.top();
      lanes.pop();
      held[lane].push_back(sample);
      end += seconds(length(sample), group) + pass_share * static_cast<double>(length(sample));
      lanes.push({end, lane});
    }
    for (int lane = 0; lane < std::ssize(held); ++lane) {
      if (held[lane].empty()) continue;
      double end = begin_of(lane);
      for (Indices& pass : packed(held[lane], room(group))) {
        end += lengths_.pass;
        for (const std::int64_t sample : pass) end += seconds(length(sample), group);
        out.passes.push_back({lane * group.degree, group.degree, std::move(pass)});
      }
      std::ranges::fill(ranks_of(lane), end);
    }
  }

  // First fit, the longest first.
  std::vector<Indices> packed(const Indices& samples, std::int64_t room) const {
    std::vector<Indices> passes;
    std::vector<std::int64_t> left;
    for (const std::int64_t sample : samples) {
      const auto fit = std::find_if(left.begin(), left.end(), [&](std::int64_t space) { return space >= length(sample); });
      const auto at = fit - left.begin();
      if (fit == left.end()) {
        left.push_back(room);
        passes.emplace_back();
      }
      left[at] -= length(sample);
      passes[at].push_back(sample);
    }
    return passes;
  }

  const std::span<const std::int64_t> samples_;
  const Lengths& lengths_;
  const int ranks_;
  const std::int64_t tokens_;
  Indices by_length_;  // the longest first
};

}  // namespace

std::int64_t padded_row(std::int64_t tokens, int degree) {
  const std::int64_t parts = degree > 1 ? 2 * degree : 1;
  return std::max<std::int64_t>(1, (tokens + parts - 1) / parts) * parts;
}

std::int64_t tokens_per_rank(const Plan& plan, std::int64_t seq) {
  const Strategy& strategy = plan.stages.front().runs.front().strategy;
  return plan.micro_batch_size(strategy.dp) * seq / strategy.cp;
}

UnevenBatch deal(std::span<const std::int64_t> samples, const Lengths& lengths, int ranks, std::int64_t tokens) {
  ensure(!lengths.groups.empty() && ranks % lengths.groups.back().degree == 0, "the widest group divides the ranks");
  return Dealer(samples, lengths, ranks, tokens).run();
}

double least_seconds(std::span<const std::int64_t> samples, const Lengths& lengths, int ranks, std::int64_t tokens) {
  return Dealer(samples, lengths, ranks, tokens).bound();
}

}  // namespace tessera::plan
