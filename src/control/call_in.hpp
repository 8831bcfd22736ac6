// Internal. How agents that another launcher's command started (srun, mpirun) find their launcher: they call it over TCP, and both prove
// that they know the secret of the run.
#pragma once

#include <string>
#include <vector>

#include "base/units.hpp"
#include "comm/proof.hpp"
#include "control/line.hpp"

namespace tessera::control {

// The launcher's side.
class Reception {
 public:
  // Listens at a free port of all of this host's addresses. Throws io.
  explicit Reception(std::string secret);
  // "ADDRESS:PORT" for each address of this host, those that other hosts may reach first.
  const std::vector<std::string>& places() const { return places_; }
  void watch(std::vector<pollfd>& watched) const;
  struct Caller {
    Line line;
    std::string address;  // of the agent, as seen from here
    std::string met_at;   // this host's address that it called
  };
  // The callers that have proved since the last call that they belong to the run. A caller that has not within ten seconds is dropped.
  std::vector<Caller> admit();

 private:
  struct Stranger {
    Caller caller;
    comm::Conversation talk;
    Seconds since;
    bool proved = false;
    bool lost = false;
  };
  void hear(Stranger& stranger);

  std::string secret_;
  comm::Descriptor listener_;
  std::vector<std::string> places_;
  std::vector<Stranger> strangers_;
};

// The agent's side: the first of the places where somebody knows the secret. Throws deadline_exceeded when there is none in time.
Line call(const std::vector<std::string>& places, const std::string& secret, Seconds patience);

}  // namespace tessera::control
