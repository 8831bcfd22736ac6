#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "nn/expert_parallel.hpp"
#include "nn/feed_forward.hpp"
#include "nn/kernels/gemm.hpp"
#include "nn/kernels/swiglu.hpp"
#include "nn/sequence.hpp"

namespace tessera::nn {
namespace {

double option(const model::BlockSpec& spec, const char* key) {
  const auto found = spec.dims.find(key);
  return found == spec.dims.end() ? 0 : found->second;
}

// Which experts each token goes to, and how much each counts: the softmax over the logits of those that are chosen.
struct Choice {
  at::Tensor experts;  // i64 [rows, each]
  at::Tensor weights;  // f32 [rows, each], of each row 1 in sum
};

Choice choose(const at::Tensor& logits, std::int64_t each) {
  auto [values, experts] = at::topk(logits, each, -1);
  return {std::move(experts), at::softmax(values, -1)};
}

// Row r's j-th copy is copy r * each + j. The copies in the order of their experts.
struct Dispatch {
  at::Tensor row_of;   // i64 [copies]: of a copy in that order, its row
  at::Tensor copy_of;  // i64 [copies]: and which copy it is
  at::Tensor place;    // i64 [copies]: of a copy, its place in that order
};

Dispatch dispatch(const at::Tensor& experts) {
  const at::Tensor order = experts.flatten().argsort(/*stable=*/true);
  at::Tensor place = at::empty_like(order);
  place.scatter_(0, order, at::arange(order.size(0), order.options()));
  return {order.div(experts.size(1), "floor"), order, std::move(place)};
}

// Sums each row's copies, which stand in the order of their experts.
at::Tensor combine(const at::Tensor& copies, const Dispatch& dispatch, std::int64_t each) {
  return copies.index_select(0, dispatch.place).view({-1, each, copies.size(1)}).sum(1);
}

class Experts final : public FeedForward {
 public:
  Experts(const model::BlockSpec& spec, const BlockPlacement& placement)
      : hidden_(spec.dim("hidden")),
        width_(model::shard_extent(spec.dim("expert_ffn"), placement.tensor_size)),
        count_(spec.dim("experts")),
        each_(spec.dim("experts_per_token")),
        spread_(placement.expert_size > 1),
        first_of_tensor_ranks_(placement.tensor_rank == 0),
        balance_loss_(option(spec, "balance_loss")),
        z_loss_(option(spec, "z_loss")) {
    ensure(count_ % placement.expert_size == 0, text(placement.expert_size, " ranks do not divide ", count_, " experts"));
  }

  void bind(ParameterRow& parameters) override {
    router_ = parameters.take(1).data();
    gate_up_ = parameters.take(1).data();
    down_ = parameters.take(1).data();
  }

  std::size_t kept_count() const override { return kKeptCount; }

  at::Tensor forward(at::Tensor normed, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) override {
    const at::Tensor all = all_rows(normed, pass);
    normed.reset();
    at::Tensor logits = at::empty({all.size(0), count_}, at::kFloat);
    kernels::gemm(all, router_->value.t(), logits);
    const Choice choice = choose(logits, each_);
    const Dispatch where = dispatch(choice.experts);
    const at::Tensor counts = at::bincount(choice.experts.flatten(), {}, count_);
    const ExpertRoutes routes(counts, pass);

    at::Tensor inputs = routes.to_experts(all.index_select(0, where.row_of), pass);
    const at::Tensor weights = routes.to_experts(choice.weights.flatten().index_select(0, where.copy_of), pass);
    at::Tensor gate_up = at::empty({routes.received(), 2 * width_}, rows.options);
    each_product(routes, inputs, *gate_up_, gate_up);
    inputs = spread_ ? inputs : at::Tensor();
    if (pass.training) {
      kept[kLogits] = logits;
      kept[kCounts] = counts;
      kept[kReceivedCounts] = routes.received_counts();
      kept[kWeights] = weights;
      // Otherwise the inputs are those of the weight half, in another order.
      if (spread_) kept[kInputs] = inputs;
      kept[kGateUp] = gate_up;
    }
    at::Tensor activated = at::empty({routes.received(), width_}, rows.options);
    kernels::swiglu(gate_up, activated);
    gate_up.reset();
    activated.mul_(weights.unsqueeze(1));
    at::Tensor outputs = at::empty({routes.received(), hidden_}, rows.options);
    each_product(routes, activated, *down_, outputs);
    activated.reset();
    return own_sum(combine(routes.from_experts(outputs, pass), where, each_), pass);
  }

