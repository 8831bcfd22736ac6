// A server of finished tables: answers look-ups of the clients of parameter servers, and nothing that would change a row.
#pragma once

#include <memory>
#include <stop_token>
#include <string>

#include "ps/serving_table.hpp"

namespace tessera::ps {

// One thread answers. Several servers may share a table: clients name all of them, and each answers for a part of the keys.
class ServingServer {
 public:
  // For the arguments see comm::RequestServer. A client opens the table by its name and dimension, whatever else its TableSpec says, and
  // pulls with Absent::zeros. Every other request except the status is refused with invalid_config. `table` must outlive the server.
  ServingServer(const std::string& place, const std::string& secret, const ServingTable& table);
  ~ServingServer();
  // Answers until it is asked to stop.
  void serve(const std::stop_token& stop);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::ps
