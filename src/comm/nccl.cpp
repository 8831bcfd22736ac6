#include "comm/nccl.hpp"

#include <link.h>

#include <cstdlib>
#include <filesystem>

#include "base/dynamic_library.hpp"

namespace tessera::comm {
namespace {

// Calls that do not block work since 2.14; 2.18 is the oldest whose settings this knows to the last field.
constexpr int kOldest = 21800;
constexpr const char* kName = "libnccl.so.2";
constexpr const char* kExpected = "NCCL 2.18 or later";
constexpr const char* kHint =
    "install the wheel that torch's CUDA build needs (pip install nvidia-nccl-cu12, or -cu13), or name the file of libnccl.so.2 in "
    "TESSERA_NCCL";

// Torch's wheel and NVIDIA's lie in one folder: torch/lib/libtorch_cpu.so, nvidia/nccl/lib/libnccl.so.2. Empty without torch.
std::string beside_torch() {
  std::string torch;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* into) {
        const std::string name = info->dlpi_name;
        if (name.find("/torch/lib/libtorch") == std::string::npos) return 0;
        *static_cast<std::string*>(into) = name;
        return 1;
      },
      &torch);
  if (torch.empty()) return {};
  return (std::filesystem::path(torch).parent_path().parent_path().parent_path() / "nvidia" / "nccl" / "lib" / kName).string();
}

DynamicLibrary open_library() {
  std::string why;
  if (const char* const named = std::getenv(kNcclVariable)) {
    const DynamicLibrary library(named, why);
    if (library) return library;
    throw Error(ErrorCode::not_found, text("NCCL cannot be loaded from what ", kNcclVariable, " names: ", why), {}, kExpected, kHint);
  }
  std::string tried;
  for (const std::string& name : {beside_torch(), std::string(kName)}) {
    if (name.empty()) continue;
    const DynamicLibrary library(name, why);
    if (library) return library;
    tried += text(tried.empty() ? "" : "; ", why);
  }
  throw Error(ErrorCode::not_found, text("NCCL, which exchanges between GPUs, is not there: ", tried), {}, kExpected, kHint);
}

}  // namespace

int Nccl::value_of(DataType type) {
  switch (type) {
    case DataType::u8: return 1;
    case DataType::i32: return 2;
    case DataType::i64: return 4;
    case DataType::f32: return 7;
    case DataType::f64: return 8;
    case DataType::bf16: return 9;
  }
  throw Error(ErrorCode::internal, text("there is no data type ", static_cast<int>(type)));
}

int Nccl::value_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum: return 0;
    case Reduction::max: return 2;
    case Reduction::min: return 3;
  }
  throw Error(ErrorCode::internal, text("there is no reduction ", static_cast<int>(reduction)));
}

std::shared_ptr<const Nccl> load_nccl() {
  const DynamicLibrary library = open_library();
  const auto nccl = std::make_shared<Nccl>();
  nccl->path = library.path();
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_config, text(nccl->path, what), {}, kExpected, kHint);
  };
  const auto find = [&](const char* name, auto*& function) {
    if (!library.find(name, function)) refuse(text(" is not NCCL, or too old: it has no ", name));
  };
  find("ncclGetVersion", nccl->get_version);
  if (nccl->get_version(&nccl->version) != Nccl::kSuccess || nccl->version < kOldest)
    refuse(text(" is NCCL ", nccl->version, ", which is too old"));
  find("ncclGetErrorString", nccl->get_error_string);
  find("ncclGetUniqueId", nccl->get_unique_id);
  find("ncclCommInitRankConfig", nccl->init_rank);
  find("ncclCommGetAsyncError", nccl->get_async_error);
  find("ncclCommAbort", nccl->abort);
  find("ncclGroupStart", nccl->group_start);
  find("ncclGroupEnd", nccl->group_end);
  find("ncclAllReduce", nccl->all_reduce);
  find("ncclReduceScatter", nccl->reduce_scatter);
  find("ncclAllGather", nccl->all_gather);
  find("ncclBroadcast", nccl->broadcast);
  find("ncclSend", nccl->send);
  find("ncclRecv", nccl->receive);
  return nccl;
}

}  // namespace tessera::comm
