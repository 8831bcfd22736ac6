#include <algorithm>
#include <cmath>
#include <optional>
#include <regex>

#include "base/error.hpp"
#include "calibrate/row.hpp"

namespace tessera::calibrate {
namespace {

// The line rates of a node's links, one direction. Protocol losses are the calibration's.
struct Host {
  const char* device;
  double inside;   // bytes per second of a device
  double adapter;  // of one network adapter, one for each device
};

Host host_of(const std::string& gpu) {
  const auto has = [&](const char* part) { return contains(gpu, part); };
  if (has("gb300")) return {"gb300", 900e9, 100e9};
  if (has("gb200")) return {"gb200", 900e9, 50e9};
  if (has("b300")) return {"b300", 900e9, 100e9};
  if (has("b200")) return {"b200", 900e9, 50e9};
  if (has("hbm2e")) return {"h100-hbm2e", 450e9, 50e9};
  if (has("h200")) return {"h200", 450e9, 50e9};
  if (has("h800")) return {"h800", 200e9, 50e9};
  if (has("h100")) return {"h100-sxm", 450e9, 50e9};
  if (has("a100")) return {has("40gb") ? "a100-40" : "a100-80", 300e9, 25e9};
  if (has("v100")) return {has("16gb") ? "v100-16" : "v100-32", 150e9, 12.5e9};
  if (has("910b")) return {"ascend910b", 196e9, 25e9};
  throw Error(ErrorCode::not_found, "no accelerator is known for '" + gpu + "'");
}

// A degree or size: what is missing or senseless is 1.
int degree(const Cells& cells, const char* column) {
  constexpr double kMost = 1 << 20;
  return static_cast<int>(std::clamp(number(cells, column, 1), 1.0, kMost));
}

// "8x400Gb" and "4x Omni-Path 100Gb" are adapters of a node; "400Gb" is the rate of each device's own. Gigabytes are those of links inside.
struct Adapters {
  int count = 0;  // 0: one for each device
  double gigabits = 0;
};
std::optional<Adapters> adapters_of(const std::string& links) {
  static const std::regex pattern(R"((?:(\d{1,3})x ?(?:[A-Za-z-]{1,20} )?)?(\d{1,5}) ?Gb)");
  std::smatch found;
  if (!std::regex_search(links, found, pattern)) return std::nullopt;
  Adapters out;
  if (found[1].matched) out.count = std::stoi(found[1]);
  out.gigabits = std::stod(found[2]);
  if (out.gigabits == 0) return std::nullopt;
  return out;
}

cluster::ResourceGroup group_of(const Cells& row) {
  const Host host = host_of(lower(cell(row, "gpu")));
  const int devices = degree(row, "gpus");
  const int domain = degree(row, "gpus_per_node");
  cluster::ResourceGroup group;
  group.name = host.device;
  group.device = cluster::known_device(host.device);
  // An NVLink domain larger than a node: trays of four.
  group.devices_per_node = std::min(devices, domain > 8 ? 4 : domain);
  group.nodes = (devices + group.devices_per_node - 1) / group.devices_per_node;
  group.nodes_per_domain = domain > 8 ? domain / 4 : 1;
  group.inside = {"inside", BytesPerSecond(host.inside), Seconds(0), false};
  group.network = {"network", BytesPerSecond(host.adapter), Seconds(0), false};
  group.adapters = group.devices_per_node;
  if (const auto adapters = adapters_of(cell(row, "interconnect"))) {
    group.network.bandwidth = BytesPerSecond(adapters->gigabits * 1e9 / 8);
    if (adapters->count > 0) group.adapters = std::min(adapters->count, group.devices_per_node);
  }
  return group;
}

Shape shape_of(const Cells& row) {
  Shape out;
  const auto whole = [&](const char* key) { return static_cast<std::int64_t>(std::max(0.0, number(row, key, 0))); };
  constexpr std::int64_t kMostLayers = 100000;
  out.layers = static_cast<int>(std::min(kMostLayers, whole("layers")));
  out.hidden = whole("hidden");
  out.heads = whole("heads");
  out.kv_heads = whole("kv_heads");
  out.head_dim = whole("head_dim");
  out.ffn = whole("ffn");
  out.vocab = whole("vocab");
  out.seq = whole("seq");
  out.experts = whole("experts");
  out.chosen = static_cast<int>(std::min(out.experts, whole("experts_per_token")));
  out.expert_ffn = whole("expert_ffn");
  out.shared_ffn = whole("shared_ffn");
  out.dense_layers = static_cast<int>(std::min(kMostLayers, whole("dense_layers")));
  if (lower(cell(row, "arch")) == "gpt") {
    out.gated = out.rotary = false;
    out.tied = true;
  }
  out.dropout = number(row, "dropout", 0) > 0;
  return out;
}

// Under a pure ZeRO or FSDP name; 0 where the schedule's text has none.
int zero_of(const std::string& schedule) {
  if (contains(schedule, "GRAD_OP")) return 2;
  if (contains(schedule, "FSDP")) return 3;
  for (const int stage : {3, 2, 1})
    if (contains(schedule, text("ZeRO-", stage).c_str())) return stage;
  return 0;
}

Stated stated_in(const Cells& cells) {
  const auto has_number = [&](const char* column) { return number(cells, column, -1) >= 0; };
  // Tables write what they do not say as nothing or in such words.
  const auto says = [&](const char* column) {
    const std::string words = lower(cell(cells, column));
    return !words.empty() && !contains(words, "not stated") && !contains(words, "not a column");
  };
  const std::string schedule = cell(cells, "schedule");
  const std::string links = cell(cells, "interconnect");
  Stated out;
  out.micro_batch = has_number("micro_batch");
  out.recompute = says("recompute");
  out.sequence_parallel = out.recompute;
  for (const char* word : {"ZeRO", "FSDP", "GRAD_OP", "DDP"}) out.zero = out.zero || contains(schedule, word);
  out.gradient_bytes = has_number("gradient_bits");
  // The data sheet of a DGX says its adapters.
  out.network = adapters_of(links).has_value() || contains(links, "DGX");
  out.chunks = has_number("vpp");
  out.experts = has_number("ep");
  // Precisions of as many bits are priced alike.
  out.precision = says("precision") || contains(cell(cells, "precision"), "16");
  return out;
}

Row row_of(const std::string& source, const Cells& cells, int line) {
  Row row;
  row.source = source;
  row.number = line;
  row.name = cell(cells, "model");
  row.group = group_of(cells);
  row.shape = shape_of(cells);
  Degrees& degrees = row.degrees;
  plan::Strategy& strategy = degrees.strategy;
  strategy.tp = degree(cells, "tp");
  strategy.dp = degree(cells, "dp");
  strategy.cp = degree(cells, "cp");
  strategy.ep = degree(cells, "ep");
  strategy.zero = zero_of(cell(cells, "schedule"));
  degrees.pp = degree(cells, "pp");
  degrees.chunks = number(cells, "vpp", 0) > 0 ? degree(cells, "vpp") : 0;
  degrees.micro_batch_size = degree(cells, "micro_batch");
  degrees.global_batch = degree(cells, "global_batch");
  const std::string precision = lower(cell(cells, "precision"));
  if (contains(precision, "fp8") || contains(precision, "float8")) row.precision = model::Precision::f8;
  if (contains(precision, "fp4")) {
    row.precision = model::Precision::f8;
    row.stack.format = profile::Format::fp4;
  }
  row.stack.compiled = !contains(lower(cell(cells, "schedule")), "eager");
  row.stack.row_scales = contains(precision, "rowwise");
  const std::string recompute = cell(cells, "recompute");
  strategy.recompute = contains(recompute, "full")        ? model::Recompute::full
                       : contains(recompute, "selective") ? model::Recompute::selective
                                                          : model::Recompute::none;
  strategy.sequence_parallel = contains(recompute, "SP") && strategy.tp > 1;
  row.stated = stated_in(cells);
  if (row.stated.gradient_bytes) row.stack.gradient_bytes = std::clamp(number(cells, "gradient_bits", 16), 8.0, 32.0) / 8;
  constexpr double kMostRanks = 1 << 24;
  if (static_cast<double>(strategy.tp) * degrees.pp * strategy.dp * strategy.cp > kMostRanks)
    row.skipped = "its degrees are more than any cluster has devices";
  return row;
}

}  // namespace

Row read_row(const std::string& source, const Cells& cells, int line) {
  try {
    return row_of(source, cells, line);
  } catch (const Error& problem) {
    Row row;
    row.source = source;
    row.number = line;
    row.name = cell(cells, "model");
    row.skipped = problem.what();
    return row;
  }
}

std::string label(const Row& row) {
  const Degrees& degrees = row.degrees;
  const plan::Strategy& s = degrees.strategy;
  std::string out = text(row.name, ", ", degrees.ranks(), " ", row.group.name);
  const auto add = [&](const char* name, std::int64_t degree, std::int64_t plain) {
    if (degree != plain) out += text(" ", name, degree);
  };
  add("tp", s.tp, 1);
  add("pp", degrees.pp, 1);
  add("v", degrees.chunks, 1);
  add("dp", s.dp, 1);
  add("cp", s.cp, 1);
  add("ep", s.ep, 1);
  add("zero", s.zero, 0);
  add("over ", s.shards, 0);
  add("seq", row.shape.seq, 2048);
  const profile::Format plain = row.precision == model::Precision::f8 ? profile::Format::fp8 : profile::Format::bf16;
  return out + text(" mb", degrees.micro_batch_size, " gb", degrees.global_batch, " ", profile::name_of(row.stack.format.value_or(plain)));
}

}  // namespace tessera::calibrate