  at::Tensor backward_input(const at::Tensor& grad, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) override {
    const Choice choice = choose(kept[kLogits], each_);
    const Dispatch where = dispatch(choice.experts);
    const ExpertRoutes routes(kept[kCounts], kept[kReceivedCounts]);
    kept[kOutputGrads] = routes.to_experts(all_rows(grad, pass).index_select(0, where.row_of), pass);

    // Of an expert's output w f(x): dw is the sum of f(x) times its gradient.
    at::Tensor whole_grad = at::empty({routes.received(), width_}, rows.options);
    each_product_back(routes, kept[kOutputGrads], *down_, whole_grad);
    const at::Tensor weights = kept[kWeights].unsqueeze(1);
    kept[kActivated] = whole_grad * weights.to(whole_grad.scalar_type());
    kernels::swiglu_backward(kept[kGateUp], kept[kActivated]);
    const at::Tensor weight_grads = routes.from_experts(whole_grad.mul_(kept[kActivated]).sum(1, false, at::kFloat), pass);
    whole_grad.reset();
    kept[kActivated].mul_(weights);
    at::Tensor input_grads = at::empty({routes.received(), hidden_}, rows.options);
    each_product_back(routes, kept[kGateUp], *gate_up_, input_grads);
    at::Tensor partial = combine(routes.from_experts(input_grads, pass), where, each_);
    input_grads.reset();

    kept[kLogits] = logit_grads(kept[kLogits], choice, weight_grads.index_select(0, where.place).view_as(choice.weights), rows, pass)
                        .to(rows.options.dtype());
    kernels::gemm(kept[kLogits], router_->value, partial, true);
    kept[kRowOf] = where.row_of;
    return own_sum(std::move(partial), pass);
  }

  void backward_weight(PendingExchange normed, std::span<at::Tensor> kept, const Pass& pass) override {
    const ExpertRoutes routes(kept[kCounts], kept[kReceivedCounts]);
    for (const ExpertRows& rows : routes.segments())
      kernels::gemm(kept[kOutputGrads].narrow(0, rows.begin, rows.count).t(), kept[kActivated].narrow(0, rows.begin, rows.count),
                    down_->grad[rows.expert], true);
    kept[kOutputGrads].reset();
    kept[kActivated].reset();
    const at::Tensor all = normed.finish(pass);
    // Each tensor-parallel rank has a part of each expert, and so of what the router is to blame for.
    at::Tensor router_grad = at::zeros_like(router_->grad);
    kernels::gemm(kept[kLogits].t(), all, router_grad, true);
    PendingExchange router_sum = PendingExchange::all_reduce(router_grad, pass);
    const at::Tensor inputs = spread_ ? kept[kInputs] : all.index_select(0, kept[kRowOf]);
    for (const ExpertRows& rows : routes.segments())
      kernels::gemm(kept[kGateUp].narrow(0, rows.begin, rows.count).t(), inputs.narrow(0, rows.begin, rows.count),
                    gate_up_->grad[rows.expert], true);
    router_->grad.add_(router_sum.finish(pass));
    for (at::Tensor& tensor : kept) tensor.reset();
  }

