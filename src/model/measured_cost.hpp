// Internal: the cost of a block from what was measured of it.
#pragma once

#include "model/model.hpp"

namespace tessera::model {

// The cost of a block with BlockSpec::measured, which is whole on its rank: that of one sample times the number of samples. Its products
// count as one elementwise operator each way, because their shapes are unknown.
BlockCost measured_cost(const BlockSpec& block, const BlockShard& shard);

}  // namespace tessera::model
