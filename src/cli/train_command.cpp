#include "cli/train_command.hpp"
#include "search/search.hpp"

#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <set>

#include "base/file_system.hpp"
#include "base/plain_name.hpp"
#include "cli/commands.hpp"
#include "cli/measured_profile.hpp"
#include "cli/workers.hpp"
#include "cost/cost.hpp"
#include "data/data.hpp"
#include "observe/run_files.hpp"
#include "plan/schedule/schedule.hpp"
#include "plan/trainable.hpp"
#include "program/program.hpp"

namespace tessera::cli {
namespace {

struct TrainOptions {
  std::string yaml;
  std::string plan;
  std::vector<std::string> overrides;
  bool resume = false;
  bool overwrite = false;
  bool measure = true;
  bool json = false;
};

bool changes_plan(const std::vector<std::string>& overrides) {
  for (const auto& setting : overrides)
    if (setting.starts_with("parallel") || setting.starts_with("cluster")) return true;
  return false;
}

// A resumed run keeps its plan, bit for bit, unless the user asks for another one.
std::optional<std::filesystem::path> plan_file_of(const TrainOptions& options, const std::filesystem::path& run) {
  if (!options.plan.empty()) return options.plan;
  if (options.resume && !changes_plan(options.overrides) && std::filesystem::exists(run / "plan.json")) return run / "plan.json";
  return std::nullopt;
}

void print_choice(const ChosenPlan& chosen, const model::JobSpec& job) {
  const plan::Plan& plan = chosen.plan;
  const plan::Strategy& strategy = plan.stages.front().runs.front().strategy;
  std::fprintf(stderr, "plan: %d worker%s of %s, dp %d x pp %zu x tp %d, %lld micro-batch%s of %s, %s, zero %d, recompute %s\n",
               plan.world_size(), plan.world_size() == 1 ? "" : "s", plan.threads_text().c_str(), strategy.dp, plan.stages.size(),
               strategy.tp, static_cast<long long>(plan.micro_batches), plan.micro_batches == 1 ? "" : "es",
               plan.micro_batch_text().c_str(), plan.schedule_text().c_str(), strategy.zero, model::name_of(strategy.recompute));
  std::set<std::pair<int, int>> hosts;
  for (const plan::RankPlace& place : plan.ranks) hosts.insert({place.group, place.node});
  if (hosts.size() > 1)
    std::fprintf(
        stderr,
        "note: the plan is for %zu hosts, and `train` runs all its workers on this one; to train on several, start `%s worker` on each\n",
        hosts.size(), typed_command().c_str());
  if (plan.predicted)
    std::fprintf(stderr, "predicted: %s a step, %s tokens/s, %s in the largest worker\n", to_text(plan.predicted->step).c_str(),
                 count_text(static_cast<double>(plan.global_batch * job.model.dim("seq")) / plan.predicted->step.value).c_str(),
                 to_text(*std::max_element(plan.predicted->memory.begin(), plan.predicted->memory.end())).c_str());
}

void train(const TrainOptions& options) {
  const model::JobSpec job = model::read_job(options.yaml, options.overrides);
  const std::filesystem::path run = run_folder(job.name);
  const observe::IfExists if_exists = observe::if_exists_of(options.resume, options.overwrite);
  observe::check_run(run, if_exists);
  const cluster::ClusterSpec cluster = cluster::resolve(job.cluster);
  std::fprintf(stderr, "model: %s parameters in %d blocks\n", count_text(static_cast<double>(job.model.parameter_count())).c_str(),
               job.model.block_count());
  const auto dataset = prepare_data(job);
  const data::Tokenizer* tokenizer = dataset->tokenizer();
  if (options.resume) observe::check_resumed(job, tokenizer, run);
  const ChosenPlan chosen = choose_plan(options.yaml, options.overrides, job, cluster, plan_file_of(options, run), options.measure);
  print_choice(chosen, job);
  // A run that exists is touched when there is nothing left to refuse.
  const observe::RunLock lock = observe::make_run(run, if_exists, options.yaml, options.overrides, chosen.plan, cluster, tokenizer);
  std::vector<std::string> arguments = {"train",     (run / "train.yaml").string(),   "--plan", (run / "plan.json").string(),
                                        "--cluster", (run / "cluster.yaml").string(), "--run",  run.string()};
  if (options.resume) arguments.push_back("--resume");
  if (options.json) arguments.push_back("--json");
  control::LaunchOptions launch;
  launch.on_stop_request = [] { std::fprintf(stderr, "\nstopping after this step with a checkpoint; Ctrl-C again ends at once\n"); };
  launch.way_on = "go on from the last checkpoint with --resume; the run's log.txt has what came before";
  const bool stopped = control::run_workers(worker_commands(arguments, chosen.plan.ranks, cluster), launch);
  if (options.json) return;
  if (stopped) {
    std::fprintf(stderr, "stopped; go on with: %s train %s --resume\n", typed_command().c_str(), options.yaml.c_str());
  } else {
    std::fprintf(stderr, "%s is complete. Let it write:\n  %s generate %s --prompt \"...\"\n", run.c_str(), typed_command().c_str(),
                 run.c_str());
  }
}

}  // namespace

std::filesystem::path run_folder(const std::string& name) {
  if (!is_plain_name(name)) throw Error(ErrorCode::invalid_config, "'" + name + "' cannot name a folder of runs/", {}, kPlainName);
  return std::filesystem::path("runs") / name;
}

std::unique_ptr<data::Dataset> prepare_data(const model::JobSpec& job) {
  const bool live = ::isatty(STDERR_FILENO) != 0;
  std::string shown;
  const auto progress = [&](const data::Progress& now) {
    if (live) std::fprintf(stderr, "\r\033[K%s %3.0f %%", now.stage.c_str(), 100 * now.fraction);
    if (!live && shown != now.stage) std::fprintf(stderr, "%s\n", now.stage.c_str());
    shown = now.stage;
  };
  auto dataset =
      data::Dataset::open(job.data, job.model.dim("seq"), job.model.dim("vocab"), job.train.seed, data::default_cache_dir(), progress);
  if (live && !shown.empty()) std::fprintf(stderr, "\r\033[K");
  dataset->sample_ids(0, job.train.global_batch);
  return dataset;
}

namespace {

[[noreturn]] void refuse_here(const std::string& what, const Where& where, const std::string& expected) {
  throw Error(ErrorCode::invalid_config, what, where, expected,
              "`" + typed_command() + " plan` plans and simulates it, and with --write hands the plan to other trainers");
}

// What only planning knows is refused before anything is measured or started.
void check_computed_here(const model::JobSpec& job) {
  for (const model::Repeat& repeat : job.model.repeats) {
    const std::string& kind = repeat.block.kind;
    if (kind != "embedding" && kind != "transformer_layer" && kind != "lm_head")
      refuse_here("the trainer cannot compute blocks of kind '" + kind + "' yet", {.file = job.file.string(), .block = {}},
                  "arch llama without dropout (Llama, Mistral, Qwen2 and Qwen3)");
    const auto said = [&](const char* key, double value) {
      const auto found = repeat.block.dims.find(key);
      return found != repeat.block.dims.end() && found->second == value;
    };
    if (said("attention_fused", 0))
      refuse_here("the trainer computes attention in one kernel, and the model says attention: unfused",
                  {.file = job.file.string(), .block = {}}, "attention: fused");
    if (kind == "transformer_layer" && said("autograd", 1))
      refuse_here("the trainer's blocks keep what they need themselves, and the model says keeps: autograd",
                  {.file = job.file.string(), .block = {}}, "keeps: tessera");
  }
}

// The vendors of the cluster's devices that the trainer has kernels for. Throws where there are none.
std::vector<std::string> trainable_vendors(const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  std::vector<std::string> vendors;
  for (const cluster::ResourceGroup& group : cluster.groups)
    if (group.device.trainable()) vendors.push_back(group.device.vendor);
  if (vendors.empty())
    refuse_here(text("the trainer computes on ", cluster::kTrainableKinds, ", and cluster '", cluster.name, "' has none"),
                {.file = job.file.string(), .block = {}}, text("a cluster with a group of ", cluster::kTrainableKinds));
  return vendors;
}

void check_devices(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  for (const plan::RankPlace& place : plan.ranks) {
    const cluster::ResourceGroup& group = cluster.groups.at(static_cast<std::size_t>(place.group));
    if (!group.device.trainable())
      refuse_here(text("the plan computes on ", group.device.name, ", and the trainer on ", cluster::kTrainableKinds), plan.where,
                  text("a plan for ", cluster::kTrainableKinds));
  }
}

}  // namespace

ChosenPlan choose_plan(const std::filesystem::path& train_yaml, const std::vector<std::string>& overrides, const model::JobSpec& job,
                       const cluster::ClusterSpec& cluster, const std::optional<std::filesystem::path>& plan_file, bool measure) {
  ChosenPlan chosen;
  check_computed_here(job);
  const bool named = job.parallel.kind == model::ParallelChoice::Kind::plan_file;
  if (plan_file || named) {
    chosen.plan = plan::load_plan(plan_file ? *plan_file : job.parallel.file);
    plan::check(chosen.plan, job, cluster);
    plan::check_trainable(chosen.plan);
    check_devices(chosen.plan, cluster);
    // Ranks whose orders do not fit together would wait for each other until the deadline.
    if (!chosen.plan.order.empty()) program::check(program::compile(chosen.plan, job.model));
    cost::check_fits(chosen.plan, cost::memory_of(chosen.plan, job.model, job.train, cluster, {}), cluster);
    return chosen;
  }
  const std::vector<std::string> vendors = trainable_vendors(job, cluster);
  profile::Profile profile;
  const std::filesystem::path cached = cached_profile_path(job, cluster);
  if (std::filesystem::exists(cached)) {
    profile = profile::load_profile(cached);
  } else if (measure) {
    profile = measure_host(train_yaml, overrides, job, cluster);
    real_file_system().create_directories(cached.parent_path());
    write_whole(real_file_system(), cached, profile::to_json(profile));
  }
  chosen.search = search::search(job, cluster, profile, {.top = 5, .vendors = vendors});
  chosen.plan = chosen.search->best;
  plan::check_trainable(chosen.plan);
  return chosen;
}

void add_train_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train the model of a train.yaml with the workers of its plan")->group(kTrainGroup);
  auto options = std::make_shared<TrainOptions>();
  command->add_option("train_yaml", options->yaml, "What to train")->required();
  command->add_option("--plan", options->plan, "Use this plan file instead of choosing one");
  command->add_flag("--resume", options->resume,
                    "Go on from the run's newest checkpoint, under the same plan unless --plan or --set parallel... says otherwise");
  command->add_flag("--overwrite", options->overwrite, "Replace a run of the same name");
  command->add_option("--set", options->overrides, "Override a key: train.steps=50 (repeatable)")->type_name("KEY=VALUE");
  command->add_flag("!--no-measure", options->measure, "Choose the plan from the built-in cost model, without measuring this host first");
  command->add_flag("--json", options->json, "One JSON object a step on stdout");
  command->callback([options] { train(*options); });
}

}  // namespace tessera::cli
