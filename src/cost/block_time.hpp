// Internal: the time of one block on one rank for one micro-batch, operator by operator, on a calibrated device; and the bytes and
// optimizer step of an accelerator's parameters.
#pragma once

#include <array>
#include <string_view>

#include "cost/cost_model.hpp"
#include "cost/pass_clock.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "profile/exchange_time.hpp"
#include "profile/kernel_time.hpp"

namespace tessera::cost {

struct PassTime {
  Spent spent;
  std::array<double, kLinkStreams> busy = {};  // in which the block's own exchanges have a link; not part of the total

  double exchange() const { return spent.exchange(); }
  double total() const { return spent.total(); }
  PassTime& operator+=(const PassTime& other);
  PassTime operator*(double factor) const;
  // Seconds in which the link is free for an exchange that nothing in the pass waits for.
  double free(LinkStream link) const { return total() - busy[static_cast<std::size_t>(link)]; }
};

struct LayerTime {
  PassTime forward;
  PassTime backward;  // without recomputation
  PassTime again;
  double weight_half = 0;  // the part of `backward` that only computes gradients of weights
};

// The ranks that take part in an exchange of a block's pass.
profile::ProcessGroup team_of(model::Exchange::Axis axis, const model::BlockShard& shard);
// The link that a group's exchanges use.
LinkStream link_of(const profile::Exchanges& exchanges, profile::ProcessGroup team);
profile::Collective collective_of(std::string_view operation);

// A rank's shard of a block, with `micro_batch` samples of its own.
model::BlockShard shard_of(const model::BlockSpec& block, const plan::Strategy& strategy, std::int64_t micro_batch,
                           model::Precision precision);

LayerTime block_time(const model::BlockShard& shard, const Stack& stack, const profile::Kernels& kernels,
                     const profile::Exchanges& exchanges, const model::BlockSpec& block);

// Bytes of a parameter on accelerators: a weight, computed with and sent in 16 bits; a gradient in 32; a master weight and two moments in
// 32 each.
constexpr double kWeight = 2;
constexpr double kGradient = 4;
constexpr double kState = 12;

// Seconds of an optimizer step over `parameters` on the host's CPU (Strategy::offload_optimizer). The link to the host (PCIe 4 x16) carries
// gradients out and weights back, `gradient` and `weight` bytes a parameter. The step reads and writes 28 bytes a parameter in a core
// group's share of the host's memory bandwidth: the gradient, and the master weight and two moments both ways.
inline double host_step(double parameters, double gradient, double weight) {
  constexpr double kLink = 20e9;
  constexpr double kMemory = 25e9;
  constexpr double kTraffic = 28;
  return parameters * ((gradient + weight) / kLink + kTraffic / kMemory);
}

}  // namespace tessera::cost
