// Text from a trained model, one token at a time, on this process alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/data.hpp"
#include "model/model.hpp"

namespace tessera::train {

struct Sampling {
  double temperature = 1.0;  // 0: always the most likely token
  std::int64_t top_k = 0;    // 0: all
  double top_p = 1.0;        // the smallest set of tokens with at least this probability
  std::uint64_t seed = 1;
};

// A model on one device, for evaluation and generation. Not thread-safe.
class Predictor {
 public:
  // CostModel the weights of a checkpoint; throws corrupt, or invalid_config when it is of another model.
  Predictor(const model::ModelSpec& model, const std::filesystem::path& checkpoint);
  ~Predictor();

  // Logits [tokens, vocab] f32 after each of the tokens, without a cache. At most the model's sequence length.
  std::vector<float> logits(const std::vector<std::uint32_t>& tokens);

  // Feeds `prompt`, then samples up to max_tokens tokens, calling `emit` for each; stops early at `end` or when emit
  // returns false. Beyond the model's sequence length the oldest half of the context is dropped.
  void generate(const std::vector<std::uint32_t>& prompt, std::int64_t max_tokens, const Sampling& sampling, std::uint32_t end,
                const std::function<bool(std::uint32_t)>& emit);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Draws one token from logits. Deterministic in (logits, sampling, draw).
std::uint32_t sample(std::vector<float> logits, const Sampling& sampling, std::uint64_t draw);

}  // namespace tessera::train
