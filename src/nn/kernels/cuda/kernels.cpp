#include "nn/kernels/cuda/kernels.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/error.hpp"
#include "nn/kernels/adamw.hpp"
#include "nn/kernels/cuda/library.hpp"

namespace tessera::nn::kernels::cuda {
namespace {

// Stream 0 of CUDA is its default stream, which is null. Older versions of torch cannot tell others' handles.
template <typename Stream>
void* handle_of(const Stream& stream) {
  if (stream.id() == 0) return nullptr;
  if constexpr (requires { stream.native_handle(); }) {
    return stream.native_handle();
  } else {
    throw Error(ErrorCode::internal, "this version of torch does not give away a stream's handle", {}, "the default stream");
  }
}

// Calls function(arguments..., stream) on the device of `like`.
template <typename Function, typename... Arguments>
void call(const at::Tensor& like, Function function, Arguments... arguments) {
  const c10::OptionalDeviceGuard guard(like.is_cpu() ? c10::optional<at::Device>() : like.device());
  void* stream = nullptr;
  if (!like.is_cpu()) stream = handle_of(c10::impl::VirtualGuardImpl(like.device().type()).getStream(like.device()));
  const char* const error = function(arguments..., stream);
  if (error != nullptr) throw Error(ErrorCode::internal, text("a CUDA kernel on ", like.device(), " failed: ", error));
}

TesseraElement element(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return TESSERA_F32;
  ensure(tensor.scalar_type() == at::kBFloat16, text("a CUDA kernel was given elements of type ", tensor.scalar_type()));
  return TESSERA_BF16;
}

// Null where it is undefined.
template <typename T = void>
T* data(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.data_ptr()) : nullptr;
}

std::int64_t rows_of(const at::Tensor& x, const at::Tensor& weight) { return x.numel() / weight.numel(); }

}  // namespace

void rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, at::Tensor& y, at::Tensor& rstd) {
  at::Tensor none;
  add_rms_norm(none, x, weight, epsilon, y, rstd);
}

void add_rms_norm(at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight, double epsilon, at::Tensor& y, at::Tensor& rstd) {
  call(x, library()->rms_norm, element(x), data(sum), data(x), data(weight), static_cast<float>(epsilon), data(y), data<float>(rstd),
       rows_of(x, weight), weight.numel());
}

void rms_norm_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd, at::Tensor& y) {
  call(x, library()->rms_norm_again, element(x), data(x), data(weight), data<float>(rstd), data(y), rows_of(x, weight), weight.numel());
}

void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                       const at::Tensor& residual, at::Tensor& dx, at::Tensor& weight_grad) {
  const std::int64_t rows = rows_of(x, weight);
  const at::Tensor partial = at::empty({library()->slabs(rows), weight.numel()}, weight_grad.options());
  call(x, library()->rms_norm_backward, element(x), data(dy), data(x), data(weight), data<float>(rstd), data(residual), data(dx),
       data<float>(weight_grad), data<float>(partial), rows, weight.numel());
}

void rope(at::Tensor& x, std::int64_t heads, std::int64_t head_dim, std::int64_t seq, std::int64_t position, const at::Tensor& table,
          bool inverse, const at::Tensor& positions) {
  const float* const cosine = data<float>(table);
  call(x, library()->rope, element(x), data(x), x.size(0), x.stride(0), heads, head_dim, seq, position, data<std::int64_t>(positions),
       cosine, cosine + table.size(1) * (head_dim / 2), inverse ? -1.0f : 1.0f);
}

void swiglu(const at::Tensor& gate_up, at::Tensor& hidden) {
  call(hidden, library()->swiglu, element(hidden), data(gate_up), data(hidden), gate_up.size(0), gate_up.size(1) / 2);
}

void swiglu_backward(at::Tensor& gate_up, at::Tensor& hidden) {
  call(hidden, library()->swiglu_backward, element(hidden), data(gate_up), data(hidden), gate_up.size(0), gate_up.size(1) / 2);
}

void cross_entropy_maximum(const at::Tensor& logits, const at::Tensor& targets, std::int64_t first_column, at::Tensor& maximum,
                           at::Tensor& target_logit) {
  call(logits, library()->cross_entropy_maximum, data<float>(logits), data<std::int64_t>(targets), first_column, data<float>(maximum),
       data<float>(target_logit), logits.size(0), logits.size(1));
}

void cross_entropy_exponentials(at::Tensor& logits, const at::Tensor& maximum, at::Tensor& sum) {
  call(logits, library()->cross_entropy_exponentials, data<float>(logits), data<float>(maximum), data<float>(sum), logits.size(0),
       logits.size(1));
}

void cross_entropy_gradient(const at::Tensor& exponentials, const at::Tensor& targets, std::int64_t first_column, const at::Tensor& sum,
                            double scale, at::Tensor& gradient) {
  call(exponentials, library()->cross_entropy_gradient, element(gradient), data<float>(exponentials), data<std::int64_t>(targets),
       first_column, data<float>(sum), scale, data(gradient), exponentials.size(0), exponentials.size(1));
}

void adamw_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq, at::Tensor& compute,
                const AdamW& options) {
  const AdamWFactors f = factors_of(options);
  const TesseraAdamwTensor tensor{
      data<float>(master), data<float>(grad), data<float>(exp_avg), data<float>(exp_avg_sq), data(compute), master.numel(), f.decay};
  call(master, library()->adamw, &tensor, std::int64_t{1}, f.grad_scale, f.first_share, f.beta2, f.second_share, f.step_size, f.correction,
       f.epsilon);
}

at::Tensor squared_norm(const at::Tensor& flat) {
  const at::TensorOptions f64 = flat.options().dtype(at::kDouble);
  const at::Tensor partial = at::empty({TESSERA_SQUARE_SUM_PARTS}, f64), total = at::empty({}, f64);
  call(flat, library()->square_sum, data<float>(flat), flat.numel(), data<double>(partial), data<double>(total));
  return total;
}

}  // namespace tessera::nn::kernels::cuda
