#include "cli/train_command.hpp"
#include "model/forms.hpp"
#include "search/search.hpp"

#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <set>

#include "base/file_system.hpp"
#include "base/log.hpp"
#include "base/plain_name.hpp"
#include "base/secret.hpp"
#include "base/shell.hpp"
#include "cli/commands.hpp"
#include "cli/measured_profile.hpp"
#include "cli/on_end.hpp"
#include "cli/workers.hpp"
#include "control/search_watch.hpp"
#include "cost/cost.hpp"
#include "data/data.hpp"
#include "model/warnings.hpp"
#include "observe/resume.hpp"
#include "observe/run_files.hpp"
#include "plan/schedule/schedule.hpp"
#include "plan/warnings.hpp"
#include "program/program.hpp"

namespace tessera::cli {
namespace {

struct TrainOptions {
  std::string yaml;
  std::string plan;
  std::vector<std::string> overrides;
  std::vector<std::string> changed;
  bool resume = false;
  bool overwrite = false;
  bool measure = true;
  bool json = false;
  HostOptions hosts;
};

bool changes_plan(const std::vector<std::string>& overrides) {
  for (const auto& setting : overrides)
    if (setting.starts_with("parallel") || setting.starts_with("cluster")) return true;
  return false;
}

// A resumed run keeps its plan, bit for bit, unless the user asks for another one, or for a batch or a precision that needs another.
std::optional<std::filesystem::path> plan_file_of(const TrainOptions& options, const model::JobSpec& job,
                                                  const std::filesystem::path& run) {
  if (!options.plan.empty()) return options.plan;
  const std::filesystem::path file = run / "plan.json";
  if (!options.resume || changes_plan(options.overrides) || !std::filesystem::exists(file)) return std::nullopt;
  const plan::Plan plan = plan::load_plan(file);
  if (plan.global_batch != job.train.global_batch || plan.precision != job.train.precision) return std::nullopt;
  return file;
}

void show_choice(const ChosenPlan& chosen, const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Workers& workers) {
  const plan::Plan& plan = chosen.plan;
  const int ranks = plan.world_size();
  const cluster::Device& device = cluster.groups.at(static_cast<std::size_t>(plan.ranks.front().group)).device;
  const plan::Strategy& strategy = plan.stages.front().runs.front().strategy;
  log::show(
      text("plan: ",
           device.shares_host() ? text(ranks, " worker", ranks == 1 ? "" : "s", " of ", plan.threads_text()) : device.ranks_text(ranks),
           ", dp ", strategy.dp, " x pp ", plan.stages.size(), " x tp ", strategy.tp, ", ", plan.micro_batches, " micro-batch",
           plan.micro_batches == 1 ? "" : "es", " of ", plan.micro_batch_text(), ", ", plan.schedule_text(), ", zero ", strategy.zero,
           ", recompute ", model::name_of(strategy.recompute)));
  constexpr int kFewBlocks = 8;  // of a stage: one more or less is an eighth
  if (plan.stages.size() > 1 && model::may_split_layers(job.model) &&
      job.model.block_count() < kFewBlocks * static_cast<int>(plan.stages.size()))
    log::show(text("note: ", plan.stages.size(), " stages have ", job.model.block_count(),
                   " blocks; with model.split_layers: true each layer is two, and stages may be more even"));
  if (!plan.servers.empty()) log::show(text("parameter servers: ", plan.servers_text()));
  std::set<std::pair<int, int>> hosts;
  for (const plan::RankPlace& place : plan.ranks) hosts.insert({place.group, place.node});
  if (hosts.size() > 1 && !workers.on_hosts())
    log::show(text("note: the plan is for ", hosts.size(),
                   " hosts, and `train` runs all its workers on this one; to train on several, name them with --hosts or --launcher"));
  if (plan.predicted)
    log::show(text("predicted: ", to_text(plan.predicted->step), " a step, ",
                   count_text(static_cast<double>(plan.global_batch) *
                              (model::classifies(job.model) ? 1.0 : plan.tokens_of_sample(job.model)) / plan.predicted->step.value),
                   " ", model::counted_in(job.model), "/s, ",
                   to_text(*std::max_element(plan.predicted->memory.begin(), plan.predicted->memory.end())), " in the largest worker"));
}

// What to do with a run that ended before its last step.
std::string way_on(const std::filesystem::path& run, const Workers& workers) {
  if (observe::checkpoint_steps(run).empty()) return "no checkpoint had been written; start over with --overwrite";
  return text("go on from the last checkpoint with: ", typed_command(), " train ", shell_quoted((run / "train.yaml").string()), " --resume",
              workers.typed());
}

// As the run knew its hosts when it ended.
cluster::ClusterSpec at_last_speeds(const cluster::ClusterSpec& cluster, const std::filesystem::path& run) {
  if (!std::filesystem::exists(run / "cluster.yaml")) return cluster;
  const std::vector<double> speeds = cluster::speeds_of_hosts(cluster::load_cluster(run / "cluster.yaml"));
  const bool known = std::any_of(speeds.begin(), speeds.end(), [](double speed) { return speed != 1; });
  return known && speeds.size() == cluster::speeds_of_hosts(cluster).size() ? cluster::with_speeds(cluster, speeds) : cluster;
}

// Asks the workers, as only they know what their libtorch computes on.
void check_accelerators(const plan::Plan& plan, const cluster::ClusterSpec& cluster, const Workers& workers) {
  const bool none = std::all_of(plan.ranks.begin(), plan.ranks.end(), [&](const plan::RankPlace& place) {
    return cluster.groups.at(static_cast<std::size_t>(place.group)).device.shares_host();
  });
  if (none) return;
  const std::filesystem::path plan_file = workers.scratch() / "plan.json";
  const std::filesystem::path cluster_file = workers.scratch() / "cluster.yaml";
  write_whole(real_file_system(), plan_file, plan::to_json(plan));
  write_whole(real_file_system(), cluster_file, cluster::to_yaml(cluster));
  workers.run({.arguments = {"device", "--plan", plan_file.string(), "--cluster", cluster_file.string()}, .places = plan.ranks}, cluster);
}

// The secret of named servers is the user's; the workers' own is new.
void keep_servers_secret(const model::JobSpec& job) {
  if (model::reads_clicks(job.model) && !job.parameter_servers.places.empty())
    ::setenv(kServersSecretVariable, servers_secret_from_environment().c_str(), 1);
}

// Asks from where the ranks will, as servers may be out of this host's reach.
void check_servers(const model::JobSpec& job, const std::string& yaml, const plan::Plan& plan, const cluster::ClusterSpec& cluster,
                   const Workers& workers) {
  if (!model::reads_clicks(job.model) || job.parameter_servers.places.empty()) return;
  const std::filesystem::path file = workers.scratch() / "train.yaml";
  write_whole(real_file_system(), file, yaml);
  workers.run({.arguments = {"servers", file.string()}, .places = {plan.ranks.front()}}, cluster);
}

void train(const TrainOptions& options) {
  // Who listened to what is printed may go away before the run ends: its log has it all. The workers inherit this.
  std::signal(SIGPIPE, SIG_IGN);
  const model::JobSpec job = model::read_job(options.yaml, options.overrides);
  const std::filesystem::path run = run_folder(job.name);
  const observe::IfExists if_exists = observe::if_exists_of(options.resume, options.overwrite);
  observe::check_run(run, if_exists);
  const std::string yaml = model::portable_yaml(options.yaml, options.overrides);
  const Workers workers(options.hosts);
  const cluster::ClusterSpec found = workers.resolve(job.cluster);
  for (const std::string& warning : model::warnings_of(job)) log::warning(warning);
  log::show(
      text("model: ", count_text(static_cast<double>(job.model.parameter_count())), " parameters in ", job.model.block_count(), " blocks"));
  const auto dataset = prepare_data(job);
  if (options.resume) observe::show_changes(observe::check_resumed(job, yaml, *dataset, run, options.changed));
  const ChosenPlan chosen = choose_plan(options.yaml, options.overrides, job, options.resume ? at_last_speeds(found, run) : found,
                                        plan_file_of(options, job, run), options.measure, workers, drawn_lengths(job, *dataset));
  const cluster::ClusterSpec& cluster = chosen.cluster;
  show_choice(chosen, job, cluster, workers);
  check_accelerators(chosen.plan, cluster, workers);
  for (const std::string& warning : plan::warnings_of(chosen.plan, job.model, cluster)) log::warning(warning);
  keep_servers_secret(job);
  // What is replaced cannot be had back; a new run may as well be refused by its ranks.
  if (options.overwrite && std::filesystem::exists(run)) check_servers(job, yaml, chosen.plan, cluster, workers);
  // A run that exists is touched when there is nothing left to refuse.
  observe::RunLock lock = observe::make_run(run, if_exists, job, yaml, chosen.plan, cluster, *dataset);
  log::set_file(run / "log.txt");
  std::vector<std::string> arguments = {"train",     (run / "train.yaml").string(),   "--plan", (run / "plan.json").string(),
                                        "--cluster", (run / "cluster.yaml").string(), "--run",  run.string()};
  if (chosen.search) write_whole(real_file_system(), run / "profile.json", profile::to_json(chosen.profile));
  std::vector<std::filesystem::path> needed = {run / "train.yaml", run / "plan.json", run / "cluster.yaml"};
  // A plan of the user's own stays as it is.
  const bool planned = chosen.search || (options.resume && options.plan.empty());
  if (planned && std::filesystem::exists(run / "profile.json")) {
    needed.push_back(run / "profile.json");
    arguments.insert(arguments.end(), {"--profile", needed.back().string()});
  }
  if (options.resume) arguments.push_back("--resume");
  if (options.json) arguments.push_back("--json");
  control::LaunchOptions launch;
  launch.on_stop_request = [] {
    std::fputs("\n", stderr);  // the workers' line of progress stays
    log::show("stopping after this step with a checkpoint; Ctrl-C again ends at once");
  };
  launch.way_on = [&] { return way_on(run, workers); };
  with_on_end(job, run, [&] {
    const observe::RunLock held = std::move(lock);  // the command at the end may go on with the run
    workers.run({.arguments = arguments, .places = chosen.plan.ranks, .needed = needed, .logs = run / "logs"}, cluster, launch);
    const bool writes = model::predicts_next_token(job.model);
    const std::string done =
        text(run.string(), " is complete.",
             writes ? text(" Let it write:\n  ", typed_command(), " generate ", run.string(), " --prompt \"...\"") : std::string());
    options.json ? log::record(log::Level::info, done) : log::show(done);
  });
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
    if (live && now.fraction >= 1) std::fprintf(stderr, "\r\033[K");
    if (shown != now.stage) live ? log::record(log::Level::info, now.stage) : log::show(now.stage);
    shown = now.stage;
  };
  auto dataset = data::open_dataset(job.data, job.model, job.train.seed, {}, progress);
  if (live && !shown.empty()) std::fprintf(stderr, "\r\033[K");
  for (const std::string& note : dataset->notes()) log::show(note);
  dataset->draws(0, job.train.global_batch);
  return dataset;
}

std::vector<std::int64_t> drawn_lengths(const model::JobSpec& job, const data::Dataset& dataset) {
  return job.data.lengths ? data::as_text(dataset)->first_lengths(job.train.global_batch) : std::vector<std::int64_t>();
}

std::vector<std::int64_t> lengths_if_known(const model::JobSpec& job) {
  if (!job.data.lengths) return {};
  try {
    return drawn_lengths(job, *prepare_data(job));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::interrupted) throw;
    log::show(text("note: ", error.message(), "; plans are priced as if all samples had ", job.model.dim("seq"), " tokens"));
    return {};
  }
}

