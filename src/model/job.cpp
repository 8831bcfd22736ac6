#include "model/job.hpp"

#include <algorithm>

namespace tessera::model {
namespace {

// As written, relative to the current folder; else beside the YAML, where that exists.
std::filesystem::path resolve(const ConfigNode& node) {
  const std::filesystem::path path = node.as_string();
  std::error_code ignored;  // a name that no file can have is a file that does not exist
  if (path.is_absolute() || std::filesystem::exists(path, ignored)) return path;
  const std::filesystem::path beside = std::filesystem::path(node.file()).parent_path() / path;
  return std::filesystem::exists(beside, ignored) ? beside : path;
}

double fraction(const ConfigNode& node) {
  const double value = node.as_double();
  if (value <= 0 || value > 1) throw node.error(text("found ", value), "a number above 0 and at most 1");
  return value;
}

double not_negative(const ConfigNode& node) {
  const double value = node.as_double();
  if (value < 0) throw node.error(text("found ", value), "a number that is not negative");
  return value;
}

double moment(const ConfigNode& node) {
  const double value = node.as_double();
  if (value < 0 || value >= 1) throw node.error(text("found ", value), "a number of at least 0 and below 1");
  return value;
}

template <typename Read, typename Value>
void read_into(const ConfigNode& node, const char* key, Value& value, const Read& read) {
  if (const auto found = node.find(key)) value = static_cast<Value>(read(*found));
}

auto at_least(std::int64_t least) {
  return [least](const ConfigNode& node) { return node.as_int_at_least(least); };
}

// Far above what anyone has, far below where products of them end: workers, ranks and threads; samples of a step; steps.
constexpr std::int64_t kMostWorkers = 1 << 20;
constexpr std::int64_t kMostSamples = 1 << 30;
constexpr std::int64_t kMostSteps = std::int64_t{1} << 32;

auto between(std::int64_t least, std::int64_t most) {
  return [least, most](const ConfigNode& node) { return node.as_int_between(least, most); };
}

int number_of(const ConfigNode& node) { return static_cast<int>(node.as_int_between(1, kMostWorkers)); }

// From here on products of extents are counted in 64 bits. The limits are far above any model: 2^31 for an extent, 2^16 blocks, 2^60
// parameters, and 2^54 for the largest tensor of a step, of which a block may hold some dozens.
constexpr std::int64_t kLargestExtent = (std::int64_t{1} << 31) - 1;
constexpr double kMostBlocks = 1 << 16;
constexpr double kMostParameters = 0x1p60;
constexpr double kLargestTensor = 0x1p54;

void require_extents(const ConfigNode& model) {
  for (const std::string& key : model.keys()) {
    const ConfigNode value = model.at(key);
    const std::string words = value.is_scalar() ? value.as_string() : std::string();
    if (!words.empty() && words.find_first_not_of("0123456789") == std::string::npos) value.as_int_between(0, kLargestExtent);
  }
}

double product(const std::vector<std::int64_t>& shape) {
  double out = 1;
  for (const std::int64_t extent : shape) out *= static_cast<double>(extent);
  return out;
}

void require_countable(const ConfigNode& node, const ModelSpec& model, std::int64_t global_batch) {
  const auto seq = model.dims.find("seq");
  const double rows = seq == model.dims.end() ? 1.0 : seq->second;
  double blocks = 0;
  double parameters = 0;
  double largest = 0;
  for (const Repeat& repeat : model.repeats) {
    blocks += repeat.count;
    for (const ParameterSpec& parameter : repeat.block.parameters) {
      parameters += repeat.count * product(parameter.shape);
      for (const std::int64_t extent : parameter.shape) largest = std::max(largest, rows * static_cast<double>(extent));
    }
    for (const TensorSpec& output : repeat.block.outputs) largest = std::max(largest, product(output.shape));
  }
  largest *= static_cast<double>(global_batch);
  if (blocks > kMostBlocks) throw node.error(text("makes ", blocks, " blocks"), text("at most ", kMostBlocks));
  if (parameters > kMostParameters) throw node.error(text("makes ", parameters, " parameters"), text("at most ", kMostParameters));
  if (largest > kLargestTensor)
    throw node.error(text("makes a tensor of ", largest, " elements for a batch of ", global_batch), text("at most ", kLargestTensor));
}

TokenizerSpec read_tokenizer(const ConfigNode& node) {
  node.allow_only({"kind", "vocab", "file"});
  TokenizerSpec tokenizer;
  if (const auto kind = node.find("kind")) tokenizer.kind = kind->as_choice({"bpe", "hf", "sentencepiece", "bytes"});
  read_into(node, "vocab", tokenizer.vocab, between(257, kMostSamples));
  read_into(node, "file", tokenizer.file, resolve);
  const bool needs_file = tokenizer.kind == "hf" || tokenizer.kind == "sentencepiece";
  if (needs_file && tokenizer.file.empty()) throw node.error("a tokenizer of kind '" + tokenizer.kind + "' needs its file", "file: PATH");
  if (!needs_file && !tokenizer.file.empty())
    throw node.at("file").error("a tokenizer of kind '" + tokenizer.kind + "' has no file", "kind: hf or sentencepiece");
  return tokenizer;
}

DataSpec read_data(const ConfigNode& node) {
  node.allow_only({"source", "field", "tokenizer", "split"});
  DataSpec data;
  data.where = node.at("source").where();
  data.source = resolve(node.at("source"));
  data.field = node.get("field", data.field);
  read_into(node, "tokenizer", data.tokenizer, read_tokenizer);
  if (const auto split = node.find("split")) {
    split->allow_only({"train"});
    read_into(*split, "train", data.train_fraction, fraction);
  }
  return data;
}

OptimizerSpec read_optimizer(const ConfigNode& node) {
  node.allow_only({"kind", "lr", "betas", "beta1", "beta2", "epsilon", "weight_decay", "momentum", "clip"});
  OptimizerSpec optimizer;
  if (const auto kind = node.find("kind"))
    optimizer.kind = kind->as_choice({"adamw", "sgd"}) == "adamw" ? OptimizerKind::adamw : OptimizerKind::sgd;
  read_into(node, "lr", optimizer.lr, not_negative);
  if (const auto betas = node.find("betas")) {
    if (betas->size() != 2) throw betas->error(text("has ", betas->size(), " entries"), "[beta1, beta2]");
    optimizer.beta1 = moment((*betas)[0]);
    optimizer.beta2 = moment((*betas)[1]);
  }
  read_into(node, "beta1", optimizer.beta1, moment);
  read_into(node, "beta2", optimizer.beta2, moment);
  read_into(node, "epsilon", optimizer.epsilon, not_negative);
  read_into(node, "weight_decay", optimizer.weight_decay, not_negative);
  read_into(node, "momentum", optimizer.momentum, moment);
  read_into(node, "clip", optimizer.clip, not_negative);
  return optimizer;
}

LrScheduleSpec read_schedule(const ConfigNode& node) {
  node.allow_only({"kind", "warmup", "min_ratio"});
  LrScheduleSpec schedule;
  if (const auto kind = node.find("kind")) {
    const std::string name = kind->as_choice({"cosine", "linear", "constant"});
    schedule.kind = name == "cosine" ? ScheduleKind::cosine : name == "linear" ? ScheduleKind::linear : ScheduleKind::constant;
  }
  read_into(node, "warmup", schedule.warmup, between(0, kMostSteps));
  read_into(node, "min_ratio", schedule.min_ratio, not_negative);
  return schedule;
}

TrainSpec read_train(const ConfigNode& node) {
  node.allow_only({"steps", "global_batch", "optimizer", "schedule", "precision", "seed", "init", "eval"});
  TrainSpec train;
  read_into(node, "steps", train.steps, between(1, kMostSteps));
  read_into(node, "global_batch", train.global_batch, between(1, kMostSamples));
  read_into(node, "optimizer", train.optimizer, read_optimizer);
  read_into(node, "schedule", train.schedule, read_schedule);
  if (const auto precision = node.find("precision")) {
    const std::string name = precision->as_choice({"fp32", "bf16", "fp16"});
    train.precision = name == "fp32" ? Precision::f32 : name == "bf16" ? Precision::bf16 : Precision::f16;
  }
  read_into(node, "seed", train.seed, at_least(0));
  read_into(node, "init", train.init, resolve);
  if (const auto eval = node.find("eval")) {
    eval->allow_only({"every", "sequences"});
    read_into(*eval, "every", train.eval_every, between(0, kMostSteps));
    read_into(*eval, "sequences", train.eval_sequences, between(1, kMostSamples));
  }
  return train;
}

ClusterChoice read_cluster_choice(const ConfigNode& node) {
  ClusterChoice choice;
  choice.where = node.where();
  if (node.is_scalar()) {
    if (node.as_string() == "auto") return choice;
    choice.kind = ClusterChoice::Kind::file;
    choice.file = resolve(node);
    return choice;
  }
  node.allow_only({"local", "lab"});
  if (node.has("local") && node.has("lab")) throw node.error("'local' and 'lab' exclude each other", "one of them");
  if (const auto local = node.find("local")) {
    local->allow_only({"devices", "threads"});
    choice.kind = ClusterChoice::Kind::local;
    choice.devices = number_of(local->at("devices"));
    read_into(*local, "threads", choice.threads, number_of);
  } else {
    const ConfigNode lab = node.at("lab");
    lab.allow_only({"hosts", "gbit", "cpu"});
    choice.kind = ClusterChoice::Kind::lab;
    choice.devices = number_of(lab.at("hosts"));
    read_into(lab, "gbit", choice.gbit, not_negative);
    read_into(lab, "cpu", choice.cpu, not_negative);
  }
  return choice;
}

ParallelChoice read_parallel(const ConfigNode& node) {
  ParallelChoice choice;
  choice.where = node.where();
  if (node.is_scalar()) {
    if (node.as_string() == "auto") return choice;
    choice.kind = ParallelChoice::Kind::plan_file;
    choice.file = resolve(node);
    return choice;
  }
  node.allow_only({"dp", "pp", "tp", "cp", "ep", "zero", "threads", "micro_batches", "schedule", "recompute", "delayed_exchange"});
  choice.kind = ParallelChoice::Kind::degrees;
  read_into(node, "dp", choice.dp, number_of);
  read_into(node, "pp", choice.pp, number_of);
  read_into(node, "tp", choice.tp, number_of);
  read_into(node, "cp", choice.cp, number_of);
  read_into(node, "ep", choice.ep, number_of);
  if (const auto zero = node.find("zero")) choice.zero = std::stoi(zero->as_choice({"0", "1", "2", "3"}));
  read_into(node, "threads", choice.threads, number_of);
  read_into(node, "micro_batches", choice.micro_batches, between(1, kMostSamples));
  if (const auto schedule = node.find("schedule"))
    choice.schedule = schedule->as_choice({"1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v"});
  if (const auto recompute = node.find("recompute")) choice.recompute = recompute->as_choice({"none", "selective", "full"});
  if (const auto delayed = node.find("delayed_exchange")) choice.delayed_exchange = delayed->as_bool();
  return choice;
}

std::string default_name(const std::filesystem::path& file) {
  const std::string stem = file.stem().string();
  const std::string folder = std::filesystem::absolute(file).parent_path().filename().string();
  return (stem == "train" || file.filename() == "config.json") && !folder.empty() ? folder : stem;
}

}  // namespace

JobSpec read_job(const ConfigNode& root) {
  root.allow_only({"name", "model", "data", "train", "cluster", "parallel", "checkpoint"});
  JobSpec job;
  job.file = root.file();
  job.name = root.get("name", default_name(job.file));
  if (job.name.empty() || job.name.find('/') != std::string::npos || job.name.starts_with("."))
    throw(root.has("name") ? root.at("name") : root)
        .error("'" + job.name + "' cannot name a folder of runs/", "letters, digits, '-', '_' and '.'");
  require_extents(root.at("model"));
  job.model = read_model(root.at("model"));
  read_into(root, "data", job.data, read_data);
  read_into(root, "train", job.train, read_train);
  require_countable(root.at("model"), job.model, job.train.global_batch);
  read_into(root, "cluster", job.cluster, read_cluster_choice);
  read_into(root, "parallel", job.parallel, read_parallel);
  if (job.parallel.delayed_exchange && job.train.optimizer.clip > 0)
    throw root.at("parallel")
        .at("delayed_exchange")
        .error(text("delayed_exchange leaves no time for the norm of all gradients, and train.optimizer.clip ", job.train.optimizer.clip,
                    " needs it"),
               "train.optimizer.clip: 0, or delayed_exchange: false");
  if (const auto checkpoint = root.find("checkpoint")) {
    checkpoint->allow_only({"every", "keep"});
    read_into(*checkpoint, "every", job.checkpoint.every, between(0, kMostSteps));
    read_into(*checkpoint, "keep", job.checkpoint.keep, at_least(1));
  }
  job.resolved_yaml = root.to_yaml();
  return job;
}

JobSpec read_job(const std::filesystem::path& path, const std::vector<std::string>& overrides) {
  ConfigNode root = ConfigNode::load(path);
  // A Hugging Face config.json stands for a job that says its model alone.
  if (root.is_map() && root.has("model_type") && !root.has("model"))
    root = ConfigNode::parse("model: {}", path.string()).with_override("model.hf", "\"" + path.string() + "\"");
  for (const std::string& setting : overrides) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos)
      throw Error(ErrorCode::invalid_config, "--set " + setting + ": no '='", {}, "SECTION.KEY=VALUE, such as train.steps=50");
    root = root.with_override(setting.substr(0, equals), setting.substr(equals + 1));
  }
  return read_job(root);
}

}  // namespace tessera::model
