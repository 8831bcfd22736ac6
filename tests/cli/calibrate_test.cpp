#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/folders.hpp"
#include "cli/command_helper.hpp"
#include "profile/calibration.hpp"

namespace tessera::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string table(const std::string& name) { return std::string(kSourceFolder) + "/bench/truth/data/" + name + ".csv"; }

// Megatron-LM's GPTs with arch and dropout said, as a user would.
std::filesystem::path own_rows(const std::filesystem::path& folder) {
  std::ifstream in(table("megatron_sc21_table1"));
  std::ofstream out(folder / "rows.csv");
  std::string line;
  for (int number = 0; std::getline(in, line); ++number) out << (number == 0 ? "arch,dropout," : "gpt,0.1,") << line << "\n";
  return folder / "rows.csv";
}

TEST(Calibrate, ThreeRowsPredictTheOthersOfATable) {
  const TemporaryFolder folder;
  const std::string rows = own_rows(folder.path()).string();
  const std::string stack = (folder.path() / "ours.yaml").string();
  const CommandResult result = run_tessera({"calibrate", rows, "--rows", "1,5,10", "--attention", "unfused", "-o", stack, "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto answer = nlohmann::json::parse(result.out);
  double error = 0;
  int others = 0;
  for (const auto& row : answer["rows"]) {
    if (row["fitted"]) continue;
    error += std::abs(row["predicted_s"].get<double>() / row["measured_s"].get<double>() - 1);
    ++others;
  }
  ASSERT_EQ(others, 7);
  EXPECT_LT(error / others, 0.05);
  EXPECT_EQ(answer["stack"], "ours");
}

TEST(Calibrate, ItsFileSaysWhatTheRowsReach) {
  const TemporaryFolder folder;
  const std::string stack = (folder.path() / "ours.yaml").string();
  const CommandResult result =
      run_tessera({"calibrate", own_rows(folder.path()).string(), "--rows", "1,5", "--attention", "unfused", "-o", stack});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const profile::Calibration written = profile::read_calibration(ConfigNode::load(stack));
  // Of all rows that it is compared with, not only the two that it was fitted on.
  EXPECT_EQ(written.measured->ranges.at("devices"), (profile::Range{32, 3072}));
  EXPECT_EQ(written.measured->ranges.at("interleaved"), (profile::Range{4, 35}));
  EXPECT_TRUE(written.measured->assumed.contains("replicas"));
  EXPECT_THAT(result.out, HasSubstr("was taken for granted: gradients exchanged in 16 bits"));
}

TEST(Calibrate, ItsFilePricesAClusterThatNamesIt) {
  const TemporaryFolder folder;
  const std::string rows = own_rows(folder.path()).string();
  ASSERT_EQ(run_tessera({"calibrate", rows, "--attention", "unfused", "-o", (folder.path() / "ours.yaml").string()}).exit_code, 0);
  const auto step = [&](const std::string& stack, const std::string& device) {
    std::ofstream(folder.path() / "cluster.yaml")
        << "name: c\ngroups:\n  - {name: gpu, device: " << device
        << ", nodes: 4, devices_per_node: 8, inside: nvlink3, network: rdma-200g, stack: " << stack << "}\n";
    std::ofstream(folder.path() / "train.yaml") << "name: t\nmodel: {preset: gpt3-6.7b}\ndata: {source: synthetic}\n"
                                                << "train: {global_batch: 64, precision: bf16}\n";
    return run_tessera({"plan", (folder.path() / "train.yaml").string(), "--cluster", (folder.path() / "cluster.yaml").string(), "--json"});
  };
  const CommandResult ours = step("ours.yaml", "a100-80");
  ASSERT_EQ(ours.exit_code, 0) << ours.err;
  const CommandResult usual = step("llm-foundry", "a100-80");
  ASSERT_EQ(usual.exit_code, 0) << usual.err;
  EXPECT_NE(nlohmann::json::parse(ours.out)["plan"]["predicted"]["step_seconds"],
            nlohmann::json::parse(usual.out)["plan"]["predicted"]["step_seconds"]);
  const CommandResult other = step("ours.yaml", "h100-sxm");
  EXPECT_NE(other.exit_code, 0);
  EXPECT_THAT(other.out, AllOf(HasSubstr("calibrates a100"), HasSubstr("a calibration of h100")));
  EXPECT_THAT(step("none.yaml", "a100-80").out, HasSubstr("none.yaml"));
}

TEST(Calibrate, AnswersMistakes) {
  const CommandResult missing = run_tessera({"calibrate", "/nowhere.csv"});
  EXPECT_EQ(missing.exit_code, 3);
  EXPECT_THAT(missing.err, HasSubstr("cannot read /nowhere.csv: No such file or directory"));
  EXPECT_THAT(run_tessera({"calibrate", table("megatron_sc21_table1"), "--rows", "11"}).err, HasSubstr("a number from 1 to 10"));
  EXPECT_THAT(run_tessera({"calibrate", table("megatron_bridge"), "--rows", "2"}).err, HasSubstr("cannot be priced"));
  EXPECT_THAT(run_tessera({"calibrate", table("llm_foundry_mpt_fsdp")}).err, HasSubstr("rows of one accelerator"));
}

}  // namespace
}  // namespace tessera::cli
