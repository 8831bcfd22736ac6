// Internal: the commands of tessera-worker that need tensors on this process alone, and what they share with training.
#pragma once

#include <c10/core/Device.h>
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cluster/cluster.hpp"
#include "comm/comm.hpp"
#include "plan/plan.hpp"

namespace tessera::train {

// --rank and friends, or what torchrun, Slurm and MPI put into the environment; the secret of the run comes from there alone.
struct RankOptions {
  int rank = 0;
  int world = 1;
  std::string rendezvous;

  void add_to(CLI::App& app);
  // Where the ranks meet; empty where it was not given, which one rank alone does not need.
  std::string place() const;
  // This host's address for the other ranks: the one from which it reaches their meeting place, or the loopback.
  std::string address() const;
  // Empty: there is none, and the rank is alone or on the loopback.
  std::string secret() const;
  std::unique_ptr<comm::Communicator> connect(const std::string& task, std::optional<Seconds> deadline = {},
                                              at::Device device = at::kCPU) const;
};

// A checkpoint's folder itself, or that of RUN or RUN@STEP. Throws not_found, corrupt.
std::filesystem::path checkpoint_of(const std::filesystem::path& path);

// Where a rank of the plan computes. Throws not_found where this host has no such device.
at::Device device_of(const plan::Plan& plan, const cluster::ClusterSpec& cluster, int rank);
// How many threads of this host a rank that computes there has. A CPU's are the plan's, or OMP_NUM_THREADS; those beside an accelerator
// share the host's cores.
void set_host_threads(const plan::Plan& plan, int rank, at::Device device);

// model, device, measure, compare, generate, eval, logits, export, import.
void add_commands(CLI::App& app);

}  // namespace tessera::train
