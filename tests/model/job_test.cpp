#include "model/job.hpp"

#include <gmock/gmock.h>

#include "base/expect_error.hpp"
#include "base/temporary_folder.hpp"

namespace tessera::model {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

constexpr const char* kModel = "model: {arch: llama, hidden: 64, layers: 2, heads: 4, ffn: 96, seq: 32, vocab: 512}\n";

JobSpec job_of(const std::string& rest) { return read_job(ConfigNode::parse(kModel + rest, "t.yaml")); }
// `rest` begins at line 2.
std::string refusal(const std::string& rest) {
  const Error error = error_of([&] { job_of(rest); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_config);
  return error.what();
}

TEST(Job, ReadsEachSection) {
  const JobSpec job = job_of(
      "name: plays\n"
      "data: {source: corpus.txt, field: body, tokenizer: {kind: bpe, vocab: 512}, split: {train: 0.9}}\n"
      "train:\n"
      "  steps: 50\n"
      "  global_batch: 8\n"
      "  optimizer: {kind: sgd, lr: 0.1, momentum: 0.9, weight_decay: 0, clip: 0}\n"
      "  schedule: {kind: linear, warmup: 5, min_ratio: 0}\n"
      "  precision: bf16\n"
      "  seed: 7\n"
      "  eval: {every: 10, sequences: 4}\n"
      "  early_stop: {patience: 3, min_gain: 0.01}\n"
      "cluster: {local: {devices: 4, threads: 1}}\n"
      "parallel: {pp: 2, tp: 2, dp: 1, zero: 1, threads: 1, micro_batches: 8, schedule: 1f1b, recompute: full}\n"
      "checkpoint: {every: 10, keep: 2, best: true}\n"
      "log: {every: 5}\n"
      "on_end: [notify-send, done]\n");
  EXPECT_EQ(job.name, "plays");
  EXPECT_EQ(job.model.dim("hidden"), 64);
  ASSERT_EQ(job.data.sources.size(), 1u);
  EXPECT_EQ(job.data.sources[0].path, "corpus.txt");
  EXPECT_EQ(job.data.where.line, 3);
  EXPECT_EQ(job.data.records.field, "body");
  EXPECT_EQ(job.data.tokenizer.vocab, 512);
  EXPECT_DOUBLE_EQ(job.data.train_fraction, 0.9);
  EXPECT_EQ(job.train.steps, 50);
  EXPECT_EQ(job.train.global_batch, 8);
  EXPECT_EQ(job.train.optimizer.kind, OptimizerKind::sgd);
  EXPECT_DOUBLE_EQ(job.train.optimizer.momentum, 0.9);
  EXPECT_DOUBLE_EQ(job.train.optimizer.clip, 0);
  EXPECT_EQ(job.train.lr_schedule.kind, LrScheduleKind::linear);
  EXPECT_EQ(job.train.lr_schedule.warmup, 5);
  EXPECT_EQ(job.train.precision, Precision::bf16);
  EXPECT_EQ(job.train.seed, 7u);
  EXPECT_EQ(job.train.eval_every, 10);
  EXPECT_EQ(job.train.eval_sequences, 4);
  EXPECT_EQ(job.cluster.kind, ClusterChoice::Kind::local);
  EXPECT_EQ(job.cluster.devices, 4);
  EXPECT_EQ(job.cluster.threads, 1);
  EXPECT_EQ(job.parallel.kind, ParallelChoice::Kind::degrees);
  EXPECT_EQ(job.parallel.pp * job.parallel.tp * job.parallel.dp, 4);
  EXPECT_EQ(job.parallel.zero, 1);
  EXPECT_EQ(job.parallel.micro_batches, 8);
  EXPECT_EQ(job.parallel.schedule, "1f1b");
  EXPECT_EQ(job.parallel.recompute, "full");
  EXPECT_EQ(job.checkpoint.every, 10);
  EXPECT_EQ(job.checkpoint.keep, 2);
  EXPECT_TRUE(job.checkpoint.best);
  EXPECT_EQ(job.train.early_stop.value().patience, 3);
  EXPECT_DOUBLE_EQ(job.train.early_stop.value().min_gain, 0.01);
  EXPECT_EQ(job.log.every, 5);
  EXPECT_THAT(job.on_end, ::testing::ElementsAre("notify-send", "done"));
}

TEST(Job, LeavesDefaultsWhereNothingIsSaid) {
  const JobSpec job = job_of("");
  EXPECT_EQ(job.train.steps, TrainSpec{}.steps);
  EXPECT_EQ(job.cluster.kind, ClusterChoice::Kind::automatic);
  EXPECT_EQ(job.parallel.kind, ParallelChoice::Kind::automatic);
  EXPECT_EQ(job.train.optimizer.kind, OptimizerKind::adamw);
  EXPECT_FALSE(job.train.early_stop || job.checkpoint.best);
  EXPECT_TRUE(job.on_end.empty());
}

TEST(Job, ReadsTheOtherFormsOfClusterAndParallel) {
  EXPECT_EQ(job_of("cluster: auto\n").cluster.kind, ClusterChoice::Kind::automatic);
  const JobSpec files = job_of("cluster: my.yaml\nparallel: plan.json\n");
  EXPECT_EQ(files.cluster.kind, ClusterChoice::Kind::file);
  EXPECT_EQ(files.cluster.file, "my.yaml");
  EXPECT_EQ(files.parallel.kind, ParallelChoice::Kind::plan_file);
  const ClusterChoice lab = job_of("cluster: {lab: {hosts: 4, gbit: 1, cpu: 0.5}}\n").cluster;
  EXPECT_EQ(lab.kind, ClusterChoice::Kind::lab);
  EXPECT_EQ(lab.devices, 4);
  EXPECT_DOUBLE_EQ(lab.gbit, 1);
  EXPECT_DOUBLE_EQ(lab.cpu, 0.5);
}

TEST(Job, SaysAllThatIsWrongAtOnce) {
  const Error error = error_of([] {
    read_job(
        ConfigNode::parse("model: {arch: llama, hidden: wide, layers: 2, heads: 0, fnn: 96, ffn: 96, seq: 32, vocab: 512}\n"
                          "data: {sorce: a, split: {train: 2}}\n"
                          "train:\n"
                          "  steps: many\n"
                          "  optimizer: {kind: adam, betas: [0.9], lr: -1}\n"
                          "  eval: {evry: 3}\n"
                          "cluster: {local: {devices: 0, threads: x}}\n"
                          "parallel: {dp: 0, schedule: 1b1f}\n"
                          "checkpoints: {}\n",
                          "t.yaml"));
  });
  std::string places;
  for (const Error& one : error.each()) places += text(one.where().line, ':', one.where().column, ' ');
  EXPECT_EQ(places, "1:30 1:54 1:57 2:8 2:33 4:10 5:21 5:34 5:45 6:10 7:28 7:40 8:16 8:29 9:1 ") << error.what();
}

TEST(Job, LeavesOutWhatFollowsFromABadValue) {
  // Without its width, whether the heads divide it cannot be told.
  const Error error = error_of([] {
    read_job(ConfigNode::parse("model: {arch: llama, hidden: wide, layers: 2, heads: 4, ffn: 96, seq: 32, vocab: 512}\n", "t.yaml"));
  });
  ASSERT_EQ(error.each().size(), 1U) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("model.hidden: found 'wide'; expected a whole number"));
}

TEST(Job, NamesTheLineOfEachTypo) {
  EXPECT_THAT(refusal("trian: {}\n"), AllOf(HasSubstr("t.yaml:2:1"), HasSubstr("did you mean 'train'?")));
  EXPECT_THAT(refusal("train:\n  steps: 5\n  global_bach: 8\n"), AllOf(HasSubstr("t.yaml:4:3"), HasSubstr("did you mean 'global_batch'?")));
  EXPECT_THAT(refusal("train: {optimizer: {kind: adam}}\n"), AllOf(HasSubstr("t.yaml:2:27"), HasSubstr("did you mean 'adamw'?")));
  EXPECT_THAT(refusal("train: {schedule: {kind: cosin}}\n"), HasSubstr("did you mean 'cosine'?"));
  EXPECT_THAT(refusal("train: {precision: fp61}\n"), AllOf(HasSubstr("t.yaml:2:20"), HasSubstr("one of: fp32, bf16, fp16")));
  EXPECT_THAT(refusal("data: {source: a, tokenizer: {kind: bep}}\n"), HasSubstr("did you mean 'bpe'?"));
  EXPECT_THAT(refusal("parallel: {schedule: 1b1f}\n"), HasSubstr("did you mean '1f1b'?"));
  EXPECT_THAT(refusal("parallel: {micro_batch: 2}\n"), HasSubstr("did you mean 'micro_batches'?"));
  EXPECT_THAT(refusal("checkpoint: {evry: 2}\n"), HasSubstr("did you mean 'every'?"));
}

TEST(Job, NamesTheLineOfEachValueOutOfRange) {
  for (const auto& [rest, part] : std::initializer_list<std::pair<const char*, const char*>>{
           {"train: {steps: 0}\n", "train.steps: found 0"},
           {"train: {global_batch: -4}\n", "train.global_batch: found -4"},
           {"train: {steps: 1.5}\n", "train.steps: found '1.5'; expected a whole number"},
           {"train: {seed: -1}\n", "train.seed: found -1"},
           {"train: {optimizer: {lr: -1}}\n", "train.optimizer.lr: found -1"},
           {"train: {optimizer: {betas: [0.9]}}\n", "expected [beta1, beta2]"},
           {"train: {optimizer: {betas: [0.9, 1.0]}}\n", "train.optimizer.betas[1]: found 1"},
           {"train: {schedule: {warmup: -1}}\n", "train.schedule.warmup: found -1"},
           {"train: {schedule: {warmup: 3, warmup_ratio: 0.1}}\n", "say the same thing twice"},
           {"train: {schedule: {warmup_ratio: 1.5}}\n", "train.schedule.warmup_ratio: found 1.5; expected a share of the steps"},
           {"train: {schedule: {kind: cosine, decay: 3}}\n", "decay means nothing to this kind of schedule"},
           {"train: {schedule: {decay_shape: sqrt}}\n", "kind: wsd reads it"},
           {"train: {schedule: {kind: wsd, decay_shape: square}}\n", "linear, cosine, sqrt, exponential"},
           {"train: {schedule: {kind: wsd, decay_shape: exponential, min_ratio: 0}}\n", "never comes to min_ratio 0"},
           {"train: {early_stop: {patience: 3}}\n", "expected train.eval.every: STEPS"},
           {"train: {eval: {every: 2}, early_stop: {min_gain: 1}}\n", "the key 'patience' is missing"},
           {"train: {eval: {every: 2}, early_stop: {patience: 0}}\n", "train.early_stop.patience: found 0"},
           {"checkpoint: {best: yes}\n", "expected true or false"},
           {"checkpoint: {best: true}\ndata: {source: a, split: {train: 1}}\n", "no text to validate on"},
           {"log: {every: 0}\n", "log.every: found 0"},
           {"on_end: notify-send done\n", "for a line of a shell: [sh, -c, 'LINE']"},
           {"on_end: ['']\n", "the program has no name"},
           {"parallel: {dp: 2, delayed_exchange: true}\n", "expected train.optimizer.clip: 0"},
           {"data: {source: a, split: {train: 1.5}}\n", "data.split.train: found 1.5"},
           {"data: {source: a, tokenizer: {kind: bpe, vocab: 10}}\n", "at least 257"},
           {"data: {source: a, tokenizer: {kind: hf}}\n", "needs its file"},
           {"data: {source: a, tokenizer: {kind: bpe, file: b}}\n", "has no file"},
           {"data: {source: a, sources: [b]}\n", "'source' and 'sources' exclude each other"},
           {"data: {sources: []}\n", "at least one source"},
           {"data: {sources: [{path: a, weight: 2}, b]}\n", "1 of 2 sources have a weight"},
           {"data: {sources: [{path: a, weight: 0}]}\n", "data.sources[0].weight: found 0"},
           {"data: {sources: [{weight: 1}]}\n", "the key 'path' is missing"},
           {"data: {source: a, prompt: q}\n", "'prompt' and 'answer' belong together"},
           {"data: {source: a, answer: q}\n", "'prompt' and 'answer' belong together"},
           {"data: {source: a, field: t, prompt: q, answer: a}\n", "in place of 'field'"},
           {"data: {source: a, on_error: skp}\n", "did you mean 'skip'?"},
           {"data: {source: a, separate_documents: maybe}\n", "true or false"},
           {"data: {source: a, images: {flip: true}}\n", "the model reads text"},
           {"data: {source: a, lengths: all}\n", "data.lengths: found 'all'"},
           {"data: {source: a, lengths: {kind: uniform}}\n", "expected lengths: documents"},
           {"data: {source: synthetic, lengths: documents}\n", "synthetic data has no documents"},
           {"data: {source: synthetic, lengths: {kind: pareto}}\n", "expected median: TOKENS"},
           {"data: {source: synthetic, lengths: {kind: uniform, median: 3}}\n", "expected no median"},
           {"data: {source: synthetic, lengths: {kind: pareto, median: 1000000}}\n", "found 1000000, and the longest sample has model.seq"},
           {"data: {source: a, lengths: documents, separate_documents: false}\n", "are always kept apart"},
           {"parallel: {cp: 2, context_groups: flexible}\n", "expected data.lengths beside it"},
           {"data: {source: a, mask: {share: 0.15}}\n", "llama predicts the next token"},
           {"cluster: {local: {devices: 0}}\n", "cluster.local.devices: found 0"},
           {"cluster: {local: {devices: 4294967298}}\n", "at most 1048576"},
           {"cluster: {local: {threads: 2}}\n", "the key 'devices' is missing"},
           {"cluster: {lab: {gbit: 1}}\n", "the key 'hosts' is missing"},
           {"cluster: {local: {devices: 1}, lab: {hosts: 1}}\n", "exclude each other"},
           {"parallel: {dp: 0}\n", "parallel.dp: found 0"},
           {"parallel: {tp: 4294967297}\n", "at most 1048576"},
           {"parallel: {zero: 4}\n", "parallel.zero: found '4'"},
           {"parallel: {schedule: zb-h3}\n", "parallel.schedule: found 'zb-h3'"},
           {"parallel: {cp: 2, context: rings}\n", "parallel.context: found 'rings'"},
           {"checkpoint: {keep: 0}\n", "checkpoint.keep: found 0"},
           {"name: a/b\n", "cannot name a folder"},
           {"name: .hidden\n", "cannot name a folder"},
           {"name: ..\n", "cannot name a folder"},
           {"name: a b\n", "expected a-z, A-Z, 0-9, '-', '_' and '.'"},
           {"name: ''\n", "'' cannot name a folder"}}) {
    const std::string what = refusal(rest);
    EXPECT_THAT(what, HasSubstr("t.yaml:2:")) << rest;
    EXPECT_THAT(what, HasSubstr(part)) << rest;
  }
}

TEST(Job, WithLengthsCutsNothingButSequences) {
  const std::string data = "data: {source: a, lengths: documents}\n";
  for (const auto& [parallel, part] :
       std::vector<std::pair<std::string, std::string>>{{"{tp: 2}", "tp 2 with data.lengths"},
                                                        {"{pp: 2}", "pp 2 with data.lengths"},
                                                        {"{zero: 2}", "expected zero 0 or 1"},
                                                        {"{dp: 2, context_groups: wide}", "parallel.context_groups: found 'wide'"}})
    EXPECT_THAT(refusal(data + "parallel: " + parallel + "\n"), HasSubstr(part));
  const JobSpec job = read_job(ConfigNode::parse(std::string(kModel) + data, "t.yaml"));
  EXPECT_TRUE(job.data.separate_documents);
  EXPECT_EQ(job.parallel.pp, 1);
  EXPECT_EQ(job.parallel.tp, 1);
  EXPECT_EQ(job.parallel.cp, 0) << "the planner's to choose";
}

TEST(Job, PlacesSamplesOfMixturesOfExpertsAlone) {
  const std::string train = "data: {source: synthetic}\ntrain: {placement: {kind: samples_and_experts, every: 8}}\n";
  EXPECT_THAT(refusal(train), AllOf(HasSubstr("t.yaml:3:27"), HasSubstr("the model has none")));
  EXPECT_THAT(refusal("train: {placement: {kind: sample}}\n"), HasSubstr("did you mean 'samples'?"));
  const auto with = [&](const std::string& model) { return read_job(ConfigNode::parse("model: {" + model + "}\n" + train, "t.yaml")); };
  const std::string shape = "hidden: 64, layers: 2, heads: 4, ffn: 96, seq: 32, vocab: 512, experts: 8, experts_per_token: 2";
  const JobSpec job = with("arch: mixtral, " + shape);
  EXPECT_EQ(job.train.placement.kind, PlacementKind::samples_and_experts);
  EXPECT_EQ(job.train.placement.every, 8);
  EXPECT_EQ(job.parallel.pp * job.parallel.tp * job.parallel.cp, 1);
  EXPECT_EQ(job.parallel.dp, 0) << "the planner's to choose";
  for (const auto& [parallel, part] : {std::pair{"{tp: 2}", "t.yaml:4:16: parallel.tp: tp 2 with train.placement"},
                                       {"{pp: 2}", "pp 2 with train.placement"},
                                       {"{cp: 2}", "expected cp 1"},
                                       {"{ep: 1}", "expected ep of at least 2, over several hosts"}})
    EXPECT_THAT(error_of([&] {
                  read_job(ConfigNode::parse(text("model: {arch: mixtral, ", shape, "}\n", train, "parallel: ", parallel, "\n"), "t.yaml"));
                }).what(),
                HasSubstr(part));
  const Error error = error_of([&] {
    with("arch: deepseek, kv_lora: 16, nope_dim: 8, rope_dim: 8, v_dim: 12, expert_ffn: 32, expert_groups: 2, top_groups: 1, " + shape);
  });
  EXPECT_THAT(error.what(), HasSubstr("stay in their places; expected kind: samples"));
}

TEST(Job, BalancesExpertsByBiasesThatTheModelHas) {
  const auto with = [&](const std::string& keys) {
    return read_job(
        ConfigNode::parse("model: {arch: deepseek, hidden: 64, layers: 2, heads: 4, kv_lora: 16, nope_dim: 8, rope_dim: 8, v_dim: 12, "
                          "expert_ffn: 32, experts: 8, experts_per_token: 2, seq: 32, vocab: 512, " +
                              keys + "}\n",
                          "t.yaml"));
  };
  EXPECT_THAT(error_of([&] { with("score_bias_rate: 0.001"); }).what(), HasSubstr("expected score_bias: true beside it"));
  EXPECT_THAT(error_of([&] { with("score_bias: true, score_bias_rate: -1"); }).what(), HasSubstr("found -1; expected 0 to 1"));
  int biases = 0;
  const JobSpec job = with("score_bias: true, score_bias_rate: 0.001");
  for (const BlockInstance& block : job.model.blocks())
    for (const ParameterSpec& one : block.spec->parameters) {
      const bool is_bias = one.name.ends_with("e_score_correction_bias");
      EXPECT_EQ(one.sign_rate, is_bias ? 0.001 : 0) << one.name;
      biases += is_bias ? 1 : 0;
    }
  EXPECT_EQ(biases, 2);
}

TEST(Job, NeedsAModel) {
  EXPECT_THAT(error_of([] { read_job(ConfigNode::parse("name: x\n", "t.yaml")); }).what(), HasSubstr("the key 'model' is missing"));
}

TEST(Job, AppliesOverridesInOrderAndKeepsThemInItsYaml) {
  const TemporaryFolder folder;
  const auto path = folder.write("plays/train.yaml", std::string(kModel) + "train: {steps: 5}\n");
  const JobSpec job = read_job(path, {"train.steps=7", "train.steps=9", "parallel.dp=2", "train.optimizer.lr=0.5"});
  EXPECT_EQ(job.train.steps, 9);
  EXPECT_EQ(job.parallel.dp, 2);
  EXPECT_DOUBLE_EQ(job.train.optimizer.lr, 0.5);
  EXPECT_EQ(job.file, path);
  const JobSpec again = read_job(ConfigNode::parse(job.resolved_yaml, "resolved.yaml"));
  EXPECT_EQ(again.train.steps, 9);
  EXPECT_EQ(again.parallel.dp, 2);
}

TEST(Job, NamesTheOverrideThatIsWrong) {
  const TemporaryFolder folder;
  const auto path = folder.write("train.yaml", std::string(kModel) + "train: {steps: 5}\n");
  EXPECT_THAT(error_of([&] { read_job(path, {"train.stepz=7"}); }).what(),
              AllOf(HasSubstr("--set train.stepz=7"), HasSubstr("did you mean 'steps'?")));
  EXPECT_THAT(error_of([&] { read_job(path, {"train.steps"}); }).what(), AllOf(HasSubstr("no '='"), HasSubstr("SECTION.KEY=VALUE")));
  EXPECT_THAT(error_of([&] { read_job(path, {"train.steps=x"}); }).what(), HasSubstr("--set train.steps=x: train.steps: found 'x'"));
}

TEST(Job, IsNamedByItsFolderOrItsFile) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_job(folder.write("plays/train.yaml", kModel)).name, "plays");
  EXPECT_EQ(read_job(folder.write("plays/small.yaml", kModel)).name, "small");
  EXPECT_EQ(read_job(folder.write("my plays/train.yaml", kModel)).name, "my-plays") << "a folder may be called what a run may not";
}

