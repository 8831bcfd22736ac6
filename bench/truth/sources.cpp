#include "sources.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::truth {
namespace {

using cost::Again;
using cost::Transformer;
using plan::Schedule;

bool starts(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// GPT as Megatron-LM has it: two matrices in the feed-forward network, learned positions, tied embeddings.
void gpt(Row& row) {
  row.shape.gated = false;
  row.shape.rotary = false;
  row.shape.tied = row.plan.pp > 1;
}

// Digits of "200B" or "GPT 200B" in parameters.
double billions(const Cells& cells) {
  const std::string text = cell(cells, "params").empty() ? cell(cells, "model") : cell(cells, "params");
  std::string digits;
  for (const char c : text)
    if (std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.') digits += c;
  return digits.empty() ? 0 : std::stod(digits) * 1e9;
}

// The chronicles tune the number of layers for each depth of the pipeline without stating it, and two sections print a hidden
// size that contradicts the number of parameters: that number is what their script computed from the configuration that ran.
void bloom(const Cells& cells, Row& row) {
  Transformer& shape = row.shape;
  const double parameters = billions(cells);
  gpt(row);
  if (shape.layers == 0 && shape.hidden > 0) {
    const double hidden = static_cast<double>(shape.hidden);
    shape.layers = static_cast<int>(std::lround(parameters / (12 * hidden * hidden) / row.plan.pp)) * row.plan.pp;
  }
  const double stated =
      12.0 * shape.layers * std::pow(static_cast<double>(shape.hidden), 2) + static_cast<double>(shape.vocab * shape.hidden);
  constexpr double kContradiction = 0.15;
  constexpr int kWholeModel = 20;  // pieces of a model for one node keep the whole one's name
  if (shape.hidden == 0 || (shape.layers > kWholeModel && std::abs(stated - parameters) > kContradiction * parameters)) {
    const double a = 12.0 * shape.layers;
    const double b = static_cast<double>(shape.vocab);
    constexpr double kStep = 256;
    shape.hidden = static_cast<std::int64_t>(std::lround((-b + std::sqrt(b * b + 4 * a * parameters)) / (2 * a) / kStep) * kStep);
    shape.ffn = 4 * shape.hidden;
  }
  constexpr std::int64_t kHeads = 32;  // what the chronicles' command lines have until they compare numbers of heads
  if (shape.heads == 0) shape.heads = kHeads;
  row.stack = "megatron-deepspeed";
  row.plan.zero = contains(cell(cells, "schedule"), "ZeRO-0") ? 0 : 1;
}

void zero_bubble(const Cells& cells, Row& row) {
  gpt(row);
  row.shape.tied = false;
  row.stack = "zero-bubble";
  const std::string schedule = cell(cells, "schedule");
  cost::UniformPlan& plan = row.plan;
  // Embedding and head stand for a layer each.
  plan.stage_layers.assign(static_cast<std::size_t>(plan.pp), (row.shape.layers + 2) / plan.pp);
  --plan.stage_layers.front();
  --plan.stage_layers.back();
  plan.chunks = schedule == "1F1B-I" ? (row.shape.layers + 2) / plan.pp : 1;
  if (starts(schedule, "ZB-2p")) plan.schedule = Schedule::zb_h2;
  if (starts(schedule, "ZB-V")) plan.schedule = Schedule::zb_v;
  if (starts(schedule, "ZB-1p")) plan.schedule = Schedule::zb_h1;
}

void internevo(const Cells& cells, Row& row) {
  row.stack = "internevo";
  row.plan.zero = 1;
  const std::string schedule = cell(cells, "schedule");
  const std::size_t at = schedule.find("shard group ");
  if (at != std::string::npos && std::isdigit(static_cast<unsigned char>(schedule[at + 12])) != 0)
    row.plan.shards = std::stoi(schedule.substr(at + 12));
}

void llm_foundry(const Cells& cells, Row& row) {
  gpt(row);
  row.stack = "llm-foundry";
  row.plan.zero = contains(cell(cells, "schedule"), "GRAD_OP") ? 2 : 3;
  row.plan.gradient_bytes = contains(cell(cells, "notes"), "PURE") ? 2 : 4;
}

void architecture(Row& row);

void nemo(Row& row) {
  Transformer& shape = row.shape;
  architecture(row);
  if (starts(row.model, "Nemotron-8B"))
    shape = {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 32, .ffn = 16384, .vocab = 256000, .seq = shape.seq};
  if (starts(row.model, "Nemotron-15B"))
    shape = {.layers = 32, .hidden = 6144, .heads = 48, .kv_heads = 8, .ffn = 24576, .vocab = 256000, .seq = shape.seq};
  if (starts(row.model, "Nemotron-22B"))
    shape = {.layers = 40, .hidden = 6144, .heads = 48, .kv_heads = 48, .ffn = 24576, .vocab = 256000, .seq = shape.seq};
  shape.gated = contains(lower(row.model), "llama") || contains(lower(row.model), "mixtral");
  shape.rotary = !starts(row.model, "GPT3");
  row.stack = "nemo-24.07";
  row.plan.zero = 1;
  row.plan.sequence_parallel = row.plan.tp > 1;
}

void torchtitan(const Cells& cells, Row& row) {
  cost::UniformPlan& plan = row.plan;
  const std::string schedule = cell(cells, "schedule");
  const bool plain = contains(schedule, "no compile");
  row.stack = "torchtitan";
  plan.zero = 3;
  plan.gradient_bytes = 4;
  plan.sequence_parallel = plan.tp > 1;
  plan.compiled = !contains(schedule, "eager") && !plain;
  plan.hide_tensor = (contains(schedule, "asyncTP") || schedule == "Interleaved1F1B") && !plain;
  if (plan.again == Again::attention) plan.again = Again::half;
  if (plan.pp > 1) {
    // The column has the local batch; it is split into as many micro-batches as stages.
    plan.micro_batch = std::max<std::int64_t>(1, plan.micro_batch / plan.pp);
    plan.chunks = contains(schedule, "nterleaved") ? 2 : 1;
  }
}

// Architectures that the tables of mixture-of-experts models name: from their published configurations.
void architecture(Row& row) {
  Transformer& shape = row.shape;
  const cost::Latent latent{1536, 512, 64, 128, 128};
  if (starts(row.model, "DeepSeekV3")) {
    shape.experts = {256, 8, 2048, 2048, 3};
    shape.latent = latent;
    shape.predicts_two = !contains(row.model, "w/o MTP");
  } else if (starts(row.model, "Kimi_K2")) {
    shape = {.layers = 61, .hidden = 7168, .heads = 64, .kv_heads = 64, .ffn = 18432, .vocab = 163840, .seq = shape.seq};
    shape.experts = {384, 8, 2048, 2048, 1};
    shape.latent = latent;
  } else if (starts(row.model, "Qwen3_30B") || starts(row.model, "Qwen3_235B")) {
    shape.head_dim = 128;
    shape.experts = {128, 8, starts(row.model, "Qwen3_30B") ? 768 : 1536, 0, 0};
  } else if (starts(row.model, "GPT OSS 20B")) {
    shape = {.layers = 24, .hidden = 2880, .heads = 64, .kv_heads = 8, .head_dim = 64, .ffn = 2880, .vocab = 201088, .seq = shape.seq};
    shape.experts = {32, 4, 2880, 0, 0};
  } else if (starts(row.model, "GPT OSS 120B")) {
    shape = {.layers = 36, .hidden = 2880, .heads = 64, .kv_heads = 8, .head_dim = 64, .ffn = 2880, .vocab = 201088, .seq = shape.seq};
    shape.experts = {128, 4, 2880, 0, 0};
  } else if (contains(lower(row.model), "mixtral") && contains(lower(row.model), "8x7b")) {
    shape = {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn = 14336, .vocab = 32000, .seq = shape.seq};
    shape.experts = {8, 2, 14336, 0, 0};
  } else if (contains(lower(row.model), "mixtral") && contains(lower(row.model), "8x22b")) {
    shape = {.layers = 56, .hidden = 6144, .heads = 48, .kv_heads = 8, .ffn = 16384, .vocab = 32768, .seq = shape.seq};
    shape.experts = {8, 2, 16384, 0, 0};
  } else if (starts(row.model, "Nemotron_3") || starts(row.model, "DeepSeekV4")) {
    row.skipped = "its blocks (state-space layers, sparse attention) have no cost formula";
  }
}

// On Blackwell, containers of one generation share their kernels: 25.x, then 26.02 to 26.04, then 26.06 on (whole-iteration graphs).
std::string generation(const std::string& notes) {
  const double version = std::strtod(notes.c_str(), nullptr);
  constexpr double kSecond = 26.0;
  constexpr double kThird = 26.055;
  return version == 0 || version >= kThird ? "26.06" : version >= kSecond ? "26.02" : "25";
}

void megatron_bridge(const Cells& cells, Row& row) {
  architecture(row);
  if (!row.skipped.empty()) return;
  cost::UniformPlan& plan = row.plan;
  plan.sequence_parallel = plan.tp > 1;
  plan.zero = contains(cell(cells, "schedule"), "FSDP") ? 3 : 1;
  row.stack = row.shape.experts.count == 0  ? "megatron-bridge"
              : starts(row.group.name, "h") ? "megatron-bridge-moe"
                                            : "megatron-bridge-moe-" + generation(cell(cells, "notes"));
  // Head and second prediction stand for three layers of these models (the layouts of the repository's recipes).
  if (row.shape.latent.key_value_rank > 0 && plan.pp > 1 && (row.shape.layers + 3) % plan.pp == 0) {
    plan.stage_layers.assign(static_cast<std::size_t>(plan.pp), (row.shape.layers + 3) / plan.pp);
    plan.stage_layers.back() -= 3;
  }
  // A blank column of virtual stages: as deep as the layers allow, up to the five that the neighbouring rows have.
  if (plan.chunks < 1 && plan.pp > 1 && row.shape.layers > 0 && row.shape.layers % plan.pp == 0) {
    plan.chunks = 5;
    while (row.shape.layers / plan.pp % plan.chunks != 0) --plan.chunks;
  }
  // The tables of fine-tuning with adapters do not say so, but their FLOPs of a token lack the weights' gradients.
  const double tokens = number(cells, "tokens_per_s_per_gpu", 0);
  if (row.shape.experts.count == 0 && row.shape.layers > 0 && row.shape.heads > 0 && tokens > 0 && number(cells, "tflops_per_gpu", 0) > 0) {
    const double stated = number(cells, "tflops_per_gpu", 0) * 1e12 / tokens;
    Transformer shape = row.shape;
    shape.head_dim = shape.hidden / shape.heads;
    shape.tied = true;
    const double trained = 6 * shape.parameters() + 12.0 * shape.layers * static_cast<double>(shape.hidden * shape.seq);
    constexpr double kWithoutWeights = 0.8;
    plan.frozen = stated < kWithoutWeights * trained;
  }
}

}  // namespace

void describe(const std::string& source, const Cells& cells, Row& row) {
  if (starts(source, "megatron_sc21")) {
    gpt(row);
    row.stack = "megatron-2021";
  } else if (starts(source, "megatron_sp")) {
    gpt(row);
    row.stack = "megatron-2022";
  } else if (starts(source, "bloom")) {
    bloom(cells, row);
  } else if (starts(source, "zero_bubble")) {
    zero_bubble(cells, row);
  } else if (starts(source, "internevo")) {
    internevo(cells, row);
  } else if (starts(source, "llm_foundry")) {
    llm_foundry(cells, row);
  } else if (starts(source, "nemo")) {
    nemo(row);
  } else if (starts(source, "torchtitan")) {
    torchtitan(cells, row);
  } else if (starts(source, "megatron_bridge")) {
    megatron_bridge(cells, row);
  }
  // Context parallelism that a table leaves out of its columns is what is missing to the number of devices.
  cost::UniformPlan& plan = row.plan;
  const int devices = row.group.nodes * row.group.devices_per_node;
  if (plan.cp == 1 && plan.ranks() < devices && devices % plan.ranks() == 0) plan.cp = devices / plan.ranks();
}

}  // namespace tessera::truth
