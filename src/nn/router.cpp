#include "nn/router.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <algorithm>
#include <cmath>
#include <limits>

#include "nn/parameter_row.hpp"
#include "nn/sequence.hpp"
#include "nn/tensor_parallel.hpp"

namespace tessera::nn {
namespace {

double option(const model::BlockSpec& spec, const char* key, double otherwise) {
  const auto found = spec.dims.find(key);
  return found == spec.dims.end() ? otherwise : found->second;
}

// Of elements with keys i64 in [0, count), which how many equal ones before it make each: [5, 2, 5, 5] -> [0, 0, 1, 2].
at::Tensor rank_among_equals(const at::Tensor& keys, std::int64_t count) {
  const at::Tensor order = keys.argsort(/*stable=*/true);
  const at::Tensor counts = at::bincount(keys, {}, count);
  const at::Tensor begins = counts.cumsum(0) - counts;
  const at::Tensor sorted = keys.index_select(0, order);
  const at::Tensor ranks = at::arange(keys.size(0), keys.options()) - begins.index_select(0, sorted);
  at::Tensor out = at::zeros_like(keys);
  out.scatter_(0, order, ranks);
  return out;
}

}  // namespace

at::Tensor Choice::by_copy(const at::Tensor& kept_copies) const {
  if (kept_copies.size(0) > 0) return kept_copies.index_select(0, place);
  std::vector<std::int64_t> shape = kept_copies.sizes().vec();
  shape.front() = place.size(0);
  return at::zeros(shape, kept_copies.options());
}

at::Tensor Choice::combine(const at::Tensor& copies) const {
  at::Tensor each = by_copy(copies);
  if (kept.defined()) each.mul_(kept);
  return each.view({experts.size(0), experts.size(1), copies.size(1)}).sum(1);
}

Router::Router(const model::BlockSpec& spec)
    : count_(spec.dim("experts")),
      each_(spec.dim("experts_per_token")),
      sigmoid_(has(spec, "sigmoid_scores")),
      normalizes_(option(spec, "norm_topk", 1) != 0),
      scale_(option(spec, "routed_scale", 1)),
      groups_(static_cast<std::int64_t>(option(spec, "expert_groups", 1))),
      top_groups_(static_cast<std::int64_t>(option(spec, "top_groups", 1))),
      capacity_(option(spec, "capacity", 0)),
      balance_loss_(option(spec, "balance_loss", 0)),
      z_loss_(option(spec, "z_loss", 0)) {}

at::Tensor Router::scores(const at::Tensor& logits) const { return sigmoid_ ? at::sigmoid(logits) : at::softmax(logits, -1); }

// The experts of each row, i64 [rows, each].
at::Tensor Router::chosen(const at::Tensor& scores) const {
  at::Tensor ranking = score_bias_ == nullptr ? scores : scores + score_bias_->value;
  if (groups_ > 1) {
    // A group counts as its best expert or, by sigmoids, as its best two together.
    const at::Tensor groups = ranking.view({-1, groups_, count_ / groups_});
    const at::Tensor best = std::get<0>(at::topk(groups, sigmoid_ ? std::min<std::int64_t>(2, count_ / groups_) : 1, -1)).sum(-1);
    at::Tensor passed_over = at::ones_like(best, at::kBool);
    passed_over.scatter_(1, std::get<1>(at::topk(best, top_groups_, -1)), false);
    ranking = groups.masked_fill(passed_over.unsqueeze(-1), -std::numeric_limits<double>::infinity()).view_as(scores);
  }
  return std::get<1>(at::topk(ranking, each_, -1));
}

// Of copies, which of those of their sample for the same expert each is, in the order of tokens; `experts` i64 [copies].
at::Tensor Router::rank_in_sample(const at::Tensor& experts, const RouterRows& rows, const Pass& pass) const {
  const SequenceCut cut = sequence_cut(pass);
  // Consecutive tokens of a sample that the rank holds: all of them, or two chunks.
  const std::int64_t stretches = cut.size == 1 ? 1 : 2;
  const at::Tensor stretch = at::arange(experts.size(0), experts.options()).div(rows.seq * each_ / stretches, "floor");
  const at::Tensor keys = stretch * count_ + experts;
  const std::int64_t key_count = rows.batch * stretches * count_;
  at::Tensor ranks = rank_among_equals(keys, key_count);
  if (cut.size == 1) return ranks;
  const at::Tensor own = at::bincount(keys, {}, key_count);
  const at::Tensor all = at::empty({cut.size, rows.batch, 2, count_}, own.options());
  wait(all_gather(pass.context_group, own, all), pass);
  // The first chunks of all ranks stand in their order, and then the second ones in the opposite order.
  const at::Tensor first = all.select(2, 0);
  const at::Tensor second = all.select(2, 1);
  const at::Tensor before_first = first.narrow(0, 0, cut.rank).sum(0);
  const at::Tensor before_second = first.sum(0) + second.narrow(0, cut.rank + 1, cut.size - 1 - cut.rank).sum(0);
  return ranks.add_(at::stack({before_first, before_second}, 1).flatten().index_select(0, keys));
}

Choice Router::choose(const at::Tensor& logits, const RouterRows& rows, const Pass& pass) const {
  Choice out;
  const at::Tensor scores = this->scores(logits);
  out.experts = chosen(scores);
  out.weights = scores.gather(1, out.experts);
  if (normalizes_) out.weights.div_(out.weights.sum(1, true));
  out.weights.mul_(scale_);
  const at::Tensor flat = out.experts.flatten();
  const std::int64_t copies = flat.size(0);
  at::Tensor order = flat.argsort(/*stable=*/true);
  at::Tensor kept;
  if (pass.drops && capacity_ > 0) {
    const double of_sample = static_cast<double>(rows.seq * sequence_cut(pass).size * each_);
    const auto room = static_cast<std::int64_t>(std::ceil(capacity_ * of_sample / static_cast<double>(count_)));
    kept = rank_in_sample(flat, rows, pass) < room;
  }
  if (rows.parts > 1) {
    const std::int64_t all = rows.batch * rows.seq;
    at::Tensor own = at::zeros({copies}, flat.options().dtype(at::kBool));
    own.narrow(0, all * rows.part / rows.parts * each_, (all * (rows.part + 1) / rows.parts - all * rows.part / rows.parts) * each_)
        .fill_(true);
    kept = kept.defined() ? kept.logical_and_(own) : own;
  }
  if (kept.defined()) {
    out.kept = kept.to(at::kFloat).unsqueeze(1);
    order = order.masked_select(kept.index_select(0, order));
  }
  out.copy_of = order;
  out.row_of = order.div(each_, "floor");
  out.place = at::zeros({copies}, flat.options());
  out.place.scatter_(0, order, at::arange(order.size(0), order.options()));
  out.counts = at::bincount(flat.index_select(0, order), {}, count_);
  return out;
}

at::Tensor Router::logit_grads(const at::Tensor& logits, const Choice& choice, const at::Tensor& weight_grads) const {
  const at::Tensor grads = choice.kept.defined() ? weight_grads * choice.kept.view_as(weight_grads) : weight_grads;
  // Of the logarithms of the chosen scores. The scale is a factor of the weights.
  at::Tensor of_chosen = choice.weights * grads;
  if (normalizes_) of_chosen.sub_(choice.weights * of_chosen.sum(1, true) / scale_);
  at::Tensor out = at::zeros_like(logits);
  if (sigmoid_) return out.scatter_(1, choice.experts, of_chosen * (1 - at::sigmoid(logits.gather(1, choice.experts))));
  out.scatter_(1, choice.experts, of_chosen);
  // Of normalized weights these add up to nothing, and the other experts' logits have no part in them.
  return normalizes_ ? out : out - at::softmax(logits, -1) * of_chosen.sum(1, true);
}

at::Tensor Router::overload(const Choice& choice) const {
  return at::bincount(choice.experts.flatten(), {}, count_).mul_(count_).sub_(choice.experts.numel()).to(at::kFloat);
}

void Router::add_losses(const at::Tensor& logits, const Choice& choice, const RouterRows& rows, const Pass& pass, at::Tensor& grads) const {
  if (balance_loss_ == 0 && z_loss_ == 0) return;
  const at::Tensor scores = this->scores(logits);
  const at::Tensor shares = (sigmoid_ ? scores / scores.sum(1, true) : scores).view({rows.batch, rows.seq, count_});
  at::Tensor out = grads.view_as(shares);
  const std::int64_t seq = rows.seq * sequence_cut(pass).size;
  const double per_token = pass.sample_scale / static_cast<double>(seq);
  if (balance_loss_ > 0) {
    // Of a sample: the sum over experts of f P, where P is the mean share of an expert, and f how often it is chosen, 1 on average
    // (DeepSeek-V2, 2024, section 2.2.3).
    at::Tensor chosen = at::zeros({rows.batch, count_}, logits.options().dtype(at::kFloat));
    const at::Tensor experts = choice.experts.view({rows.batch, rows.seq * each_});
    chosen.scatter_add_(1, experts, at::ones_like(experts, at::kFloat));
    if (pass.context_group) wait(nn::all_reduce(pass.context_group, chosen), pass);
    const at::Tensor often = (chosen * (static_cast<double>(count_) / static_cast<double>(seq * each_))).unsqueeze(1);
    at::Tensor of_logits = shares * (often - (shares * often).sum(2, true));
    if (sigmoid_) of_logits.mul_(1 - scores.view_as(shares));
    out.add_(of_logits, balance_loss_ * per_token);
  }
  // The square of the logits' logarithmic sum (ST-MoE, Zoph et al. 2022, equation 5).
  if (z_loss_ > 0) out.add_((at::softmax(logits, -1) * at::logsumexp(logits, 1, true)).view_as(shares), 2 * z_loss_ * per_token);
}

}  // namespace tessera::nn
