// A group that loses a rank goes on with those that are left, and again with all, in the same processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <latch>
#include <mutex>
#include <optional>
#include <thread>

#include "base/free_port.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

using plan::Schedule;
using ::testing::HasSubstr;

constexpr int kLost = 3;  // the process that fails, rank 3 of the first four
constexpr std::int64_t kSteps = 7;

// Three phases: four ranks, three, four.
struct Journey {
  plan::Plan four;
  plan::Plan three;
  plan::Plan again;
  bool from_snapshots = false;  // of step 2; else from what the others hold of step 3
};

comm::Options options_of(int rank, int world, const std::string& place, std::int64_t epoch) {
  comm::Options options;
  options.rank = rank;
  options.world_size = world;
  options.rendezvous = place;
  options.deadline = Seconds(60);
  options.epoch = epoch;
  return options;
}

// Losses of the steps that count, on process 0.
std::vector<double> losses_of(const model::JobSpec& job, const Journey& journey) {
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const std::vector<std::string> places = {free_loopback_place(), free_loopback_place(), free_loopback_place()};
  std::vector<double> losses(kSteps);
  std::latch made(4);

  const auto process = [&](int self) {
    // While all four are there, each gives what it alone holds to its neighbour.
    HeldState held;
    {
      const auto comm = comm::Communicator::connect(options_of(self, 4, places[0], 0));
      Trainer trainer(job, journey.four, *dataset, *comm);
      trainer.initialize();
      HeldState snapshot;
      const auto note = [&](const StepReport& report) {
        if (self == 0) losses.at(static_cast<std::size_t>(report.step)) = report.loss;
      };
      for (int i = 0; i < 2; ++i) note(trainer.step());
      if (journey.from_snapshots) {
        const HeldState own = copied(trainer.held_state(Holds::own));
        snapshot = joined(own, pass_on(*comm, own, (self + 1) % 4, (self + 3) % 4));
      }
      note(trainer.step());
      // An end that comes before all have made the step would leave them at different ones.
      made.arrive_and_wait();
      try {
        if (self == kLost) comm->abort("it is lost");
        trainer.step();
        ADD_FAILURE() << "process " << self << " does not miss the lost one";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::peer_lost);
      }
      // What the lost one held is gone with it.
      if (self != kLost) held = journey.from_snapshots ? snapshot : trainer.held_state(Holds::all);
    }
    if (self != kLost) {
      const auto comm = comm::Communicator::connect(options_of(self, 3, places[1], 1));
      Trainer trainer(job, journey.three, *dataset, *comm);
      trainer.load(held);
      held = {};
      EXPECT_EQ(trainer.next_step(), journey.from_snapshots ? 2 : 3);
      while (trainer.next_step() < 5) {
        const StepReport report = trainer.step();
        if (self == 0) losses.at(static_cast<std::size_t>(report.step)) = report.loss;
      }
      held = trainer.held_state(Holds::own);
      comm->world().barrier().wait();
    }
    // The lost one's process is back, and knows nothing.
    const auto comm = comm::Communicator::connect(options_of(self, 4, places[2], 2));
    Trainer trainer(job, journey.again, *dataset, *comm);
    trainer.load(held);
    EXPECT_EQ(trainer.next_step(), 5);
    while (trainer.next_step() < kSteps) {
      const StepReport report = trainer.step();
      if (self == 0) losses.at(static_cast<std::size_t>(report.step)) = report.loss;
    }
    comm->world().barrier().wait();
  };

  std::mutex mutex;  // guards failure
  std::exception_ptr failure;
  std::vector<std::thread> processes;
  for (int self = 0; self < 4; ++self)
    processes.emplace_back([&, self] {
      try {
        process(self);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    });
  for (auto& thread : processes) thread.join();
  if (failure) std::rethrow_exception(failure);
  return losses;
}

plan::Plan with_shares(plan::Plan plan, std::vector<plan::Share> shares) {
  for (plan::Stage& stage : plan.stages) stage.shares = shares;
  return plan;
}

void expect_as_one_device(const model::JobSpec& job, const Journey& journey) {
  EXPECT_LT(worst_difference(losses_of(job, journey), train_curve(job, {}, kSteps).losses), 1e-4)
      << plan::to_json(journey.four) << plan::to_json(journey.three) << plan::to_json(journey.again);
}

