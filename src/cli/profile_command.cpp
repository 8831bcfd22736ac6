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
  HostOptions hosts;
  std::string launcher;
  double seconds = 0;
  bool json = false;
};

std::string with_interval(const profile::MeasuredValue& seconds) {
  return text(to_text(Seconds(seconds.median)), " (", to_text(Seconds(seconds.low)), " to ", to_text(Seconds(seconds.high)), ")");
}

void measure_profile(const ProfileOptions& options) {
  const model::JobSpec job = model::read_job(options.yaml, options.overrides);
  const Workers workers(options.hosts);
  const cluster::ClusterSpec cluster = workers.resolve(job.cluster);
  if (search::worker_shapes(job, cluster).empty())
    throw Error(
        ErrorCode::invalid_config, text("cluster '", cluster.name, "' has no CPU workers that could train this job"), job.cluster.where,
        "CPU workers to measure: cluster: auto, or a group of CPU hosts",
        text("accelerators are priced without a profile; `", typed_command(), " calibrate` fits their prices to steps that you measured"));
  const std::filesystem::path path =
      options.output.empty() ? cached_profile_path(job, cluster, workers) : std::filesystem::path(options.output);
  check_can_write(path);
  const std::optional<Seconds> budget = options.seconds > 0 ? std::optional(Seconds(options.seconds)) : std::nullopt;
  const profile::Profile profile = options.launcher.empty()
                                       ? measure(options.yaml, options.overrides, job, cluster, workers, budget)
                                       : measure_hosts(options.yaml, options.overrides, job, cluster, options.launcher, budget);
  write_named(path, profile::to_json(profile));
  if (options.json) {
    std::printf("%s", profile::to_json(profile).c_str());
    return;
  }
  using Align = Table::Align;
  Table blocks({{"block"},
                {"batch", Align::right},
                {"tp", Align::right},
                {"on"},
                {"pass"},
                {"median", Align::right},
                {"from", Align::right},
                {"to", Align::right}});
  for (const profile::BlockSample& sample : profile.blocks) {
    const std::string positions = sample.positions > 0 ? text(", ", sample.positions, " positions") : "";
    blocks.add({sample.kind + positions, text(sample.micro_batch_size), text(sample.tensor_parallel),
                text(sample.neighbours, " x ", sample.threads), "forward", to_text(sample.forward), to_text(sample.forward_low),
                to_text(sample.forward_high)});
    blocks.add({"", "", "", "", "backward", to_text(sample.backward), to_text(sample.backward_low), to_text(sample.backward_high)});
    blocks.add({"", "", "", "", "of it weights", to_text(sample.backward * sample.weight_share), "", ""});
  }
  const int columns = columns_of(STDOUT_FILENO);
  std::printf("%s%s", fitted("medians with confidence intervals (92 % or more), on so many workers x threads\n", columns).c_str(),
              blocks.text(columns).c_str());
  std::string rest;
  constexpr double kMillion = 1e6;
  for (const profile::OptimizerSample& sample : profile.optimizers) {
    const profile::MeasuredValue& each = sample.seconds_per_parameter;
    rest += text(sample.kind, " of a million parameters, ", sample.neighbours, sample.neighbours == 1 ? " worker" : " workers", " of ",
                 sample.threads, sample.threads == 1 ? " thread: " : " threads: ",
                 with_interval({kMillion * each.median, kMillion * each.low, kMillion * each.high}), "\n");
  }
  for (const profile::CommSample& sample : profile.communication) {
    rest += text(sample.operation, " over ", sample.link, " among ", sample.ranks, ": ", to_text(sample.latency), " + bytes / ",
                 to_text(sample.bandwidth), "\n");
    const auto points = [&](const std::vector<profile::CommPoint>& measured, const char* how) {
      for (const profile::CommPoint& point : measured)
        rest += text("    ", to_text(point.size), " in ", with_interval(point.seconds), how, "\n");
    };
    points(sample.points, "");
    points(sample.in_turn, ", in turn with computing");
    const auto factor = [](const profile::MeasuredValue& value) {
      char buffer[96];
      std::snprintf(buffer, sizeof buffer, "%.2f (%.2f to %.2f)", value.median, value.low, value.high);
      return std::string(buffer);
    };
    if (sample.slows.median > 0)
      rest += text("    computing beside it takes ", factor(sample.slows), " times as long,\n    and it ", factor(sample.slowed),
                   " times beside computing\n");
  }
  std::printf("%s", fitted(rest, columns).c_str());
  std::printf("written to %s\n", path.c_str());
}

}  // namespace

void add_profile_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("profile", "Measure the job's blocks and collectives on this host")->group(kPlanGroup);
  auto options = std::make_shared<ProfileOptions>();
  command->add_option("train_yaml", options->yaml, "Whose model and batch to measure")->required();
  command->add_option("-o,--output", options->output, "Write here instead of the cache");
  command->add_option("--set", options->overrides, "Override a key of the YAML (repeatable)")->type_name("KEY=VALUE");
  CLI::Option* hosts =
      command->add_option("--hosts", options->hosts.file, "Measure on the hosts of this file and the link between them; see `train --help`")
          ->type_name("FILE");
  command
      ->add_option("--launcher", options->launcher,
                   "Measure on all hosts of the cluster: the command that starts the words after it once for every worker, with RANK, "
                   "WORLD_SIZE, MASTER_ADDR and MASTER_PORT")
      ->type_name("COMMAND")
      ->excludes(hosts);
  command
      ->add_option("--seconds", options->seconds,
                   "About how long to measure the blocks for each number of workers, and again their communication; large micro-batches "
                   "are left out and what scatters is repeated less where it is short (default: 6, with --launcher 300)")
      ->check(number_above_zero());
  command->add_flag("--json", options->json, "The profile as JSON");
  command->callback([options] { measure_profile(*options); });
}

}  // namespace tessera::cli
