#include "cli/plan_compare.hpp"

#include "base/table.hpp"
#include "cli/train_command.hpp"
#include "cost/cost.hpp"
#include "search/search.hpp"

#include <fmt/format.h>
#include <algorithm>

namespace tessera::cli {
namespace {

double rate_of(const PlanInput& input, const plan::Plan& plan) {
  return static_cast<double>(plan.global_batch) * plan.tokens_of_sample(input.job.model) / plan.predicted->step.value;
}

double part_of(const plan::Plan& plan, const std::string& name) {
  for (const auto& [part, seconds] : plan.predicted->parts)
    if (part == name) return seconds.value;
  return 0;
}

std::string memory_text(const PlanInput& input, const plan::Plan& plan) {
  const auto& memory = plan.predicted->memory;
  const int rank = static_cast<int>(std::max_element(memory.begin(), memory.end()) - memory.begin());
  return text(to_text(memory[rank]), " of ", to_text(cost::memory_limits(plan, input.cluster)[rank]));
}

std::string change_text(double from, double to) { return from > 0 ? fmt::format("{:+.1f} %", 100 * (to / from - 1)) : "new"; }

// A term of no time has no place in either plan.
std::string time_text(double seconds) { return seconds > 0 ? to_text(Seconds(seconds)) : "-"; }

}  // namespace

Baseline plan_baseline(const PlanSource& source, search::SearchOptions options) {
  if (source.overrides.empty())
    throw Error(ErrorCode::invalid_config, "--compare: there is nothing to compare with", {}, "at least one --set",
                "such as --set cluster.nodes=x2 --compare");
  PlanSource without = source;
  without.overrides.clear();
  Baseline out{read_plan_input(without), {}, {}};
  options.lengths = lengths_if_known(out.input.job);
  try {
    out.result = search::search(out.input.job, out.input.cluster, out.input.profile, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::resource_exhausted && error.code() != ErrorCode::interrupted) throw;
    out.refusal = error.message();
  }
  return out;
}

std::string comparison(const PlanInput& input, const search::SearchResult& result, const Baseline& baseline, int columns) {
  if (!baseline.result) return "\nwithout --set " + baseline.refusal + "\n";
  const plan::Plan& before = baseline.result->best;
  const plan::Plan& after = result.best;
  const auto step = [](const plan::Plan& plan) { return plan.predicted->step.value; };
  using Align = Table::Align;
  Table table({{"compared"}, {"without --set", Align::right}, {"as set", Align::right}, {"change", Align::right}});
  table.add({"step", to_text(before.predicted->step), to_text(after.predicted->step), change_text(step(before), step(after))});
  table.add({input.job.model.dims.contains("seq") ? "tokens/s" : "samples/s", count_text(rate_of(baseline.input, before)),
             count_text(rate_of(input, after)), change_text(rate_of(baseline.input, before), rate_of(input, after))});
  table.add({"plan", baseline.result->best_family, result.best_family, ""});
  table.add({"workers", text(before.world_size()), text(after.world_size()), ""});
  table.add({"fullest rank", memory_text(baseline.input, before), memory_text(input, after), ""});
  std::vector<std::string> names;
  for (const plan::Plan* plan : {&before, &after})
    for (const auto& [name, seconds] : plan->predicted->parts)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  for (const std::string& name : names)
    table.add({name, time_text(part_of(before, name)), time_text(part_of(after, name)),
               change_text(part_of(before, name), part_of(after, name))});
  return "\n" + table.text(columns);
}

nlohmann::ordered_json to_json(const Baseline& baseline) {
  if (!baseline.result) return {{"error", baseline.refusal}};
  const plan::Plan& plan = baseline.result->best;
  return {{"step_s", plan.predicted->step.value}, {"family", baseline.result->best_family}, {"workers", plan.world_size()}};
}

}  // namespace tessera::cli
