#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros_like.h>

#include "nn/expert_parallel.hpp"
#include "nn/feed_forward.hpp"
#include "nn/kernels/gemm.hpp"
#include "nn/kernels/swiglu.hpp"
#include "nn/route_counts.hpp"
#include "nn/router.hpp"

namespace tessera::nn {
namespace {

std::int64_t width_of_shared(const model::BlockSpec& spec, int degree) {
  return spec.dims.contains("shared_ffn") ? model::shard_extent(spec.dim("shared_ffn"), degree) : 0;
}

class Experts final : public FeedForward {
 public:
  Experts(const model::BlockSpec& spec, const BlockPlacement& placement)
      : hidden_(spec.dim("hidden")),
        width_(model::shard_extent(spec.dim("expert_ffn"), placement.whole_experts ? 1 : placement.tensor_size)),
        shared_width_(width_of_shared(spec, placement.tensor_size)),
        count_(spec.dim("experts")),
        spread_(placement.expert_size > 1),
        gates_shared_(spec.dims.contains("shared_gate")),
        biases_scores_(has(spec, "score_bias")),
        balances_by_bias_(has(spec, "score_bias_rate")),
        part_(placement.tensor_rank),
        parts_(placement.whole_experts ? placement.tensor_size : 1),
        router_(spec) {
    ensure(count_ % placement.expert_size == 0, text(placement.expert_size, " ranks do not divide ", count_, " experts"));
  }

  void bind(ParameterRow& parameters) override {
    router_map_ = parameters.take(1).data();
    if (biases_scores_) {
      score_bias_ = parameters.take(1).data();
      router_.bind(*score_bias_);
    }
    gate_up_ = parameters.take(1).data();
    down_ = parameters.take(1).data();
    if (shared_width_ == 0) return;
    shared_gate_up_.bind(parameters.take(2));
    shared_down_.bind(parameters.take(1));
    if (gates_shared_) shared_gate_ = parameters.take(1).data();
  }

  std::size_t kept_count() const override { return kKeptCount; }

  at::Tensor forward(at::Tensor normed, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) override {
    const at::Tensor all = all_rows(normed, pass);
    normed.reset();
    const at::Tensor logits = product_f32(all, router_map_->value);
    const Choice choice = router_.choose(logits, {rows.batch, rows.seq, part_, parts_}, pass);
    if (pass.routes != nullptr) pass.routes->add(pass.block, pass.batch->at("tokens"), choice.row_of, choice.counts);
    const ExpertRoutes routes(choice.counts, pass);
    PendingRows arriving = routes.to_experts(all.index_select(0, choice.row_of), pass);
    const at::Tensor weights = routes.to_experts(choice.weights.flatten().index_select(0, choice.copy_of), pass).finish(pass);
    // The experts that all tokens pass compute while those of other ranks are on their way.
    at::Tensor partial = shared_forward(all, rows, kept, pass);

    at::Tensor inputs = arriving.finish(pass);
    at::Tensor gate_up = at::empty({routes.received(), 2 * width_}, rows.options);
    each_product(routes, inputs, *gate_up_, gate_up);
    if (!spread_) inputs.reset();
    if (pass.training) {
      kept[kLogits] = logits;
      kept[kCounts] = choice.counts;
      kept[kReceivedCounts] = routes.received_counts();
      kept[kWeights] = weights;
      // Otherwise they are rows of the normalized input.
      if (spread_) kept[kInputs] = std::move(inputs);
      kept[kGateUp] = gate_up;
    }
    at::Tensor activated = at::empty({routes.received(), width_}, rows.options);
    kernels::swiglu(gate_up, activated);
    gate_up.reset();
    activated.mul_(weights.unsqueeze(1));
    at::Tensor outputs = at::empty({routes.received(), hidden_}, rows.options);
    each_product(routes, activated, *down_, outputs);
    activated.reset();
    at::Tensor routed = choice.combine(routes.from_experts(outputs, pass).finish(pass));
    return own_sum(partial.defined() ? partial.add_(routed) : routed, pass);
  }

