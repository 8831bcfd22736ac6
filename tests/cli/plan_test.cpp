// tessera plan: what-ifs and their comparison, the page
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/file_system.hpp"
#include "cli/command_helper.hpp"
#include "cli/plan_report_parts.hpp"

namespace tessera::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kJob = R"(name: job
model: {arch: llama, hidden: 1024, layers: 8, heads: 8, kv_heads: 8, ffn: 4096, seq: 512, vocab: 8192}
data: {source: synthetic}
train: {global_batch: 32, precision: bf16}
)";
constexpr const char* kCluster = R"(name: gpus
groups:
  - {name: gpu, device: a100-80, nodes: 1, devices_per_node: 4, inside: nvlink3, network: rdma-100g}
)";

class PlanCommand : public testing::Test {
 protected:
  CommandResult plan(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"plan", folder_.write("train.yaml", kJob).string(), "--cluster",
                                          folder_.write("cluster.yaml", kCluster).string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_tessera(arguments);
  }
  TemporaryFolder folder_;
};

TEST_F(PlanCommand, ComparesAWhatIfWithThePlanWithoutIt) {
  const CommandResult text = plan({"--set", "cluster.nodes=x2", "--compare"});
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("without --set"));
  const CommandResult json = plan({"--set", "cluster.nodes=x2", "--compare", "--json"});
  const CommandResult alone = plan({"--json"});
  const auto what_if = nlohmann::json::parse(json.out);
  EXPECT_EQ(what_if["without_set"]["step_s"], nlohmann::json::parse(alone.out)["plan"]["predicted"]["step_seconds"]);
  EXPECT_EQ(what_if["plan"]["ranks"].size(), 8u);
}

TEST_F(PlanCommand, ExplainsBesideJson) {
  const std::string text = plan({}).out;
  const CommandResult both = plan({"--json", "--explain"});
  EXPECT_EQ(both.out, plan({"--json"}).out);
  EXPECT_THAT(both.err, HasSubstr(text.substr(0, text.find('\n'))));
}

TEST_F(PlanCommand, SaysHowFarThePlanLiesFromMeasuredSteps) {
  EXPECT_THAT(plan({"--explain"}).out, HasSubstr("4 devices (measured from 8 on, 0.5 x)"));
  const auto answer = nlohmann::json::parse(plan({"--json"}).out);
  const auto& all = answer["extrapolated"];
  const auto devices = std::find_if(all.begin(), all.end(), [](const auto& one) { return one["quantity"] == "devices"; });
  ASSERT_NE(devices, all.end());
  EXPECT_EQ((*devices)["given"], true);
  EXPECT_EQ((*devices)["measured"], nlohmann::json({8, 128}));
  EXPECT_EQ((*devices)["factor"], 0.5);
  for (const auto& candidate : answer["runners_up"]) EXPECT_TRUE(candidate["within_measured"].is_boolean());
  // In 32 bits a roofline says the times, and no calibration.
  const auto roofline = nlohmann::json::parse(plan({"--json", "--set", "train.precision=fp32"}).out);
  EXPECT_FALSE(roofline.contains("extrapolated"));
  for (const auto& candidate : roofline["runners_up"]) EXPECT_FALSE(candidate.contains("within_measured"));
}

