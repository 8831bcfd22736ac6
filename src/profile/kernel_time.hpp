// How long single kernels take on one kind of device.
#pragma once

#include <cstdint>

#include "cluster/cluster.hpp"
#include "profile/calibration.hpp"

namespace tessera::profile {

// The number format of a matrix product's operands.
enum class Format { bf16, fp8, fp4 };
const char* name_of(Format format);

// NVIDIA's libraries want the rows of matrices in multiples of 16 bytes: 8 elements of 16 bits. Products of other extents are slower on the
// matrix units; batched ones (attention's scores, head by head) run on the vector units, as published steps with heads of such widths
// show (bench/truth: bloom_prequel_a100).
inline constexpr std::int64_t kAlignment = 8;

// The times of kernels on one device under one calibration. Thread-safe: it does not change.
class Kernels {
 public:
  // Throws not_found when the device has no units for `format`.
  Kernels(const cluster::Device& device, const Calibration& calibration, Format format);

  // Seconds of `batch` products [m, k] x [k, n] that read and write `bytes`: the longer of computing and of moving. Tiles are dealt over
  // the device's units in whole waves, and a short depth k does not fill their pipelines. `padded`: all extents are as fast as aligned
  // ones.
  double product(double batch, double m, double n, double k, double bytes, Format format, bool padded = false) const;
  // Seconds of a kernel that reads and writes `bytes` in all.
  double move(double bytes) const { return bytes > 0 ? bytes / memory_ + calibration_.launch : 0; }
  // Seconds of fused attention that computes `flops`, over sequences of `keys` keys in heads of `head_dim`.
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

// The share of `units` that tiles keep busy when they cover `batch` times m x n, with the best of the usual tile sizes. 9 equal tiles on 8
// units take two waves: 9 / 16. `units` 0 (not known): 1.
double tile_share(double batch, double m, double n, int units);

}  // namespace tessera::profile
