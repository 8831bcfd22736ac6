#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/expect_error.hpp"
#include "plan/plan.hpp"
#include "plan/plan_helper.hpp"
#include "plan/schedule/schedule.hpp"
#include "search/search.hpp"

namespace tessera::plan {
namespace {

using tessera::testing::error_of;
using ::testing::HasSubstr;

Plan read(const std::string& json) { return read_plan(ConfigNode::parse(json, "plan.json")); }

std::string replaced(std::string whole, const std::string& from, const std::string& to) {
  const std::size_t at = whole.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return whole.replace(at, from.size(), to);
}

class EditedPlan : public ::testing::Test {
 protected:
  model::JobSpec job = job_of({.layers = 6, .parallel = "{dp: 2, pp: 2, tp: 2, micro_batches: 2, schedule: 1f1b}"});
  cluster::ClusterSpec cluster = gpu_cluster(1, 8);
  Plan plan = search::search(job, cluster, {}).best;
  std::string json = to_json(plan);

  Error refusal(const std::string& from, const std::string& to) {
    return error_of([&] { check(read(replaced(json, from, to)), job, cluster); });
  }
};

// Any plan, possible or not: the file only has to say what the struct says.
Plan any_plan() {
  Plan plan;
  const auto number = [](int most) { return *rc::gen::inRange(0, most); };
  plan.model_fingerprint = text(*rc::gen::arbitrary<unsigned>());
  plan.cluster_fingerprint = "a \"quoted\" one\\";
  plan.precision = *rc::gen::element(model::Precision::f32, model::Precision::bf16, model::Precision::f16, model::Precision::f8);
  plan.schedule = *rc::gen::element(Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved, Schedule::zb_h1, Schedule::zb_h2,
                                    Schedule::zb_v, Schedule::dualpipe_v);
  if (*rc::gen::arbitrary<bool>())
    plan.order = {order_of(plan.schedule, 0, 2, 1 + number(5), 2), order_of(plan.schedule, 1, 2, 1 + number(5), 2)};
  plan.global_batch = 1 + number(1 << 20);
  plan.micro_batches = 1 + number(1 << 10);
  plan.bucket_size = Bytes(1 + number(1 << 30));
  plan.delayed_exchange = *rc::gen::arbitrary<bool>();
  plan.rows_ahead = *rc::gen::arbitrary<bool>();
  if (plan.delayed_exchange) plan.exchanged_early = number(1000) / 999.0;
  if (plan.delayed_exchange) plan.staleness = *rc::gen::element(0, 1);
  if (*rc::gen::arbitrary<bool>()) {
    plan.lengths = Lengths{{}, number(1000) / 999.0, number(1000) / 1e7, number(1000) / 1e10};
    plan.lengths->mean = number(2) * 512.5;
    for (int degree = 1 + number(3); degree < 10; degree += 1 + number(8)) plan.lengths->groups.push_back({degree, number(1000) / 1e8});
  }
  for (int i = number(9); i >= 0; --i) plan.ranks.push_back({number(4), number(100), number(16), 1 + number(64)});
  for (int i = number(4); i >= 0; --i) {
    Stage stage;
    for (int j = number(9); j >= 0; --j) stage.ranks.push_back(number(1000));
    for (int j = number(3); j >= 0; --j)
      stage.runs.push_back(
          {number(100),
           1 + number(100),
           {1 + number(8), 1 + number(8), number(4),
            *rc::gen::element(model::Recompute::none, model::Recompute::selective, model::Recompute::full), *rc::gen::arbitrary<bool>(),
            1 + number(8), *rc::gen::element(model::ContextKind::ring, model::ContextKind::ulysses), 1 + number(8),
            *rc::gen::arbitrary<bool>()}});
    for (int j = number(3); j > 0; --j) stage.shares.push_back({1 + number(100), 1 + number(1 << 20)});
    plan.stages.push_back(std::move(stage));
  }
  if (*rc::gen::arbitrary<bool>()) {
    Prediction prediction;
    const auto real = [&] { return (number(1 << 30) + 1) / 7.0e6; };
    prediction.step = Seconds(real());
    prediction.bubble = number(1000) / 999.0;
    for (int i = number(4); i > 0; --i) prediction.parts.emplace_back(text("part ", i), Seconds(real()));
    for (int i = number(4); i > 0; --i) prediction.memory.push_back(Bytes(number(1 << 30) * std::int64_t{1000}));
    plan.predicted = std::move(prediction);
  }
  return plan;
}

RC_GTEST_PROP(PlanFile, ReadsBackWhatWasWritten, ()) {
  const Plan plan = any_plan();
  const std::string written = to_json(plan);
  const Plan again = read(written);
  RC_ASSERT(to_json(again) == written);
  RC_ASSERT(again.precision == plan.precision);
  RC_ASSERT(again.world_size() == plan.world_size());
  RC_ASSERT(again.stages.size() == plan.stages.size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    RC_ASSERT(again.stages[s].ranks == plan.stages[s].ranks);
    for (std::size_t r = 0; r < plan.stages[s].runs.size(); ++r)
      RC_ASSERT(again.stages[s].runs[r].strategy == plan.stages[s].runs[r].strategy);
  }
  RC_ASSERT(again.schedule == plan.schedule);
  RC_ASSERT(again.order == plan.order);
  RC_ASSERT(again.rows_ahead == plan.rows_ahead);
  RC_ASSERT(again.delayed_exchange == plan.delayed_exchange && again.exchanged_early == plan.exchanged_early &&
            again.staleness == plan.staleness);
  RC_ASSERT(again.predicted.has_value() == plan.predicted.has_value());
  if (plan.predicted) RC_ASSERT(again.predicted->step == plan.predicted->step && again.predicted->memory == plan.predicted->memory);
}

TEST_F(EditedPlan, IsAcceptedWhenNothingWasEdited) { EXPECT_NO_THROW(check(read(json), job, cluster)); }

TEST_F(EditedPlan, IsRefusedWithTheLineWhenADegreeDoesNotDivide) {
  const Error error = refusal("\"tp\": 2", "\"tp\": 3");
  EXPECT_EQ(error.code(), ErrorCode::invalid_config);
  EXPECT_THAT(error.what(), HasSubstr("tp 3 does not divide heads 4"));
  EXPECT_THAT(error.what(), HasSubstr("nearest: 2"));
  EXPECT_EQ(error.where().file, "plan.json");
  // The line of the first stage's first run.
  const std::size_t before = json.find("\"tp\": 2");
  EXPECT_EQ(error.where().line, 1 + std::count(json.begin(), json.begin() + static_cast<std::ptrdiff_t>(before), '\n'));
}

TEST_F(EditedPlan, IsRefusedWhenMicroBatchesDoNotDivide) {
  EXPECT_THAT(refusal("\"micro_batches\": 2", "\"micro_batches\": 3").what(), HasSubstr("nearest: micro_batches 2"));
}

TEST_F(EditedPlan, DelaysNoExchangeWhereGradientsAreClipped) {
  const std::string delayed = "\"bucket_bytes\": 26214400, \"delayed_exchange\": true, \"exchanged_early\": ";
  EXPECT_THAT(refusal("\"bucket_bytes\": 26214400", delayed + "0.5").expected(), HasSubstr("train.optimizer.clip: 0"));
  EXPECT_THAT(refusal("\"bucket_bytes\": 26214400", delayed + "1.5").expected(), HasSubstr("a share from 0 to 1"));
  job.train.optimizer.clip = 0;
  EXPECT_NO_THROW(check(read(replaced(json, "\"bucket_bytes\": 26214400", delayed + "0.5")), job, cluster));
}

TEST_F(EditedPlan, IsRefusedWhenABlockIsLeftOutOrDoubled) {
  const int cut = plan.stages[1].first_block();
  EXPECT_THAT(refusal(text("\"first\": ", cut), text("\"first\": ", cut + 1)).what(), HasSubstr(text("leave out block ", cut)));
  EXPECT_THAT(refusal(text("\"first\": ", cut), text("\"first\": ", cut - 1)).what(), HasSubstr(text("repeat block ", cut - 1)));
  EXPECT_THAT(refusal("\"last\": 8", "\"last\": 7").what(), HasSubstr("blocks 7 to 7 are in no stage"));
}

TEST_F(EditedPlan, IsRefusedWhenARankIsUsedTwice) {
  EXPECT_THAT(refusal("\"ranks\": [0,1,2,3]", "\"ranks\": [0,1,2,4]").what(), HasSubstr("rank 4 is in stage 0 and in stage 1"));
  EXPECT_THAT(refusal("\"device\": 1", "\"device\": 0").what(), HasSubstr("ranks 0 and 1 stand on the same device"));
}

TEST_F(EditedPlan, IsRefusedWhenADeviceDoesNotExist) {
  const Error error = refusal("\"device\": 7", "\"device\": 8");
  EXPECT_THAT(error.what(), HasSubstr("rank 7 stands on device 8"));
  EXPECT_THAT(error.what(), HasSubstr("a device below 8"));
}

TEST_F(EditedPlan, IsRefusedForAnotherModelClusterBatchOrPrecision) {
  const auto other_model = job_of({.layers = 7});
  EXPECT_THAT(error_of([&] { check(plan, other_model.model, cluster); }).what(), HasSubstr("another model"));
  EXPECT_THAT(error_of([&] { check(plan, job.model, gpu_cluster(1, 8, "h100-sxm")); }).what(), HasSubstr("other devices"));
  EXPECT_THAT(error_of([&] { check(plan, job_of({.layers = 6, .global_batch = 16}), cluster); }).what(), HasSubstr("global batch of 8"));
  EXPECT_THAT(error_of([&] { check(plan, job_of({.layers = 6, .precision = "bf16"}), cluster); }).what(), HasSubstr("computes in fp32"));
}

TEST_F(EditedPlan, IsRefusedWithTheNearestKeyWhenOneIsMistyped) {
  const Error error = refusal("\"schedule\"", "\"shedule\"");
  EXPECT_THAT(error.what(), HasSubstr("did you mean 'schedule'?"));
  EXPECT_GT(error.where().line, 1);
}

TEST_F(EditedPlan, IsRefusedWhenItsStagesDoNotStandAsTheScheduleNeedsThem) {
  EXPECT_THAT(refusal("\"1f1b\"", "\"zb-v\"").what(), HasSubstr("stage 1 does not stand on the ranks of stage 0"));
  EXPECT_THAT(refusal("\"1f1b\"", "\"zbv\"").what(), HasSubstr("did you mean 'zb-v'?"));
  EXPECT_NO_THROW(check(read(replaced(json, "\"1f1b\"", "\"zb-h2\"")), job, cluster));
}

TEST_F(EditedPlan, IsRefusedWhenItsOrderCannotRun) {
  const auto with_order = [&](const std::string& first) {
    return text("\"order\": [", first, ", [\"F0.0\", \"B0.0\", \"F0.1\", \"B0.1\"]],\n  \"bucket_bytes\"");
  };
  EXPECT_NO_THROW(check(read(replaced(json, "\"bucket_bytes\"", with_order("[\"F0.0\", \"F0.1\", \"B0.1\", \"B0.0\"]"))), job, cluster));
  EXPECT_THAT(refusal("\"bucket_bytes\"", with_order("[\"F0.0\", \"B0.1\", \"F0.1\", \"B0.0\"]")).what(),
              HasSubstr("B0.1 comes before what it needs"));
  EXPECT_THAT(refusal("\"bucket_bytes\"", "\"order\": [[\"F0.0\"]],\n  \"bucket_bytes\"").what(),
              HasSubstr("its order is for 1 ranks of a pipeline"));
  EXPECT_THAT(refusal("\"bucket_bytes\"", with_order("[\"F0.0\", \"B0.0\"]")).what(), HasSubstr("its order has 2 slots for rank 0"));
}

TEST_F(EditedPlan, OfAnotherVersionIsRefused) {
  EXPECT_THAT(refusal("\"version\": 1", "\"version\": 2").what(), HasSubstr("version 2 cannot be read"));
}

// Samples of different lengths.
class DealtPlan : public EditedPlan {
 protected:
  DealtPlan() {
    job = job_of({.layers = 6, .parallel = "{dp: 2, cp: 4, pp: 1, tp: 1, zero: 1, micro_batches: 2}"});
    job.data.lengths.emplace();
    plan = search::search(job, cluster, {}).best;
    json = to_json(plan);
  }
};

TEST_F(DealtPlan, SaysWhatPassesCostOnEveryDegreeThatDividesCp) {
  check(read(json), job, cluster);
  ASSERT_TRUE(plan.lengths);
  ASSERT_EQ(plan.lengths->groups.size(), 3u);
  EXPECT_EQ(plan.lengths->groups[0].exchange, 0);
  EXPECT_GT(plan.lengths->groups[1].exchange, 0);
  EXPECT_GT(plan.lengths->groups[2].exchange, plan.lengths->groups[1].exchange);
  EXPECT_GT(plan.lengths->token, 0);
  EXPECT_GT(plan.lengths->pair, 0);
  job.parallel.flexible_groups = false;
  const Plan fixed = search::search(job, cluster, {}).best;
  ASSERT_EQ(fixed.lengths->groups.size(), 1u);
  EXPECT_EQ(fixed.lengths->groups[0], plan.lengths->groups[2]);
}

TEST_F(DealtPlan, IsRefusedWhereRanksWouldNotHoldTheSame) {
  EXPECT_THAT(refusal("\"zero\": 1", "\"zero\": 2").what(), HasSubstr("deals samples of different lengths, and has dp 2"));
  EXPECT_THAT(refusal("\"degree\": 2", "\"degree\": 3").what(), HasSubstr("groups of 3 ranks do not divide cp 4"));
  EXPECT_THAT(refusal("\"degree\": 4", "\"degree\": 3").what(), HasSubstr("do not divide cp 4"));
  EXPECT_THAT(refusal("\"degree\": 2", "\"degree\": 4").what(), HasSubstr("expected ascending degrees"));
  EXPECT_THAT(refusal("\"token_seconds\": ", "\"token_seconds\": -").what(), HasSubstr("seconds from 0"));
  job.data.lengths.reset();
  EXPECT_THAT(refusal("}", "}").what(), HasSubstr("expected data.lengths"));
}

}  // namespace
}  // namespace tessera::plan
