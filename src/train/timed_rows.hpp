// Internal: times what pulling and pushing rows of the job's tables takes of the processors.
#pragma once

#include <optional>
#include <thread>
#include <vector>

#include "model/job.hpp"
#include "profile/profile.hpp"
#include "ps/client.hpp"
#include "train/meter.hpp"

namespace tessera::train {

// Each worker has a server of its own on the loopback, which it asks for the rows of batches of the job's data, as large as those of a rank
// that has an equal part of the global batch. All workers call the same at once.
class TimedRows {
 public:
  // Reads the data; throws as data::open_dataset.
  TimedRows(const model::JobSpec& job, const Meter& meter, int workers);
  TimedRows(const TimedRows&) = delete;
  TimedRows& operator=(const TimedRows&) = delete;

  void round();
  bool settled() const;
  std::vector<profile::RowsSample> samples() const;

 private:
  // Sums over all batches.
  struct Spent {
    double whole = 0;               // by the clock
    double client = 0, server = 0;  // of the processors
    void add(const Spent& before, const Spent& now);
    // What a thread takes on this worker. Threads that are held to a share of a core take longer by the clock than of the processor.
    double seconds(double of_processor, double count) const;
  };
  struct Operation {
    Samples client = {}, server = {};
  };
  Spent now() const;
  void pass(Spent& pulling, Spent& pushing);

  const Meter& meter_;
  std::vector<std::vector<ps::Key>> batches_;
  double lookups_ = 0;                       // of all batches
  double different_ = 0;                     // keys within a batch, likewise
  std::size_t dimension_, value_bytes_ = 0;  // of a row, the latter on the network
  std::jthread server_;
  std::optional<ps::Client> client_;
  ps::Client::TableId table_ = 0;
  std::vector<float> values_, gradients_;
  int passes_ = 0;  // that make a sample
  Operation pull_, push_;
};

}  // namespace tessera::train
