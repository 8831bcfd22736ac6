// Bubbles of the schedules against the closed forms of the papers that describe them, and against published tables.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "base/folders.hpp"
#include "program/program_helper.hpp"
#include "sim/given_times_helper.hpp"

namespace tessera::sim {
namespace {

using plan::Schedule;

// Seconds of one micro-batch through one stage.
struct Times {
  double forward = 1;
  double input = 1;
  double weight = 1;
  double message = 0;
  double work() const { return forward + input + weight; }
  plan::StageTimes of_stage() const { return {Seconds(forward), Seconds(input), Seconds(weight), Seconds(message)}; }
};

struct Shape {
  int pipeline_size = 1;
  int micro_batches = 1;
  int chunks = 1;  // of interleaved schedules
};

Result result_of(const model::ModelSpec& model, const plan::Plan& plan, const Times& times) {
  const auto programs = program::compile(plan, model);
  program::check(programs);
  return run(programs, times.of_stage());
}

Result result_of(Schedule schedule, const Shape& shape, const Times& times) {
  const int chunks = plan::is_v_shaped(schedule) ? 2 : shape.chunks;
  const auto model = program::small_model(std::max(1, shape.pipeline_size * chunks - 2), false);
  const auto plan = program::make_plan(
      model, {.pipeline_size = shape.pipeline_size, .micro_batches = shape.micro_batches, .schedule = schedule, .chunks = shape.chunks});
  return result_of(model, plan, times);
}

// ZB-H2 fitted to the times, as a plan's own order.
Result result_of_fitted(const Shape& shape, const Times& times) {
  const auto model = program::small_model(std::max(1, shape.pipeline_size - 2), false);
  auto plan = program::make_plan(model, {.pipeline_size = shape.pipeline_size, .micro_batches = shape.micro_batches});
  for (int pipeline_rank = 0; pipeline_rank < shape.pipeline_size; ++pipeline_rank)
    plan.order.push_back(plan::fitted_order(pipeline_rank, shape.pipeline_size, shape.micro_batches, times.of_stage()));
  plan::check_schedule(plan);
  return result_of(model, plan, times);
}

// Times that no closed form depends on by chance: forward and both halves equal, halves unequal, forward unequal to the halves.
const std::vector<Times> kTimes = {{1, 1, 1}, {3, 4, 2}, {4, 3, 3}, {10, 11, 7}};
const std::vector<Shape> kShapes = {{1, 3}, {2, 2}, {4, 8}, {4, 11}, {8, 16}, {8, 19}, {8, 40}};
constexpr double kExact = 1e-12;

TEST(Bubble, OfGpipeAnd1f1bIsTheirClosedForm) {
  // Huang et al. 2019; Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.1: (p - 1) / (m + p - 1) of the step.
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b})
    for (const Shape& shape : kShapes)
      for (const Times& times : kTimes) {
        const double expected = (shape.pipeline_size - 1.0) / (shape.micro_batches + shape.pipeline_size - 1.0);
        const Result result = result_of(schedule, shape, times);
        EXPECT_NEAR(result.bubble, expected, kExact) << plan::name_of(schedule) << ' ' << shape.pipeline_size << ' ' << shape.micro_batches;
        EXPECT_NEAR(result.pipeline_bubble, expected, kExact);
      }
  EXPECT_NEAR(result_of(Schedule::one_f_one_b, {8, 16}, {}).bubble, 7.0 / 23, kExact);
}

TEST(Bubble, OfInterleavedIsItsClosedForm) {
  // Narayanan et al. 2021, section 2.2.2: v chunks a rank divide the bubble by v. Also where p does not divide m.
  for (const int chunks : {1, 2, 3, 6})
    for (const Shape& shape : kShapes)
      for (const Times& times : kTimes) {
        const double idle = (shape.pipeline_size - 1.0) / chunks;
        const Result result = result_of(Schedule::interleaved, {shape.pipeline_size, shape.micro_batches, chunks}, times);
        EXPECT_NEAR(result.bubble, idle / (shape.micro_batches + idle), kExact)
            << shape.pipeline_size << ' ' << shape.micro_batches << " x" << chunks;
      }
  EXPECT_NEAR(result_of(Schedule::interleaved, {8, 16, 6}, {}).bubble, (7.0 / 6) / (16 + 7.0 / 6), kExact);
}

