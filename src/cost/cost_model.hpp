// What blocks, exchanges and messages cost on accelerators under any strategy, from the calibrations of profile/: what the
// search over blocks, the price of its plans and the simulator count with.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "cluster/cluster.hpp"
#include "cost/stack.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "profile/exchange_time.hpp"

namespace tessera::cost {

// One block on one rank under one strategy. Seconds include the exchanges that computing does not hide.
struct BlockLoad {
  double forward = 0;         // of one micro-batch
  double backward_input = 0;  // with what recomputation repeats
  double backward_weight = 0;
  double exchange = 0;           // once a step: gradients and, sharded, parameters; what is waited for
  double optimizer = 0;          // once a step
  double forward_exchange = 0;   // of the forward pass: exchanges that computing does not hide
  double backward_exchange = 0;  // of backward_input likewise
  double tied_exchange = 0;      // once a step, where a stage does not hold the block that owns a tied parameter
  double weights = 0;            // bytes; under ZeRO-3 a rank's share
  double gradients = 0;
  double optimizer_state = 0;
  double tied_bytes = 0;  // of all three, where a stage does not hold the owner
  double saved = 0;       // bytes of one micro-batch from its forward to its backward pass
  double workspace = 0;   // bytes while it runs
  // By what they are spent on, seconds of one micro-batch, both passes.
  double products = 0, attention = 0, elementwise = 0, again = 0, tensor_exchange = 0, context_exchange = 0, expert_exchange = 0,
         parameter_exchange = 0, host = 0;

  double backward() const { return backward_input + backward_weight; }
  double state_bytes() const { return weights + gradients + optimizer_state; }
};

// What the ranks of a stage stand on, in their order: devices of one group, or of several with a share of each micro-batch each.
struct StageDevices {
  struct Part {
    int group = 0;  // index into ClusterSpec::groups
    int ranks = 0;
    std::int64_t samples = 0;  // of a micro-batch
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

// Not thread-safe: remembers what it has priced. The model and the cluster must outlive it.
//
// `devices` below is what a stage stands on: the index of a group, or what devices_of or add have returned. Of several parts, the
// slowest counts for times, and the one that fills its memory most for bytes, which are scaled to the memory of the first part.
class CostModel {
 public:
  // Throws not_found when a device has no units for the precision (ask supports first).
  CostModel(const model::ModelSpec& model, const cluster::ClusterSpec& cluster, model::Precision precision, Stack stack = {});
  ~CostModel();
  CostModel(const CostModel&) = delete;
  CostModel& operator=(const CostModel&) = delete;

  // Whether it can price on this cluster: accelerators only, in 16 or fewer bits.
  static bool supports(const cluster::ClusterSpec& cluster, model::Precision precision);

  // What stands for these devices in the functions below.
  int add(const StageDevices& devices);
  // Those of a stage of a plan.
  int devices_of(const plan::Plan& plan, const plan::Stage& stage);
  // One part where all ranks are alike; its samples are then 0: those of the micro-batch.
  const StageDevices& parts_of(int devices) const { return stands_[static_cast<std::size_t>(devices)].devices; }

  // `repeat`: index into ModelSpec::repeats. `samples`: of a micro-batch over the whole stage; dp divides it, or what it is of each
  // part divides its samples.
  const BlockLoad& block(int repeat, int devices, const plan::Strategy& strategy, std::int64_t samples);
  // The same, not remembered.
  BlockLoad priced(int repeat, int devices, const plan::Strategy& strategy, std::int64_t samples);
  // On the ranks of one part, bytes as they are.
  BlockLoad priced_on(int repeat, int devices, std::size_t part, const plan::Strategy& strategy, std::int64_t samples);
  // Whether replicas, groups of experts and samples divide as the degrees say, and teams over the domains that ranks are dealt to.
  bool divides(int devices, const plan::Strategy& strategy, std::int64_t samples) const;
  // The most of a micro-batch for a rank of a stage so wide, scaled like bytes.
  double samples_per_rank(int devices, int width, std::int64_t samples) const;
  // Cutting the inputs of a block anew when the block before it in the stage is cut otherwise: seconds of one micro-batch and pass.
  double reshard(int repeat, int devices, const plan::Strategy& before, const plan::Strategy& strategy, std::int64_t samples);
  // What a block takes in, for `samples` samples, whole.
  double input_bytes(int repeat, std::int64_t samples) const;
  // Seconds of the messages of one micro-batch, in one direction, to a stage of another width or kind: every rank sends or
  // receives its share of `bytes` at once. Of these, what computing does not hide: the calibration's share of them, and all that the
  // forward pass of one layer at the device's peak is too short to hide, which every stage has to run beside them.
  double message(double bytes, int from, int width_from, int to, int width_to);
  // The same there and, of its gradients, back.
  double messages(double bytes, int from, int width_from, int to, int width_to) {
    return message(bytes, from, width_from, to, width_to) + message(bytes, to, width_to, from, width_from);
  }
  // Of a stage and micro-batch, and of a step.
  double micro_batch_host(int devices) const;
  double step_host(int devices) const;
  double weight_pass_bubble(int devices) const;
  bool attention_is_fused(int devices) const;
  int domain(int devices) const;  // the most devices that an inside link joins, in the part where it joins fewest
  // Bytes of a process before it holds a tensor; what a device (of the first part) has for one.
  double process_bytes(int devices) const;
  double memory_limit(int devices) const;

