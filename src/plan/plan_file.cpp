#include <nlohmann/json.hpp>

#include "plan/plan.hpp"
#include "plan/schedule/schedule.hpp"

namespace tessera::plan {
namespace {

using Json = nlohmann::ordered_json;
using model::Precision, model::Recompute;

constexpr const char* kFormat = "tessera-plan";
constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMostRanks = 1 << 20;
constexpr std::int64_t kMostSamples = 1 << 30;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;
constexpr double kMostSeconds = 1e6;  // of a token or a pass
constexpr double kMostTokens = 1e12;  // of a sample

// "[a, b, c]" with one value a line, of each item as `json` writes it.
template <typename Items, typename Write>
std::string list(const Items& items, const std::string& indent, const Write& json) {
  std::string out;
  for (const auto& item : items) out += text(out.empty() ? "\n" : ",\n", indent, "  ", json(item));
  return out.empty() ? "[]" : "[" + out + "\n" + indent + "]";
}

std::string json_of(const RankPlace& place) {
  return text("{\"group\": ", place.group, ", \"node\": ", place.node, ", \"device\": ", place.device, ", \"threads\": ", place.threads,
              "}");
}

std::string json_of(const Server& server) { return text("{\"rank\": ", server.rank, ", \"threads\": ", server.threads, "}"); }

std::string json_of(const std::vector<Slot>& order) {
  std::vector<std::string> words;
  for (const Slot& slot : order) words.push_back(to_text(slot));
  return Json(words).dump();
}

// What is as by default is left out, but for what every reader wants to see.
std::string json_of(const StrategyRun& run) {
  const Strategy& s = run.strategy;
  std::string out = text("{\"first\": ", run.first, ", \"last\": ", run.last, ", \"dp\": ", s.dp, ", \"tp\": ", s.tp,
                         ", \"zero\": ", s.zero, ", \"recompute\": \"", model::name_of(s.recompute), "\"");
  if (s.sequence_parallel) out += ", \"sequence_parallel\": true";
  if (s.cp != 1) out += text(", \"cp\": ", s.cp);
  if (s.context == model::ContextKind::ulysses) out += ", \"context\": \"ulysses\"";
  if (s.ep != 1) out += text(", \"ep\": ", s.ep);
  if (s.shards != 0) out += text(", \"shards\": ", s.shards);
  if (s.whole_experts) out += ", \"whole_experts\": true";
  if (s.offload_optimizer) out += ", \"offload_optimizer\": true";
  return out + "}";
}

std::string json_of(const Stage& stage) {
  std::string shares;
  for (const Share& share : stage.shares)
    shares += text(shares.empty() ? "" : ", ", "{\"ranks\": ", share.ranks, ", \"samples\": ", share.samples, "}");
  if (!shares.empty()) shares = text(", \"shares\": [", shares, "]");
  const std::string runs = list(stage.runs, "    ", [](const StrategyRun& run) { return json_of(run); });
  return text("{\"ranks\": ", Json(stage.ranks).dump(), shares, ", \"blocks\": ", runs, "}");
}

std::string json_of(const Prediction& prediction) {
  const std::string parts = list(prediction.parts, "    ", [](const auto& part) {
    return text("{\"name\": ", Json(part.first).dump(), ", \"seconds\": ", Json(part.second.value).dump(), "}");
  });
  std::vector<std::int64_t> memory;
  for (Bytes bytes : prediction.memory) memory.push_back(bytes.value);
  return text("{\n    \"step_seconds\": ", Json(prediction.step.value).dump(), ",\n    \"bubble\": ", Json(prediction.bubble).dump(),
              ",\n    \"memory_bytes\": ", Json(memory).dump(), ",\n    \"parts\": ", parts, "\n  }");
}

std::string json_of(const Lengths& lengths) {
  std::string groups;
  for (const Lengths::Group& group : lengths.groups)
    groups += text(groups.empty() ? "" : ", ", "{\"degree\": ", group.degree, ", \"exchange_seconds\": ", Json(group.exchange).dump(), "}");
  return text("{\"pass_seconds\": ", Json(lengths.pass).dump(), ", \"token_seconds\": ", Json(lengths.token).dump(),
              ", \"pair_seconds\": ", Json(lengths.pair).dump(), lengths.mean > 0 ? ", \"mean_tokens\": " + Json(lengths.mean).dump() : "",
              ", \"groups\": [", groups, "]}");
}

int small_int(const ConfigNode& node, std::int64_t least) { return static_cast<int>(node.as_int_between(least, kMostRanks)); }

double read_between(const ConfigNode& node, double least, double most, const char* what) {
  const double number = node.as_double();
  if (!(number >= least && number <= most)) throw node.error(text("found ", number), text(what, " from ", least, " to ", most));
  return number;
}

// The one of these values that the file names.
template <typename Enum>
Enum read_name(const ConfigNode& node, const std::vector<Enum>& values) {
  std::vector<std::string> names;
  for (const Enum value : values) names.push_back(name_of(value));
  return values[std::ranges::find(names, node.as_choice(names)) - names.begin()];
}

RankPlace read_place(const ConfigNode& node) {
  node.allow_only({"group", "node", "device", "threads"});
  return {small_int(node.at("group"), 0), small_int(node.at("node"), 0), small_int(node.at("device"), 0), small_int(node.at("threads"), 1),
          node.where()};
}

Server read_server(const ConfigNode& node) {
  node.allow_only({"rank", "threads"});
  constexpr std::int64_t kMostThreads = 1024;
  return {small_int(node.at("rank"), 0), static_cast<int>(node.at("threads").as_int_between(1, kMostThreads)), node.where()};
}

StrategyRun read_run(const ConfigNode& node) {
  node.allow_only({"first", "last", "dp", "tp", "zero", "recompute", "sequence_parallel", "cp", "context", "ep", "shards", "whole_experts",
                   "offload_optimizer"});
  StrategyRun run;
  Strategy& s = run.strategy;
  run.first = small_int(node.at("first"), 0);
  run.last = small_int(node.at("last"), 1);
  s.dp = small_int(node.at("dp"), 1);
  s.tp = small_int(node.at("tp"), 1);
  s.zero = small_int(node.at("zero"), 0);
  s.recompute = read_name<Recompute>(node.at("recompute"), {Recompute::none, Recompute::selective, Recompute::full});
  if (const auto sequence = node.find("sequence_parallel")) s.sequence_parallel = sequence->as_bool();
  if (const auto degree = node.find("cp")) s.cp = small_int(*degree, 1);
  if (const auto kind = node.find("context"); kind && kind->as_choice({"ring", "ulysses"}) == "ulysses")
    s.context = model::ContextKind::ulysses;
  if (const auto degree = node.find("ep")) s.ep = small_int(*degree, 1);
  if (const auto degree = node.find("shards")) s.shards = small_int(*degree, 1);
  if (const auto whole = node.find("whole_experts")) s.whole_experts = whole->as_bool();
  if (const auto offload = node.find("offload_optimizer")) s.offload_optimizer = offload->as_bool();
  run.where = node.where();
  return run;
}

Stage read_stage(const ConfigNode& node) {
  node.allow_only({"ranks", "shares", "blocks"});
  Stage stage;
  for (const ConfigNode& rank : node.at("ranks").items()) stage.ranks.push_back(small_int(rank, 0));
  if (const auto shares = node.find("shares"))
    for (const ConfigNode& share : shares->items()) {
      share.allow_only({"ranks", "samples"});
      stage.shares.push_back({small_int(share.at("ranks"), 1), share.at("samples").as_int_between(1, kMostSamples)});
    }
  for (const ConfigNode& run : node.at("blocks").items()) stage.runs.push_back(read_run(run));
  if (stage.runs.empty()) throw node.at("blocks").error("a stage without blocks has nothing to do");
  stage.where = node.where();
  return stage;
}

Lengths read_lengths(const ConfigNode& node) {
  node.allow_only({"pass_seconds", "token_seconds", "pair_seconds", "mean_tokens", "groups"});
  const auto seconds = [](const ConfigNode& value) { return read_between(value, 0, kMostSeconds, "seconds"); };
  Lengths lengths{{}, seconds(node.at("pass_seconds")), seconds(node.at("token_seconds")), seconds(node.at("pair_seconds"))};
  for (const ConfigNode& group : node.at("groups").items()) {
    group.allow_only({"degree", "exchange_seconds"});
    lengths.groups.push_back({small_int(group.at("degree"), 1), seconds(group.at("exchange_seconds"))});
    if (lengths.groups.size() > 1 && lengths.groups[lengths.groups.size() - 2].degree >= lengths.groups.back().degree)
      throw group.at("degree").error(text("degree ", lengths.groups.back().degree, " does not follow the one before it"),
                                     "ascending degrees");
  }
  if (lengths.groups.empty()) throw node.at("groups").error("there is no group", "at least one");
  if (const auto mean = node.find("mean_tokens")) lengths.mean = read_between(*mean, 1, kMostTokens, "tokens");
  return lengths;
}

Prediction read_prediction(const ConfigNode& node) {
  node.allow_only({"step_seconds", "bubble", "memory_bytes", "parts"});
  Prediction prediction;
  prediction.step = Seconds(node.at("step_seconds").as_double());
  prediction.bubble = node.at("bubble").as_double();
  for (const ConfigNode& bytes : node.at("memory_bytes").items()) prediction.memory.push_back(Bytes(bytes.as_int_at_least(0)));
  for (const ConfigNode& part : node.at("parts").items()) {
    part.allow_only({"name", "seconds"});
    prediction.parts.emplace_back(part.at("name").as_string(), Seconds(part.at("seconds").as_double()));
  }
  return prediction;
}

}  // namespace

std::string to_json(const Plan& plan) {
  const auto write = [](const auto& item) { return json_of(item); };
  const std::string order = plan.order.empty() ? "" : ",\n  \"order\": " + list(plan.order, "  ", write);
  std::string out = text(
      "{\n  \"format\": \"", kFormat, "\",\n  \"version\": ", kVersion, ",\n  \"model\": ", Json(plan.model_fingerprint).dump(),
      ",\n  \"cluster\": ", Json(plan.cluster_fingerprint).dump(), ",\n  \"precision\": \"", model::name_of(plan.precision),
      "\",\n  \"global_batch\": ", plan.global_batch, ",\n  \"micro_batches\": ", plan.micro_batches, ",\n  \"schedule\": \"",
      name_of(plan.schedule), "\"", order, ",\n  \"bucket_bytes\": ", plan.bucket_size.value,
      plan.delayed_exchange ? text(",\n  \"delayed_exchange\": true,\n  \"exchanged_early\": ", Json(plan.exchanged_early).dump()) : "",
      plan.staleness > 0 ? text(",\n  \"staleness\": ", plan.staleness) : "", plan.rows_ahead ? ",\n  \"rows_ahead\": true" : "",
      plan.servers.empty() ? std::string() : ",\n  \"servers\": " + list(plan.servers, "  ", write),
      plan.lengths ? ",\n  \"lengths\": " + json_of(*plan.lengths) : "", ",\n  \"ranks\": ", list(plan.ranks, "  ", write),
      ",\n  \"stages\": ", list(plan.stages, "  ", write));
  if (plan.predicted) out += ",\n  \"predicted\": " + json_of(*plan.predicted);
  return out + "\n}\n";
}

Plan read_plan(const ConfigNode& node) {
  node.allow_only({"format", "version", "model", "cluster", "precision", "global_batch", "micro_batches", "schedule", "order",
                   "bucket_bytes", "delayed_exchange", "exchanged_early", "staleness", "rows_ahead", "servers", "lengths", "ranks",
                   "stages", "predicted"});
  if (node.at("format").as_string() != kFormat) throw node.at("format").error("this is no plan", kFormat);
  if (const std::int64_t version = node.at("version").as_int(); version != kVersion)
    throw node.at("version").error(text("version ", version, " cannot be read"), text("version ", kVersion),
                                   "make the plan again with `tessera plan`");
  Plan plan;
  plan.where = node.where();
  plan.model_fingerprint = node.at("model").as_string();
  plan.cluster_fingerprint = node.at("cluster").as_string();
  plan.precision = read_name<Precision>(node.at("precision"), {Precision::f32, Precision::bf16, Precision::f16, Precision::f8});
  plan.global_batch = node.at("global_batch").as_int_between(1, kMostSamples);
  plan.micro_batches = node.at("micro_batches").as_int_between(1, kMostSamples);
  plan.schedule = read_schedule_name(node.at("schedule"));
  if (const auto order = node.find("order")) plan.order = read_orders(*order);
  plan.bucket_size = Bytes(node.at("bucket_bytes").as_int_between(1, kMostBytes));
  if (const auto delayed = node.find("delayed_exchange")) plan.delayed_exchange = delayed->as_bool();
  if (const auto early = node.find("exchanged_early")) {
    if (!plan.delayed_exchange) throw early->error("an exchange that is not delayed has no early part", "delayed_exchange: true beside it");
    plan.exchanged_early = read_between(*early, 0, 1, "a share");
  }
  if (const auto staleness = node.find("staleness")) {
    plan.staleness = static_cast<int>(staleness->as_int_between(0, 1));
    if (plan.staleness > 0 && !plan.delayed_exchange)
      throw staleness->error("gradients that are used a step late are exchanged late", "delayed_exchange: true beside it");
  }
  if (const auto ahead = node.find("rows_ahead")) plan.rows_ahead = ahead->as_bool();
  if (const auto servers = node.find("servers"))
    for (const ConfigNode& server : servers->items()) plan.servers.push_back(read_server(server));
  if (const auto lengths = node.find("lengths")) plan.lengths = read_lengths(*lengths);
  for (const ConfigNode& place : node.at("ranks").items()) plan.ranks.push_back(read_place(place));
  for (const ConfigNode& stage : node.at("stages").items()) plan.stages.push_back(read_stage(stage));
  if (const auto predicted = node.find("predicted")) plan.predicted = read_prediction(*predicted);
  return plan;
}

Plan load_plan(const std::filesystem::path& path) { return read_plan(ConfigNode::load(path)); }

}  // namespace tessera::plan
