// A measured step: what a row of a table says, and the model, the cluster and the plan that were measured.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibrate/table.hpp"
#include "cluster/cluster.hpp"
#include "cost/cost_model.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "profile/calibration.hpp"

namespace tessera::calibrate {

// The dimensions of a decoder. 0: the table does not say them.
struct Shape {
  int layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t seq = 0;
  bool gated = true;  // the feed-forward network has a gate (SwiGLU, GeGLU)
  bool rotary = true;
  bool tied = false;  // embedding and head share their weights
  bool dropout = false;
  bool predicts_two = false;  // one more layer and head predict the token after the next (multi-token prediction)
  // Experts that tokens are routed to, with experts that all tokens pass (Dai et al. 2024). 0: none.
  std::int64_t experts = 0;
  int chosen = 0;  // experts that each token is routed to
  std::int64_t expert_ffn = 0;
  std::int64_t shared_ffn = 0;
  int dense_layers = 0;  // the first so many layers have no experts
  // Attention through low-rank latents (DeepSeek-AI 2024, section 2.1). 0: ordinary attention.
  std::int64_t query_rank = 0;
  std::int64_t key_value_rank = 0;
  std::int64_t rotary_dim = 0;  // of a head
  std::int64_t plain_dim = 0;
  std::int64_t value_dim = 0;
};

// How a step was parallelized. Ranks are numbered with tp innermost, then cp, dp and pp.
struct Degrees {
  plan::Strategy strategy;  // of every block
  int pp = 1;
  int chunks = 1;  // stages of a rank, with the interleaved schedule
  plan::Schedule schedule = plan::Schedule::one_f_one_b;
  std::int64_t micro_batch_size = 1;  // samples of a replica
  std::int64_t global_batch = 1;      // samples
  std::vector<int> layers;            // of each pipeline rank; empty: as even as they divide

  int ranks() const { return strategy.ranks() * pp; }
};

// Which settings of a row its source says, or whoever knows the software says for it. build() fills in the others and, where the step
// depends on them, names each among Row::guesses.
struct Stated {
  bool micro_batch = false;
  bool recompute = false;
  bool sequence_parallel = false;
  bool zero = false;
  bool gradient_bytes = false;
  bool network = false;  // its rate
  bool chunks = false;   // stages of a rank
  bool experts = false;  // over how many ranks they are spread
  bool precision = false;
};

struct Row {
  std::string source;  // the file's stem
  int number = 0;      // line of the file after its head, from 1
  std::string name;    // of the model, as the table has it
  Shape shape;
  Degrees degrees;
  model::Precision precision = model::Precision::bf16;
  cluster::ResourceGroup group;
  cost::Stack stack;
  Stated stated;
  double measured = 0;               // seconds of a step
  std::vector<std::string> guesses;  // what the source leaves open and the reader filled in, in words, each once
  std::string skipped;               // why it cannot be priced; empty: it can

  // What build() makes of the members above.
  model::ModelSpec model;
  cluster::ClusterSpec cluster;
  plan::Plan plan;
  bool has_experts() const { return shape.experts > 0; }
};

// Reads one row of any table of measured steps (docs/file-formats.md#measured-steps); `line` counts from 1. Row::skipped says why no plan
// can be made of it.
Row read_row(const std::string& source, const Cells& cells, int line);
// Fills in what the table left out, then makes the model, the cluster and the plan. Sets Row::skipped when they cannot be made or priced.
void build(Row& row);
// build(), and reads the measured step; sets Row::skipped when the table has none.
void complete(Row& row, const Cells& cells);

// Seconds of a step by the cost model under a calibration. Throws as CostModel does.
double predicted(const Row& row, const profile::Calibration& calibration);

// The row's plan in one line for people.
std::string label(const Row& row);

}  // namespace tessera::calibrate
