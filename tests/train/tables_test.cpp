// Runs whose rows lie on parameter servers: other plans in mid-run, ranks that end, and what is told of them.
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "base/temporary_folder.hpp"
#include "checkpoint/checkpoint.hpp"
#include "ps/running_server.hpp"
#include "train/job_helper.hpp"
#include "train/tables.hpp"

namespace tessera::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

model::JobSpec click_job(const std::string& place, const std::string& servers = {}) {
  return model::read_job(ConfigNode::parse(
      text("name: ads\nmodel: {arch: deepfm, tables: 5, dim: 4, dense: 2, hidden: [8]}\ndata: {source: synthetic}\n"
           "train: {global_batch: 16, steps: 9, optimizer: {kind: sgd, lr: 0.5, weight_decay: 0}, schedule: {kind: constant}}\n"
           "parameter_servers: {servers: [\"",
           place, "\"], optimizer: {kind: sgd, lr: 0.5}", servers, "}\n"),
      "ads.yaml"));
}

// Three steps under each plan in turn. The last plan's report.
std::vector<double> losses_under(const std::vector<Degrees>& plans, std::string& report) {
  const ps::RunningServer server;
  const model::JobSpec job = click_job(server.place);
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  std::vector<double> losses;
  std::vector<std::string> reports(2);
  const plan::Plan first = plan_of(job, plans.front());
  on_ranks(first.world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, first, *dataset, comm);
    trainer.initialize();
    for (std::size_t turn = 0; turn < plans.size(); ++turn) {
      if (turn > 0) {
        EXPECT_TRUE(trainer.change_plan(comm.rank() == 0 ? std::optional(plan_of(job, plans[turn])) : std::nullopt));
      }
      for (int step = 0; step < 3; ++step) {
        const double loss = trainer.step().loss;
        if (comm.rank() == 0) losses.push_back(loss);
      }
    }
    reports[static_cast<std::size_t>(comm.rank())] = trainer.tables_report();
    trainer.finish();
    comm.world().barrier().wait();
  });
  EXPECT_EQ(reports[1], "");
  report = reports[0];
  return losses;
}

TEST(RunTables, GoOnUnderAnotherPlanInMidRun) {
  std::string whole, changed;
  const std::vector<double> one = losses_under({{}, {}, {}}, whole);
  const std::vector<double> many = losses_under({{.dp = 2}, {.pp = 2, .micro_batches = 2}, {.dp = 2, .micro_batches = 2}}, changed);
  EXPECT_LT(worst_difference(many, one), 1e-4);
  EXPECT_LT(one.back(), one.front());
}

TEST(RunTables, AreReportedSinceThePlanBegan) {
  std::string told;
  losses_under({{.dp = 2}, {.dp = 2, .micro_batches = 2}}, told);
  const auto report = nlohmann::json::parse(told);
  EXPECT_EQ(report.at("steps"), 3);
  EXPECT_EQ(report.at("consistency"), "synchronous");
  EXPECT_EQ(report.at("seen").at("most"), 0);
  EXPECT_GT(report.at("seen").at("pulls"), 0);
  const auto& table = report.at("tables").at(0);
  EXPECT_EQ(table.at("name"), "ads");
  EXPECT_EQ(table.at("skew"), 1);
  // Two ranks, each with a message a step, of 8 samples of 5 keys.
  EXPECT_EQ(table.at("pulls").at("messages"), 6);
  EXPECT_EQ(table.at("pushes").at("messages"), 6);
  EXPECT_LE(table.at("keys_pulled"), 6 * 40);
  EXPECT_EQ(table.at("keys_pulled"), table.at("keys_pushed"));
  EXPECT_EQ(table.at("gradients_refused"), 0);
  EXPECT_GT(table.at("pulls").at("p99").get<double>(), 0);
  EXPECT_GE(table.at("rows"), table.at("keys_pulled").get<int>() / 6);
  EXPECT_EQ(table.at("servers").at(0).at("rows"), table.at("rows"));
}

// Also for an evaluation before the first step, which then gives them no second time.
TEST(RunTables, BeginWithTheRowsOfAnotherRunsCheckpoint) {
  const TemporaryFolder folder;
  const ps::RunningServer first, second;
  double trained = 0;
  const auto run = [&](const model::JobSpec& job, const Degrees& degrees, const auto& work) {
    const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
    const plan::Plan plan = plan_of(job, degrees);
    on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
      Trainer trainer(job, plan, *dataset, comm);
      work(trainer, comm.rank());
      trainer.finish();
      comm.world().barrier().wait();
    });
  };
  run(click_job(first.place), {}, [&](Trainer& trainer, int) {
    trainer.initialize();
    for (int step = 0; step < 3; ++step) trainer.step();
    trained = trainer.evaluate(50).loss;
    trainer.save(real_file_system(), folder.path(), 1);
  });
  model::JobSpec next = click_job(second.place);
  next.name = "more-ads";
  for (const Degrees& degrees : {Degrees{.dp = 2}, Degrees{.pp = 2, .micro_batches = 2}}) {
    next.name += "-again";
    run(next, degrees, [&](Trainer& trainer, int rank) {
      trainer.begin_with(checkpoint::step_folder(folder.path(), 3));
      const double begins = trainer.evaluate(50).loss;
      if (rank == 0) {
        EXPECT_NEAR(begins, trained, 1e-5);
      }
      EXPECT_EQ(trainer.next_step(), 0);
      trainer.step();
      const double after = trainer.evaluate(50).loss;
      if (rank == 0) {
        EXPECT_NE(after, begins);
      }
    });
  }
}

// Worker 1 never ends its first step, so that the rows of worker 0's second one do not come.
TEST(RunTables, AreNoLongerWaitedForOnceARankHasEnded) {
  const ps::RunningServer server;
  const model::JobSpec job = click_job(server.place);
  std::promise<void> waits;
  std::optional<Error> told;
  const auto rank = [&](comm::Communicator& comm) {
    Tables tables(job, ps::Worker{.index = comm.rank(), .count = 2, .run = 7}, comm);
    comm.world().barrier().wait();
    if (comm.rank() == 1) {
      waits.get_future().wait();
      throw Error(ErrorCode::io, "its disk is gone");  // which on_ranks tells the others
    }
    std::vector<nn::Batch> batches(1);
    batches.front().tensors["keys"] = at::arange(20, at::kLong).view({4, 5, 1});
    batches.front().tensors["labels"] = at::zeros({4}, at::kLong);
    tables.hold(batches, Tables::Step{0, 0.5});
    tables.rows().wait();
    tables.push(true).wait();
    tables.hold(batches, Tables::Step{1, 0.5});
    const nn::Exchange rows = tables.rows();
    waits.set_value();
    try {
      rows.wait();
    } catch (const Error& error) {
      told = error;
    }
  };
  EXPECT_THROW(on_ranks(2, rank), Error);
  ASSERT_TRUE(told) << "rows have come that wait for another rank's step";
  EXPECT_EQ(told->code(), ErrorCode::peer_lost);
  EXPECT_THAT(told->message(), AllOf(HasSubstr("its disk is gone"), HasSubstr("waited for rows"), HasSubstr(server.place)));
}

}  // namespace
}  // namespace tessera::train
