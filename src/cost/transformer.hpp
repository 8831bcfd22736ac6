// The numbers of a transformer that its price depends on.
#pragma once

#include <cstdint>

#include "model/model.hpp"

namespace tessera::cost {

// Experts that tokens are routed to, with experts that all tokens pass (Dai et al. 2024). `count` 0: none.
struct Experts {
  std::int64_t count = 0;
  int chosen = 0;               // by each token
  std::int64_t ffn = 0;         // of one expert
  std::int64_t shared_ffn = 0;  // of the shared ones together
  int dense_layers = 0;         // the first so many layers have no experts
};

// Attention through low-rank latents (DeepSeek-AI 2024, section 2.1). `key_value_rank` 0: ordinary attention.
struct Latent {
  std::int64_t query_rank = 0;
  std::int64_t key_value_rank = 0;
  std::int64_t rotary = 0;  // of a head
  std::int64_t plain = 0;
  std::int64_t value = 0;
};

struct Transformer {
  int layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t seq = 0;
  bool gated = true;  // two products before the activation
  bool rotary = true;
  bool tied = false;          // embedding and head share their weights
  bool predicts_two = false;  // one more layer and head predict the token after the next (multi-token prediction)
  Experts experts = {};
  Latent latent = {};

  // Of one layer: attention and norms; its dense feed-forward part; one expert; router and shared experts.
  double attention_parameters() const;
  double dense_parameters() const;
  double expert_parameters() const;
  double routing_parameters() const;
  double embedding_parameters() const { return static_cast<double>(vocab) * static_cast<double>(hidden); }
  double parameters() const;
};

// Of a decoder of equal layers. Throws invalid_config for models that are no transformers.
Transformer transformer_of(const model::ModelSpec& model);

}  // namespace tessera::cost