  at::Tensor backward_input(const at::Tensor& grad, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) override {
    const at::Tensor logits = kept[kLogits];
    const Choice choice = router_.choose(logits, {rows.batch, rows.seq, part_, parts_}, pass);
    const ExpertRoutes routes(kept[kCounts], kept[kReceivedCounts]);
    const at::Tensor all = all_rows(grad, pass);
    PendingRows arriving = routes.to_experts(all.index_select(0, choice.row_of), pass);
    at::Tensor partial = shared_backward(all, rows, kept);

    kept[kOutputGrads] = arriving.finish(pass);
    // Of an expert's output w f(x): dw is the sum of f(x) times its gradient.
    at::Tensor whole_grad = at::empty({routes.received(), width_}, rows.options);
    each_product_back(routes, kept[kOutputGrads], *down_, whole_grad);
    const at::Tensor weights = kept[kWeights].unsqueeze(1);
    kept[kActivated] = whole_grad * weights.to(whole_grad.scalar_type());
    kernels::swiglu_backward(kept[kGateUp], kept[kActivated]);
    const at::Tensor weight_grads = routes.from_experts(whole_grad.mul_(kept[kActivated]).sum(1, false, at::kFloat), pass).finish(pass);
    whole_grad.reset();
    kept[kActivated].mul_(weights);
    at::Tensor input_grads = at::empty({routes.received(), hidden_}, rows.options);
    each_product_back(routes, kept[kGateUp], *gate_up_, input_grads);
    const at::Tensor routed = choice.combine(routes.from_experts(input_grads, pass).finish(pass));
    input_grads.reset();
    partial = partial.defined() ? partial.add_(routed) : routed;

    at::Tensor logit_grads = router_.logit_grads(logits, choice, choice.by_copy(weight_grads).view_as(choice.weights));
    // The other gradients are those of this rank's part of the experts, and add up.
    if (part_ == 0) router_.add_losses(logits, choice, {rows.batch, rows.seq}, pass, logit_grads);
    kept[kLogits] = logit_grads.to(rows.options.dtype());
    kernels::gemm(kept[kLogits], router_map_->value, partial, true);
    kept[kRowOf] = choice.row_of;
    if (balances_by_bias_) kept[kOverload] = router_.overload(choice);
    return own_sum(std::move(partial), pass);
  }

  void backward_last_weights(std::span<at::Tensor> kept) override {
    const ExpertRoutes routes(kept[kCounts], kept[kReceivedCounts]);
    for (const ExpertRows& rows : routes.segments())
      kernels::gemm(kept[kOutputGrads].narrow(0, rows.begin, rows.count).t(), kept[kActivated].narrow(0, rows.begin, rows.count),
                    down_->grad[rows.expert], true);
    if (shared_width_ > 0) shared_down_.backward_weight(kept[kSharedGrad], kept[kSharedActivated]);
    for (const Kept done : {kOutputGrads, kActivated, kSharedGrad, kSharedActivated}) kept[done].reset();
  }

  void backward_first_weights(PendingExchange normed, std::span<at::Tensor> kept, const Pass& pass) override {
    const ExpertRoutes routes(kept[kCounts], kept[kReceivedCounts]);
    const at::Tensor all = normed.finish(pass);
    // Each tensor-parallel rank has a part of each expert, and so of what the maps to logits are to blame for.
    at::Tensor map_grads = at::empty({(count_ + (gates_shared_ ? 1 : 0)) * hidden_}, router_map_->grad.options());
    kernels::gemm(kept[kLogits].t(), all, map_grads.narrow(0, 0, count_ * hidden_).view({count_, hidden_}));
    if (gates_shared_) kernels::gemm(kept[kSharedGate].t(), all, map_grads.narrow(0, count_ * hidden_, hidden_).view({1, hidden_}));
    PendingExchange sum = PendingExchange::all_reduce(map_grads, pass);
    if (shared_width_ > 0) shared_gate_up_.backward_weight(kept[kSharedGateUp], all);
    const at::Tensor inputs = spread_ ? kept[kInputs] : all.index_select(0, kept[kRowOf]);
    for (const ExpertRows& rows : routes.segments())
      kernels::gemm(kept[kGateUp].narrow(0, rows.begin, rows.count).t(), inputs.narrow(0, rows.begin, rows.count),
                    gate_up_->grad[rows.expert], true);
    map_grads = sum.finish(pass);
    router_map_->grad.add_(map_grads.narrow(0, 0, count_ * hidden_).view_as(router_map_->grad));
    if (gates_shared_) shared_gate_->grad.add_(map_grads.narrow(0, count_ * hidden_, hidden_).view_as(shared_gate_->grad));
    if (balances_by_bias_) score_bias_->grad.add_(kept[kOverload]);
    for (at::Tensor& tensor : kept) tensor.reset();
  }

