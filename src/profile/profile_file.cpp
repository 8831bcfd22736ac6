#include <nlohmann/json.hpp>

#include "profile/profile.hpp"
#include "profile/quoted.hpp"

namespace tessera::profile {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "tessera-profile";
constexpr std::int64_t kVersion = 1;

Json json_of(const BlockSample& s) {
  Json out = {{"kind", s.kind},
              {"micro_batch", s.micro_batch_size},
              {"tensor_parallel", s.tensor_parallel},
              {"threads", s.threads},
              {"neighbours", s.neighbours},
              {"precision", model::name_of(s.precision)},
              {"forward", {s.forward.value, s.forward_low.value, s.forward_high.value}},
              {"backward", {s.backward.value, s.backward_low.value, s.backward_high.value}},
              {"weight_share", s.weight_share}};
  if (s.positions > 0) out["positions"] = s.positions;
  return out;
}

Json json_of(const CommSample& s) {
  Json out = {
      {"operation", s.operation}, {"link", s.link}, {"ranks", s.ranks}, {"latency", s.latency.value}, {"bandwidth", s.bandwidth.value}};
  const auto add = [&](const char* key, const std::vector<CommPoint>& points) {
    for (const CommPoint& point : points)
      out[key].push_back({point.size.value, point.seconds.median, point.seconds.low, point.seconds.high});
  };
  add("points", s.points);
  add("in_turn", s.in_turn);
  if (s.slows.median > 0) out["slows"] = {s.slows.median, s.slows.low, s.slows.high};
  if (s.slowed.median > 0) out["slowed"] = {s.slowed.median, s.slowed.low, s.slowed.high};
  return out;
}

Json json_of(const OptimizerSample& s) {
  return {{"kind", s.kind},
          {"threads", s.threads},
          {"neighbours", s.neighbours},
          {"precision", model::name_of(s.precision)},
          {"seconds_per_parameter", {s.seconds_per_parameter.median, s.seconds_per_parameter.low, s.seconds_per_parameter.high}}};
}

Json json_of(const RowsSample& s) {
  return {{"operation", s.operation},
          {"client", {s.client.median, s.client.low, s.client.high}},
          {"server", {s.server.median, s.server.low, s.server.high}},
          {"bytes", s.bytes}};
}

// One sample a line.
template <typename Sample>
std::string lines(const std::vector<Sample>& samples) {
  std::string out = "[";
  for (std::size_t i = 0; i < samples.size(); ++i) out += text(i == 0 ? "\n    " : ",\n    ", json_of(samples[i]).dump());
  return out + (samples.empty() ? "]" : "\n  ]");
}

double time_of(const ConfigNode& node) {
  const double value = node.as_double();
  if (value < 0) throw node.error("found " + node.as_string(), "seconds, at least 0");
  return value;
}

double positive(const ConfigNode& node) {
  const double value = node.as_double();
  if (value <= 0) throw node.error("found " + node.as_string(), "a number above 0");
  return value;
}

int count(const ConfigNode& node) {
  const std::int64_t value = node.as_int_at_least(1);
  if (value > 1 << 20) throw node.error(text("found ", value), text("at most ", 1 << 20));
  return static_cast<int>(value);
}

model::Precision precision_of(const ConfigNode& node) {
  return node.as_choice({"fp32", "bf16"}) == "fp32" ? model::Precision::f32 : model::Precision::bf16;
}

void read_times(const ConfigNode& node, Seconds& median, Seconds& low, Seconds& high) {
  if (node.size() != 3) throw node.error(text("has ", node.size(), " entries"), "[median, low, high] in seconds");
  median = Seconds(positive(node[0]));
  low = Seconds(time_of(node[1]));
  high = Seconds(time_of(node[2]));
}

BlockSample read_block(const ConfigNode& node) {
  node.allow_only(
      {"kind", "micro_batch", "tensor_parallel", "threads", "neighbours", "precision", "forward", "backward", "weight_share", "positions"});
  BlockSample s;
  s.kind = node.at("kind").as_string();
  s.micro_batch_size = node.at("micro_batch").as_int_at_least(1);
  if (const auto positions = node.find("positions")) s.positions = positions->as_int_at_least(1);
  s.tensor_parallel = count(node.at("tensor_parallel"));
  s.threads = count(node.at("threads"));
  s.neighbours = count(node.at("neighbours"));
  s.precision = precision_of(node.at("precision"));
  read_times(node.at("forward"), s.forward, s.forward_low, s.forward_high);
  read_times(node.at("backward"), s.backward, s.backward_low, s.backward_high);
  if (const auto share = node.find("weight_share")) {
    s.weight_share = share->as_double();
    if (!(s.weight_share >= 0 && s.weight_share <= 1)) throw share->error("found " + share->as_string(), "0 to 1");
  }
  return s;
}

MeasuredValue read_measured(const ConfigNode& node) {
  if (node.size() != 3) throw node.error(text("has ", node.size(), " entries"), "[median, low, high]");
  return {positive(node[0]), time_of(node[1]), time_of(node[2])};
}

CommSample read_comm(const ConfigNode& node) {
  node.allow_only({"operation", "link", "ranks", "latency", "bandwidth", "points", "in_turn", "slows", "slowed"});
  CommSample s;
  s.operation = node.at("operation").as_choice({"all_reduce", "reduce_scatter", "all_gather", "send"});
  s.link = node.at("link").as_string();
  s.ranks = count(node.at("ranks"));
  if (s.ranks < 2) throw node.at("ranks").error("a collective needs two ranks");
  s.latency = Seconds(time_of(node.at("latency")));
  s.bandwidth = BytesPerSecond(positive(node.at("bandwidth")));
  const auto read_points = [&](const char* key, std::vector<CommPoint>& points) {
    const auto found = node.find(key);
    if (!found) return;
    for (const ConfigNode& point : found->items()) {
      if (point.size() != 4) throw point.error(text("has ", point.size(), " entries"), "[bytes, median, low, high]");
      points.push_back({Bytes(point[0].as_int_at_least(1)), {positive(point[1]), time_of(point[2]), time_of(point[3])}});
      if (points.size() > 1 && points.back().size <= points[points.size() - 2].size) throw point.error("the sizes do not grow");
    }
  };
  read_points("points", s.points);
  read_points("in_turn", s.in_turn);
  const auto read_factor = [&](const char* key, MeasuredValue& factor) {
    if (const auto found = node.find(key)) factor = read_measured(*found);
  };
  read_factor("slows", s.slows);
  read_factor("slowed", s.slowed);
  return s;
}

OptimizerSample read_optimizer(const ConfigNode& node) {
  node.allow_only({"kind", "threads", "neighbours", "precision", "seconds_per_parameter"});
  const ConfigNode each = node.at("seconds_per_parameter");  // profiles of earlier have the median alone
  return {node.at("kind").as_choice({"adamw", "sgd"}), count(node.at("threads")), count(node.at("neighbours")),
          precision_of(node.at("precision")),
          each.is_scalar() ? MeasuredValue{positive(each), positive(each), positive(each)} : read_measured(each)};
}

RowsSample read_rows(const ConfigNode& node) {
  node.allow_only({"operation", "client", "server", "bytes"});
  return {node.at("operation").as_choice({"pull", "push"}), read_measured(node.at("client")), read_measured(node.at("server")),
          positive(node.at("bytes"))};
}

}  // namespace

