// What starts ranks on other hosts: the host file, and what a launcher and its agents tell each other.
#include "comm/frames.hpp"
#include "control/agent_messages.hpp"
#include "control/host_file.hpp"
#include "fuzz/checks.hpp"

namespace tessera::fuzz {

Target hosts_target() {
  Target target;
  target.seeds = {"node-1 slots=2\nnode-2 slots=2\n", "# the lab\nalice@10.0.0.7 address=10.0.0.7 slots=16 # fast\n\n[fe80::1%eth0]\n"};
  target.read = [](const std::string& input) {
    const auto hosts = control::parse_hosts(input, "hosts");
    for (const control::Host& host : hosts)
      if (host.name.starts_with("-") || host.name.find_first_of(" \t\n'\"$;") != std::string::npos)
        throw Defect("a host called " + host.name);
    must_pass("what was written is refused", [&] {
      must_be_equal(control::to_text(hosts), control::to_text(control::parse_hosts(control::to_text(hosts), "again")), "the hosts");
    });
  };
  return target;
}

Target agent_target() {
  using namespace control;
  Target target;
  target.refusals = {ErrorCode::corrupt};
  const std::vector<AgentMessage> seeds = {
      Hello{"0.1.0", "host-1", "node-1", "10.0.0.1", 29500, 1, 4, "name: a\n"},
      Start{"/home", {"/home/train.yaml"}, "secret", true, {{3, 2, {"train", "--rank", "3"}, {{"OMP_NUM_THREADS", "2"}}}}},
      Tell{.kill = true},
      Wrote{3, Stream::errors, "a line\n\xff"},
      Ended{{3, 9, "{}"}},
      Refused{"{\"error\": {}}"},
      Beat{}};
  for (const AgentMessage& seed : seeds) target.seeds.push_back(to_json(seed).dump());
  target.read = [](const std::string& input) {
    const auto first = to_json(agent_message_from(comm::parse_object(input)));
    must_pass("what was written is refused",
              [&] { must_be_equal(first.dump(), to_json(agent_message_from(first)).dump(), "the message"); });
  };
  return target;
}

}  // namespace tessera::fuzz
