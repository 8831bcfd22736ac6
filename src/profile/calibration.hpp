// Calibrations: what a kind of accelerator reaches of its data sheet under a software stack, in a few physical figures. They come from
// src/profile/calibrations/*.yaml (compiled in), which say on what they were fitted; bench/truth fits them again.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "profile/extent.hpp"

namespace tessera::profile {

// How a stack computes attention. unfused: kernels of their own write and read the scores. fused: one kernel keeps them on the chip (Dao et
// al. 2022).
enum class AttentionKernel { unfused, fused };
const char* name_of(AttentionKernel kernel);

// Which exchanges software runs beside computing. It waits for the others where they stand.
struct Overlaps {
  // Tensor-parallel ones, in pieces beside those of the product next to them (Megatron-LM's tp_comm_overlap, PyTorch's async TP).
  bool products = false;
  bool weight_gradients = false;  // tensor-parallel ones, beside the gradients of their map (Korthikanti et al. 2022)
  bool shared_experts = false;    // all-to-alls, beside the experts that all tokens pass
  // All-to-alls of experts, beside the passes of a second micro-batch (Megatron-LM's overlap_moe_expert_parallel_comm, DualPipe).
  bool all_to_alls = false;
  bool state = false;     // of gradients and parameters, beside the passes of other blocks
  bool messages = false;  // between stages, beside the passes of other micro-batches
};

struct Calibration {
  std::string name;                    // "a100/megatron-2022"
  std::string accelerator;             // family of devices: "a100", "h100", "b200"
  std::string stack;                   // "megatron-2022"
  std::vector<std::string> fitted_on;  // "SOURCE: rows 1, 4, 7", in words
  // The extent of the steps that it was fitted and compared with; nullptr: unknown. Shared, because prices copy calibrations.
  std::shared_ptr<const Extent> measured;

  // What the stack is known to do; not fitted.
  AttentionKernel attention = AttentionKernel::fused;
  Overlaps overlaps;
  bool vector_fallback = true;  // extents that are no multiple of 16 bytes slow products down: kernel_time.hpp

  // Computing.
  double matmul = 0.7;  // share of the peak that a large, well-shaped product reaches, in 16 bits; so the next two in 8 and 4 bits
  double matmul_fp8 = 0.6;
  double matmul_fp4 = 0.45;
  double depth_half = 150;       // depth k at which a product reaches half of that share
  double grouped_half = 1000;    // width of experts whose products, which run as one grouped kernel, reach half of that share
  double attention_share = 0.5;  // share of the 16-bit peak that fused attention reaches with heads of 128 dimensions
  double memory = 0.8;           // share of the memory bandwidth that kernels reach
  double launch = 4e-6;          // seconds from the launch of a kernel to its work
  double cast = 1;               // traffic of scaling and casting operands to 8 or 4 bits, as a multiple of one read and one write
  double row_scales = 4;         // factor on `cast` with a scale for each row
  double unfused = 2.5;          // traffic of elementwise work without a compiler, as a multiple of that of fused kernels
  double optimizer_bytes = 40;   // bytes read and written for each parameter that a rank steps

  // Communicating.
  double inside = 0.75;   // share of the inside link's bandwidth that collectives reach
  double network = 0.75;  // the same of the network's
  double latency = 5e-6;  // seconds of each step of a collective
  // Seconds that each further rank adds to an all-gather or reduce-scatter. The mean of a ring's hops: with NCCL's Simple protocol 3.4 us
  // inside a node and 14 us between nodes, of which a ring over nodes of 8 has one in 8 (src/graph/tuning.cc there).
  double rank_latency = 4.7e-6;
  double overlap_slowdown = 0.25;  // computing takes longer by this share while an exchange runs beside it

  // Waiting.
  double weight_pass_bubble = 0.3;  // share of the warm-up's forward passes that stays idle under schedules with split backward passes
  // Seconds in which the devices wait for the host:
  double layer_host = 0;        // for each layer and micro-batch
  double router_host = 0;       // for each pass of a layer with experts
  double micro_batch_host = 0;  // for each stage and micro-batch
  double step_host = 0.02;      // for each step
};

// The numbers of a calibration that may be fitted, by the names that they have in the file.
double* parameter(Calibration& calibration, const std::string& name);  // into `calibration`; nullptr: no such parameter
const std::vector<std::string>& parameter_names();

// Throws invalid_config with file and line.
Calibration read_calibration(const ConfigNode& node);
std::string to_yaml(const Calibration& calibration);
// The accelerator family of a device: "a100-80" is of "a100", "gb200" of "b200". A device of no known family is its own.
std::string family_of(const std::string& device);

const std::vector<Calibration>& known_calibrations();
// The calibration of a device under a stack. An empty stack means the family's usual one; a stack that the family lacks, its first by
// name. A device of no known family has the defaults above.
Calibration calibration_for(const std::string& device, const std::string& stack = {});
// Around what any of them was measured on.
const Extent& measured_anywhere();
// The stacks that a device's family has been calibrated for.
std::vector<std::string> stacks_of(const std::string& device);

}  // namespace tessera::profile
