// What a row says, as a model, a cluster and a plan.
#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "calibrate/row.hpp"
#include "plan/schedule/schedule.hpp"

namespace tessera::calibrate {
namespace {

// What a table leaves out and a decoder needs.
void fill(Row& row) {
  Shape& shape = row.shape;
  const auto guess = [&](std::int64_t& value, std::int64_t otherwise, const char* what) {
    if (value > 0) return;
    value = otherwise;
    row.guesses.emplace_back(what);
  };
  guess(shape.heads, std::max<std::int64_t>(1, shape.hidden / 128), "heads of 128");
  // Before Llama nobody shared keys and values among heads.
  if (shape.rotary && shape.key_value_rank == 0)
    guess(shape.kv_heads, shape.heads, "as many heads of keys and values as of queries");
  else if (shape.kv_heads == 0)
    shape.kv_heads = shape.heads;
  if (shape.head_dim == 0) shape.head_dim = shape.hidden / shape.heads;
  const bool all_have_experts = shape.experts > 0 && shape.dense_layers == 0;
  if (all_have_experts && shape.ffn == 0)
    shape.ffn = 4 * shape.hidden;  // of no layer
  else
    guess(shape.ffn, 4 * shape.hidden, "a feed-forward width of 4 x hidden");
  constexpr std::int64_t kGpt2 = 50304;
  guess(shape.vocab, kGpt2, "GPT-2's vocabulary");
  // Vocabularies are padded so that every rank's part is a multiple of 128.
  const std::int64_t multiple = 128 * row.degrees.strategy.tp;
  shape.vocab = (shape.vocab + multiple - 1) / multiple * multiple;
}

// Of the plan, what the step depends on.
void name_guesses(Row& row) {
  const Degrees& degrees = row.degrees;
  const plan::Strategy& s = degrees.strategy;
  const Stated& stated = row.stated;
  const auto guess = [&](bool open, const std::string& what) {
    if (open) row.guesses.push_back(what);
  };
  guess(!stated.micro_batch, "the size of micro-batches");
  guess(!stated.recompute, s.recompute == model::Recompute::none ? "no recomputation" : "what is computed again");
  guess(!stated.sequence_parallel && s.tp > 1, s.sequence_parallel ? "sequence parallelism" : "no sequence parallelism");
  guess(!stated.zero && s.copies() > 1, s.zero == 0 ? "no sharding" : text("ZeRO-", s.zero));
  guess(!stated.gradient_bytes && s.copies() > 1 && !row.stack.frozen,
        text("gradients exchanged in ", 8 * row.stack.gradient_bytes, " bits"));
  guess(!stated.network && degrees.ranks() > row.group.domain(), "the network's rate");
  guess(!stated.chunks && degrees.pp > 1 && !plan::is_v_shaped(degrees.schedule),
        degrees.chunks > 1 ? "several stages on a rank" : "one stage on a rank");
  guess(!stated.experts && row.has_experts(), "over how many ranks experts are spread");
  guess(!stated.precision, text("products in ", row.precision == model::Precision::f8 ? "8 bits" : "16 bits"));
}

model::ModelSpec model_of(const Shape& shape) {
  std::string yaml = text("{hidden: ", shape.hidden, ", layers: ", shape.layers, ", heads: ", shape.heads, ", seq: ", shape.seq,
                          ", vocab: ", shape.vocab, ", tied: ", shape.tied ? "true" : "false", ", dropout: ", shape.dropout ? "0.1" : "0");
  if (shape.key_value_rank > 0)
    yaml += text(", q_lora: ", shape.query_rank, ", kv_lora: ", shape.key_value_rank, ", nope_dim: ", shape.plain_dim,
                 ", rope_dim: ", shape.rotary_dim, ", v_dim: ", shape.value_dim, ", keeps: autograd");
  else
    yaml += text(", kv_heads: ", shape.kv_heads, ", head_dim: ", shape.head_dim);
  if (shape.experts > 0)
    yaml += text(", arch: ", shape.key_value_rank > 0 ? "deepseek" : "qwen_moe", ", experts: ", shape.experts,
                 ", experts_per_token: ", shape.chosen, ", expert_ffn: ", shape.expert_ffn, ", shared_ffn: ", shape.shared_ffn,
                 shape.dense_layers > 0 ? text(", dense_layers: ", shape.dense_layers, ", ffn: ", shape.ffn) : std::string());
  else if (shape.gated && shape.rotary)
    yaml += text(", arch: llama, ffn: ", shape.ffn);
  else
    yaml += text(", arch: gpt, ffn: ", shape.ffn, ", gated: ", shape.gated ? "true" : "false",
                 ", positions: ", shape.rotary ? "rotary" : "learned");
  model::ModelSpec model = model::read_model(ConfigNode::parse(yaml + "}", "row"));
  if (shape.predicts_two) {
    // Behind the head, as it runs after the last layer: one more layer and a head that shares its weights with the first.
    model::Repeat layer = model.repeats[model.repeats.size() - 2];
    layer.count = 1;
    model::Repeat head = model.repeats.back();
    for (model::ParameterSpec& parameter : head.block.parameters)
      if (parameter.split_dim >= 0) parameter.tied_to = "lm_head.weight";
    model.repeats.push_back(std::move(layer));
    model.repeats.push_back(std::move(head));
  }
  return model;
}

// Layers of each pipeline rank: as said, or as even as they divide, embedding and head standing for a layer each where that divides.
std::vector<int> layers_of(const Row& row) {
  const Degrees& degrees = row.degrees;
  if (!degrees.layers.empty()) return degrees.layers;
  const int layers = row.shape.layers;
  const bool with_ends = layers % degrees.pp != 0 && (layers + 2) % degrees.pp == 0 && degrees.pp > 1;
  const int all = layers + (with_ends ? 2 : 0);
  std::vector<int> out(static_cast<std::size_t>(degrees.pp), all / degrees.pp);
  for (int i = 0; i < all % degrees.pp; ++i) ++out[static_cast<std::size_t>(i)];
  if (with_ends) {
    // Under a V both ends are on the first rank.
    --out.front();
    --(plan::is_v_shaped(degrees.schedule) ? out.front() : out.back());
  }
  return out;
}

// Layers of each stage in the model's order. What a pipeline rank's chunks do not divide, the first rank's first chunk and the other
// ranks' last ones lack.
std::vector<int> stages_of(const Row& row) {
  const Degrees& degrees = row.degrees;
  const std::vector<int> layers = layers_of(row);
  const int chunks = plan::is_v_shaped(degrees.schedule) ? 2 : degrees.chunks;
  std::vector<int> out(layers.size() * static_cast<std::size_t>(chunks));
  for (std::size_t rank = 0; rank < layers.size(); ++rank) {
    int left = layers[rank];
    for (int i = 0; i < chunks; ++i) {
      const int chunk = rank == 0 ? chunks - 1 - i : i;
      const int count = (left + chunks - i - 1) / (chunks - i);
      out[static_cast<std::size_t>(plan::stage_at(degrees.schedule, static_cast<int>(rank), chunk, degrees.pp))] = count;
      left -= count;
    }
  }
  return out;
}

plan::Plan plan_of(const Row& row) {
  const Degrees& degrees = row.degrees;
  const plan::Strategy& s = degrees.strategy;
  plan::Plan plan;
  plan.precision = row.precision;
  plan.global_batch = degrees.global_batch;
  plan.micro_batches = std::max<std::int64_t>(1, degrees.global_batch / (degrees.micro_batch_size * s.dp));
  plan.schedule = degrees.schedule;
  for (int rank = 0; rank < degrees.ranks(); ++rank)
    plan.ranks.push_back({0, rank / row.group.devices_per_node, rank % row.group.devices_per_node, 1});
  // The ends of the model are never computed again.
  plan::Strategy plain = s;
  plain.recompute = model::Recompute::none;
  const std::vector<int> layers = stages_of(row);
  int next = 0;
  for (std::size_t stage = 0; stage < layers.size(); ++stage) {
    const int turn = static_cast<int>(stage) / degrees.pp;
    const int place = static_cast<int>(stage) % degrees.pp;
    const int pipeline_rank = plan::is_v_shaped(degrees.schedule) && turn == 1 ? degrees.pp - 1 - place : place;
    plan::Stage of;
    for (int i = 0; i < s.ranks(); ++i) of.ranks.push_back(pipeline_rank * s.ranks() + i);
    const auto run = [&](int count, const plan::Strategy& strategy) {
      if (count == 0) return;
      if (!of.runs.empty() && of.runs.back().strategy == strategy)
        of.runs.back().last += count;
      else
        of.runs.push_back({next, next + count, strategy});
      next += count;
    };
    if (stage == 0) run(1, plain);
    run(layers[stage], s);
    if (stage + 1 == layers.size()) {
      run(1, plain);
      if (row.shape.predicts_two) run(1, s);
      if (row.shape.predicts_two) run(1, plain);
    }
    plan.stages.push_back(std::move(of));
  }
  return plan;
}

double measured_of(const Cells& cells, const Row& row) {
  if (const double seconds = number(cells, "iteration_s", 0); seconds > 0) return seconds;
  const double tokens = static_cast<double>(row.degrees.global_batch) * static_cast<double>(row.shape.seq);
  const double devices = number(cells, "gpus", 1);
  if (const double rate = number(cells, "tokens_per_s_per_gpu", 0); rate > 0) return tokens / (rate * devices);
  // Hardware FLOPs of full recomputation, of the layers alone (8 x parameters x tokens) or, where the notes say so, by the improved
  // formula (Narayanan et al. 2021, equation 3): the conventions of the tables that have nothing else.
  const double hidden = static_cast<double>(row.shape.hidden);
  const double layers = row.shape.layers;
  double flops = 96 * layers * hidden * hidden * tokens;
  const std::string notes = cell(cells, "notes");
  if (contains(notes, "improved formula") || contains(notes, "HFU convention"))
    flops *= 1 + static_cast<double>(row.shape.seq) / (6 * hidden) + static_cast<double>(row.shape.vocab) / (16 * layers * hidden);
  return flops / (number(cells, "tflops_per_gpu", 0) * 1e12 * devices);
}

void check(const Row& row) {
  const Degrees& degrees = row.degrees;
  const int devices = row.group.nodes * row.group.devices_per_node;
  if (degrees.ranks() > devices)
    throw Error(ErrorCode::invalid_config, text(label(row), ": ", degrees.ranks(), " ranks on ", devices, " devices"), {},
                text("at most ", devices, " ranks"));
  if (degrees.pp > row.shape.layers + 2)
    throw Error(ErrorCode::invalid_config, text(degrees.pp, " stages for ", row.shape.layers, " layers"), {},
                text("pp of at most ", row.shape.layers + 2));
}

}  // namespace

void build(Row& row) {
  if (!row.skipped.empty()) return;
  if (row.shape.layers == 0 || row.shape.hidden == 0) {
    row.skipped = "its architecture is not stated";
    return;
  }
  Degrees& degrees = row.degrees;
  degrees.chunks = std::max(1, degrees.chunks);
  if (degrees.chunks > 1 && degrees.schedule == plan::Schedule::one_f_one_b) degrees.schedule = plan::Schedule::interleaved;
  fill(row);
  name_guesses(row);
  try {
    check(row);
    row.model = model_of(row.shape);
    row.cluster.name = row.group.name;
    row.cluster.groups = {row.group};
    row.plan = plan_of(row);
    predicted(row, profile::calibration_for(row.group.device.name, row.group.stack));
  } catch (const Error& problem) {
    row.skipped = problem.what();
  }
}

void complete(Row& row, const Cells& cells) {
  build(row);
  if (!row.skipped.empty()) return;
  row.measured = measured_of(cells, row);
  const std::string notes = cell(cells, "notes");
  const bool of_flops = number(cells, "iteration_s", 0) <= 0 && number(cells, "tokens_per_s_per_gpu", 0) <= 0;
  if (of_flops && !contains(notes, "formula") && !contains(notes, "convention"))
    row.guesses.emplace_back("FLOP/s that count full recomputation, of the layers alone");
  if (!(row.measured > 0) || !std::isfinite(row.measured)) row.skipped = "it states no time, throughput or FLOP rate";
}

double predicted(const Row& row, const profile::Calibration& calibration) {
  cost::Stack stack = row.stack;
  stack.calibration = calibration;
  cost::CostModel cost_model(row.model, row.cluster, row.precision, std::move(stack));
  return cost::step_of(row.plan, cost_model).value;
}

}  // namespace tessera::calibrate
