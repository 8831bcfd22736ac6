// What separates the data sheet from a training step: a few physical figures for each kind of accelerator under each software
// stack. They come from src/profile/calibrations/*.yaml (compiled in), which also say on what they were fitted;
// bench/truth fits them again.
#pragma once

#include <string>
#include <vector>

#include "base/config.hpp"

namespace tessera::profile {

// How a stack computes attention: with the scores written to memory, or kernel by kernel fused (Dao et al. 2022).
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

  // What the stack is known to do.
  AttentionKernel attention = AttentionKernel::fused;
  Overlaps overlaps;
  bool vector_fallback = true;  // extents that are no multiple of 16 bytes slow products down: kernel_time.hpp

  // Computing.
  double matmul = 0.7;  // share of the peak that a large, well-shaped product reaches; in 16 bits
  double matmul_fp8 = 0.6;
  double matmul_fp4 = 0.45;
  double depth_half = 150;       // depth k at which a product reaches half of that
  double grouped = 0.6;          // further share when experts' products run as one grouped kernel
  double attention_share = 0.5;  // of the 16-bit peak, fused attention with head dimension 128
  double memory = 0.8;           // share of the memory's bandwidth
  double launch = 4e-6;          // seconds before a kernel works
  double cast = 1;               // traffic of scaling and casting for 8- and 4-bit products, over one read and write
  double row_scales = 4;         // further, with one scale per row
  double unfused = 2.5;          // traffic of elementwise work without a compiler, over fused kernels
  double optimizer_bytes = 40;   // read and written for each parameter that a rank steps

  // Communicating. Shares are of the link's rate.
  double inside = 0.75;
  double network = 0.75;
  double latency = 5e-6;  // seconds of each step of an exchange
  // Seconds that each further rank adds to an all-gather or reduce-scatter, around its ring: of NCCL's Simple protocol 3.4 us inside a node
  // and 14 us between nodes, of which a ring over nodes of 8 has one in 8 (src/graph/tuning.cc there).
  double rank_latency = 4.7e-6;
  double overlap_slowdown = 0.25;  // of computing while exchanges run beside it

  // Waiting.
  double weight_pass_bubble = 0.3;  // of the forward passes of the warm-up that split backward passes leave idle
  double layer_host = 0;            // seconds of the host for each layer and micro-batch
  double router_host = 0;           // seconds for each layer with experts and pass
  double micro_batch_host = 0;      // seconds for each stage and micro-batch
  double step_host = 0.02;          // seconds for each step
};

// The numbers of a calibration that may be fitted, by their name in the file.
double* parameter(Calibration& calibration, const std::string& name);  // nullptr: no such parameter
const std::vector<std::string>& parameter_names();

Calibration read_calibration(const ConfigNode& node);
std::string to_yaml(const Calibration& calibration);
// The accelerator family of a device: "a100-80" is of "a100", "gb200" of "b200". Of an unknown device its own name.
std::string family_of(const std::string& device);

const std::vector<Calibration>& known_calibrations();
// The calibration of a device under a stack; with an empty stack the family's usual one, with one that is not known there its first
// by name. A device of no known family has the defaults above.
Calibration calibration_for(const std::string& device, const std::string& stack = {});
// The stacks that a device's family has been calibrated for.
std::vector<std::string> stacks_of(const std::string& device);

}  // namespace tessera::profile
