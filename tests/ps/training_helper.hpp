// A step of a worker that trains a table.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.hpp"
#include "ps/client.hpp"

namespace tessera::ps {

// Of keys below `keys`, and rows of `dimension` values. What it pushes depends on what it has pulled.
inline void train_step(Client& client, Client::TableId table, std::uint64_t keys, int dimension, int worker, int step) {
  Random random(static_cast<std::uint64_t>(step * 10 + worker));
  std::vector<Key> batch(700);
  for (Key& key : batch) key = random.below(keys);
  std::vector<float> gradients(batch.size() * static_cast<std::size_t>(dimension)), values(gradients.size());
  client.pull(table, batch, values);
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>(random.uniform() - 0.5) + values[i];
  client.push(table, batch, gradients);
  client.end_step();
}

}  // namespace tessera::ps
