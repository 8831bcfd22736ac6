#include "plan/plan.hpp"

#include <algorithm>
#include <functional>
#include <set>

namespace tessera::plan {
namespace {

// "8 or 4 things"
std::string either(const std::set<std::int64_t, std::greater<>>& counts, const char* what) {
  std::string out;
  for (const std::int64_t count : counts) out += text(out.empty() ? "" : " or ", count);
  return text(out, ' ', what, *counts.begin() == 1 ? "" : "s");
}

}  // namespace

const char* name_of(Schedule schedule) {
  static constexpr const char* kNames[] = {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v"};  // by Schedule
  static_assert(std::size(kNames) == static_cast<std::size_t>(Schedule::dualpipe_v) + 1);
  return kNames[static_cast<std::size_t>(schedule)];
}

std::string to_text(const Strategy& strategy) {
  std::string out = text("dp ", strategy.dp, " x tp ", strategy.tp);
  if (strategy.cp > 1) out += text(" x cp ", strategy.cp, strategy.context == model::ContextKind::ulysses ? " (Ulysses)" : " (ring)");
  if (strategy.ep > 1) out += text(", ep ", strategy.ep);
  if (strategy.sequence_parallel) out += ", sequence parallel";
  if (strategy.whole_experts) out += ", whole experts";
  if (strategy.zero > 0) out += text(", zero ", strategy.zero);
  if (strategy.shards > 0) out += text(" over ", strategy.shards);
  if (strategy.recompute == model::Recompute::full) out += ", recompute";
  if (strategy.recompute == model::Recompute::selective) out += ", recompute attention";
  if (strategy.offload_optimizer) out += ", optimizer on the host";
  return out;
}

const Strategy& Stage::strategy_of(int block) const {
  for (const StrategyRun& run : runs)
    if (block < run.last) return run.strategy;
  return runs.back().strategy;
}

std::string Plan::micro_batch_text() const {
  const Stage& stage = stages.front();
  const int replica = stage.runs.front().strategy.cp * stage.runs.front().strategy.tp;
  std::set<std::int64_t, std::greater<>> counts;
  for (int first = 0; first < stage.width(); first += replica)
    counts.insert(items_before(stage, first + replica, samples()) - items_before(stage, first, samples()));
  return either(counts, "sample");
}

std::string Plan::schedule_text() const {
  // Without replicas there is nothing to exchange, and no rank waits for the others between two steps.
  const bool exchanged = std::ranges::any_of(stages, [](const Stage& stage) { return stage.width() > 1; });
  return text(name_of(schedule), order.empty() ? "" : " in an order of its own",
              !delayed_exchange ? ""
              : exchanged       ? ", gradient exchange delayed"
                                : ", steps overlap",
              staleness > 0 ? ", gradients a step stale" : "");
}

std::string Plan::servers_text() const {
  std::string out;
  for (const Server& server : servers)
    out += text(out.empty() ? "" : ", ", server.threads, server.threads == 1 ? " thread" : " threads", " with rank ", server.rank);
  return out;
}

std::string Plan::threads_text() const {
  std::set<std::int64_t, std::greater<>> counts;
  for (const RankPlace& rank : ranks) counts.insert(rank.threads);
  return either(counts, "thread");
}

std::int64_t Plan::items_before(const Stage& stage, std::int64_t ranks, std::int64_t items) const {
  if (stage.shares.empty()) return items * ranks / stage.width();
  const std::int64_t each = items / samples();
  std::int64_t before = 0;
  for (const Share& share : stage.shares) {
    if (ranks <= share.ranks) return each * before + each * share.samples * ranks / share.ranks;
    ranks -= share.ranks;
    before += share.samples;
  }
  return items;
}

double Plan::tokens_of_sample(const model::ModelSpec& model) const {
  if (lengths && lengths->mean > 0) return lengths->mean;
  return model.dims.contains("seq") ? static_cast<double>(model.dim("seq")) : 1;
}

}  // namespace tessera::plan
