// What blocks, exchanges and steps cost on any devices under any strategy, with two sources of times behind it: the calibrations of
// profile/ for accelerators in 16 or fewer bits; a profile's measurements, or a roofline where it has none, for CPU workers and for
// accelerators in 32 bits. What the searches, the price of their plans and the simulator count with.
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

// What the software that runs a plan does and the plan does not say.
struct Stack {
  // Of every device, in place of the calibration of its group's stack.
  std::optional<profile::Calibration> calibration;
  std::optional<profile::Format> format;  // of matrix products, in place of that of the plan's precision
  bool compiled = true;                   // elementwise work runs as fused kernels
  bool hides_tensor = true;               // false: tensor-parallel exchanges run beside nothing, whatever the calibration's stack can do
  bool row_scales = false;                // 8-bit operands have a scale for each row
  bool selective_is_half = false;         // selective recomputation repeats every other product and all that is elementwise (torchtitan)
  bool frozen = false;                    // weights are not trained; adapters of negligible size are
  double gradient_bytes = 2;              // of an element when gradients are exchanged
};

// What prices a group's devices: the calibration that its `stack` names, or that of the file, from `tessera calibrate`. Throws
// invalid_config naming the line of `stack` when nothing is called so, or the file is of another accelerator.
profile::Calibration calibration_of(const cluster::ResourceGroup& group);

// Seconds of passes by what they are spent on.
struct Spent {
  double products = 0, attention = 0, elementwise = 0, tensor_exchange = 0, context_exchange = 0, expert_exchange = 0, replica_exchange = 0,
         host = 0;

  double exchange() const { return tensor_exchange + context_exchange + expert_exchange + replica_exchange; }
  double total() const { return products + attention + elementwise + exchange() + host; }
  Spent& operator+=(const Spent& other);
};

// One block on one rank under one strategy. Seconds include the exchanges that computing does not hide; where a clock plays exchanges
// through (CostModel::plays_exchanges), those of a pass at their shortest.
struct BlockLoad {
  double forward = 0;         // of one micro-batch
  double backward_input = 0;  // with what recomputation repeats
  double backward_weight = 0;
  // Once a step: gradients and, sharded, parameters; what is waited for. Where a clock plays exchanges through, a rough figure that
  // searches compare stages by and that no price contains.
  double exchange = 0;
  double optimizer = 0;          // once a step
  double forward_exchange = 0;   // of the forward pass: exchanges that computing does not hide
  double backward_exchange = 0;  // of backward_input likewise
  double tied_exchange = 0;      // once a step, where a stage does not hold the block that owns a tied parameter
  double weights = 0;            // bytes; under ZeRO-3 a rank's share
  double gradients = 0;
  double optimizer_state = 0;
  double tied_bytes = 0;        // of all three, where a stage does not hold the owner
  double tied_gradients = 0;    // of these, where a clock plays exchanges through
  double saved = 0;             // bytes of one micro-batch from its forward to its backward pass
  double saved_for_weight = 0;  // from the input half of its backward pass to the weight half
  double workspace = 0;         // bytes while it runs
  // Seconds of one micro-batch, both passes: without what is computed again and exchanges of parameters, and these.
  Spent spent;
  double again = 0, parameter_exchange = 0;
  double again_exchange = 0;  // of `again`
  // For a clock that plays exchanges through: those of a pass, one after the other, and the bytes that the block passes on.
  std::vector<model::Exchange> forward_played;
  std::vector<model::Exchange> backward_played;  // with those that recomputation repeats
  double output = 0;

  double backward() const { return backward_input + backward_weight; }
  double state_bytes() const { return weights + gradients + optimizer_state; }
};

// What the ranks of a stage stand on, in their order: devices of one group, or of several with a share of each micro-batch each.
struct StageDevices {
  struct Part {
    int group = 0;  // index into ClusterSpec::groups
    int ranks = 0;
    std::int64_t samples = 0;  // of a micro-batch; 0: replicas of all parts have the same
    // Of CPU workers: threads of each, and how many share its host. 0: one worker with all cores. Accelerators have no say.
    int threads = 0;
    int neighbours = 0;
    double speed = 0;  // of its hosts; 0: of the group's first
    auto operator<=>(const Part&) const = default;
  };
  std::vector<Part> parts;
  // Of one group: so many on each node (or domain of the inside link), which stages share. 0: whole nodes, one stage after the other.
  int per_node = 0;
  int first_domain = 0;  // with per_node: the first domain where it stands
  // Of one group: consecutive ranks go to so many domains in turn, which they fill, so that replicas and not the parts of a block
  // share a domain. 0: domain after domain.
  int dealt_over = 0;
  auto operator<=>(const StageDevices&) const = default;
};

