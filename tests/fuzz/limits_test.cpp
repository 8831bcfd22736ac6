// What fuzzing found, with the words in which it is refused now.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/config.hpp"
#include "base/expect_error.hpp"
#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"

namespace tessera {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

std::string refusal(const std::string& yaml) {
  const Error error = error_of([&] { ConfigNode::parse(yaml, "a.yaml"); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_config);
  return error.what();
}

std::string job_refusal(const std::string& model, const std::string& rest = {}) {
  const Error error = error_of(
      [&] { model::read_job(ConfigNode::parse("model: {arch: llama, " + model + "}\ndata: {source: synthetic}\n" + rest, "t.yaml")); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_config);
  return error.what();
}

TEST(Limits, AValueThatHoldsItselfIsRefused) {
  EXPECT_THAT(refusal("a:\n  b: &x {c: *x}\n"), AllOf(HasSubstr("a.yaml:2"), HasSubstr("nested more than")));
}

TEST(Limits, AFewAliasesThatStandForBillionsAreRefused) {
  std::string yaml = "- &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i) {
    yaml += text("- &a", i, " [");
    for (int j = 0; j < 10; ++j) yaml += text(j == 0 ? "*a" : ", *a", i - 1);
    yaml += "]\n";
  }
  EXPECT_THAT(refusal(yaml), HasSubstr("stand for more than"));
}

TEST(Limits, BytesThatAreNoTextAreRefusedWithTheLine) {
  for (const char* bytes : {"\x9a", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf0\x9f\xa6", "\xff\xfe"})
    EXPECT_THAT(refusal(text("a: 1\nb: '", bytes, "'\n")), AllOf(HasSubstr("a.yaml:2"), HasSubstr("UTF-8")));
  for (const char* words : {"\xc3\xa9", "\xe2\x82\xac", "\xed\x9f\xbf", "\xf0\x9f\xa6\x91", "\xf4\x8f\xbf\xbd"})
    EXPECT_NO_THROW(ConfigNode::parse(text("a: '", words, "'\n"), "a.yaml")) << words;
}

TEST(Limits, EscapesThatMakeNoTextAreRefused) {
  const ConfigNode node = ConfigNode::parse("a: \"\\N\"\nb: \"\\u0085\"\n", "a.yaml");
  EXPECT_THAT(error_of([&] { node.at("a").as_string(); }).what(), AllOf(HasSubstr("a.yaml:1"), HasSubstr("UTF-8")));
  EXPECT_EQ(node.at("b").as_string(), "\xc2\x85");
}

TEST(Limits, AliasesThatPeopleWriteAreRead) {
  const ConfigNode node = ConfigNode::parse("a: &x {b: 1}\nc: [*x, *x]\n", "a.yaml");
  EXPECT_EQ(node.at("c")[1].at("b").as_int(), 1);
}

TEST(Limits, AnOverrideNestedWithoutEndIsRefused) {
  std::string key;
  for (int i = 0; i < 4000; ++i) key += "a.";
  const Error error = error_of([&] { ConfigNode::parse("{}", "a.yaml").with_override(key + "a", "1"); });
  EXPECT_THAT(error.what(), HasSubstr("nested more than"));
}

TEST(Limits, AModelThatCannotBeCountedIsRefused) {
  EXPECT_THAT(job_refusal("hidden: 9223372036854775807, layers: 2, heads: 2, ffn: 96, seq: 32, vocab: 512"),
              AllOf(HasSubstr("model.hidden"), HasSubstr("at most")));
  EXPECT_THAT(job_refusal("hidden: 64, layers: 1048575, heads: 2, ffn: 96, seq: 32, vocab: 512"), HasSubstr("blocks"));
  EXPECT_THAT(job_refusal("hidden: 2147483646, layers: 2, heads: 1, ffn: 2147483647, seq: 32, vocab: 512"), HasSubstr("parameters"));
  EXPECT_THAT(job_refusal("hidden: 64, layers: 2, heads: 2, ffn: 96, seq: 67108863, vocab: 512", "train: {global_batch: 1073741824}\n"),
              HasSubstr("tensor"));
}

TEST(Limits, ANameThatNoFileCanHaveIsAFileThatDoesNotExist) {
  EXPECT_THAT(job_refusal("hidden: 64, layers: 2, heads: 2, ffn: 96, seq: 32, vocab: 512", "parallel: " + std::string(300, 'a') + "\n"),
              AllOf(HasSubstr("t.yaml:3"), HasSubstr("there is no such file")));
}

TEST(Limits, MoreDevicesThanCanBeNumberedAreRefused) {
  const Error error = error_of([] {
    cluster::read_cluster(ConfigNode::parse(
        "groups:\n  - {name: g, device: a100-80, nodes: 1048576, devices_per_node: 1048576, inside: nvlink3, network: rdma-100g}\n",
        "c.yaml"));
  });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("c.yaml:2"), HasSubstr("devices"), HasSubstr("at most 1048576")));
}

TEST(Limits, DegreesWhoseProductIsBeyondAnIntAreRefused) {
  const model::JobSpec job =
      model::read_job(ConfigNode::parse("model: {arch: llama, hidden: 64, layers: 1, heads: 1048576, head_dim: 2, ffn: 1048576, seq: 8, "
                                        "vocab: 1048576}\ntrain: {global_batch: 1048576}\n",
                                        "t.yaml"));
  const cluster::ClusterSpec cluster = cluster::read_cluster(ConfigNode::parse("groups:\n  - {name: g, device: a100-80}\n", "c.yaml"));
  plan::Plan plan;
  plan.model_fingerprint = job.model.fingerprint();
  plan.cluster_fingerprint = cluster.fingerprint();
  plan.global_batch = 1048576;
  plan.ranks = {{0, 0, 0, 1}};
  plan::Stage stage;
  stage.ranks = {0};
  plan::StrategyRun& run = stage.runs.emplace_back();
  run.last = 3;
  run.strategy.dp = run.strategy.tp = 1048576;
  plan.stages.push_back(stage);
  const Error error = error_of([&] { plan::check(plan, job.model, cluster); });
  EXPECT_THAT(error.what(), HasSubstr("1099511627776 ranks"));
}

}  // namespace
}  // namespace tessera
