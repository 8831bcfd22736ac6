#include <ATen/ops/empty.h>

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
    const at::Tensor& tokens = pass.batch->tokens;
    kernels::check_tokens(tokens, 0, vocab_, "a token");
    at::Tensor out = at::empty({tokens.size(0), tokens.size(1), hidden_}, parameters_[0].value.options());
    kernels::lookup(parameters_[0].value, tokens, first_row_, out);
    all_reduce(out, pass);
    saved.tensors.clear();
    return {out};
  }

  Tensors backward_input(const Tensors& output_grads, Saved& saved, const Pass&) override {
    saved.tensors = {output_grads.at(0)};
    return {};
  }

  void backward_weight(Saved& saved, const Pass& pass) override {
    kernels::lookup_backward(saved.tensors.at(0), pass.batch->tokens, first_row_, parameters_[0].grad);
    saved.tensors.clear();
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
