#include "model/forms.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace tessera::model {

bool computed_by_nn(const BlockSpec& block) {
  constexpr std::array<std::string_view, 3> kPlain = {"embedding", "transformer_layer", "lm_head"};
  if (std::find(kPlain.begin(), kPlain.end(), block.kind) != kPlain.end()) return true;
  const auto has = [&](const char* key) { return block.dims.contains(key) && block.dims.at(key) != 0; };
  if (block.kind == "moe_layer") return !has("kv_lora");
  if (block.kind == "position_embedding" || block.kind == "language_head") return has("layer_norm") && has("gelu");
  if (block.kind != "decoder_layer") return false;
  for (const char* key : {"norms", "kv_lora", "relative_bias", "cross_seq"})
    if (has(key)) return false;
  return has("rope_theta") || has("layer_norm");
}

}  // namespace tessera::model