TEST(Job, PathsInAYamlBeginAtItsFolderAndThoseOfOverridesWhereTheyWereTyped) {
  const TemporaryFolder folder;
  const auto path = folder.write("job/train.yaml", std::string(kModel) +
                                                       "data: {source: corpus.txt, tokenizer: {kind: hf, file: ../t.json}}\n"
                                                       "train: {init: runs/first}\ncluster: c.yaml\nparallel: plan.json\n");
  folder.write("corpus.txt", "not this one, wherever the current folder is");
  folder.write("job/runs/first/train.yaml", kModel);
  const JobSpec job = read_job(path);
  EXPECT_EQ(job.data.sources[0].path, folder / "job" / "corpus.txt");
  EXPECT_EQ(job.data.tokenizer.file, folder / "job" / "../t.json");
  EXPECT_EQ(job.train.init, folder / "job" / "runs/first");
  EXPECT_EQ(job.cluster.file, folder / "job" / "c.yaml");
  EXPECT_EQ(job.parallel.file, folder / "job" / "plan.json");
  EXPECT_EQ(read_job(path, {"data.source=corpus.txt"}).data.sources[0].path, "corpus.txt");
  EXPECT_EQ(read_job(path, {"data={source: /a/b.txt}"}).data.sources[0].path, "/a/b.txt");
  EXPECT_TRUE(read_job(path, {"data.source=synthetic"}).data.synthetic);
}

