// Lower bounds of a plan's step from data sheets alone: a net under the cost model.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cluster/cluster.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"

namespace tessera::cost {

// The least seconds of a step for each resource by name, the largest over its instances; accelerators only. Each resource works at
// the full rate of its data sheet all step long; no calibration and no model of overlap plays a part.
//   computing        products and attention of a rank's passes, with what full recomputation repeats, over its device's peak
//   memory           the weights and the optimizer's state that a rank steps, written once
//   network          bytes that enter or leave the devices that an inside link joins, over all their adapters: gradients reduced and
//                    weights gathered (once a step; with ZeRO-3 gathered once for each micro-batch), exchanges within blocks, messages
//   between groups   messages between stages on different groups, over the links of the nodes
//   inside           bytes that a device exchanges with the others of its domain, over its inside link
// Tokens are taken to be routed evenly over the experts. Left out, so that the bounds are lower than they could be: rows of sparse
// tables, weights shared by two stages, exchanges among devices of several groups, racks and PCIe switches. Linear in stages x runs x
// ranks.
std::vector<std::pair<std::string, Seconds>> least_times(const plan::Plan& plan, const model::ModelSpec& model,
                                                         const cluster::ClusterSpec& cluster);

}  // namespace tessera::cost
