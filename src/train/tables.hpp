// internal: the rows of a model's tables, which lie on parameter servers: all that the trainer asks of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/job.hpp"
#include "nn/block.hpp"
#include "ps/client.hpp"

namespace tessera::train {

// A rank's end of one table on the servers, named like the run, which holds the rows of all of the model's tables by their keys
// (data/clicks/keys.hpp). Not thread-safe. Throws as ps::Client does.
class Tables {
 public:
  // Opens the table at job.parameter_servers, with the secret in servers_secret_from_environment(). `worker`: which of the ranks that train
  // it this one is; none: one that only looks. Throws invalid_config where the job names no servers.
  Tables(const model::JobSpec& job, const std::optional<ps::Worker>& worker);

  // Throws invalid_config where the servers hold rows already: those of another run of this name.
  void require_empty();

  // Gives each batch `rows`, f32 [samples, tables, dim], for its `keys`, summed over look-ups, and `row_gradients` of the same shape. Keys
  // without a row get one in training, and elsewhere zeros.
  void pull(std::vector<nn::Batch>& batches, ps::Absent absent);
  // Pushes the row gradients of the batches that were pulled last.
  void push();
  // All ranks that train do so once a step, whether they have pushed or not: then the servers step the rows, or let others go on.
  void end_step() { client_.end_step(); }

  // Of one rank, while the others make no step: all rows as they are once all ranks have ended as many steps as this one, into the folder
  // of the step among a run's checkpoints. Removes those of steps that have no checkpoint any more. Throws io.
  void save(const std::filesystem::path& checkpoints, std::int64_t step);
  // The rows of a checkpoint in place of what the servers hold. Throws not_found where there are none, and corrupt.
  void load(const std::filesystem::path& checkpoint, std::int64_t step);

 private:
  std::string name_;
  Where where_;
  ps::Client client_;
  ps::Client::TableId table_;
  std::int64_t dimension_;
  std::vector<ps::Key> keys_;  // of the last pull, those that are there
  at::Tensor present_;         // their places among all of it; undefined: all are there
  at::Tensor gradients_;       // of all of it, [samples, tables, dim]
  std::int64_t lookups_ = 1;
};

}  // namespace tessera::train
