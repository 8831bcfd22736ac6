// internal: the samples of one source.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/token_cache.hpp"
#include "model/job.hpp"

namespace tessera::data {

// The room for one sample: seq inputs, seq targets (-1: not counted), and none or seq positions, which begin at 0 with each document. Of a
// sample with a length of its own at least so many, and what stands behind it is padding.
struct SampleRoom {
  std::span<std::int32_t> tokens;
  std::span<std::int32_t> targets;
  std::span<std::int32_t> positions;
};

// Immutable; safe to use from several threads. Indexes from 0: first the training samples, then those for validation.
class Samples {
 public:
  virtual ~Samples() = default;
  virtual void fill(std::int64_t index, const SampleRoom& room) const = 0;
  // Targets of a sample that count.
  virtual std::int64_t counted(std::int64_t index) const = 0;
  // Its tokens without padding at its end, where each sample has a length of its own (data.lengths).
  virtual std::int64_t length(std::int64_t index) const = 0;

  std::int64_t train() const { return train_; }
  std::int64_t validation() const { return validation_; }
  // What its user should know: one line each.
  const std::vector<std::string>& notes() const { return notes_; }

 protected:
  std::int64_t train_ = 0;
  std::int64_t validation_ = 0;
  std::vector<std::string> notes_;
};

// Seeded random tokens without end, seq in each sample or as many as `lengths` draws for it.
std::unique_ptr<Samples> make_synthetic_samples(std::int64_t seq, std::int64_t vocab, std::uint64_t seed,
                                                const std::optional<model::LengthSpec>& lengths = {});
// The stream of all tokens cut into sequences: sample i of the training split holds the tokens [i*seq, i*seq + seq], and validation
// starts behind the last training target. With `separate`, the first token of a document is no target: nothing before it tells of it.
// The cache must outlive the samples. Throws invalid_config for too little text.
std::unique_ptr<Samples> make_stream_samples(const TokenCache& cache, std::int64_t seq, const model::DataSpec& spec, const Where& where);
// Whole documents, as many as fit behind each other into a sample, or, where samples have lengths of their own, each a sample; only what
// stands behind their prompts is a target. What is longer than a sample loses its end. Likewise.
std::unique_ptr<Samples> make_document_samples(const TokenCache& cache, std::int64_t seq, const model::DataSpec& spec, const Where& where);

}  // namespace tessera::data
