#include "checkpoint/fp8.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "model/hugging_face.hpp"

namespace tessera::checkpoint {

using model::kFp8Block;

std::vector<std::int64_t> scales_shape(const std::vector<std::int64_t>& matrix) {
  std::vector<std::int64_t> out;
  for (const std::int64_t size : matrix) out.push_back(size / kFp8Block + (size % kFp8Block != 0 ? 1 : 0));
  return out;
}

void multiply_blocks(const at::Tensor& values, const at::Tensor& scales) {
  ensure(values.dim() == 2 && scales.sizes() == at::IntArrayRef(scales_shape(values.sizes().vec())), "a block of a matrix has no scale");
  const at::Tensor of_columns = scales.repeat_interleave(kFp8Block, 1).narrow(1, 0, values.size(1));
  for (std::int64_t block = 0; block < scales.size(0); ++block) {
    const std::int64_t first = block * kFp8Block;
    values.narrow(0, first, std::min(kFp8Block, values.size(0) - first)).mul_(of_columns[block]);
  }
}

}  // namespace tessera::checkpoint
