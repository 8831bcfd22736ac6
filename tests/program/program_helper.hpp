// Models and plans for the tests of program/ and sim/.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/schedule/schedule.hpp"
#include "program/program.hpp"

namespace tessera::program {

inline model::ModelSpec small_model(int layers, bool tied) {
  return model::read_model(
      ConfigNode::parse(text("{arch: llama, hidden: 64, layers: ", layers,
                             ", heads: 4, kv_heads: 4, ffn: 128, seq: 16, vocab: 256, tied: ", tied ? "true" : "false", "}"),
                        "model"));
}

struct PlanShape {
  int dp = 1;
  int pipeline_size = 1;
  int tp = 1;
  int zero = 0;
  std::int64_t micro_batches = 1;
  plan::Schedule schedule = plan::Schedule::one_f_one_b;
  int chunks = 1;  // of interleaved schedules
  bool delayed_exchange = false;
  double exchanged_early = 1;
};

// Blocks as even as they divide. The fingerprints and where the ranks stand are not set.
inline plan::Plan make_plan(const model::ModelSpec& model, const PlanShape& shape) {
  plan::Plan plan;
  plan.global_batch = shape.dp * shape.micro_batches * 2;
  plan.micro_batches = shape.micro_batches;
  plan.schedule = shape.schedule;
  plan.bucket_size = Bytes(64 << 10);
  plan.delayed_exchange = shape.delayed_exchange;
  plan.exchanged_early = shape.exchanged_early;
  plan.ranks.resize(static_cast<std::size_t>(shape.dp) * shape.pipeline_size * shape.tp);
  const int chunks = plan::is_v_shaped(shape.schedule) ? 2 : shape.schedule == plan::Schedule::interleaved ? shape.chunks : 1;
  const int stages = shape.pipeline_size * chunks;
  plan.stages.resize(static_cast<std::size_t>(stages));
  plan::Strategy strategy;
  strategy.dp = shape.dp;
  strategy.tp = shape.tp;
  strategy.zero = shape.zero;
  for (int pipeline_rank = 0; pipeline_rank < shape.pipeline_size; ++pipeline_rank)
    for (int c = 0; c < chunks; ++c) {
      const int s = plan::stage_at(shape.schedule, pipeline_rank, c, shape.pipeline_size);
      for (int i = 0; i < shape.dp * shape.tp; ++i) plan.stages[s].ranks.push_back(pipeline_rank * shape.dp * shape.tp + i);
      plan.stages[s].runs.push_back({model.block_count() * s / stages, model.block_count() * (s + 1) / stages, strategy});
    }
  return plan;
}

// That the check refuses the programs with these words.
inline void expect_refused(const std::vector<Program>& programs, const std::string& part) {
  try {
    check(programs);
    FAIL() << "the check passed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(part));
  }
}

}  // namespace tessera::program
