// The best uniform plan of a transformer on the identical devices of one group: every combination of degrees, micro-batch,
// recomputation, ZeRO stage and schedule that divides is priced: some ten thousand, a microsecond or two each, because plans that cut
// their blocks alike share the blocks' times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/uniform.hpp"

namespace tessera::plan {

struct UniformCandidate {
  UniformPlan plan;                 // with its stages' layers
  UniformPrice price;
  double memory = 0;                // bytes of the fullest rank
  std::string family;               // "dp + ZeRO-3", "tp x pp x dp", ...
};

struct UniformProblem {
  Transformer model;
  cluster::ResourceGroup group;     // all of its devices are used
  profile::Calibration calibration;
  std::int64_t global_batch = 1;    // samples
  profile::Format format = profile::Format::bf16;
  double memory = 0;                // bytes that a device has for a plan
  int threads = 0;                  // of the search; 0: one per core
};

struct UniformSearchResult {
  std::vector<UniformCandidate> families;   // the best of each family, fastest first; empty when nothing fits
  std::vector<UniformCandidate> frontier;   // no plan is both faster and smaller: fastest first, each smaller than the one before
  UniformCandidate smallest;                // needs least memory, whether it fits or not
  std::int64_t considered = 0;              // plans
};

// The same answer whatever the number of threads. Plans whose times differ by less than one part in a million count as equal:
// then the simpler one (fewer stages, less tensor parallelism, ...) is taken. Throws invalid_config when no combination of
// degrees divides the devices, the batch and the model.
UniformSearchResult search(const UniformProblem& problem);

std::string family_of(const UniformPlan& plan);

}  // namespace tessera::plan
