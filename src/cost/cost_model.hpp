// The cost model: seconds and bytes of blocks, exchanges and steps under any strategy on any devices. Its times have one of two sources:
// the calibrations of profile/ for accelerators in 16 or fewer bits; a profile's measurements, or a roofline where nothing was measured,
// for CPU workers and for accelerators in 32 bits. The search, the prices of plans and the simulator all use it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "plan/stage_places.hpp"
#include "profile/calibration.hpp"
#include "profile/exchange_time.hpp"
#include "profile/kernel_time.hpp"
#include "profile/profile.hpp"

namespace tessera::cost {

// Properties of the software that runs a plan, which the plan does not state.
struct Stack {
  // Prices every device instead of the calibration that its group names.
  std::optional<profile::Calibration> calibration;
  std::optional<profile::Format> format;  // of matrix products; unset: that of the plan's precision
  bool compiled = true;                   // elementwise work runs as fused kernels
  bool hides_tensor = true;               // false: nothing overlaps tensor-parallel exchanges, whatever the calibration says
  bool row_scales = false;                // 8-bit operands have a scale for each row
  bool selective_is_half = false;         // selective recomputation repeats every other product and all that is elementwise (torchtitan)
  bool frozen = false;                    // weights are not trained, only adapters of negligible size are
  double gradient_bytes = 2;              // of an element when gradients are exchanged
};

// The calibration that prices a group's devices: the one that its `stack` names, or the one in the file that it names (from `tessera
// calibrate`). Throws invalid_config, with the line of `stack`, when there is no such calibration or it is for another accelerator.
profile::Calibration calibration_of(const cluster::ResourceGroup& group);

// Seconds of passes by what they are spent on.
struct Spent {
  double products = 0, attention = 0, elementwise = 0, tensor_exchange = 0, context_exchange = 0, expert_exchange = 0, replica_exchange = 0,
         host = 0;

  double exchange() const { return tensor_exchange + context_exchange + expert_exchange + replica_exchange; }
  double total() const { return products + attention + elementwise + exchange() + host; }
  Spent& operator+=(const Spent& other);
};

// One block on one rank under one strategy. Seconds include exposed communication; where the simulator plays exchanges
// (CostModel::plays_exchanges), they include each pass's exchanges at their shortest.
struct BlockLoad {
  double forward = 0;         // of one micro-batch
  double backward_input = 0;  // with what recomputation repeats
  double backward_weight = 0;
  // Once a step: the exposed exchange of gradients and, under ZeRO, of parameters. Where the simulator plays exchanges, a rough figure that
  // searches compare stages by and that no price contains.
  double exchange = 0;
  double optimizer = 0;          // once a step
  double forward_exchange = 0;   // exposed communication in `forward`
  double backward_exchange = 0;  // exposed communication in `backward_input`
  double tied_exchange = 0;      // once a step, on a stage that holds a copy of a tied parameter and not its owner
  double weights = 0;            // bytes; under ZeRO-3 a rank's share
  double gradients = 0;
  double optimizer_state = 0;
  double tied_bytes = 0;        // weights, gradients and optimizer state of such a copy
  double tied_gradients = 0;    // its gradients; only where the simulator plays exchanges
  double saved = 0;             // bytes of one micro-batch from its forward to its backward pass
  double saved_for_weight = 0;  // from the input half of its backward pass to the weight half
  double workspace = 0;         // bytes while it runs
  // Seconds of one micro-batch's two passes. `spent` leaves out `again`, recomputation, and `parameter_exchange`.
  Spent spent;
  double again = 0, parameter_exchange = 0;
  double again_exchange = 0;  // exposed communication in `again`
  // Where the simulator plays exchanges: those of each pass in order, and the bytes that the block passes on.
  std::vector<model::Exchange> forward_played;
  std::vector<model::Exchange> backward_played;  // with those that recomputation repeats
  double output = 0;

