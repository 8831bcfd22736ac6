#include "checkpoint/checkpoint_helper.hpp"

#include <ATen/ops/empty.h>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "base/error.hpp"
#include "base/folders.hpp"

namespace tessera::checkpoint {
namespace {

at::Tensor random_tensor(const std::vector<std::int64_t>& shape, at::ScalarType type, Random& random) {
  at::Tensor out = at::empty(shape, at::TensorOptions().dtype(at::kFloat));
  float* values = out.data_ptr<float>();
  for (std::int64_t i = 0; i < out.numel(); ++i) values[i] = static_cast<float>(random.uniform() * 2000 - 1000);
  return out.to(type);
}

// The elements of part `index` of `size` along `dim`, flattened.
at::Tensor part_of(const at::Tensor& tensor, int dim, int index, int size) {
  if (dim < 0) return tensor.contiguous().flatten();
  const std::int64_t each = (tensor.size(dim) + size - 1) / size;
  const std::int64_t first = std::min(index * each, tensor.size(dim));
  return tensor.narrow(dim, first, std::min(each, tensor.size(dim) - first)).contiguous().flatten();
}

}  // namespace

Tensors make_tensors(std::uint64_t seed) {
  Random random(seed);
  return {{"embed.weight", random_tensor({16, 12}, at::kFloat, random)},
          {"embed.weight.exp_avg", random_tensor({16, 12}, at::kFloat, random)},
          {"layer.down.weight", random_tensor({6, 24}, at::kFloat, random)},
          {"layer.norm.weight", random_tensor({13}, at::kFloat, random)},
          {"layer.cube", random_tensor({3, 4, 5}, at::kBFloat16, random)},
          {"odd", random_tensor({7}, at::kBFloat16, random)},
          {"counter", random_tensor({5}, at::kLong, random)},
          {"scalar", random_tensor({}, at::kFloat, random)}};
}

std::vector<std::vector<Piece>> cut(const Tensors& tensors, const World& world, Random& random) {
  std::vector<std::vector<Piece>> ranks(static_cast<std::size_t>(world.size()));
  for (const auto& [name, tensor] : tensors) {
    std::vector<int> dims;
    for (int d = 0; d < tensor.dim(); ++d)
      if (world.tp > 1) dims.push_back(d);
    const int dim = dims.empty() ? -1 : dims[random.below(dims.size())];
    for (int t = 0; t < (dim < 0 ? 1 : world.tp); ++t) {
      const at::Tensor part = part_of(tensor, dim, t, world.tp);
      std::int64_t begin = 0;
      for (int d = 0; d < (world.sharded ? world.dp : 1); ++d) {
        const bool last = !world.sharded || d == world.dp - 1;
        const std::int64_t left = part.numel() - begin;
        const std::int64_t end =
            last ? part.numel() : begin + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(left) + 1));
        Piece piece{
            name, tensor.sizes().vec(), dim, dim < 0 ? 0 : t, dim < 0 ? 1 : world.tp, begin, end, part.narrow(0, begin, end - begin)};
        if (begin < end) ranks[static_cast<std::size_t>(d * world.tp + t)].push_back(std::move(piece));
        begin = end;
      }
    }
  }
  return ranks;
}

void save(FileSystem& files, const std::filesystem::path& folder, std::int64_t step, const std::vector<std::vector<Piece>>& ranks,
          State state) {
  const int world_size = static_cast<int>(ranks.size());
  try {
    for (int rank = 0; rank < world_size; ++rank)
      Writer(files, folder, step, rank, world_size).write(ranks[static_cast<std::size_t>(rank)]);
  } catch (const Error&) {
    Writer(files, folder, step, 0, world_size).abandon();
    throw;
  }
  state.step = step;
  Writer(files, folder, step, 0, world_size).commit(state);
}

void save(const std::filesystem::path& folder, std::int64_t step, const Tensors& tensors) {
  Random random(1);
  save(real_file_system(), folder, step, cut(tensors, {}, random));
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

std::string difference(const Reader& reader, const Tensors& expected) {
  if (reader.tensors().size() != expected.size()) return text(reader.tensors().size(), " tensors instead of ", expected.size());
  for (const auto& [name, tensor] : expected) {
    if (!reader.has(name)) return "no tensor " + name;
    if (!same(reader.read(name), tensor)) return "tensor " + name + " differs";
  }
  return {};
}

bool has_python() { return std::filesystem::exists(std::filesystem::path(kSourceFolder) / ".venv/bin/python"); }

std::string python(const std::string& code) {
  TemporaryFolder folder;
  const auto script = folder.path() / "script.py";
  write_whole(real_file_system(), script, code);
  const std::string command = text("cd ", folder.path().string(), " && ", kSourceFolder, "/.venv/bin/python script.py > out.txt 2>&1");
  const int status = std::system(command.c_str());
  const std::string output = read_whole(folder.path() / "out.txt");
  if (status != 0) throw std::runtime_error("python failed:\n" + output);
  return output;
}

}  // namespace tessera::checkpoint
