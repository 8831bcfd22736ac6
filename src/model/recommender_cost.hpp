// Internal: costs of the blocks of recommendation models, with what autograd keeps for them.
#pragma once

#include "model/model.hpp"

namespace tessera::model {

// Maps with ReLU between them and after the last (`last_relu` 1). Dimensions: maps (how many), width0 to widthN; data (1: the input is
// the sample's), loss (1: the last block of the model). VGG's classifier has `pixels` of the maps that are averaged to 7 x 7 before the
// first map, and `dropout` behind all maps but the last.
BlockCost mlp_cost(const BlockSpec& block, const BlockShard& shard);
// `joined` 1: the first map reads all inputs, one beside the other.
//
// One row of each table: Dimensions: tables, dim (of a row), lookups (rows of each table that a sample sums); history (further rows of a
// sample, which are not summed), of models with one.
BlockCost embedding_tables_cost(const BlockSpec& block, const BlockShard& shard);
// `features` vectors of `dim` each: all their dot products, beside the first vector (DLRM, Naumov et al. 2019), or with
// `machine` 1 the factorization machine's sum of squares beside all vectors (DeepFM, Guo et al. 2017), or with `wide` 1
// only its weights (Wide & Deep, Cheng et al. 2016). `dense`: values passed by.
BlockCost interaction_cost(const BlockSpec& block, const BlockShard& shard);
// All rows and `dense` values of a sample, one beside the other: `width`.
BlockCost features_cost(const BlockSpec& block, const BlockShard& shard);
// A layer of DCN-v2 (Wang et al. 2021), `width` wide, with a map of this `rank`, or with 0 a whole one.
BlockCost cross_cost(const BlockSpec& block, const BlockShard& shard);
// The weighted sum of a history's rows behind the rows of all tables (DIN, Zhou et al. 2018): tables, dim, history, dense, and the maps
// that make the weights, as in mlp_cost.
BlockCost target_attention_cost(const BlockSpec& block, const BlockShard& shard);

}  // namespace tessera::model
