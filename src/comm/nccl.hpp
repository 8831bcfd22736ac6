// Internal. The part of NCCL's C interface that is used here (nccl.h; NVIDIA, "NCCL user guide"), of a library that is found when it is
// needed.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <memory>
#include <string>

#include "comm/comm.hpp"

namespace tessera::comm {

struct Nccl {
  // Of the library.
  std::string path;
  int version = 0;  // 21803 is 2.18.3

  // Of calls; NCCL's other values are errors.
  static constexpr int kSuccess = 0;
  static constexpr int kSystemError = 2;
  static constexpr int kRemoteError = 6;
  static constexpr int kInProgress = 7;

  struct Communicator;
  using Stream = void*;
  struct UniqueId {
    std::array<char, 128> bytes;
  };
  // As of 2.17; later versions take it as it is, since it says its size and version.
  struct Config {
    std::size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = 21700;
    int blocking = 0;  // no call waits for another rank: what is not over at once is kInProgress
    int cga_cluster_size = INT_MIN;
    int least_blocks = INT_MIN;
    int most_blocks = INT_MIN;
    const char* network = nullptr;
  };

  int (*get_version)(int*) = nullptr;
  const char* (*get_error_string)(int) = nullptr;
  int (*get_unique_id)(UniqueId*) = nullptr;
  int (*init_rank)(Communicator**, int ranks, UniqueId, int rank, Config*) = nullptr;
  int (*get_async_error)(Communicator*, int* error) = nullptr;
  int (*abort)(Communicator*) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int type, int reduction, Communicator*, Stream) = nullptr;
  int (*reduce_scatter)(const void*, void*, std::size_t, int type, int reduction, Communicator*, Stream) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int type, Communicator*, Stream) = nullptr;
  int (*broadcast)(const void*, void*, std::size_t, int type, int root, Communicator*, Stream) = nullptr;
  int (*send)(const void*, std::size_t, int type, int peer, Communicator*, Stream) = nullptr;
  int (*receive)(void*, std::size_t, int type, int peer, Communicator*, Stream) = nullptr;

  static int value_of(DataType type);
  static int value_of(Reduction reduction);
};

// Names the file of NCCL's library.
inline constexpr const char* kNcclVariable = "TESSERA_NCCL";

// The library that TESSERA_NCCL names; without it the one in the wheel beside this process's libtorch, or what the loader finds as
// libnccl.so.2. Throws not_found where there is none, saying where it was looked for, and invalid_config for a library that is not NCCL or
// older than 2.18.
std::shared_ptr<const Nccl> load_nccl();

}  // namespace tessera::comm
