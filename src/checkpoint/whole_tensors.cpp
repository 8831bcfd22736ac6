#include "checkpoint/whole_tensors.hpp"

#include <ATen/ops/empty.h>

#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/cut.hpp"
#include "nn/block.hpp"

namespace tessera::checkpoint {
namespace {

// Weights are written in shards of about this size, so that no more than one is in memory at a time.
constexpr std::int64_t kShardBytes = 1 << 30;

}  // namespace

WholeTensor begun_anew(const std::string& name, const model::ParameterSpec& parameter, std::uint64_t seed) {
  return {name, parameter.unstacked().shape, [name, &parameter, seed] {
            at::Tensor out = at::empty(parameter.shape, at::TensorOptions().dtype(at::kFloat));
            nn::initialize(parameter, name, seed, {}, out);
            return out;
          }};
}

void write_weights(FileSystem& disk, const std::filesystem::path& folder, const std::vector<WholeTensor>& tensors, State state) {
  state.extra[kWeightsOnly] = 1;
  std::vector<std::vector<const WholeTensor*>> shards(1);
  std::int64_t size = 0;
  for (const WholeTensor& tensor : tensors) {
    const std::int64_t bytes = 4 * element_count(tensor.shape);
    if (size > 0 && size + bytes > kShardBytes) {
      shards.emplace_back();
      size = 0;
    }
    shards.back().push_back(&tensor);
    size += bytes;
  }
  const int count = static_cast<int>(shards.size());
  Writer whole(disk, folder, 0, 0, count);
  try {
    for (int rank = 0; rank < count; ++rank) {
      std::vector<Piece> pieces;
      for (const WholeTensor* tensor : shards[static_cast<std::size_t>(rank)])
        pieces.push_back({tensor->name, tensor->shape, -1, 0, 1, 0, element_count(tensor->shape), tensor->load().flatten()});
      Writer(disk, folder, 0, rank, count).write(pieces);
    }
  } catch (const Error&) {
    whole.abandon();
    throw;
  }
  whole.commit(state);
}

}  // namespace tessera::checkpoint
