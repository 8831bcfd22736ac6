// How far a plan lies from the steps that its prices were fitted to.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "profile/extent.hpp"
#include "profile/kernel_time.hpp"

namespace tessera::cost {

// The quantities that a plan asks of the devices of one group (an index into ClusterSpec::groups), which it uses. `format`: of matrix
// products, if not that of the plan's precision.
profile::Extent extent_of(const plan::Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster, int group,
                          std::optional<profile::Format> format = {});

// A property of a plan that lies outside of all measured steps.
struct Extrapolation {
  std::string quantity = {};  // as in calibration files, a word of Extent::with, or "together"; empty: every time of a device
  std::string what = {};      // "ZeRO-1 over 8192 ranks"
  std::string part = {};      // the part of the step (Prediction::parts) that depends on it most; empty: all of it
  bool given = false;         // every plan of the job on this cluster has it
  double value = 0;           // for a quantity with a range
  std::optional<profile::Range> measured = {};  // unset: never measured
  std::string reason = {};                      // "measured up to 2048, 4 x", "never measured under this stack"

  double factor() const;  // value over the nearest end of the range; 0: there is none
};
std::string to_text(const Extrapolation& extrapolation);  // "ZeRO-1 over 8192 ranks (measured up to 2048, 4 x)"

// The properties of a plan that lie outside of the steps that its devices' calibrations were measured on (Calibration::measured), group by
// group, in the order of profile::quantities(). Devices without any measured step are compared with all accelerators that have some.
// Devices whose times come from a profile or a roofline have no entries.
std::vector<Extrapolation> extrapolated(const plan::Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster);

// Whether every calibrated device of the plan has measured steps; if not, the plan is compared with steps of other devices.
bool has_measured_steps(const plan::Plan& plan, const cluster::ClusterSpec& cluster);

// Whether everything that the plan chooses was measured; what the job and the cluster prescribe (Extrapolation::given) may lie outside.
// False if no calibration prices any of its devices.
bool within_measured(const plan::Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster);

}  // namespace tessera::cost
