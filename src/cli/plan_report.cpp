#include "cli/plan_report.hpp"
#include "cost/cost.hpp"
#include "cost/cost_model.hpp"
#include "search/search.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "cli/plan_report_parts.hpp"
#include "plan/stage_places.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string range_text(int first, int last) { return first == last ? text(first) : text(first, "–", last); }

// "0–3", "0,4", "0…14": of numbers in order.
std::string numbers_text(const std::set<int>& numbers) {
  constexpr std::size_t kMostNamed = 4;
  const int low = *numbers.begin();
  const int high = *numbers.rbegin();
  if (high - low + 1 == static_cast<int>(numbers.size())) return range_text(low, high);
  if (numbers.size() > kMostNamed) return text(low, "…", high);
  std::string out;
  for (const int number : numbers) out += (out.empty() ? "" : ",") + text(number);
  return out;
}

// The part of a stage that a fold of ranks holds: "d0–3 t0–1".
std::string share_text(const plan::Stage& stage, const plan::Strategy& strategy, const std::vector<int>& ranks) {
  std::set<int> replicas, parts;
  for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
    if (std::find(ranks.begin(), ranks.end(), stage.ranks[i]) == ranks.end()) continue;
    const int index = static_cast<int>(i);
    replicas.insert(index / (strategy.cp * strategy.tp));
    parts.insert(index % strategy.tp);
  }
  return replicas.empty() ? "" : text("d", numbers_text(replicas), " t", numbers_text(parts));
}

// Runs of equal blocks under one strategy.
struct MosaicRow {
  int stage;
  int first;
  int last;
  const plan::Strategy* strategy;
};

std::vector<MosaicRow> mosaic_rows(const plan::Plan& plan, const std::vector<model::BlockInstance>& blocks) {
  std::vector<MosaicRow> rows;
  for (std::size_t s = 0; s < plan.stages.size(); ++s)
    for (const plan::StrategyRun& run : plan.stages[s].runs)
      for (int b = run.first; b < run.last; ++b) {
        if (b > run.first && blocks[b].spec == blocks[b - 1].spec) {
          ++rows.back().last;
        } else {
          rows.push_back({static_cast<int>(s), b, b + 1, &run.strategy});
        }
      }
  return rows;
}

Json mosaic_of(const PlanInput& input, const plan::Plan& plan) {
  constexpr std::size_t kMostColumns = 32;
  const auto blocks = input.job.model.blocks();
  const auto folds = fold_ranks(plan, input.cluster, kMostColumns);
  Json columns = Json::array();
  for (const RankFold& fold : folds) columns.push_back({{"label", fold.label}, {"place", fold.place}, {"count", fold.ranks.size()}});
  std::vector<std::string> strategies;
  Json rows = Json::array();
  for (const MosaicRow& row : mosaic_rows(plan, blocks)) {
    std::string strategy = to_text(*row.strategy);
    if (plan::parts_across_nodes(plan, plan.stages[row.stage], *row.strategy, input.cluster)) strategy += ", parts across nodes";
    auto known = std::find(strategies.begin(), strategies.end(), strategy);
    if (known == strategies.end()) known = strategies.insert(strategies.end(), strategy);
    Json cells = Json::array();
    for (const RankFold& fold : folds) cells.push_back(share_text(plan.stages[row.stage], *row.strategy, fold.ranks));
    std::int64_t parameters = 0;
    for (int b = row.first; b < row.last; ++b) parameters += blocks[b].spec->parameter_count();
    rows.push_back({{"label", row.first + 1 == row.last ? blocks[row.first].name()
                                                        : text(blocks[row.first].name(), " … ", blocks[row.last - 1].name())},
                    {"blocks", row.last - row.first},
                    {"parameters", count_text(static_cast<double>(parameters))},
                    {"stage", row.stage},
                    {"strategy", known - strategies.begin()},
                    {"cells", cells}});
  }
  return {{"columns", columns}, {"rows", rows}, {"strategies", strategies}};
}

Json parts_of(const plan::Prediction& prediction) {
  Json out = Json::array();
  for (const auto& [name, seconds] : prediction.parts) out.push_back({name, seconds.value});
  return out;
}

Json memory_of(const PlanInput& input, const plan::Plan& plan) {
  constexpr std::size_t kMostRows = 8;
  Json rows = Json::array();
  const std::vector<Bytes> limits = cost::memory_limits(plan, input.cluster);
  cost::CostModel cost_model(input.job.model, input.job.train, input.cluster, input.profile);
  for (const RankFold& fold : fold_ranks(plan, input.cluster, kMostRows)) {
    const auto fuller = [&](int a, int b) { return plan.predicted->memory[a] < plan.predicted->memory[b]; };
    const int rank = *std::max_element(fold.ranks.begin(), fold.ranks.end(), fuller);
    Json parts = Json::array();
    for (const auto& [name, bytes] : cost::memory_terms(plan, rank, cost_model)) parts.push_back({name, bytes.value});
    rows.push_back({{"label", fold.label},
                    {"place", fold.place},
                    {"count", fold.ranks.size()},
                    {"stages", stages_of_ranks(plan)[rank]},
                    {"bytes", plan.predicted->memory[rank].value},
                    {"limit", limits[rank].value},
                    {"parts", parts}});
  }
  return rows;
}

