// Hetu-Galvatron's search problem: its inputs, its cost model, its answer file, and an exact search in place of its own. Reads the files of
// a cluster that was profiled with Galvatron, and writes a galvatron_config_*.json.
//
// The formulas are those of Galvatron's search engine (Miao et al., "Galvatron: Efficient Transformer Training over Multiple GPUs Using
// Automatic Parallelism", VLDB 2023), written anew here: of release 2.4.1, which is configured by YAML, and of 2.4.0, which has the same
// inputs and another cost model.
// Units inside this folder are Galvatron's: milliseconds and MB (2^20 bytes) in profiles, seconds for steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/units.hpp"

namespace tessera::interop::galvatron {

enum class Sharding { none, zero2, zero3 };

// Whose formulas and space: the package index's release, or the one that is configured by YAML.
enum class Release { v2_4_0, v2_4_1 };

// How one layer (or the embedding together with the head) is spread over the devices of its stage.
struct Strategy {
  int pp = 1;
  int tp = 1;  // Megatron tensor parallel, or
  int sp = 1;  // Ulysses: of the two at most one is > 1
  int cp = 1;
  int dp = 1;
  Sharding sharding = Sharding::none;
  bool checkpoint = false;  // recompute the layer in the backward pass; never for the embedding
  bool apart = false;       // ranks that split a layer stand apart, those of one data-parallel group together; 2.4.0 only

  int split() const { return tp > sp ? tp : sp; }
  // Ranks over which gradients are reduced, and over which ZeRO shards.
  int shards() const { return dp * sp * cp; }
  bool operator==(const Strategy&) const = default;
};
// "tp2 dp2 zero2 ckpt"; `pp` is not said.
std::string to_text(const Strategy& strategy);

struct Line {
  double slope = 0;
  double offset = 0;
  double at(double x) const { return slope * x + offset; }
};

// Forward milliseconds of one layer (or of embedding and head together) for a micro-batch of `samples` on one device.
struct ComputeTime {
  double per_sample = 0;
  std::optional<Line> line;  // takes precedence
  double at(double samples) const { return line ? line->at(samples) : per_sample * samples; }
};

// Milliseconds of one collective by message size: a measured size is taken as it is, others from the fitted line.
struct MessageTime {
  std::map<int, double> measured;  // key: MB
  Line line;
  double at(double mb) const;
};

// MB per degree of tensor (or Ulysses) parallelism; activations per sample.
struct OtherMemory {
  std::map<int, double> states;
  std::map<int, double> activation;
};

struct Profile {
  ComputeTime layer;
  ComputeTime other;
  double layer_parameters = 0;             // MB of fp32 parameters of one layer
  std::map<int, double> layer_activation;  // MB per sample, by degree
  std::optional<double> checkpoint_activation;
  OtherMemory alone, first, last;           // embedding and head without a pipeline; at its first and last stage
  std::map<int, double> adjacent, strided;  // ms per MB of an all-reduce over neighbouring ranks, over ranks apart; by group size
  std::map<int, double> point_to_point;     // ms per MB, by pipeline depth
  double overlap_slowdown = 1;
  std::map<int, MessageTime> all_gather, all_to_all;  // by group size
};

// What search_dist.yaml says after overrides.
struct Settings {
  std::filesystem::path file;
  Release release = Release::v2_4_1;
  int nodes = 1;
  int devices_per_node = 8;
  int memory_gb = 24;
  std::string model;
  int layers = 0;
  int hidden = 0;
  int seq = 0;
  bool sequence_parallel = true;
  bool global_memory_buffer = true;
  // "ddp" offers none and ZeRO-3, "zero2" (and "zero3") ZeRO-2 and ZeRO-3.
  std::string default_dp_type = "ddp";
  bool pipedream_flush = false;  // 1F1B; otherwise GPipe
  bool async_grad_reduce = true;
  std::string mixed_precision = "bf16";
  std::string time_profile_mode = "static";
  std::string memory_profile_mode = "static";
  int min_batch = 8, max_batch = 8, batch_step = 8;
  std::optional<int> settled_batch, settled_chunks;
  bool no_pp = false, no_tp = false, no_sp = false, no_cp = true, no_dp = false, no_checkpoint = false, no_zero3 = false;
  bool no_embedding_tp = false, no_embedding_sp = false;
  int max_pp = 8, max_tp = 8, max_sp = 8, max_cp = 8;
  bool fine_grained = true;  // otherwise one strategy for all layers, embedding and head
  double time_coefficient = 1;
  // Folders that the YAML names for the profile files; empty: looked for around the YAML.
  std::string time_folder, memory_folder, all_reduce_folder, p2p_folder, overlap_folder, sp_time_folder;

  int devices() const { return nodes * devices_per_node; }
  bool zero2_by_default() const { return default_dp_type != "ddp"; }
  bool half_precision() const { return mixed_precision != "fp32"; }
};

struct Inputs {
  Settings settings;
  Profile profile;
};

// Reads the YAML with Hydra's overrides ("SEQ_LENGTH=2048", "search_engine.hardware_info.memory_constraint=24"; a last part
// that is unique, "memory_constraint=24", will do), and the profile files that it calls for.
// Throws not_found with the places that were looked at, and invalid_config with file, line and the nearest valid name.
Inputs read_inputs(const std::filesystem::path& yaml, const std::vector<std::string>& overrides, Release release = Release::v2_4_1);

struct Plan {
  int global_batch = 0;
  int chunks = 1;             // micro-batches of a step
  std::vector<int> division;  // layers of each stage
  std::vector<Strategy> layers;
  Strategy embedding;
  // 2.4.0 counts samples per rank as if every layer were split by this degree, at most the least in use, and its answer file
  // does not say by which. Zero: the degree under which the plan costs least.
  int counted_split = 0;
};

struct PlanCost {
  Seconds step;
  // MB of each stage, with the fifth that Galvatron sets aside for the allocator on devices above 20 GB.
  std::vector<std::int64_t> memory_mb;
  bool fits = false;
};

// What Galvatron's cost model says of a plan. Throws invalid_config when the plan does not divide or the profile lacks a degree.
PlanCost cost_of(const Inputs& inputs, const Plan& plan);

// Seconds of a step that Galvatron's cost leaves out: gathering activations and their gradients between layers of a stage that are split
// differently.
Seconds relayout_time(const Inputs& inputs, const Plan& plan);

struct SearchResult {
  Plan plan;
  PlanCost cost;
  std::int64_t choices = 0;   // combinations of batch, micro-batches, pipeline depth, buffer and embedding
  std::int64_t examined = 0;  // those whose bound did not already rule them out
};

// The plan with the most samples per second (least seconds per step for one batch size) over Galvatron's own space: every mix
// of its layer strategies, its embedding strategies, its micro-batch counts, its even division into stages.
// Exact over plans none of whose stages could be improved by itself: the pipeline formula would let a slower middle stage hide
// the gradient reduction of a later one, and that is not done on purpose.
// Throws resource_exhausted when nothing fits, naming the smallest memory limit that would do.
SearchResult search(const Inputs& inputs);

// Galvatron's answer file (galvatron_config_*.json), and the name it would give it.
std::string to_config(const Inputs& inputs, const Plan& plan);
std::string config_name(const Settings& settings);
// `devices`: of the cluster, which 2.4.0 does not write. Throws not_found, or invalid_config naming the key.
Plan read_config(const std::filesystem::path& path, int devices);

}  // namespace tessera::interop::galvatron
