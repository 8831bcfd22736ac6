// Internal: the kernels by ATen's operators, for every device that libtorch knows. Each does what the function of its name does
// (kernels/NAME.hpp, optimizer.hpp). Operators take whole tensors and nothing is read back to the host, so that a device's queue never runs
// dry; what is added up has one order.
#pragma once

#include "nn/kernels/attention.hpp"
#include "nn/kernels/cross_entropy.hpp"
#include "nn/kernels/dropout.hpp"
#include "nn/kernels/dropped_attention.hpp"
#include "nn/kernels/gelu.hpp"
#include "nn/kernels/norm.hpp"
#include "nn/optimizer.hpp"

namespace tessera::nn::kernels::aten {

// Where c is f32, a product of bf16 is rounded to bf16 on its way, but on a GPU.
void gemm(const at::Tensor& a, const at::Tensor& b, at::Tensor c, bool accumulate);

void bias_backward(const at::Tensor& dy, const at::Tensor& bias_grad);

void rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, at::Tensor& y, at::Tensor& rstd);
void add_rms_norm(at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight, double epsilon, at::Tensor& y, at::Tensor& rstd);
void rms_norm_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd, at::Tensor& y);
void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                       const at::Tensor& residual, at::Tensor& dx, at::Tensor& weight_grad);
void rms_norm_heads(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& query_weight, const at::Tensor& key_weight,
                    double epsilon, at::Tensor& y);
void rms_norm_heads_backward(const at::Tensor& qkv, const HeadShape& shape, const at::Tensor& query_weight, const at::Tensor& key_weight,
                             double epsilon, at::Tensor& grad, at::Tensor& weight_grads);

void layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon, at::Tensor& y,
                at::Tensor& statistics);
void add_layer_norm(at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon, at::Tensor& y,
                    at::Tensor& statistics);
void layer_norm_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& statistics, at::Tensor& y);
void layer_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& statistics,
                         const at::Tensor& residual, at::Tensor& dx, at::Tensor& parameter_grads);

void rope(at::Tensor& x, std::int64_t heads, std::int64_t head_dim, std::int64_t seq, std::int64_t position, const at::Tensor& table,
          bool inverse, const at::Tensor& positions);

void swiglu(const at::Tensor& gate_up, at::Tensor& hidden);
void swiglu_backward(at::Tensor& gate_up, at::Tensor& hidden);
void gelu(const at::Tensor& x, at::Tensor& hidden, GeluForm form);
void gelu_backward(at::Tensor& x, at::Tensor& hidden, GeluForm form);

void dropout(const at::Tensor& x, double probability, const std::vector<std::uint64_t>& seeds, at::Tensor& out);
void dropout_rows(const at::Tensor& x, double probability, const std::vector<RowPlace>& places, at::Tensor& out);
// Seeds as i64 on a device.
at::Tensor seeds_on(at::Device device, std::span<const std::uint64_t> seeds);
// Which elements are dropped, bool: of places i64 in samples of these seeds, both broadcast.
at::Tensor dropped_at(const at::Tensor& seeds, const at::Tensor& places, double probability);

void lookup(const at::Tensor& table, const at::Tensor& tokens, std::int64_t first_row, at::Tensor& out);
void lookup_backward(const at::Tensor& gradient, const at::Tensor& tokens, std::int64_t first_row, const at::Tensor& table_grad);

void cross_entropy_maximum(const at::Tensor& logits, const at::Tensor& targets, std::int64_t first_column, at::Tensor& maximum,
                           at::Tensor& target_logit);
void cross_entropy_exponentials(at::Tensor& logits, const at::Tensor& maximum, at::Tensor& sum);
void cross_entropy_gradient(const at::Tensor& exponentials, const at::Tensor& targets, std::int64_t first_column, const at::Tensor& sum,
                            double scale, at::Tensor& gradient);
void add_losses(const at::Tensor& targets, const at::Tensor& maximum, const at::Tensor& sum, const at::Tensor& target_logit,
                LossSum& total);

// Products in the tensors' type, softmax in f32. Some queries at a time, with the keys that they see between them, so that the scores that
// are held at once grow with the sequence and not with its square.
void attention(const at::Tensor& qkv, const AttentionShape& shape, at::Tensor& out, at::Tensor& lse);
void attention_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                        at::Tensor& qkv);
void attention_across(const at::Tensor& queries, const at::Tensor& keys_values, const CrossShape& shape, at::Tensor& out, at::Tensor& lse);
void attention_across_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const CrossShape& shape,
                               at::Tensor& queries, at::Tensor& keys_values);
void attention_with_cache(const at::Tensor& qkv, const AttentionShape& shape, std::int64_t position, at::Tensor& keys, at::Tensor& values,
                          at::Tensor& out);
void dropped_attention(const at::Tensor& qkv, const AttentionShape& shape, const ScoreMask& mask, at::Tensor& out, at::Tensor& lse);
void dropped_attention_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                                const ScoreMask& mask, at::Tensor& qkv);
void dropped_attention_across(const at::Tensor& queries, const at::Tensor& keys_values, const CrossShape& shape, const ScoreMask& mask,
                              const at::Tensor& out, const at::Tensor& lse);
void dropped_attention_across_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const CrossShape& shape,
                                       const ScoreMask& mask, const at::Tensor& queries, const at::Tensor& keys_values);

void adamw_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq, at::Tensor& compute,
                const AdamW& options);
void sgd_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& momentum, at::Tensor& compute, const Sgd& options);
at::Tensor squared_norm(const at::Tensor& flat);  // f64 []

}  // namespace tessera::nn::kernels::aten
