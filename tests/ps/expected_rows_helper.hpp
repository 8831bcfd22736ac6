// What the workers of a simulation have pushed, and what a pull may then see.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "ps/ps.hpp"

namespace tessera::ps::simulation {

// Four tables, by what is known of their rows. In the first two a worker has two values in each row: each push adds a power of two of its
// own to the one, and 1 to the other. So a pull tells which pushes it has seen, and whether one was applied twice.
enum Kind : std::size_t {
  kCounts,   // asynchronous
  kSums,     // synchronous
  kAdagrad,  // synchronous, of numbers whose sums are rounded: the order of workers shows in the bits
  kLives,    // asynchronous, with a lifecycle: of its rows only that leader and backup hold the same
  kKinds
};

constexpr int kPushes = 2;  // of a worker in a step, to each table
constexpr std::size_t kKeys = 7;

struct Pushed {
  std::vector<Key> keys;
  std::vector<float> values;
};

class ExpectedRows {
 public:
  ExpectedRows(std::uint64_t seed, int workers, int staleness);

  TableSpec spec(Kind kind) const;
  static std::vector<Key> all_keys();
  // What a worker pushes: always the same, whoever asks.
  Pushed push_of(Kind kind, int worker, int step, int number) const;

  void begins(Kind kind, int worker, int step, int number);
  void ends(Kind kind, int worker, int step, int number);  // it has been acknowledged
  void begins_end_of_step(int worker) { ++steps_begun_to_end_[static_cast<std::size_t>(worker)]; }

  // What a pull of all keys, of one of the first two tables, must see at least. `step`: that the puller is in, ahead included; nothing: it
  // is no worker.
  using Marks = std::vector<std::uint32_t>;  // of [keys, workers]: a bit for each push
  Marks least(Kind kind, std::optional<int> step) const;
  // Of a pull that has been answered. Nothing: it is right.
  std::optional<std::string> wrong(Kind kind, std::span<const float> values, const Marks& least, std::optional<int> step) const;
  // Of rows of the third table after so many steps, or fewer bits: what one process would have.
  std::vector<float> one_process(int steps) const;

 private:
  std::size_t at(std::size_t key, int worker) const { return key * static_cast<std::size_t>(workers_) + static_cast<std::size_t>(worker); }
  Marks all_of_steps_before(Kind kind, int step) const;

  std::uint64_t seed_;
  int workers_, staleness_;
  struct Known {
    Marks begun, acknowledged;
  };
  std::map<Kind, Known> known_;
  std::vector<int> steps_begun_to_end_;
};

}  // namespace tessera::ps::simulation
