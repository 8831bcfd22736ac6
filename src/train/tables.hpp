// internal: the rows of a model's tables, which lie on parameter servers: all that the trainer asks of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/job.hpp"
#include "nn/block.hpp"
#include "nn/exchange.hpp"
#include "ps/client.hpp"

namespace tessera::train {

// The table of a job's rows.
ps::TableSpec table_of(const model::JobSpec& job);

// A rank's end of one table on the servers, named like the run, which holds the rows of all of the model's tables by their keys
// (data/clicks/keys.hpp). What it asks servers for in training goes on beside the caller, in the order in which it was begun, and what is
// thrown there as by ps::Client comes out of all that is waited for behind it. Not thread-safe.
class Tables {
 public:
  // Opens the table at job.parameter_servers, with the secret in servers_secret_from_environment(). `worker`: which of the ranks that train
  // it this one is; none: one that only looks. Throws invalid_config where the job names no servers.
  Tables(const model::JobSpec& job, const std::optional<ps::Worker>& worker);
  // Waits for what goes on; on the way of an error, interrupts it.
  ~Tables();
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  // Throws invalid_config where the servers hold rows already: those of another run of this name.
  void require_empty();

  // Gives each batch of a run `rows`, f32 [samples, tables, dim], which rows() brings: those of its `keys`, summed over look-ups; and
  // `row_gradients` of the same shape, not yet filled. In a step of training keys without a row get one; without a step, zeros.
  void hold(std::vector<nn::Batch>& batches, std::optional<std::int64_t> step);
  // What the next pull() is for, in place of the batches that are held. `batches` is called on another thread.
  void hold_next(std::function<std::vector<nn::Batch>()> batches);
  // Begins to bring rows: of the batches that are held where that has not begun, and of the next step where there are batches of it, whose
  // end is then what is returned.
  nn::Exchange pull();
  // The rows of the batches that are held, from now on where nothing has begun to bring them.
  nn::Exchange rows();
  // Begins to push the row gradients of the batches that are held, unless they are to be left out, and then ends the step: all ranks that
  // train do so once a step, so that the servers step the rows, or let others go on. Gradients must not change until it is over.
  nn::Exchange push(bool leave_out);
  // Waits for all that goes on.
  void wait();

  // Of one rank, while the others make no step: all rows as they are once all ranks have ended as many steps as this one, into the folder
  // of the step among a run's checkpoints. Removes those of steps that have no checkpoint any more. Throws io.
  void save(const std::filesystem::path& checkpoints, std::int64_t step);
  // The rows of a checkpoint in place of what the servers hold. Throws not_found where there are none, and corrupt.
  void load(const std::filesystem::path& checkpoint, std::int64_t step);

 private:
  // The rows of a run's batches.
  struct Held {
    std::optional<std::int64_t> step;
    std::vector<nn::Batch> batches;
    std::int64_t lookups = 1;
    at::Tensor rows, gradients;         // [samples, tables, dim]
    std::vector<ps::Key> keys;          // of look-ups that are there
    std::vector<std::int64_t> present;  // their places among all look-ups
    std::int64_t places = 0;
    std::shared_future<Seconds> there;  // valid once they are asked for
    // Whether rows and keys stand for each other, one by one, in memory of the host.
    bool is_plain() const { return lookups == 1 && std::ssize(present) == places && rows.is_cpu(); }
  };
  static void find_keys(Held& held);
  void fetch(Held& held, int ahead);
  void give_back(const Held& held);
  // After all that goes on.
  std::shared_future<Seconds> go_on_with(std::function<void()> work);

  std::string name_;
  Where where_;
  std::atomic<bool> interrupted_ = false;
  ps::Client client_;  // of what goes on, or of the caller once that has ended
  ps::Client::TableId table_;
  std::int64_t dimension_;
  std::shared_ptr<Held> held_;
  std::shared_ptr<Held> next_;                            // of the step after that of held_, once its rows are asked for
  std::function<std::vector<nn::Batch>()> next_batches_;  // until they are
  std::shared_future<Seconds> going_on_;
};

}  // namespace tessera::train
