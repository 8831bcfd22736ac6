// internal: the rows of a model's tables, which lie on parameter servers: all that the trainer asks of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/comm.hpp"
#include "model/job.hpp"
#include "nn/block.hpp"
#include "nn/exchange.hpp"
#include "ps/client.hpp"
#include "ps/geo.hpp"
#include "ps/serving_table.hpp"

namespace tessera::train {

// Where the servers save the rows of a step: beside the run's checkpoints.
std::filesystem::path tables_folder(const std::filesystem::path& checkpoints, std::int64_t step);

// Whether a run may begin on the servers that it names, before anything of an earlier one is touched; nothing where it names none. Throws
// as Tables() and Tables::require_empty() do.
void check_servers(const model::JobSpec& job, comm::Communicator& comm);
// Whether a run can begin with the rows of another run's checkpoint of that many steps, before anything of either is touched. Throws as
// Tables::begin_with() does, but for damage behind the first bytes of files.
void check_first_rows(const model::JobSpec& job, const std::filesystem::path& checkpoint, std::int64_t step);

// A rank's end of one table on the servers, named like the run, which holds the rows of all of the model's tables by their keys
// (data/clicks/keys.hpp). What it asks servers for in training goes on beside the caller, in the order in which it was begun, and what is
// thrown there as by ps::Client comes out of all that is waited for behind it. Not thread-safe.
class Tables {
 public:
  // Opens the table at job.parameter_servers, with the secret in servers_secret_from_environment(). `worker`: which of the ranks that train
  // it this one is; none: one that only looks. Throws invalid_config where the job names no servers. Once the communicator fails, whatever
  // waits for a server ends within a second, in its error and what was waited for: a rank that has ended may be why servers do not answer.
  Tables(const model::JobSpec& job, const std::optional<ps::Worker>& worker, comm::Communicator& comm);
  // Reads finished rows, and no servers: only evaluations have use for it.
  Tables(const model::JobSpec& job, ps::ServingTable finished);
  // Waits for what goes on; on the way of an error, interrupts it.
  ~Tables();
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  // Throws invalid_config where the servers hold rows already: those of another run of this name.
  void require_empty();

  // A step of training.
  struct Step {
    std::int64_t number = 0;
    double learning_rate = 0;  // of the table
  };
  // Gives each batch of a run `rows`, f32 [samples, tables, dim], which rows() brings: those of its `keys`, summed over look-ups; and
  // `row_gradients` of the same shape, not yet filled. Where batches have a `history`, also `history_rows`, f32 [samples, history, dim], of
  // which those without a key are zeros, and `history_gradients`. In a step of training keys without a row get one; without a step, zeros.
  void hold(std::vector<nn::Batch>& batches, const std::optional<Step>& step);
  // Whether this rank trains a copy of the rows (consistency geo).
  bool keeps_copy() const { return copy_.has_value(); }
  // What the next pull() brings beside what the held batches need. `batches` is called on another thread.
  void hold_next(std::function<std::vector<nn::Batch>()> batches);
  // Begins to bring rows: of the batches that are held where that has not begun, and of the next step where there are batches of it, whose
  // end is then what is returned. A copy has those of the next step from the servers then, and what is returned are those of this one.
  nn::Exchange pull();
  // The rows of the batches that are held, from now on where nothing has begun to bring them.
  nn::Exchange rows();
  // Begins to push the row gradients of the batches that are held, unless they are to be left out, and then ends the step: all ranks that
  // train do so once a step, so that the servers step the rows, or let others go on. Gradients must not change until it is over. Worker 0
  // tells the servers the step's learning rate where it is another one than before: synchronous tables take the steps of all ranks with it,
  // asynchronous ones all pushes that come until worker 0's next step; copies are stepped with it here.
  // Each look-up of a sample is a show of its key, with its label a click; where the step ends a period, the first rank ends the table's
  // period before its own step, as no rank pulls meanwhile then where tables are synchronous.
  nn::Exchange push(bool leave_out);
  // All ranks that train call it, between two steps: begins to send the servers what they lack of copies. hold() does so for evaluations.
  void exchange();
  // Called by all ranks that train: waits until everything that they have begun has ended, and the servers have it.
  void finish();
  // Called by all ranks that train, after finish() and once other servers have the rows (ps/move.hpp): goes on with these servers, as a run
  // of this number.
  void go_on_at(const std::vector<std::string>& places, std::uint64_t run);
  // What the servers were asked to open.
  std::vector<ps::TableSpec> opened() const { return client_->opened(); }
  // Waits for all that goes on.
  void wait();
  // These two first. What each server says of all of its tables, and how far what this rank has pulled was behind.
  std::vector<ps::ServerStatus> status();
  ps::Staleness staleness();

