// Tables where the terminal has 80 columns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "base/table.hpp"
#include "cli/command_helper.hpp"

namespace tessera::cli {
namespace {

using testing::HasSubstr;

class Tables : public testing::Test {
 protected:
  Tables() {
    folder_.write(
        "gpus.yaml",
        "name: gpus\ngroups:\n  - {name: größte, device: a100-80, nodes: 2, devices_per_node: 8, inside: nvlink3, network: rdma-100g}\n"
        "  - {name: 模型, device: h100-sxm, nodes: 1, devices_per_node: 8, inside: nvlink4, network: rdma-100g}\nbetween: rdma-100g\n");
    folder_.write("job.yaml",
                  "name: job\nmodel: {arch: llama, hidden: 1024, layers: 16, heads: 8, kv_heads: 8, ffn: 4096, seq: 512, vocab: 8192}\n"
                  "data: {source: synthetic}\ntrain: {global_batch: 64, precision: bf16}\n");
  }

  CommandResult at(const char* columns, std::vector<std::string> arguments) {
    const CommandResult result = run_tessera(std::move(arguments), {folder_.path(), {{"COLUMNS", columns}}});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  }

  // No line is longer than 80 columns.
  void expect_fits(const std::vector<std::string>& arguments) {
    const std::string fitting = at("80", arguments).out;
    std::istringstream lines(fitting);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), 80) << line;
    EXPECT_NE(fitting, "");
  }
  TemporaryFolder folder_;
};

TEST_F(Tables, OfTheClusterFit) { expect_fits({"cluster", "list"}); }

TEST_F(Tables, OfPlansFit) {
  expect_fits({"plan", "job.yaml"});
  expect_fits({"plan", "job.yaml", "--cluster", "gpus.yaml"});
  expect_fits({"plan", "job.yaml", "--cluster", "gpus.yaml", "--set", "parallel={pp: 4}"});
  expect_fits({"plan", "job.yaml", "--cluster", "gpus.yaml", "--set", "parallel={pp: 4, schedule: interleaved}", "--set",
               "cluster.groups.1.nodes=2"});
  expect_fits({"plan", "job.yaml", "--cluster", "gpus.yaml", "--set", "cluster.nodes=x2", "--compare"});
}

TEST_F(Tables, OfSimulatedPlansFit) {
  ASSERT_EQ(at("80", {"plan", "job.yaml", "--cluster", "gpus.yaml", "-o", "plan.json"}).exit_code, 0);
  expect_fits({"simulate", "job.yaml", "--cluster", "gpus.yaml", "--plan", "plan.json"});
}

TEST_F(Tables, OfRunsFitAndKeepWholeFigures) {
  const std::string metrics =
      "{\"step\": 9999, \"loss\": 3.25, \"tokens\": 1000, \"seconds\": 0.5, \"tokens_per_s\": 123456, \"mfu\": 0.25, \"grad_norm\": 1, "
      "\"lr\": 0.001, "
      "\"memory\": 5242880}\n";
  for (const char* name : {"a-run-whose-name-says-all-that-was-tried-in-it", "größe", "模型"}) {
    folder_.write(std::string("runs/") + name + "/train.yaml", "train: {steps: 10000}\n");
    folder_.write(std::string("runs/") + name + "/metrics.jsonl", metrics);
  }
  expect_fits({"runs"});
  expect_fits({"runs", "compare", "größe", "a-run-whose-name-says-all-that-was-tried-in-it"});
  const std::string table = at("80", {"runs"}).out;
  EXPECT_THAT(table, HasSubstr(" 123 k "));
  // Names of the same width on the screen, whatever their bytes.
  std::istringstream lines(at("0", {"runs"}).out);
  std::vector<int> columns;
  for (std::string line; std::getline(lines, line);)
    if (const std::size_t loss = line.find("3.25"); loss != std::string::npos) columns.push_back(display_width(line.substr(0, loss)));
  ASSERT_EQ(columns.size(), 3U);
  EXPECT_THAT(columns, testing::Each(columns.front()));
}

TEST_F(Tables, OfASplitFit) {
  std::string words;
  for (int i = 0; i < 400; ++i) words += "word " + std::to_string(i * i) + " and " + std::to_string(i) + "\n";
  folder_.write("a-folder-with-a-name-of-some-length/and-another/first-words.txt", words);
  folder_.write("second.txt", words);
  folder_.write("text.yaml",
                "model: {arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 4, ffn: 128, seq: 32, vocab: 300}\n"
                "data: {sources: [{path: a-folder-with-a-name-of-some-length/and-another/first-words.txt, weight: 3}, {path: second.txt, "
                "weight: 1}], tokenizer: {kind: bpe, vocab: 300}}\ntrain: {global_batch: 8, steps: 2}\n");
  expect_fits({"data", "split", "text.yaml"});
}

TEST_F(Tables, OfTheDoctorFit) {
  const CommandResult result = run_tessera({"doctor"}, {folder_.path(), {{"COLUMNS", "80"}}});
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(display_width(line), 80) << line;
}

}  // namespace
}  // namespace tessera::cli
