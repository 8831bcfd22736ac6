// A parameter server: shards of tables, which clients open, pull from and push to.
#pragma once

#include <memory>
#include <stop_token>
#include <string>

namespace tessera::ps {

// Used by one thread at a time. A host with several cores runs several, each at a place of its own: keys are spread over all of them alike.
class Server {
 public:
  // As comm::RequestServer.
  Server(const std::string& place, const std::string& secret);
  ~Server();
  // Answers clients until it is asked to stop.
  void serve(const std::stop_token& stop);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::ps
