// A measured step: what a row of a table says, and the model, the cluster and the plan that it says it of.
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

// The numbers of a decoder that its step depends on. 0: not said.
struct Shape {
  int layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t seq = 0;
  bool gated = true;  // two products before the activation
  bool rotary = true;
  bool tied = false;  // embedding and head share their weights
  bool dropout = false;
  bool predicts_two = false;  // one more layer and head predict the token after the next (multi-token prediction)
  // Experts that tokens are routed to, with experts that all tokens pass (Dai et al. 2024). 0: none.
  std::int64_t experts = 0;
  int chosen = 0;  // by each token
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

// Ranks stand in the order tp, cp, dp, pp, the first innermost.
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

struct Row {
  std::string source;  // the file's stem
  int number = 0;      // line of the file after its head, from 1
  std::string name;    // of the model, as the table has it
  Shape shape;
  Degrees degrees;
  model::Precision precision = model::Precision::bf16;
  cluster::ResourceGroup group;
  cost::Stack stack;
  double measured = 0;               // seconds of a step
  std::vector<std::string> guesses;  // what the table leaves open and the reader filled in
  std::string skipped;               // why it cannot be priced; empty: it can

  // Made of the above by build().
  model::ModelSpec model;
  cluster::ClusterSpec cluster;
  plan::Plan plan;
  bool has_experts() const { return shape.experts > 0; }
};

// What the columns of a row say, whatever table it is of (docs/file-formats.md#measured-steps). `line` from 1. A row that no plan can be
// made of says why in Row::skipped.
Row read_row(const std::string& source, const Cells& cells, int line);
// What the table left out and a model needs; then the model, the cluster and the plan. Sets Row::skipped when they cannot be made or
// priced.
void build(Row& row);
// The same, and the measured step; Row::skipped when none is said.
void complete(Row& row, const Cells& cells);

// Seconds of a step by the cost model under a calibration. Throws as CostModel does.
double predicted(const Row& row, const profile::Calibration& calibration);

// The row's plan in one line for people.
std::string label(const Row& row);

}  // namespace tessera::calibrate
