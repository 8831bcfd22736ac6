// Internal. The agents of a launch and the ranks that they have started.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control/call_in.hpp"
#include "control/host_launcher.hpp"
#include "control/rank_output.hpp"
#include "control/starter.hpp"
#include "control/supervise.hpp"

namespace tessera::control {

class FarCrew final : public Crew {
 public:
  FarCrew(const Hosts& hosts, StopSignals& signals) : hosts_(hosts), signals_(signals) {}
  // Returns when what started the agents has ended, which it does after them.
  ~FarCrew() override;

  // Starts an agent on each of these hosts (indices; ignored for a command, which knows its hosts) and waits until all have said who they
  // are. Throws what run_on_hosts says of hosts, and interrupted when the user asks to stop meanwhile.
  void meet(const std::vector<int>& used);
  std::vector<FoundHost> found() const;
  // Tells each agent which ranks to start.
  void start(const FarJob& job);

  void signal_all(int signal) override;
  bool all_ended() const override;
  std::vector<End> collect() override;
  std::vector<pollfd> watched() override;

 private:
  struct Agent {
    std::string name;     // of its host, as the user knows it
    std::string address;  // at which other hosts reach it; empty: not known
    std::string met_at;   // this host's address that it called
    bool is_here = false;
    Line line;
    std::optional<Hello> hello;
    std::vector<int> ranks = {};  // that have not ended
    std::size_t starter = 0;
    Where where = {};
  };
  void meet_over_ssh(const std::vector<int>& used);
  void meet_by_command();
  void wait_for_news(const std::vector<pollfd>& more = {});
  void read_starters();
  bool hear_hello(Agent& agent);
  void check_version(const Agent& agent) const;
  [[noreturn]] void throw_unreachable(Agent& agent);
  [[noreturn]] void throw_command_failed();
  void order_callers();
  bool on_hosts_of_their_own() const;
  std::vector<std::size_t> agents_of(const FarJob& job) const;
  std::string address_of(const Agent& first) const;
  void hear(Agent& agent, std::vector<End>& ends);
  void lose(Agent& agent, const Error& error, std::vector<End>& ends);
  void follow_command(std::vector<End>& ends);

  const Hosts& hosts_;
  StopSignals& signals_;
  std::string secret_;
  std::unique_ptr<RankOutput> output_;  // outlives the starters, whose last words it shows
  std::unique_ptr<Reception> reception_;
  std::vector<Starter> starters_;
  std::vector<Agent> agents_;
  std::vector<std::string> host_of_rank_;
  std::optional<Seconds> killed_at_;
  std::optional<Seconds> command_failed_at_;
};

}  // namespace tessera::control
