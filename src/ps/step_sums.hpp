// Internal. Gradients that the workers of a synchronous table have pushed in steps that not all of them have ended.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "ps/batch.hpp"
#include "ps/ps.hpp"

namespace tessera::ps {

class StepSums {
 public:
  // How many were taken: those with a NaN or an infinity are not. `impressions`: one a key, of a table with a lifecycle; else empty.
  PushResult add(std::int64_t step, int worker, std::span<const Key> keys, std::span<const float> gradients,
                 std::span<const Impressions> impressions);
  // Forgets what a worker has pushed for this step and later ones, which it begins anew.
  void forget(std::int64_t step, int worker);
  // Pushes to the table, for each key once, what the workers have added in this step: in the workers' order, so that sums are the same
  // whoever came first.
  void apply(std::int64_t step, Table& table);

  struct Pushed {
    std::vector<Key> keys;
    std::vector<float> gradients;
    std::vector<Impressions> impressions;
  };
  const std::map<std::pair<std::int64_t, int>, Pushed>& pushed() const { return pushed_; }

 private:
  std::map<std::pair<std::int64_t, int>, Pushed> pushed_;  // by step and worker
  Batch batch_;
};

}  // namespace tessera::ps
