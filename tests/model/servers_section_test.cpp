#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "model/forms.hpp"
#include "model/job.hpp"
#include "model/warnings.hpp"

namespace tessera::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

JobSpec job_of(const std::string& more, const std::string& model = "arch: deepfm, dim: 4, dense: 13, tables: 26, hidden: [8]",
               const std::string& data = "source: clicks.tsv, format: criteo") {
  return read_job(ConfigNode::parse(text("name: c\nmodel: {", model, "}\ndata: {", data, "}\n", more), "train.yaml"));
}

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_config);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ParameterServers, AreOnesOfTheRunsOwnWhereNoneAreNamed) {
  const ParameterServerSpec servers = job_of("").parameter_servers;
  EXPECT_TRUE(servers.places.empty());
  EXPECT_EQ(servers.optimizer.kind, "adagrad");
  EXPECT_EQ(servers.optimizer.lr, 0.05);
  EXPECT_EQ(servers.rows, "fp32");
  EXPECT_EQ(servers.wire, "fp32");
}

TEST(ParameterServers, AreReadWithAllThatATableIs) {
  const ParameterServerSpec servers =
      job_of(
          "parameter_servers: {servers: [h1:1, '[::1]:2'], rows: bf16, wire: int8, initializer: {kind: normal, scale: 0.1}, "
          "optimizer: {kind: adam, beta1: 0.8, row_moment: true, clip_norm: 3}}\n")
          .parameter_servers;
  EXPECT_THAT(servers.places, ElementsAre("h1:1", "[::1]:2"));
  EXPECT_EQ(servers.rows, "bf16");
  EXPECT_EQ(servers.wire, "int8");
  EXPECT_EQ(servers.initializer, "normal");
  EXPECT_EQ(servers.optimizer.lr, 1e-3);
  EXPECT_EQ(servers.optimizer.beta1, 0.8);
  EXPECT_TRUE(servers.optimizer.row_moment);
  EXPECT_EQ(servers.optimizer.clip_norm, 3.0);
}

TEST(ParameterServers, SayWhatIsWrongOfThem) {
  const auto said = [](const std::string& section) { return refusal([&] { job_of("parameter_servers: {" + section + "}\n"); }); };
  EXPECT_THAT(said("servers: [here]"), HasSubstr("found 'here'"));
  EXPECT_THAT(said("servers: ['a:1', 'a:1']"), HasSubstr("a:1 stands twice"));
  EXPECT_THAT(said("servers: []"), HasSubstr("the list is empty"));
  EXPECT_THAT(said("servers: ['a:1'], threads: 2"), HasSubstr("servers or threads"));
  EXPECT_THAT(said("optimizer: {kind: adagrad, beta1: 0.5}"), HasSubstr("beta1 means nothing to adagrad"));
  EXPECT_THAT(said("optimizer: {lr: -1}"), HasSubstr("found -1"));
  EXPECT_THAT(said("rows: fp16"), HasSubstr("fp32"));
  EXPECT_THAT(said("wire: fp16"), HasSubstr("fp32"));
  EXPECT_THAT(said("wire: bf16, consistency: geo"), HasSubstr("exchange differences of rows"));
  EXPECT_THAT(said("optimizer: {schedule: {kind: steps}}"), HasSubstr("constant"));
  EXPECT_THAT(said("optimizer: {kind: ftrl, schedule: {warmup: 5}}"), HasSubstr("the last learning rate, which therefore stays the same"));
  EXPECT_THAT(said("consistency: sync"), HasSubstr("geo"));
  EXPECT_THAT(said("consistency: geo, exchange_every: 0"), HasSubstr("exchange_every"));
  EXPECT_THAT(said("consistency: asynchronous, exchange_every: 5"),
              HasSubstr("ranks with asynchronous tables push their gradients in every step"));
  EXPECT_THAT(said("consistency: geo, staleness: 2"), HasSubstr("exchange_every: STEPS"));
  EXPECT_THAT(said("consistency: geo, optimizer: {kind: ftrl}"), HasSubstr("undo what others have changed"));
  EXPECT_THAT(refusal([] { job_of("parameter_servers: {}\n", "arch: resnet18, image: 32, classes: 10", "source: images"); }),
              HasSubstr("parameter servers hold tables, and model resnet18 has none"));
}

