#include "train/job_helper.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>

#include "base/free_port.hpp"
#include "plan/schedule/schedule.hpp"

namespace tessera::train {
model::JobSpec tiny_job(const std::string& extra, const std::string& model_extra) {
  const std::string yaml =
      text("name: tiny\nmodel: {arch: llama, hidden: 64, layers: 4, heads: 4, kv_heads: 4, ffn: 96, seq: 32, vocab: 256", model_extra,
           "}\ndata: {source: synthetic}\ntrain: {global_batch: 16, optimizer: {kind: adamw, lr: 1.0e-3}", extra.empty() ? "" : ", ", extra,
           "}\n");
  return model::read_job(ConfigNode::parse(yaml, "tiny.yaml"));
}

model::JobSpec tiny_experts_job(const std::string& model_extra) {
  const std::string yaml = text(
      "name: tiny\nmodel: {arch: mixtral, hidden: 64, layers: 3, heads: 4, kv_heads: 2, ffn: 40, experts: 4, experts_per_token: 2, seq: "
      "32, "
      "vocab: 256",
      model_extra, "}\ndata: {source: synthetic}\ntrain: {global_batch: 16, optimizer: {kind: adamw, lr: 1.0e-3}}\n");
  return model::read_job(ConfigNode::parse(yaml, "tiny.yaml"));
}

model::JobSpec tiny_latent_job() {
  const std::string yaml =
      "name: tiny\nmodel: {arch: deepseek, hidden: 64, layers: 3, heads: 4, q_lora: 24, kv_lora: 16, nope_dim: 8, rope_dim: 8, v_dim: 12, "
      "ffn: 96, dense_layers: 1, experts: 4, experts_per_token: 2, expert_ffn: 40, shared_ffn: 40, scoring: sigmoid, score_bias: true, "
      "score_bias_rate: 0.03, expert_groups: 2, top_groups: 1, routed_scale: 1.5, balance_loss: 0.01, seq: 32, vocab: 256}\ndata: {source: "
      "synthetic}\ntrain: "
      "{global_batch: 16, optimizer: {kind: adamw, lr: 1.0e-3}}\n";
  return model::read_job(ConfigNode::parse(yaml, "tiny.yaml"));
}

model::JobSpec tiny_gpt_job(const std::string& model_extra) {
  const std::string yaml = text("name: gpt\nmodel: {arch: gpt, hidden: 64, layers: 3, heads: 4, seq: 32, vocab: 256", model_extra,
                                "}\ndata: {source: synthetic}\ntrain: {global_batch: 16, optimizer: {kind: adamw, lr: 1.0e-3}}\n");
  return model::read_job(ConfigNode::parse(yaml, "gpt.yaml"));
}

model::JobSpec tiny_bert_job(const std::string& model_extra) {
  const std::string yaml =
      text("name: bert\nmodel: {arch: bert, hidden: 64, layers: 3, heads: 4, ffn: 96, seq: 32, vocab: 256", model_extra,
           "}\ndata: {source: synthetic}\ntrain: {global_batch: 16, optimizer: {kind: adamw, lr: 1.0e-3}}\n");
  return model::read_job(ConfigNode::parse(yaml, "bert.yaml"));
}

model::JobSpec tiny_t5_job(const std::string& model_extra) {
  const std::string yaml =
      text("name: t5\nmodel: {arch: t5, hidden: 64, layers: 2, heads: 4, ffn: 96, seq: 32, decoder_seq: 12, vocab: 256", model_extra,
           "}\ndata: {source: synthetic}\ntrain: {global_batch: 16, optimizer: {kind: adamw, lr: 1.0e-3}}\n");
  return model::read_job(ConfigNode::parse(yaml, "t5.yaml"));
}

std::string to_text(const Degrees& d) {
  return text("dp", d.dp, " pp", d.pp, " tp", d.tp, " zero", d.zero, " m", d.micro_batches, " ", plan::name_of(d.schedule), " recompute ",
              model::name_of(d.recompute), d.delayed_exchange ? " delayed" : "", d.staleness > 0 ? " stale" : "",
              d.chunks > 1 ? text(" chunks", d.chunks) : "", d.shards > 0 ? text(" shards", d.shards) : "",
              d.sequence_parallel ? " sequence parallel" : "",
              d.cp > 1 ? text(" cp", d.cp, d.context == model::ContextKind::ring ? " ring" : " ulysses") : "",
              d.ep > 1 ? text(" ep", d.ep) : "", d.whole_experts ? " whole experts" : "");
}

plan::Plan plan_of(const model::JobSpec& job, const Degrees& degrees) {
  plan::Plan plan;
  plan.model_fingerprint = job.model.fingerprint();
  plan.precision = job.train.precision;
  plan.global_batch = job.train.global_batch;
  plan.micro_batches = degrees.micro_batches;
  plan.schedule = degrees.schedule;
  plan.delayed_exchange = degrees.delayed_exchange;
  plan.staleness = degrees.staleness;
  plan.exchanged_early = 0.5;
  plan.bucket_size = Bytes(100 << 10);
  const int width = degrees.dp * degrees.cp * degrees.tp;
  plan.ranks.resize(static_cast<std::size_t>(width * degrees.pp));
  const int stages = degrees.pp * degrees.chunks;
  std::vector<int> pipeline_rank(static_cast<std::size_t>(stages));
  for (int rank = 0; rank < degrees.pp; ++rank)
    for (int c = 0; c < degrees.chunks; ++c)
      pipeline_rank[static_cast<std::size_t>(plan::stage_at(degrees.schedule, rank, c, degrees.pp))] = rank;
  int first = 0;
  for (int s = 0; s < stages; ++s) {
    const int count = (job.model.block_count() + stages - 1 - s) / stages;
    plan::Stage stage;
    for (int i = 0; i < width; ++i) stage.ranks.push_back(pipeline_rank[static_cast<std::size_t>(s)] * width + i);
    stage.runs.push_back({first, first + count, {degrees.dp, degrees.tp, degrees.zero, degrees.recompute}});
    stage.runs.back().strategy.shards = degrees.shards;
    stage.runs.back().strategy.sequence_parallel = degrees.sequence_parallel;
    stage.runs.back().strategy.cp = degrees.cp;
    stage.runs.back().strategy.context = degrees.context;
    stage.runs.back().strategy.ep = degrees.ep;
    stage.runs.back().strategy.whole_experts = degrees.whole_experts;
    plan.stages.push_back(std::move(stage));
    first += count;
  }
  return plan;
}

void on_ranks(int world_size, const std::function<void(comm::Communicator&)>& work, comm::Options options) {
  // Libraries choose their kernels as they are first used. Where several threads were the first at once, a product now and then came out
  // otherwise in its last digits.
  static const at::Tensor first_product = at::mm(at::ones({64, 64}), at::ones({64, 64}));
  options.world_size = world_size;
  options.rendezvous = free_loopback_place();
  options.deadline = Seconds(60);
  std::mutex mutex;  // guards failure
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);  // the ranks already are as many as there are cores, or more
      try {
        comm::Options mine = options;
        mine.rank = rank;
        const auto comm = comm::Communicator::connect(mine);
        try {
          work(*comm);
          comm->world().barrier().wait();
        } catch (const std::exception& error) {
          {
            const std::lock_guard lock(mutex);
            if (!failure) failure = std::current_exception();
          }
          comm->abort(error.what());
        }
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    });
  for (auto& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

Curve train_curve(const model::JobSpec& job, const Degrees& degrees, std::int64_t steps, at::Device device) {
  return train_curve_of(job, plan_of(job, degrees), steps, device);
}

Curve train_curve_of(const model::JobSpec& job, const plan::Plan& plan, std::int64_t steps, at::Device device) {
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  Curve curve;
  on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm, device);
    trainer.initialize();
    for (std::int64_t i = 0; i < steps; ++i) {
      const StepReport report = trainer.step();
      if (comm.rank() != 0) continue;
      curve.losses.push_back(report.loss);
      curve.norms.push_back(report.grad_norm);
    }
  });
  return curve;
}

double worst_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return worst;
}

Evaluated train_and_evaluate(const model::JobSpec& job, const Degrees& degrees, std::int64_t steps) {
  const plan::Plan plan = plan_of(job, degrees);
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  Evaluated out;
  on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm);
    trainer.initialize();
    Evaluated mine;
    mine.before = trainer.evaluate(7).loss;
    for (std::int64_t i = 0; i < steps; ++i) {
      const StepReport report = trainer.step();
      mine.curve.losses.push_back(report.loss);
      mine.curve.norms.push_back(report.grad_norm);
    }
    mine.after = trainer.evaluate(7).loss;
    if (comm.rank() == 0) out = std::move(mine);
  });
  return out;
}

void expect_same(const Evaluated& many, const Evaluated& one, double losses, double norms) {
  EXPECT_LT(worst_difference(many.curve.losses, one.curve.losses), losses);
  EXPECT_LT(worst_difference(many.curve.norms, one.curve.norms), norms);
  EXPECT_NEAR(many.before, one.before, losses * one.before);
  EXPECT_NEAR(many.after, one.after, losses * one.after);
}

}  // namespace tessera::train
