// Internal: where the workers of a command run: on this host, or on those that --hosts or --launcher name.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "control/host_launcher.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"

namespace CLI {
class App;
}

namespace tessera::cli {

struct HostOptions {
  std::string file;
  std::string launcher;
};
// --hosts and --launcher, which exclude each other.
void add_host_options(CLI::App& command, HostOptions& options);

class Workers {
 public:
  // Reads the host file. Throws as control::read_host_file.
  explicit Workers(const HostOptions& options);
  ~Workers();

  // Whether they run on hosts that the user named.
  bool on_hosts() const { return !hosts_.hosts.empty() || !hosts_.command.empty(); }
  // The options that lead to the same hosts, as they are typed behind a command; empty for this host.
  std::string typed() const;
  // Says in words which they are, for keys of caches; empty for this host.
  std::string name() const;
  // cluster::resolve; `cluster: auto` is what the hosts have, each of which is asked.
  cluster::ClusterSpec resolve(const model::ClusterChoice& choice) const;
  // A folder of this command's own, for files that workers write and this process reads: in runs/, which all hosts share, or in the
  // system's temporary folder for workers of this host.
  std::filesystem::path scratch() const;

  struct Job {
    std::vector<std::string> arguments;              // of tessera-worker
    std::vector<plan::RankPlace> places;             // by rank
    std::vector<std::filesystem::path> needed = {};  // files that every host must see
    std::optional<std::filesystem::path> logs = {};  // on_hosts(): the folder for what each rank writes
  };
  // Runs them to their end: control::run_workers or control::run_on_hosts.
  void run(const Job& job, const cluster::ClusterSpec& cluster, const control::LaunchOptions& options = {}) const;

 private:
  class Scratch;
  control::Hosts hosts() const;

  HostOptions options_;
  control::Hosts hosts_;
  mutable std::unique_ptr<Scratch> scratch_;  // made when it is first needed
};

}  // namespace tessera::cli