// Idle time of the rank that takes longest over its passes, from its share.
double idle(const Result& result, double work) { return result.pipeline_bubble / (1 - result.pipeline_bubble) * work; }

// The closed forms hold where the weight half is the shortest pass, which their papers' times always have, and where there are
// enough micro-batches to fill the pipeline.
TEST(Bubble, OfZeroBubbleSchedulesIsTheirClosedForm) {
  for (const Shape& shape : kShapes)
    for (const Times& times : kTimes) {
      if (shape.micro_batches < 2 * shape.pipeline_size - 1) continue;
      const double work = shape.micro_batches * times.work();
      const double behind = shape.pipeline_size - 1.0;
      // Qi et al. 2023 (arXiv 2401.10241), section 2: (p - 1)(TF + TB - TW) and (p - 1)(TF + TB - 2 TW).
      EXPECT_NEAR(idle(result_of(Schedule::zb_h1, shape, times), work), behind * (times.forward + times.input - times.weight),
                  work * kExact);
      EXPECT_NEAR(idle(result_of(Schedule::zb_h2, shape, times), work), behind * (times.forward + times.input - 2 * times.weight),
                  work * kExact);
    }
}

TEST(Bubble, OfZbVIsItsClosedForm) {
  for (const Shape& shape : kShapes) {
    // Qi et al. 2023, section 6; Qi et al. 2024 (arXiv 2405.15362): none where TF = TB = TW, with the memory of 1F1B. Under a
    // step that all ranks end together the first forward passes remain: p - 1 of one chunk.
    const Result equal = result_of(Schedule::zb_v, shape, {});
    const double work = 2.0 * shape.micro_batches * 3;
    if (shape.micro_batches < 2 * shape.pipeline_size - 1) continue;
    EXPECT_NEAR(equal.pipeline_bubble, 0, kExact);
    EXPECT_NEAR(equal.bubble, (shape.pipeline_size - 1.0) / (work + shape.pipeline_size - 1.0), kExact);
    // Where TF = TB > TW the input halves run through both chunks without their weight halves: 2 (p - 1)(TB - TW) of a chunk.
    const Result shorter = result_of(Schedule::zb_v, shape, {4, 4, 3});
    EXPECT_NEAR(idle(shorter, 2.0 * shape.micro_batches * 11), 2 * (shape.pipeline_size - 1.0), work * 1e-9);
  }
}

TEST(Bubble, OfAnOrderFittedToTheTimesIsLessThanTwoPasses) {
  for (const Times& times : kTimes) {
    const double work = 40 * times.work();
    const double fitted = idle(result_of_fitted({8, 40}, times), work);
    EXPECT_LT(fitted, times.forward + times.input);
    EXPECT_LE(fitted, idle(result_of(Schedule::zb_h2, {8, 40}, times), work));
  }
}

TEST(Bubble, OfDualPipeVIsItsClosedForm) {
  // DeepSeek-V3 report (arXiv 2412.19437), table 2, and github.com/deepseek-ai/DualPipe: (PP / 2 - 1)(F&B + B - 3 W), where PP
  // counts stages, two on each rank, B a whole backward pass and F&B a forward and a backward pass that run overlapped; here
  // those take the time of both. Drawn for F as long as the input half of B.
  for (const Shape& shape : kShapes)
    for (const Times& times : {Times{1, 1, 1}, Times{2, 2, 1}, Times{5, 5, 3}}) {
      if (shape.micro_batches < 2 * shape.pipeline_size) continue;
      const double whole = times.input + times.weight;
      const double expected = (shape.pipeline_size - 1.0) * (times.forward + whole + whole - 3 * times.weight);
      const Result result = result_of(Schedule::dualpipe_v, shape, times);
      EXPECT_NEAR(result.step.value - 2 * shape.micro_batches * times.work(), expected, 1e-9);
      EXPECT_NEAR(result.bubble, expected / (2 * shape.micro_batches * times.work() + expected), kExact);
    }
}

TEST(Bubble, MemoryCountsWhatIsHeld) {
  EXPECT_EQ(result_of(Schedule::one_f_one_b, {8, 16}, {}).ranks[0].peak_memory.value, 8);
  EXPECT_EQ(result_of(Schedule::zb_h1, {8, 16}, {}).ranks[7].peak_memory.value, 8);
  EXPECT_EQ(result_of(Schedule::zb_h2, {8, 16}, {}).ranks[7].peak_memory.value, 15);
  EXPECT_EQ(result_of(Schedule::zb_v, {8, 16}, {}).ranks[3].peak_memory.value, 16);  // of half stages
}

