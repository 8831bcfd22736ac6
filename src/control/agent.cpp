#include "control/agent.hpp"

#include <fcntl.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <numeric>

#include "base/clock.hpp"
#include "base/free_port.hpp"
#include "base/secret.hpp"
#include "control/call_in.hpp"
#include "control/supervise.hpp"

namespace tessera::control {
namespace {

// What the ranks wrote waits with them while so much has not been sent.
constexpr std::size_t kMostUnsent = 1 << 20;
constexpr Seconds kCallPatience(60);
// For the last words to reach the launcher.
constexpr Seconds kFarewell(5);

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "this host";
}

// sshd says: CLIENT_ADDRESS CLIENT_PORT SERVER_ADDRESS SERVER_PORT.
std::string address_seen_by_ssh() {
  const char* connection = std::getenv("SSH_CONNECTION");
  const std::string words = connection != nullptr ? connection : "";
  const std::size_t second = words.find(' ', words.find(' ') + 1);
  const std::size_t third = words.find(' ', second + 1);
  return third == std::string::npos ? std::string() : words.substr(second + 1, third - second - 1);
}

// What launchers say of the processes that they start: torchrun's names, Open MPI's, those of MPICH and Intel MPI, and Slurm's.
int number_from(std::initializer_list<const char*> names, int missing) {
  for (const char* name : names)
    if (const char* value = std::getenv(name)) return std::atoi(value);
  return missing;
}

class Agent {
 public:
  // `secret`: of the run, where the agent has it from elsewhere than from its launcher.
  Agent(const AgentOptions& options, Line line, std::string secret)
      : options_(options), line_(std::move(line)), secret_(std::move(secret)) {}

  void run() {
    line_.send(hello());
    bool open = true;
    while (open && !finished()) {
      open = line_.pump();
      while (const auto message = line_.next()) hear(*message);
      for (RankEnd& end : processes_.collect()) line_.send(Ended{std::move(end)});
      if (!open || finished()) break;
      wait();
    }
    // Nobody is there any more who could want the ranks to go on; without a launcher they would run unseen, and for ever.
    if (!open) processes_.signal_all(SIGKILL);
    say_farewell();
  }

 private:
  // Everything was started, or refused, and has ended.
  bool finished() const { return (started_ || refused_) && processes_.all_ended(); }

  Hello hello() const {
    const char* node = std::getenv("SLURMD_NODENAME");
    return {.version = options_.version,
            .host = host_name(),
            .node = node != nullptr ? node : "",
            .address = address_seen_by_ssh(),
            .port = free_port(),
            .index = number_from({"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}, 0),
            .count = std::max(1, number_from({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}, 1)),
            .cluster = options_.cluster};
  }

  void hear(const AgentMessage& message) {
    if (const auto* start = std::get_if<Start>(&message)) {
      try {
        begin(*start);
      } catch (const Error& error) {
        processes_.signal_all(SIGKILL);
        refused_ = true;
        line_.send(Refused{tessera::to_json(error)});
      }
    } else if (const auto* tell = std::get_if<Tell>(&message)) {
      processes_.signal_all(tell->kill ? SIGKILL : SIGTERM);
      if (!started_) refused_ = true;
    }
  }

  void begin(const Start& start) {
    if (started_) throw Error(ErrorCode::corrupt, "a launcher starts the ranks of a host once");
    started_ = true;
    if (start.ranks.empty()) return;
    work_in(start.folder);
    for (const std::string& file : start.needed)
      if (!std::filesystem::exists(file))
        throw Error(ErrorCode::not_found, text("host ", host_name(), " does not see ", file, ", which its ranks need"), {},
                    text("the folder ", start.folder, " on a file system that all hosts share, with the same content"),
                    "start the run in a folder that all hosts share");
    const std::string program = sibling_program("tessera-worker").string();
    const std::string secret = start.secret.empty() ? secret_ : start.secret;
    processes_.read_output([this](int rank, Stream stream, std::string_view bytes) {
      line_.send(Wrote{rank, stream, std::string(bytes)});
    });
    const int threads =
        std::accumulate(start.ranks.begin(), start.ranks.end(), 0, [](int sum, const Start::Rank& rank) { return sum + rank.threads; });
    const bool own_cores = start.pins && threads <= static_cast<int>(options_.processors.size());
    std::size_t next = 0;
    for (const Start::Rank& rank : start.ranks) {
      WorkerCommand command;
      command.rank = rank.rank;
      command.arguments = {program};
      command.arguments.insert(command.arguments.end(), rank.arguments.begin(), rank.arguments.end());
      command.environment = rank.environment;
      for (int thread = 0; own_cores && thread < rank.threads; ++thread) command.processors.push_back(options_.processors[next++]);
      processes_.start(command, secret, Output::piped);
    }
  }

  static void work_in(const std::string& folder) {
    if (::chdir(folder.c_str()) == 0) return;
    throw Error(ErrorCode::not_found, text("host ", host_name(), " has no folder ", folder, " that it may enter"), {},
                "the folder in which the run was started, on a file system that all hosts share",
                "start the run in a folder that all hosts share");
  }

  void wait() {
    std::vector<pollfd> watched;
    line_.watch(watched);
    const bool reads = line_.unsent() < kMostUnsent;
    if (reads)
      for (const int descriptor : processes_.descriptors()) watched.push_back({descriptor, POLLIN, 0});
    // A launcher's command that ends its processes asks the ranks to stop; asked again, they are ended.
    if (asks_to_stop(signals_.next(watched, Seconds(0.5)))) {
      processes_.signal_all(++stop_requests_ == 1 ? SIGTERM : SIGKILL);
      if (!started_) refused_ = true;
    }
    if (reads) processes_.read_what_there_is();
  }

  void say_farewell() {
    const Seconds until = real_clock().now() + kFarewell;
    while (line_.unsent() > 0 && line_.pump() && real_clock().now() < until) {
      std::vector<pollfd> watched;
      line_.watch(watched);
      ::poll(watched.data(), watched.size(), 100);
    }
  }

  const AgentOptions& options_;
  StopSignals signals_;
  Line line_;
  std::string secret_;
  WorkerProcesses processes_;
  bool started_ = false;
  bool refused_ = false;
  int stop_requests_ = 0;
};

// The input and output that ssh made, for the line alone: what is printed by accident goes to the errors.
Line line_of_ssh() {
  comm::Descriptor in(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
  comm::Descriptor out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  Line line(std::move(in), std::move(out));
  line.trust();
  return line;
}

}  // namespace

void run_agent(const AgentOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);
  if (options.places.empty()) {
    Agent(options, line_of_ssh(), {}).run();
    return;
  }
  ::setenv(kSecretFileVariable, options.secret_file.c_str(), 1);
  ::unsetenv(kSecretVariable);
  const std::string secret = secret_from_environment().value_or(std::string());
  Agent(options, call(options.places, secret, kCallPatience), secret).run();
}

}  // namespace tessera::control
