#include <unistd.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/file_system.hpp"
#include "base/table.hpp"
#include "base/terminal.hpp"
#include "cli/checks.hpp"
#include "cli/commands.hpp"
#include "cli/measured_profile.hpp"
#include "cli/plan_compare.hpp"
#include "cli/plan_galvatron.hpp"
#include "cli/plan_input.hpp"
#include "cli/plan_report.hpp"
#include "cli/plan_write.hpp"
#include "cli/train_command.hpp"
#include "control/search_watch.hpp"
#include "cost/cost.hpp"
#include "cost/cost_model.hpp"
#include "cost/extrapolation.hpp"
#include "model/forms.hpp"
#include "plan/plan.hpp"
#include "plan/schedule/schedule.hpp"
#include "plan/warnings.hpp"
#include "search/rank.hpp"
#include "search/search.hpp"

namespace tessera::cli {
namespace {

struct PlanOptions {
  std::vector<std::string> words;
  std::string yaml;
  std::string cluster;
  std::string profile;
  std::string output;
  std::string html;
  std::string plan;
  Writes write;
  std::vector<std::string> overrides;
  int top = 5;
  double seconds = 0;
  bool explain = false;
  bool compare = false;
  bool json = false;
};

nlohmann::ordered_json json_of(const search::Candidate& candidate, const PlanInput& input) {
  nlohmann::ordered_json out = {
      {"family", candidate.family}, {"workers", candidate.plan.world_size()}, {"step_s", candidate.plan.predicted->step.value}};
  if (!cost::plays_exchanges(candidate.plan, input.cluster))
    out["within_measured"] = cost::within_measured(candidate.plan, input.job.model, input.cluster);
  return out;
}

nlohmann::ordered_json json_of(const cost::Extrapolation& one) {
  nlohmann::ordered_json out = {{"text", to_text(one)}, {"quantity", one.quantity}, {"part", one.part}, {"given", one.given}};
  if (one.value > 0) out["value"] = one.value;
  if (one.measured) {
    out["measured"] = {one.measured->least, one.measured->most};
    out["factor"] = one.factor();
  }
  return out;
}

void write_given_plan(const PlanOptions& options) {
  const auto& [job, cluster, profile] = read_plan_input({options.yaml, options.cluster, options.profile, options.overrides});
  check_writes(options.write, job.model);
  const plan::Plan plan = plan::load_plan(options.plan);
  plan::check(plan, job, cluster);
  cost::check_fits(plan, cost::memory_of(plan, job.model, job.train, cluster, profile), cluster);
  const std::vector<Written> written = write_for_others(options.write, {{"", &plan}}, job);
  if (options.json)
    std::printf("%s\n", nlohmann::ordered_json{{"written", to_json(written)}}.dump().c_str());
  else
    std::printf("%s", to_text(written).c_str());
}

// What the fullest rank holds.
std::vector<std::pair<std::string, Bytes>> memory_terms(const plan::Plan& plan, const PlanInput& input, int& rank) {
  rank = cost::fullest_rank(plan, plan.predicted->memory, input.cluster).rank;
  cost::CostModel cost_model(input.job.model, input.job.train, input.cluster, input.profile);
  return cost::memory_terms(plan, rank, cost_model);
}

std::string memory_terms_text(const plan::Plan& plan, const PlanInput& input) {
  int rank = 0;
  std::string terms;
  for (const auto& [name, bytes] : memory_terms(plan, input, rank)) terms += text(terms.empty() ? "" : ", ", name, " ", to_text(bytes));
  const cluster::Device& device = input.cluster.groups[static_cast<std::size_t>(plan.ranks[static_cast<std::size_t>(rank)].group)].device;
  const std::string rest =
      device.shares_host() ? ""
                           : text("; of the ", to_text(device.memory), " of each ", device.name, ", ",
                                  to_text(device.memory - cost::memory_limits(plan, input.cluster)[rank]), " are left to fragmentation");
  return text("\nrank ", rank, " holds ", terms, rest, "\n");
}

// Where the times come from. `given`: a profile was named.
std::string prices_text(const plan::Plan& plan, const PlanInput& input, bool given) {
  if (cost::plays_exchanges(plan, input.cluster))
    return input.profile.blocks.empty() ? "the built-in cost model (tessera profile measures this host)" : "measured on this host";
  return text("the built-in cost model of these devices, calibrated on published measurements where there are any",
              given ? "; the profile holds for CPU workers and was not used" : "");
}

bool has_blocks(const model::JobSpec& job) {
  try {
    model::check_has_blocks(job.model, job.train.precision, {});
    return true;
  } catch (const Error&) {
    return false;
  }
}

void make_plan(const PlanOptions& options) {
  const PlanSource source{options.yaml, options.cluster, options.profile, options.overrides};
  std::string said;
  const PlanInput input = read_plan_input(source, &said);
  const auto& [job, cluster, profile] = input;
  // What would be refused after the search is refused before it.
  check_writes(options.write, job.model);
  for (const std::string& file : {options.output, options.html})
    if (!file.empty()) check_can_write(file);
  std::fprintf(stderr, "%s", said.c_str());
  const std::vector<std::int64_t> lengths = lengths_if_known(job);
  auto watch = std::make_unique<control::SearchWatch>(control::OnInterrupt::stop_search);
  search::SearchResult result = search::search(job, cluster, profile,
                                               {.top = options.top,
                                                .vendors = {},
                                                .front = !options.html.empty(),
                                                .seconds = options.seconds,
                                                .watch = watch->watch(),
                                                .lengths = lengths});
  const Seconds simulated = search::rank_by_simulation(result, job.model, job.train, cluster, profile, &watch->watch()->stop);
  if (options.top > 0) search::keep_within_measured(result, job.model, cluster);
  std::optional<Baseline> baseline;
  if (options.compare) baseline = plan_baseline(source, {.top = 0, .vendors = {}, .watch = watch->watch()});
  const bool cut_short = watch->stopped();
  watch.reset();
  for (const std::string& warning : plan::warnings_of(result.best, job.model, cluster))
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  std::vector<std::pair<std::string, const plan::Plan*>> plans = {{result.best_family, &result.best}};
  for (const search::Candidate& candidate : result.runners_up) plans.emplace_back(candidate.family, &candidate.plan);
  const std::vector<Written> written = write_for_others(options.write, plans, job);
  if (!options.output.empty()) write_named(options.output, plan::to_json(result.best));
  if (!options.html.empty()) write_named(options.html, plan_report(input, result));
  const std::string clipping = search::clipping_text(result.best, job, cluster, profile);
  const bool dealt = result.best.lengths && result.best.lengths->mean > 0;  // which the simulator does not play
  if (options.json) {
    if (options.explain)
      std::fprintf(stderr, "%s%s", search::explain(result, job.model, cluster, columns_of(STDERR_FILENO)).c_str(), clipping.c_str());
    nlohmann::ordered_json out = {{"plan", nlohmann::ordered_json::parse(plan::to_json(result.best))}, {"family", result.best_family}};
    if (!dealt) out["simulated_s"] = simulated.value;
    out["measured"] = !profile.blocks.empty() && cost::plays_exchanges(result.best, cluster);
    if (cut_short) out["cut_short"] = true;
    if (result.bound > 0) out["bound_s"] = result.bound;
    int fullest = 0;
    nlohmann::ordered_json terms = nlohmann::ordered_json::object();
    for (const auto& [name, bytes] : memory_terms(result.best, input, fullest)) terms[name] = bytes.value;
    out["memory"] = {{"rank", fullest}, {"terms_bytes", terms}, {"limit_bytes", cost::memory_limits(result.best, cluster)[fullest].value}};
    for (const auto& candidate : result.runners_up) out["runners_up"].push_back(json_of(candidate, input));
    if (!cost::plays_exchanges(result.best, cluster)) {
      out["extrapolated"] = nlohmann::ordered_json::array();
      for (const auto& one : cost::extrapolated(result.best, job.model, cluster)) out["extrapolated"].push_back(json_of(one));
    }
    if (baseline) out["without_set"] = to_json(*baseline);
    if (!options.write.empty()) out["written"] = to_json(written);
    std::printf("%s\n", out.dump().c_str());
    return;
  }
  const int columns = columns_of(STDOUT_FILENO);
  std::string out = search::explain(result, job.model, cluster, columns);
  if (!clipping.empty()) out += "\n" + clipping;
  if (cut_short) out += "\nthe search was cut short: this is the best plan that it had found\n";
  if (options.seconds > 0 && result.bound > 0)
    out += text("\nsearched for ", to_text(Seconds(options.seconds)), ": no plan of the space takes less than ",
                to_text(Seconds(result.bound)), "\n");
  if (baseline) out += comparison(input, result, *baseline, columns);
  out += text(memory_terms_text(result.best, input), dealt ? "" : text("\nsimulated: a step of ", to_text(simulated)),
              "\nprices: ", prices_text(result.best, input, !options.profile.empty()), "\n");
  std::printf("%s%s", fitted(out, columns).c_str(), to_text(written).c_str());
  if (!options.html.empty()) std::printf("page written to %s\n", options.html.c_str());
  if (!options.output.empty()) {
    const bool here = has_blocks(job) && cost::plays_exchanges(result.best, cluster);
    const char* next = here ? "train" : "simulate";
    std::printf("written to %s; %s with: %s %s %s --plan %s\n", options.output.c_str(), next, typed_command().c_str(), next,
                options.yaml.c_str(), options.output.c_str());
  }
}

}  // namespace

void add_plan_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("plan", "How to train a model on a cluster, and how long a step will take")->group(kPlanGroup);
  auto options = std::make_shared<PlanOptions>();
  command->add_option("train_yaml", options->words, "What to train; with --galvatron, overrides of its YAML");
  command->add_option("--cluster", options->cluster, "Plan for this cluster file instead of the YAML's");
  command->add_option("--profile", options->profile, "Use these measured times");
  CLI::Option* output = command->add_option("-o,--output", options->output, "Write the plan to this file");
  CLI::Option* html = command->add_option(
      "--html", options->html, "Write the plan as a web page to this file: blocks and devices, timeline, memory, step time against memory");
  CLI::Option* write = command->add_option("--write", options->write,
                                           "Write the plan for another trainer: megatron FILE (flags), torchtitan FILE (TOML); repeatable");
  write->type_name("{megatron,torchtitan} FILE");
  command->add_option("--plan", options->plan, "With --write: this plan instead of the best one")
      ->needs(write)
      ->excludes(output)
      ->excludes(html);
  constexpr int kMostRunnersUp = 1000;
  command->add_option("--top", options->top, "How many runners-up to show (default: 5)")->check(whole_number(0, kMostRunnersUp));
  command
      ->add_option("--seconds", options->seconds,
                   "On accelerators: search so long, and say how far from the best possible plan the answer can be (default: a fixed "
                   "effort, seconds at most)")
      ->check(number_above_zero());
  command->add_option("--set", options->overrides, kSetHelp)->type_name("KEY=VALUE");
  command->add_flag("--compare", options->compare, "Beside the plan without any --set: step, memory, terms");
  command->add_flag("--explain", options->explain, "Say why; with --json on standard error");
  command->add_flag("--json", options->json, "The plan and its runners-up as one JSON object");
  auto galvatron = add_galvatron_options(*command);
  command->get_option("--galvatron")->excludes(write)->excludes(html);
  command->callback([options, galvatron] {
    if (!galvatron->yaml.empty()) return plan_from_galvatron(*galvatron, options->words, options->output, options->json);
    if (options->words.size() != 1)
      throw Error(ErrorCode::invalid_config, text("tessera plan takes one train.yaml; found ", options->words.size(), " words"), {}, {},
                  "`tessera plan --help` shows what it takes");
    options->yaml = options->words.front();
    options->plan.empty() ? make_plan(*options) : write_given_plan(*options);
  });
}

}  // namespace tessera::cli
