// internal: parameter servers of a run's own, in the processes of its ranks.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "comm/comm.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"

namespace tessera::train {

// What a plan says of servers (plan::Plan::servers). They answer in threads of their own, and share with their rank the processors that it
// was given. Not thread-safe; the communicator must outlive it.
class OwnServers {
 public:
  // Starts those of this rank at `address`, at which the others reach this host, and tells all ranks where all of them are. All ranks call
  // it. Throws io where one cannot listen.
  OwnServers(const plan::Plan& plan, const model::ParameterServerSpec& spec, comm::Communicator& comm, const std::string& address,
             const std::string& secret);
  // Ends those of this rank; no rank may ask them any more.
  ~OwnServers();
  OwnServers(const OwnServers&) = delete;
  OwnServers& operator=(const OwnServers&) = delete;

  // HOST:PORT of each, of all ranks.
  const std::vector<std::string>& places() const { return places_; }

 private:
  std::vector<std::jthread> running_;
  std::vector<std::string> places_;
};

}  // namespace tessera::train
