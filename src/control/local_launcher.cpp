#include "control/local_launcher.hpp"

#include "base/secret.hpp"
#include "control/supervise.hpp"

namespace tessera::control {
namespace {

class LocalCrew final : public Crew {
 public:
  void start(const WorkerCommand& worker, const std::string& secret) { processes_.start(worker, secret, Output::inherited); }
  void signal_all(int signal) override { processes_.signal_all(signal); }
  bool all_ended() const override { return processes_.all_ended(); }
  std::vector<End> collect() override {
    std::vector<End> ends;
    for (RankEnd& end : processes_.collect()) ends.push_back({.end = std::move(end)});
    return ends;
  }

 private:
  WorkerProcesses processes_;
};

}  // namespace

void run_workers(const std::vector<WorkerCommand>& workers, const LaunchOptions& options) {
  StopSignals signals;
  LocalCrew crew;
  const std::string secret = make_secret();
  for (const WorkerCommand& worker : workers) crew.start(worker, secret);
  supervise(crew, signals, options);
}

std::filesystem::path sibling_program(const std::string& name) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto path = self.parent_path() / name;
  if (error || !std::filesystem::exists(path))
    throw Error(ErrorCode::not_found, name + " is not beside " + self.string(), {}, {}, "build it with ./dev build");
  return path;
}

}  // namespace tessera::control