// What decides how large the buffers of a stage are.
struct StageBuffers {
  int width = 1;
  std::int64_t samples = 1;  // of a micro-batch
  std::int64_t micro_batches = 1;
  int receives = -1;  // repeat of its first block, where another stage comes before it
  int sends = -1;     // repeat of the next stage's first block
  // The rest counts where exchanges are played through.
  plan::Strategy strategy = {};
  double gradients = 0;  // bytes, of all its blocks
  double output = 0;     // bytes, the most of its blocks
  Bytes bucket_size = plan::Plan().bucket_size;
};

// In place of one part of a stage's devices.
inline constexpr int kAllParts = -1;

// Not thread-safe: remembers what it has priced. The model, the cluster and the profile must outlive it.
//
// `devices` below is what a stage stands on: the index of a group, or what devices_of or add have returned. Of several parts, the
// slowest counts for times, and the one that fills its memory most for bytes, which are scaled to the memory of the first part.
class CostModel {
 public:
  // As the job trains: its precision and optimizer, the profile's times. Devices without units for the precision are refused (not_found)
  // when they are asked for.
  CostModel(const model::ModelSpec& model, const model::TrainSpec& train, const cluster::ClusterSpec& cluster,
            const profile::Profile& profile, Stack stack = {});
  // With AdamW, and nothing measured.
  CostModel(const model::ModelSpec& model, const cluster::ClusterSpec& cluster, model::Precision precision, Stack stack = {});
  ~CostModel();
  CostModel(const CostModel&) = delete;
  CostModel& operator=(const CostModel&) = delete;

  // Whether calibrations say the times of a device: accelerators only, in 16 or fewer bits.
  static bool calibrated(const cluster::Device& device, model::Precision precision);

  // What stands for these devices in the functions below.
  int add(StageDevices devices);
  // Those of a stage of a plan.
  int devices_of(const plan::Plan& plan, const plan::Stage& stage);
  std::vector<int> devices_of(const plan::Plan& plan);  // by stage
  // One part where all ranks are alike; its samples are then 0: those of the micro-batch.
  const StageDevices& parts_of(int devices) const { return stands_[devices].devices; }

  // `repeat`: index into ModelSpec::repeats. `samples`: of a micro-batch over the whole stage; dp divides it, or what it is of each
  // part divides its samples. On the ranks of one part: bytes as they are.
  const BlockLoad& block(int repeat, int devices, const plan::Strategy& strategy, std::int64_t samples, int part = kAllParts);
  // The same on all parts, not remembered.
  BlockLoad priced(int repeat, int devices, const plan::Strategy& strategy, std::int64_t samples);
  // Seconds of one sample's passes through a whole block if one device of a group did its products and attention at the best rates of the
  // calibration: the ranks of a replica take no less of them together, however they cut the block.
  std::pair<double, double> least_passes(int repeat, int group) const;
  // Samples of a micro-batch on one rank of a part.
  std::int64_t micro_batch(int devices, int part, const plan::Strategy& strategy, std::int64_t samples) const;

  // Whether exchanges of these devices stand beside the times of blocks, for a clock to play through on the links that they share: nothing
  // says what computing hides of them. Otherwise passes and steps take what computing does not hide of their exchanges. Where exchanges
  // are played through, the closed form of plans (predict) knows no price.
  bool plays_exchanges(int devices) const;
  // Seconds of an exchange ("all_reduce", "reduce_scatter", "all_gather", "send") alone on its links.
  double exchange(const std::string& operation, std::int64_t bytes, int ranks, const cluster::Link& link,
                  profile::Pace pace = profile::Pace::alone) const;
  // Those of one of BlockLoad::forward_played or backward_played, of all its messages.
  double exchange(const model::Exchange& exchange, int ranks, const cluster::Link& link, profile::Pace pace) const;
  profile::Overlap overlap(const std::string& operation, int ranks, const cluster::Link& link) const;
  // What "pull" or "push" of rows of tables was measured to cost; null where it was not: then nothing is known of servers.
  const profile::RowsSample* rows(const std::string& operation) const;
  // Seconds of the step of so many parameters on a rank of a part, where exchanges are played through.
  double optimizer(int devices, int part, std::int64_t parameters) const;

