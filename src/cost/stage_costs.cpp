#include "cost/stage_costs.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace tessera::cost {

StageCosts::StageCosts(const plan::Plan& plan, Prices& prices)
    : plan_(plan),
      prices_(prices),
      places_(places_of(plan, prices.cluster())),
      stage_count_(static_cast<int>(plan.stages.size())),
      micro_batches_(static_cast<int>(plan.micro_batches)) {
  for (int s = 0; s < stage_count_; ++s) times_.push_back(times_of(s));
  add_sends();
  share_sends();
}

double StageCosts::step_time(int s, std::int64_t count) const {
  const plan::Strategy& of = strategy(s);
  const bool sharded = of.zero > 0 && of.dp > 1;
  double out = 0;
  for (const Seat& seat : seats(s)) out = std::max(out, prices_.optimizer(sharded ? (count + of.dp - 1) / of.dp : count, seat.place));
  return out;
}

std::vector<int> StageCosts::tensor_group(int s, int d) const {
  const auto first = plan_.stages[s].ranks.begin() + d * strategy(s).tp;
  return {first, first + strategy(s).tp};
}
std::vector<int> StageCosts::data_group(int s, int t) const {
  std::vector<int> out;
  for (int d = 0; d < strategy(s).dp; ++d) out.push_back(plan_.stages[s].ranks[d * strategy(s).tp + t]);
  return out;
}

std::vector<std::vector<int>> StageCosts::data_groups(int s) const {
  std::vector<std::vector<int>> out;
  for (int t = 0; t < strategy(s).tp; ++t) out.push_back(data_group(s, t));
  return out;
}
std::vector<std::vector<int>> StageCosts::pairs(int s, int other) const {
  std::vector<std::vector<int>> out;
  for (std::size_t i = 0; i < plan_.stages[s].ranks.size(); ++i) out.push_back({plan_.stages[s].ranks[i], plan_.stages[other].ranks[i]});
  return out;
}

// How many of these groups, working at the same time, share the busiest part of `link`.
double StageCosts::sharing(const std::vector<std::vector<int>>& groups, const cluster::Link& link) const {
  if (!link.shared) return 1;
  std::map<std::pair<int, int>, int> users;
  int most = 1;
  for (const auto& group : groups) {
    std::set<std::pair<int, int>> nodes;
    for (int rank : group) nodes.insert({plan_.ranks[rank].group, plan_.ranks[rank].node});
    for (const auto& node : nodes) most = std::max(most, ++users[node]);
  }
  return most;
}

double StageCosts::all_reduce_time(int s, std::int64_t bytes) const {
  const auto group = tensor_group(s, 0);
  const cluster::Link& link = link_among(plan_, prices_.cluster(), group);
  std::vector<std::vector<int>> replicas;
  for (int d = 0; d < strategy(s).dp; ++d) replicas.push_back(tensor_group(s, d));
  return prices_.collective("all_reduce", bytes, strategy(s).tp, link, profile::Pace::in_turn) * sharing(replicas, link);
}

std::set<StageCosts::Seat> StageCosts::seats(int s) const {
  const plan::Stage& stage = plan_.stages[s];
  std::set<Seat> out;
  for (int i = 0; i < stage.width(); ++i) out.insert({places_[stage.ranks[i]], plan_.micro_batch_at(stage, i)});
  return out;
}

StageTimes StageCosts::times_of(int s) {
  StageTimes slowest;
  slowest_.push_back(*seats(s).begin());
  for (const Seat& seat : seats(s)) {
    StageTimes times;
    for (const BlockSegment& segment : prices_.segments(plan_.stages[s])) {
      const BlockPrice& price = block_price(s, segment, seat);
      times.forward += segment.count * price.forward;
      times.backward += segment.count * price.backward;
      times.recompute += segment.count * price.recompute;
    }
    if (times.forward + times.backward > slowest.forward + slowest.backward) {
      slowest = times;
      slowest_[s] = seat;
    }
  }
  if (strategy(s).tp > 1) {
    for (const BlockSegment& segment : prices_.segments(plan_.stages[s])) {
      const BlockPrice& price = block_price(s, segment, slowest_[s]);
      const double once = segment.count * all_reduce_time(s, price.cost.all_reduce_size.value);
      slowest.forward_exchange += price.forward_all_reduces * once;
      slowest.backward_exchange += price.backward_all_reduces * once;
    }
    share_exchanges(s, slowest);
  }
  return slowest;
}

const BlockPrice& StageCosts::block_price(int s, const BlockSegment& segment, const Seat& seat) {
  return prices_.block(segment.repeat, {seat.micro_batch, strategy(s).tp, plan_.precision, segment.recompute}, seat.place);
}

