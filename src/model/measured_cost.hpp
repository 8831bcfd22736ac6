// Internal: the cost of a block from what was measured of it.
#pragma once

#include "model/model.hpp"

namespace tessera::model {

// Of a block with BlockSpec::measured, which stands whole on its rank: as many times as there are samples. Products are said as one
// elementwise operator each way, since nothing is known of their shapes.
BlockCost measured_cost(const BlockSpec& block, const BlockShard& shard);

}  // namespace tessera::model