  const model::ModelSpec& model() const { return model_; }
  const cluster::ClusterSpec& cluster() const { return cluster_; }
  // By block of the flattened model: index into ModelSpec::repeats.
  const std::vector<int>& repeat_of() const { return repeat_of_; }

 private:
  struct Group;
  struct Block;
  struct Pass;
  // What devices stand for: the parts, and where each is priced.
  struct Stand {
    StageDevices devices;
    std::vector<int> priced_as;  // by part: index into groups_
  };
  using Key = std::tuple<int, int, int, int, int, int, int, int, int, std::int64_t>;

  struct PassKey {
    int repeat, group, tp, cp, ep, recompute, flags;
    std::int64_t micro_batch;
    bool operator==(const PassKey&) const = default;
  };
  struct PassHash {
    std::size_t operator()(const PassKey& key) const;
  };

  const Stand& stand(int devices) const { return stands_[static_cast<std::size_t>(devices)]; }
  const Group& group_of(int devices, std::size_t part) const { return *groups_[static_cast<std::size_t>(stand(devices).priced_as[part])]; }
  void require(int group) const;  // that its devices have the precision
  // The most over the parts.
  template <typename Value>
  auto most(int devices, const Value& value) const;
  double limit_of(int devices, std::size_t part) const;
  const Pass& pass(int repeat, int group, const plan::Strategy& strategy, std::int64_t micro_batch);
  double collective(int devices, std::size_t part, profile::Collective operation, double bytes, profile::Team team) const;
  double node_rate(int devices, std::size_t part, int width, bool between) const;
  double waited_message(int devices, std::size_t part, double seconds, double bytes, int width) const;
  double latency_of(int devices, std::size_t part, bool between) const;  // of messages between nodes, or between groups

  const model::ModelSpec& model_;
  const cluster::ClusterSpec& cluster_;
  model::Precision precision_;
  Stack stack_;
  std::vector<int> repeat_of_;
  double layer_flops_ = 0;  // of the forward pass of the layer that the model has most of, for each byte that goes into it
  std::vector<std::unique_ptr<Group>> groups_;  // those of the cluster, then ones of which stages share the nodes or are dealt over them
  std::vector<Stand> stands_;                   // the first ones are the groups of the cluster
  std::map<StageDevices, int> known_;
  std::map<Key, BlockLoad> blocks_;
  std::unordered_map<PassKey, std::unique_ptr<Pass>, PassHash> passes_;
};

// Two receive buffers in each direction at a stage's ends: bytes for each sample that a rank has of a micro-batch.
double boundary_buffers(const CostModel& cost_model, const plan::Plan& plan, int stage);
// The step's price by the closed forms of the schedules (docs/rooms/plan.md): stages of any width and depth, blocks cut in any
// way. parts add up to the step. Needs a plan whose schedule is 1f1b, zb-h1 or zb-h2 (others: their closed forms with equal stages).
plan::Prediction predict(const plan::Plan& plan, CostModel& cost_model);
// Its step alone.
Seconds step_of(const plan::Plan& plan, CostModel& cost_model);
// The terms of predicted.memory of a rank, in bytes; they add up to it.
std::vector<std::pair<std::string, double>> memory_terms(const plan::Plan& plan, int rank, CostModel& cost_model);
// What a stage's ranks hold, as blocks are priced: bytes against memory_limit of its devices.
double bytes_held(const plan::Plan& plan, int stage, CostModel& cost_model);

}  // namespace tessera::cost
