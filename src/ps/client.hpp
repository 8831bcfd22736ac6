// A worker's end of the parameter servers: one table, whichever servers hold its shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/units.hpp"
#include "ps/ps.hpp"

namespace tessera::ps {

// A server's part of a table.
struct TableStatus {
  std::string name;
  int dimension = 0;
  std::uint64_t rows = 0;
  TableMemory memory;
  std::uint64_t keys_pulled = 0, keys_pushed = 0;  // since the server began
  std::uint64_t gradients_refused = 0;             // of the pushed, as they were not finite
};

// Not thread-safe. Errors are those of comm::RequestClient and of the servers' tables; after peer_lost and deadline_exceeded the client is
// of no more use, and part of a push may have been applied.
class Client {
 public:
  // Every client of a table names the same servers in the same order: a key's place among them says where it lives.
  Client(std::vector<std::string> places, const std::string& secret, Seconds deadline = Seconds(60));
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  // Makes the table where it is not there yet. Throws invalid_config where one of this name is another one.
  using TableId = std::size_t;
  TableId open(const TableSpec& spec);

  // `values`: [keys, dimension]. A key that repeats crosses the network once.
  void pull(TableId table, std::span<const Key> keys, std::span<float> values, Absent absent = Absent::create);
  // `gradients`: [keys, dimension]. Those of a key that repeats are added up and applied once. Directly after the pull of the same keys the
  // servers need not search again.
  PushResult push(TableId table, std::span<const Key> keys, std::span<const float> gradients);
  // The tables of each server, in the servers' order, whoever opened them.
  std::vector<std::vector<TableStatus>> status();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::ps