 private:
  // After the forward pass those before kOutputGrads. The input half of the backward pass turns kLogits, kGateUp, kSharedGateUp and
  // kSharedGate into their gradients and adds the others for the weight half.
  enum Kept {
    kLogits,           // [rows, experts], f32
    kCounts,           // i64 [experts]: copies of this rank's rows for each
    kReceivedCounts,   // i64 [ranks, experts of a rank]
    kWeights,          // f32 [received]
    kInputs,           // [received, hidden] where experts are spread over ranks
    kGateUp,           // [received, 2 width]
    kSharedGateUp,     // [rows, 2 width], where there are shared experts
    kSharedGate,       // f32 [rows, 1]: what their output counts, where it is gated
    kOutputGrads,      // [received, hidden]
    kActivated,        // [received, width], weighted
    kRowOf,            // i64 [copies]
    kOverload,         // f32 [experts], where biases of scores balance them (DeepSeek-V3, 2024, section 2.1.2)
    kSharedGrad,       // [rows, hidden]
    kSharedActivated,  // [rows, width]
    kKeptCount
  };

  static at::Tensor product_f32(const at::Tensor& x, const at::Tensor& weight) {
    at::Tensor out = at::empty({x.size(0), weight.size(0)}, x.options().dtype(at::kFloat));
    kernels::gemm(x, weight.t(), out);
    return out;
  }

  static void each_product(const ExpertRoutes& routes, const at::Tensor& x, const Parameter& weight, const at::Tensor& y) {
    for (const ExpertRows& rows : routes.segments())
      kernels::gemm(x.narrow(0, rows.begin, rows.count), weight.value[rows.expert].t(), y.narrow(0, rows.begin, rows.count));
  }

  static void each_product_back(const ExpertRoutes& routes, const at::Tensor& dy, const Parameter& weight, const at::Tensor& dx) {
    for (const ExpertRows& rows : routes.segments())
      kernels::gemm(dy.narrow(0, rows.begin, rows.count), weight.value[rows.expert], dx.narrow(0, rows.begin, rows.count));
  }

  // A part of the sum [rows, hidden]; undefined without shared experts.
  at::Tensor shared_forward(const at::Tensor& all, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) const {
    if (shared_width_ == 0) return {};
    at::Tensor gate_up = rows.empty(2 * shared_width_);
    shared_gate_up_.forward(all, gate_up);
    at::Tensor activated = rows.empty(shared_width_);
    kernels::swiglu(gate_up, activated);
    at::Tensor gate;
    if (gates_shared_) {
      gate = at::sigmoid(product_f32(all, shared_gate_->value));
      activated.mul_(gate);
    }
    if (pass.training) {
      kept[kSharedGateUp] = std::move(gate_up);
      kept[kSharedGate] = std::move(gate);
    }
    at::Tensor out = rows.empty(hidden_);
    shared_down_.forward(activated, out);
    return out;
  }

  at::Tensor shared_backward(const at::Tensor& grad, const Rows& rows, std::span<at::Tensor> kept) const {
    if (shared_width_ == 0) return {};
    kept[kSharedGrad] = grad;
    at::Tensor whole_grad = rows.empty(shared_width_);
    shared_down_.backward_input(grad, whole_grad);
    at::Tensor& activated = kept[kSharedActivated];
    const at::Tensor gate = kept[kSharedGate];
    activated = gates_shared_ ? whole_grad * gate.to(whole_grad.scalar_type()) : whole_grad;
    kernels::swiglu_backward(kept[kSharedGateUp], activated);
    at::Tensor out = rows.empty(hidden_);
    shared_gate_up_.backward_input(kept[kSharedGateUp], out);
    if (!gates_shared_) return out;
    const at::Tensor gate_grad = whole_grad.mul_(activated).sum(1, true, at::kFloat) * gate * (1 - gate);
    activated.mul_(gate);
    kept[kSharedGate] = gate_grad.to(rows.options.dtype());
    kernels::gemm(kept[kSharedGate], shared_gate_->value, out, true);
    return out;
  }

  const std::int64_t hidden_, width_, shared_width_, count_;
  const bool spread_, gates_shared_, biases_scores_, balances_by_bias_;
  const int part_, parts_;  // of all rows, those whose copies this rank sends to experts that stand whole
  Router router_;
  const Parameter* router_map_ = nullptr;  // [experts, hidden]
  const Parameter* score_bias_ = nullptr;  // [experts]
  const Parameter* gate_up_ = nullptr;     // [experts of this rank, 2 width, hidden]
  const Parameter* down_ = nullptr;        // [experts of this rank, hidden, width]
  StackedLinear shared_gate_up_, shared_down_;
  const Parameter* shared_gate_ = nullptr;  // [1, hidden]
};

}  // namespace

std::unique_ptr<FeedForward> make_experts(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<Experts>(spec, placement);
}

}  // namespace tessera::nn
