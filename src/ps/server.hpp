// A parameter server: shards of tables, which clients open, pull from and push to.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "ps/ps.hpp"

namespace tessera::ps {

// A pair of servers holds the same shards. One leads and answers clients; the other stands by, and has everything that was acknowledged.
// When the leader's process has ended, the standby leads. One that begins anew finds out which of the two it is: where its partner has
// tables, it stands by and is given them. A leader whose partner has ended goes on alone; one that cannot tell whether its partner has
// ended waits, and its clients with it, so that two never lead at once.
struct Pair {
  enum class First { leads, stands_by } first = First::leads;  // where neither holds anything yet
  std::string partner;                                         // its place
};

// Where a server writes what it acknowledges, so that one that begins anew at its place goes on with it.
struct ServerLog {
  std::filesystem::path folder;  // this server's alone
  Bytes base_after{256 << 20};   // of messages, before all rows are written anew and the messages go
};

struct ServerOptions {
  std::optional<Pair> pair = {};
  std::optional<TableStorage> storage = {};  // of each table; none: all rows are in memory
  std::optional<ServerLog> log = {};         // of one that is in no pair; none: a server that ends takes all rows with it
};

// Used by one thread at a time. A host with several cores runs several, each at a place of its own: keys are spread over all of them alike.
class Server {
 public:
  // For the arguments see comm::RequestServer. Throws invalid_config if another server writes to the log.
  Server(const std::string& place, const std::string& secret, const ServerOptions& options = {});
  ~Server();
  // Reads the log, while clients wait, and answers them until it is asked to stop. Throws peer_lost when its partner leads instead, and
  // what is wrong with the log: corrupt, io, and not_found where a checkpoint that was loaded is gone.
  void serve(const std::stop_token& stop);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::ps
