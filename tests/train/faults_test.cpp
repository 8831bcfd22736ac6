// Whoever loses a rank says which, what it waited for, and what the lost one was last at; under each strategy and schedule.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "base/clock.hpp"
#include "base/random.hpp"
#include "comm/processes.hpp"
#include "train/job_helper.hpp"
#include "train/speed_meter.hpp"

namespace tessera::train {
namespace {

using comm::testing::Ranks;
using plan::Schedule;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

const std::vector<Degrees> kLayouts = {
    {.dp = 4},
    {.dp = 2, .zero = 1, .micro_batches = 2},
    {.dp = 4, .zero = 2, .micro_batches = 2},
    {.dp = 4, .zero = 3},
    {.dp = 4, .zero = 3, .recompute = model::Recompute::full, .shards = 2},
    {.tp = 2},
    {.dp = 2, .tp = 2, .sequence_parallel = true},
    {.tp = 2, .cp = 2, .context = model::ContextKind::ring},
    {.dp = 2, .cp = 2, .context = model::ContextKind::ulysses},
    {.dp = 4, .zero = 1, .ep = 2},
    {.dp = 2, .zero = 1, .delayed_exchange = true},
    {.pp = 4, .micro_batches = 4, .schedule = Schedule::gpipe},
    {.pp = 4, .micro_batches = 8, .schedule = Schedule::one_f_one_b},
    {.dp = 2, .pp = 2, .zero = 1, .micro_batches = 4, .schedule = Schedule::zb_h1},
    {.pp = 2, .micro_batches = 4, .schedule = Schedule::interleaved, .chunks = 2},
    {.pp = 2, .tp = 2, .micro_batches = 4, .schedule = Schedule::zb_h2},
    {.pp = 2, .micro_batches = 4, .schedule = Schedule::zb_v, .chunks = 2},
    {.pp = 2, .micro_batches = 4, .schedule = Schedule::dualpipe_v, .chunks = 2},
};

model::JobSpec job_of(const Degrees& degrees) {
  model::JobSpec job = degrees.ep > 1 ? tiny_experts_job() : tiny_job();
  if (degrees.delayed_exchange) job.train.optimizer.clip = 0;
  return job;
}

enum class Fault { killed, stopped, slowed };
const char* name_of(Fault fault) { return fault == Fault::killed ? "killed" : fault == Fault::stopped ? "stopped" : "slowed"; }

struct Injection {
  Fault fault = Fault::killed;
  Degrees degrees;
  int victim = 0;
  std::chrono::milliseconds after{300};  // since all ranks train
  bool shared_memory = true;
};

constexpr Seconds kHeartbeat(2);
constexpr Seconds kUsual = SpeedMeter::kWindow * 7;  // of training, which says what is usual
constexpr std::chrono::seconds kHang(60);

// One rank's process: trains until it hears of something.
std::string train_for_ever(const Injection& injection, const model::JobSpec& job, const plan::Plan& plan, const std::string& place,
                           int rank) {
  at::set_num_threads(1);
  comm::Options options = comm::testing::options(rank, plan.world_size(), place, 120);
  options.heartbeat_timeout = kHeartbeat;
  options.shared_memory = injection.shared_memory;
  const auto comm = comm::Communicator::connect(options);
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  std::optional<Trainer> trainer;
  try {
    trainer.emplace(job, plan, *dataset, *comm);
    trainer->initialize();
    const bool slowed = injection.fault == Fault::slowed;
    const Seconds usual = slowed ? kUsual : Seconds(0);
    Seconds trained(0);
    for (bool said = false; true;) {
      const StepReport report = trainer->step();
      if (report.step > 0) trained += report.seconds;
      if (slowed)
        for (const SpeedChange& change : trainer->watch_speed()) {
          const bool who = change.words.starts_with(text("rank ", injection.victim, " computes"));
          if (change.warns && who && change.words.find("above all in ") != std::string::npos) comm::testing::report("heard");
        }
      if (!said && report.step > 0 && trained >= usual) comm::testing::report("running"), said = true;
    }
  } catch (const Error& error) {
    comm::testing::report("heard");
    comm->abort(error.message());
    throw;
  }
}

// How long it took until the last rank that should report had. Says nothing of what it said where a rank does not.
double seconds_to_reports(const Injection& injection) {
  const model::JobSpec job = job_of(injection.degrees);
  const plan::Plan plan = plan_of(job, injection.degrees);
  const std::string place = free_loopback_place();
  const std::string what = text(name_of(injection.fault), " rank ", injection.victim, " of ", to_text(injection.degrees));
  Ranks ranks(plan.world_size(), [&](int rank) { return train_for_ever(injection, job, plan, place, rank); });
  for (int rank = 0; rank < plan.world_size(); ++rank)
    if (!ranks.wait_for_line(rank, "running")) {
      ADD_FAILURE() << what << ": rank " << rank
                    << " does not train: " << ranks.wait(std::chrono::seconds(1))[static_cast<std::size_t>(rank)].text;
      return 0;
    }
  std::this_thread::sleep_for(injection.after);
  const Seconds begin = real_clock().now();
  if (injection.fault == Fault::slowed) {
    // All ranks hear who slows them down, and in what; training goes on.
    int heard = 0;
    while (heard < plan.world_size() && (real_clock().now() - begin).value < static_cast<double>(kHang.count())) {
      ranks.signal(injection.victim, SIGSTOP);
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      ranks.signal(injection.victim, SIGCONT);
      if (ranks.wait_for_line(heard, "heard", std::chrono::milliseconds(10))) ++heard;
    }
    EXPECT_EQ(heard, plan.world_size()) << what << ": the next rank has not heard of it";
    return (real_clock().now() - begin).value;
  }
  ranks.signal(injection.victim, injection.fault == Fault::killed ? SIGKILL : SIGSTOP);
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    if (rank == injection.victim) continue;
    EXPECT_TRUE(ranks.wait_for_line(rank, "heard", kHang)) << what << ": rank " << rank << " hangs";
  }
  const double seconds = (real_clock().now() - begin).value;
  if (injection.fault == Fault::stopped) ranks.signal(injection.victim, SIGKILL);
  const auto outcomes = ranks.wait();
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    if (rank == injection.victim) continue;
    EXPECT_THAT(outcomes[static_cast<std::size_t>(rank)].text,
                AllOf(ContainsRegex(text("^error peer_lost: (.*: )?rank ", rank, " (waits for|is at) .* .instruction [0-9]+.: ")),
                      HasSubstr(text("rank ", injection.victim, " is lost")), HasSubstr("it was last at ")))
        << what << ", rank " << rank;
  }
  return seconds;
}

