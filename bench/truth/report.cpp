#include "report.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "sources.hpp"

namespace tessera::truth {
namespace {

// Pairs that were measured alike tell nothing about order.
double kendall(const std::vector<std::pair<double, double>>& points) {
  int pairs = 0;
  int sum = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const double measured = points[i].first - points[j].first;
      const double product = measured * (points[i].second - points[j].second);
      if (measured == 0) continue;
      ++pairs;
      sum += product > 0 ? 1 : product < 0 ? -1 : 0;
    }
  }
  return pairs == 0 ? 1 : static_cast<double>(sum) / pairs;
}

// Of the hardware, whatever the stack.
const std::vector<std::string>& common_parameters() {
  static const std::vector<std::string> names = {"matmul", "matmul_fp8", "attention_share", "memory", "inside", "network"};
  return names;
}

struct PublishedModel {
  const char* name;
  cost::Transformer shape;
  int pp;
  int chunks;
  std::int64_t micro_batch;
};

// Korthikanti et al. 2022, table 3; tensor-parallel over 8, micro-batches as many as fill the pipeline.
const PublishedModel* published_model(const std::string& name) {
  static const PublishedModel models[] = {{"megatron-22B",
                                           {.layers = 48,
                                            .hidden = 6144,
                                            .heads = 64,
                                            .kv_heads = 64,
                                            .head_dim = 96,
                                            .ffn = 24576,
                                            .vocab = 51200,
                                            .seq = 2048,
                                            .gated = false,
                                            .rotary = false},
                                           1,
                                           1,
                                           4},
                                          {"gpt3-175B",
                                           {.layers = 96,
                                            .hidden = 12288,
                                            .heads = 96,
                                            .kv_heads = 96,
                                            .head_dim = 128,
                                            .ffn = 49152,
                                            .vocab = 51200,
                                            .seq = 2048,
                                            .gated = false,
                                            .rotary = false},
                                           8,
                                           3,
                                           1},
                                          {"turing-530B",
                                           {.layers = 105,
                                            .hidden = 20480,
                                            .heads = 128,
                                            .kv_heads = 128,
                                            .head_dim = 160,
                                            .ffn = 81920,
                                            .vocab = 51200,
                                            .seq = 2048,
                                            .gated = false,
                                            .rotary = false},
                                           35,
                                           3,
                                           1},
                                          {"megatron-1T",
                                           {.layers = 128,
                                            .hidden = 25600,
                                            .heads = 160,
                                            .kv_heads = 160,
                                            .head_dim = 160,
                                            .ffn = 102400,
                                            .vocab = 51200,
                                            .seq = 2048,
                                            .gated = false,
                                            .rotary = false},
                                           64,
                                           1,
                                           1}};
  for (const PublishedModel& model : models)
    if (name == model.name) return &model;
  return nullptr;
}

cost::UniformMemory memory_in_mode(const PublishedModel& model, const std::string& mode) {
  cost::UniformPlan plan;
  plan.tp = 8;
  plan.pp = model.pp;
  plan.chunks = model.chunks;
  plan.schedule = model.chunks > 1 ? plan::Schedule::interleaved : plan::Schedule::one_f_one_b;
  plan.micro_batch = model.micro_batch;
  plan.global_batch = model.micro_batch * 8 * model.pp;
  plan.sequence_parallel = mode == "seq" || mode == "seqsel";
  plan.again = mode == "full" ? cost::Again::layer : mode == "sel" || mode == "seqsel" ? cost::Again::attention : cost::Again::nothing;
  return memory_of(plan, model.shape, profile::calibration_for("a100-80", "megatron-2022"), 0);
}

}  // namespace

Score score_of(const std::vector<Priced>& rows) {
  Score out;
  std::vector<std::pair<double, double>> steps;
  std::vector<std::pair<double, double>> tokens_each;
  for (const Priced& priced : rows) {
    const double error = 100 * std::abs(priced.seconds / priced.row->measured - 1);
    out.mape += error;
    out.worst = std::max(out.worst, error);
    const cost::UniformPlan& plan = priced.row->plan;
    const double tokens = static_cast<double>(plan.global_batch) * static_cast<double>(priced.row->shape.seq);
    steps.emplace_back(priced.row->measured, priced.seconds);
    tokens_each.emplace_back(priced.row->measured * plan.ranks() / tokens, priced.seconds * plan.ranks() / tokens);
  }
  out.rows = static_cast<int>(rows.size());
  if (out.rows > 0) out.mape /= out.rows;
  out.tau = kendall(steps);
  out.tau_token = kendall(tokens_each);
  return out;
}

