#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.hpp"
#include "calibrate/calibrate.hpp"
#include "calibrate/fit.hpp"
#include "plan/schedule/schedule.hpp"

namespace tessera::truth {

using calibrate::cell;
using calibrate::contains;
using calibrate::fit;
using calibrate::number;
using calibrate::predicted;
using calibrate::read_table;
using calibrate::scaled;

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
  int layers;
  std::int64_t hidden, heads;
  int pp;
  int chunks;
  std::int64_t micro_batch_size;
};
// Korthikanti et al. 2022, table 3; tensor-parallel over 8, micro-batches as many as fill the pipeline.
constexpr PublishedModel kPublished[] = {{"megatron-22B", 48, 6144, 64, 1, 1, 4},
                                         {"gpt3-175B", 96, 12288, 96, 8, 3, 1},
                                         {"turing-530B", 105, 20480, 128, 35, 3, 1},
                                         {"megatron-1T", 128, 25600, 160, 64, 1, 1}};

// Such a model on as many A100 as its plan needs, cut as the table says.
Row published(const PublishedModel& model, bool sequence_parallel, model::Recompute recompute) {
  Row row;
  row.shape = {.layers = model.layers,
               .hidden = model.hidden,
               .heads = model.heads,
               .vocab = 51200,
               .seq = 2048,
               .gated = false,
               .rotary = false,
               .dropout = true};
  row.degrees.pp = model.pp;
  row.degrees.chunks = model.chunks;
  row.degrees.micro_batch_size = model.micro_batch_size;
  row.degrees.global_batch = model.micro_batch_size * 8 * model.pp;
  row.degrees.strategy.tp = 8;
  row.degrees.strategy.sequence_parallel = sequence_parallel;
  row.degrees.strategy.recompute = recompute;
  row.group = calibrate::read_row("", {{"gpu", "A100"}, {"gpus", std::to_string(8 * model.pp)}, {"gpus_per_node", "8"}}, 1).group;
  row.group.stack = "megatron-2022";
  calibrate::complete(row, {{"iteration_s", "1"}});
  if (!row.skipped.empty()) throw Error(ErrorCode::internal, row.skipped);
  return row;
}

// Bytes of the layers of the first pipeline rank.
struct LayerBytes {
  double state = 0;
  double activations = 0;
};
LayerBytes memory_in_mode(const PublishedModel& model, const std::string& mode) {
  const Row row = published(model, mode == "seq" || mode == "seqsel",
                            mode == "full"                      ? model::Recompute::full
                            : mode == "sel" || mode == "seqsel" ? model::Recompute::selective
                                                                : model::Recompute::none);
  cost::CostModel cost_model(row.model, row.cluster, row.precision);
  const int devices = cost_model.devices_of(row.plan, row.plan.stages.front());
  const cost::BlockLoad& layer = cost_model.block(1, devices, row.degrees.strategy, row.plan.samples());
  const plan::Pipeline pipeline = pipeline_of(row.plan);
  std::vector<plan::ChunkBytes> chunks;
  LayerBytes out;
  for (int chunk = 0; chunk < pipeline.chunks; ++chunk) {
    double layers = 0;
    for (const plan::StrategyRun& run : row.plan.stages[static_cast<std::size_t>(chunk * pipeline.size)].runs)
      for (int block = run.first; block < run.last; ++block) layers += cost_model.repeat_of()[static_cast<std::size_t>(block)] == 1;
    out.state += layers * layer.state_bytes();
    const auto saved = static_cast<std::int64_t>(layers * layer.saved);
    chunks.push_back({saved, saved});
  }
  out.activations = static_cast<double>(most_bytes(order_of(row.plan, 0), chunks));
  return out;
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
    const calibrate::Degrees& degrees = priced.row->degrees;
    const double tokens = static_cast<double>(degrees.global_batch) * static_cast<double>(priced.row->shape.seq);
    steps.emplace_back(priced.row->measured, priced.seconds);
    tokens_each.emplace_back(priced.row->measured * degrees.ranks() / tokens, priced.seconds * degrees.ranks() / tokens);
  }
  out.rows = static_cast<int>(rows.size());
  if (out.rows > 0) out.mape /= out.rows;
  out.tau = kendall(steps);
  out.tau_token = kendall(tokens_each);
  return out;
}

std::vector<std::pair<std::string, std::vector<Priced>>> by_guess(const std::vector<Priced>& rows) {
  std::vector<std::pair<std::string, std::vector<Priced>>> out;
  for (const Priced& priced : rows)
    for (const std::string& guess : priced.row->guesses) {
      auto found = std::find_if(out.begin(), out.end(), [&](const auto& one) { return one.first == guess; });
      if (found == out.end()) found = out.insert(out.end(), {guess, {}});
      found->second.push_back(priced);
    }
  return out;
}

