// The protocol of parameter servers under faults, simulated: what must hold, for many seeds; and that the checks find planted bugs.
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "base/error.hpp"
#include "base/log.hpp"
#include "ps/protocol_simulation_helper.hpp"

namespace tessera::ps::simulation {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSeeds = 40, kSeedsForABug = 5;
constexpr bool kSanitized = true;
#elif defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kSeeds = 10, kSeedsForABug = 3;
constexpr bool kSanitized = true;
#else
constexpr std::uint64_t kSeeds = 300, kSeedsForABug = 1000;
constexpr bool kSanitized = false;
#endif

// A run makes some fifty tables of a few rows each, and would have the system zero two huge pages for each.
class SmallPages {
 public:
  SmallPages() { prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); }
  ~SmallPages() { prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0); }
  SmallPages(const SmallPages&) = delete;
  SmallPages& operator=(const SmallPages&) = delete;
};

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const given = std::getenv(variable);
  return given ? std::strtoull(given, nullptr, 10) : otherwise;
}

TEST(ProtocolSimulation, NothingIsLostOrDoubledAndAllWorkEnds) {
  const log::Silence silence;
  const SmallPages pages;
  const std::uint64_t first = number_from("TESSERA_PS_SEED", 1),
                      seeds = number_from("TESSERA_PS_SEEDS", std::getenv("TESSERA_PS_SEED") ? 1 : kSeeds);
  Outcome all;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    const Outcome one = simulate(seed);
    all.events += one.events;
    all.seconds += one.seconds;
    all.crashes_of_leaders += one.crashes_of_leaders;
    all.crashes_of_backups += one.crashes_of_backups;
    all.lost_connections += one.lost_connections;
    all.pauses += one.pauses;
    all.partitions += one.partitions;
    all.comparisons += one.comparisons;
    all.pulls += one.pulls;
    EXPECT_FALSE(one.failure) << "seed " << seed << ": " << *one.failure << "\nagain: TESSERA_PS_SEED=" << seed
                              << " tessera_ps_tests --gtest_filter=ProtocolSimulation.Nothing*";
  }
  std::cout << seeds << " seeds, " << all.events << " events in " << all.seconds << " simulated seconds; " << all.crashes_of_leaders
            << " leaders and " << all.crashes_of_backups << " backups crashed, " << all.lost_connections << " connections lost, "
            << all.pauses << " pauses, " << all.partitions << " partitions; " << all.pulls << " pulls and " << all.comparisons
            << " comparisons of backups\n";
}

TEST(ProtocolSimulation, ASeedRunsTheSameAgain) {
  const log::Silence silence;
  const SmallPages pages;
  for (const std::uint64_t seed : {3, 4, 5}) {
    const Outcome once = simulate(seed), again = simulate(seed);
    EXPECT_EQ(once.trace, again.trace);
    EXPECT_EQ(once.events, again.events);
  }
}

struct Planted {
  Bug bug;
  const char* name;
};
class PlantedBug : public testing::TestWithParam<Planted> {};

TEST_P(PlantedBug, IsFound) {
  const log::Silence silence;
  const SmallPages pages;
  for (std::uint64_t seed = 1; seed <= kSeedsForABug; ++seed)
    if (const Outcome outcome = simulate(seed, GetParam().bug); outcome.failure) {
      std::cout << "seed " << seed << ": " << *outcome.failure << "\n";
      return;
    }
  if (kSanitized) GTEST_SKIP() << "a build without sanitizers looks longer";
  FAIL() << "not within " << kSeedsForABug << " seeds";
}

INSTANTIATE_TEST_SUITE_P(
    ProtocolSimulation, PlantedBug,
    testing::Values(Planted{Bug::push_is_dropped, "PushIsDropped"}, Planted{Bug::push_is_doubled, "PushIsDoubled"},
                    Planted{Bug::end_of_step_is_dropped, "EndOfStepIsDropped"}, Planted{Bug::pull_does_not_wait, "PullDoesNotWait"},
                    Planted{Bug::pull_does_not_wait_and_says_so_not, "PullDoesNotWaitAndSaysSoNot"},
                    Planted{Bug::client_numbers_again, "ClientNumbersAgain"},
                    Planted{Bug::leader_answers_before_its_backup, "LeaderAnswersBeforeItsBackup"},
                    Planted{Bug::backup_misses_pushes, "BackupMissesPushes"},
                    Planted{Bug::backup_misses_ends_of_steps, "BackupMissesEndsOfSteps"},
                    Planted{Bug::backup_misses_ends_of_periods, "BackupMissesEndsOfPeriods"},
                    Planted{Bug::backup_has_pushes_in_another_order, "BackupHasPushesInAnotherOrder"},
                    Planted{Bug::copy_without_clients, "CopyWithoutClients"}, Planted{Bug::copy_without_results, "CopyWithoutResults"},
                    Planted{Bug::copy_without_sums, "CopyWithoutSums"}, Planted{Bug::copy_without_rows, "CopyWithoutRows"},
                    Planted{Bug::copy_without_waiting, "CopyWithoutWaiting"}, Planted{Bug::copy_never_ends, "CopyNeverEnds"},
                    Planted{Bug::link_to_backup_asks_again, "LinkToBackupAsksAgain"},
                    Planted{Bug::standby_takes_clients, "StandbyTakesClients"},
                    Planted{Bug::standby_takes_silence_for_an_end, "StandbyTakesSilenceForAnEnd"},
                    Planted{Bug::leader_takes_silence_for_an_end, "LeaderTakesSilenceForAnEnd"},
                    Planted{Bug::one_that_begins_asks_nobody, "OneThatBeginsAsksNobody"},
                    Planted{Bug::one_that_begins_asks_without_a_name, "OneThatBeginsAsksWithoutAName"}),
    [](const auto& planted) { return planted.param.name; });

}  // namespace
}  // namespace tessera::ps::simulation