// Tables 5 and 8 of Qi et al. 2023 (arXiv 2401.10241): bubble rates that the authors computed from times of their own
// measurement. These are not printed in full; the times below are chosen once for each model: forward and input half of the
// same order, the weight half shorter, messages of a few per cent. `chunks`: 1F1B-I had as many as the layers of a stage.
// ZB-1p is what their search finds with the memory of 1F1B, in every row ZB-H1; ZB-2p with twice as much.
struct TableTimes {
  int chunks = 1;
  Times times;
};
const std::map<std::pair<std::string, std::string>, TableTimes> kTables = {
    {{"5", "1.5B"}, {3, {18.5, 18.1, 9.0, 0.3}}},  {{"5", "6.2B"}, {4, {29.7, 29.4, 19.9, 0.5}}},
    {{"5", "14.6B"}, {3, {11.3, 11.2, 8.1, 0.4}}}, {{"5", "28.3B"}, {2, {10.4, 10.2, 7.7, 0.4}}},
    {{"8", "6.2B"}, {2, {31.0, 31.0, 19.0, 1.6}}}, {{"8", "14.6B"}, {2, {15.0, 15.0, 12.0, 0.8}}},
    {{"8", "28.3B"}, {2, {20.8, 20.4, 15.4, 0.8}}}};

struct Row {
  std::string schedule;
  double published = 0;
};

// By table, model, stages and micro-batches.
std::map<std::tuple<std::string, std::string, int, int>, std::vector<Row>> published_rates() {
  std::ifstream file(std::string(kSourceFolder) + "/tests/sim/zero_bubble_bubble_rates.csv");
  std::map<std::tuple<std::string, std::string, int, int>, std::vector<Row>> out;
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string table, model, stages, micro_batches, schedule, rate;
    for (std::string* field : {&table, &model, &stages, &micro_batches, &schedule, &rate}) std::getline(fields, *field, ',');
    out[{table, model, std::stoi(stages), std::stoi(micro_batches)}].push_back({schedule, std::stod(rate)});
  }
  return out;
}

TEST(Bubble, RanksSchedulesAsThePublishedTables) {
  const std::map<std::string, Schedule> schedules = {{"1F1B", Schedule::one_f_one_b}, {"1F1B-I", Schedule::interleaved},
                                                     {"ZB-H1", Schedule::zb_h1},      {"ZB-1p", Schedule::zb_h1},
                                                     {"ZB-H2", Schedule::zb_h2},      {"ZB-V", Schedule::zb_v}};
  const auto rates = published_rates();
  ASSERT_EQ(rates.size(), 21u);
  for (const auto& [setting, rows] : rates) {
    const auto& [table, model, stages, micro_batches] = setting;
    const TableTimes& of = kTables.at({table, model});
    std::vector<std::pair<double, double>> pairs;  // published, simulated
    std::string listing;
    for (const Row& row : rows) {
      double simulated = 0;
      if (row.schedule == "ZB-2p") {
        simulated = result_of_fitted({stages, micro_batches}, of.times).pipeline_bubble;
      } else {
        const Schedule schedule = schedules.at(row.schedule);
        const int chunks = plan::is_v_shaped(schedule) ? 2 : schedule == Schedule::interleaved ? of.chunks : 1;
        Times times = of.times;
        for (double* pass : {&times.forward, &times.input, &times.weight}) *pass /= chunks;
        simulated = result_of(schedule, {stages, micro_batches, of.chunks}, times).pipeline_bubble;
      }
      pairs.emplace_back(row.published, simulated);
      listing += text(row.schedule, " ", row.published, " simulated ", pairs.back().second, "\n");
    }
    std::sort(pairs.begin(), pairs.end());
    EXPECT_GE(pairs.size(), 5u);
    for (std::size_t i = 0; i + 1 < pairs.size(); ++i)
      EXPECT_EQ(pairs[i].first < pairs[i + 1].first, pairs[i].second < pairs[i + 1].second)
          << "table " << table << ", " << model << ", " << stages << " stages, " << micro_batches << " micro-batches\n"
          << listing;
  }
}

}  // namespace
}  // namespace tessera::sim