  double backward() const { return backward_input + backward_weight; }
  double state_bytes() const { return weights + gradients + optimizer_state; }
};

// The devices of a stage's ranks, in rank order: of one group, or of several parts that each take a share of every micro-batch.
struct StageDevices {
  struct Part {
    int group = 0;  // index into ClusterSpec::groups
    int ranks = 0;
    std::int64_t samples = 0;  // of each micro-batch; 0: all replicas of the stage take equally many
    // CPU workers only: threads of each, and workers on its host. 0: one worker with all cores.
    int threads = 0;
    int neighbours = 0;
    double speed = 0;  // of its hosts (ResourceGroup::speeds); 0: that of the group's first host
    auto operator<=>(const Part&) const = default;
  };
  std::vector<Part> parts;
  // With one part: the stage has so many devices on each node (or inside domain) and shares nodes with other stages. 0: whole nodes.
  int per_node = 0;
  int first_domain = 0;  // with per_node: the stage's first domain
  // With one part: consecutive ranks are dealt to so many domains in turn, so that replicas, and not the tensor shards of a block, share a
  // domain. 0: ranks fill domain after domain.
  int dealt_over = 0;
  auto operator<=>(const StageDevices&) const = default;
};

// What the size of a stage's buffers depends on.
struct StageBuffers {
  int width = 1;
  std::int64_t samples = 1;  // of a micro-batch
  std::int64_t micro_batches = 1;
  int receives = -1;  // repeat of its first block; -1: no stage comes before it
  int sends = -1;     // repeat of the next stage's first block; -1: it is the last stage
  // The rest matters only where the simulator plays exchanges.
  plan::Strategy strategy = {};
  double gradients = 0;  // bytes, of all its blocks
  double output = 0;     // bytes, the largest of its blocks'
  Bytes bucket_size = plan::Plan().bucket_size;
};

// All parts of a stage's devices.
inline constexpr int kAllParts = -1;

// Not thread-safe: remembers what it has priced. The model, the cluster and the profile must outlive it.
//
// `devices` below identifies a stage's devices: the index of a group, or an id from devices_of or add. For mixed devices, times are the
// slowest part's; bytes are those of the part closest to its memory limit, scaled to the capacity of part 0.
class CostModel {
 public:
  // For a job: its precision and optimizer, with the profile's times. Asking for a device that cannot compute in the precision throws
  // not_found.
  CostModel(const model::ModelSpec& model, const model::TrainSpec& train, const cluster::ClusterSpec& cluster,
            const profile::Profile& profile, Stack stack = {});
  // With AdamW and without a profile.
  CostModel(const model::ModelSpec& model, const cluster::ClusterSpec& cluster, model::Precision precision, Stack stack = {});
  ~CostModel();
  CostModel(const CostModel&) = delete;
  CostModel& operator=(const CostModel&) = delete;

  // Whether a device's times come from calibrations: accelerators in 16 or fewer bits.
  static bool calibrated(const cluster::Device& device, model::Precision precision);

  // Registers a set of devices; returns the id that the functions below take.
  int add(StageDevices devices);
  // Registers the devices of a plan's stage.
  int devices_of(const plan::Plan& plan, const plan::Stage& stage);
  std::vector<int> devices_of(const plan::Plan& plan);  // by stage
  // One part when all ranks are alike; its `samples` are then 0.
  const StageDevices& parts_of(int devices) const { return stands_[devices].devices; }

  // `repeat`: index into ModelSpec::repeats. `samples`: of a micro-batch, over the whole stage. Each replica gets samples / dp; in a mixed
  // stage, each part's samples are divided evenly among that part's replicas. With one `part`, bytes are not scaled.
  const BlockLoad& block(int repeat, int devices, const plan::Strategy& strategy, std::int64_t samples, int part = kAllParts);
  // block() on all parts, without remembering the result.
  BlockLoad priced(int repeat, int devices, const plan::Strategy& strategy, std::int64_t samples);
  // A lower bound {forward, backward}: seconds in which one device of a group computes a block's products and attention for one sample at
  // the calibration's best rates. However a replica's ranks cut the block, their seconds add up to no less.
  std::pair<double, double> least_passes(int repeat, int group) const;
  // Samples of a micro-batch on one rank of a part.
  std::int64_t micro_batch(int devices, int part, const plan::Strategy& strategy, std::int64_t samples) const;

