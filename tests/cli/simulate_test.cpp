// tessera simulate, and what train says of plans that can only be simulated
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/command_helper.hpp"

namespace tessera::cli {
namespace {

using testing::HasSubstr;

class SimulateCommand : public testing::Test {
 protected:
  void SetUp() override {
    const CommandResult planned = run_tessera({"plan", yaml_.string(), "--cluster", cluster_.string(), "-o", plan_.string()});
    ASSERT_EQ(planned.exit_code, 0) << planned.err;
    json_ = read_file(plan_);
  }
  static std::string read_file(const std::filesystem::path& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // The plan with another schedule's name.
  std::filesystem::path with_schedule(const std::string& name) {
    std::string edited = json_;
    edited.replace(edited.find("\"1f1b\""), 6, '"' + name + '"');
    return folder_.write(name + ".json", edited);
  }
  CommandResult simulate(const std::filesystem::path& plan, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"simulate", yaml_.string(), "--plan", plan.string(), "--cluster", cluster_.string(), "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_tessera(arguments);
  }

  TemporaryFolder folder_;
  std::filesystem::path cluster_ = folder_.write(
      "cluster.yaml",
      "name: g\ngroups:\n  - {name: gpu, device: a100-80, nodes: 1, devices_per_node: 4, inside: nvlink3, network: rdma-100g}\n");
  std::filesystem::path yaml_ =
      folder_.write("train.yaml",
                    "name: t\nmodel: {arch: llama, hidden: 1024, layers: 6, heads: 8, kv_heads: 8, ffn: 2816, seq: 512, vocab: "
                    "4096}\ndata: {source: synthetic}\n"
                    "train: {global_batch: 12}\ncluster: " +
                        cluster_.string() + "\nparallel: {pp: 4, tp: 1, dp: 1, micro_batches: 3, schedule: 1f1b}\n");
  std::filesystem::path plan_ = folder_.path() / "plan.json";
  std::string json_;
};

TEST_F(SimulateCommand, RunsAPlanWithItsBackwardPassesInHalves) {
  const CommandResult whole = simulate(plan_);
  const CommandResult halves = simulate(with_schedule("zb-h2"));
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  ASSERT_EQ(halves.exit_code, 0) << halves.err;
  EXPECT_LT(nlohmann::json::parse(halves.out).at("step_seconds"), nlohmann::json::parse(whole.out).at("step_seconds"));
}

TEST_F(SimulateCommand, RunsTheOrderOfAScheduleFile) {
  std::string ranks;
  for (int i = 0; i < 4; ++i) ranks += "  - [F0.0, B0.0, F0.1, B0.1, F0.2, B0.2]\n";
  const auto file =
      folder_.write("one-by-one.yaml", "format: tessera-schedule\nversion: 1\nplacement: plain\nmicro_batches: 3\nranks:\n" + ranks);
  const CommandResult result = simulate(plan_, {"--schedule", file.string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // One micro-batch after the other: of four ranks three always wait.
  EXPECT_GT(nlohmann::json::parse(result.out).at("bubble"), 0.7);
  const auto wrong = folder_.write(
      "wrong.yaml", "format: tessera-schedule\nversion: 1\nplacement: plain\nmicro_batches: 3\nranks:\n  - [F0.0, G0.0]\n" + ranks);
  const CommandResult refused = simulate(plan_, {"--schedule", wrong.string()});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(nlohmann::json::parse(refused.out + refused.err).at("error").at("line"), 6);
}

TEST_F(SimulateCommand, TrainSaysWhatItCanRunInstead) {
  const auto yaml = folder_.write(
      "odd.yaml",
      "name: g\nmodel: {arch: llama, hidden: 256, layers: 6, heads: 4, ffn: 512, seq: 127, vocab: 1024}\ndata: {source: synthetic}\n"
      "train: {global_batch: 12}\ncluster: " +
          cluster_.string() + "\nparallel: {pp: 2, tp: 2, dp: 1, micro_batches: 3, schedule: 1f1b}\n");
  const CommandResult planned = run_tessera({"plan", yaml.string(), "--cluster", cluster_.string(), "-o", plan_.string()});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  std::string edited = read_file(plan_);
  edited.insert(edited.find("\"none\"") + 6, ", \"sequence_parallel\": true");
  const CommandResult result =
      run_tessera({"train", yaml.string(), "--plan", folder_.write("again.json", edited).string()}, {folder_.path(), {}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("the plan cannot run: sequence_parallel with tp 2, which does not divide seq 127"));
  EXPECT_THAT(result.err, HasSubstr("degrees that divide seq"));
}

TEST_F(SimulateCommand, StagesOfDifferentWidthsAreSimulatedInAnyPrecision) {
  // The two middle stages become one of two ranks.
  nlohmann::ordered_json plan = nlohmann::ordered_json::parse(json_);
  auto& stages = plan["stages"];
  stages[1]["ranks"] = {1, 2};
  stages[1]["blocks"][0]["last"] = stages[2]["blocks"].back()["last"];
  stages[1]["blocks"][0]["dp"] = 2;
  stages.erase(2);
  const CommandResult played = simulate(folder_.write("fp32.json", plan.dump(2)));
  ASSERT_EQ(played.exit_code, 0) << played.err;
  EXPECT_EQ(nlohmann::json::parse(played.out).at("ranks").size(), 4u);
  plan["precision"] = "bf16";
  const CommandResult simulated = simulate(folder_.write("bf16.json", plan.dump(2)), {"--set", "train.precision=bf16"});
  ASSERT_EQ(simulated.exit_code, 0) << simulated.err;
  const auto result = nlohmann::json::parse(simulated.out);
  EXPECT_EQ(result.at("ranks").size(), 4u);
  EXPECT_NEAR(result.at("predicted_seconds").get<double>() / result.at("step_seconds").get<double>(), 1, 0.25);
}

// An edited plan that divides, but whose states no device can hold.
TEST(PlanThatDoesNotFit, IsNeitherSimulatedNorWrittenForOthers) {
  const TemporaryFolder folder;
  folder.write("cluster.yaml",
               "name: g\ngroups:\n  - {name: gpu, device: h100-sxm, nodes: 1, devices_per_node: 8, inside: nvlink4, network: rdma-400g}\n");
  folder.write(
      "train.yaml",
      "model: {preset: llama-3-8b}\ndata: {source: synthetic}\ntrain: {global_batch: 64, precision: bf16}\ncluster: cluster.yaml\n");
  ASSERT_EQ(run_tessera({"plan", "train.yaml", "-o", "plan.json", "--top", "0"}, {folder.path(), {}}).exit_code, 0);
  std::ifstream in(folder.path() / "plan.json");
  nlohmann::ordered_json plan = nlohmann::ordered_json::parse(in);
  for (auto& stage : plan["stages"])
    for (auto& run : stage["blocks"]) run["zero"] = 0;
  folder.write("large.json", plan.dump(1));
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"simulate", "train.yaml", "--plan", "large.json"},
        std::vector<std::string>{"plan", "train.yaml", "--plan", "large.json", "--write", "megatron", "flags.sh"}}) {
    const CommandResult result = run_tessera(words, {folder.path(), {}});
    EXPECT_NE(result.exit_code, 0) << words.front();
    EXPECT_THAT(result.err, HasSubstr("the plan does not fit: rank "));
    EXPECT_THAT(result.err, HasSubstr("and may use 76.0 GiB"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "flags.sh"));
}

TEST(CpusBesideAccelerators, AreLeftOutSoThatBlocksAreCutOneByOne) {
  const TemporaryFolder folder;
  folder.write(
      "cluster.yaml",
      "name: pc\nbetween: pcie4\ngroups:\n  - {name: host, device: \"cpu:zen4\", cores: 16, memory: 64 GiB, nodes: 1, inside: shm}\n"
      "  - {name: gpu, device: rtx4090, nodes: 1, devices_per_node: 2, inside: pcie4, network: tcp-10g}\n");
  folder.write("train.yaml",
               "model: {preset: gpt2}\ndata: {source: synthetic}\ntrain: {global_batch: 8, precision: bf16}\ncluster: cluster.yaml\n");
  const CommandResult planned = run_tessera({"plan", "train.yaml", "-o", "plan.json", "--json"}, {folder.path(), {}});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.err, HasSubstr("note: the CPUs of host are left out"));
  EXPECT_GT(nlohmann::json::parse(planned.out).at("bound_s"), 0);
  EXPECT_EQ(run_tessera({"simulate", "train.yaml", "--plan", "plan.json"}, {folder.path(), {}}).exit_code, 0);
}

TEST(PrecisionNote, SaysThatAcceleratorsWereToComputeIn32Bits) {
  const TemporaryFolder folder;
  folder.write("cluster.yaml",
               "name: g\ngroups:\n  - {name: gpu, device: h100-sxm, nodes: 1, devices_per_node: 8, inside: nvlink4, network: rdma-400g}\n");
  folder.write("train.yaml", "model: {preset: gpt2}\ndata: {source: synthetic}\ntrain: {global_batch: 8}\ncluster: cluster.yaml\n");
  const CommandResult silent = run_tessera({"plan", "train.yaml"}, {folder.path(), {}});
  EXPECT_THAT(silent.err, HasSubstr("--set train.precision=bf16"));
  const CommandResult said = run_tessera({"plan", "train.yaml", "--set", "train.precision=fp32"}, {folder.path(), {}});
  EXPECT_THAT(said.err, testing::Not(HasSubstr("note:")));
}

}  // namespace
}  // namespace tessera::cli