TEST(ParameterServers, HaveRowsThatComeAndGo) {
  const LifecycleSpec lifecycle = job_of(
                                      "parameter_servers: {lifecycle: {period: 500, decay: 0.9, click_weight: 2, unclicked_weight: 0.5, "
                                      "admission: {after: 3, waiting_keys: 1000, forget_after: 4}, eviction: {unseen: 30, below: 0.8}, "
                                      "growth: [{seen: 0, dimension: 1}, {seen: 10, dimension: 4}], "
                                      "tables: [{tables: [0, 25], lr_scale: 0.5, admission: {probability: 0.1}}, {tables: [3], eviction: "
                                      "{unseen: 90}, growth: [{seen: 0, dimension: 2}]}]}}\n")
                                      .parameter_servers.lifecycle.value();
  EXPECT_EQ(lifecycle.period, 500);
  EXPECT_EQ(lifecycle.decay, 0.9);
  EXPECT_EQ(lifecycle.click_weight, 2);
  EXPECT_EQ(lifecycle.unclicked_weight, 0.5);
  EXPECT_EQ(lifecycle.admission.after, 3);
  EXPECT_EQ(lifecycle.waiting_keys, 1000);
  EXPECT_EQ(lifecycle.forget_after, 4);
  EXPECT_EQ(lifecycle.eviction.unseen, 30);
  EXPECT_EQ(lifecycle.eviction.below, 0.8);
  ASSERT_EQ(lifecycle.tables.size(), 2u);
  EXPECT_THAT(lifecycle.tables[0].tables, ElementsAre(0, 25));
  EXPECT_EQ(lifecycle.tables[0].lr_scale, 0.5);
  EXPECT_EQ(lifecycle.tables[0].admission->probability, 0.1);
  EXPECT_FALSE(lifecycle.tables[0].eviction);
  EXPECT_EQ(lifecycle.tables[1].eviction->unseen, 90);
  ASSERT_EQ(lifecycle.growth.size(), 2u);
  EXPECT_EQ(lifecycle.growth[1].seen, 10);
  EXPECT_EQ(lifecycle.growth[1].dimension, 4);
  EXPECT_TRUE(lifecycle.tables[0].growth.empty());
  ASSERT_EQ(lifecycle.tables[1].growth.size(), 1u);
  EXPECT_EQ(lifecycle.tables[1].growth[0].dimension, 2);
  EXPECT_FALSE(lifecycle.tables[1].eviction->below);
  EXPECT_FALSE(job_of("parameter_servers: {}\n").parameter_servers.lifecycle);
}