// Replicas hold all that the lost one held.
TEST(Elastic, FromReplicasAGroupGoesOnAsThreeAndAsFour) {
  const auto job = tiny_job();
  const plan::Plan three_replicas = with_shares(plan_of(job, {.dp = 3}), {{1, 6}, {2, 10}});
  expect_as_one_device(job, {plan_of(job, {.dp = 4}), three_replicas, plan_of(job, {.dp = 4})});
  expect_as_one_device(job, {plan_of(job, {.dp = 2, .tp = 2}), plan_of(job, {.pp = 3, .micro_batches = 4}),
                             plan_of(job, {.dp = 2, .pp = 2, .zero = 1, .micro_batches = 2, .schedule = Schedule::zb_h1})});
  expect_as_one_device(job, {plan_of(job, {.dp = 4, .zero = 3, .shards = 2}), three_replicas, plan_of(job, {.dp = 4, .zero = 2})});
}

// Nobody holds what the lost one did, but its neighbour, which took a copy of it.
TEST(Elastic, FromSnapshotsInMemoryAGroupGoesOnAsThreeAndAsFour) {
  const auto job = tiny_job();
  expect_as_one_device(
      job, {plan_of(job, {.dp = 4, .zero = 3}), plan_of(job, {.pp = 3, .micro_batches = 4}), plan_of(job, {.dp = 4, .zero = 3}), true});
  expect_as_one_device(job,
                       {plan_of(job, {.pp = 4, .micro_batches = 4}), with_shares(plan_of(job, {.dp = 3, .zero = 1}), {{1, 6}, {2, 10}}),
                        plan_of(job, {.pp = 2, .tp = 2, .micro_batches = 4, .schedule = Schedule::zb_v, .chunks = 2}), true});
}

TEST(Elastic, ExpertsAreTakenFromWhoHoldsThem) {
  const auto job = tiny_experts_job();
  expect_as_one_device(job, {plan_of(job, {.dp = 4, .zero = 1, .ep = 2}), plan_of(job, {.pp = 3, .micro_batches = 4}),
                             plan_of(job, {.dp = 4, .zero = 3, .ep = 4}), true});
}

TEST(Elastic, WhatNobodyHoldsIsNamedByAll) {
  const auto job = tiny_job();
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const plan::Plan plan = plan_of(job, {.dp = 2, .zero = 1});
  on_ranks(2, [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm);
    trainer.initialize();
    trainer.step();
    HeldState held = copied(trainer.held_state(Holds::own));
    if (comm.rank() == 1) held = {};
    Trainer next(job, plan, *dataset, comm);
    try {
      next.load(held);
      ADD_FAILURE() << "half of the state was enough";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::not_found);
      EXPECT_THAT(error.what(), HasSubstr("no rank holds all of '"));
    }
    // Nor do ranks go on that hold different steps.
    held = copied(trainer.held_state(Holds::own));
    held.state.step += comm.rank();
    try {
      next.load(held);
      ADD_FAILURE() << "two steps became one";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_config);
      EXPECT_THAT(error.what(), HasSubstr("ranks hold different states"));
    }
  });
}

// Bit for bit, also what only this rank's neighbour knows of it.
TEST(Elastic, StateIsPassedOnBitForBit) {
  const auto job = tiny_job();
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const plan::Plan plan = plan_of(job, {.dp = 3, .zero = 0});
  on_ranks(3, [&](comm::Communicator& comm) {
    Trainer trainer(job, with_shares(plan, {{1, 6}, {2, 10}}), *dataset, comm);
    trainer.initialize();
    trainer.step();
    const HeldState all = copied(trainer.held_state(Holds::all));
    const HeldState from = pass_on(comm, all, (comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
    ASSERT_EQ(from.pieces.size(), all.pieces.size());
    EXPECT_EQ(from.state.step, 1);
    EXPECT_EQ(from.state.tokens, all.state.tokens);
    for (std::size_t i = 0; i < all.pieces.size(); ++i) {
      EXPECT_EQ(from.pieces[i].name, all.pieces[i].name);
      EXPECT_TRUE(from.pieces[i].data.equal(all.pieces[i].data)) << all.pieces[i].name;
    }
  });
}

}  // namespace
}  // namespace tessera::train
