#include <ATen/ops/empty.h>
#include <utility>

#include "nn/kernels/lookup.hpp"
#include "nn/tensor_parallel.hpp"
#include "nn/transformer_layer.hpp"

namespace tessera::nn {
namespace {

class Embedding final : public Block {
 public:
  Embedding(const model::BlockSpec& spec, const BlockPlacement& placement)
      : hidden_(spec.dim("hidden")),
        vocab_(spec.dim("vocab")),
        first_row_(placement.tensor_rank * model::shard_extent(vocab_, placement.tensor_size)) {}

  void bind(std::vector<Parameter> parameters) override {
    ensure(parameters.size() == 1, "an embedding has one parameter");
    parameters_ = std::move(parameters);
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }

  Tensors forward(const Tensors&, Saved& saved, const Pass& pass) override {
    const at::Tensor& tokens = pass.batch->at("tokens");
    kernels::check_tokens(tokens, 0, vocab_, "a token");
    at::Tensor partial = at::empty({tokens.numel(), hidden_}, parameters_[0].value.options());
    kernels::lookup(parameters_[0].value, tokens, first_row_, partial);
    saved.tensors.clear();
    return {own_sum(std::move(partial), pass).view({tokens.size(0), -1, hidden_})};
  }

  Tensors backward_input(const Tensors& output_grads, Saved& saved, const Pass&) override {
    saved.tensors = {output_grads.at(0)};
    return {};
  }

  void backward_weight(Saved& saved, const Pass& pass) override {
    const at::Tensor gradient = std::exchange(saved.tensors, {}).at(0);
    kernels::lookup_backward(all_rows(gradient.view({-1, hidden_}), pass), pass.batch->at("tokens"), first_row_, parameters_[0].grad);
  }

 private:
  std::int64_t hidden_;
  std::int64_t vocab_;
  std::int64_t first_row_;
  std::vector<Parameter> parameters_;
};

}  // namespace

std::unique_ptr<Block> make_embedding(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<Embedding>(spec, placement);
}

}  // namespace tessera::nn
