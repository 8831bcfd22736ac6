#include "cli/hosts.hpp"

#include <unistd.h>
#include <CLI/CLI.hpp>

#include "base/config.hpp"
#include "base/file_system.hpp"
#include "base/hex.hpp"
#include "base/log.hpp"
#include "base/secret.hpp"
#include "base/shell.hpp"
#include "base/temporary_folder.hpp"
#include "cli/workers.hpp"

namespace tessera::cli {

// Goes with the command; what a killed one leaves begins with a dot, and is no run.
class Workers::Scratch {
 public:
  explicit Scratch(bool shared) {
    if (!shared) {
      temporary_.emplace();
      return;
    }
    shared_ = std::filesystem::absolute("runs") / (".launch-" + to_hex(random_bytes(8)));
    real_file_system().create_directories(shared_);
    std::filesystem::permissions(shared_, std::filesystem::perms::owner_all);
  }
  ~Scratch() {
    std::error_code ignored;
    if (!shared_.empty()) std::filesystem::remove_all(shared_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::filesystem::path& path() const { return shared_.empty() ? temporary_->path() : shared_; }

 private:
  std::optional<TemporaryFolder> temporary_;
  std::filesystem::path shared_;
};

void add_host_options(CLI::App& command, HostOptions& options) {
  CLI::Option* file =
      command
          .add_option("--hosts", options.file,
                      "Run the workers on the hosts of this file, over ssh: a line `NAME [slots=N] [address=ADDRESS]` for each "
                      "node of the cluster, in its order")
          ->type_name("FILE");
  command
      .add_option("--launcher", options.launcher,
                  "Run the workers on the hosts where this command starts the words after it, once for every worker or once on every host: "
                  "'srun --ntasks-per-node 1'")
      ->type_name("COMMAND")
      ->excludes(file);
}

Workers::Workers(const HostOptions& options) : options_(options) {
  if (!options.file.empty()) hosts_.hosts = control::read_host_file(options.file);
  hosts_.command = options.launcher;
  hosts_.version = TESSERA_VERSION;
}

Workers::~Workers() = default;

std::string Workers::typed() const {
  if (!options_.file.empty()) return " --hosts " + shell_quoted(options_.file);
  return options_.launcher.empty() ? std::string() : " --launcher " + shell_quoted(options_.launcher);
}

std::string Workers::name() const { return hosts_.command.empty() ? to_text(hosts_.hosts) : hosts_.command; }

std::filesystem::path Workers::scratch() const {
  if (!scratch_) scratch_ = std::make_unique<Scratch>(on_hosts());
  return scratch_->path();
}

control::Hosts Workers::hosts() const {
  control::Hosts hosts = hosts_;
  if (!hosts.command.empty()) hosts.scratch = scratch();
  return hosts;
}

cluster::ClusterSpec Workers::resolve(const model::ClusterChoice& choice) const {
  using Kind = model::ClusterChoice::Kind;
  if (!on_hosts() || choice.kind == Kind::file || choice.kind == Kind::lab) return cluster::resolve(choice);
  if (choice.kind == Kind::local)
    throw Error(ErrorCode::invalid_config, "cluster.local is this host alone, and the workers are to run on others", choice.where,
                "cluster: auto, which asks each of the hosts what it has, or a cluster file");
  std::vector<cluster::ClusterSpec> found;
  for (const control::FoundHost& host : control::survey(hosts())) {
    found.push_back(cluster::read_cluster(ConfigNode::parse(host.cluster, "the description of " + host.name)));
    const cluster::Device& cpu = found.back().groups.front().device;
    log::show(text("host ", host.name, ": ", cpu.cores, " core", cpu.cores == 1 ? "" : "s", " of ", cpu.name, ", ", to_text(cpu.memory)));
  }
  return cluster::joined(found);
}

void Workers::run(const Job& job, const cluster::ClusterSpec& cluster, const control::LaunchOptions& options) const {
  if (!on_hosts()) {
    control::run_workers(worker_commands(job.arguments, job.places, cluster), options);
    return;
  }
  std::vector<int> first_of_group;
  int nodes = 0;
  for (const cluster::ResourceGroup& group : cluster.groups) {
    first_of_group.push_back(nodes);
    nodes += group.nodes;
  }
  control::FarJob far{.arguments = job.arguments, .ranks = {}, .hosts = nodes, .needed = job.needed, .logs = job.logs};
  for (const plan::RankPlace& place : job.places)
    far.ranks.push_back({first_of_group.at(static_cast<std::size_t>(place.group)) + place.node, place.threads});
  control::run_on_hosts(hosts(), far, options);
}

}  // namespace tessera::cli
