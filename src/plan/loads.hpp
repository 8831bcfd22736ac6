// What blocks, exchanges and messages cost on accelerators under any strategy, from the calibrations of profile/: what the
// search over blocks, the price of its plans and the simulator count with.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cluster/cluster.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace tessera::plan {

// One block on one rank under one strategy. Seconds include the exchanges that computing does not hide.
struct BlockLoad {
  double forward = 0;          // of one micro-batch
  double backward_input = 0;   // with what recomputation repeats
  double backward_weight = 0;
  double exchange = 0;         // once a step: gradients and, sharded, parameters; what is waited for
  double optimizer = 0;        // once a step
  double tied_exchange = 0;    // once a step, where a stage does not hold the block that owns a tied parameter
  double weights = 0;          // bytes; under ZeRO-3 a rank's share
  double gradients = 0;
  double optimizer_state = 0;
  double tied_bytes = 0;       // of all three, where a stage does not hold the owner
  double saved = 0;            // bytes of one micro-batch from its forward to its backward pass
  double workspace = 0;        // bytes while it runs
  // By what they are spent on, seconds of one micro-batch, both passes.
  double products = 0, attention = 0, elementwise = 0, again = 0, tensor_exchange = 0, context_exchange = 0, expert_exchange = 0,
         parameter_exchange = 0, host = 0;

  double backward() const { return backward_input + backward_weight; }
  double state_bytes() const { return weights + gradients + optimizer_state; }
};

// Not thread-safe: remembers what it has priced. The model and the cluster must outlive it.
class Loads {
 public:
  // Throws not_found when a device has no units for the precision (ask supports first).
  Loads(const model::ModelSpec& model, const cluster::ClusterSpec& cluster, model::Precision precision);
  ~Loads();
  Loads(const Loads&) = delete;
  Loads& operator=(const Loads&) = delete;

  // Whether it can price on this cluster: accelerators only, in 16 or fewer bits.
  static bool supports(const cluster::ClusterSpec& cluster, model::Precision precision);

  // `repeat`: index into ModelSpec::repeats. `samples`: of a micro-batch over the whole stage; dp divides it.
  const BlockLoad& block(int repeat, int group, const Strategy& strategy, std::int64_t samples);
  // The same, not remembered.
  BlockLoad priced(int repeat, int group, const Strategy& strategy, std::int64_t samples);
  // Cutting the inputs of a block anew when the block before it in the stage is cut otherwise: seconds of one micro-batch and pass.
  double resplit(int repeat, int group, const Strategy& before, const Strategy& strategy, std::int64_t samples);
  // What a block takes in, for `samples` samples, whole.
  double input_bytes(int repeat, std::int64_t samples) const;
  // Seconds of the messages of one micro-batch, in one direction, to a stage of another width or kind: every rank sends or
  // receives its even share of `bytes` at once.
  double message(double bytes, int group_from, int width_from, int group_to, int width_to);
  // The same there and, of its gradients, back.
  double messages(double bytes, int group_from, int width_from, int group_to, int width_to) {
    return message(bytes, group_from, width_from, group_to, width_to) + message(bytes, group_to, width_to, group_from, width_from);
  }
  // Of a stage and micro-batch, and of a step.
  double micro_batch_host(int group) const;
  double step_host(int group) const;
  double weight_pass_bubble(int group) const;
  bool attention_is_fused(int group) const;
  // Bytes of a process before it holds a tensor; what a device has for one.
  double process_bytes(int group) const;
  double memory_limit(int group) const;

  const model::ModelSpec& model() const { return model_; }
  const cluster::ClusterSpec& cluster() const { return cluster_; }
  // By block of the flattened model: index into ModelSpec::repeats.
  const std::vector<int>& repeat_of() const { return repeat_of_; }

 private:
  struct Group;
  struct Pass;
  using Key = std::tuple<int, int, int, int, int, int, int, int, int, std::int64_t>;

  using PassKey = std::tuple<int, int, int, int, int, int, int, std::int64_t>;

  const Pass& pass(int repeat, int group, const Strategy& strategy, std::int64_t micro_batch);

  const model::ModelSpec& model_;
  const cluster::ClusterSpec& cluster_;
  model::Precision precision_;
  std::vector<int> repeat_of_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::map<Key, BlockLoad> blocks_;
  std::map<PassKey, std::unique_ptr<Pass>> passes_;
};

// Two receive buffers in each direction at a stage's ends, in bytes of a rank.
double boundary_buffers(const Loads& loads, const Plan& plan, int stage);
// The step's price by the closed forms of the schedules (docs/rooms/plan.md): stages of any width and depth, blocks cut in any
// way. parts add up to the step. Needs a plan whose schedule is 1f1b, zb-h1 or zb-h2 (others: their closed forms with equal stages).
Prediction predict(const Plan& plan, Loads& loads);
// The terms of predicted.memory of a stage's ranks, in bytes; they add up to it.
std::vector<std::pair<std::string, double>> memory_terms(const Plan& plan, int stage, Loads& loads);

}  // namespace tessera::plan
