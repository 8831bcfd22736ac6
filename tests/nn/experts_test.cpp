// Routed experts against the same in plain ATen, differentiated by autograd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "nn/decoder_helper.hpp"
#include "nn/feed_forward.hpp"

namespace tessera::nn {
namespace {

using test::relative_error;

constexpr std::int64_t kBatch = 3, kSeq = 16, kHidden = 32;

model::BlockSpec layer(const std::string& more = {}, int experts = 6, int each = 2) {
  const model::ModelSpec model = model::read_model(
      ConfigNode::parse(text("{arch: mixtral, hidden: ", kHidden, ", layers: 1, heads: 4, kv_heads: 2, ffn: 24, experts: ", experts,
                             ", experts_per_token: ", each, ", seq: ", kSeq, ", vocab: 50", more, "}"),
                        "test.yaml"));
  return model.repeats.at(1).block;
}

struct Weights {
  at::Tensor router, gate_up, down;
  Tensors shared = {};  // gate, up, down and, where there is one, the gate of their output
};

Weights weights_of(const model::BlockSpec& spec, at::ScalarType type) {
  const std::int64_t experts = spec.dim("experts");
  const std::int64_t width = spec.dim("expert_ffn");
  at::manual_seed(5);
  return {at::randn({experts, kHidden}).to(type), (at::randn({experts, 2 * width, kHidden}) * 0.3).to(type),
          (at::randn({experts, kHidden, width}) * 0.3).to(type)};
}

// Of the sum of output * output_grad, with the losses of the router.
struct Result {
  at::Tensor output, input_grad, router_grad, gate_up_grad, down_grad;
  Tensors shared_grads = {};
};

struct Terms {
  double balance = 0;
  double z = 0;
  double sample_scale = 1;
  bool normalizes = true;
  at::Tensor kept = {};  // [rows, experts]: 1 where a row finds room
};

Result by_autograd(const model::BlockSpec& spec, const Weights& weights, const at::Tensor& x, const at::Tensor& output_grad,
                   const Terms& terms) {
  const at::AutoGradMode mode(true);
  const auto leaf = [](const at::Tensor& tensor) { return tensor.to(at::kFloat).detach().requires_grad_(true); };
  const at::Tensor input = leaf(x), router = leaf(weights.router), gate_up = leaf(weights.gate_up), down = leaf(weights.down);
  const std::int64_t each = spec.dim("experts_per_token");
  const std::int64_t width = spec.dim("expert_ffn");
  const at::Tensor logits = at::matmul(input, router.t());
  const at::Tensor shares = at::softmax(logits, -1);
  const auto [chosen, experts] = at::topk(shares, each, -1);
  const at::Tensor weight = terms.normalizes ? chosen / chosen.sum(-1, true) : chosen;
  at::Tensor out = at::zeros_like(input);
  for (std::int64_t e = 0; e < spec.dim("experts"); ++e) {
    const at::Tensor hidden = at::matmul(input, gate_up[e].t());
    const at::Tensor y = at::matmul(at::silu(hidden.narrow(1, 0, width)) * hidden.narrow(1, width, width), down[e].t());
    const at::Tensor counts = (weight * (experts == e)).sum(1, true);
    out = out + y * (terms.kept.defined() ? counts * terms.kept.narrow(1, e, 1) : counts);
  }
  Tensors shared;
  for (const at::Tensor& weight : weights.shared) shared.push_back(leaf(weight));
  if (!shared.empty()) {
    const at::Tensor y = at::matmul(at::silu(at::matmul(input, shared[0].t())) * at::matmul(input, shared[1].t()), shared[2].t());
    out = out + (shared.size() == 4 ? y * at::sigmoid(at::matmul(input, shared[3].t())) : y);
  }
  at::Tensor loss = (out * output_grad).sum();
  for (std::int64_t sample = 0; sample < kBatch; ++sample) {
    at::Tensor often = at::zeros({spec.dim("experts")});
    const at::Tensor own = experts.narrow(0, sample * kSeq, kSeq);
    for (std::int64_t e = 0; e < often.size(0); ++e) often[e] = (own == e).sum().to(at::kFloat);
    often = often * static_cast<double>(often.size(0)) / static_cast<double>(each * kSeq);
    loss = loss + terms.balance * terms.sample_scale * (often * shares.narrow(0, sample * kSeq, kSeq).mean(0)).sum();
  }
  loss = loss + terms.z * terms.sample_scale * at::logsumexp(logits, 1).square().sum() / static_cast<double>(kSeq);
  Tensors leaves = {input, router, gate_up, down};
  leaves.insert(leaves.end(), shared.begin(), shared.end());
  const auto grads = torch::autograd::grad({loss}, leaves);
  return {out.detach(), grads[0], grads[1], grads[2], grads[3], {grads.begin() + 4, grads.end()}};
}

Result by_ours(const model::BlockSpec& spec, const Weights& weights, const at::Tensor& x, const at::Tensor& output_grad,
               double sample_scale = 1, std::int64_t* kept_bytes = nullptr) {
  std::vector<Parameter> parameters;
  Tensors values = {weights.router, weights.gate_up, weights.down};
  values.insert(values.end(), weights.shared.begin(), weights.shared.end());
  for (const at::Tensor& value : values) parameters.push_back({nullptr, {}, value, at::zeros(value.sizes(), at::kFloat)});
  const auto experts = make_experts(spec, {});
  ParameterRow row(parameters);
  experts->bind(row);
  Pass pass;
  pass.sample_scale = sample_scale;
  pass.drops = true;
  Tensors kept(experts->kept_count());
  const Rows rows(x.view({kBatch, kSeq, kHidden}), pass);
  const at::Tensor output = experts->forward(x, rows, kept, pass);
  if (kept_bytes != nullptr)
    for (const at::Tensor& tensor : kept) *kept_bytes += tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
  const at::Tensor input_grad = experts->backward_input(output_grad.to(x.scalar_type()), rows, kept, pass);
  experts->backward_last_weights(kept);
  experts->backward_first_weights(PendingExchange::all_rows(x, pass), kept, pass);
  EXPECT_TRUE(std::none_of(kept.begin(), kept.end(), [](const at::Tensor& tensor) { return tensor.defined(); }));
  Result out{output, input_grad, parameters[0].grad, parameters[1].grad, parameters[2].grad};
  for (std::size_t i = 3; i < parameters.size(); ++i) out.shared_grads.push_back(parameters[i].grad);
  return out;
}

void expect_near(const Result& ours, const Result& theirs, double tolerance) {
  EXPECT_LT(relative_error(ours.output.to(at::kFloat), theirs.output), tolerance);
  EXPECT_LT(relative_error(ours.input_grad.to(at::kFloat), theirs.input_grad), tolerance);
  // Of a single expert the weight is 1, whatever the router says.
  if (theirs.router_grad.abs().max().item<float>() < 1e-4)
    EXPECT_LT(ours.router_grad.abs().max().item<float>(), 1e-4);
  else
    EXPECT_LT(relative_error(ours.router_grad, theirs.router_grad), tolerance);
  EXPECT_LT(relative_error(ours.gate_up_grad, theirs.gate_up_grad), tolerance);
  EXPECT_LT(relative_error(ours.down_grad, theirs.down_grad), tolerance);
  ASSERT_EQ(ours.shared_grads.size(), theirs.shared_grads.size());
  for (std::size_t i = 0; i < ours.shared_grads.size(); ++i)
    EXPECT_LT(relative_error(ours.shared_grads[i], theirs.shared_grads[i]), tolerance) << i;
}

TEST(RoutedExperts, AreWhatAutogradMakesOfThem) {
  for (const int each : {1, 2, 6}) {
    const model::BlockSpec spec = layer({}, 6, each);
    const Weights weights = weights_of(spec, at::kFloat);
    const at::Tensor x = at::randn({kBatch * kSeq, kHidden});
    const at::Tensor grad = at::randn({kBatch * kSeq, kHidden});
    expect_near(by_ours(spec, weights, x, grad), by_autograd(spec, weights, x, grad, {}), 1e-5);
  }
}

TEST(RoutedExperts, AddTheLossesOfTheRouterToItsGradients) {
  const model::BlockSpec spec = layer(", balance_loss: 7, z_loss: 3");
  const Weights weights = weights_of(spec, at::kFloat);
  const at::Tensor x = at::randn({kBatch * kSeq, kHidden});
  const at::Tensor grad = at::randn({kBatch * kSeq, kHidden}) * 0.1;
  const Result ours = by_ours(spec, weights, x, grad, 0.25);
  expect_near(ours, by_autograd(spec, weights, x, grad, {.balance = 7, .z = 3, .sample_scale = 0.25}), 1e-5);
  EXPECT_GT(relative_error(ours.router_grad, by_autograd(spec, weights, x, grad, {.z = 3, .sample_scale = 0.25}).router_grad), 1e-2);
  EXPECT_GT(relative_error(ours.router_grad, by_autograd(spec, weights, x, grad, {.balance = 7, .sample_scale = 0.25}).router_grad), 1e-2);
}

TEST(RoutedExperts, In16BitsAreWithinTheirRounding) {
  const model::BlockSpec spec = layer();
  const Weights weights = weights_of(spec, at::kBFloat16);
  const at::Tensor x = at::randn({kBatch * kSeq, kHidden}).to(at::kBFloat16);
  const at::Tensor grad = at::randn({kBatch * kSeq, kHidden}).to(at::kBFloat16);
  expect_near(by_ours(spec, weights, x, grad), by_autograd(spec, weights, x, grad.to(at::kFloat), {}), 3e-2);
}

// As in Qwen2's mixtures: shared experts behind a gate, and weights that do not add up to 1.
TEST(RoutedExperts, StandBesideSharedOnes) {
  const model::ModelSpec model =
      model::read_model(ConfigNode::parse(text("{arch: qwen_moe, hidden: ", kHidden,
                                               ", layers: 1, heads: 4, expert_ffn: 24, experts: 6, experts_per_token: 3, shared_ffn: 40, ",
                                               "norm_topk: false, seq: ", kSeq, ", vocab: 50}"),
                                          "test.yaml"));
  const model::BlockSpec& spec = model.repeats.at(1).block;
  Weights weights = weights_of(spec, at::kFloat);
  weights.shared = {at::randn({40, kHidden}) * 0.3, at::randn({40, kHidden}) * 0.3, at::randn({kHidden, 40}) * 0.3,
                    at::randn({1, kHidden})};
  const at::Tensor x = at::randn({kBatch * kSeq, kHidden});
  const at::Tensor grad = at::randn({kBatch * kSeq, kHidden});
  expect_near(by_ours(spec, weights, x, grad), by_autograd(spec, weights, x, grad, {.normalizes = false}), 1e-5);
}

// An expert takes the first tokens of each sample.
TEST(RoutedExperts, TakeNoMoreThanTheirCapacity) {
  const model::BlockSpec spec = layer(", capacity: 0.75");
  const Weights weights = weights_of(spec, at::kFloat);
  const at::Tensor x = at::randn({kBatch * kSeq, kHidden});
  const at::Tensor grad = at::randn({kBatch * kSeq, kHidden});
  const auto experts = std::get<1>(at::topk(at::matmul(x, weights.router.t()), 2, -1));
  const std::int64_t room = 4;  // 0.75 * 16 tokens * 2 of each / 6 experts
  at::Tensor kept = at::zeros({kBatch * kSeq, 6});
  std::int64_t dropped = 0;
  for (std::int64_t sample = 0; sample < kBatch; ++sample) {
    std::vector<std::int64_t> taken(6, 0);
    for (std::int64_t row = sample * kSeq; row < (sample + 1) * kSeq; ++row)
      for (std::int64_t j = 0; j < 2; ++j) {
        const std::int64_t expert = experts[row][j].item<std::int64_t>();
        if (taken[static_cast<std::size_t>(expert)]++ < room)
          kept[row][expert] = 1;
        else
          ++dropped;
      }
  }
  ASSERT_GT(dropped, 5);
  expect_near(by_ours(spec, weights, x, grad), by_autograd(spec, weights, x, grad, {.kept = kept}), 1e-5);
}

TEST(RoutedExperts, MayGetNoTokens) {
  const model::BlockSpec spec = layer({}, 6, 1);
  Weights weights = weights_of(spec, at::kFloat);
  // All tokens go to expert 2.
  weights.router.zero_();
  const at::Tensor x = at::randn({kBatch * kSeq, kHidden}).abs();
  weights.router[2].fill_(1.0);
  const at::Tensor grad = at::randn({kBatch * kSeq, kHidden});
  const Result ours = by_ours(spec, weights, x, grad);
  expect_near(ours, by_autograd(spec, weights, x, grad, {}), 1e-5);
  EXPECT_EQ(ours.down_grad[0].abs().max().item<float>(), 0);
}

// Beside attention's, and but for the counts of tokens, which no formula is troubled with.
TEST(RoutedExperts, KeepWhatTheCostSays) {
  const model::BlockSpec spec = layer();
  model::BlockSpec plain = spec;
  plain.kind = "transformer_layer";
  const model::BlockShard shard{.micro_batch_size = kBatch};
  const std::int64_t swiglu = 4 * kBatch * kSeq * 2 * spec.dim("ffn");
  const std::int64_t expected = model::cost_of(spec, shard).saved.value - (model::cost_of(plain, shard).saved.value - swiglu);
  std::int64_t kept = 0;
  by_ours(spec, weights_of(spec, at::kFloat), at::randn({kBatch * kSeq, kHidden}), at::randn({kBatch * kSeq, kHidden}), 1, &kept);
  EXPECT_EQ(kept, expected + 2 * 8 * spec.dim("experts"));
}

}  // namespace
}  // namespace tessera::nn
