#include "nn/kernels/attention_avx512.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>

#include "nn/kernels/element.hpp"
#include "nn/kernels/gemm_avx512.hpp"

namespace tessera::nn::kernels {
namespace {

#if defined(__x86_64__) && defined(__GNUC__)
#define TESSERA_AVX512_LOOP __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#else
#define TESSERA_AVX512_LOOP
#endif

constexpr std::int64_t kTileRows = kGemmTileRows;
constexpr std::int64_t kTileColumns = kGemmTileColumns;
// Query rows whose probabilities are kept for the gradients of keys and values: fewer lose more to the packing of their
// transpose, more to the half of the block that lies beyond the diagonal.
constexpr std::int64_t kBlockRows = 4 * kTileRows;

template <typename T>
constexpr std::int64_t kPerUnit = sizeof(float) / sizeof(T);

std::int64_t round_up(std::int64_t value, std::int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

std::int64_t round_down(std::int64_t value, std::int64_t multiple) { return value / multiple * multiple; }

struct Range {
  std::int64_t begin;
  std::int64_t end;
};

// One thread's memory for one head group, cut into pieces that are aligned to cache lines.
class Arena {
 public:
  explicit Arena(std::int64_t floats) {
    thread_local std::unique_ptr<float, decltype(&std::free)> memory(nullptr, &std::free);
    thread_local std::int64_t size = 0;
    if (size < floats) {
      memory.reset(static_cast<float*>(std::aligned_alloc(4096, static_cast<std::size_t>(round_up(floats * 4, 4096)))));
      if (memory == nullptr) throw std::bad_alloc();
      size = floats;
    }
    next_ = memory.get();
  }
  float* take(std::int64_t floats) {
    float* piece = next_;
    next_ += round_up(floats, 16);
    return piece;
  }

 private:
  float* next_;
};

// Panels of a matrix [depth, lines]; with whole = units of the full depth, panel p starts at p * units * 32.
template <typename T>
struct Panels {
  float* data;
  std::int64_t units;
  std::int64_t lines;

  static std::int64_t floats(std::int64_t depth, std::int64_t lines) {
    return round_up(depth, 2 * kPerUnit<T>) / kPerUnit<T> * round_up(lines, kTileColumns) + 64;
  }
  Panels(Arena& arena, const T* from, std::int64_t line_stride, std::int64_t depth_stride, std::int64_t line_count, std::int64_t depth)
      : data(arena.take(floats(depth, line_count))), units((depth + kPerUnit<T> - 1) / kPerUnit<T>), lines(line_count) {
    for (std::int64_t line = 0; line < lines; line += kTileColumns) {
      pack_panel(from + line * line_stride, line_stride, depth_stride, std::min(kTileColumns, lines - line), depth, data + line * units);
    }
  }
  // c [rows, lines] = a * these panels, over a range of k and of lines that begin at multiples of a tile's width. Columns of a and c count
  // from 0.
  template <typename C>
  void multiply(int rows, const T* a, std::int64_t a_stride, Range depth, Range lines, C* c, std::int64_t c_stride) const {
    const std::int64_t first = depth.begin / kPerUnit<T>;
    const std::int64_t count = (depth.end + kPerUnit<T> - 1) / kPerUnit<T> - first;
    for (std::int64_t j = lines.begin; j < lines.end; j += kTileColumns) {
      multiply_tile<T, C>(rows, count, reinterpret_cast<const float*>(a + depth.begin), a_stride / kPerUnit<T>,
                          data + j * units + first * kTileColumns, c + j, c_stride, std::min(kTileColumns, lines.end - j), false);
    }
  }
};

// scores [width] -> probabilities, zero outside of `seen`; returns the log-sum-exp.
template <typename T>
TESSERA_AVX512_LOOP float softmax_row(float* scores, float scale, Range seen, std::int64_t width, T* probabilities) {
  for (std::int64_t j = 0; j < seen.begin; ++j) scores[j] = -INFINITY;
  for (std::int64_t j = seen.end; j < width; ++j) scores[j] = -INFINITY;
  float peaks[kLanes];
  for (std::int64_t l = 0; l < kLanes; ++l) peaks[l] = -INFINITY;
  for (std::int64_t j = 0; j < width; j += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) peaks[l] = scores[j + l] > peaks[l] ? scores[j + l] : peaks[l];
  }
  float peak = peaks[0];
  for (std::int64_t l = 1; l < kLanes; ++l) peak = std::max(peak, peaks[l]);
  const float shift = peak * scale;
  float sums[kLanes] = {};
  for (std::int64_t j = 0; j < width; j += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      scores[j + l] = fast_exp(scores[j + l] * scale - shift);
      sums[l] += scores[j + l];
    }
  }
  const float sum = sum_lanes(sums);
  const float inverse = 1.0f / sum;
  for (std::int64_t j = 0; j < width; ++j) store(probabilities[j], scores[j] * inverse);
  return shift + std::log(sum);
}

// From scores and the log-sum-exp the probabilities again, and from the gradient of the probabilities that of the scores.
template <typename T>
TESSERA_AVX512_LOOP void softmax_row_backward(const float* scores, const float* gradient, float scale, float lse, float delta, Range seen,
                                              std::int64_t width, T* probabilities, T* score_gradient) {
  for (std::int64_t j = 0; j < seen.begin; ++j) probabilities[j] = score_gradient[j] = T{};
  for (std::int64_t j = seen.begin; j < seen.end; ++j) {
    const float p = fast_exp(scores[j] * scale - lse);
    store(probabilities[j], p);
    store(score_gradient[j], p * (gradient[j] - delta) * scale);
  }
  for (std::int64_t j = seen.end; j < width; ++j) probabilities[j] = score_gradient[j] = T{};
}

template <typename T>
TESSERA_AVX512_LOOP float dot(const T* a, const T* b, std::int64_t width) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] += load(a[i + l]) * load(b[i + l]);
  }
  for (; i < width; ++i) lanes[i % kLanes] += load(a[i]) * load(b[i]);
  return sum_lanes(lanes);
}

