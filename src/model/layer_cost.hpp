// Internal: the work of a transformer layer of any form, kernel by kernel. A block's dimensions say the form; what is absent has
// the value of Llama's form:
//
//   gated 1            two matrices into the feed-forward network (SwiGLU, GeGLU); 0: one (GELU, ReLU)
//   relu 0             1: the activation's output alone is kept, not its input
//   rotary 1           0: learned positions, relative ones (relative_bias 1) or none
//   relative_bias 0    1: a bias is added to the scores (T5)
//   causal 1           0: every position sees all others
//   window 0           each position sees so many before it (sliding window); 0: all
//   attention_fused 1  0: scores, softmax and dropout are kernels of their own and keep what they read, as Megatron-LM did before
//                      flash attention (Dao et al. 2022)
//   dropout 0          1: with masks of one byte an element, on attention (when not fused) and on both outputs
//   norms 2            4: sandwich (a norm after attention and feed-forward network too: Pangu Ultra, 2025); with cross-attention one more
//   qk_norm 0          1: queries and keys are normalized per head (Qwen3)
//   cross_seq 0        the length of the encoder's output that a second attention reads (T5)
//   experts 0          routed experts, of which `experts_per_token` see each token; `expert_ffn` each, `shared_ffn` for all tokens
//   kv_lora 0          multi-head latent attention (DeepSeek-V2, 2024, section 2.1): ranks kv_lora and q_lora (0: queries are projected
//                      at once), and per head nope_dim and rope_dim of queries and keys and v_dim of values
//   autograd 0         1: every operator keeps what its gradient reads, as PyTorch frameworks do; for such layers without biases
//                      and statistics, `saved` is equations 1 to 6 of Korthikanti et al. 2022 (arXiv 2205.05198)
#pragma once

#include "model/model.hpp"

namespace tessera::model {

// All fields. `saved` and the workspaces are those of autograd.
BlockCost layer_cost(const BlockSpec& block, const BlockShard& shard);
// The costs of a layer's halves, each with its norm: attention, and a feed-forward network without experts.
BlockCost attention_cost(const BlockSpec& block, const BlockShard& shard);
BlockCost feed_forward_cost(const BlockSpec& block, const BlockShard& shard);

}  // namespace tessera::model