TEST(Job, APortableYamlMeansTheSameInEveryFolder) {
  const TemporaryFolder folder;
  folder.write("job/hf/config.json", R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8,
    "num_hidden_layers": 2, "vocab_size": 320})");
  const auto path = folder.write("job/train.yaml",
                                 "model: {hf: hf, seq: 32}\n"
                                 "data: {sources: [{path: 'a: #1.txt', weight: 2}, {path: b.txt, weight: 1}]}\n"
                                 "train: {init: first, steps: 3}\ncluster: c.yaml\nparallel: auto\n");
  const auto moved =
      folder.write("elsewhere/train.yaml", portable_yaml(path, {"train.steps=5", "train.init=" + (folder / "typed").string()}));
  const JobSpec job = read_job(moved);
  EXPECT_EQ(job.model.dim("hidden"), 64);
  EXPECT_EQ(job.data.sources[0].path, folder / "job" / "a: #1.txt");
  EXPECT_EQ(job.data.sources[1].path, folder / "job" / "b.txt");
  EXPECT_EQ(job.data.sources[0].weight, 2.0);
  EXPECT_EQ(job.train.init, folder / "typed");
  EXPECT_EQ(job.train.steps, 5);
  EXPECT_EQ(job.cluster.file, folder / "job" / "c.yaml");
  EXPECT_EQ(job.parallel.kind, ParallelChoice::Kind::automatic);
}

