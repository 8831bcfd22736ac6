#include <map>

#include "model/forms.hpp"
#include "model/vision_cost.hpp"
#include "nn/autograd_block.hpp"
#include "nn/classifier.hpp"
#include "nn/convolution.hpp"
#include "nn/parameter_row.hpp"
#include "nn/recommender.hpp"
#include "nn/t5.hpp"
#include "nn/transformer_layer.hpp"
#include "nn/vision_transformer.hpp"

namespace tessera::nn {
namespace {

// Of blocks that stand whole on each rank.
BlockFactory whole(BlockFactory factory) {
  return [factory = std::move(factory)](const model::BlockSpec& spec, const BlockPlacement& placement) {
    if (placement.tensor_size > 1)
      throw Error(ErrorCode::invalid_config, text("tp ", placement.tensor_size, " cuts blocks of kind ", spec.kind, ", which stand whole"),
                  Where{"", 0, 0, -1, spec.name}, "tp 1", "parallel: {tp: 1}, or a plan without tensor parallelism");
    return factory(spec, placement);
  };
}

BlockFactory by_autograd(BlockForward forward) {
  return whole([forward = std::move(forward)](const model::BlockSpec& spec, const BlockPlacement&) {
    return make_autograd_block(spec, [spec, forward](const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
      return forward(spec, inputs, parameters, pass);
    });
  });
}

// BERT's, T5's or ViT's.
std::unique_ptr<Block> make_encoder_layer(const model::BlockSpec& spec, const BlockPlacement& placement) {
  static const BlockFactory of_images = by_autograd(encoder_layer), of_t5 = by_autograd(t5_layer);
  return has(spec, "post_norm")  ? make_post_norm_layer(spec, placement)
         : model::is_of_t5(spec) ? of_t5(spec, placement)
                                 : of_images(spec, placement);
}

// One of T5's stands whole.
BlockFactory or_of_t5(BlockFactory factory, BlockFactory of_t5) {
  return [factory = std::move(factory), of_t5 = whole(std::move(of_t5))](const model::BlockSpec& spec, const BlockPlacement& placement) {
    return model::is_of_t5(spec) ? of_t5(spec, placement) : factory(spec, placement);
  };
}

// VGG's, or a recommender's network, which stands whole.
std::unique_ptr<Block> make_mlp(const model::BlockSpec& spec, const BlockPlacement& placement) {
  static const BlockFactory of_clicks = by_autograd(perceptron);
  return has(spec, "pixels") ? make_map_classifier(spec, placement) : of_clicks(spec, placement);
}

// ResNet's, BERT's or ViT's, which stand whole.
std::unique_ptr<Block> make_classifier(const model::BlockSpec& spec, const BlockPlacement& placement) {
  static const BlockFactory of_maps = whole(make_map_classifier), of_positions = by_autograd(position_classifier),
                            pooled = by_autograd(pooled_classifier);
  return has(spec, "pixels") ? of_maps(spec, placement) : has(spec, "post_norm") ? pooled(spec, placement) : of_positions(spec, placement);
}

std::map<std::string, BlockFactory>& factories() {
  static std::map<std::string, BlockFactory> known = {{"embedding", make_embedding},
                                                      {"transformer_layer", make_transformer_layer},
                                                      {"moe_layer", make_moe_layer},
                                                      {"lm_head", make_lm_head},
                                                      {"position_embedding", or_of_t5(make_embedding, make_embedding)},
                                                      {"decoder_layer", or_of_t5(make_transformer_layer, by_autograd(t5_layer))},
                                                      {"language_head", or_of_t5(make_lm_head, make_lm_head)},
                                                      {"final_norm", by_autograd(final_norm)},
                                                      {"conv_layer", whole(make_conv_layer)},
                                                      {model::kResidualBlock, whole(make_residual_block)},
                                                      {model::kResidualBranch, whole(make_residual_block)},
                                                      {model::kResidualSum, whole(make_residual_block)},
                                                      {"mlp", make_mlp},
                                                      {"embedding_tables", whole(make_embedding_tables)},
                                                      {"interaction", by_autograd(interaction)},
                                                      {"features", by_autograd(features)},
                                                      {"cross", by_autograd(cross)},
                                                      {"target_attention", by_autograd(target_attention)},
                                                      {"patch_embedding", by_autograd(patch_embedding)},
                                                      {"encoder_layer", make_encoder_layer},
                                                      {"attention_sublayer", make_attention_sublayer},
                                                      {"feed_forward_sublayer", make_feed_forward_sublayer},
                                                      {"classifier", make_classifier}};
  return known;
}

}  // namespace

std::vector<std::int64_t> shard_shape(const model::ParameterSpec& spec, const BlockPlacement& placement) {
  std::vector<std::int64_t> shape = spec.shape;
  if (spec.split_dim >= 0) shape.at(static_cast<std::size_t>(spec.split_dim)) = spec.shard_extent(placement.of(spec).tensor_size);
  if (spec.expert_dim >= 0) shape.at(static_cast<std::size_t>(spec.expert_dim)) /= placement.expert_size;
  return shape;
}

void register_block(const std::string& kind, BlockFactory factory) {
  if (!factories().emplace(kind, std::move(factory)).second)
    throw Error(ErrorCode::invalid_config, text("there are blocks of kind \"", kind, "\" already"), {}, "a kind of its own");
}

void register_forward(const std::string& kind, BlockForward forward) { register_block(kind, by_autograd(std::move(forward))); }

std::unique_ptr<Block> make_block(const model::BlockSpec& spec, const BlockPlacement& placement) {
  const auto found = factories().find(spec.kind);
  if (found != factories().end()) return found->second(spec, placement);
  std::string known;
  for (const auto& [kind, factory] : factories()) known += (known.empty() ? "" : ", ") + kind;
  throw Error(ErrorCode::not_found, text("there is no block of kind \"", spec.kind, "\""), Where{"", 0, 0, -1, spec.name},
              "one of: " + known, "register it with nn::register_block before training starts");
}

}  // namespace tessera::nn