namespace {

[[noreturn]] void refuse_here(const std::string& what, const Where& where, const std::string& expected) {
  throw Error(ErrorCode::invalid_config, what, where, expected,
              "`" + typed_command() + " plan` plans and simulates it, and with --write hands the plan to other trainers");
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
                       const cluster::ClusterSpec& cluster, const std::optional<std::filesystem::path>& plan_file, bool measure,
                       const Workers& workers, const std::vector<std::int64_t>& lengths) {
  ChosenPlan chosen;
  chosen.cluster = cluster;
  // What only planning knows is refused before anything is measured or started.
  model::check_has_blocks(job.model, job.train.precision, {.file = job.file.string(), .block = {}});
  const bool named = job.parallel.kind == model::ParallelChoice::Kind::plan_file;
  if (plan_file || named) {
    chosen.plan = plan::load_plan(plan_file ? *plan_file : job.parallel.file);
    plan::check(chosen.plan, job, cluster);
    plan::check_trained(chosen.plan, job.model);
    check_devices(chosen.plan, cluster);
    // Ranks whose orders do not fit together would wait for each other until the deadline.
    if (!chosen.plan.order.empty()) program::check(program::compile(chosen.plan, job.model));
    cost::check_fits(chosen.plan, cost::memory_of(chosen.plan, job.model, job.train, cluster, {}), cluster);
    return chosen;
  }
  const std::vector<std::string> vendors = trainable_vendors(job, cluster);
  if (auto cached = load_cached_profile(cached_profile_path(job, cluster, workers)); cached.profile)
    chosen.profile = std::move(*cached.profile);
  else if (measure)
    chosen.profile = measure_into_cache(train_yaml, overrides, job, cluster, workers);
  chosen.cluster = profile::at_measured_speeds(cluster, chosen.profile);
  control::SearchWatch watch(control::OnInterrupt::end_process);
  chosen.search =
      search::search(job, chosen.cluster, chosen.profile, {.top = 5, .vendors = vendors, .watch = watch.watch(), .lengths = lengths});
  chosen.plan = chosen.search->best;
  return chosen;
}

void add_train_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train the model of a train.yaml with the workers of its plan")->group(kTrainGroup);
  auto options = std::make_shared<TrainOptions>();
  command->add_option("train_yaml", options->yaml, "What to train")->required();
  command->add_option("--plan", options->plan, "Use this plan file instead of choosing one");
  CLI::Option* resume =
      command->add_flag("--resume", options->resume,
                        "Go on from the run's newest checkpoint, under the same plan unless --plan or --set parallel... says otherwise");
  command->add_flag("--overwrite", options->overwrite, "Replace a run of the same name")->excludes(resume);
  command->add_option("--change", options->changed, "With --resume: go on with other data, named by their keys: data.source,train.seed")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->needs(resume)
      ->type_name("KEY,...");
  command->add_option("--set", options->overrides, "Override a key: train.steps=50 (repeatable)")->type_name("KEY=VALUE");
  command->add_flag("!--no-measure", options->measure, "Choose the plan from the built-in cost model, without measuring the hosts first");
  add_host_options(*command, options->hosts);
  command->add_flag("--json", options->json, "One JSON object a step on stdout");
  command->footer(
      "With --hosts or --launcher the hosts share the folder in which this is typed, and Tessera lies at the same path on all of them or "
      "on "
      "the PATH that ssh has there; ssh is asked for no password (TESSERA_SSH='ssh -F FILE' names another). What each rank writes is shown "
      "behind "
      "[rank N @ HOST] and kept in runs/NAME/logs/rank-NNN.txt.\n"
      "Ctrl-C, SIGTERM and SIGHUP make the workers finish the step and write a checkpoint; a second Ctrl-C ends them at once.\n"
      "Exit code: 0 when the last step was made, 75 when the run was stopped before (go on with --resume), others for errors.");
  command->callback([options] { train(*options); });
}

}  // namespace tessera::cli