TEST(Job, SourcesRecordsAndDocumentsAreReadAsWritten) {
  const auto data_of = [](const std::string& data) {
    return read_job(ConfigNode::parse(std::string(kModel) + "data: {" + data + "}\n", "t.yaml")).data;
  };
  const DataSpec mixed = data_of("sources: [a.txt, {path: b}], on_error: skip, separate_documents: true");
  EXPECT_EQ(mixed.sources[1].path, "b");
  EXPECT_FALSE(mixed.sources[1].weight.has_value());
  EXPECT_EQ(mixed.records.on_error, OnError::skip);
  EXPECT_TRUE(mixed.separate_documents);
  const DataSpec answers = data_of("source: a.jsonl, prompt: question, answer: reply");
  EXPECT_EQ(answers.records.prompt, "question");
  EXPECT_EQ(answers.records.answer, "reply");
  EXPECT_TRUE(answers.separate_documents) << "answers are kept apart unless something else is said";
  EXPECT_FALSE(data_of("source: a.jsonl, prompt: q, answer: r, separate_documents: false").separate_documents);
  EXPECT_FALSE(data_of("source: a.jsonl").separate_documents);
  EXPECT_TRUE(data_of("field: body").sources.empty()) << "what is planned alone needs no source";
}

TEST(Job, ImagesAreReadAsWrittenForModelsThatReadImages) {
  const auto data_of = [](const std::string& data) {
    return read_job(ConfigNode::parse("model: {arch: resnet18, image: 32, classes: 10}\ndata: {" + data + "}\n", "t.yaml")).data;
  };
  const DataSpec data = data_of(
      "source: cifar, workers: 8, images: {resize: 40, crop: random, padding: 4, flip: true, normalize: {mean: [0.5, 0.4, 0.3], std: "
      "0.25}, "
      "jitter: {brightness: 0.4, contrast: 0.3, saturation: 0.2, hue: 0.1}, mixup: 0.2}");
  EXPECT_EQ(data.workers, 8);
  EXPECT_EQ(data.images.resize, 40);
  EXPECT_EQ(data.images.crop, CropKind::random);
  EXPECT_EQ(data.images.padding, 4);
  EXPECT_TRUE(data.images.flip);
  EXPECT_EQ(data.images.mean, (std::vector<double>{0.5, 0.4, 0.3}));
  EXPECT_EQ(data.images.std, (std::vector<double>{0.25}));
  EXPECT_EQ(data.images.jitter.hue, 0.1);
  EXPECT_EQ(data.images.mixup, 0.2);
  EXPECT_EQ(data_of("source: imagenet, images: {crop: random_resized, scale: [0.25, 1]}").images.scale_least, 0.25);
  for (const auto& [wrong, part] : std::vector<std::pair<std::string, std::string>>{
           {"images: {crop: middle}", "center, random, random_resized"},
           {"images: {padding: 4}", "padding makes room for a random crop"},
           {"images: {scale: [0.1, 1]}", "scale is the area of a random_resized crop"},
           {"images: {crop: random_resized, scale: [0.5, 0.2]}", "a number from 0.5 to 1"},
           {"images: {normalize: {mean: 0.5}}", "the key 'std' is missing"},
           {"images: {normalize: {mean: 0.5, std: 0}}", "data.images.normalize.std: found 0"},
           {"images: {normalize: {mean: [1, 2], std: 1}}", "one, or one for each channel"},
           {"images: {jitter: {hue: 0.6}}", "a number from 0 to 0.5"},
           {"images: {mixup: -1}", "data.images.mixup: found -1"},
           {"images: {flop: true}", "did you mean 'flip'?"},
           {"tokenizer: {kind: bytes}", "tokenizer is said of text, and the model reads images"},
           {"mask: {share: 0.2}", "mask is said of text"},
           {"sources: [a, b]", "sources is said of text"}})
    EXPECT_THAT(error_of([&] { data_of(wrong); }).what(), HasSubstr(part)) << wrong;
}

