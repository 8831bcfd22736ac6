#include <array>
#include <string_view>

#include "base/error.hpp"
#include "model/measured_cost.hpp"
#include "model/recommender_cost.hpp"
#include "model/transformer_cost.hpp"
#include "model/vision_cost.hpp"

namespace tessera::model {
namespace {

struct Formula {
  std::string_view kind;
  BlockCost (*cost)(const BlockSpec&, const BlockShard&);
};
constexpr std::array kFormulas = {
    Formula{"transformer_layer", transformer_layer_cost},
    Formula{"embedding", embedding_cost},
    Formula{"lm_head", lm_head_cost},
    Formula{"decoder_layer", transformer_layer_cost},
    Formula{"encoder_layer", encoder_layer_cost},
    Formula{"attention_sublayer", attention_sublayer_cost},
    Formula{"feed_forward_sublayer", feed_forward_sublayer_cost},
    Formula{"moe_layer", moe_layer_cost},
    Formula{"position_embedding", embedding_cost},
    Formula{"language_head", lm_head_cost},
    Formula{"final_norm", final_norm_cost},
    Formula{"projector", projector_cost},
    Formula{"patch_embedding", patch_embedding_cost},
    Formula{"classifier", classifier_cost},
    Formula{"conv_layer", conv_layer_cost},
    Formula{kResidualBlock, residual_block_cost},
    Formula{kResidualBranch, residual_block_cost},
    Formula{kResidualSum, residual_block_cost},
    Formula{"mlp", mlp_cost},
    Formula{"embedding_tables", embedding_tables_cost},
    Formula{"interaction", interaction_cost},
    Formula{"features", features_cost},
    Formula{"cross", cross_cost},
    Formula{"target_attention", target_attention_cost},
};

}  // namespace

bool exchanges_over_replicas(const BlockSpec& block) { return block.dims.contains("synchronized"); }

BlockCost cost_of(const BlockSpec& block, const BlockShard& shard) {
  if (block.measured) return measured_cost(block, shard);
  for (const Formula& formula : kFormulas)
    if (formula.kind == block.kind) return formula.cost(block, shard);
  std::string known;
  for (const Formula& formula : kFormulas) known.append(known.empty() ? "" : ", ").append(formula.kind);
  throw Error(ErrorCode::not_found, text("there is no cost formula for blocks of kind \"", block.kind, "\""),
              Where{"", 0, 0, -1, block.name}, "one of: " + known);
}

Flops training_flops_per_sample(const ModelSpec& model) {
  Flops total;
  for (const Repeat& repeat : model.repeats) {
    const BlockCost cost = cost_of(repeat.block, BlockShard{});
    total += static_cast<double>(repeat.count) * (cost.forward + cost.backward);
  }
  return total;
}

}  // namespace tessera::model
