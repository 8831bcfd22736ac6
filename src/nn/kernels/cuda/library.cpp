#include "nn/kernels/cuda/library.hpp"

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/dynamic_library.hpp"
#include "base/error.hpp"

namespace tessera::nn::kernels::cuda {
namespace {

namespace fs = std::filesystem;

template <typename Function>
void find(const DynamicLibrary& library, const fs::path& file, const char* name, Function*& function) {
  if (!library.find(name, function))
    throw Error(ErrorCode::io, text(file.string(), " has no function ", name), {}, "the CUDA kernels of this version", "build again");
}

std::optional<Library> load() {
  const char* const named = std::getenv("TESSERA_CUDA_KERNELS");
  const fs::path file =
      named != nullptr ? fs::path(named) : fs::read_symlink("/proc/self/exe").parent_path() / "libtessera_cuda_kernels.so";
  if (named == nullptr && !fs::exists(file)) return std::nullopt;
  std::string why;
  const DynamicLibrary library(file, why);
  if (!library)
    throw Error(ErrorCode::io, text("the CUDA kernels cannot be loaded: ", why), {}, "a library that nvcc has made",
                "TESSERA_KERNELS=aten does without them");
  Library found;
  find(library, file, "tessera_cuda_adamw", found.adamw);
  find(library, file, "tessera_cuda_square_sum", found.square_sum);
  find(library, file, "tessera_cuda_rms_norm", found.rms_norm);
  find(library, file, "tessera_cuda_rms_norm_again", found.rms_norm_again);
  find(library, file, "tessera_cuda_rms_norm_backward", found.rms_norm_backward);
  find(library, file, "tessera_cuda_slabs", found.slabs);
  find(library, file, "tessera_cuda_rope", found.rope);
  find(library, file, "tessera_cuda_swiglu", found.swiglu);
  find(library, file, "tessera_cuda_swiglu_backward", found.swiglu_backward);
  find(library, file, "tessera_cuda_cross_entropy_maximum", found.cross_entropy_maximum);
  find(library, file, "tessera_cuda_cross_entropy_exponentials", found.cross_entropy_exponentials);
  find(library, file, "tessera_cuda_cross_entropy_gradient", found.cross_entropy_gradient);
  find(library, file, "tessera_cuda_on_host", found.on_host);
  return found;
}

}  // namespace

const Library* library() {
  static const std::optional<Library> loaded = load();
  return loaded ? &*loaded : nullptr;
}

}  // namespace tessera::nn::kernels::cuda
