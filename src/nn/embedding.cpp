#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <optional>
#include <utility>

#include "nn/kernels/bias.hpp"
#include "nn/kernels/lookup.hpp"
#include "nn/norm.hpp"
#include "nn/row_dropout.hpp"
#include "nn/sequence.hpp"
#include "nn/transformer_layer.hpp"

namespace tessera::nn {
namespace {

class Embedding final : public Block {
 public:
  Embedding(const model::BlockSpec& spec, const BlockPlacement& placement)
      : hidden_(spec.dim("hidden")),
        vocab_(spec.dim("vocab")),
        positions_(spec.dims.contains("positions") ? spec.dim("positions") : 0),
        token_types_(spec.dims.contains("token_types") ? spec.dim("token_types") : 0),
        tokens_read_(has(spec, "decodes") ? "decoder_tokens" : "tokens"),
        first_row_(placement.tensor_rank * model::shard_extent(vocab_, placement.tensor_size)),
        drop_(spec, kEmbedded) {
    if (has(spec, "embedding_norm")) norm_.emplace(spec);
  }

  void bind(std::vector<Parameter> parameters) override {
    parameters_ = std::move(parameters);
    ParameterRow rest(parameters_);
    tokens_ = rest.take(1).data();
    if (positions_ > 0) places_ = rest.take(1).data();
    if (token_types_ > 0) types_ = rest.take(1).data();
    if (norm_) norm_->bind(rest);
    ensure(rest.empty(), "an embedding has parameters that its dimensions do not ask for");
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }

  Tensors forward(const Tensors&, Saved& saved, const Pass& pass) override {
    const at::Tensor& tokens = pass.batch->at(tokens_read_);
    kernels::check_tokens(tokens, 0, vocab_, "a token");
    at::Tensor partial = at::empty({tokens.numel(), hidden_}, tokens_->value.options());
    kernels::lookup(tokens_->value, tokens, first_row_, partial);
    at::Tensor hidden = own_sum(std::move(partial), pass).view({tokens.size(0), -1, hidden_});
    const Rows rows(hidden, pass);
    at::Tensor out = hidden.view({rows.own(), hidden_});
    if (positions_ > 0) add_rows(places_->value, places_of(pass), rows, out);
    if (const at::Tensor types = types_of(pass); types.defined())
      add_rows(types_->value, types, rows, out);
    else if (token_types_ > 0)
      kernels::add_bias(out, types_->value[0]);
    saved.tensors.clear();
    if (norm_) {
      at::Tensor statistics = norm_->empty_statistics(rows);
      at::Tensor normed = rows.empty_own(hidden_);
      norm_->forward(out, normed, statistics);
      if (pass.training) saved.tensors = {out, statistics};
      out = std::move(normed);
    }
    drop_.apply(out, rows, pass);
    return {out.view(hidden.sizes())};
  }

  Tensors backward_input(const Tensors& output_grads, Saved& saved, const Pass& pass) override {
    const Rows rows(output_grads.at(0), pass);
    at::Tensor grad = drop_.applied(output_grads.at(0).view({rows.own(), hidden_}), rows, pass);
    if (norm_) {
      const Tensors kept = std::exchange(saved.tensors, {});
      ensure(kept.size() == kKeptCount, "backward_input without a training forward");
      at::Tensor sum_grad = rows.empty_own(hidden_);
      const at::Tensor norm_grads = at::empty({norm_->grad_count()}, tokens_->grad.options());
      norm_->backward(grad, kept[kSum], kept[kStatistics], {}, sum_grad, norm_grads);
      saved.tensors = {sum_grad, norm_grads};
    } else {
      saved.tensors = {grad};
    }
    return {};
  }

  void backward_weight(Saved& saved, const Pass& pass) override {
    Tensors grads = std::exchange(saved.tensors, {});
    const at::Tensor all = all_rows(grads.at(0), pass);
    kernels::lookup_backward(all, pass.batch->at(tokens_read_), first_row_, tokens_->grad);
    // Every rank has all rows of this gradient, and holds the positions and types.
    if (positions_ > 0) kernels::lookup_backward(all, places_of(pass), 0, places_->grad);
    if (const at::Tensor types = types_of(pass); types.defined())
      kernels::lookup_backward(all, types, 0, types_->grad);
    else if (token_types_ > 0)
      kernels::bias_backward(all, types_->grad[0]);
    if (!norm_) return;
    // Of this rank's rows.
    if (pass.sequence_parallel) all_reduce(grads.at(1), pass);
    norm_->add_grads(grads.at(1));
  }

 private:
  // After the forward pass, where there is a norm. The input half of the backward pass leaves the gradient of the sum, and those of the
  // norm's parameters.
  enum Kept { kSum, kStatistics, kKeptCount };

  // Adds, to this rank's rows, those of a table that `ids` names of all rows.
  void add_rows(const at::Tensor& table, const at::Tensor& ids, const Rows& rows, at::Tensor& out) const {
    at::Tensor found = rows.empty_own(hidden_);
    kernels::lookup(table, ids.narrow(0, rows.first(), rows.own()), 0, found);
    out.add_(found);
  }

  // Of each row of the batch, i64; undefined where all are the first.
  at::Tensor types_of(const Pass& pass) const {
    const at::Tensor types = token_types_ > 0 ? pass.batch->find("token_types") : at::Tensor();
    if (!types.defined()) return {};
    if (types.lt(0).any().item<bool>() || types.ge(token_types_).any().item<bool>())
      throw Error(ErrorCode::corrupt, text("a token type of the batch is not one of the model's ", token_types_), {},
                  text("token_types from 0 to ", token_types_ - 1));
    return types.flatten();
  }

  // Of each row of the batch, i64: its token's place in its document, or behind the tokens that were seen.
  at::Tensor places_of(const Pass& pass) const {
    const at::Tensor& tokens = pass.batch->at(tokens_read_);
    if (const at::Tensor positions = pass.batch->find("positions"); positions.defined()) return positions.flatten();
    const SequenceCut cut = sequence_cut(pass);
    const std::int64_t seq = tokens.size(1) * cut.size;
    if (pass.position + seq > positions_)
      throw Error(ErrorCode::invalid_config, text("a sample has ", pass.position + seq, " positions, and the model has ", positions_), {},
                  text("samples of at most ", positions_, " tokens"));
    return (cut.positions(seq, tokens.device()) + pass.position).repeat({tokens.size(0)});
  }

  std::int64_t hidden_;
  std::int64_t vocab_;
  std::int64_t positions_;    // learned ones; 0: none
  std::int64_t token_types_;  // 0: none
  const char* tokens_read_;   // of the batch
  std::int64_t first_row_;
  std::optional<Norm> norm_;
  RowDropout drop_;
  std::vector<Parameter> parameters_;
  const Parameter* tokens_ = nullptr;  // within parameters_
  const Parameter* places_ = nullptr;
  const Parameter* types_ = nullptr;
};

}  // namespace

std::unique_ptr<Block> make_embedding(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<Embedding>(spec, placement);
}

}  // namespace tessera::nn
