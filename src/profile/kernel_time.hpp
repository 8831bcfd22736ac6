// How long single kernels and single exchanges take on one kind of device.
#pragma once

#include <cstdint>

#include "cluster/cluster.hpp"
#include "profile/calibration.hpp"

namespace tessera::profile {

// What the operands of a matrix product are.
enum class Format { bf16, fp8, fp4 };
const char* name_of(Format format);

// Matrix units of NVIDIA's libraries want rows in memory in multiples of 16 bytes: 8 elements of 16 bits. Other products are slower
// there, and those of which several run as one (attention's scores, head by head) leave them for the vector units, as published
// steps with heads of such widths show (bench/truth: bloom_prequel_a100).
inline constexpr std::int64_t kAlignment = 8;

// A device as kernels see it. Throws not_found when it has no units for `format`.
class Kernels {
 public:
  Kernels(const cluster::Device& device, const Calibration& calibration, Format format);

  // `batch` products [m, k] x [k, n] that read and write `bytes`, in seconds: the longer of computing, with tiles dealt over the
  // units in whole waves and a short depth k not filling the pipelines, and of moving. `padded`: the kernel takes any extents.
  double product(double batch, double m, double n, double k, double bytes, Format format, bool padded = false) const;
  // Reading and writing `bytes`, in seconds.
  double move(double bytes) const { return bytes > 0 ? bytes / memory_ + calibration_.launch : 0; }
  // Fused attention's computing: `flops` over key sequences of length `keys` in heads of `head_dim`.
  double attention(double flops, double keys, double head_dim) const;

  Format format() const { return format_; }  // of matrix products
  double launch() const { return calibration_.launch; }
  const Calibration& calibration() const { return calibration_; }

 private:
  double peak(Format format) const { return peak_[static_cast<int>(format)]; }

  Calibration calibration_;
  Format format_;
  double peak_[3] = {};
  double vector_ = 0;  // of the units without matrix instructions; 0: not known
  double memory_ = 0;
  int units_ = 0;
};

// The best share of `units` that tiles of the usual sizes keep busy when they cover `batch` times m x n; 1 with units not known.
double tile_share(double batch, double m, double n, int units);

}  // namespace tessera::profile
