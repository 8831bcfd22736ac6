#include "nn/kernels/convolution.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <array>
#include <tuple>

#include "model/vision_cost.hpp"
#include "nn/kernels/bias.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/dispatch.hpp"
#include "nn/kernels/gemm.hpp"

namespace tessera::nn::kernels {
namespace {

struct Geometry {
  std::int64_t samples, in, height, width, side, stride;

  Geometry(const at::Tensor& maps, std::int64_t kernel_side, std::int64_t step)
      : samples(maps.size(0)), in(maps.size(1)), height(maps.size(2)), width(maps.size(3)), side(kernel_side), stride(step) {}
  std::int64_t padding() const { return side / 2; }
  std::int64_t out_height() const { return (height - 1) / stride + 1; }
  std::int64_t out_width() const { return (width - 1) / stride + 1; }
  std::int64_t pixels() const { return samples * out_height() * out_width(); }  // of the output
  std::int64_t patch() const { return in * side * side; }
  // Maps are theirs as they lie, and none is left out.
  bool plain() const { return side == 1 && stride == 1; }
};

// Windows of one pixel are products of the maps as they lie. Others pay for the order that libtorch convolves in, or for a copy of patches.
bool by_product(const at::Tensor& maps, const Geometry& of, std::int64_t out, model::Gradient gradient) {
  return use_cpu_kernels(maps) && (of.side == 1 || model::by_patches(of.pixels(), out, gradient));
}

at::Tensor rows_of(const at::Tensor& maps) { return maps.permute({0, 2, 3, 1}).reshape({-1, maps.size(1)}); }
at::Tensor maps_of(const at::Tensor& rows, std::int64_t samples, std::int64_t height, std::int64_t width) {
  return rows.view({samples, height, width, rows.size(1)}).permute({0, 3, 1, 2});
}

// Calls body(row of the patches, tap of the window, pixel of the maps) for the pixels of a sample's windows; the pixel is -1 in the
// padding.
template <typename Body>
TESSERA_INLINE void over_taps(const Geometry& of, std::int64_t sample, const Body& body) {
  std::int64_t row = sample * of.out_height() * of.out_width();
  for (std::int64_t top = -of.padding(); top <= of.height - 1 - of.padding(); top += of.stride)
    for (std::int64_t left = -of.padding(); left <= of.width - 1 - of.padding(); left += of.stride, ++row)
      for (std::int64_t tap = 0; tap < of.side * of.side; ++tap) {
        const std::int64_t y = top + tap / of.side, x = left + tap % of.side;
        const bool inside = y >= 0 && y < of.height && x >= 0 && x < of.width;
        body(row, tap, inside ? (sample * of.height + y) * of.width + x : -1);
      }
}

// [pixels, in * side * side], in the order of a row of weights.
at::Tensor patches_of(const at::Tensor& maps, const Geometry& of) {
  if (of.plain()) return rows_of(maps);
  const at::Tensor source = rows_of(maps);
  at::Tensor out = at::empty({of.pixels(), of.patch()}, maps.options().memory_format(at::MemoryFormat::Contiguous));
  const std::int64_t taps = of.side * of.side;
  dispatch(maps, [&](auto tag) {
    using T = decltype(tag);
    const T* from = data<T>(source);
    T* to = data<T>(out);
    at::parallel_for(0, of.samples, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t sample = begin; sample < end; ++sample)
        over_taps(of, sample, [&](std::int64_t row, std::int64_t tap, std::int64_t pixel) {
          T* place = to + row * of.patch() + tap;
          for (std::int64_t channel = 0; channel < of.in; ++channel)
            place[channel * taps] = pixel < 0 ? T{} : from[pixel * of.in + channel];
        });
    });
  });
  return out;
}

// f32 [samples * height * width, in]: sums of what patches f32 hold of each pixel.
at::Tensor sums_of(const at::Tensor& patches, const Geometry& of) {
  at::Tensor out = at::zeros({of.samples * of.height * of.width, of.in}, patches.options());
  const std::int64_t taps = of.side * of.side;
  const float* from = data<float>(patches);
  float* to = data<float>(out);
  at::parallel_for(0, of.samples, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t sample = begin; sample < end; ++sample)
      over_taps(of, sample, [&](std::int64_t row, std::int64_t tap, std::int64_t pixel) {
        if (pixel < 0) return;
        const float* place = from + row * of.patch() + tap;
        for (std::int64_t channel = 0; channel < of.in; ++channel) to[pixel * of.in + channel] += place[channel * taps];
      });
  });
  return out;
}

at::Tensor matrix_of(const at::Tensor& weight) { return weight.view({weight.size(0), -1}); }

std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients(const at::Tensor& grad, const at::Tensor& maps, const at::Tensor& weight,
                                                         const Geometry& of, std::array<bool, 3> which) {
  return at::convolution_backward(grad, maps, weight, at::IntArrayRef(weight.size(0)), {of.stride, of.stride}, {of.padding(), of.padding()},
                                  {1, 1}, false, {0, 0}, 1, which);
}

}  // namespace

at::Tensor convolve(const at::Tensor& maps, const at::Tensor& weight, const at::Tensor& bias, std::int64_t stride) {
  const Geometry of(maps, weight.size(2), stride);
  if (!by_product(maps, of, weight.size(0), model::Gradient::of_maps)) return at::conv2d(maps, weight, bias, stride, of.padding());
  at::Tensor out = at::empty({of.pixels(), weight.size(0)}, maps.options().memory_format(at::MemoryFormat::Contiguous));
  gemm(patches_of(maps, of), matrix_of(weight).t(), out);
  if (bias.defined()) add_bias(out, bias);
  return maps_of(out, of.samples, of.out_height(), of.out_width());
}

at::Tensor convolve_backward_maps(const at::Tensor& grad, const at::Tensor& maps, const at::Tensor& weight, std::int64_t stride) {
  const Geometry of(maps, weight.size(2), stride);
  if (!by_product(maps, of, weight.size(0), model::Gradient::of_maps))
    return std::get<0>(gradients(grad, maps, weight, of, {true, false, false}));
  const at::TensorOptions options = maps.options().memory_format(at::MemoryFormat::Contiguous);
  at::Tensor patches = at::empty({of.pixels(), of.patch()}, of.plain() ? options : options.dtype(at::kFloat));
  gemm(rows_of(grad), matrix_of(weight), patches);
  return maps_of(of.plain() ? patches : sums_of(patches, of).to(maps.scalar_type()), of.samples, of.height, of.width);
}

void convolve_backward_weight(const at::Tensor& grad, const at::Tensor& maps, const at::Tensor& weight_grad, const at::Tensor& bias_grad,
                              std::int64_t stride) {
  const Geometry of(maps, weight_grad.size(2), stride);
  if (by_product(maps, of, weight_grad.size(0), model::Gradient::of_weight)) {
    const at::Tensor rows = rows_of(grad);
    gemm(rows.t(), patches_of(maps, of), matrix_of(weight_grad), true);
    if (bias_grad.defined()) bias_backward(rows, bias_grad);
    return;
  }
  // Of the weight only extents and layout count.
  const at::Tensor weight = at::empty(weight_grad.sizes(), maps.options().memory_format(at::MemoryFormat::ChannelsLast));
  const auto made = gradients(grad, maps, weight, of, {false, true, bias_grad.defined()});
  weight_grad.add_(std::get<1>(made));
  if (bias_grad.defined()) bias_grad.add_(std::get<2>(made));
}

}  // namespace tessera::nn::kernels
