// tessera profile: measured times of a job's blocks and collectives.
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/file_system.hpp"
#include "base/table.hpp"
#include "base/terminal.hpp"
#include "cli/checks.hpp"
#include "cli/commands.hpp"
#include "cli/measured_profile.hpp"
#include "search/search.hpp"

namespace tessera::cli {
namespace {

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
  if (search::worker_shapes(job, cluster).empty())
    throw Error(
        ErrorCode::invalid_config, text("cluster '", cluster.name, "' has no CPU workers that could train this job"), job.cluster.where,
        "CPU workers to measure: cluster: auto, or a group of CPU hosts",
        text("accelerators are priced without a profile; `", typed_command(), " calibrate` fits their prices to steps that you measured"));
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
  using Align = Table::Align;
  Table blocks({{"block"},
                {"batch", Align::right},
                {"tp", Align::right},
                {"workers", Align::right},
                {"threads", Align::right},
                {"pass"},
                {"median", Align::right},
                {"from", Align::right},
                {"to", Align::right}});
  for (const profile::BlockSample& sample : profile.blocks) {
    blocks.add({sample.kind, text(sample.micro_batch_size), text(sample.tensor_parallel), text(sample.neighbours), text(sample.threads),
                "forward", to_text(sample.forward), to_text(sample.forward_low), to_text(sample.forward_high)});
    blocks.add({"", "", "", "", "", "backward", to_text(sample.backward), to_text(sample.backward_low), to_text(sample.backward_high)});
  }
  std::printf("medians with confidence intervals (92 %% or more)\n%s", blocks.text(columns_of(STDOUT_FILENO)).c_str());
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
      ->check(number_above_zero());
  command->add_flag("--json", options->json, "The profile as JSON");
  command->callback([options] { measure_profile(*options); });
}

}  // namespace tessera::cli