template <typename T>
TESSERA_AVX512_LOOP void write_rows(const float* from, std::int64_t rows, std::int64_t width, T* to, std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < width; ++i) store(to[r * stride + i], from[r * width + i]);
  }
}

void add_product(const Product& product, float) { gemm_f32_avx512(product); }
void add_product(const Product& product, Bf16) { gemm_bf16_f32_avx512(product); }

}  // namespace

template <typename T>
void attend(const HeadGroup<T>& g) {
  const std::int64_t d = g.head_dim;
  // Row buffers are a multiple of a tile's width; the odd part keeps rows of one tile out of each other's cache sets.
  const std::int64_t row_stride = round_up(g.key_rows, kTileColumns) + 16;
  Arena arena(Panels<T>::floats(d, g.key_rows) + Panels<T>::floats(g.key_rows, d) + 2 * kTileRows * row_stride + 64);
  const Panels<T> keys(arena, g.keys, g.key_stride, 1, g.key_rows, d);
  const Panels<T> values(arena, g.values, 1, g.key_stride, d, g.key_rows);
  float* scores = arena.take(kTileRows * row_stride);
  T* probabilities = reinterpret_cast<T*>(arena.take(kTileRows * row_stride));
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));

  for (std::int64_t h = 0; h < g.heads; ++h) {
    for (std::int64_t i = 0; i < g.query_rows; i += kTileRows) {
      const int rows = static_cast<int>(std::min(kTileRows, g.query_rows - i));
      const std::int64_t from = round_down(g.first_key(i), kTileColumns);
      const std::int64_t width = round_up(g.last_key(i + rows - 1), kTileColumns);
      keys.multiply(rows, g.queries + h * d + i * g.stride, g.stride, {0, d}, {from, width}, scores, row_stride);
      for (int r = 0; r < rows; ++r) {
        g.lse[h * g.lse_stride + i + r] =
            softmax_row(scores + r * row_stride + from, scale, {g.first_key(i + r) - from, g.last_key(i + r) - from}, width - from,
                        probabilities + r * row_stride + from);
      }
      values.multiply(rows, probabilities, row_stride, {from, g.last_key(i + rows - 1)}, {0, d}, g.out + h * d + i * g.out_stride,
                      g.out_stride);
    }
  }
}

