#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/file_system.hpp"
#include "cli/commands.hpp"
#include "cli/measured_profile.hpp"
#include "cli/plan_compare.hpp"
#include "cli/plan_galvatron.hpp"
#include "cli/plan_input.hpp"
#include "cli/plan_report.hpp"
#include "cost/cost.hpp"
#include "cost/extrapolation.hpp"
#include "interop/flags.hpp"
#include "plan/plan.hpp"
#include "plan/schedule/schedule.hpp"
#include "plan/trainable.hpp"
#include "search/rank.hpp"
#include "search/search.hpp"
#include "search/within_measured.hpp"

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
  std::vector<std::pair<std::string, std::string>> write;  // system and file
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

// A plan in the words of another system.
struct Written {
  std::string system;
  std::string file;
  std::string family;  // of the plan; empty: the one that was asked for
  double slower = 0;   // its step over the best plan's, less 1
};

// For each system the fastest of `plans` (the best one first, then the runners-up) that it can express. All texts are made before the first
// is written. Throws what refuses the best plan when none can be expressed.
std::vector<Written> write_for_others(const PlanOptions& options, const std::vector<std::pair<std::string, const plan::Plan*>>& plans,
                                      const model::JobSpec& job) {
  std::vector<std::string> texts;
  std::vector<Written> out;
  for (const auto& [system, file] : options.write) {
    if (system != "megatron" && system != "torchtitan")
      throw Error(ErrorCode::invalid_config, text("--write ", system, ": no such system"), {}, "megatron or torchtitan");
    std::optional<Error> refusal;
    bool expressed = false;
    for (std::size_t i = 0; i < plans.size() && !expressed; ++i) {
      try {
        texts.push_back(
            (system == "megatron" ? interop::megatron_flags : interop::torchtitan_toml)(*plans[i].second, job.model, job.train));
        const bool first = i == 0;
        out.push_back({system, file, first ? "" : plans[i].first,
                       first ? 0 : plans[i].second->predicted->step / plans.front().second->predicted->step - 1});
        expressed = true;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::invalid_config) throw;
        if (!refusal) refusal = error;
      }
    }
    if (!expressed) throw *refusal;
  }
  for (std::size_t i = 0; i < texts.size(); ++i) write_whole(real_file_system(), options.write[i].second, texts[i]);
  return out;
}

nlohmann::ordered_json to_json(const std::vector<Written>& written) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const Written& one : written) out[one.system] = one.file;
  return out;
}

void print(const std::vector<Written>& written) {
  for (const Written& one : written) {
    std::printf("written for %s to %s", one.system.c_str(), one.file.c_str());
    if (!one.family.empty())
      std::printf(": the fastest of these plans that it can run (%s, %.1f %% slower)", one.family.c_str(), 100 * one.slower);
    std::printf("\n");
  }
}

void write_given_plan(const PlanOptions& options) {
  const auto& [job, cluster, profile] = read_plan_input({options.yaml, options.cluster, options.profile, options.overrides});
  const plan::Plan plan = plan::load_plan(options.plan);
  plan::check(plan, job, cluster);
  cost::check_fits(plan, cost::memory_of(plan, job.model, job.train, cluster, profile), cluster);
  const std::vector<Written> written = write_for_others(options, {{"", &plan}}, job);
  if (options.json)
    std::printf("%s\n", nlohmann::ordered_json{{"written", to_json(written)}}.dump().c_str());
  else
    print(written);
}

