#include "model/job.hpp"

#include <algorithm>

#include "base/plain_name.hpp"
#include "base/problems.hpp"
#include "model/data_section.hpp"
#include "model/forms.hpp"
#include "model/learning_rate.hpp"
#include "model/servers_section.hpp"
#include "model/yaml_path.hpp"

namespace tessera::model {
namespace {

// Up to 1e12: products of such numbers stay finite.
double not_negative(const ConfigNode& node) {
  constexpr double kMost = 1e12;
  const double value = node.as_double();
  if (value < 0) throw node.error(text("found ", value), "a number that is not negative");
  if (value > kMost) throw node.error(text("found ", value), text("a number of at most ", kMost));
  return value;
}

double moment(const ConfigNode& node) {
  const double value = node.as_double();
  if (value < 0 || value >= 1) throw node.error(text("found ", value), "a number of at least 0 and below 1");
  return value;
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

template <typename... Words>
auto choice(Words... valid) {
  return [=](const ConfigNode& node) { return node.as_choice({valid...}); };
}

OptimizerKind read_optimizer_kind(const ConfigNode& node) {
  return node.as_choice({"adamw", "sgd"}) == "adamw" ? OptimizerKind::adamw : OptimizerKind::sgd;
}

std::pair<double, double> read_betas(const ConfigNode& node) {
  if (node.size() != 2) throw node.error(text("has ", node.size(), " entries"), "[beta1, beta2]");
  return {moment(node[0]), moment(node[1])};
}

OptimizerSpec read_optimizer(const ConfigNode& node) {
  OptimizerSpec optimizer;
  Section section(node, {"kind", "lr", "betas", "beta1", "beta2", "epsilon", "weight_decay", "momentum", "clip"});
  section.read("kind", optimizer.kind, read_optimizer_kind);
  section.read("lr", optimizer.lr, not_negative);
  std::pair betas(optimizer.beta1, optimizer.beta2);
  section.read("betas", betas, read_betas);
  std::tie(optimizer.beta1, optimizer.beta2) = betas;
  section.read("beta1", optimizer.beta1, moment);
  section.read("beta2", optimizer.beta2, moment);
  section.read("epsilon", optimizer.epsilon, not_negative);
  section.read("weight_decay", optimizer.weight_decay, not_negative);
  section.read("momentum", optimizer.momentum, moment);
  section.read("clip", optimizer.clip, not_negative);
  const bool adamw = optimizer.kind == OptimizerKind::adamw;
  for (const char* key : {"betas", "beta1", "beta2", "epsilon", "momentum"})
    section.attempt([&] {
      const auto said = node.find(key);
      if (!said || (std::string_view(key) == "momentum") != adamw) return;
      throw said->error(text(key, " means nothing to ", adamw ? "adamw" : "sgd"), text("no ", key),
                        text("kind: ", adamw ? "sgd" : "adamw", " reads it"));
    });
  section.finish();
  return optimizer;
}

Precision read_precision(const ConfigNode& node) {
  const std::string name = node.as_choice({"fp32", "bf16", "fp16"});
  return name == "fp32" ? Precision::f32 : name == "bf16" ? Precision::bf16 : Precision::f16;
}

EarlyStopSpec read_early_stop(const ConfigNode& node) {
  EarlyStopSpec early_stop;
  Section section(node, {"patience", "min_gain"});
  section.need("patience", early_stop.patience, between(1, kMostSteps));
  section.read("min_gain", early_stop.min_gain, not_negative);
  section.finish();
  return early_stop;
}

PlacementSpec read_placement(const ConfigNode& node) {
  PlacementSpec placement;
  placement.where = node.where();
  Section section(node, {"kind", "every"});
  section.need("kind", placement.kind, [](const ConfigNode& kind) {
    const std::string name = kind.as_choice({"off", "samples", "samples_and_experts"});
    return name == "off" ? PlacementKind::off : name == "samples" ? PlacementKind::samples : PlacementKind::samples_and_experts;
  });
  section.read("every", placement.every, between(1, kMostSteps));
  section.finish();
  return placement;
}

TrainSpec read_train(const ConfigNode& node) {
  TrainSpec train;
  Section section(node, {"steps", "global_batch", "optimizer", "schedule", "precision", "seed", "init", "eval", "early_stop", "rebalance",
                         "placement"});
  section.read("steps", train.steps, between(1, kMostSteps));
  section.read("global_batch", train.global_batch, between(1, kMostSamples));
  section.read("optimizer", train.optimizer, read_optimizer);
  section.read("schedule", train.lr_schedule,
               [&](const ConfigNode& schedule) { return read_schedule(schedule, train.steps, LrScheduleKind::cosine); });
  section.read("precision", train.precision, read_precision);
  section.read("seed", train.seed, at_least(0));
  section.read("init", train.init, init_of);
  section.attempt([&] {
    const auto eval = node.find("eval");
    if (!eval) return;
    Section inner(*eval, {"every", "sequences"});
    inner.read("every", train.eval_every, between(0, kMostSteps));
    inner.read("sequences", train.eval_sequences, between(1, kMostSamples));
    inner.finish();
  });
  section.read("early_stop", train.early_stop, read_early_stop);
  section.read("rebalance", train.rebalance, [](const ConfigNode& whether) { return whether.as_bool(); });
  section.read("placement", train.placement, read_placement);
  section.finish();
  if (train.early_stop && train.eval_every == 0)
    throw node.at("early_stop")
        .error("early_stop counts evaluations, and there is one at the end alone", "train.eval.every: STEPS beside it");
  return train;
}

ClusterChoice read_local(const ConfigNode& node) {
  ClusterChoice out;
  out.kind = ClusterChoice::Kind::local;
  Section section(node, {"devices", "threads"});
  section.need("devices", out.devices, number_of);
  section.read("threads", out.threads, number_of);
  section.finish();
  return out;
}

ClusterChoice read_lab(const ConfigNode& node) {
  ClusterChoice out;
  out.kind = ClusterChoice::Kind::lab;
  Section section(node, {"hosts", "gbit", "cpu"});
  section.need("hosts", out.devices, number_of);
  section.read("gbit", out.gbit, not_negative);
  section.read("cpu", out.cpu, not_negative);
  section.finish();
  return out;
}

// A file that has yet to be written is named like one: plan.json, plans/best. Other words are meant for 'auto'.
std::filesystem::path file_or_auto(const ConfigNode& node, const std::string& expected) {
  const std::string name = node.as_string();
  const std::filesystem::path file = path_of(node);
  std::error_code ignored;
  if (name.find_first_of("./") == std::string::npos && !std::filesystem::exists(file, ignored))
    throw node.error("found '" + name + "', and there is no such file", expected, nearest(name, {"auto"}) ? "did you mean 'auto'?" : "");
  return file;
}

ClusterChoice read_cluster_choice(const ConfigNode& node) {
  ClusterChoice out;
  if (node.is_scalar()) {
    if (node.as_string() != "auto") {
      out.kind = ClusterChoice::Kind::file;
      out.file = file_or_auto(node, "auto, a cluster file, {local: {devices: N}} or {lab: {hosts: N}}");
    }
  } else {
    node.allow_only({"local", "lab"});
    if (node.has("local") && node.has("lab")) throw node.error("'local' and 'lab' exclude each other", "one of them");
    out = node.has("local") ? read_local(node.at("local")) : read_lab(node.at("lab"));
  }
  out.where = node.where();
  return out;
}

int read_zero(const ConfigNode& node) { return std::stoi(node.as_choice({"0", "1", "2", "3"})); }

ParallelChoice read_parallel(const ConfigNode& node) {
  ParallelChoice out;
  out.where = node.where();
  if (node.is_scalar()) {
    const std::string name = node.as_string();
    if (name == "auto") return out;
    out.kind = ParallelChoice::Kind::plan_file;
    out.file = file_or_auto(node, "auto, a plan file, or degrees such as {dp: 2, tp: 2}");
    return out;
  }
  out.kind = ParallelChoice::Kind::degrees;
  Section section(node, {"dp", "pp", "tp", "cp", "context", "ep", "zero", "threads", "micro_batches", "schedule", "chunks", "recompute",
                         "sequence_parallel", "delayed_exchange", "staleness", "context_groups"});
  section.read("dp", out.dp, number_of);
  section.read("pp", out.pp, number_of);
  section.read("tp", out.tp, number_of);
  section.read("cp", out.cp, number_of);
  section.read("context", out.context, [](const ConfigNode& kind) {
    return choice("ring", "ulysses")(kind) == "ulysses" ? ContextKind::ulysses : ContextKind::ring;
  });
  section.read("ep", out.ep, number_of);
  section.read("zero", out.zero, read_zero);
  section.read("threads", out.threads, number_of);
  section.read("micro_batches", out.micro_batches, between(1, kMostSamples));
  section.read("schedule", out.schedule, choice("1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v"));
  section.read("chunks", out.chunks, number_of);
  section.read("recompute", out.recompute, choice("none", "selective", "full"));
  section.read("sequence_parallel", out.sequence_parallel, [](const ConfigNode& flag) { return flag.as_bool(); });
  section.read("delayed_exchange", out.delayed_exchange, [](const ConfigNode& flag) { return flag.as_bool(); });
  section.read("staleness", out.staleness, between(0, 1));
  if (out.staleness > 0) {
    if (out.delayed_exchange == false)
      throw node.at("delayed_exchange")
          .error("gradients that are used a step late are exchanged late", "delayed_exchange: true, or staleness: 0");
    if (out.zero.value_or(0) > 1)
      throw node.at("zero").error(text("zero ", *out.zero, " with staleness 1, which holds the gradients of two steps whole"),
                                  "zero 0 or 1");
    out.delayed_exchange = true;
  }
  section.read("context_groups", out.flexible_groups,
               [](const ConfigNode& kind) { return choice("flexible", "fixed")(kind) == "flexible"; });
  section.finish();
  return out;
}

CheckpointSpec read_checkpoint(const ConfigNode& node) {
  CheckpointSpec checkpoint;
  Section section(node, {"every", "keep", "best"});
  section.read("every", checkpoint.every, between(0, kMostSteps));
  section.read("keep", checkpoint.keep, at_least(1));
  section.read("best", checkpoint.best, [](const ConfigNode& flag) { return flag.as_bool(); });
  section.finish();
  return checkpoint;
}

LogSpec read_log(const ConfigNode& node) {
  LogSpec log;
  Section section(node, {"every"});
  section.read("every", log.every, between(1, kMostSteps));
  section.finish();
  return log;
}

// A list and never a line: no shell reads what a run is called or where it lies.
std::vector<std::string> read_on_end(const ConfigNode& node) {
  if (!node.is_sequence())
    throw node.error("on_end is a program and its arguments", "[PROGRAM, ARGUMENT, ...]", "for a line of a shell: [sh, -c, 'LINE']");
  std::vector<std::string> words;
  for (const ConfigNode& word : node.items()) words.push_back(word.as_string());
  if (words.empty()) return words;
  if (words.front().empty()) throw node[0].error("the program has no name", "[PROGRAM, ARGUMENT, ...]");
  // Names without a '/' are looked up in PATH.
  if (words.front().find('/') != std::string::npos) words.front() = path_of(node[0]).string();
  return words;
}

// What looks at validation losses needs samples to validate on.
void require_validation(const ConfigNode& root, const JobSpec& job) {
  if (job.data.train_fraction < 1) return;
  const auto refuse = [&](const ConfigNode& node) {
    throw node.error(text("it goes by the validation loss, and data.split.train leaves no ",
                          reads_images(job.model)   ? "images"
                          : reads_clicks(job.model) ? "lines"
                                                    : "text",
                          " to validate on"),
                     "data.split.train below 1");
  };
  if (job.train.early_stop) refuse(root.at("train").at("early_stop"));
  if (job.checkpoint.best) refuse(root.at("checkpoint").at("best"));
}

void check_placement(const ConfigNode& root, const JobSpec& job) {
  if (job.train.placement.kind == PlacementKind::off) return;
  const ConfigNode kind = root.at("train").at("placement").at("kind");
  if (!job.model.dims.contains("experts"))
    throw kind.error("samples are placed by the experts that their tokens go to, and the model has none", "kind: off");
  const auto groups = job.model.dims.find("expert_groups");
  if (job.train.placement.kind == PlacementKind::samples_and_experts && groups != job.model.dims.end() && groups->second > 1)
    throw kind.error("experts that are chosen by groups (model.expert_groups) stay in their places", "kind: samples");
}

void check_tables(const ConfigNode& root, const JobSpec& job) {
  if (const auto servers = root.find("parameter_servers"); servers && !reads_clicks(job.model))
    throw servers->error(text("parameter servers hold tables, and model ", job.model.arch, " has none"), "no parameter_servers");
  if (!job.parameter_servers.lifecycle) return;
  const std::int64_t dimension = job.model.blocks().at(static_cast<std::size_t>(tables_block(job.model))).spec->dim("dim");
  const auto check_growth = [dimension](const std::vector<GrowthStepSpec>& growth, const Where& where) {
    if (!growth.empty() && growth.back().dimension > dimension)
      throw Error(ErrorCode::invalid_config, text("rows grow to ", growth.back().dimension, " values, and the model's have ", dimension),
                  where, text("a dimension of ", dimension, " at most"));
  };
  if (const std::vector<GrowthStepSpec>& growth = job.parameter_servers.lifecycle->growth; !growth.empty())
    check_growth(growth, root.at("parameter_servers").at("lifecycle").at("growth").where());
  const std::int64_t tables = std::ssize(table_rows(job.model));
  for (const TableLifecycleSpec& some : job.parameter_servers.lifecycle->tables) {
    check_growth(some.growth, some.where);
    for (const int table : some.tables)
      if (table >= tables)
        throw Error(ErrorCode::invalid_config, text("the model has no table ", table), some.where, text("0 to ", tables - 1));
  }
}

std::string read_name(const ConfigNode& node) {
  const std::string name = node.as_string();
  if (!is_plain_name(name)) throw node.error("'" + name + "' cannot name a folder of runs/", kPlainName);
  return name;
}

// Samples of different lengths are dealt to ranks that hold the same weights; what `parallel:` leaves open is set so that all do.
void deal_lengths(const ConfigNode& root, JobSpec& job) {
  ParallelChoice& parallel = job.parallel;
  const auto said = root.find("parallel");
  const auto at = [&](const char* key) { return said->is_map() && said->has(key) ? said->at(key) : *said; };
  if (!job.data.lengths) {
    if (said && said->is_map() && said->has("context_groups"))
      throw at("context_groups")
          .error("context_groups are chosen by the lengths of samples, which all are model.seq", "data.lengths beside it");
    return;
  }
  if (parallel.kind == ParallelChoice::Kind::plan_file) return;
  for (const auto& [name, degree] : {std::pair{"pp", parallel.pp}, {"tp", parallel.tp}, {"ep", parallel.ep}})
    if (degree > 1)
      throw at(name).error(text(name, " ", degree, " with data.lengths, whose samples are dealt to ranks that hold all of the model"),
                           text(name, " 1"), "cp cuts long samples, and zero: 1 the optimizer's state");
  if (parallel.zero.value_or(0) > 1)
    throw at("zero").error(text("zero ", *parallel.zero, " with data.lengths, by which ranks make passes of their own number"),
                           "zero 0 or 1");
  if (parallel.delayed_exchange.value_or(false))
    throw at("delayed_exchange")
        .error("delayed_exchange with data.lengths, by which every step has passes of its own", "no delayed_exchange");
  parallel.kind = ParallelChoice::Kind::degrees;
  parallel.pp = parallel.tp = 1;
}

// Samples and experts change places among the ranks of one stage, each of which has whole blocks and sequences.
void spread_experts(const ConfigNode& root, JobSpec& job) {
  ParallelChoice& parallel = job.parallel;
  if (job.train.placement.kind == PlacementKind::off || parallel.kind == ParallelChoice::Kind::plan_file) return;
  for (const auto& [name, degree] : {std::pair{"pp", parallel.pp}, {"tp", parallel.tp}, {"cp", parallel.cp}, {"ep", -parallel.ep}})
    if (degree > 1 || degree == -1)
      throw root.at("parallel")
          .at(name)
          .error(text(name, " ", std::abs(degree),
                      " with train.placement, which changes places among ranks of "
                      "one stage that hold different experts, and all else whole"),
                 degree > 1 ? text(name, " 1") : "ep of at least 2, over several hosts", "or train.placement.kind: off");
  parallel.kind = ParallelChoice::Kind::degrees;
  parallel.pp = parallel.tp = parallel.cp = 1;
}

ModelSpec read_countable_model(const ConfigNode& node) {
  require_extents(node);
  return read_model(node);
}

std::string default_name(const std::filesystem::path& file) {
  const std::string stem = file.stem().string();
  const std::string folder = std::filesystem::absolute(file).parent_path().filename().string();
  return plain_name_of((stem == "train" || file.filename() == "config.json") && !folder.empty() ? folder : stem);
}

}  // namespace

JobSpec read_job(const ConfigNode& root) {
  JobSpec job;
  job.file = root.file();
  job.name = default_name(job.file);
  job.data.where = {.file = root.file(), .block = {}};
  Section section(root, {"name", "model", "data", "train", "parameter_servers", "cluster", "parallel", "checkpoint", "log", "on_end"});
  section.read("name", job.name, read_name);
  section.need("model", job.model, read_countable_model);
  section.read("data", job.data, read_data);
  section.read("train", job.train, read_train);
  section.read("parameter_servers", job.parameter_servers,
               [&](const ConfigNode& servers) { return read_parameter_servers(servers, job.train.steps); });
  section.read("cluster", job.cluster, read_cluster_choice);
  section.read("parallel", job.parallel, read_parallel);
  section.read("checkpoint", job.checkpoint, read_checkpoint);
  section.read("log", job.log, read_log);
  section.read("on_end", job.on_end, read_on_end);
  section.finish();
  if (const auto data = root.find("data")) check_data(*data, job.data, job.model);
  if ((predicts_masked_tokens(job.model) || predicts_masked_spans(job.model)) && !job.data.mask) job.data.mask.emplace();
  check_tables(root, job);
  if (predicts_masked_spans(job.model)) job.data.mask->decoder_seq = job.model.dim("decoder_seq");
  require_validation(root, job);
  check_placement(root, job);
  require_countable(root.at("model"), job.model, job.train.global_batch);
  if (job.cluster.threads > 0 && job.parallel.threads > 0 && job.parallel.threads != job.cluster.threads)
    throw root.at("parallel")
        .at("threads")
        .error(text("found ", job.parallel.threads, ", and cluster.local.threads is ", job.cluster.threads),
               "one of them, or the same in both");
  deal_lengths(root, job);
  spread_experts(root, job);
  if (job.parallel.delayed_exchange.value_or(false) && job.train.optimizer.clip > 0)
    throw root.at("parallel")
        .at("delayed_exchange")
        .error(text("delayed_exchange leaves no time for the norm of all gradients, and train.optimizer.clip ", job.train.optimizer.clip,
                    " needs it"),
               "train.optimizer.clip: 0, or delayed_exchange: false");
  job.resolved_yaml = root.to_yaml();
  return job;
}

JobSpec read_job(const std::filesystem::path& path, const std::vector<std::string>& overrides) {
  return read_job(load_yaml(path, overrides));
}

}  // namespace tessera::model