TEST_F(PlanCommand, ComparesNothingWithoutSet) {
  const CommandResult result = plan({"--compare"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("at least one --set"));
}

TEST_F(PlanCommand, SearchesAsLongAsItMayAndSaysHowFarTheBestCanBe) {
  const CommandResult result = plan({"--seconds", "0.2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("searched for 200.0 ms: no plan of the space takes less than "));
  EXPECT_THAT(result.out, HasSubstr("simulated: a step of "));
  EXPECT_EQ(plan({"--seconds", "0"}).exit_code, 2);
}

TEST_F(PlanCommand, SaysWhatWouldFitWhenNothingDoes) {
  const CommandResult result = plan({"--set", "cluster.memory=2 GiB", "--set", "parallel={dp: 4, zero: 0, recompute: none}"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_THAT(result.err, HasSubstr("its largest parts: "));
  ASSERT_THAT(result.err, HasSubstr("devices with "));
  // What it says is enough, is.
  const std::size_t begin = result.err.find("devices with ") + 13;
  const std::string memory = result.err.substr(begin, result.err.find_first_of(";\n", begin) - begin);
  EXPECT_EQ(plan({"--set", "cluster.memory=" + memory, "--set", "parallel={dp: 4, zero: 0, recompute: none}"}).exit_code, 0) << memory;
}

TEST_F(PlanCommand, WritesTheBestOrAGivenPlanForOtherTrainers) {
  const std::string given = (folder_.path() / "plan.json").string();
  const std::string flags = (folder_.path() / "megatron.flags").string();
  const std::string toml = (folder_.path() / "torchtitan.toml").string();
  const CommandResult best = plan({"--set", "parallel={dp: 4, zero: 1}", "-o", given, "--write", "megatron", flags});
  ASSERT_EQ(best.exit_code, 0) << best.err;
  EXPECT_THAT(best.out, HasSubstr("written for megatron to " + flags));
  const std::string written = read_whole(flags);
  EXPECT_THAT(written, HasSubstr("--use-distributed-optimizer\n"));
  const CommandResult again = plan({"--plan", given, "--write", "megatron", flags, "--write", "torchtitan", toml, "--json"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(nlohmann::json::parse(again.out)["written"]["torchtitan"], toml);
  EXPECT_EQ(read_whole(flags), written);
  EXPECT_THAT(read_whole(toml), HasSubstr("data_parallel_shard_degree = 4\n"));
}

TEST_F(PlanCommand, WritesNothingWhenOneOfTheOthersCannotRunIt) {
  const auto flags = folder_.path() / "megatron.flags";
  const CommandResult result = plan(
      {"--set", "parallel={tp: 4}", "--write", "megatron", flags.string(), "--write", "torchtitan", (folder_.path() / "a.toml").string()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("torchtitan cannot run this plan"));
  EXPECT_FALSE(std::filesystem::exists(flags));
  EXPECT_THAT(plan({"--write", "deepspeed", "a.json"}).err, HasSubstr("megatron or torchtitan"));
}

// Hours of search are left when Ctrl-C comes.
TEST_F(PlanCommand, ShowsHowFarALongSearchIsAndCtrlCGivesTheBestSoFar) {
  folder_.write("train.yaml", kJob);
  folder_.write("many.yaml",
                "name: many\nbetween: rdma-200g\ngroups:\n"
                "  - {name: a, device: a100-80, nodes: 6, devices_per_node: 8, inside: nvlink3, network: rdma-200g}\n"
                "  - {name: b, device: h100-sxm, nodes: 10, devices_per_node: 8, inside: nvlink4, network: rdma-400g}\n"
                "  - {name: c, device: a100-40, nodes: 4, devices_per_node: 8, inside: nvlink3, network: rdma-100g}\n");
  OnTerminal terminal({tessera_path(), "plan", "train.yaml", "--cluster", "many.yaml", "--seconds", "10000", "-o", "plan.json", "--set",
                       "model={preset: deepseek-v3}", "--set", "train.global_batch=960"},
                      {folder_.path(), {}});
  terminal.shows("searching: ");
  terminal.shows(" choices, best step ");
  terminal.type("\x03");
  terminal.shows("stopping with the best plan so far; Ctrl-C again ends at once");
  EXPECT_EQ(terminal.end(), 0) << terminal.shown();
  EXPECT_THAT(terminal.shown(), HasSubstr("the search was cut short: this is the best plan that it had found"));
  EXPECT_TRUE(nlohmann::json::parse(read_whole(folder_ / "plan.json")).contains("stages"));
}

TEST_F(PlanCommand, ShowsNoProgressInAFile) { EXPECT_THAT(plan({"--seconds", "2"}).err, Not(HasSubstr("searching"))); }

// Nothing is searched for then: a plan of this job would be refused, and that is not said.
TEST_F(PlanCommand, RefusesBeforeTheSearchWhereNothingCanBeWritten) {
  const std::vector<std::string> hopeless = {"--set", "cluster.memory=1 MiB"};
  const std::string nowhere = (folder_.write("file", "") / "plan").string();
  struct Case {
    std::vector<std::string> arguments;
    int exit_code;
    std::string said;
  };
  for (const Case& one :
       std::vector<Case>{{{"--write", "deepspeed", "a.json"}, 2, "megatron or torchtitan"},
                         {{"--write", "megatron", nowhere}, 4, "cannot write " + nowhere},
                         {{"-o", nowhere}, 4, "cannot write " + nowhere},
                         {{"-o", folder_.path().string()}, 4, "Is a directory"},
                         {{"--html", nowhere}, 4, "cannot write " + nowhere},
                         {{"--write", "megatron", "a", "--set", "model={preset: bert-base}"}, 2, "no models of arch bert"}}) {
    std::vector<std::string> arguments = hopeless;
    arguments.insert(arguments.end(), one.arguments.begin(), one.arguments.end());
    const CommandResult result = plan(arguments);
    EXPECT_EQ(result.exit_code, one.exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(one.said));
  }
  EXPECT_EQ(plan(hopeless).exit_code, 5);
}

TEST_F(PlanCommand, RefusesAWordThatIsNoChoiceOfParallel) {
  const CommandResult result = plan({"--set", "parallel=atuo"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("parallel: found 'atuo', and there is no such file"));
  EXPECT_THAT(result.err, HasSubstr("did you mean 'auto'?"));
}

TEST_F(PlanCommand, SaysThatItDoesNotTakeThePlanOfTheYaml) {
  const CommandResult result = plan({"--set", "parallel=later.json"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err,
              HasSubstr("note: planned as with parallel: auto; `train` takes the plan in later.json, which does not exist yet"));
  EXPECT_EQ(result.out, plan({}).out);
}

// All commands that take a plan answer alike where there is none.
TEST_F(PlanCommand, AMissingFileIsNotFound) {
  const std::string yaml = folder_.write("train.yaml", kJob).string();
  const std::string cluster = folder_.write("cluster.yaml", kCluster).string();
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"plan", yaml, "--cluster", cluster, "--plan", "no.json", "--write", "megatron", (folder_.path() / "flags").string()},
           {"plan", yaml, "--cluster", "no.json"},
           {"plan", yaml, "--profile", "no.json"},
           {"simulate", yaml, "--plan", "no.json"},
           {"verify", yaml, "--plan", "no.json"},
           {"calibrate", "no.json"},
           {"train", yaml, "--plan", "no.json"},
           {"train", yaml, "--set", "parallel=no.json"}}) {
    const CommandResult result = run_tessera(arguments, {folder_.path(), {}});
    EXPECT_EQ(result.exit_code, 3) << arguments.front() << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr("no.json")) << arguments.front();
  }
}

TEST_F(PlanCommand, NamesAPageThatCannotBeWritten) {
  const CommandResult result = plan({"--html", (folder_.write("file", "") / "plan.html").string()});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("file/plan.html"));
}

TEST_F(PlanCommand, WritesTheSamePageTwice) {
  const auto first = folder_.path() / "a.html";
  const auto second = folder_.path() / "b.html";
  ASSERT_EQ(plan({"--html", first.string()}).exit_code, 0);
  ASSERT_EQ(plan({"--html", second.string()}).exit_code, 0);
  EXPECT_EQ(read_whole(first), read_whole(second));
}

TEST(PlanReport, WhatIsNamedCannotEndTheScript) {
  const std::string evil = "</script><script>alert(1)</script><!-- & @DATA@";
  const std::string page = plan_report_page(evil, evil, {{"name", evil}});
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  const std::string mark = "id=\"plan\">";
  const std::size_t begin = page.find(mark) + mark.size();
  EXPECT_EQ(nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin))["name"], evil);
}

}  // namespace
}  // namespace tessera::cli