TEST(ParameterServers, SayWhatIsWrongOfRowsThatComeAndGo) {
  const auto said = [](const std::string& section) {
    return refusal([&] { job_of("parameter_servers: {lifecycle: {" + section + "}}\n"); });
  };
  EXPECT_THAT(said("decay: 0.9"), HasSubstr("period"));
  EXPECT_THAT(said("period: 0"), HasSubstr("found 0"));
  EXPECT_THAT(said("period: 10, decay: 0"), HasSubstr("more than 0, 1 at most"));
  EXPECT_THAT(said("period: 10, admission: {after: 16}"), HasSubstr("16"));
  EXPECT_THAT(said("period: 10, admission: {after: 2, probability: 0.5}"), HasSubstr("after or probability"));
  EXPECT_THAT(said("period: 10, admission: {afer: 2}"), HasSubstr("afer"));
  EXPECT_THAT(said("period: 10, eviction: {unseen: 0}"), HasSubstr("found 0"));
  EXPECT_THAT(said("period: 10, eviction: {below: -1}"), HasSubstr("found -1"));
  EXPECT_THAT(said("period: 10, growth: []"), HasSubstr("the list is empty"));
  EXPECT_THAT(said("period: 10, growth: [{seen: 1, dimension: 2}]"), HasSubstr("seen: 0"));
  EXPECT_THAT(said("period: 10, growth: [{seen: 0, dimension: 2}, {seen: 5, dimension: 2}]"), HasSubstr("do not rise"));
  EXPECT_THAT(said("period: 10, growth: [{seen: 0, dimension: 2}, {seen: 5, dimension: 6}]"),
              HasSubstr("rows grow to 6 values, and the model's have 5"));
  EXPECT_THAT(said("period: 10, tables: [{tables: [1], growth: [{seen: 0, dimension: 6}]}]"), HasSubstr("the model's have 5"));
  EXPECT_THAT(said("period: 10, tables: [{lr_scale: 2}]"), HasSubstr("tables"));
  EXPECT_THAT(said("period: 10, tables: [{tables: []}]"), HasSubstr("the list is empty"));
  EXPECT_THAT(said("period: 10, tables: [{tables: [1, 2]}, {tables: [2]}]"), HasSubstr("table 2 stands twice"));
  EXPECT_THAT(said("period: 10, tables: [{tables: [26]}]"), testing::AllOf(HasSubstr("the model has no table 26"), HasSubstr("0 to 25")));
  EXPECT_THAT(refusal([] { job_of("parameter_servers: {consistency: geo, lifecycle: {period: 10}}\n"); }), HasSubstr("stepped in copies"));
}

TEST(ParameterServers, HaveALearningRateThatStaysTheSameUnlessAScheduleIsSaid) {
  const auto rates = [](const std::string& optimizer) {
    const JobSpec job = job_of("train: {steps: 10}\nparameter_servers: {optimizer: {lr: 2, " + optimizer + "}}\n");
    return std::vector{table_learning_rate(job, 0), table_learning_rate(job, 4), table_learning_rate(job, 9)};
  };
  EXPECT_THAT(rates("kind: sgd"), ElementsAre(2, 2, 2));
  EXPECT_THAT(rates("schedule: {warmup: 5}"), ElementsAre(0.4, 2, 2));
  EXPECT_THAT(rates("schedule: {warmup_ratio: 0.5}"), ElementsAre(0.4, 2, 2));
  EXPECT_THAT(rates("schedule: {kind: linear, min_ratio: 0.1}"),
              ElementsAre(2, testing::DoubleNear(1.2, 1e-12), testing::DoubleNear(0.2, 1e-12)));
}

TEST(ParameterServers, WarnOfAWarmUpThatIsLongerThanTheRun) {
  const JobSpec job = job_of("train: {steps: 10}\nparameter_servers: {optimizer: {schedule: {warmup: 20}}}\n");
  EXPECT_THAT(warnings_of(job), ElementsAre(HasSubstr("parameter_servers.optimizer.schedule.warmup is 20 and train.steps 10")));
}

TEST(ClickLogs, HaveAFormatAndNothingOfTexts) {
  const std::string model = "arch: deepfm, dim: 4, dense: 13, tables: 26, hidden: [8]";
  EXPECT_THAT(refusal([&] { job_of("", model, "source: clicks.tsv"); }), HasSubstr("format: criteo"));
  EXPECT_THAT(refusal([&] { job_of("", model, "source: synthetic, format: criteo"); }), HasSubstr("synthetic data has no lines"));
  EXPECT_THAT(refusal([&] { job_of("", model, "source: clicks.tsv, format: criteo, tokenizer: {kind: bytes}"); }),
              HasSubstr("tokenizer is said of text, and the model reads click logs"));
  EXPECT_THAT(refusal([&] { job_of("", "arch: resnet18, image: 32, classes: 10", "source: images, format: criteo"); }),
              HasSubstr("format is said of click logs"));
  EXPECT_FALSE(job_of("").data.mask);
}