std::string to_json(const Profile& profile) {
  return text("{\n  \"format\": \"", kFormat, "\",\n  \"version\": ", kVersion, ",\n  \"model\": ", quoted(profile.model_fingerprint),
              ",\n  \"host\": ", quoted(profile.host), ",\n  \"process_baseline\": ", profile.process_baseline.value,
              ",\n  \"overlap_slowdown\": ", Json(profile.overlap_slowdown).dump(), ",\n  \"blocks\": ", lines(profile.blocks),
              ",\n  \"communication\": ", lines(profile.communication), ",\n  \"optimizers\": ", lines(profile.optimizers),
              profile.rows.empty() ? "" : ",\n  \"rows\": " + lines(profile.rows),
              profile.speeds.empty() ? "" : ",\n  \"speeds\": " + Json(profile.speeds).dump(), "\n}\n");
}

Profile read_profile(const ConfigNode& node) {
  node.allow_only({"format", "version", "model", "host", "process_baseline", "overlap_slowdown", "blocks", "communication", "optimizers",
                   "rows", "speeds"});
  if (node.at("format").as_string() != kFormat) throw node.at("format").error("this is no profile", kFormat);
  if (node.at("version").as_int() != kVersion)
    throw node.at("version").error(text("version ", node.at("version").as_int(), " cannot be read"), text("version ", kVersion),
                                   "measure again with `tessera profile`");
  Profile profile;
  profile.model_fingerprint = node.at("model").as_string();
  profile.host = node.at("host").as_string();
  profile.process_baseline = Bytes(node.at("process_baseline").as_int_at_least(0));
  profile.overlap_slowdown = node.at("overlap_slowdown").as_double();
  if (profile.overlap_slowdown < 1)
    throw node.at("overlap_slowdown").error("found " + node.at("overlap_slowdown").as_string(), "a factor of at least 1");
  for (const ConfigNode& item : node.at("blocks").items()) profile.blocks.push_back(read_block(item));
  for (const ConfigNode& item : node.at("communication").items()) profile.communication.push_back(read_comm(item));
  for (const ConfigNode& item : node.at("optimizers").items()) profile.optimizers.push_back(read_optimizer(item));
  if (const auto rows = node.find("rows"))
    for (const ConfigNode& item : rows->items()) profile.rows.push_back(read_rows(item));
  if (const auto speeds = node.find("speeds"))
    for (const ConfigNode& speed : speeds->items()) profile.speeds.push_back(positive(speed));
  return profile;
}

Profile load_profile(const std::filesystem::path& path) { return read_profile(ConfigNode::load(path)); }

}  // namespace tessera::profile