TEST(Job, ModelsThatPredictMaskedTokensHaveMasksWhateverIsSaid) {
  const std::string model = "model: {arch: bert, hidden: 32, layers: 1, heads: 2, seq: 16, vocab: 300}\n";
  const auto data_of = [&](const std::string& data) { return read_job(ConfigNode::parse(model + data, "t.yaml")).data; };
  for (const char* data : {"", "data: {source: a}\n", "data: {source: a, mask: {}}\n"}) {
    const DataSpec spec = data_of(data);
    ASSERT_TRUE(spec.mask) << data;
    EXPECT_EQ(spec.mask->share, 0.15);
    EXPECT_EQ(spec.mask->token, "");
  }
  const DataSpec said = data_of("data: {source: a, mask: {share: 0.4, token: '<gap>'}}\n");
  EXPECT_EQ(said.mask->share, 0.4);
  EXPECT_EQ(said.mask->token, "<gap>");
  for (const auto& [wrong, part] : std::vector<std::pair<std::string, std::string>>{
           {"mask: {share: 0}", "data.mask.share: found 0"},
           {"mask: {share: 1.5}", "a number above 0 and at most 1"},
           {"mask: {token: ''}", "the token is empty"},
           {"mask: {shares: 0.1}", "did you mean 'share'?"},
           {"prompt: q, answer: a", "bert predicts what is masked in all of a text, and not answers to prompts"},
           {"label: kind", "bert tells no classes of texts"},
           {"mask: {span: 3}", "bert predicts single tokens that are masked"}})
    EXPECT_THAT(error_of([&] { data_of("data: {source: a, " + wrong + "}\n"); }).what(), HasSubstr(part)) << wrong;
  EXPECT_FALSE(
      read_job(ConfigNode::parse("model: {arch: vit, hidden: 32, layers: 1, heads: 2, image: 32, patch: 8, classes: 10}", "t.yaml"))
          .data.mask);
}

