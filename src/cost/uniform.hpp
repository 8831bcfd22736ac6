// The price of a fully described uniform plan, analytically: every stage cut alike, equal stages (or stages with a given number
// of layers), one schedule. Some ten microseconds an evaluation; the search uses it as well as the comparison with published
// measurements.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cluster/cluster.hpp"
#include "cost/block_time.hpp"
#include "cost/transformer.hpp"
#include "plan/plan.hpp"
#include "profile/calibration.hpp"
#include "profile/kernel_time.hpp"

namespace tessera::cost {

// What the backward pass computes again. half: every other matrix product and all that is elementwise (the selective policy of
// torchtitan).
enum class Again { nothing, attention, half, layer };

// Ranks stand in the order tp, cp, dp, pp, the first innermost. Experts are spread over ep of the dp x cp ranks.
struct UniformPlan {
  int tp = 1;
  int cp = 1;
  int dp = 1;
  int pp = 1;
  int ep = 1;
  model::ContextKind context = model::ContextKind::ring;
  int chunks = 1;  // stages of a rank, with the interleaved schedule
  plan::Schedule schedule = plan::Schedule::one_f_one_b;
  std::int64_t micro_batch = 1;   // samples
  std::int64_t global_batch = 1;  // samples
  profile::Format format = profile::Format::bf16;
  Again again = Again::nothing;
  bool sequence_parallel = false;
  int zero = 0;                   // 0..3, as in Strategy; but 2 gathers weights for each forward pass, as FSDP's SHARD_GRAD_OP does
  int shards = 0;                 // ranks over which ZeRO shards; 0: all dp x cp
  double gradient_bytes = 2;      // of an element when gradients are exchanged
  bool cut_messages = true;       // with tp, each rank sends its share of a message between stages
  bool frozen = false;            // weights are not trained, adapters of negligible size are
  bool compiled = true;           // elementwise kernels are fused
  bool hide_tensor = true;        // tensor-parallel exchanges run beside products where the stack can
  bool row_scales = false;        // 8-bit operands have a scale for each row
  std::vector<int> stage_layers;  // layers of each stage; empty: as even as they divide

  int ranks() const { return tp * cp * dp * pp; }
  double micro_batches() const { return static_cast<double>(global_batch) / static_cast<double>(micro_batch * dp); }
};

struct UniformPrice {
  double step = 0;   // seconds
  PassTime forward;  // of the slowest stage, all micro-batches
  PassTime backward;
  PassTime again;
  double bubble = 0;     // the slowest stage waits for others
  double messages = 0;   // between stages, not hidden
  double gradients = 0;  // exchanges of gradients and parameters, not hidden
  double optimizer = 0;
  double host = 0;  // of the step

  // The terms by name, in seconds; their sum is `step`.
  std::vector<std::pair<std::string, double>> terms() const;
};

// Of the fullest rank of a stage, in bytes.
struct UniformMemory {
  double weights = 0;  // of the layers: for computing, and the master copy
  double gradients = 0;
  double optimizer = 0;
  double embedding = 0;    // all of these for embedding and head
  double activations = 0;  // of the layers, for all micro-batches in flight
  double logits = 0;
  double buffers = 0;  // of exchanges and messages
  double total() const { return weights + gradients + optimizer + embedding + activations + logits + buffers; }
  std::vector<std::pair<std::string, double>> terms() const;
};

// Layers of each stage. Throws invalid_config when a stage would have none.
std::vector<int> stage_layers(const UniformPlan& plan, const Transformer& model);

// Throws invalid_config when the plan has more ranks than the group, not_found when the device lacks the format.
UniformPrice price(const UniformPlan& plan, const Transformer& model, const cluster::ResourceGroup& group,
                   const profile::Calibration& calibration);
UniformPrice price(const UniformPlan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster,
                   const profile::Calibration& calibration);

// Memory of stage `stage` (0-based). Activations are what autograd keeps (model::cost_of; equations 1 to 6 of Korthikanti et al. 2022)
// times the micro-batches in flight.
UniformMemory memory_of(const UniformPlan& plan, const Transformer& model, const profile::Calibration& calibration, int stage);

}  // namespace tessera::cost