  // Whether replicas, groups of experts and samples divide as the degrees say, and teams over the domains that ranks are dealt to.
  bool divides(int devices, const plan::Strategy& strategy, std::int64_t samples) const;
  // Of a micro-batch for a rank of a stage so wide; on all parts the most, scaled like bytes.
  double samples_per_rank(int devices, int width, std::int64_t samples, int part = kAllParts) const;
  // Cutting the inputs of a block anew when the block before it in the stage is cut otherwise: seconds of one micro-batch and pass.
  double reshard(int repeat, int devices, const plan::Strategy& before, const plan::Strategy& strategy, std::int64_t samples);
  // All tensors before a block, of `samples` samples, whole: what it reads, and what passes it to later blocks.
  double input_bytes(int repeat, std::int64_t samples) const;
  // Seconds of the messages of one micro-batch, in one direction, to a stage of another width or kind: every rank sends or
  // receives its share of `bytes` at once. Of these, what is waited for: all of them, or, where the stack runs messages beside other
  // micro-batches, what computing loses beside them or what is longer than the forward pass of one layer at the device's peak, which
  // every stage has to run beside them. Where a clock plays exchanges through, a rough figure: nothing says yet on
  // which nodes the two stages stand.
  double message(double bytes, int from, int width_from, int to, int width_to);
  // The same there and, of its gradients, back.
  double messages(double bytes, int from, int width_from, int to, int width_to) {
    return message(bytes, from, width_from, to, width_to) + message(bytes, to, width_to, from, width_from);
  }
  // Of a stage and micro-batch, and of a step.
  double micro_batch_host(int devices) const { return most_calibrated(devices, &profile::Calibration::micro_batch_host); }
  double step_host(int devices) const { return most_calibrated(devices, &profile::Calibration::step_host); }
  double weight_pass_bubble(int devices) const { return most_calibrated(devices, &profile::Calibration::weight_pass_bubble); }
  bool attention_is_fused(int devices) const;
  int domain(int devices) const;  // the most devices that an inside link joins, in the part where it joins fewest
  // Bytes of the buffers of messages, reductions and samples.
  double buffers(int devices, const StageBuffers& of, int part = kAllParts) const;
  // Bytes of a process before it holds a tensor; what a device of a part has for one, or a host for a worker.
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
  // Stages of this width stand side by side. Where it neither divides a domain nor is a multiple of one, some of them begin within a
  // domain and end in the next: all of them are priced as if only so many ranks stood together as do wherever a stage begins.
  int standing(int devices, int width);
  // What devices stand for: the parts, and where each is priced.
  struct Stand {
    StageDevices devices;
    std::vector<int> priced_as;  // by part: index into groups_, where calibrations say its times
  };
  // A block without what depends on how its state is sharded, where no calibration says its times.
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
  // The most over the parts of what calibrations say, 0 where they say nothing.
  double most_calibrated(int devices, double profile::Calibration::*value) const;
  BlockLoad priced_on(int repeat, int devices, std::size_t part, const plan::Strategy& strategy, std::int64_t samples);
  // The most over the parts.
  template <typename Value>
  auto most(int devices, const Value& value) const {
    auto out = value(std::size_t{0});
    for (std::size_t part = 1; part < stand(devices).devices.parts.size(); ++part) out = std::max(out, value(part));
    return out;
  }
  const Pass& pass(int repeat, int group, const plan::Strategy& strategy, std::int64_t micro_batch);
  const Timed& timed(int repeat, const plan::Worker& worker, const model::BlockShard& shard);
  // Of recomputation the model's first and last block are left alone.
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

// The step's price by the closed forms of the schedules (docs/rooms/plan.md): stages of any width and depth, blocks cut in any
// way. parts add up to the step. Needs a plan whose schedule is 1f1b, zb-h1 or zb-h2 (others: their closed forms with equal stages).
// Throws internal where exchanges are for a clock to play through.
plan::Prediction predict(const plan::Plan& plan, CostModel& cost_model);
// Its step alone.
Seconds step_of(const plan::Plan& plan, CostModel& cost_model);
// Peak bytes by rank, of any plan on any devices.
std::vector<Bytes> memory_of(const plan::Plan& plan, CostModel& cost_model);
// The terms of these of a rank by name; they add up to it. Zero ones are left out.
std::vector<std::pair<std::string, Bytes>> memory_terms(const plan::Plan& plan, int rank, CostModel& cost_model);

}  // namespace tessera::cost