TEST(Job, ModelsWithADecoderOfTheirOwnPredictMaskedSpans) {
  const std::string model = "model: {arch: t5, hidden: 32, layers: 1, heads: 2, ffn: 64, seq: 16, decoder_seq: 8, vocab: 300}\n";
  const auto data_of = [&](const std::string& data) { return read_job(ConfigNode::parse(model + data, "t.yaml")).data; };
  const DataSpec spec = data_of("");
  ASSERT_TRUE(spec.mask);
  EXPECT_EQ(spec.mask->decoder_seq, 8);
  EXPECT_EQ(spec.mask->span, 3);
  EXPECT_EQ(data_of("data: {source: a, mask: {share: 0.3, span: 5}}\n").mask->span, 5);
  for (const auto& [wrong, part] :
       std::vector<std::pair<std::string, std::string>>{{"mask: {span: 0.5}", "a number from 1 to 1000"},
                                                        {"mask: {share: 0.6}", "at most 0.5 for t5"},
                                                        {"mask: {token: '[MASK]'}", "t5 marks masked spans by the last ids of model.vocab"},
                                                        {"separate_documents: true", "t5 reads stretches of all documents"},
                                                        {"prompt: q, answer: a", "t5 predicts what is masked in all of a text"}})
    EXPECT_THAT(error_of([&] { data_of("data: {source: a, " + wrong + "}\n"); }).what(), HasSubstr(part)) << wrong;
}

