// Internal: the train.yaml that `tessera init` writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::cli {

// A Llama-style model of some size.
struct SizePreset {
  std::string name;
  std::string purpose;  // one line for the question
  int hidden, layers, heads, kv_heads, ffn, seq;
  std::int64_t global_batch;
  double lr;
};
const std::vector<SizePreset>& size_presets();
// Throws invalid_config naming the nearest.
const SizePreset& size_preset(const std::string& name);

struct InitAnswers {
  std::string source;  // a text file, a JSONL file or a folder of them
  std::string size = "small";
  std::int64_t vocab = 4096;
  std::int64_t steps = 200;
  std::string precision = "fp32";  // or bf16
};

// YAML with a comment on each choice; model::read_job accepts it.
std::string train_yaml(const InitAnswers& answers);

}  // namespace tessera::cli