TEST(Tables, HaveDeclaredRowsOrAnyId) {
  const auto rows_of = [](const std::string& tables) {
    return table_rows(job_of("", "arch: dlrm, dim: 4, bottom: [4], top: [1], tables: " + tables).model);
  };
  EXPECT_THAT(rows_of("3"), ElementsAre(0, 0, 0));
  EXPECT_THAT(rows_of("[5, 0, 7]"), ElementsAre(5, 0, 7));
  EXPECT_THAT(refusal([&] { rows_of("[]"); }), HasSubstr("is empty"));
  EXPECT_THAT(refusal([&] { rows_of("0"); }), HasSubstr("found 0"));
  EXPECT_THAT(refusal([] { job_of("", "arch: dlrm, dim: 4, bottom: [4], top: [8, 2], tables: 3"); }), HasSubstr("1 as the last width"));
}

TEST(ClickColumns, FitTheModelAndTheFormat) {
  const auto said = [](const std::string& data, const std::string& model = "arch: deepfm, dim: 4, dense: 1, tables: 2, hidden: [8]") {
    return refusal([&] { job_of("", model, "source: log.csv, " + data); });
  };
  const std::string right = "label: click, dense: [price], categories: [user, item]";
  EXPECT_NO_THROW(
      job_of("", "arch: deepfm, dim: 4, dense: 1, tables: 2, hidden: [8]", "source: log.csv, format: csv, columns: {" + right + "}"));
  EXPECT_THAT(said("format: csv"), HasSubstr("columns: {label: NAME"));
  EXPECT_THAT(said("format: csv, columns: {label: click, dense: [price], categories: [user]}"),
              HasSubstr("categories has 1 columns, and model.tables is 2"));
  EXPECT_THAT(said("format: csv, columns: {label: click, categories: [user, item]}"),
              HasSubstr("dense has 0 columns, and model.dense is 1"));
  EXPECT_THAT(said("format: multislot, columns: {" + right + "}"), HasSubstr("names: [SLOT, ...]"));
  EXPECT_THAT(said("format: parquet, columns: {" + right + ", separator: ';'}"), HasSubstr("separator is said of csv"));
  EXPECT_THAT(said("format: csv, columns: {" + right + ", separator: ', '}"), HasSubstr("one character"));
  EXPECT_THAT(said("format: csv, columns: {" + right + ", history: seen}"), HasSubstr("deepfm reads no history"));
  EXPECT_THAT(said("format: csv, columns: {" + right + "}", "arch: din, dim: 4, dense: 1, tables: 2, history: 3, hidden: [8]"),
              HasSubstr("history: the column of its keys"));
  EXPECT_THAT(said("format: libsvm", "arch: din, dim: 4, dense: 1, tables: 2, history: 3, hidden: [8]"), HasSubstr("reads a history"));
  EXPECT_THAT(said("format: libsvm, columns: {" + right + "}"), HasSubstr("have no named columns"));
  EXPECT_THAT(said("format: libffm, columns: {" + right + "}"), HasSubstr("have no named columns"));
  EXPECT_THAT(said("format: csv, columns: {label: click, dense: [price], categories: [user, {name: item, least: 2}]}"),
              HasSubstr("ids: vocabulary beside it"));
  EXPECT_THAT(said("format: csv, negatives: 0, columns: {" + right + "}"), HasSubstr("a number above 0 and at most 1"));
  EXPECT_EQ(job_of("", "arch: deepfm, dim: 4, dense: 1, tables: 2, hidden: [8]",
                   "source: log, format: multislot, columns: {names: [click, price, user, item], " + right + "}")
                .data.columns.categories.at(0)
                .ids,
            CategoryColumn::Ids::number);
}

}  // namespace
}  // namespace tessera::model