Json candidate_json(const search::Candidate& candidate, const cluster::ClusterSpec& cluster, bool fits) {
  const auto& memory = candidate.plan.predicted->memory;
  const int rank = static_cast<int>(std::max_element(memory.begin(), memory.end()) - memory.begin());
  return {{"family", candidate.family},
          {"workers", candidate.plan.world_size()},
          {"detail", text(to_text(candidate.plan.stages.front().runs.front().strategy), "; ", candidate.plan.micro_batches,
                          candidate.plan.micro_batches == 1 ? " micro-batch, " : " micro-batches, ", candidate.plan.schedule_text())},
          {"step", candidate.plan.predicted->step.value},
          {"bytes", memory[rank].value},
          {"limit", cost::memory_limits(candidate.plan, cluster)[rank].value},
          {"parts", parts_of(*candidate.plan.predicted)},
          {"fits", fits}};
}

Json candidates_of(const search::SearchResult& result, const cluster::ClusterSpec& cluster) {
  Json out = Json::array();
  for (const auto& candidate : result.runners_up) out.push_back(candidate_json(candidate, cluster, true));
  for (const auto& candidate : result.too_large) out.push_back(candidate_json(candidate, cluster, false));
  return out;
}

Json front_of(const search::SearchResult& result) {
  Json out = Json::array();
  for (const search::FrontPoint& point : result.front)
    out.push_back({{"family", point.family},
                   {"detail", point.detail},
                   {"step", point.step.value},
                   {"bytes", point.memory.value},
                   {"limit", point.limit.value}});
  return out;
}

std::string devices_text(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  std::map<int, int> counts;
  for (const plan::RankPlace& place : plan.ranks) ++counts[place.group];
  std::string out;
  for (const auto& [group, count] : counts) out += (out.empty() ? "" : ", ") + cluster.groups[group].device.ranks_text(count);
  return out;
}

Json facts_of(const PlanInput& input, const search::SearchResult& result) {
  const plan::Plan& plan = result.best;
  const double step = plan.predicted->step.value;
  const double tokens = static_cast<double>(plan.global_batch) * plan.tokens_of_sample(input.job.model);
  const bool dealt = plan.lengths && plan.lengths->mean > 0;
  return {{"model", text(input.job.model.arch, ", ", count_text(static_cast<double>(input.job.model.parameter_count())), " parameters in ",
                         input.job.model.block_count(), " blocks")},
          {"cluster", input.cluster.name},
          {"devices", devices_text(plan, input.cluster)},
          {"workers", plan.world_size()},
          {"family", result.best_family},
          {"strategy", to_text(plan.stages.front().runs.front().strategy)},
          {"stages", plan.stages.size()},
          {"schedule", plan.schedule_text()},
          {"micro_batches", plan.micro_batches},
          {"micro_batch", plan.micro_batch_text()},
          {"global_batch", plan.global_batch},
          {"precision", model::name_of(plan.precision)},
          {"step", step},
          {"tokens", text(count_text(tokens / step), input.job.model.dims.contains("seq") ? " tokens/s" : " samples/s")},
          {"bubble", plan.predicted->bubble},
          // What samples of other lengths than model.seq compute is not counted.
          {"utilization", dealt ? Json() : Json(cost::utilization(plan, input.job.model, input.cluster, plan.predicted->step))},
          {"mean_tokens", dealt ? Json(plan.lengths->mean) : Json()},
          {"longest", dealt ? Json(input.job.model.dim("seq")) : Json()},
          {"considered", result.considered},
          {"measured", !input.profile.blocks.empty()}};
}

}  // namespace

std::string plan_report(const PlanInput& input, const search::SearchResult& result) {
  const plan::Plan& plan = result.best;
  const Json data = {
      {"facts", facts_of(input, result)},   {"mosaic", mosaic_of(input, plan)}, {"timeline", timeline_of(input, plan)},
      {"parts", parts_of(*plan.predicted)}, {"memory", memory_of(input, plan)}, {"candidates", candidates_of(result, input.cluster)},
      {"front", front_of(result)}};
  return plan_report_page("Plan of " + input.job.name, search::explain(result, input.job.model, input.cluster), data);
}

}  // namespace tessera::cli
