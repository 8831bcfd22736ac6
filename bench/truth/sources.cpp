#include "sources.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::truth {
namespace {

using calibrate::cell;
using calibrate::contains;
using calibrate::Degrees;
using calibrate::lower;
using calibrate::number;
using calibrate::Shape;
using plan::Schedule;
using plan::Strategy;

bool starts(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// GPT as Megatron-LM has it: two matrices in the feed-forward network, learned positions, tied embeddings.
void gpt(Row& row) {
  row.shape.gated = false;
  row.shape.rotary = false;
  row.shape.tied = true;
  row.shape.dropout = true;
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
  Shape& shape = row.shape;
  const double parameters = billions(cells);
  gpt(row);
  if (shape.layers == 0 && shape.hidden > 0) {
    const double hidden = static_cast<double>(shape.hidden);
    shape.layers = static_cast<int>(std::lround(parameters / (12 * hidden * hidden) / row.degrees.pp)) * row.degrees.pp;
    row.guesses.emplace_back("layers, from the number of parameters");
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
    row.guesses.emplace_back("hidden size, from the number of parameters");
  }
  constexpr std::int64_t kHeads = 32;  // what the chronicles' command lines have until they compare numbers of heads
  if (shape.heads == 0) {
    shape.heads = kHeads;
    row.guesses.emplace_back("32 heads");
  }
  row.group.stack = "megatron-deepspeed";
  row.degrees.strategy.zero = contains(cell(cells, "schedule"), "ZeRO-0") ? 0 : 1;
}

void zero_bubble(const Cells& cells, Row& row) {
  gpt(row);
  row.shape.tied = false;
  row.group.stack = "zero-bubble";
  const std::string schedule = cell(cells, "schedule");
  Degrees& degrees = row.degrees;
  // Embedding and head stand for a layer each.
  degrees.layers.assign(static_cast<std::size_t>(degrees.pp), (row.shape.layers + 2) / degrees.pp);
  // Under a V both ends are on the first rank.
  --degrees.layers.front();
  --(starts(schedule, "ZB-V") ? degrees.layers.front() : degrees.layers.back());
  degrees.chunks = schedule == "1F1B-I" ? (row.shape.layers + 2) / degrees.pp : 1;
  row.stated.chunks = true;  // "max": a layer each
  if (starts(schedule, "ZB-2p")) degrees.schedule = Schedule::zb_h2;
  if (starts(schedule, "ZB-V")) degrees.schedule = Schedule::zb_v;
  if (starts(schedule, "ZB-1p")) degrees.schedule = Schedule::zb_h1;
}

// Narayanan et al. 2021, table 2: Megatron-LM's tensor and pipeline parallelism beside DeepSpeed's ZeRO-3 of April 2021, which gathers
// each tensor by itself and waits for it.
void zero3_at_scale(const Cells& cells, Row& row) {
  gpt(row);
  const bool sharded = cell(cells, "schedule") == "ZeRO-3";
  row.group.stack = sharded ? "deepspeed-2021" : "megatron-2021";
  row.stated.zero = true;  // Megatron-LM of 2021 shards nothing
}

void internevo(const Cells& cells, Row& row) {
  row.group.stack = "internevo";
  row.degrees.strategy.zero = 1;
  const std::string schedule = cell(cells, "schedule");
  const std::size_t at = schedule.find("shard group ");
  if (at != std::string::npos && std::isdigit(static_cast<unsigned char>(schedule[at + 12])) != 0)
    row.degrees.strategy.shards = std::stoi(schedule.substr(at + 12));
}

void llm_foundry(const Cells& cells, Row& row) {
  gpt(row);
  row.shape.dropout = false;
  row.group.stack = "llm-foundry";
  row.degrees.strategy.zero = contains(cell(cells, "schedule"), "GRAD_OP") ? 2 : 3;
  row.stack.gradient_bytes = contains(cell(cells, "notes"), "PURE") ? 2 : 4;
  row.stated.gradient_bytes = contains(cell(cells, "notes"), "MP mode");
}

void architecture(Row& row);

void nemo(Row& row) {
  Shape& shape = row.shape;
  architecture(row);
  if (starts(row.name, "Nemotron-8B"))
    shape = {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 32, .ffn = 16384, .vocab = 256000, .seq = shape.seq};
  if (starts(row.name, "Nemotron-15B"))
    shape = {.layers = 32, .hidden = 6144, .heads = 48, .kv_heads = 8, .ffn = 24576, .vocab = 256000, .seq = shape.seq};
  if (starts(row.name, "Nemotron-22B"))
    shape = {.layers = 40, .hidden = 6144, .heads = 48, .kv_heads = 48, .ffn = 24576, .vocab = 256000, .seq = shape.seq};
  shape.gated = contains(lower(row.name), "llama") || contains(lower(row.name), "mixtral");
  shape.rotary = !starts(row.name, "GPT3");
  row.group.stack = "nemo-24.07";
  row.degrees.strategy.zero = 1;
  row.degrees.strategy.sequence_parallel = row.degrees.strategy.tp > 1;
}

void torchtitan(const Cells& cells, Row& row) {
  Degrees& degrees = row.degrees;
  const std::string schedule = cell(cells, "schedule");
  const bool plain = contains(schedule, "no compile");
  row.group.stack = "torchtitan";
  degrees.strategy.zero = 3;
  row.stack.gradient_bytes = 4;
  degrees.strategy.sequence_parallel = degrees.strategy.tp > 1;
  // Its tensor parallelism is sequence-parallel always, and gradients are reduced in 32 bits unless told otherwise.
  row.stated.sequence_parallel = row.stated.gradient_bytes = true;
  row.stated.recompute = !contains(cell(cells, "recompute"), "/");  // of two kinds of selective
  row.stack.compiled = !contains(schedule, "eager") && !plain;
  row.stack.hides_tensor = (contains(schedule, "asyncTP") || schedule == "Interleaved1F1B") && !plain;
  row.stack.selective_is_half = true;
  if (degrees.pp > 1) {
    // The column has the local batch; it is split into as many micro-batches as stages.
    degrees.micro_batch_size = std::max<std::int64_t>(1, degrees.micro_batch_size / degrees.pp);
    row.stated.micro_batch = false;
    degrees.chunks = contains(schedule, "nterleaved") ? 2 : 1;
  }
}

// Architectures that the tables of mixture-of-experts models name: from their published configurations.
void architecture(Row& row) {
  Shape& shape = row.shape;
  const auto latent = [&] {
    shape.query_rank = 1536;
    shape.key_value_rank = 512;
    shape.rotary_dim = 64;
    shape.plain_dim = shape.value_dim = 128;
  };
  const auto experts = [&](std::int64_t count, int chosen, std::int64_t ffn, std::int64_t shared, int dense) {
    shape.experts = count;
    shape.chosen = chosen;
    shape.expert_ffn = ffn;
    shape.shared_ffn = shared;
    shape.dense_layers = dense;
  };
  if (starts(row.name, "DeepSeekV3")) {
    experts(256, 8, 2048, 2048, 3);
    latent();
    shape.predicts_two = !contains(row.name, "w/o MTP");
  } else if (starts(row.name, "Kimi_K2")) {
    shape = {.layers = 61, .hidden = 7168, .heads = 64, .kv_heads = 64, .ffn = 18432, .vocab = 163840, .seq = shape.seq};
    experts(384, 8, 2048, 2048, 1);
    latent();
  } else if (starts(row.name, "Qwen3_30B") || starts(row.name, "Qwen3_235B")) {
    shape.head_dim = 128;
    experts(128, 8, starts(row.name, "Qwen3_30B") ? 768 : 1536, 0, 0);
  } else if (starts(row.name, "GPT OSS 20B")) {
    shape = {.layers = 24, .hidden = 2880, .heads = 64, .kv_heads = 8, .head_dim = 64, .ffn = 2880, .vocab = 201088, .seq = shape.seq};
    experts(32, 4, 2880, 0, 0);
  } else if (starts(row.name, "GPT OSS 120B")) {
    shape = {.layers = 36, .hidden = 2880, .heads = 64, .kv_heads = 8, .head_dim = 64, .ffn = 2880, .vocab = 201088, .seq = shape.seq};
    experts(128, 4, 2880, 0, 0);
  } else if (contains(lower(row.name), "mixtral") && contains(lower(row.name), "8x7b")) {
    shape = {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .ffn = 14336, .vocab = 32000, .seq = shape.seq};
    experts(8, 2, 14336, 0, 0);
  } else if (contains(lower(row.name), "mixtral") && contains(lower(row.name), "8x22b")) {
    shape = {.layers = 56, .hidden = 6144, .heads = 48, .kv_heads = 8, .ffn = 16384, .vocab = 32768, .seq = shape.seq};
    experts(8, 2, 16384, 0, 0);
  } else if (starts(row.name, "Nemotron_3") || starts(row.name, "DeepSeekV4")) {
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
  Degrees& degrees = row.degrees;
  degrees.strategy.sequence_parallel = degrees.strategy.tp > 1;
  degrees.strategy.zero = contains(cell(cells, "schedule"), "FSDP") ? 3 : 1;
  row.group.stack = row.shape.experts == 0        ? "megatron-bridge"
                    : starts(row.group.name, "h") ? "megatron-bridge-moe"
                                                  : "megatron-bridge-moe-" + generation(cell(cells, "notes"));
  // Head and second prediction stand for three layers of these models (the layouts of the repository's recipes).
  if (row.shape.key_value_rank > 0 && degrees.pp > 1 && (row.shape.layers + 3) % degrees.pp == 0) {
    degrees.layers.assign(static_cast<std::size_t>(degrees.pp), (row.shape.layers + 3) / degrees.pp);
    degrees.layers.back() -= 3;
  }
  // A blank column of virtual stages: as deep as the layers allow, up to the five that the neighbouring rows have.
  if (degrees.chunks < 1 && degrees.pp > 1 && row.shape.layers > 0 && row.shape.layers % degrees.pp == 0) {
    degrees.chunks = 5;
    while (row.shape.layers / degrees.pp % degrees.chunks != 0) --degrees.chunks;
  }
  // The rows of the source's heading "LoRA": adapters are trained, the weights are frozen.
  constexpr int kOfAdapters = 8;
  constexpr std::int64_t kAdapterBatch = 32;
  row.stack.frozen = starts(row.name, "LLAMA3_70B") && degrees.global_batch == kAdapterBatch && number(cells, "gpus", 0) == kOfAdapters;
  // Recipes with experts and tensor parallelism leave experts whole.
  degrees.strategy.whole_experts = row.shape.experts > 0 && degrees.strategy.tp > 1;
}

void describe(const std::string& source, const Cells& cells, Row& row) {
  if (starts(source, "megatron_sc21")) {
    gpt(row);
    row.group.stack = "megatron-2021";
    row.stated.zero = true;  // Megatron-LM of 2021 shards nothing
  } else if (starts(source, "megatron_sp")) {
    gpt(row);
    row.group.stack = "megatron-2022";
    row.stated.zero = true;  // nor that of May 2022
  } else if (starts(source, "bloom")) {
    bloom(cells, row);
  } else if (starts(source, "zero_bubble")) {
    zero_bubble(cells, row);
  } else if (starts(source, "zero3_at_scale")) {
    zero3_at_scale(cells, row);
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
  Degrees& degrees = row.degrees;
  const int devices = row.group.nodes * row.group.devices_per_node;
  if (degrees.strategy.cp == 1 && degrees.ranks() < devices && devices % degrees.ranks() == 0) {
    degrees.strategy.cp = devices / degrees.ranks();
    row.guesses.emplace_back("context parallelism over the devices that the other degrees leave");
  }
}

}  // namespace

std::vector<Row> read_rows(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".csv") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Row> out;
  for (const std::filesystem::path& path : paths) {
    const std::vector<Cells> table = calibrate::read_table(path);
    if (table.empty() || !table.front().contains("tokens_per_s_per_gpu")) continue;
    int line = 0;
    for (const Cells& cells : table) {
      Row row = calibrate::read_row(path.stem().string(), cells, ++line);
      if (row.skipped.empty()) describe(row.source, cells, row);
      calibrate::complete(row, cells);
      out.push_back(std::move(row));
    }
  }
  return out;
}

}  // namespace tessera::truth
