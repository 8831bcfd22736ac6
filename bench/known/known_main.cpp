// tessera_bench_known: plans that people have published, priced as they are, beside the plan that the search chooses for the same model,
// batch and cluster. Both by the cost model with the calibration of the row's stack. Prints one JSON object a row; see run.py.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "calibrate/row.hpp"
#include "cost/cost.hpp"
#include "search/rank.hpp"
#include "search/search.hpp"

namespace {

using namespace tessera;
using calibrate::cell;
using calibrate::Cells;
using calibrate::Row;
using Json = nlohmann::ordered_json;

// What the columns have no word for.
void add_facts(const Cells& cells, Row& row) {
  const auto is = [&](const char* name) { return row.name.rfind(name, 0) == 0; };
  calibrate::Shape& shape = row.shape;
  calibrate::Degrees& degrees = row.degrees;
  row.group.stack = cell(cells, "stack");
  if (is("DeepSeek-V3")) {
    shape.query_rank = 1536;
    shape.key_value_rank = 512;
    shape.rotary_dim = 64;
    shape.plain_dim = shape.value_dim = 128;
    shape.predicts_two = true;
    degrees.schedule = plan::Schedule::dualpipe_v;  // with one copy of the weights, where DualPipe holds two
  }
  if (is("GLM")) shape.gated = true;
  if (is("GLM") || is("Falcon")) shape.rotary = true;
  if (is("Bloomberg")) degrees.strategy.shards = 128;
  // Recipes with experts and tensor parallelism leave experts whole.
  degrees.strategy.whole_experts = row.has_experts() && degrees.strategy.tp > 1;
}

// "SOURCE ROW" of every row of bench/truth that a calibration was fitted on.
std::set<std::string> fitted_rows(const std::filesystem::path& tasks) {
  std::set<std::string> out;
  for (const ConfigNode& node : ConfigNode::load(tasks).items()) {
    const ConfigNode rows = node.at("rows");
    for (const std::string& source : rows.keys())
      for (const ConfigNode& item : rows.at(source).items()) out.insert(text(source, " ", item.as_int()));
  }
  return out;
}

std::string in_short(const plan::Plan& plan) {
  std::set<int> first;
  for (const plan::Stage& stage : plan.stages) first.insert(stage.ranks.front());
  const std::size_t depth = first.size();
  const plan::Stage& stage = plan.stages.front();
  // The longest run, of equals the last: the model's first block may stand otherwise.
  const plan::StrategyRun& run = *std::max_element(stage.runs.rbegin(), stage.runs.rend(),
                                                   [](const auto& a, const auto& b) { return a.last - a.first < b.last - b.first; });
  std::string out = to_text(run.strategy);
  if (depth > 1) out += text(", pp ", depth, ", ", plan::name_of(plan.schedule));
  if (plan.stages.size() > depth) out += text(", ", plan.stages.size() / depth, " stages a rank");
  return out + text(", ", plan.micro_batches, plan.micro_batches == 1 ? " micro-batch" : " micro-batches");
}

// The peak over the ranks of what each holds over what it may use.
double fullest(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  const std::vector<Bytes> limits = cost::memory_limits(plan, cluster);
  double most = 0;
  for (std::size_t rank = 0; rank < limits.size(); ++rank) most = std::max(most, plan.predicted->memory[rank] / limits[rank]);
  return most;
}

Json described(plan::Plan& plan, const Row& row, cost::CostModel& cost_model) {
  plan.predicted = cost::predict(plan, cost_model);
  return {{"plan", in_short(plan)}, {"step_s", plan.predicted->step.value}, {"memory_of_limit", fullest(plan, row.cluster)}};
}

// As `tessera plan` chooses it.
Json chosen(const Row& row, cost::CostModel& cost_model, double seconds) {
  model::JobSpec job;
  job.name = row.name;
  job.model = row.model;
  job.train.global_batch = row.degrees.global_batch;
  job.train.precision = row.precision;
  try {
    const auto begin = std::chrono::steady_clock::now();
    search::SearchResult result = search::search(job, row.cluster, {}, {.top = 0, .vendors = {}, .seconds = seconds});
    search::rank_by_simulation(result, job.model, job.train, row.cluster, {});
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    Json out = described(result.best, row, cost_model);
    out["search_s"] = spent.count();
    return out;
  } catch (const Error& problem) {
    return {{"why_not", problem.what()}};
  }
}

Json compared(const Cells& cells, int line, const std::set<std::string>& fitted, double seconds) {
  Row row = calibrate::read_row("known", cells, line);
  if (row.skipped.empty()) add_facts(cells, row);
  calibrate::build(row);
  Json out = {{"name", row.name}, {"source", cell(cells, "source")}, {"certainty", cell(cells, "certainty")}};
  if (!row.skipped.empty()) {
    out["why_not"] = row.skipped;
    return out;
  }
  out["devices"] = row.degrees.ranks();
  out["label"] = calibrate::label(row);
  out["fitted"] = fitted.count(cell(cells, "also")) > 0;
  if (const double step = calibrate::number(cells, "iteration_s", 0); step > 0) out["published_s"] = step;
  // Without the row's own options of a stack, which the search does not know.
  cost::CostModel cost_model(row.model, row.cluster, row.precision);
  out["published"] = described(row.plan, row, cost_model);
  out["chosen"] = chosen(row, cost_model, seconds);
  return out;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 4) {
    std::cerr << "tessera_bench_known PLANS.csv FIT.yaml SECONDS [ROW]\n";
    return 2;
  }
  try {
    const std::set<std::string> fitted = fitted_rows(arguments[2]);
    const int only = count > 4 ? std::atoi(arguments[4]) : 0;
    int line = 0;
    for (const Cells& cells : calibrate::read_table(arguments[1]))
      if (++line; only == 0 || line == only) std::cout << compared(cells, line, fitted, std::atof(arguments[3])).dump() << std::endl;
    return 0;
  } catch (const Error& error) {
    std::cerr << "tessera_bench_known: " << error.what() << "\n";
    return exit_code(error.code());
  }
}
