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

// What a plan asks of the devices of one group of the cluster (an index into ClusterSpec::groups), quantity by quantity. `format`: of
// matrix products, where the plan's precision does not say it. The plan uses the group.
profile::Extent extent_of(const plan::Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster, int group,
                          std::optional<profile::Format> format = {});

// Something that a plan has and no measured step had.
struct Extrapolation {
  std::string quantity = {};                    // as in calibration files, a word of Extent::with, "together"; empty: all times of a device
  std::string what = {};                        // "ZeRO-1 over 8192 ranks"
  std::string part = {};                        // of the step (Prediction::parts) that depends on it most; empty: all of it
  bool given = false;                           // every plan of the job on this cluster has it
  double value = 0;                             // of a quantity with a range
  std::optional<profile::Range> measured = {};  // none: never
  std::string reason = {};                      // "measured up to 2048, 4 x", "never measured under this stack"

  double factor() const;  // value over the nearest end of the range; 0: there is none
};
std::string to_text(const Extrapolation& extrapolation);  // "ZeRO-1 over 8192 ranks (measured up to 2048, 4 x)"

// What of a plan lies outside of the steps that the calibrations of its devices were measured on (Calibration::measured): in the order of
// profile::quantities(), group by group. Devices that nothing was measured on are compared with all accelerators that there are
// measured steps of. Devices whose times come from a profile or a roofline have none.
std::vector<Extrapolation> extrapolated(const plan::Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster);

// Whether steps were measured on all devices of the plan that calibrations price; otherwise plans are compared with those of others.
bool has_measured_steps(const plan::Plan& plan, const cluster::ClusterSpec& cluster);

// Whether all that the plan itself chooses has been measured; what is given with the job and the cluster may lie outside. False where
// no calibration prices any of its devices.
bool within_measured(const plan::Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster);

}  // namespace tessera::cost
