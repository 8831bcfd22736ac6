#include "cli/init_template.hpp"

#include <algorithm>

#include "base/config.hpp"
#include "base/error.hpp"
#include "model/yaml_path.hpp"

namespace tessera::cli {

const std::vector<SizePreset>& size_presets() {
  static const std::vector<SizePreset> presets = {
      {"tiny", "1 M parameters beside the vocabulary's: tries everything out within a minute", 128, 4, 4, 2, 384, 128, 16, 1.0e-3},
      {"small", "10 M: a few minutes on a laptop", 384, 6, 6, 2, 1024, 256, 16, 1.0e-3},
      {"medium", "75 M: hours on a workstation", 768, 12, 12, 4, 2048, 512, 32, 6.0e-4},
      {"large", "1 B: several hosts", 2048, 20, 16, 4, 5632, 2048, 64, 3.0e-4}};
  return presets;
}

const SizePreset& size_preset(const std::string& name) {
  const auto& presets = size_presets();
  const auto found = std::find_if(presets.begin(), presets.end(), [&](const SizePreset& preset) { return preset.name == name; });
  if (found != presets.end()) return *found;
  std::vector<std::string> names;
  for (const SizePreset& preset : presets) names.push_back(preset.name);
  const auto near = nearest(name, names);
  throw Error(ErrorCode::invalid_config, text("no model size is called `", name, "`"), {}, "tiny, small, medium or large",
              near ? text("did you mean `", *near, "`?") : "");
}

std::string train_yaml(const InitAnswers& answers) {
  const SizePreset& size = size_preset(answers.size);
  const std::int64_t warmup = std::max<std::int64_t>(1, answers.steps / 10);
  const std::int64_t checkpoint_every = std::max<std::int64_t>(1, answers.steps / 4);
  return text(
      "# A training run. Every key is explained in docs/train-yaml.md; an unknown one is an error.\n"
      "model:\n"
      "  arch: llama\n"
      "  hidden: ",
      size.hidden,
      "\n"
      "  layers: ",
      size.layers,
      "\n"
      "  heads: ",
      size.heads,
      "           # query heads; hidden must divide by it\n"
      "  kv_heads: ",
      size.kv_heads,
      "        # key-value heads; must divide heads\n"
      "  ffn: ",
      size.ffn,
      "\n"
      "  seq: ",
      size.seq,
      "           # tokens of one sample\n"
      "  vocab: ",
      answers.vocab,
      "\n"
      "\n"
      "data:\n"
      "  source: ",
      model::quoted(answers.source),
      "   # a file of text, JSONL or Parquet, or a folder of them\n"
      "  tokenizer: {kind: bpe, vocab: ",
      answers.vocab,
      "}   # trained on the source once, then cached\n"
      "  split: {train: 0.95}       # the rest, from the end, is for validation\n"
      "\n"
      "train:\n"
      "  steps: ",
      answers.steps,
      "\n"
      "  global_batch: ",
      size.global_batch,
      "           # samples of one step, over all workers\n"
      "  optimizer: {kind: adamw, lr: ",
      size.lr,
      "}\n"
      "  schedule: {kind: cosine, warmup: ",
      warmup,
      "}\n"
      "  precision: ",
      answers.precision,
      "\n"
      "  seed: 1\n"
      "\n"
      "cluster: auto          # this host; or {local: {devices: 4}}, or a cluster.yaml\n"
      "parallel: auto         # the plan with the shortest step; or {dp: 2}, {pp: 2, micro_batches: 8}, a plan.json, ...\n"
      "\n"
      "checkpoint: {every: ",
      checkpoint_every, ", keep: 2}\n");
}

}  // namespace tessera::cli