TEST(Job, AConfigJsonStandsForAJob) {
  const TemporaryFolder folder;
  const auto path =
      folder.write("tiny/config.json", R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8,
    "num_hidden_layers": 2, "vocab_size": 320})");
  const JobSpec job = read_job(path, {"model.seq=128", "train.global_batch=64"});
  EXPECT_EQ(job.model.dim("hidden"), 64);
  EXPECT_EQ(job.model.dim("seq"), 128);
  EXPECT_EQ(job.train.global_batch, 64);
  EXPECT_EQ(job.name, "tiny");
}

TEST(Job, AFileThatIsNotThereIsNotFound) {
  const TemporaryFolder folder;
  EXPECT_EQ(error_of([&] { read_job(folder / "absent.yaml"); }).code(), ErrorCode::not_found);
}

TrainSpec training(LrScheduleKind kind, std::int64_t steps, std::int64_t warmup) {
  TrainSpec train;
  train.steps = steps;
  train.optimizer.lr = 1.0;
  train.lr_schedule = {kind, warmup, 0.1};
  return train;
}

TEST(LearningRate, WarmsUpLinearlyToThePeak) {
  const TrainSpec train = training(LrScheduleKind::cosine, 100, 4);
  EXPECT_DOUBLE_EQ(learning_rate(train, 0), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(train, 1), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(train, 3), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(train, 4), 1.0);
}

TEST(LearningRate, EndsAtItsShareOfThePeak) {
  for (const LrScheduleKind kind : {LrScheduleKind::cosine, LrScheduleKind::linear}) {
    const TrainSpec train = training(kind, 101, 0);
    EXPECT_DOUBLE_EQ(learning_rate(train, 0), 1.0);
    EXPECT_NEAR(learning_rate(train, 50), 0.55, 1e-12);
    EXPECT_NEAR(learning_rate(train, 100), 0.1, 1e-12);
    EXPECT_NEAR(learning_rate(train, 1000), 0.1, 1e-12);
  }
  EXPECT_NEAR(learning_rate(training(LrScheduleKind::cosine, 101, 0), 25), 0.1 + 0.9 * 0.8535533905932737, 1e-12);
  EXPECT_NEAR(learning_rate(training(LrScheduleKind::linear, 101, 0), 25), 0.1 + 0.9 * 0.75, 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate(training(LrScheduleKind::constant, 101, 0), 100), 1.0);
}

TEST(LearningRate, IsFiniteWhenTheWarmUpIsTheWholeRun) {
  for (const std::int64_t warmup : {9, 10, 20}) {
    const TrainSpec train = training(LrScheduleKind::cosine, 10, warmup);
    for (std::int64_t step = 0; step < 10; ++step) {
      EXPECT_GT(learning_rate(train, step), 0);
      EXPECT_LE(learning_rate(train, step), 1);
    }
  }
}

TrainSpec training_of(const std::string& schedule) {
  return job_of("train: {steps: 100, optimizer: {lr: 1.0}, schedule: {kind: wsd, " + schedule + "}}\n").train;
}

TEST(LearningRate, OfWsdHoldsThePeakUntilTheDecay) {
  const TrainSpec train = training_of("warmup: 10, decay: 20, min_ratio: 0");
  EXPECT_DOUBLE_EQ(learning_rate(train, 0), 0.1);
  for (std::int64_t step = 9; step < 80; ++step) EXPECT_DOUBLE_EQ(learning_rate(train, step), 1.0) << step;
  EXPECT_DOUBLE_EQ(learning_rate(train, 80), 0.95);
  EXPECT_DOUBLE_EQ(learning_rate(train, 89), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(train, 99), 0.0);
}

