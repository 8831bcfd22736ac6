// How a launcher and its agents meet: over ssh, or called by those that another launcher's command started.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "base/clock.hpp"
#include "base/secret.hpp"
#include "base/shell.hpp"
#include "control/far_crew.hpp"

namespace tessera::control {
namespace {

constexpr Seconds kMeetingPatience(60);
// Agents whose line has ended end their ranks, and are gone.
constexpr Seconds kLeave(8);
constexpr const char* kAgentCommand = "launch-agent";
// The shell could not start the program; ssh itself failed.
constexpr int kNoProgram = 127;
constexpr int kNoPermission = 126;
constexpr int kSshFailed = 255;

std::string own_program() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw Error(ErrorCode::internal, "cannot tell where this program lies: " + error.message());
  return self.string();
}

std::string own_host() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

bool is_here(const std::string& host) { return host == "localhost" || host == own_host(); }

std::vector<std::string> ssh_command(const std::string& host) {
  const char* given = std::getenv("TESSERA_SSH");
  std::vector<std::string> command = words_of(given != nullptr ? given : "");
  if (command.empty()) command = {"ssh"};
  // Nobody is there to answer questions; a host that is switched off is noticed.
  command.insert(command.end(), {"-T", "-x", "-oBatchMode=yes", "-oConnectTimeout=15", "-oServerAliveInterval=10",
                                 "-oServerAliveCountMax=3", "-oControlMaster=no", "-oControlPath=none", "--", host});
  // The same program at the same place, or the one that the far shell finds. A user's shell need not be a POSIX one.
  const std::string script = text("P=", shell_quoted(own_program()), "; [ -x \"$P\" ] || P=tessera; exec \"$P\" ", kAgentCommand);
  command.push_back("exec /bin/sh -c " + shell_quoted(script));
  return command;
}

}  // namespace

FarCrew::~FarCrew() {
  const bool all_met =
      !agents_.empty() && std::all_of(agents_.begin(), agents_.end(), [](const Agent& agent) { return agent.hello.has_value(); });
  for (Agent& agent : agents_) agent.line.close();
  const Seconds until = real_clock().now() + kLeave;
  const auto running = [&] {
    bool any = false;
    for (Starter& starter : starters_) any = !starter.status() || any;
    return any;
  };
  // An agent that was never there has nothing to end before it leaves.
  while (all_met && running() && real_clock().now() < until) {
    read_starters();
    real_clock().sleep(Seconds(0.01));
  }
  for (Starter& starter : starters_) starter.ask_to_end();
}

void FarCrew::meet(const std::vector<int>& used) {
  secret_ = make_secret();
  hosts_.command.empty() ? meet_over_ssh(used) : meet_by_command();
}

void FarCrew::meet_over_ssh(const std::vector<int>& used) {
  for (const int index : used) {
    const Host& host = hosts_.hosts.at(static_cast<std::size_t>(index));
    const bool here = is_here(host.name);
    const std::vector<std::string> command = here ? std::vector<std::string>{own_program(), kAgentCommand} : ssh_command(host.name);
    if (!here && !find_program(command.front()))
      throw Error(ErrorCode::not_found, "there is no '" + command.front() + "' on this host, which starts the ranks on " + host.name, {},
                  {}, "install it (Debian: openssh-client), let TESSERA_SSH name another, or use --launcher");
    starters_.emplace_back(command, Starter::Speaks::line);
    Agent agent{
        .name = host.name, .address = host.address, .met_at = {}, .is_here = here, .line = starters_.back().take_line(), .hello = {}};
    agent.starter = starters_.size() - 1;
    agent.where = host.where;
    agents_.push_back(std::move(agent));
  }
  const Seconds until = real_clock().now() + kMeetingPatience;
  for (;;) {
    read_starters();
    std::string missing;
    for (Agent& agent : agents_) {
      if (!agent.hello && !hear_hello(agent)) throw_unreachable(agent);
      if (agent.hello && agent.line.open() && !agent.line.pump()) throw_unreachable(agent);
      if (!agent.hello) missing += (missing.empty() ? "" : ", ") + agent.name;
    }
    if (missing.empty()) break;
    if (real_clock().now() > until)
      throw Error(ErrorCode::deadline_exceeded, text("no answer within ", kMeetingPatience.value, " s from ", missing), {}, {},
                  "see what `ssh " + missing.substr(0, missing.find(',')) + " true` does");
    wait_for_news();
  }
  for (Agent& agent : agents_) {
    check_version(agent);
    if (agent.address.empty()) agent.address = agent.hello->address;
  }
}

