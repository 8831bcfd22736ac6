// Internal: one thread's share of a matrix product of bf16 for CPUs with AMX, whose tiles hold 16 x 16 sums in f32: 32 x 32 of c at once.
#pragma once

#include "nn/kernels/gemm_avx512.hpp"

namespace tessera::nn::kernels {

constexpr std::int64_t kAmxTile = 32;

// Asks the system for the tiles' state once. False also where it refuses.
bool has_amx();

// Like those for AVX-512: c's element type, and sums that do not depend on how a product was split along m and n.
void gemm_bf16_f32_amx(const Product& product);
void gemm_bf16_bf16_amx(const Product& product);

}  // namespace tessera::nn::kernels
