#include "rows.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "sources.hpp"

namespace tessera::truth {
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
  if (has("h100")) return {"h100-sxm", 450e9, 50e9};
  if (has("a100")) return {has("40gb") ? "a100-40" : "a100-80", 300e9, 25e9};
  throw Error(ErrorCode::not_found, "no accelerator is known for '" + gpu + "'");
}

// A degree or size: what is missing or senseless is 1.
int degree(const Cells& cells, const char* column) {
  constexpr double kMost = 1 << 20;
  return static_cast<int>(std::clamp(number(cells, column, 1), 1.0, kMost));
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
  // Four adapters of 100 Gbit/s for eight devices.
  const std::string links = cell(row, "interconnect");
  if (contains(links, "4x Omni-Path") || contains(links, "4x100Gb")) {
    group.network.bandwidth = BytesPerSecond(12.5e9);
    group.adapters = 4;
  }
  return group;
}

cost::Transformer columns_of(const Cells& row) {
  cost::Transformer out;
  const auto whole = [&](const char* key) { return static_cast<std::int64_t>(std::max(0.0, number(row, key, 0))); };
  constexpr std::int64_t kMostLayers = 100000;
  out.layers = static_cast<int>(std::min(kMostLayers, whole("layers")));
  out.hidden = whole("hidden");
  out.heads = whole("heads");
  out.kv_heads = whole("kv_heads");
  out.ffn = whole("ffn");
  out.vocab = whole("vocab");
  out.seq = whole("seq");
  return out;
}

// What a table leaves out and a transformer needs.
void complete(cost::Transformer& shape, int tp) {
  if (shape.heads == 0) shape.heads = std::max<std::int64_t>(1, shape.hidden / 128);
  if (shape.kv_heads == 0) shape.kv_heads = shape.heads;
  if (shape.head_dim == 0) shape.head_dim = shape.hidden / shape.heads;
  if (shape.ffn == 0) shape.ffn = 4 * shape.hidden;
  // Vocabularies are padded so that every rank's part is a multiple of 128.
  const std::int64_t multiple = 128 * tp;
  constexpr std::int64_t kGpt2 = 50304;
  shape.vocab = ((shape.vocab > 0 ? shape.vocab : kGpt2) + multiple - 1) / multiple * multiple;
}

std::vector<int> stages_of(const Row& row) {
  const int layers = row.shape.layers;
  const int pp = row.plan.pp;
  if (!row.plan.stage_layers.empty() || layers % pp == 0 || (layers + 2) % pp != 0) return row.plan.stage_layers;
  // Embedding and head stand for a layer each.
  std::vector<int> out(static_cast<std::size_t>(pp), (layers + 2) / pp);
  --out.front();
  --out.back();
  return out;
}

double measured_of(const Cells& cells, const Row& row) {
  if (const double seconds = number(cells, "iteration_s", 0); seconds > 0) return seconds;
  const double tokens = static_cast<double>(row.plan.global_batch) * static_cast<double>(row.shape.seq);
  const double devices = number(cells, "gpus", 1);
  if (const double rate = number(cells, "tokens_per_s_per_gpu", 0); rate > 0) return tokens / (rate * devices);
  // Hardware FLOPs of full recomputation, of the layers alone (8 x parameters x tokens) or, where the notes say so, by the improved
  // formula (Narayanan et al. 2021, equation 3): the conventions of the tables that have nothing else.
  const double hidden = static_cast<double>(row.shape.hidden);
  const double layers = row.shape.layers;
  double flops = 96 * layers * hidden * hidden * tokens;
  if (contains(cell(cells, "notes"), "improved formula"))
    flops *= 1 + static_cast<double>(row.shape.seq) / (6 * hidden) + static_cast<double>(row.shape.vocab) / (16 * layers * hidden);
  return flops / (number(cells, "tflops_per_gpu", 0) * 1e12 * devices);
}