void FarCrew::meet_by_command() {
  const std::filesystem::path secret_file = hosts_.scratch / "secret";
  const int file = ::open(secret_file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) throw_errno("write", secret_file.string(), errno);
  const comm::Descriptor owner(file);
  if (::write(file, secret_.data(), secret_.size()) != static_cast<ssize_t>(secret_.size()))
    throw_errno("write", secret_file.string(), errno);
  reception_ = std::make_unique<Reception>(secret_);
  std::string places;
  for (const std::string& place : reception_->places()) places += (places.empty() ? "" : ",") + place;
  starters_.emplace_back(std::vector<std::string>{"/bin/sh", "-c", "exec " + hosts_.command + " \"$@\"", "launcher", own_program(),
                                                  kAgentCommand, "--call", places, "--secret-file", secret_file.string()},
                         Starter::Speaks::words);
  // A launcher may wait for hosts to become free for as long as it likes; once it has started one process, the others follow.
  std::optional<Seconds> until;
  for (;;) {
    read_starters();
    for (Reception::Caller& caller : reception_->admit()) {
      agents_.push_back({.name = {}, .address = caller.address, .met_at = caller.met_at, .line = std::move(caller.line), .hello = {}});
      if (!until) until = real_clock().now() + kMeetingPatience;
    }
    std::size_t greeted = 0;
    std::size_t expected = 1;
    for (Agent& agent : agents_) {
      if (!agent.hello && !hear_hello(agent)) throw_command_failed();
      if (agent.hello && !agent.line.pump()) throw_command_failed();
      if (!agent.hello) continue;
      ++greeted;
      expected = static_cast<std::size_t>(agent.hello->count);
    }
    if (greeted >= expected) break;
    if (starters_.front().status()) throw_command_failed();
    if (until && real_clock().now() > *until)
      throw Error(ErrorCode::deadline_exceeded, text("of ", expected, " processes that `", hosts_.command, "` starts, ", greeted,
                                                     " came within ", kMeetingPatience.value, " s"));
    std::vector<pollfd> more;
    reception_->watch(more);
    wait_for_news(more);
  }
  reception_.reset();
  std::filesystem::remove(secret_file);
  order_callers();
}

void FarCrew::order_callers() {
  std::sort(agents_.begin(), agents_.end(), [](const Agent& a, const Agent& b) { return a.hello->index < b.hello->index; });
  for (std::size_t i = 0; i < agents_.size(); ++i) {
    Agent& agent = agents_[i];
    check_version(agent);
    agent.name = agent.hello->node.empty() ? agent.hello->host : agent.hello->node;
    agent.is_here = agent.hello->host == own_host();
    if (agent.hello->index != static_cast<int>(i) || agent.hello->count != static_cast<int>(agents_.size()))
      throw Error(ErrorCode::invalid_config,
                  text("one of the ", agents_.size(), " processes that `", hosts_.command, "` started is number ", agent.hello->index,
                       " of ", agent.hello->count),
                  {},
                  "processes that find their number in RANK, OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID, and how many they are in "
                  "WORLD_SIZE, OMPI_COMM_WORLD_SIZE, PMI_SIZE or SLURM_NTASKS");
  }
}

void FarCrew::wait_for_news(const std::vector<pollfd>& more) {
  std::vector<pollfd> watched = this->watched();
  watched.insert(watched.end(), more.begin(), more.end());
  if (asks_to_stop(signals_.next(watched, Seconds(0.2))))
    throw Error(ErrorCode::interrupted, "stopped before all hosts had answered, as asked; there was nothing to save");
}

// False when the line is at its end before the agent has said who it is.
bool FarCrew::hear_hello(Agent& agent) {
  const bool open = agent.line.pump();
  try {
    while (const auto message = agent.line.next()) {
      if (const auto* hello = std::get_if<Hello>(&*message)) {
        agent.hello = *hello;
        return true;
      }
    }
  } catch (const Error&) {
    // What a far shell prints when it starts is no message.
    throw Error(ErrorCode::corrupt, text("what answers on ", agent.name, " does not speak as an agent of Tessera"), agent.where,
                "a login that prints nothing for commands", "see what `ssh " + agent.name + " true` prints, and make .bashrc silent there");
  }
  return open;
}

void FarCrew::check_version(const Agent& agent) const {
  if (agent.hello->version == hosts_.version) return;
  throw Error(ErrorCode::invalid_config,
              text("host ", agent.hello->host, " has version ", agent.hello->version, " of Tessera, and this is ", hosts_.version),
              agent.where, "the same version on all hosts");
}

void FarCrew::throw_unreachable(Agent& agent) {
  Starter& starter = starters_.at(agent.starter);
  const Seconds until = real_clock().now() + Seconds(3);
  while (!starter.status() && real_clock().now() < until) real_clock().sleep(Seconds(0.01));
  read_starters();
  const int status = starter.status().value_or(0);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  const std::string said = starter.last_line().empty() ? "" : ": " + starter.last_line();
  if (code == kNoProgram || code == kNoPermission)
    throw Error(ErrorCode::not_found, "host " + agent.name + " has no Tessera to run" + said, agent.where,
                own_program() + ", or tessera on the PATH that ssh has there", "install the same version there, or share this folder");
  if (code == kSshFailed || WIFSIGNALED(status))
    throw Error(ErrorCode::peer_lost, "host " + agent.name + " cannot be reached" + said, agent.where,
                "a host that ssh reaches without a question",
                "try: " + std::string(std::getenv("TESSERA_SSH") != nullptr ? std::getenv("TESSERA_SSH") : "ssh") + " -o BatchMode=yes " +
                    agent.name + " true");
  throw Error(ErrorCode::peer_lost, text("the agent on host ", agent.name, " ended with exit code ", code, said), agent.where);
}

void FarCrew::throw_command_failed() {
  Starter& starter = starters_.front();
  const Seconds until = real_clock().now() + Seconds(3);
  while (!starter.status() && real_clock().now() < until) real_clock().sleep(Seconds(0.01));
  read_starters();
  const std::string said = starter.last_line().empty() ? "" : ": " + starter.last_line();
  throw Error(
      ErrorCode::peer_lost, text("`", hosts_.command, "` ended before all the processes that it was to start had come", said), {},
      text("a command that starts the words after it once for every rank, or once on every host, such as: srun --ntasks-per-node 1"));
}

}  // namespace tessera::control