  // True: no source says how much of these devices' exchanges computing hides. The simulator then plays them on the links that they share,
  // so that what is exposed comes out of the simulation, and the closed form of plans (predict) has no price. False: the times of passes
  // and steps include exposed communication.
  bool plays_exchanges(int devices) const;
  // Seconds of an exchange ("all_reduce", "reduce_scatter", "all_gather", "send") alone on its links.
  double exchange(const std::string& operation, std::int64_t bytes, int ranks, const cluster::Link& link,
                  profile::Pace pace = profile::Pace::alone) const;
  // The same of an entry of BlockLoad::forward_played or backward_played, all its messages together.
  double exchange(const model::Exchange& exchange, int ranks, const cluster::Link& link, profile::Pace pace) const;
  profile::Overlap overlap(const std::string& operation, int ranks, const cluster::Link& link) const;
  // The measured cost of a "pull" or "push" of table rows; nullptr when the profile has none.
  const profile::RowsSample* rows(const std::string& operation) const;
  // Seconds of an optimizer step over so many parameters on a rank of a part; only where the simulator plays exchanges.
  double optimizer(int devices, int part, std::int64_t parameters) const;

  // Whether the strategy's degrees divide the devices, their domains, the experts and the samples.
  bool divides(int devices, const plan::Strategy& strategy, std::int64_t samples) const;
  // Samples of a micro-batch on one rank of a stage of `width` ranks; for all parts the most, scaled like bytes.
  double samples_per_rank(int devices, int width, std::int64_t samples, int part = kAllParts) const;
  // Seconds, per micro-batch and pass, of resharding a block's inputs when the block before it in the stage is cut differently.
  double reshard(int repeat, int devices, const plan::Strategy& before, const plan::Strategy& strategy, std::int64_t samples);
  // Bytes of all tensors between a block and the one before it, unsharded: the block's inputs, and what later blocks read of earlier ones.
  double input_bytes(int repeat, std::int64_t samples) const;
  // Exposed seconds of one micro-batch's messages in one direction, between stages of any widths and kinds; all ranks send or receive their
  // shares of `bytes` at once. Where the stack overlaps messages with other micro-batches, what is exposed is what computing loses beside
  // them or, if that is more, what remains after the forward pass of one layer at the device's peak, which every stage has to run
  // meanwhile. Elsewhere all of it is exposed. Where the simulator plays exchanges, this is a rough figure, because the nodes of the two
  // stages are not known yet.
  double message(double bytes, int from, int width_from, int to, int width_to);
  // message() of the activations plus that of their gradients.
  double messages(double bytes, int from, int width_from, int to, int width_to) {
    return message(bytes, from, width_from, to, width_to) + message(bytes, to, width_to, from, width_from);
  }
  // Seconds of the host: for each stage and micro-batch, and for each step.
  double micro_batch_host(int devices) const { return most_calibrated(devices, &profile::Calibration::micro_batch_host); }
  double step_host(int devices) const { return most_calibrated(devices, &profile::Calibration::step_host); }
  double weight_pass_bubble(int devices) const { return most_calibrated(devices, &profile::Calibration::weight_pass_bubble); }
  bool attention_is_fused(int devices) const;
  int domain(int devices) const;  // devices that an inside link joins; of the part where it joins the fewest
  // Bytes of the buffers of messages, reductions and samples.
  double buffers(int devices, const StageBuffers& of, int part = kAllParts) const;
  // Bytes of a process before it holds a tensor; bytes that a device has for one process (on a CPU, a host for one worker).
  double process_bytes(int devices, int part = kAllParts) const;
  double memory_limit(int devices, std::size_t part = 0) const;

  const model::ModelSpec& model() const { return model_; }
  const cluster::ClusterSpec& cluster() const { return cluster_; }
  // By block of the flattened model: index into ModelSpec::repeats.
  const std::vector<int>& repeat_of() const { return repeat_of_; }

 private:
  struct Group;
  struct Block;
  struct Pass;
  // For stages of `width` ranks side by side. If the width neither divides a domain nor is a multiple of one, some stages begin within a
  // domain and end in the next; all of them are priced as if only so many ranks stood together as do in the worst of them.
  int standing(int devices, int width);
  // What an id of devices means.
  struct Stand {
    StageDevices devices;
    std::vector<int> priced_as;  // by part: index into groups_, where calibrations say its times
  };
  // Of a block whose times no calibration says: what does not depend on how its state is sharded.
  struct Timed {
    model::BlockCost cost;
    double saved_whole = 0;      // without recomputation
    double forward = 0;          // seconds, without exchanges
    double backward = 0;         // without recomputation
    double backward_weight = 0;  // of it, the weight half
    double again = 0;            // of recomputation
  };

