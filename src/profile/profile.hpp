// How long blocks, communication and optimizer steps take: as a profile measured them, and by the roofline where it has nothing.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "base/units.hpp"
#include "cluster/cluster.hpp"
#include "model/model.hpp"

namespace tessera::profile {

// One measured block on one rank. Times are medians; *_low and *_high bound a confidence interval of the median (92 % or more).
struct BlockSample {
  std::string kind;  // BlockSpec::profile_key(); its dims are those of the model that Profile::model_fingerprint names
  std::int64_t micro_batch_size = 1;
  int tensor_parallel = 1;
  int threads = 1;     // of this worker
  int neighbours = 1;  // workers of its host that computed at the same time, this one included
  model::Precision precision = model::Precision::f32;
  Seconds forward, forward_low, forward_high;
  Seconds backward, backward_low, backward_high;
  double weight_share = 0.5;   // of the backward pass: its weight half (Block::backward_weight), 0..1; half of it where nobody has timed it
  std::int64_t positions = 0;  // of each sample, the first ones; 0: all
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

// A measured collective or message among `ranks` ranks, of one host or of several. Its time is read between `points`; with fewer than two
// of them it is latency + bytes / bandwidth.
struct CommSample {
  std::string operation;  // "all_reduce", "reduce_scatter", "all_gather", "send"
  std::string link;       // Link::name
  int ranks = 2;
  Seconds latency;
  BytesPerSecond bandwidth;          // of the buffer, not of the wire
  std::vector<CommPoint> points{};   // smallest size first
  std::vector<CommPoint> in_turn{};  // the same under Pace::in_turn
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

// Rows of the model's tables, pulled from or pushed to a parameter server: what each look-up of a sample costs, on batches of the job's own
// data. Keys that repeat in a batch cross once.
struct RowsSample {
  std::string operation;  // "pull", "push"
  MeasuredValue client;   // seconds of a thread of the rank's
  MeasuredValue server;   // seconds of a server's thread
  double bytes = 0;       // that cross
};

struct Profile {
  std::string model_fingerprint;  // empty: nothing was measured
  std::string host;               // what it was measured on
  std::vector<BlockSample> blocks;
  std::vector<CommSample> communication;
  std::vector<OptimizerSample> optimizers;
  std::vector<RowsSample> rows;  // of a model with tables
  // By host, where several were measured and differ: how fast each computes beside the slowest, whose times the samples are.
  std::vector<double> speeds;
  Bytes process_baseline;         // resident size of a worker before it holds any tensor
  double overlap_slowdown = 1.0;  // computing beside communication takes this many times as long, where CommSample::slows does not say
};

struct BlockTime {
  Seconds forward;
  Seconds backward;           // without recomputation
  double weight_share = 0.5;  // of it, its weight half
  bool measured = false;      // on a worker with the same threads, neighbours and tensor-parallel degree
};

// The time of a block on one rank, from the samples of its kind and precision:
//   - on a worker with the same threads, neighbours and tensor-parallel degree: at this micro-batch size, or linearly between sizes;
//     beyond the largest, what the intervals of the last two say for sure is the same for all sizes, and the rest grows with the size;
//   - only on other workers: the nearest of these, times the ratio of the two by the roofline;
//   - none, or on an accelerator: the roofline (Williams, Waterman, Patterson 2009), max(FLOPs / rate, bytes / bandwidth).
// `threads`, `neighbours`: of a CPU worker, as in BlockSample.
BlockTime block_time(const Profile& profile, const model::BlockSpec& block, const model::BlockShard& shard, const cluster::Device& device,
                     int threads, int neighbours);
// How communication was measured. alone: nothing else ran. in_turn: alternating with computation, so that the time includes the skew of
// arrivals and the burst of computing after the wait.
enum class Pace { alone, in_turn };
// What the ranks of a collective share when its link is shared. bus: the memory of one host, which carries the bytes of all ranks. adapter:
// the network adapter of each host, which carries the bytes of one rank, because a ring enters and leaves each host once. The caller
// counts rings that run side by side.
enum class Medium { bus, adapter };
// Seconds of a collective or message ("all_reduce", "reduce_scatter", "all_gather", "send") over a buffer of `bytes` among `ranks` ranks:
// as measured on a link of this name, scaled by the estimate where it was measured among another number of ranks; where it was not
// measured, the estimate. The estimate is that of the ring algorithm (Patarasuk, Yuan 2009) on the link's bandwidth and latency; of an
// all-reduce, the shorter of a ring and a binary tree.
Seconds collective_time(const Profile& profile, const std::string& operation, Bytes bytes, int ranks, const cluster::Link& link,
                        Medium medium, Pace pace = Pace::alone);
// What computing and communication cost each other when they overlap.
struct Overlap {
  double slows = 1;   // computing takes this many times as long
  double slowed = 1;  // communication takes this many times as long
};
Overlap overlap_of(const Profile& profile, const std::string& operation, int ranks, const cluster::Link& link);
// What share of the seconds of a block's passes over samples of `positions` grows with the square of their length, 0..1, where it was also
// timed with fewer positions; the rest grows with the length. The mean over all shapes that were timed so. Nothing: none were.
std::optional<double> share_of_pairs(const Profile& profile, const model::BlockSpec& block, model::Precision precision,
                                     std::int64_t positions);
// Seconds of the step of so many parameters; measured or by the roofline, as block_time.
Seconds optimizer_time(const Profile& profile, const std::string& kind, std::int64_t parameters, model::Precision precision,
                       const cluster::Device& device, int threads, int neighbours);

// The cluster with the speeds that were measured of its hosts; as it is where the profile is of other hosts or says nothing of them.
cluster::ClusterSpec at_measured_speeds(const cluster::ClusterSpec& cluster, const Profile& profile);

// A profile as a file (docs/file-formats.md). Reading throws invalid_config with file and line; loading throws io too.
std::string to_json(const Profile& profile);
Profile read_profile(const ConfigNode& node);
Profile load_profile(const std::filesystem::path& path);

}  // namespace tessera::profile
