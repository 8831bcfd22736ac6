// Internal: which experts see which tokens.
#pragma once

#include <ATen/core/Tensor.h>
#include <optional>

#include "nn/block.hpp"

namespace tessera::nn {

// A row goes to `each` experts; its copy j is copy row * each + j.
struct Choice {
  at::Tensor experts;  // i64 [rows, each]
  at::Tensor weights;  // f32 [rows, each]: how much each expert's output counts
  at::Tensor kept;     // f32 [copies, 1]: 0 of copies that find no room, undefined where there is room for all

  at::Tensor counts;   // i64 [experts]: copies for each that are kept
  at::Tensor copy_of;  // i64 [kept]: the copies in the order of their experts
  at::Tensor row_of;   // i64 [kept]: their rows
  at::Tensor place;    // i64 [copies]: the place of each in that order; 0 of those that are not kept

  // [kept, ...] in the order of the experts -> [copies, ...]; of those that are not kept, any.
  at::Tensor by_copy(const at::Tensor& kept_copies) const;
  // [kept, width] in the order of the experts -> [rows, width], each row's copies added.
  at::Tensor combine(const at::Tensor& copies) const;
};

// Rows [batch * seq] of samples, of which context parallelism leaves a rank a part, and of `parts` equal parts of them the one whose copies
// this rank keeps.
struct RouterRows {
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  int part = 0;
  int parts = 1;
};

// Of a layer with experts. By its dimensions: "experts", "experts_per_token"; "sigmoid_scores", with which an expert's score is its logit's
// sigmoid, not its share in a softmax; "norm_topk": 0 where the weights of a token's experts are their scores, and do not add up to 1;
// "routed_scale", by which the weights are multiplied; "expert_groups", of which a token's experts come from the best "top_groups"
// (DeepSeek-V2, 2024, section 2.2.2, and DeepSeek-V3, 2024, section 2.1.2); "score_bias" of each expert, which counts where experts are
// chosen and not in their weights; "capacity", "balance_loss", "z_loss". 0 or missing where there is none.
class Router {
 public:
  explicit Router(const model::BlockSpec& spec);
  // f32 or bf16 [experts], where there is "score_bias".
  void bind(const Parameter& score_bias) { score_bias_ = &score_bias; }

  // `logits` f32 [rows, experts]. Where the pass drops, each expert takes of a sample at most `capacity` times what it would if tokens
  // spread evenly, rounded up: those of the sample's first tokens. By sample, so that it does not depend on how a batch is cut;
  // context-parallel ranks tell each other how often they have chosen each expert.
  Choice choose(const at::Tensor& logits, const RouterRows& rows, const Pass& pass) const;
  // The gradient of the logits, of that of the weights [rows, each].
  at::Tensor logit_grads(const at::Tensor& logits, const Choice& choice, const at::Tensor& weight_grads) const;
  // By how much each expert was chosen more often than the mean of them, by all rows, times the experts: f32 [experts], whole numbers, so
  // that sums below 2^24 do not depend on how a batch is cut.
  at::Tensor overload(const Choice& choice) const;
  // Adds the gradients of the router's own losses, each the mean over samples. Context-parallel ranks tell each other what they have
  // chosen.
  void add_losses(const at::Tensor& logits, const Choice& choice, const RouterRows& rows, const Pass& pass, at::Tensor& grads) const;

 private:
  at::Tensor scores(const at::Tensor& logits) const;
  at::Tensor chosen(const at::Tensor& scores) const;
  at::Tensor rank_in_sample(const at::Tensor& experts, const RouterRows& rows, const Pass& pass) const;

  std::int64_t count_, each_;
  bool sigmoid_, normalizes_;
  double scale_;
  std::int64_t groups_, top_groups_;
  double capacity_, balance_loss_, z_loss_;
  const Parameter* score_bias_ = nullptr;
};

}  // namespace tessera::nn
