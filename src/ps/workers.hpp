// Internal. What one server knows of its clients: which of their messages it has applied, and how many steps each worker has ended.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/requests.hpp"
#include "ps/client.hpp"
#include "ps/messages.hpp"
#include "ps/ps.hpp"

namespace tessera::ps {

// A function of the messages alone, so that a backup that is given the same ones knows the same. Not thread-safe.
class Workers {
 public:
  using ClientNumber = std::uint64_t;
  struct Client {
    ClientNumber number = 0;
    std::optional<int> worker = {};  // none: it trains with nobody, and nobody waits for it
    Seconds patience = {};           // how long one of its requests may wait for other workers
    std::uint64_t applied = 0;       // how many of its numbered messages
    // The results of the last of them, which it may ask for again; unset for a message that was refused.
    std::array<std::optional<PushResult>, comm::RequestClient::kMostUnderWay> results = {};
  };

  // A client that comes for the first time. A worker of another run than the last one begins that run, with no other workers; one with an
  // index that is taken takes the other's place, in the step that it has not ended. Throws invalid_config for a worker that does not
  // belong.
  Client& join(ClientNumber number, const Joining& joining);
  // Throws not_found for one that has not joined, or that another worker or run has taken the place of.
  Client& at(ClientNumber number);

  // The workers of the run that is there, where `worker` is of a run of another name, which must not take their place while they train.
  std::vector<ClientNumber> in_the_way_of(const Worker& worker) const;
  const std::string& name() const { return name_; }  // of the run that is there

  // Steps that this worker, or the slowest one, has ended.
  std::int64_t ended(const Client& client) const { return ended_[static_cast<std::size_t>(*client.worker)]; }
  std::int64_t slowest() const;
  std::int64_t fastest() const;
  int slowest_worker() const;
  int count() const { return static_cast<int>(ended_.size()); }
  void end_step(const Client& client) { ++ended_[static_cast<std::size_t>(*client.worker)]; }

  // What it knows, as JSON, and from that.
  std::string json() const;
  static Workers from_json(const std::string& words);

 private:
  std::uint64_t run_ = 0;
  std::string name_;
  std::vector<std::int64_t> ended_;  // by worker
  std::unordered_map<ClientNumber, Client> clients_;
};

}  // namespace tessera::ps
