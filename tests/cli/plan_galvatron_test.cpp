#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/folders.hpp"
#include "cli/command_helper.hpp"

namespace tessera::cli {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> plan_words(std::vector<std::string> more) {
  std::vector<std::string> words = {"plan", "--galvatron", std::string(kSourceFolder) + "/bench/planner/inputs/search_dist.yaml",
                                    "SEQ_LENGTH=2048", "search_engine.profiling_info.time_profile_mode=static"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(PlanGalvatron, PrintsCostSearchTimeAndPlanAsJson) {
  const CommandResult result = run_tessera(plan_words({"--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto answer = nlohmann::json::parse(result.out);
  EXPECT_LE(answer["cost_s"].get<double>(), 3.8711);
  EXPECT_GE(answer["search_s"].get<double>(), 0);
  EXPECT_EQ(answer["plan"]["global_bsz"], 64);
  EXPECT_EQ(answer["fits"], true);
}

TEST(PlanGalvatron, WritesAFileThatItPricesAlike) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_tessera(plan_words({"-o", folder.path().string()})).exit_code, 0);
  const auto file = folder.path() / "galvatron_config_llama2-7b_1nodes_8gpus_per_node_38GB_bf16.json";
  ASSERT_TRUE(std::filesystem::exists(file));
  const auto searched = nlohmann::json::parse(run_tessera(plan_words({"--json"})).out);
  const auto priced = nlohmann::json::parse(run_tessera(plan_words({"--evaluate", file.string(), "--json"})).out);
  EXPECT_DOUBLE_EQ(priced["cost_s"].get<double>(), searched["cost_s"].get<double>());
  EXPECT_EQ(priced["memory_mb"], searched["memory_mb"]);
}

TEST(PlanGalvatron, ShowsATableWithoutJson) {
  const CommandResult result = run_tessera(plan_words({}));
  EXPECT_THAT(result.out, HasSubstr("llama2-7b on 8 devices of 38 GB"));
  EXPECT_THAT(result.out, HasSubstr("tp4 dp2 zero2"));
}

TEST(PlanGalvatron, AnswersMistakes) {
  const CommandResult typo = run_tessera(plan_words({"MEMORY_CONSTRAIT=24"}));
  EXPECT_EQ(typo.exit_code, 2);
  EXPECT_THAT(typo.err, HasSubstr("did you mean 'MEMORY_CONSTRAINT'?"));
  EXPECT_THAT(run_tessera(plan_words({"NUM_NODES=16", "--json"})).out, HasSubstr("allreduce_bandwidth_16nodes_8gpus_per_node.json"));
  EXPECT_THAT(run_tessera({"plan", "a.yaml", "b.yaml"}).err, HasSubstr("takes one train.yaml"));
  EXPECT_THAT(run_tessera({"plan", "a.yaml", "--evaluate", "x.json"}).err, HasSubstr("--galvatron"));
}

}  // namespace
}  // namespace tessera::cli
