#include "profile/kernel_time.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tessera::profile {
namespace {

// Tiles of library kernels, with what a smaller one loses by reading its operands more often.
struct Tile {
  double m;
  double n;
  double share;
};
constexpr Tile kTiles[] = {{256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.94}, {128, 64, 0.85}, {64, 64, 0.7}};
// Of the vector units' peak.
constexpr double kVectorShare = 0.75;
// Rows in memory that are no multiple of 16 bytes rule out loads of 16 bytes at a time: so much longer takes the product. Derived, not
// measured: a training step of GPT-2 124M took 1.25 times as long with a vocabulary of 50257 as with 50304 (Karpathy 2023). Its head has
// 31 % of the FLOPs, 1 + 0.25 / 0.31 = 1.8, but 16 % of the time as priced here, 1 + 0.25 / 0.16 = 2.5; this is their geometric mean.
constexpr double kUnalignedLoads = 2.1;
// Key sequence at which fused attention is at half its speed, and how its speed falls with narrower heads.
constexpr double kKeysHalf = 300;
constexpr double kHeadPower = 0.3;
constexpr double kHead = 128;

bool aligned(double extent) { return static_cast<std::int64_t>(extent) % kAlignment == 0; }

}  // namespace

const char* name_of(Format format) {
  switch (format) {
    case Format::bf16: return "bf16";
    case Format::fp8: return "fp8";
    case Format::fp4: return "fp4";
  }
  return "bf16";
}

double tile_share(double batch, double m, double n, int units) {
  if (units <= 0) return 1;
  double best = 0;
  for (const Tile& tile : kTiles) {
    const double tiles = std::ceil(m / tile.m) * std::ceil(n / tile.n) * batch;
    const double waves = std::ceil(tiles / units);
    best = std::max(best, tile.share * batch * m * n / (tile.m * tile.n) / (waves * units));
  }
  return best;
}

Kernels::Kernels(const cluster::Device& device, const Calibration& calibration, Format format)
    : calibration_(calibration), format_(format), memory_(device.memory_bandwidth.value * calibration.memory), units_(device.units) {
  const auto rate = [&](const char* key) {
    const auto found = device.peak.find(key);
    return found == device.peak.end() ? 0.0 : found->second.value;
  };
  vector_ = rate("fp32");
  peak_[0] = std::max(rate("bf16"), rate("fp16"));
  if (peak_[0] == 0) peak_[0] = vector_;
  peak_[1] = rate("fp8");
  peak_[2] = rate("fp4");
  if (peak(format) == 0)
    throw Error(ErrorCode::not_found, text("device ", device.name, " has no units for ", name_of(format)), {},
                "a format of the device's peaks");
}

double Kernels::product(double batch, double m, double n, double k, double bytes, Format format, bool padded) const {
  double rate = tile_share(batch, m, n, units_) * k / (k + calibration_.depth_half);
  const bool odd = calibration_.vector_fallback && !padded && !(aligned(m) && aligned(n) && aligned(k));
  if (odd && batch > 1 && vector_ > 0) {
    rate *= vector_ * kVectorShare;
  } else {
    rate *= peak(format) * (format == Format::bf16  ? calibration_.matmul
                            : format == Format::fp8 ? calibration_.matmul_fp8
                                                    : calibration_.matmul_fp4);
    if (odd) rate /= kUnalignedLoads;
  }
  return std::max(2 * batch * m * n * k / rate, bytes / memory_) + calibration_.launch;
}

double Kernels::attention(double flops, double keys, double head_dim) const {
  const double narrow = std::min(1.0, std::pow(head_dim / kHead, kHeadPower));
  return flops / (peak(Format::bf16) * calibration_.attention_share * narrow * keys / (keys + kKeysHalf));
}

}  // namespace tessera::profile