 private:
  // After the forward pass those before kOutputGrads. The input half of the backward pass turns kLogits and kGateUp into their gradients
  // and adds the others for the weight half.
  enum Kept {
    kLogits,          // [rows, experts], f32
    kCounts,          // i64 [experts]: copies of this rank's rows for each
    kReceivedCounts,  // i64 [ranks, experts of a rank]
    kWeights,         // f32 [received]
    kInputs,          // [received, hidden] where experts are spread over ranks
    kGateUp,          // [received, 2 width]
    kOutputGrads,     // [received, hidden]
    kActivated,       // [received, width], weighted
    kRowOf,           // i64 [copies]
    kKeptCount
  };

  static void each_product(const ExpertRoutes& routes, const at::Tensor& x, const Parameter& weight, const at::Tensor& y) {
    for (const ExpertRows& rows : routes.segments())
      kernels::gemm(x.narrow(0, rows.begin, rows.count), weight.value[rows.expert].t(), y.narrow(0, rows.begin, rows.count));
  }

  static void each_product_back(const ExpertRoutes& routes, const at::Tensor& dy, const Parameter& weight, const at::Tensor& dx) {
    for (const ExpertRows& rows : routes.segments())
      kernels::gemm(dy.narrow(0, rows.begin, rows.count), weight.value[rows.expert], dx.narrow(0, rows.begin, rows.count));
  }

  // f32 [rows, experts]. `weight_grads` [rows, each] come from this rank's part of the experts.
  at::Tensor logit_grads(const at::Tensor& logits, const Choice& choice, const at::Tensor& weight_grads, const Rows& rows,
                         const Pass& pass) const {
    const at::Tensor weighted = choice.weights * weight_grads;
    const at::Tensor chosen = weighted - choice.weights * weighted.sum(1, true);
    at::Tensor out = at::zeros_like(logits);
    out.scatter_(1, choice.experts, chosen);
    if (!first_of_tensor_ranks_ || (balance_loss_ == 0 && z_loss_ == 0)) return out;
    const at::Tensor shares = at::softmax(logits, -1).view({rows.batch, rows.seq, count_});
    at::Tensor grads = out.view_as(shares);
    const std::int64_t seq = rows.seq * sequence_cut(pass).size;  // of which this rank may have a part
    const double per_token = pass.sample_scale / static_cast<double>(seq);
    if (balance_loss_ > 0) {
      // Of a sample: the sum over experts of f P, where P is the mean share of an expert, and f how often it is chosen, 1 on average
      // (DeepSeek-V2, 2024, section 2.2.3). By sample, so that it does not depend on how a batch is cut.
      at::Tensor chosen_counts = at::zeros({rows.batch, count_}, at::kFloat);
      const at::Tensor experts = choice.experts.view({rows.batch, rows.seq * each_});
      chosen_counts.scatter_add_(1, experts, at::ones_like(experts, at::kFloat));
      if (pass.context_group) {
        const comm::Handle handle = pass.context_group.all_reduce(
            chosen_counts.data_ptr(), static_cast<std::size_t>(chosen_counts.numel()), comm::DataType::f32);
        wait(std::span(&handle, 1), pass);
      }
      const at::Tensor often = (chosen_counts * (static_cast<double>(count_) / static_cast<double>(seq * each_))).unsqueeze(1);
      grads.add_(shares * (often - (shares * often).sum(2, true)), balance_loss_ * per_token);
    }
    // The square of the logits' logarithmic sum (ST-MoE, Zoph et al. 2022, equation 5).
    if (z_loss_ > 0) grads.add_(shares * at::logsumexp(logits, 1, true).view({rows.batch, rows.seq, 1}), 2 * z_loss_ * per_token);
    return out;
  }

  const std::int64_t hidden_, width_, count_, each_;
  const bool spread_, first_of_tensor_ranks_;
  const double balance_loss_, z_loss_;
  const Parameter* router_ = nullptr;   // [experts, hidden]
  const Parameter* gate_up_ = nullptr;  // [experts of this rank, 2 width, hidden]
  const Parameter* down_ = nullptr;     // [experts of this rank, hidden, width]
};

}  // namespace

std::unique_ptr<FeedForward> make_experts(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<Experts>(spec, placement);
}

}  // namespace tessera::nn