  const Stand& stand(int devices) const { return stands_[devices]; }
  const Group& group_of(int devices, std::size_t part) const;  // throws internal where calibrations say nothing
  const cluster::ResourceGroup& cluster_group(int devices, std::size_t part) const;
  void require(int group) const;  // that its devices have the precision
  plan::Worker worker(const StageDevices::Part& part) const;
  int devices_of(const plan::Plan& plan, const plan::Stage& stage, const std::vector<plan::Worker>& workers);
  // The maximum over the parts of a calibration's value; 0 where a part has no calibration.
  double most_calibrated(int devices, double profile::Calibration::*value) const;
  BlockLoad priced_on(int repeat, int devices, std::size_t part, const plan::Strategy& strategy, std::int64_t samples);
  // The maximum over the parts.
  template <typename Value>
  auto most(int devices, const Value& value) const {
    auto out = value(std::size_t{0});
    for (std::size_t part = 1; part < stand(devices).devices.parts.size(); ++part) out = std::max(out, value(part));
    return out;
  }
  const Pass& pass(int repeat, int group, const plan::Strategy& strategy, std::int64_t micro_batch);
  const Timed& timed(int repeat, const plan::Worker& worker, const model::BlockShard& shard);
  // The model's first and last block are never computed again.
  BlockLoad measured(int repeat, const plan::Worker& worker, const plan::Strategy& strategy, std::int64_t micro_batch);
  double optimizer(std::int64_t parameters, const plan::Worker& worker) const;
  double worker_bytes() const;  // of a CPU worker before it holds a tensor, and what it holds beyond tensors
  double collective(int devices, std::size_t part, profile::Collective operation, double bytes, profile::ProcessGroup team) const;
  double node_rate(int devices, std::size_t part, int width, bool between) const;
  double played_message(double bytes, int from, int width_from, int to, int width_to) const;
  double waited_message(int devices, std::size_t part, double seconds, double bytes, int width) const;
  double latency_of(int devices, std::size_t part, bool between) const;  // of messages between nodes, or between groups

  const model::ModelSpec& model_;
  const cluster::ClusterSpec& cluster_;
  model::Precision precision_;
  model::OptimizerSpec optimizer_;
  const profile::Profile& profile_;
  Stack stack_;
  std::vector<int> repeat_of_;
  std::vector<double> elements_before_;  // by repeat: of one sample, of all tensors before any of its blocks
  double layer_flops_ = 0;               // of the forward pass of the layer that the model has most of, for each byte that goes into it
  std::vector<std::unique_ptr<Group>> groups_;  // those of the cluster, then ones of which stages share the nodes or are dealt over them
  std::vector<Stand> stands_;                   // the first ones are the groups of the cluster
  std::map<StageDevices, int> known_;
  std::map<std::tuple<int, int, plan::Strategy, std::int64_t, int>, BlockLoad> blocks_;
  std::map<std::tuple<int, int, model::BlockShard>, std::unique_ptr<Pass>> passes_;  // by repeat and group
  std::map<std::tuple<int, plan::Worker, model::BlockShard>, Timed> timed_;
};

// The step by the closed forms of the schedules (docs/rooms/plan.md), for stages of any width and depth and blocks cut in any way. The
// plan's schedule must be 1f1b, zb-h1 or zb-h2; other schedules get their closed form for equal stages. Prediction::parts add up to the
// step. Throws internal where the simulator plays exchanges.
plan::Prediction predict(const plan::Plan& plan, CostModel& cost_model);
// Prediction::step of predict().
Seconds step_of(const plan::Plan& plan, CostModel& cost_model);
// Peak bytes by rank, of any plan on any devices.
std::vector<Bytes> memory_of(const plan::Plan& plan, CostModel& cost_model);
// A rank's peak bytes, term by term, by name; terms of zero are left out.
std::vector<std::pair<std::string, Bytes>> memory_terms(const plan::Plan& plan, int rank, CostModel& cost_model);

}  // namespace tessera::cost