TEST(TrainingFaults, AKilledRankIsToldUnderEachStrategyAndSchedule) {
  for (std::size_t i = 0; i < kLayouts.size(); ++i) {
    const int world = kLayouts[i].dp * kLayouts[i].pp * kLayouts[i].tp * kLayouts[i].cp;
    seconds_to_reports({.degrees = kLayouts[i], .victim = static_cast<int>(i) % world, .shared_memory = i % 2 == 0});
  }
}

TEST(TrainingFaults, AStoppedRankIsToldUnderEachStrategyAndSchedule) {
  for (std::size_t i = 0; i < kLayouts.size(); i += 2) {
    const int world = kLayouts[i].dp * kLayouts[i].pp * kLayouts[i].tp * kLayouts[i].cp;
    seconds_to_reports(
        {.fault = Fault::stopped, .degrees = kLayouts[i], .victim = static_cast<int>(i / 2) % world, .shared_memory = i % 4 == 0});
  }
}

TEST(TrainingFaults, ASlowedRankIsTold) {
  seconds_to_reports({.fault = Fault::slowed, .degrees = {.dp = 2, .tp = 2}, .victim = 3});
  seconds_to_reports({.fault = Fault::slowed, .degrees = {.pp = 2, .micro_batches = 4}, .victim = 1, .shared_memory = false});
}

// For `./dev bench faults`, which says how many, and reads what is printed.
TEST(TrainingFaults, DISABLED_RandomInjectionsAreTold) {
  const char* count = std::getenv("TESSERA_INJECTIONS");
  const char* seed = std::getenv("TESSERA_INJECTION_SEED");
  Random random(seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1);
  const int injections = count != nullptr ? std::atoi(count) : 20;
  for (int i = 0; i < injections; ++i) {
    Injection injection;
    const std::uint64_t kind = random.below(100);
    injection.fault = kind < 70 ? Fault::killed : kind < 95 ? Fault::stopped : Fault::slowed;
    injection.degrees = kLayouts[random.below(kLayouts.size())];
    const int world = injection.degrees.dp * injection.degrees.pp * injection.degrees.tp * injection.degrees.cp;
    injection.victim = static_cast<int>(random.below(static_cast<std::uint64_t>(world)));
    injection.after = std::chrono::milliseconds(300 + random.below(300));
    injection.shared_memory = random.below(2) == 0;
    const double seconds = seconds_to_reports(injection);
    std::printf(
        "INJECTION {\"fault\": \"%s\", \"layout\": \"%s\", \"victim\": %d, \"shared_memory\": %s, \"seconds\": %.3f, \"failed\": %s}\n",
        name_of(injection.fault), to_text(injection.degrees).c_str(), injection.victim, injection.shared_memory ? "true" : "false", seconds,
        testing::Test::HasFailure() ? "true" : "false");
    std::fflush(stdout);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessera::train
