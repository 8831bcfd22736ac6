// A tiny job, plans for it, and its ranks as threads of the test.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/temporary_folder.hpp"
#include "comm/comm.hpp"
#include "data/data.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"
#include "train/trainer.hpp"

namespace tessera::train {

// 4 layers, hidden 64, seeded random tokens. `extra` is YAML for the train section: "steps: 30, precision: bf16".
model::JobSpec tiny_job(const std::string& extra = {}, const std::string& model_extra = {});
// 3 layers of 4 experts, of which each token is routed to two.
model::JobSpec tiny_experts_job(const std::string& model_extra = {});
// DeepSeek-V3's form: latent attention; a dense layer, then two of experts with a shared one.
model::JobSpec tiny_latent_job();
model::JobSpec tiny_gpt_job(const std::string& model_extra);   // GPT-2's form
model::JobSpec tiny_bert_job(const std::string& model_extra);  // BERT's form
model::JobSpec tiny_t5_job(const std::string& model_extra);    // T5's form

struct Degrees {
  int dp = 1;
  int pp = 1;
  int tp = 1;
  int zero = 0;
  std::int64_t micro_batches = 1;
  plan::Schedule schedule = plan::Schedule::one_f_one_b;
  model::Recompute recompute = model::Recompute::none;
  bool delayed_exchange = false;
  int chunks = 1;  // stages a rank
  int shards = 0;
  bool sequence_parallel = false;
  int cp = 1;
  model::ContextKind context = model::ContextKind::ring;
  int ep = 1;
  bool whole_experts = false;
  int staleness = 0;  // with delayed_exchange
};
std::string to_text(const Degrees& degrees);

// Blocks are spread evenly, the first stages taking the rest.
plan::Plan plan_of(const model::JobSpec& job, const Degrees& degrees);

// Runs `work` once per rank, each on a thread with a Communicator of its own, made with `options`; rethrows the first failure.
void on_ranks(int world_size, const std::function<void(comm::Communicator&)>& work, comm::Options options = {});

// The losses and gradient norms of the first `steps` steps.
struct Curve {
  std::vector<double> losses;
  std::vector<double> norms;
};
Curve train_curve(const model::JobSpec& job, const Degrees& degrees, std::int64_t steps, at::Device device = at::kCPU);
Curve train_curve_of(const model::JobSpec& job, const plan::Plan& plan, std::int64_t steps, at::Device device = at::kCPU);

// The largest relative difference of two rows of numbers; at least 1 where they are not equally long.
double worst_difference(const std::vector<double>& a, const std::vector<double>& b);

// With the validation losses before and after these steps.
struct Evaluated {
  Curve curve;
  double before = 0;  // validation losses
  double after = 0;
};
Evaluated train_and_evaluate(const model::JobSpec& job, const Degrees& degrees, std::int64_t steps);
// Losses and norms within such relative differences.
void expect_same(const Evaluated& many, const Evaluated& one, double losses, double norms);

}  // namespace tessera::train
