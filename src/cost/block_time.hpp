// Internal: one block on one rank for one micro-batch, operator by operator, on a calibrated device.
#pragma once

#include <array>

#include "cost/pass_clock.hpp"
#include "cost/stack.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "profile/exchange_time.hpp"
#include "profile/kernel_time.hpp"

namespace tessera::cost {

// Seconds of a pass by what they are spent on.
struct PassTime {
  double products = 0;
  double attention = 0;
  double elementwise = 0;
  double tensor_exchange = 0;
  double context_exchange = 0;
  double expert_exchange = 0;
  double replica_exchange = 0;
  double host = 0;
  std::array<double, kLinkStreams> busy = {};  // in which the block's own exchanges have a link; not part of the total

  double exchange() const { return tensor_exchange + context_exchange + expert_exchange + replica_exchange; }
  double total() const { return products + attention + elementwise + exchange() + host; }
  PassTime& operator+=(const PassTime& other);
  PassTime operator*(double factor) const;
  // Of which an exchange that nothing in the pass waits for finds its link free.
  double free(LinkStream link) const { return total() - busy[static_cast<std::size_t>(link)]; }
};

struct LayerTime {
  PassTime forward;
  PassTime backward;  // without what is computed again
  PassTime again;
  double weight_half = 0;  // of backward: what only makes gradients of weights
};

// What a rank has of a block, with `micro_batch` samples of its own.
model::BlockShard shard_of(const model::BlockSpec& block, const plan::Strategy& strategy, std::int64_t micro_batch,
                           model::Precision precision);

LayerTime block_time(const model::BlockShard& shard, const Stack& stack, const profile::Kernels& kernels,
                     const profile::Exchanges& exchanges, const model::BlockSpec& block);

}  // namespace tessera::cost