std::vector<Priced> price_all(const std::vector<Row>& rows, const std::vector<Task>& tasks, bool fresh) {
  std::vector<Priced> out;
  std::vector<profile::Calibration> fits;
  if (fresh) std::transform(tasks.begin(), tasks.end(), std::back_inserter(fits), fitted);
  const auto calibration_of = [&](const Row& row) {
    for (const profile::Calibration& one : fits)
      if (one.stack == row.group.stack && one.accelerator == profile::family_of(row.group.device.name)) return one;
    return profile::calibration_for(row.group.device.name, row.group.stack);
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
        if (task.start.accelerator == family && task.start.stack == row.group.stack) return task.start;
      return profile::Calibration{};
    };
    const std::vector<std::string>& names = common_parameters();
    const std::vector<double> factors = fit(others, names, [&](const Row& row, const std::vector<double>& values) {
      return predicted(row, scaled(start_of(row), names, values));
    });
    for (const Row& row : rows)
      if (row.source == source && row.skipped.empty() && profile::family_of(row.group.device.name) == family)
        out.push_back({&row, predicted(row, scaled(start_of(row), names, factors)), false});
  }
  return out;
}

std::vector<Priced> price_calibrated(const std::string& source, const std::vector<Row>& rows) {
  std::map<std::string, std::vector<const Row*>> parts;  // by family and stack
  for (const Row& row : rows)
    if (row.source == source && row.skipped.empty()) parts[profile::family_of(row.group.device.name) + row.group.stack].push_back(&row);
  std::vector<Priced> out;
  for (const auto& [name, part] : parts) {
    if (part.size() < 4) continue;
    std::vector<const Row*> by_size = part;
    const auto smaller = [](const Row* a, const Row* b) { return a->degrees.ranks() < b->degrees.ranks(); };
    std::stable_sort(by_size.begin(), by_size.end(), smaller);
    const std::vector<const Row*> three = {by_size.front(), by_size[by_size.size() / 2],
                                           *std::max_element(by_size.begin(), by_size.end(), smaller)};
    const profile::AttentionKernel attention =
        profile::calibration_for(part.front()->group.device.name, part.front()->group.stack).attention;
    const profile::Calibration calibration = calibrate::calibrated("own", attention, three);
    for (const Row* row : part)
      if (std::find(three.begin(), three.end(), row) == three.end()) out.push_back({row, predicted(*row, calibration), false});
  }
  return out;
}

double lost_at_scale() {
  const auto tokens = [](int devices) {
    const calibrate::Cells cells = {{"model", "Llama-2 7B"},
                                    {"layers", "32"},
                                    {"hidden", "4096"},
                                    {"heads", "32"},
                                    {"ffn", "11008"},
                                    {"seq", "4096"},
                                    {"vocab", "32000"},
                                    {"gpu", "H100-80GB SXM"},
                                    {"gpus", std::to_string(devices)},
                                    {"gpus_per_node", "8"},
                                    {"micro_batch", "2"},
                                    {"dp", std::to_string(devices)},
                                    {"global_batch", std::to_string(2 * devices)},
                                    {"schedule", "FSDP FULL_SHARD"},
                                    {"precision", "bf16"},
                                    {"iteration_s", "1"}};
    Row row = calibrate::read_row("scale", cells, 1);
    calibrate::complete(row, cells);
    return 1 / predicted(row, profile::calibration_for(row.group.device.name));
  };
  return 100 * (1 - tokens(2048) / tokens(128));
}

std::vector<Value> price_memory(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "megatron_sp_memory.csv";
  std::vector<Value> out;
  if (!std::filesystem::exists(path)) return out;
  constexpr double kGibibyte = 1024.0 * 1024 * 1024;
  for (const Cells& cells : read_table(path)) {
    const auto model = std::find_if(std::begin(kPublished), std::end(kPublished),
                                    [&](const PublishedModel& one) { return cell(cells, "model") == one.name; });
    if (model == std::end(kPublished)) continue;
    const std::string metric = cell(cells, "metric");
    const LayerBytes memory = memory_in_mode(*model, cell(cells, "mode"));
    Value value;
    value.name = text(model->name, " ", cell(cells, "mode"), " ", metric);
    value.published = number(cells, "value", 0);
    value.state = contains(metric, "optimizer");
    if (value.state) {
      value.priced = memory.state / kGibibyte;
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
  for (const Cells& cells : calibrate::read_table(path)) {
    const std::string experiment = cell(cells, "experiment");
    const Row row = published(kPublished[0], contains(experiment, "sequence"),
                              contains(experiment, "full")        ? model::Recompute::full
                              : contains(experiment, "selective") ? model::Recompute::selective
                                                                  : model::Recompute::none);
    cost::CostModel cost_model(row.model, row.cluster, row.precision);
    const cost::BlockLoad& layer = cost_model.block(1, 0, row.degrees.strategy, row.plan.samples());
    out.push_back({experiment + ", forward", number(cells, "forward_ms", 0), 1e3 * layer.forward});
    out.push_back({experiment + ", backward", number(cells, "backward_ms", 0), 1e3 * layer.backward()});
  }
  return out;
}

}  // namespace tessera::truth
