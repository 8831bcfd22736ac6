#include "control/far_crew.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/secret.hpp"
#include "base/shell.hpp"
#include "base/terminal.hpp"
#include "comm/sockets.hpp"

namespace tessera::control {
namespace {

constexpr Seconds kMeetingPatience(60);
// After they were told to end their ranks, agents have so long to say that they did.
constexpr Seconds kObedience(5);
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

// What a rank inherits from this process on its own host, and gets from it on another.
std::vector<std::pair<std::string, std::string>> passed_on() {
  std::vector<std::pair<std::string, std::string>> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view variable = *entry;
    const std::size_t equals = variable.find('=');
    const std::string_view name = variable.substr(0, equals);
    if (equals == std::string_view::npos || name == kSecretVariable || name == kSecretFileVariable || name == kShownElsewhere) continue;
    if (name.starts_with("TESSERA_") || name.starts_with("UCX_")) variables.emplace_back(name, variable.substr(equals + 1));
  }
  return variables;
}

std::string plural(std::size_t count, const std::string& word) { return text(count, " ", word, count == 1 ? "" : "s"); }

void check_room(const Hosts& hosts, const FarJob& job) {
  std::vector<int> ranks_on(hosts.hosts.size(), 0);
  const int needed =
      1 + std::max_element(job.ranks.begin(), job.ranks.end(), [](const FarRank& a, const FarRank& b) { return a.host < b.host; })->host;
  const std::string file = hosts.hosts.front().where.file;
  if (needed > static_cast<int>(hosts.hosts.size()))
    throw Error(ErrorCode::invalid_config,
                text(plural(hosts.hosts.size(), "host"), hosts.hosts.size() == 1 ? " is" : " are", " listed, and the plan is for ", needed),
                {.file = file, .block = {}}, text("at least ", needed, " hosts, one for each node of the cluster, in its order"),
                "list more hosts, or make a plan for fewer");
  for (const FarRank& rank : job.ranks) ++ranks_on.at(static_cast<std::size_t>(rank.host));
  for (std::size_t i = 0; i < ranks_on.size(); ++i) {
    const Host& host = hosts.hosts[i];
    if (host.slots && ranks_on[i] > *host.slots)
      throw Error(ErrorCode::invalid_config,
                  text("the plan puts ", plural(static_cast<std::size_t>(ranks_on[i]), "rank"), " on ", host.name,
                       ", which has slots=", *host.slots),
                  host.where, text("slots=", ranks_on[i], " or more"), "raise the host's slots, or make a plan with fewer ranks a host");
  }
}

Error error_from(const std::string& json, const std::string& host) {
  const auto parsed = nlohmann::json::parse(json, nullptr, false);
  if (parsed.is_discarded() || !parsed.contains("error") || !parsed["error"].is_object())
    return {ErrorCode::internal, "the agent on " + host + " started nothing, and did not say why"};
  const auto& body = parsed["error"];
  const std::string code = body.value("code", "");
  return {code == name_of(ErrorCode::not_found) ? ErrorCode::not_found : ErrorCode::io,
          body.value("message", ""),
          {},
          body.value("expected", ""),
          body.value("hint", "")};
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

void FarCrew::read_starters() {
  for (Starter& starter : starters_)
    starter.read([&](const std::string& line) {
      if (hosts_.command.empty())
        log::record(log::Level::info, "ssh: " + line);
      else if (output_)
        output_->say("launcher", line);
      else
        log::show("[launcher] " + line);
    });
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

std::vector<FoundHost> FarCrew::found() const {
  std::vector<FoundHost> hosts;
  for (const Agent& agent : agents_)
    if (hosts_.command.empty() || std::none_of(hosts.begin(), hosts.end(), [&](const FoundHost& one) { return one.name == agent.name; }))
      hosts.push_back({agent.name, agent.hello->cluster});
  return hosts;
}

bool FarCrew::on_hosts_of_their_own() const {
  std::set<std::string> names;
  for (const Agent& agent : agents_) names.insert(agent.name);
  return names.size() == agents_.size();
}

// By rank, the agent that starts it.
std::vector<std::size_t> FarCrew::agents_of(const FarJob& job) const {
  std::set<int> used;
  for (const FarRank& rank : job.ranks) used.insert(rank.host);
  const bool by_command = !hosts_.command.empty();
  const bool by_host = by_command && agents_.size() == static_cast<std::size_t>(job.hosts) && on_hosts_of_their_own();
  const bool by_rank = by_command && !by_host && agents_.size() == job.ranks.size();
  if (!by_host && !by_rank && agents_.size() != used.size())
    throw Error(ErrorCode::invalid_config,
                text("`", hosts_.command, "` started ", agents_.size(), agents_.size() == 1 ? " process" : " processes"), {},
                text(job.ranks.size(), ", one for each rank of the plan, or ", used.size(), ", one for each of its hosts"),
                "say so to the launcher (srun: --nodes and --ntasks-per-node; mpirun: -n and --map-by)");
  std::vector<std::size_t> agents;
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const int host = job.ranks[rank].host;
    const auto among_used = static_cast<std::size_t>(std::distance(used.begin(), used.find(host)));
    agents.push_back(by_rank ? rank : by_host ? static_cast<std::size_t>(host) : among_used);
  }
  for (std::size_t rank = 0; by_rank && rank < job.ranks.size(); ++rank)
    for (std::size_t other = 0; other < rank; ++other)
      if (job.ranks[rank].host == job.ranks[other].host && agents_[rank].name != agents_[other].name)
        throw Error(ErrorCode::invalid_config,
                    text("the plan has ranks ", other, " and ", rank, " on one host, and `", hosts_.command, "` started them on ",
                         agents_[other].name, " and ", agents_[rank].name),
                    {}, "processes numbered host by host", "srun: --distribution block; mpirun: --map-by slot or ppr:N:node");
  return agents;
}

// Where the other hosts find the host of rank 0.
std::string FarCrew::address_of(const Agent& first) const {
  std::string address = first.address;
  const auto far = std::find_if(agents_.begin(), agents_.end(), [](const Agent& agent) { return !agent.is_here; });
  const bool given = std::any_of(hosts_.hosts.begin(), hosts_.hosts.end(),
                                 [&](const Host& host) { return host.name == first.name && !host.address.empty(); });
  if (given) return address;
  if (first.is_here) {
    address = "127.0.0.1";
    if (far != agents_.end()) address = hosts_.command.empty() ? comm::local_address_towards({far->address, 22}) : far->met_at;
  }
  if (address.empty() || comm::is_loopback({address, 22}))
    for (const Agent& agent : agents_)
      if (agent.address.empty() || !comm::is_loopback({agent.address, 22}))
        if (!agent.is_here && &agent != &first)
          throw Error(ErrorCode::invalid_config,
                      text("host ", first.name, ", where rank 0 runs, was reached at ", address.empty() ? "no address" : address,
                           ", where the other hosts do not find it"),
                      first.where, "an address that the other hosts reach", text("add it to the host file: ", first.name, " address=..."));
  return address;
}

void FarCrew::start(const FarJob& job) {
  const std::vector<std::size_t> agents = agents_of(job);
  const Agent& first = agents_.at(agents.front());
  const std::string address = address_of(first);
  const std::string rendezvous = text(address.find(':') == std::string::npos ? address : "[" + address + "]", ":", first.hello->port);
  const bool live = is_live_terminal(STDERR_FILENO);
  std::vector<std::pair<std::string, std::string>> environment = passed_on();
  std::vector<Start> starts(agents_.size());
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    Start::Rank one{static_cast<int>(rank), job.ranks[rank].threads, job.arguments, environment};
    one.arguments.insert(one.arguments.end(),
                         {"--rank", std::to_string(rank), "--world", std::to_string(job.ranks.size()), "--rendezvous", rendezvous});
    one.environment.emplace_back("OMP_NUM_THREADS", std::to_string(one.threads));
    // The other ranks show no line that renews itself.
    if (rank == 0 && live)
      one.environment.emplace_back(kShownElsewhere, text(columns_of(STDERR_FILENO), color_wanted(STDERR_FILENO) ? " color" : ""));
    starts.at(agents[rank]).ranks.push_back(std::move(one));
    agents_[agents[rank]].ranks.push_back(static_cast<int>(rank));
    host_of_rank_.push_back(agents_[agents[rank]].name);
  }
  output_ = std::make_unique<RankOutput>(RankOutput::Options{host_of_rank_, job.logs, live, {}, {}});
  // Launchers bind their processes themselves.
  const bool pins = hosts_.command.empty();
  for (std::size_t i = 0; i < agents_.size(); ++i) {
    starts[i].folder = std::filesystem::current_path().string();
    for (const auto& file : job.needed) starts[i].needed.push_back(std::filesystem::absolute(file).string());
    if (hosts_.command.empty()) starts[i].secret = secret_;
    starts[i].pins = pins;
    agents_[i].line.send(starts[i]);
  }
}

void FarCrew::signal_all(int signal) {
  if (signal == SIGKILL && !killed_at_) killed_at_ = real_clock().now();
  for (Agent& agent : agents_)
    if (agent.line.open()) agent.line.send(Tell{signal == SIGKILL});
}

bool FarCrew::all_ended() const {
  return std::all_of(agents_.begin(), agents_.end(), [](const Agent& agent) { return agent.ranks.empty(); });
}

std::vector<Crew::End> FarCrew::collect() {
  std::vector<End> ends;
  for (Agent& agent : agents_) hear(agent, ends);
  read_starters();
  if (killed_at_ && real_clock().now() - *killed_at_ > kObedience)
    for (Agent& agent : agents_)
      lose(agent, Error(ErrorCode::peer_lost, "host " + agent.name + " does not say that its ranks have ended"), ends);
  if (!hosts_.command.empty()) follow_command(ends);
  output_->flush();
  return ends;
}

// A launcher that failed does not look after the processes that it has started any more; if it ends them itself, they say more.
void FarCrew::follow_command(std::vector<End>& ends) {
  const int status = starters_.front().status().value_or(0);
  if (status == 0) return;
  const Seconds now = real_clock().now();
  if (!command_failed_at_) command_failed_at_ = now;
  if (now - *command_failed_at_ < kObedience) return;
  const std::string& said = starters_.front().last_line();
  const std::string how =
      WIFSIGNALED(status) ? text("was ended by signal ", WTERMSIG(status)) : text("ended with exit code ", WEXITSTATUS(status));
  for (Agent& agent : agents_)
    lose(agent, Error(ErrorCode::peer_lost, text("`", hosts_.command, "` ", how, " before its ranks", said.empty() ? "" : ": " + said)),
         ends);
}

void FarCrew::hear(Agent& agent, std::vector<End>& ends) {
  if (!agent.line.open()) return;
  const bool open = agent.line.pump();
  try {
    while (const auto message = agent.line.next()) {
      if (const auto* wrote = std::get_if<Wrote>(&*message)) {
        output_->wrote(wrote->rank, wrote->stream, wrote->bytes);
      } else if (const auto* ended = std::get_if<Ended>(&*message)) {
        std::erase(agent.ranks, ended->end.rank);
        ends.push_back({.end = ended->end, .host = agent.name});
        output_->ended(ended->end.rank, ended->end.status == 0 ? "" : error_of(ends.back()).what());
      } else if (const auto* refused = std::get_if<Refused>(&*message)) {
        lose(agent, error_from(refused->error, agent.name), ends);
        // The ranks of the other hosts would wait for this one's.
        signal_all(SIGKILL);
        return;
      }
    }
  } catch (const std::exception& problem) {  // also a rank that there is not
    lose(agent, Error(ErrorCode::corrupt, text("the agent on ", agent.name, " speaks as none of ours: ", problem.what())), ends);
    return;
  }
  if (open) return;
  // ssh says why, if it has not ended by itself.
  if (!agent.ranks.empty() && hosts_.command.empty()) {
    const Seconds until = real_clock().now() + Seconds(1);
    while (!starters_.at(agent.starter).status() && real_clock().now() < until) real_clock().sleep(Seconds(0.01));
    read_starters();
  }
  const std::string& said = starters_.at(hosts_.command.empty() ? agent.starter : 0).last_line();
  std::string ranks;
  for (const int rank : agent.ranks) ranks += text(ranks.empty() ? "" : ", ", rank);
  lose(agent,
       Error(ErrorCode::peer_lost, text("the connection to host ", agent.name, " is lost, and with it rank",
                                        agent.ranks.size() == 1 ? " " : "s ", ranks, said.empty() ? "" : ": " + said)),
       ends);
}

void FarCrew::lose(Agent& agent, const Error& error, std::vector<End>& ends) {
  agent.line.close();
  for (const int rank : std::exchange(agent.ranks, {})) {
    output_->ended(rank, error.what());
    RankEnd end;
    end.rank = rank;
    ends.push_back({.end = end, .error = error, .host = agent.name});
  }
}

std::vector<pollfd> FarCrew::watched() {
  std::vector<pollfd> watched;
  for (const Agent& agent : agents_) agent.line.watch(watched);
  for (const Starter& starter : starters_) starter.watch(watched);
  return watched;
}

void run_on_hosts(const Hosts& hosts, const FarJob& job, const LaunchOptions& options) {
  std::set<int> used;
  for (const FarRank& rank : job.ranks) used.insert(rank.host);
  if (hosts.command.empty()) check_room(hosts, job);
  StopSignals signals;
  FarCrew crew(hosts, signals);
  crew.meet({used.begin(), used.end()});
  crew.start(job);
  supervise(crew, signals, options);
}

std::vector<FoundHost> survey(const Hosts& hosts) {
  std::vector<int> all;
  for (std::size_t i = 0; i < hosts.hosts.size(); ++i) all.push_back(static_cast<int>(i));
  StopSignals signals;
  FarCrew crew(hosts, signals);
  crew.meet(all);
  return crew.found();
}

}  // namespace tessera::control
