// The CUDA kernels as a shared library gives them (libtessera_cuda_kernels.so): plain C, without torch.
//
// Pointers are device memory of the current device, matrices are row-major and contiguous unless a stride is named. Work is queued on
// `stream`, a cudaStream_t (null: the default stream), and no function waits for it. Each returns null, or the text of CUDA's error when
// the launch failed. Nothing is allocated; sums have an order that depends on the shapes alone. Arithmetic is in f32, but where it
// says otherwise.
#pragma once

#include <cstdint>

extern "C" {

enum TesseraElement { TESSERA_F32 = 0, TESSERA_BF16 = 1 };

// One range of parameters that is stepped as a whole.
struct TesseraAdamwTensor {
  float* master;
  const float* grad;
  float* exp_avg;
  float* exp_avg_sq;
  void* compute;  // bf16, receives the rounded master; or null
  std::int64_t count;
  float decay;  // 1 - lr * weight_decay
};

// AdamW (Loshchilov and Hutter 2019) over `tensors`, an array in host memory that is read before the call returns. With g = grad *
// grad_scale: exp_avg += first_share * (g - exp_avg); exp_avg_sq = beta2 * exp_avg_sq + second_share * g^2;
// master = decay * master - step_size * exp_avg / (sqrt(exp_avg_sq) * correction + epsilon).
const char* tessera_cuda_adamw(const struct TesseraAdamwTensor* tensors, std::int64_t tensor_count, float grad_scale, float first_share,
                               float beta2, float second_share, float step_size, float correction, float epsilon, void* stream);

// *total = the sum of the squares of x [count], added up in f64. partial: [TESSERA_SQUARE_SUM_PARTS], overwritten.
enum { TESSERA_SQUARE_SUM_PARTS = 1024 };
const char* tessera_cuda_square_sum(const float* x, std::int64_t count, double* partial, double* total, void* stream);

// RMSNorm of x [rows, width]: rstd [rows] = 1 / sqrt(mean(x^2) + epsilon), y = x * rstd * weight. Where `sum` [rows, width] is not null,
// it becomes sum + x, and that is what is normalized.
const char* tessera_cuda_rms_norm(enum TesseraElement type, void* sum, const void* x, const void* weight, float epsilon, void* y,
                                  float* rstd, std::int64_t rows, std::int64_t width, void* stream);
// y from a known rstd.
const char* tessera_cuda_rms_norm_again(enum TesseraElement type, const void* x, const void* weight, const float* rstd, void* y,
                                        std::int64_t rows, std::int64_t width, void* stream);
// dx [rows, width] = the gradient of x, plus `residual` where that is not null; dx may be dy or residual. weight_grad [width], f32, is
// overwritten. partial: f32 [tessera_cuda_slabs(rows), width], overwritten.
const char* tessera_cuda_rms_norm_backward(enum TesseraElement type, const void* dy, const void* x, const void* weight, const float* rstd,
                                           const void* residual, void* dx, float* weight_grad, float* partial, std::int64_t rows,
                                           std::int64_t width, void* stream);
std::int64_t tessera_cuda_slabs(std::int64_t rows);

// Rotates the first `heads` heads of `head_dim` elements of each row in place; rows lie `stride` elements apart. Dimension i of a head
// turns with i + head_dim/2. cosine and sine: f32 [positions, head_dim/2]. Row r stands at positions[r] or, where that is null, at
// position + r % seq. `sign` is 1, or -1 to turn back.
const char* tessera_cuda_rope(enum TesseraElement type, void* x, std::int64_t rows, std::int64_t stride, std::int64_t heads,
                              std::int64_t head_dim, std::int64_t seq, std::int64_t position, const std::int64_t* positions,
                              const float* cosine, const float* sine, float sign, void* stream);

// hidden [rows, width] = silu(gate) * up; gate_up is [rows, 2*width], the gate first in each row.
const char* tessera_cuda_swiglu(enum TesseraElement type, const void* gate_up, void* hidden, std::int64_t rows, std::int64_t width,
                                void* stream);
// gate_up becomes its own gradient, and `hidden`, which holds the gradient of the output, becomes the output.
const char* tessera_cuda_swiglu_backward(enum TesseraElement type, void* gate_up, void* hidden, std::int64_t rows, std::int64_t width,
                                         void* stream);

// Cross-entropy in three steps, of logits f32 [rows, width], the vocabulary's columns from first_column on. targets [rows]; -1: not
// counted. maximum, sum and target_logit are f32 [rows]; a target_logit is 0 where its column is not among these.
const char* tessera_cuda_cross_entropy_maximum(const float* logits, const std::int64_t* targets, std::int64_t first_column, float* maximum,
                                               float* target_logit, std::int64_t rows, std::int64_t width, void* stream);
// logits become exp(logits - maximum), sum is each row's sum of them.
const char* tessera_cuda_cross_entropy_exponentials(float* logits, const float* maximum, float* sum, std::int64_t rows, std::int64_t width,
                                                    void* stream);
// gradient [rows, width] of type `type` = scale * (exponentials / sum - one_hot(target)), 0 for rows that are not counted; in f32 it may be
// the exponentials.
const char* tessera_cuda_cross_entropy_gradient(enum TesseraElement type, const float* exponentials, const std::int64_t* targets,
                                                std::int64_t first_column, const float* sum, double scale, void* gradient,
                                                std::int64_t rows, std::int64_t width, void* stream);

// Whether this library runs the kernels on the host, on host memory (on_host.hpp).
int tessera_cuda_on_host(void);

}  // extern "C"
