// Tables that go from some servers to others, by intervals of their keys' hashes, while workers train them: servers are added to a run,
// removed, or replaced. A server that is among both keeps what is its own before and afterwards.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ps/ps.hpp"

namespace tessera::ps {

// In this order: copy() while workers train at the first servers; finish() between two steps of all of them; then they go on at the other
// servers (Client::go_on_at); drop(). Until finish() has returned the first servers have everything, and without it no row of the run has
// changed: rows that were copied go when a Move ends before. Not thread-safe. Throws as Client does.
class Move {
 public:
  // Opens the tables at both. Throws invalid_config where a server that comes new has rows of one of them. `interrupted` as ClientOptions'.
  Move(const std::vector<std::string>& from, const std::vector<std::string>& to, const std::string& secret,
       const std::vector<TableSpec>& tables, const std::atomic<bool>* interrupted = nullptr);
  ~Move();
  Move(const Move&) = delete;
  Move& operator=(const Move&) = delete;

  // All rows that move, and again those that have changed meanwhile. Begins anew, up to twenty times, where a save has come between.
  void copy();
  // What has changed since. Throws not_found where a save has come between: then copy() has to be called again.
  void finish();
  // Each of the first servers erases what is another's now.
  void drop();
  // Rows that have crossed, those more than once that have changed.
  std::uint64_t rows() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::ps
