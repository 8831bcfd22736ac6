// What the checkpoint's tests share: small models' tensors, their pieces under any cut, and a folder that goes away.
#pragma once

#include <ATen/core/Tensor.h>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "checkpoint/checkpoint.hpp"

namespace tessera::checkpoint {

using Tensors = std::map<std::string, at::Tensor>;

// A few tensors of several types and ranks: f32 matrices, a vector, bf16 of odd size, i64, a scalar.
Tensors make_tensors(std::uint64_t seed);

// How the world is cut: tensor parallelism tp along some dimension, which need not divide, and the flat part over dp ranks in ranges.
struct World {
  int dp = 1;
  int tp = 1;
  bool sharded = false;  // as ZeRO does: each data-parallel rank has a range of every part
  int size() const { return dp * tp; }
};
// By rank (d * tp + t); ranges are drawn from `random`, some of them empty.
std::vector<std::vector<Piece>> cut(const Tensors& tensors, const World& world, Random& random);

// All ranks write, rank 0 commits.
void save(FileSystem& files, const std::filesystem::path& folder, std::int64_t step, const std::vector<std::vector<Piece>>& ranks,
          State state = {});
void save(const std::filesystem::path& folder, std::int64_t step, const Tensors& tensors);

// Bit for bit.
bool same(const at::Tensor& a, const at::Tensor& b);
// Empty when the reader holds exactly these tensors; otherwise what differs.
std::string difference(const Reader& reader, const Tensors& expected);

// Runs python from .venv with the script in `code`; returns what it printed, or throws with it.
std::string python(const std::string& code);
bool has_python();

}  // namespace tessera::checkpoint
