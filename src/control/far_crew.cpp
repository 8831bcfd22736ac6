#include "control/far_crew.hpp"

#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/secret.hpp"
#include "base/terminal.hpp"
#include "comm/sockets.hpp"

namespace tessera::control {
namespace {

// After they were told to end their ranks, agents have so long to say that they did.
constexpr Seconds kObedience(5);

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