TEST(LearningRate, OfWsdDecaysInEachShape) {
  // A quarter of the way, half of it, and the end.
  const auto rates = [](const std::string& shape) {
    const TrainSpec train = training_of("decay: 20, min_ratio: 0.01, decay_shape: " + shape);
    return std::vector<double>{learning_rate(train, 84), learning_rate(train, 89), learning_rate(train, 99)};
  };
  using ::testing::DoubleNear;
  using ::testing::ElementsAre;
  EXPECT_THAT(rates("linear"), ElementsAre(DoubleNear(0.7525, 1e-12), DoubleNear(0.505, 1e-12), DoubleNear(0.01, 1e-12)));
  EXPECT_THAT(rates("cosine"),
              ElementsAre(DoubleNear(0.01 + 0.99 * 0.8535533905932737, 1e-12), DoubleNear(0.505, 1e-12), DoubleNear(0.01, 1e-12)));
  EXPECT_THAT(rates("sqrt"),
              ElementsAre(DoubleNear(0.505, 1e-12), DoubleNear(0.01 + 0.99 * (1 - 0.7071067811865476), 1e-12), DoubleNear(0.01, 1e-12)));
  EXPECT_THAT(rates("exponential"), ElementsAre(DoubleNear(0.31622776601683794, 1e-12), DoubleNear(0.1, 1e-12), DoubleNear(0.01, 1e-12)));
}

TEST(LearningRate, LengthsAreStepsOrSharesOfThem) {
  EXPECT_EQ(training_of("warmup: 3").lr_schedule.decay, 10) << "a tenth where nothing is said";
  EXPECT_EQ(training_of("warmup_ratio: 0.05, decay_ratio: 0.25").lr_schedule.warmup, 5);
  EXPECT_EQ(training_of("warmup_ratio: 0.05, decay_ratio: 0.25").lr_schedule.decay, 25);
  EXPECT_EQ(training_of("warmup_ratio: 0.001").lr_schedule.warmup, 1) << "a share above 0 is a step at least";
  EXPECT_EQ(training_of("decay_ratio: 0").lr_schedule.decay, 0);
  const JobSpec cosine = job_of("train: {steps: 50, schedule: {warmup_ratio: 0.1}}\n");
  EXPECT_EQ(cosine.train.lr_schedule.warmup, 5);
}

TEST(LearningRate, OfWsdNeverLeavesItsRange) {
  for (const char* lengths :
       {"warmup: 90, decay: 20", "warmup: 100, decay: 100", "warmup: 300, decay: 1", "decay: 100", "decay: 300", "decay: 0"}) {
    const TrainSpec train = training_of(lengths);
    for (std::int64_t step = 0; step < 100; ++step) {
      EXPECT_GT(learning_rate(train, step), 0) << lengths << " at " << step;
      EXPECT_LE(learning_rate(train, step), 1) << lengths << " at " << step;
    }
  }
  EXPECT_DOUBLE_EQ(learning_rate(training_of("warmup: 90, decay: 20"), 99), 0.1) << "what the warm-up leaves decays";
  EXPECT_DOUBLE_EQ(learning_rate(training_of("decay: 0"), 99), 1);
}

TEST(Job, ACommandAtTheEndIsFoundBesideTheYaml) {
  const TemporaryFolder folder;
  folder.write("job/tell.sh", "");
  const auto path = folder.write("job/train.yaml", std::string(kModel) + "on_end: [./tell.sh, 'a b', $HOME]\n");
  EXPECT_THAT(read_job(path).on_end, ::testing::ElementsAre((folder / "job" / "./tell.sh").string(), "a b", "$HOME"));
  EXPECT_EQ(job_of("on_end: [sh, -c, ls]\n").on_end.front(), "sh");
  EXPECT_TRUE(job_of("on_end: []\n").on_end.empty()) << "as --set on_end=[] says it";
}

TEST(Job, KeysThatMeanNothingBesideOthersAreTold) {
  const auto refused = [](const std::string& section) {
    return error_of([&] {
      read_job(
          ConfigNode::parse("model: {arch: llama, hidden: 64, layers: 2, heads: 4, ffn: 96, seq: 32, vocab: 512}\n" + section, "t.yaml"));
    });
  };
  const Error momentum = refused("data: {source: synthetic}\ntrain: {global_batch: 8, optimizer: {kind: adamw, momentum: 0.9}}\n");
  EXPECT_THAT(momentum.what(), HasSubstr("t.yaml:3"));
  EXPECT_THAT(momentum.what(), HasSubstr("momentum means nothing to adamw"));
  EXPECT_THAT(momentum.hint(), HasSubstr("kind: sgd reads it"));
  EXPECT_THAT(refused("data: {source: synthetic}\ntrain: {global_batch: 8, optimizer: {kind: sgd, betas: [0.9, 0.99]}}\n").what(),
              HasSubstr("betas means nothing to sgd"));
  EXPECT_THAT(refused("data: {source: a, tokenizer: {kind: hf, file: t.json, vocab: 512}}\ntrain: {global_batch: 8}\n").what(),
              HasSubstr("has the vocabulary of its file"));
}

}  // namespace
}  // namespace tessera::model
