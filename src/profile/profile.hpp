// How long things take: measured block, link and optimizer times where a profile has them, the analytic roofline elsewhere.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "base/units.hpp"
#include "cluster/cluster.hpp"
#include "model/model.hpp"

namespace tessera::profile {

// One measured block on one rank. Times are medians; *_low and *_high a confidence interval of the median (92 % or more).
struct BlockSample {
  std::string kind;  // BlockSpec::kind; dims are those of the profile's model
  std::int64_t micro_batch_size = 1;
  int tensor_parallel = 1;
  int threads = 1;     // of this worker
  int neighbours = 1;  // workers of the same host that were computing at the same time (this one included)
  model::Precision precision = model::Precision::f32;
  Seconds forward, forward_low, forward_high;
  Seconds backward, backward_low, backward_high;
};

// The median of repeated measurements; low and high bound a confidence interval of it (92 % or more).
struct MeasuredValue {
  double median = 0;
  double low = 0;
  double high = 0;
};

struct CommPoint {
  Bytes size;
  MeasuredValue seconds;
};

// Time of a collective of `bytes` among `ranks` ranks of one host or of several: fitted as latency + bytes / bandwidth.
struct CommSample {
  std::string operation;  // "all_reduce", "reduce_scatter", "all_gather", "send"
  std::string link;       // Link::name
  int ranks = 2;
  Seconds latency;
  BytesPerSecond bandwidth;          // of the buffer, not of the wire
  std::vector<CommPoint> points{};   // smallest first; with two or more the time is read between them instead
  std::vector<CommPoint> in_turn{};  // the same of each, where computing and it take turns
  MeasuredValue slows{};             // computing beside it takes this many times as long; 0: not measured
  MeasuredValue slowed{};            // it takes this many times as long beside computing; 0: not measured
};

struct OptimizerSample {
  std::string kind;  // "adamw", "sgd"
  int threads = 1;
  int neighbours = 1;
  model::Precision precision = model::Precision::f32;
  MeasuredValue seconds_per_parameter = {};
};

struct Profile {
  std::string model_fingerprint;  // empty: nothing was measured
  std::string host;               // what it was measured on
  std::vector<BlockSample> blocks;
  std::vector<CommSample> communication;
  std::vector<OptimizerSample> optimizers;
  Bytes process_baseline;         // resident size of a worker before it holds any tensor
  double overlap_slowdown = 1.0;  // computation beside communication takes this many times as long, where its sample does not say
};

struct BlockTime {
  Seconds forward;
  Seconds backward;  // without recomputation
  bool measured = false;
};

// Measured at this micro-batch, or interpolated linearly between measured ones; otherwise the roofline of the device:
// max(FLOPs / (peak x efficiency), bytes / bandwidth).
BlockTime block_time(const Profile& profile, const model::BlockSpec& block, const model::BlockShard& shard, const cluster::Device& device,
                     int threads, int neighbours);
// `in_turn`: as it takes where it alternates with computing: the ranks then do not come at the same moment, and who has waited
// may compute faster for a while.
enum class Pace { alone, in_turn };
// `medium`: what ranks share a shared link. A host's bus carries what all of them move. A host's network adapter carries what one
// does: a ring that goes from host to host enters and leaves each once, and rings side by side are for the caller to count.
enum class Medium { bus, adapter };
Seconds collective_time(const Profile& profile, const std::string& operation, Bytes bytes, int ranks, const cluster::Link& link,
                        Medium medium, Pace pace = Pace::alone);
// How many times longer computing takes beside this communication, and the other way round.
struct Overlap {
  double slows = 1;
  double slowed = 1;
};
Overlap overlap_of(const Profile& profile, const std::string& operation, int ranks, const cluster::Link& link);
Seconds optimizer_time(const Profile& profile, const std::string& kind, std::int64_t parameters, model::Precision precision,
                       const cluster::Device& device, int threads, int neighbours);

std::string to_json(const Profile& profile);
Profile read_profile(const ConfigNode& node);
Profile load_profile(const std::filesystem::path& path);

}  // namespace tessera::profile
