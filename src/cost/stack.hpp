// What the software that runs a plan does and the plan does not say.
#pragma once

#include <optional>

#include "cluster/cluster.hpp"
#include "profile/calibration.hpp"
#include "profile/kernel_time.hpp"

namespace tessera::cost {

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

}  // namespace tessera::cost