// The tensor-parallel exchanges of other stages meet on a shared link as often as they run.
void StageCosts::share_exchanges(int s, StageTimes& times) const {
  const cluster::Link& link = link_among(plan_, prices_.cluster(), tensor_group(s, 0));
  if (!link.shared) return;
  std::set<std::pair<int, int>> nodes;
  for (int rank : tensor_group(s, 0)) nodes.insert({plan_.ranks[rank].group, plan_.ranks[rank].node});
  int others = 0;
  for (int other = 0; other < stage_count_; ++other) {
    const plan::RankPlace& place = plan_.ranks[plan_.stages[other].ranks.front()];
    if (other != s && nodes.contains({place.group, place.node})) ++others;
  }
  if (others == 0) return;
  const double exchange = times.forward_exchange + times.backward_exchange;
  const double share = exchange / (exchange + times.forward + times.backward);
  const double factor = 1 + others * share * concurrency();
  times.forward_exchange *= factor;
  times.backward_exchange *= factor;
}

// Of the other stages, the share that is at work while one is: the pipeline fills and drains.
double StageCosts::concurrency() const {
  if (stage_count_ < 2) return 0;
  double met = 0;
  double active = 0;
  for (int slot = 0; slot < micro_batches_ + stage_count_ - 1; ++slot) {
    const double now = std::min({slot + 1, micro_batches_, stage_count_, micro_batches_ + stage_count_ - 1 - slot});
    met += now * (now - 1);
    active += now;
  }
  return met / active / (stage_count_ - 1);
}

// With one forward and one backward in turn, the activations of one boundary and the gradients of the next leave by the same
// way as often as they are on it.
void StageCosts::share_sends() {
  if (plan_.schedule == plan::Schedule::gpipe) return;
  const std::vector<StageTimes> alone = times_;
  for (int s = 0; s + 1 < stage_count_; ++s) {
    const cluster::Link& link = link_among(plan_, prices_.cluster(), {plan_.stages[s].ranks.front(), plan_.stages[s + 1].ranks.front()});
    const double slot = alone[s].whole_forward() + alone[s].whole_backward();
    const double share = std::min(1.0, alone[s].activation_send / slot) * concurrency();
    const bool middle = stage_count_ > 2;
    times_[s].activation_send *= 1 + (link.shared && middle ? share : 0);
    times_[s].gradient_send *= 1 + (link.shared && middle ? share : 0);
  }
}

void StageCosts::add_sends() {
  for (int s = 0; s + 1 < stage_count_; ++s) {
    const auto& block =
        prices_.model()
            .repeats[prices_.segments(plan_.stages[s + 1].first_block(), plan_.stages[s + 1].first_block() + 1, model::Recompute::none)
                         .front()
                         .repeat]
            .block;
    std::int64_t count = 1;  // of the replica with the most
    for (int i = 0; i < plan_.stages[s].width(); ++i) count = std::max(count, plan_.micro_batch_at(plan_.stages[s], i));
    std::int64_t elements = 0;
    for (const auto& tensor : block.inputs) {
      std::int64_t product = count;
      for (std::int64_t extent : tensor.shape) product *= extent;
      elements += product;
    }
    const std::vector<std::vector<int>> pairs = this->pairs(s, s + 1);
    const cluster::Link& link = link_among(plan_, prices_.cluster(), pairs.front());
    const double time = prices_.collective("send", elements * model::element_size(plan_.precision).value, 2, link, profile::Pace::in_turn) *
                        sharing(pairs, link);
    times_[s].activation_send = times_[s].gradient_send = time;
  }
}

profile::Overlap StageCosts::overlap(int s, const char* operation) const {
  if (strategy(s).dp < 2) return {};
  return prices_.overlap(operation, strategy(s).dp, link_among(plan_, prices_.cluster(), data_group(s, 0)));
}

double StageCosts::reduce_time(int s, std::int64_t count) const {
  const plan::Strategy& of = strategy(s);
  if (of.dp < 2) return 0;
  const auto group = data_group(s, 0);
  const cluster::Link& link = link_among(plan_, prices_.cluster(), group);
  return prices_.collective(reduction(s), count * 4, of.dp, link) * sharing(data_groups(s), link);
}

double StageCosts::gather_time(int s, std::int64_t count) const {
  const plan::Strategy& of = strategy(s);
  if (of.dp < 2 || of.zero == 0) return 0;
  const auto group = data_group(s, 0);
  const cluster::Link& link = link_among(plan_, prices_.cluster(), group);
  return prices_.collective("all_gather", count * model::element_size(plan_.precision).value, of.dp, link) * sharing(data_groups(s), link);
}

double StageCosts::tied_time(int s, int other, std::int64_t count) const {
  const std::vector<std::vector<int>> pairs = this->pairs(s, other);
  const cluster::Link& link = link_among(plan_, prices_.cluster(), pairs.front());
  return prices_.collective("all_reduce", count * 4, 2, link) * sharing(pairs, link);
}

FluidQueue StageCosts::data_queue(int s) const {
  FluidQueue queue;
  const auto group = data_group(s, 0);
  const cluster::Link& link = link_among(plan_, prices_.cluster(), group);
  queue.weight = sharing(data_groups(s), link);
  if (link.shared)
    for (int rank : plan_.stages[s].ranks) queue.nodes.insert({plan_.ranks[rank].group, plan_.ranks[rank].node});
  return queue;
}

}  // namespace tessera::cost
