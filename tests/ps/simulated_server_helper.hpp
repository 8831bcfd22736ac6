// One process of a pair of parameter servers, on a simulated host: the replica is the real one, its sockets, its clock and its end are not.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ps/replica.hpp"
#include "ps/simulated_network_helper.hpp"

namespace tessera::ps::simulation {

// What shards hold, however they came to it: equal for equal shards.
struct HeldState {
  std::string clients;  // JSON: workers, and what was done for whom
  std::map<std::pair<std::uint32_t, Key>, std::vector<std::byte>> rows;
  std::map<std::uint32_t, std::vector<std::byte>> waiting;                       // keys, to be admitted
  std::map<std::pair<std::uint32_t, std::string>, std::vector<std::byte>> sums;  // of steps that are not over
};
HeldState held_by(const Shards& shards);
// In what the backup differs from its leader; nothing where it does not. A row that was pulled alone the leader may have for itself, as
// `first_values` has it.
using FirstValues = std::function<std::vector<std::byte>(std::uint32_t table, Key key)>;
std::optional<std::string> difference(const HeldState& leader, const HeldState& backup, const FirstValues& first_values);

class SimulatedServer;

struct SimulatedPair {
  std::array<Host, 2> hosts;                                     // the first one leads at first
  std::array<std::unique_ptr<SimulatedServer>, 2> servers = {};  // nothing: the process has ended
  // How many of a client's messages that server, in any of its lives, has done or has been given as done.
  std::array<std::map<std::uint64_t, std::uint64_t>, 2> done = {};

  SimulatedServer* leader() const;
  // What the leader's end would lose nothing with: the other one, which has been given everything.
  SimulatedServer* whole_backup() const;
};

class SimulatedServer final : public Surroundings {
 public:
  SimulatedServer(World& world, SimulatedPair& pair, std::size_t which);
  // Its process ends.
  ~SimulatedServer() override;

  const Replica& replica() const { return replica_; }
  std::size_t which() const { return which_; }
  bool was_given_everything() const { return copied_; }
  // Whether it does nothing now that is not done yet.
  bool idle() const { return !answering_; }

  Process partner_process() const override;
  std::unique_ptr<comm::Requester> connect_to_partner(const comm::RequestClient::Options& options) const override;
  void stand_by(bool standby) override { standby_ = standby; }
  bool is_connected(comm::RequestServer::ClientId client) const override { return sessions_.contains(client); }
  bool sleep() override;

 private:
  struct Waiting {
    comm::RequestServer::ClientId session;
    Packet packet;
    Micros since;
  };
  void serve();
  bool take_packet();
  void drop_lost();
  void welcome(const ConnectionPointer& connection);
  // False: it has to wait.
  bool answer(comm::RequestServer::ClientId session, const Packet& packet, Micros waited);
  void answer_waiting();
  void look_at_partner();
  void check_done(const AskHeader& header, std::span<const std::byte> request);

  World& world_;
  SimulatedPair& pair_;
  std::size_t which_;
  Host host_, partner_;
  bool standby_ = false, copied_ = false, answering_ = false;
  std::map<std::uint64_t, std::uint64_t> being_copied_;
  Replica replica_;
  std::vector<ConnectionPointer> strangers_;
  std::map<comm::RequestServer::ClientId, ConnectionPointer> sessions_;
  comm::RequestServer::ClientId next_session_ = 1;
  std::deque<Waiting> waiting_;
  std::unique_ptr<std::byte[]> reply_;
  Micros looked_ = 0;
  std::shared_ptr<Task> task_, asking_;
  std::optional<Replica::Start> start_;
};

}  // namespace tessera::ps::simulation