  // Called by one rank, after all ranks have called exchange() and while none makes a step. Begins to save all rows, as they are once all
  // ranks have ended as many steps as this one, into the folder of the step among a run's checkpoints. The function that it returns may be
  // called on any thread and beside steps: it waits until the rows are written, and removes the folders of steps that have no checkpoint
  // any more; it throws io, also for what failed at the start. The folder shares the files of the save before (hard links) and adds the
  // rows that have changed since, until these take half as much as all rows did. One save at a time.
  std::function<void()> begin_save(const std::filesystem::path& checkpoints, std::int64_t step);
  // Expires when what the last begin_save() has returned has gone.
  std::weak_ptr<void> saving() const { return saving_; }
  // The rows of a checkpoint in place of what the servers hold. Throws not_found where there are none, and corrupt.
  void load(const std::filesystem::path& checkpoint, std::int64_t step);
  // For a table without rows: begins with the rows of another run's checkpoint, whose table has that run's name, and with new optimizer
  // states (ps/first_rows.hpp). Throws not_found if there are none, invalid_config if they do not fit, and corrupt.
  void begin_with(const std::filesystem::path& checkpoint, std::int64_t step);

 private:
  // What the batches of a run read of one of their fields of keys.
  struct Part {
    std::int64_t lookups = 1;    // that a row of the batch is the sum of
    at::Tensor rows, gradients;  // [samples, rows of a sample, dim]
    std::int64_t end = 0;        // of its places among all look-ups
  };
  struct Held {
    std::optional<std::int64_t> step;
    double learning_rate = 0;
    std::vector<nn::Batch> batches;
    std::vector<Part> parts;            // of kFields, those that the batches have
    std::vector<ps::Key> keys;          // of look-ups that are there
    std::vector<std::int64_t> present;  // their places among all look-ups, part after part
    std::int64_t places = 0;
    std::vector<ps::Impressions> impressions;  // of the keys, where the table has a lifecycle
    std::shared_future<Seconds> there;         // valid once they are asked for
    // Whether rows and keys stand for each other, one by one, in memory of the host.
    bool is_plain() const {
      return parts.size() == 1 && parts.front().lookups == 1 && std::ssize(present) == places && parts.front().rows.is_cpu();
    }
  };
  // What `work` returns; where it was interrupted as the communicator has failed, that error.
  template <typename Work>
  auto asked(const Work& work);
  void find_keys(Held& held) const;
  void fetch(Held& held, int ahead);
  void bring(const Held& held, std::span<float> values, int ahead);
  void give_back(const Held& held);
  void step_rows(const Held& held, std::span<const float> gradients);
  // After all that goes on.
  std::shared_future<Seconds> go_on_with(std::function<void()> work);

  std::string name_;
  Where where_;
  // Shared with saves, which may outlive this.
  std::shared_ptr<std::atomic<bool>> interrupted_ = std::make_shared<std::atomic<bool>>(false);
  comm::Communicator* comm_ = nullptr;  // where there is a client
  std::optional<Error> failure_ = {};   // the communicator's, before failed_ is set
  std::atomic<bool> failed_ = false;
  std::optional<ps::ServingTable> finished_;  // in place of the client
  std::optional<ps::Client> client_;          // of what goes on, or of the caller once that has ended
  ps::Client::TableId table_ = 0;
  std::int64_t dimension_;
  std::optional<ps::GeoTable> copy_ = {};
  bool synchronous_ = false;
  Seconds reconnect_{0};
  std::int64_t exchange_every_ = 1;          // steps
  std::int64_t unexchanged_ = 0;             // steps behind the last exchange
  bool sets_rate_ = false;                   // this rank tells the servers
  std::optional<float> learning_rate_ = {};  // that they were told
  std::int64_t period_ = 0;                  // steps after which this rank ends one of the table's lifecycle; 0: it does not
  bool counts_ = false;                      // the table has a lifecycle
  std::shared_ptr<Held> held_;
  std::shared_ptr<Held> next_;                            // of the step after that of held_, once its rows are asked for
  std::function<std::vector<nn::Batch>()> next_batches_;  // until they are
  // The last save that has ended well, and what it takes on the disk; the next one stands behind it.
  struct Saved {
    std::filesystem::path folder = {};
    std::uintmax_t base = 0, all = 0;  // bytes
  };
  std::shared_ptr<Saved> saved_ = std::make_shared<Saved>();
  std::weak_ptr<void> saving_;
  std::vector<std::string> places_;
  std::shared_future<Seconds> going_on_;
};

}  // namespace tessera::train
