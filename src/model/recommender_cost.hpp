// Internal: costs of the blocks of recommendation models, with what autograd keeps for them.
#pragma once

#include "model/model.hpp"

namespace tessera::model {

// Maps with ReLU between them and after the last (`last_relu` 1). Dimensions: maps (how many), width0 to widthN; data (1: the input is
// the sample's), loss (1: the last block of the model). VGG's classifier has `pixels` of the maps that are averaged to 7 x 7 before the
// first map, and `dropout` behind all maps but the last.
BlockCost mlp_cost(const BlockSpec& block, const BlockShard& shard);
// One row of each table: Dimensions: tables, dim (of a row), lookups (rows of each table that a sample sums).
BlockCost embedding_tables_cost(const BlockSpec& block, const BlockShard& shard);
// `features` vectors of `dim` each: all their dot products, beside the first vector (DLRM, Naumov et al. 2019), or with
// `machine` 1 the factorization machine's sum of squares beside all vectors (DeepFM, Guo et al. 2017). `dense`: values passed by.
BlockCost interaction_cost(const BlockSpec& block, const BlockShard& shard);

}  // namespace tessera::model