// What the fullest rank holds.
std::vector<std::pair<std::string, Bytes>> memory_terms(const plan::Plan& plan, const PlanInput& input, int& rank) {
  rank = 0;
  const std::vector<Bytes>& memory = plan.predicted->memory;
  const std::vector<Bytes> limits = cost::memory_limits(plan, input.cluster);
  for (int r = 1; r < plan.world_size(); ++r)
    if (memory[r] / limits[r] > memory[rank] / limits[rank]) rank = r;
  return cost::memory_parts(plan, rank, input.job.model, input.job.train, input.cluster, input.profile);
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

bool trainable(const plan::Plan& plan) {
  try {
    plan::check_trainable(plan);
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
  std::fprintf(stderr, "%s", said.c_str());
  search::SearchResult result = search::search(
      job, cluster, profile, {.top = options.top, .vendors = {}, .front = !options.html.empty(), .seconds = options.seconds});
  const Seconds simulated = search::rank_by_simulation(result, job.model, job.train, cluster, profile);
  if (options.top > 0) search::keep_within_measured(result, job.model, cluster);
  std::optional<Baseline> baseline;
  if (options.compare) baseline = plan_baseline(source, {.top = 0, .vendors = {}});
  std::vector<std::pair<std::string, const plan::Plan*>> plans = {{result.best_family, &result.best}};
  for (const search::Candidate& candidate : result.runners_up) plans.emplace_back(candidate.family, &candidate.plan);
  const std::vector<Written> written = write_for_others(options, plans, job);
  if (!options.output.empty()) write_whole(real_file_system(), options.output, plan::to_json(result.best));
  if (!options.html.empty()) write_whole(real_file_system(), options.html, plan_report(input, result));
  if (options.json) {
    if (options.explain) std::fprintf(stderr, "%s", search::explain(result, job.model, cluster).c_str());
    nlohmann::ordered_json out = {{"plan", nlohmann::ordered_json::parse(plan::to_json(result.best))},
                                  {"family", result.best_family},
                                  {"simulated_s", simulated.value},
                                  {"measured", !profile.blocks.empty() && cost::plays_exchanges(result.best, cluster)}};
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
  std::printf("%s", search::explain(result, job.model, cluster).c_str());
  if (options.seconds > 0 && result.bound > 0)
    std::printf("\nsearched for %s: no plan of the space takes less than %s\n", to_text(Seconds(options.seconds)).c_str(),
                to_text(Seconds(result.bound)).c_str());
  if (baseline) std::printf("%s", comparison(input, result, *baseline).c_str());
  std::printf("%s\nsimulated: a step of %s\nprices: %s\n", memory_terms_text(result.best, input).c_str(), to_text(simulated).c_str(),
              prices_text(result.best, input, !options.profile.empty()).c_str());
  print(written);
  if (!options.html.empty()) std::printf("page written to %s\n", options.html.c_str());
  if (!options.output.empty()) {
    const bool here = trainable(result.best) && cost::plays_exchanges(result.best, cluster);
    const char* next = here ? "train" : "simulate";
    std::printf("written to %s; %s with: %s %s %s --plan %s\n", options.output.c_str(), next, typed_command().c_str(), next,
                options.yaml.c_str(), options.output.c_str());
  }
}

struct ProfileOptions {
  std::string yaml;
  std::string output;
  std::vector<std::string> overrides;
  std::string launcher;
  double seconds = 0;
  bool json = false;
};

std::string with_interval(const profile::MeasuredValue& seconds) {
  return text(to_text(Seconds(seconds.median)), " (", to_text(Seconds(seconds.low)), " to ", to_text(Seconds(seconds.high)), ")");
}

void measure_profile(const ProfileOptions& options) {
  const model::JobSpec job = model::read_job(options.yaml, options.overrides);
  const cluster::ClusterSpec cluster = cluster::resolve(job.cluster);
  const std::optional<Seconds> budget = options.seconds > 0 ? std::optional(Seconds(options.seconds)) : std::nullopt;
  const profile::Profile profile = options.launcher.empty()
                                       ? measure_host(options.yaml, options.overrides, job, cluster, budget)
                                       : measure_hosts(options.yaml, options.overrides, job, cluster, options.launcher, budget);
  const std::filesystem::path path = options.output.empty() ? cached_profile_path(job, cluster) : std::filesystem::path(options.output);
  if (path.has_parent_path()) real_file_system().create_directories(path.parent_path());
  write_whole(real_file_system(), path, profile::to_json(profile));
  if (options.json) {
    std::printf("%s", profile::to_json(profile).c_str());
    return;
  }
  std::printf("medians with confidence intervals (92 %% or more)\n%-20s %6s %4s %8s %8s  %-34s %s\n", "block", "batch", "tp", "workers",
              "threads", "forward", "backward");
  for (const profile::BlockSample& sample : profile.blocks)
    std::printf("%-20s %6lld %4d %8d %8d  %-34s %s\n", sample.kind.c_str(), static_cast<long long>(sample.micro_batch_size),
                sample.tensor_parallel, sample.neighbours, sample.threads,
                with_interval({sample.forward.value, sample.forward_low.value, sample.forward_high.value}).c_str(),
                with_interval({sample.backward.value, sample.backward_low.value, sample.backward_high.value}).c_str());
  constexpr double kMillion = 1e6;
  for (const profile::OptimizerSample& sample : profile.optimizers) {
    const profile::MeasuredValue& each = sample.seconds_per_parameter;
    std::printf("%s of a million parameters, %d worker%s of %d thread%s: %s\n", sample.kind.c_str(), sample.neighbours,
                sample.neighbours == 1 ? "" : "s", sample.threads, sample.threads == 1 ? "" : "s",
                with_interval({kMillion * each.median, kMillion * each.low, kMillion * each.high}).c_str());
  }
  for (const profile::CommSample& sample : profile.communication) {
    std::printf("%s over %s among %d: %s + bytes / %s\n", sample.operation.c_str(), sample.link.c_str(), sample.ranks,
                to_text(sample.latency).c_str(), to_text(sample.bandwidth).c_str());
    for (const profile::CommPoint& point : sample.points)
      std::printf("    %-10s %s\n", to_text(point.size).c_str(), with_interval(point.seconds).c_str());
    for (const profile::CommPoint& point : sample.in_turn)
      std::printf("    %-10s %s in turn with computing\n", to_text(point.size).c_str(), with_interval(point.seconds).c_str());
    std::printf("    computing beside it takes %.2f (%.2f to %.2f) times as long, it %.2f (%.2f to %.2f) times beside computing\n",
                sample.slows.median, sample.slows.low, sample.slows.high, sample.slowed.median, sample.slowed.low, sample.slowed.high);
  }
  std::printf("written to %s\n", path.c_str());
}

}  // namespace

void add_plan_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("plan", "How to train a model on a cluster, and how long a step will take")->group(kPlanGroup);
  auto options = std::make_shared<PlanOptions>();
  command->add_option("train_yaml", options->words, "What to train; with --galvatron, overrides of its YAML");
  command->add_option("--cluster", options->cluster, "Plan for this cluster file instead of the YAML's")->check(CLI::ExistingFile);
  command->add_option("--profile", options->profile, "Use these measured times")->check(CLI::ExistingFile);
  CLI::Option* output = command->add_option("-o,--output", options->output, "Write the plan to this file");
  CLI::Option* html = command->add_option(
      "--html", options->html, "Write the plan as a web page to this file: blocks and devices, timeline, memory, step time against memory");
  CLI::Option* write = command->add_option("--write", options->write,
                                           "Write the plan for another trainer: megatron FILE (flags), torchtitan FILE (TOML); repeatable");
  write->type_name("SYSTEM FILE");
  command->add_option("--plan", options->plan, "With --write: this plan instead of the best one")
      ->check(CLI::ExistingFile)
      ->needs(write)
      ->excludes(output)
      ->excludes(html);
  command->add_option("--top", options->top, "How many runners-up to show (default: 5)")->check(CLI::NonNegativeNumber);
  command
      ->add_option("--seconds", options->seconds,
                   "On accelerators: search so long, and say how far from the best possible plan the answer can be (default: a fixed "
                   "effort, seconds at most)")
      ->check(CLI::PositiveNumber);
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

void add_profile_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("profile", "Measure the job's blocks and collectives on this host")->group(kPlanGroup);
  auto options = std::make_shared<ProfileOptions>();
  command->add_option("train_yaml", options->yaml, "Whose model and batch to measure")->required();
  command->add_option("-o,--output", options->output, "Write here instead of the cache");
  command->add_option("--set", options->overrides, "Override a key of the YAML (repeatable)")->type_name("KEY=VALUE");
  command
      ->add_option("--launcher", options->launcher,
                   "Measure on all hosts of the cluster: the command that starts the words after it once for every worker, with RANK, "
                   "WORLD_SIZE, MASTER_ADDR and MASTER_PORT")
      ->type_name("COMMAND");
  command
      ->add_option("--seconds", options->seconds,
                   "About how long to measure the blocks for each number of workers, and again their communication; large micro-batches "
                   "are left out and what scatters is repeated less where it is short (default: 6, with --launcher 300)")
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", options->json, "The profile as JSON");
  command->callback([options] { measure_profile(*options); });
}

}  // namespace tessera::cli