Row row_of(const std::string& source, const Cells& cells, int line) {
  Row row;
  row.source = source;
  row.number = line;
  row.model = cell(cells, "model");
  row.group = group_of(cells);
  row.shape = columns_of(cells);
  cost::UniformPlan& plan = row.plan;
  plan.tp = degree(cells, "tp");
  plan.pp = degree(cells, "pp");
  plan.dp = degree(cells, "dp");
  plan.cp = degree(cells, "cp");
  plan.ep = degree(cells, "ep");
  plan.chunks = number(cells, "vpp", 0) > 0 ? degree(cells, "vpp") : 0;
  plan.micro_batch = degree(cells, "micro_batch");
  plan.global_batch = degree(cells, "global_batch");
  const std::string precision = lower(cell(cells, "precision"));
  plan.format = contains(precision, "fp4")                                    ? profile::Format::fp4
                : contains(precision, "fp8") || contains(precision, "float8") ? profile::Format::fp8
                                                                              : profile::Format::bf16;
  plan.row_scales = contains(precision, "rowwise");
  const std::string recompute = cell(cells, "recompute");
  plan.again = contains(recompute, "full")        ? cost::Again::layer
               : contains(recompute, "selective") ? cost::Again::attention
                                                  : cost::Again::nothing;
  plan.sequence_parallel = contains(recompute, "SP");
  constexpr double kMostRanks = 1 << 24;
  if (static_cast<double>(plan.tp) * plan.pp * plan.dp * plan.cp > kMostRanks) {
    row.skipped = "its degrees are more than any cluster has devices";
    return row;
  }
  describe(source, cells, row);
  if (!row.skipped.empty()) return row;
  if (row.shape.layers == 0 || row.shape.hidden == 0) {
    row.skipped = "its architecture is not stated";
    return row;
  }
  plan.chunks = std::max(1, plan.chunks);
  if (plan.chunks > 1 && plan.schedule == plan::Schedule::one_f_one_b) plan.schedule = plan::Schedule::interleaved;
  row.experts = row.shape.experts.count > 0;
  complete(row.shape, plan.tp);
  plan.stage_layers = stages_of(row);
  row.measured = measured_of(cells, row);
  if (!(row.measured > 0) || !std::isfinite(row.measured)) row.skipped = "it states no time, throughput or FLOP rate";
  return row;
}

// A row that nothing can be made of is told, not a reason to stop.
Row read_row(const std::string& source, const Cells& cells, int line) {
  Row row;
  try {
    row = row_of(source, cells, line);
    if (row.skipped.empty()) cost::price(row.plan, row.shape, row.group, profile::calibration_for(row.group.device.name, row.stack));
  } catch (const Error& problem) {
    row.source = source;
    row.number = line;
    row.model = cell(cells, "model");
    row.skipped = problem.what();
  }
  return row;
}

}  // namespace

std::string cell(const Cells& row, const std::string& column) {
  const auto found = row.find(column);
  return found == row.end() ? std::string() : found->second;
}

double number(const Cells& row, const std::string& column, double otherwise) {
  const std::string value = cell(row, column);
  char* end = nullptr;
  const double out = std::strtod(value.c_str(), &end);
  constexpr double kSenseless = 1e15;
  return end == value.c_str() || !(std::abs(out) < kSenseless) ? otherwise : out;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

std::vector<Row> read_rows(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".csv") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Row> out;
  for (const std::filesystem::path& path : paths) {
    const std::vector<Cells> table = read_table(path);
    if (table.empty() || !table.front().contains("tokens_per_s_per_gpu")) continue;
    int line = 0;
    for (const Cells& cells : table) out.push_back(read_row(path.stem().string(), cells, ++line));
  }
  return out;
}

std::string label(const Row& row) {
  const cost::UniformPlan& plan = row.plan;
  std::string out = text(row.model, ", ", plan.ranks(), " ", row.group.name);
  const auto add = [&](const char* name, std::int64_t degree, std::int64_t plain) {
    if (degree != plain) out += text(" ", name, degree);
  };
  add("tp", plan.tp, 1);
  add("pp", plan.pp, 1);
  add("v", plan.chunks, 1);
  add("dp", plan.dp, 1);
  add("cp", plan.cp, 1);
  add("ep", plan.ep, 1);
  add("seq", row.shape.seq, 2048);
  return out + text(" mb", plan.micro_batch, " gb", plan.global_batch, " ", profile::name_of(plan.format));
}

}  // namespace tessera::truth