template <typename T>
void attend_backward(const HeadGroup<T>& g) {
  const std::int64_t d = g.head_dim;
  const std::int64_t row_stride = round_up(g.key_rows, kTileColumns) + 16;
  Arena arena(2 * Panels<T>::floats(d, g.key_rows) + Panels<T>::floats(g.key_rows, d) + 2 * (kTileRows + kBlockRows) * row_stride +
              2 * g.key_rows * d + kBlockRows * d + 256);
  const Panels<T> keys_across(arena, g.keys, g.key_stride, 1, g.key_rows, d);      // for scores
  const Panels<T> values_across(arena, g.values, g.key_stride, 1, g.key_rows, d);  // for the probabilities' gradients
  const Panels<T> keys(arena, g.keys, 1, g.key_stride, d, g.key_rows);             // for the queries' gradients
  float* scores = arena.take(kTileRows * row_stride);
  float* gradients = arena.take(kTileRows * row_stride);
  T* probabilities = reinterpret_cast<T*>(arena.take(kBlockRows * row_stride));
  T* score_gradients = reinterpret_cast<T*>(arena.take(kBlockRows * row_stride));
  float* key_gradients = arena.take(g.key_rows * d);
  float* value_gradients = arena.take(g.key_rows * d);
  T* query_gradients = reinterpret_cast<T*>(arena.take(kBlockRows * d));
  std::fill_n(key_gradients, g.key_rows * d, 0.0f);
  std::fill_n(value_gradients, g.key_rows * d, 0.0f);
  const float scale = 1.0f / std::sqrt(static_cast<float>(d));

  for (std::int64_t h = 0; h < g.heads; ++h) {
    for (std::int64_t block = 0; block < g.query_rows; block += kBlockRows) {
      const std::int64_t block_rows = std::min(kBlockRows, g.query_rows - block);
      const std::int64_t block_from = round_down(g.first_key(block), kTileColumns);
      const std::int64_t block_end = g.last_key(block + block_rows - 1);
      const std::int64_t block_width = round_up(block_end, kTileColumns);
      T* queries = g.queries + h * d + block * g.stride;
      const T* out_grad = g.out_grad + h * d + block * g.out_stride;
      const T* out = g.out + h * d + block * g.out_stride;
      for (std::int64_t i = 0; i < block_rows; i += kTileRows) {
        const int rows = static_cast<int>(std::min(kTileRows, block_rows - i));
        const std::int64_t from = round_down(g.first_key(block + i), kTileColumns);
        const std::int64_t width = round_up(g.last_key(block + i + rows - 1), kTileColumns);
        keys_across.multiply(rows, queries + i * g.stride, g.stride, {0, d}, {from, width}, scores, row_stride);
        values_across.multiply(rows, out_grad + i * g.out_stride, g.out_stride, {0, d}, {from, width}, gradients, row_stride);
        for (int r = 0; r < rows; ++r) {
          const std::int64_t row = i + r;
          softmax_row_backward(scores + r * row_stride + block_from, gradients + r * row_stride + block_from, scale,
                               g.lse[h * g.lse_stride + block + row], dot(out_grad + row * g.out_stride, out + row * g.out_stride, d),
                               {g.first_key(block + row) - block_from, g.last_key(block + row) - block_from}, block_width - block_from,
                               probabilities + row * row_stride + block_from, score_gradients + row * row_stride + block_from);
        }
        keys.multiply(rows, score_gradients + i * row_stride, row_stride, {from, g.last_key(block + i + rows - 1)}, {0, d},
                      query_gradients + i * d, d);
      }
      const std::int64_t seen = block_end - block_from;
      const std::int64_t skipped = block_from * d;
      add_product({seen,
                   d,
                   block_rows,
                   {probabilities + block_from, 1, row_stride},
                   {out_grad, g.out_stride, 1},
                   value_gradients + skipped,
                   d,
                   true},
                  T{});
      add_product(
          {seen, d, block_rows, {score_gradients + block_from, 1, row_stride}, {queries, g.stride, 1}, key_gradients + skipped, d, true},
          T{});
      for (std::int64_t r = 0; r < block_rows; ++r) std::copy_n(query_gradients + r * d, d, queries + r * g.stride);
    }
  }
  write_rows(key_gradients, g.key_rows, d, g.keys, g.key_stride);
  write_rows(value_gradients, g.key_rows, d, g.values, g.key_stride);
}

template void attend<float>(const HeadGroup<float>&);
template void attend<Bf16>(const HeadGroup<Bf16>&);
template void attend_backward<float>(const HeadGroup<float>&);
template void attend_backward<Bf16>(const HeadGroup<Bf16>&);

}  // namespace tessera::nn::kernels
