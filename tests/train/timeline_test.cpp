// What ran is what was simulated: the same instructions, spelled alike, in the same order.
#include <gtest/gtest.h>
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cluster/cluster.hpp"
#include "sim/sim.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kSteps = 3;

cluster::ClusterSpec host() {
  return cluster::read_cluster(ConfigNode::parse(
      "name: host\ngroups:\n  - {name: cpu, device: 'cpu:zen4', cores: 4, memory: 65536 MiB, nodes: 1, inside: shm, network: tcp-10g}\n",
      "cluster.yaml"));
}

// The instructions of one step, by rank and row, in the order in which they began; each with its name and args.
using Row = std::vector<std::string>;
std::map<std::pair<int, int>, Row> rows_of(const std::string& trace, std::int64_t step) {
  std::vector<Json> events;
  const Json whole = Json::parse(trace);
  for (const Json& event : whole.at("traceEvents")) {
    if (event.at("ph") != "X" || !event.at("args").contains("instruction") || event.at("name") == "exposed_communication") continue;
    if (event.at("args").at("step") == step) events.push_back(event);
  }
  std::stable_sort(events.begin(), events.end(), [](const Json& a, const Json& b) { return a.at("ts") < b.at("ts"); });
  std::map<std::pair<int, int>, Row> rows;
  for (const Json& event : events) {
    Json args = event.at("args");
    args.erase("step");
    rows[{event.at("pid").get<int>(), event.at("tid").get<int>()}].push_back(event.at("name").get<std::string>() + " " + args.dump());
  }
  return rows;
}

std::string measured(const model::JobSpec& job, const plan::Plan& plan) {
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  std::string trace;
  on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm);
    trainer.initialize();
    for (std::int64_t i = 0; i < kSteps; ++i) trainer.step();
    std::string mine = trainer.chrome_trace();
    EXPECT_EQ(mine.empty(), comm.rank() != 0);
    if (comm.rank() == 0) trace = std::move(mine);
  });
  return trace;
}

std::string simulated(const model::JobSpec& job, const plan::Plan& plan) {
  const auto simulation = sim::simulate(plan, job.model, job.train, host(), {}, sim::Simulated::every_rank);
  return sim::to_chrome_trace(simulation.result, simulation.programs);
}

class Timeline : public testing::TestWithParam<Degrees> {};

TEST_P(Timeline, OfARunHasTheInstructionsThatWereSimulatedInTheirOrder) {
  auto job = tiny_job();
  if (GetParam().delayed_exchange) job.train.optimizer.clip = 0;
  plan::Plan plan = plan_of(job, GetParam());
  for (plan::RankPlace& place : plan.ranks) place.threads = 1;
  const std::string ran = measured(job, plan);
  const auto expected = rows_of(simulated(job, plan), 0);
  std::set<int> ranks;
  for (const auto& [row, instructions] : expected) ranks.insert(row.first);
  ASSERT_EQ(static_cast<int>(ranks.size()), plan.world_size());
  // A first step with a delayed exchange has nothing to finish.
  for (std::int64_t step = GetParam().delayed_exchange ? 1 : 0; step < kSteps; ++step)
    EXPECT_EQ(rows_of(ran, step), expected) << "step " << step;
}

TEST(Timeline, OfTensorParallelPassesHasTheirExchanges) {
  const auto job = tiny_job();
  const Json ran = Json::parse(measured(job, plan_of(job, {1, 1, 2})));
  std::map<std::pair<int, int>, int> exchanges;  // by rank and instruction, over all steps
  for (const Json& event : ran.at("traceEvents"))
    if (event.at("name") == "exposed_communication")
      ++exchanges[{event.at("pid").get<int>(), event.at("args").at("instruction").get<int>()}];
  // Two in each of the four layers, and those of the head and the embedding.
  EXPECT_GE(exchanges.size(), 2u * 2u);
  for (const auto& [pass, count] : exchanges) EXPECT_EQ(count % kSteps, 0);
  EXPECT_GE((exchanges[{0, 0}]), 8 * kSteps);
  EXPECT_EQ((exchanges[{0, 0}]), (exchanges[{1, 0}]));
}

TEST(Timeline, KeepsTheLastStepsOfALongRun) {
  const auto job = tiny_job();
  const plan::Plan plan = plan_of(job, {});
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  on_ranks(1, [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm);
    trainer.initialize();
    for (int i = 0; i < 10; ++i) trainer.step();
    const std::string trace = trainer.chrome_trace();
    EXPECT_TRUE(rows_of(trace, 1).empty());
    for (std::int64_t step = 2; step < 10; ++step) EXPECT_EQ(rows_of(trace, step), rows_of(trace, 2)) << step;
    EXPECT_FALSE(rows_of(trace, 2).empty());
  });
}

using model::Recompute;
using plan::Schedule;
INSTANTIATE_TEST_SUITE_P(Trainer, Timeline,
                         testing::Values(Degrees{}, Degrees{1, 1, 1, 0, 4}, Degrees{1, 1, 1, 0, 2, Schedule::one_f_one_b, Recompute::full},
                                         Degrees{2, 1, 1}, Degrees{2, 1, 1, 1, 2}, Degrees{1, 1, 2, 0, 2}, Degrees{1, 2, 1, 0, 4},
                                         Degrees{1, 2, 1, 0, 4, Schedule::gpipe}, Degrees{1, 2, 1, 0, 4, Schedule::zb_h1},
                                         Degrees{1, 2, 1, 0, 4, Schedule::zb_h2},
                                         Degrees{1, 2, 1, 0, 4, Schedule::one_f_one_b, Recompute::full}, Degrees{2, 2, 1, 0, 4},
                                         Degrees{2, 1, 1, 0, 2, Schedule::one_f_one_b, Recompute::none, true},
                                         Degrees{2, 2, 1, 1, 2, Schedule::one_f_one_b, Recompute::none, true}),
                         [](const auto& info) {
                           std::string name = to_text(info.param);
                           std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
                           return name;
                         });

}  // namespace
}  // namespace tessera::train
