// internal: the rows of a model's tables, which lie on parameter servers: all that the trainer asks of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "model/job.hpp"
#include "nn/block.hpp"
#include "ps/client.hpp"
#include "ps/serving_table.hpp"

namespace tessera::train {

// Where the servers save the rows of a step: beside the run's checkpoints.
std::filesystem::path tables_folder(const std::filesystem::path& checkpoints, std::int64_t step);

// A rank's end of one table on the servers, named like the run, which holds the rows of all of the model's tables by their keys
// (data/clicks/keys.hpp). What it asks servers for in training goes on beside the caller, in order, and what is thrown there as by
// ps::Client comes out of the next call. Not thread-safe.
class Tables {
 public:
  // Opens the table at job.parameter_servers, with the secret in servers_secret_from_environment(). `worker`: which of the ranks that train
  // it this one is; none: one that only looks. Throws invalid_config where the job names no servers.
  Tables(const model::JobSpec& job, const std::optional<ps::Worker>& worker);
  // Reads finished rows, and no servers: all but pull() is a defect then.
  Tables(const model::JobSpec& job, ps::ServingTable finished);
  // Waits for what goes on; on the way of an error, interrupts it.
  ~Tables();
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  // Throws invalid_config where the servers hold rows already: those of another run of this name.
  void require_empty();

  // Gives each batch `rows`, f32 [samples, tables, dim], for its `keys`, summed over look-ups, and `row_gradients` of the same shape. Keys
  // without a row get one in training, and elsewhere zeros.
  void pull(std::vector<nn::Batch>& batches, ps::Absent absent);
  // Begins to pull what the next step's batches will need, beside the step that goes on, where the table lets rows miss that step: the next
  // pull() of the same keys has it. `batches` is called on another thread.
  void begin_pull(std::function<std::vector<nn::Batch>()> batches);
  // Begins to push the row gradients of the batches that were pulled last, unless they are to be left out, and then ends the step: all
  // ranks that train do so once a step, so that the servers step the rows, or let others go on.
  void end_step(bool leave_out);

  // Of one rank, while the others make no step: all rows as they are once all ranks have ended as many steps as this one, into the folder
  // of the step among a run's checkpoints. Removes those of steps that have no checkpoint any more. Throws io.
  void save(const std::filesystem::path& checkpoints, std::int64_t step);
  // The rows of a checkpoint in place of what the servers hold. Throws not_found where there are none, and corrupt.
  void load(const std::filesystem::path& checkpoint, std::int64_t step);

 private:
  // Keys and rows of some batches.
  struct Pulled {
    std::vector<ps::Key> keys;          // that are there
    std::vector<std::int64_t> present;  // their places among `places`
    std::int64_t places = 0;
    std::vector<float> values;  // [keys, dim]
  };
  static Pulled keys_of(const std::vector<nn::Batch>& batches);
  void fetch(Pulled& pulled, ps::Absent absent, int ahead);
  // After all that goes on.
  void go_on_with(std::function<void()> work);
  void wait();

  std::string name_;
  Where where_;
  std::atomic<bool> interrupted_ = false;
  std::optional<ps::ServingTable> finished_;  // in place of the client
  std::optional<ps::Client> client_;          // of what goes on, or of the caller once that has ended
  ps::Client::TableId table_ = 0;
  std::int64_t dimension_;
  bool goes_ahead_;  // a pull may miss a step
  Pulled pulled_;    // last
  std::optional<Pulled> next_;
  at::Tensor gradients_;  // of the last, [samples, tables, dim]
  std::int64_t lookups_ = 1;
  std::future<void> going_on_;
};

}  // namespace tessera::train