std::vector<Priced> price_all(const std::vector<Row>& rows, const std::vector<Task>& tasks, bool fresh) {
  std::vector<Priced> out;
  std::vector<profile::Calibration> fits;
  if (fresh) std::transform(tasks.begin(), tasks.end(), std::back_inserter(fits), fitted);
  const auto calibration_of = [&](const Row& row) {
    for (const profile::Calibration& one : fits)
      if (one.stack == row.stack && one.accelerator == profile::family_of(row.group.device.name)) return one;
    return profile::calibration_for(row.group.device.name, row.stack);
  };
  for (const Row& row : rows) {
    if (!row.skipped.empty()) continue;
    const bool used = std::any_of(tasks.begin(), tasks.end(),
                                  [&](const Task& task) { return std::find(task.rows.begin(), task.rows.end(), &row) != task.rows.end(); });
    out.push_back({&row, predicted(row, calibration_of(row)), used});
  }
  return out;
}

std::vector<Priced> price_left_out(const std::string& source, const std::vector<Row>& rows, const std::vector<Task>& tasks) {
  std::vector<Priced> out;
  std::vector<std::string> families;
  for (const Row& row : rows) {
    const std::string family = profile::family_of(row.group.device.name);
    if (row.source == source && row.skipped.empty() && std::find(families.begin(), families.end(), family) == families.end())
      families.push_back(family);
  }
  for (const std::string& family : families) {
    std::vector<const Row*> others;
    for (const Task& task : tasks)
      if (task.start.accelerator == family)
        for (const Row* row : task.rows)
          if (row->source != source) others.push_back(row);
    if (others.empty()) continue;
    const auto start_of = [&](const Row& row) {
      for (const Task& task : tasks)
        if (task.start.accelerator == family && task.start.stack == row.stack) return task.start;
      return profile::Calibration{};
    };
    const std::vector<std::string>& names = common_parameters();
    const std::vector<double> factors = fit(others, names.size(), [&](const Row& row, const std::vector<double>& values) {
      return predicted(row, scaled(start_of(row), names, values));
    });
    for (const Row& row : rows)
      if (row.source == source && row.skipped.empty() && profile::family_of(row.group.device.name) == family)
        out.push_back({&row, predicted(row, scaled(start_of(row), names, factors)), false});
  }
  return out;
}

std::vector<Value> price_memory(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "megatron_sp_memory.csv";
  std::vector<Value> out;
  if (!std::filesystem::exists(path)) return out;
  constexpr double kGibibyte = 1024.0 * 1024 * 1024;
  for (const Cells& cells : read_table(path)) {
    const PublishedModel* model = published_model(cell(cells, "model"));
    if (model == nullptr) continue;
    const std::string metric = cell(cells, "metric");
    const cost::UniformMemory memory = memory_in_mode(*model, cell(cells, "mode"));
    Value value;
    value.name = text(model->name, " ", cell(cells, "mode"), " ", metric);
    value.published = number(cells, "value", 0);
    value.state = contains(metric, "optimizer");
    if (value.state) {
      value.priced = (memory.weights + memory.gradients + memory.optimizer) / kGibibyte;
    } else if (contains(metric, "relative")) {
      value.priced = 100 * memory.activations / memory_in_mode(*model, "none").activations;
    } else {
      value.priced = memory.activations / kGibibyte;
    }
    out.push_back(value);
  }
  return out;
}

std::vector<Value> price_layers(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "megatron_sp_tab4_layer_times_22B.csv";
  std::vector<Value> out;
  if (!std::filesystem::exists(path)) return out;
  cluster::ResourceGroup group;
  group.name = "node";
  group.device = cluster::known_device("a100-80");
  group.devices_per_node = 8;
  group.inside = {"nvlink", BytesPerSecond(300e9), Seconds(0), false};
  cost::Transformer shape = published_model("megatron-22B")->shape;
  for (const Cells& cells : read_table(path)) {
    const std::string experiment = cell(cells, "experiment");
    cost::UniformPlan plan;
    plan.tp = 8;
    plan.micro_batch = plan.global_batch = 4;
    plan.sequence_parallel = contains(experiment, "sequence");
    plan.again = contains(experiment, "full")        ? cost::Again::layer
                 : contains(experiment, "selective") ? cost::Again::attention
                                                     : cost::Again::nothing;
    // A layer is what two layers take beyond one.
    const auto passes = [&](int layers) {
      shape.layers = layers;
      const cost::UniformPrice priced = price(plan, shape, group, profile::calibration_for("a100-80", "megatron-2022"));
      return std::pair(priced.forward.total(), priced.backward.total() + priced.again.total());
    };
    const auto one = passes(1);
    const auto two = passes(2);
    out.push_back({experiment + ", forward", number(cells, "forward_ms", 0), 1e3 * (two.first - one.first)});
    out.push_back({experiment + ", backward", number(cells, "backward_ms", 0), 1e3 * (two.second - one.second)});
  }
  return out;
}

}  // namespace tessera::truth
