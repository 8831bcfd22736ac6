#include "nn/kernels/aten/flash_attention.hpp"

#include <ATen/Context.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/tensor.h>
#include <algorithm>
#include <optional>
#include <vector>

namespace tessera::nn::kernels::aten {
namespace {

// Which of libtorch's kernels, as _fused_sdp_choice numbers them.
constexpr std::int64_t kFlash = 1, kCudnn = 3;
std::int64_t choice_of(const Heads& heads) {
  return at::_fused_sdp_choice(heads.queries, heads.keys, heads.values, {}, 0.0, /*is_causal=*/true, std::nullopt, /*enable_gqa=*/true);
}

// cuDNN's is faster where libtorch prefers it, and knows masks of whole samples alone. Its backward pass adds up in any order.
bool cudnn_attends(const Heads& heads, const CrossShape& s, std::span<const Segment> documents) {
  const bool whole = documents.empty() && s.window == 0 && (!s.causal || (s.offset == 0 && s.queries == s.keys));
  return whole && choice_of(heads) == kCudnn;
}

// What FlashAttention is asked for, beside the tensors.
struct Request {
  at::Tensor starts;           // of each document, i32, and the end of the last; undefined where each sample is one
  std::int64_t queries, keys;  // of a sample, or of the longest document
  std::int64_t seen;           // keys that are seen by any query of a sample
  bool causal;
  std::optional<std::int64_t> before, behind;  // positions that a query sees beside its own, which is the last key for the last query
};

Request request_of(const CrossShape& s, std::span<const Segment> documents, at::Device device) {
  Request request{{}, s.queries, s.keys, s.keys, false, {}, {}};
  if (!documents.empty()) {
    std::vector<int> starts = {0};
    request.queries = 0;
    for (const Segment& document : documents) {
      starts.push_back(starts.back() + static_cast<int>(document.rows));
      request.queries = std::max(request.queries, document.rows);
    }
    request.keys = request.queries;
    request.starts = at::tensor(starts, at::TensorOptions(at::kInt)).to(device);
  }
  if (!s.causal) return request;
  if (documents.empty()) request.seen = request.keys = std::min(s.keys, s.offset + s.queries);
  // The last query stands at this many positions behind the last key.
  const std::int64_t behind = documents.empty() ? s.offset + s.queries - request.seen : 0;
  request.causal = behind == 0;
  request.behind = behind;
  if (s.window > 0) request.before = s.window - 1 - behind;
  return request;
}

// libtorch wants [batch, rows, heads, head_dim], and [rows, heads, head_dim] of documents.
at::Tensor as_rows(const at::Tensor& heads, const Request& request) {
  const at::Tensor rows = heads.transpose(1, 2);
  return request.starts.defined() ? rows.flatten(0, 1) : rows;
}

std::optional<at::Tensor> given(const at::Tensor& tensor) { return tensor.defined() ? std::optional(tensor) : std::nullopt; }

// Makes FlashAttention add gradients up in one order, while it lives. One thread of a process uses a GPU.
class OneOrder {
 public:
  OneOrder() : before_(at::globalContext().deterministicAlgorithms()), warned_(at::globalContext().deterministicAlgorithmsWarnOnly()) {
    at::globalContext().setDeterministicFillUninitializedMemory(false);
    at::globalContext().setDeterministicAlgorithms(true, false);
  }
  ~OneOrder() { at::globalContext().setDeterministicAlgorithms(before_, warned_); }
  OneOrder(const OneOrder&) = delete;
  OneOrder& operator=(const OneOrder&) = delete;

 private:
  const bool before_, warned_;
};

}  // namespace

bool flash_attends(const Heads& heads, const CrossShape& s, std::span<const Segment> documents) {
  const at::ScalarType type = heads.queries.scalar_type();
  if (!heads.queries.is_cuda() || (type != at::kBFloat16 && type != at::kHalf) || s.head_dim % 8 != 0 || s.head_dim > 256) return false;
  // It takes a bound that is longer than the keys for none, which is right where all queries see all of them; and of single queries with a
  // window it has wrong gradients.
  const std::int64_t seen = std::min(s.keys, s.offset + s.queries);
  const bool bound_is_lost = s.offset + s.queries - seen >= seen;
  if (s.causal && documents.empty() && bound_is_lost && (s.offset < seen - 1 || s.window > 0)) return false;
  const auto longer = [](const Segment& document) { return document.rows > 1; };
  if (documents.empty() ? s.queries == 1 : std::none_of(documents.begin(), documents.end(), longer)) return false;
  const std::int64_t choice = choice_of(heads);  // libtorch knows the GPU
  return choice == kFlash || choice == kCudnn;
}

void flash_attention(const Heads& heads, const CrossShape& shape, std::span<const Segment> documents, const at::Tensor& out,
                     const at::Tensor& lse) {
  if (cudnn_attends(heads, shape, documents)) {
    const auto result = at::_scaled_dot_product_cudnn_attention(heads.queries, heads.keys, heads.values, /*attn_bias=*/{},
                                                                /*compute_log_sumexp=*/true, /*dropout_p=*/0.0, shape.causal);
    out.copy_(std::get<0>(result));
    lse.copy_(std::get<1>(result).view(lse.sizes()));
    return;
  }
  const Request request = request_of(shape, documents, out.device());
  const auto [result, sums, state, unused, mask] = at::_flash_attention_forward(
      as_rows(heads.queries, request), as_rows(heads.keys.narrow(2, 0, request.seen), request),
      as_rows(heads.values.narrow(2, 0, request.seen), request), given(request.starts), given(request.starts), request.queries,
      request.keys, /*dropout_p=*/0.0, request.causal, /*return_debug_mask=*/false, /*scale=*/std::nullopt, request.before, request.behind);
  as_rows(out, request).copy_(result);
  // [heads, rows] of documents.
  lse.copy_(request.starts.defined() ? sums.view({shape.heads, shape.batch, shape.queries}).transpose(0, 1) : sums);
}

void flash_attention_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const CrossShape& shape,
                              std::span<const Segment> documents, const Heads& heads) {
  const OneOrder order;
  const Request request = request_of(shape, documents, out.device());
  const at::Tensor sums =
      request.starts.defined() ? lse.transpose(0, 1).reshape({shape.heads, shape.batch * shape.queries}) : lse.contiguous();
  const at::Tensor keys = heads.keys.narrow(2, 0, request.seen), values = heads.values.narrow(2, 0, request.seen);
  const auto [query_grads, key_grads, value_grads] = at::_flash_attention_backward(
      as_rows(out_grad, request), as_rows(heads.queries, request), as_rows(keys, request), as_rows(values, request), as_rows(out, request),
      sums, request.starts, request.starts, request.queries, request.keys, /*dropout_p=*/0.0, request.causal, /*rng_state=*/{},
      /*unused=*/{}, /*scale=*/std::nullopt, request.before, request.behind);
  as_rows(heads.queries, request).copy_(query_grads);
  as_rows(keys, request).copy_(key_grads);
  as_rows(values, request).copy_(value_grads);
  if (request.seen == shape.keys) return;
  heads.keys.narrow(2, request.seen, shape.keys - request.seen).zero_();
  heads.values.narrow(2, request.seen, shape.keys - request.seen).zero_();
}

}  // namespace tessera::nn::kernels::aten
