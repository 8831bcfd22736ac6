// The samples of a training run: sequences of tokens, their split, and their order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "data/progress.hpp"
#include "data/source.hpp"
#include "data/token_cache.hpp"
#include "data/tokenizer.hpp"
#include "model/job.hpp"

namespace tessera::data {

// One of the rows of whole numbers that a sample has.
struct Field {
  std::string name;
  std::int64_t count = 0;   // numbers of a sample
  std::int32_t absent = 0;  // what stands in the row of a sample that is not there, and does not count
};

// All documents of a source, each followed by the end-of-text token, are one stream of tokens. Sample i of the training split holds the
// tokens [i*seq, i*seq + seq] of the stream: seq inputs, and as targets the same moved on by one. The validation split starts behind the
// last training target, so the two share no token. Where documents have prompts, a sample holds as many whole documents as fit, and the
// targets of prompts do not count. A sample's id is its index, behind those of the sources before its own; it stays the same in all epochs
// and under all plans.
//
// Immutable after open; safe to use from several threads and processes. Resuming needs the step alone.
class Dataset {
 public:
  // Reads, tokenizes and packs the sources, or finds all that in the cache. Synthetic data is seeded random tokens below `vocab` instead.
  // Throws not_found (source or tokenizer missing, with the nearest name), invalid_config (no source is named, the tokenizer has more
  // tokens than the model, too little text, no end-of-text token, bad content), corrupt, io. An empty cache_dir means default_cache_dir().
  static std::unique_ptr<Dataset> open(const model::DataSpec& spec, std::int64_t seq, std::int64_t vocab, std::uint64_t seed,
                                       const std::filesystem::path& cache_dir, const ProgressCallback& progress = {});
  ~Dataset();

  std::int64_t train_samples() const;       // at least 1, but for a train_fraction of 0, with which all text is for validation
  std::int64_t validation_samples() const;  // 0 only when train_fraction leaves nothing
  std::int64_t token_count() const;         // of all sources
  std::int64_t document_count() const;      // 0 for synthetic data
  std::int64_t sequence_length() const;
  // Of all samples and their split, without reading them. Ranks of one job must have the same.
  std::uint64_t content_hash() const;
  // Of the stream of tokens alone; 0 for synthetic data.
  std::uint64_t stream_hash() const;

  // The training samples of a step, in the batch's order, global_batch of them. Every epoch is a permutation that depends on (seed, epoch)
  // alone, of all samples or, of sources with weights, of their shares; an epoch ends within a step where it ends. Constant time and memory
  // per sample. Throws invalid_config when one batch is larger than the training split.
  std::vector<std::int64_t> sample_ids(std::int64_t step, std::int64_t global_batch) const;

  // What a sample has: "tokens", "targets" and, where attention is to stay within documents, "positions", seq numbers each. A target of -1
  // does not count. Positions are those of tokens in their documents: each 0 begins one.
  std::vector<Field> fields() const;
  // The first so many fields of a training sample, 0 <= sample_id < train_samples(), in the order of fields(). Throws corrupt when the
  // cache was damaged since it was opened.
  void fill(std::int64_t sample_id, const std::vector<std::span<std::int32_t>>& rows) const;
  // The same for 0 <= index < validation_samples(); of several sources mixed as in training.
  void fill_validation(std::int64_t index, const std::vector<std::span<std::int32_t>>& rows) const;
  // The targets of a training sample that count; the loss of a step is the mean over those of its whole batch.
  std::int64_t counted_targets(std::int64_t sample_id) const;

  // In nats: the entropy of the frequencies of all validation targets, which is the loss of a model that knows nothing but
  // how often each of them occurs. Throws invalid_config without validation samples.
  double unigram_entropy_of_validation() const;

  const Tokenizer* tokenizer() const;  // null for synthetic data

  struct SourceShare {
    std::filesystem::path path;
    std::int64_t train = 0;      // samples
    std::int64_t per_epoch = 0;  // of these
    std::int64_t validation = 0;
  };
  std::vector<SourceShare> sources() const;  // none for synthetic data
  // What was left out, skipped or cut while reading, a line each.
  const std::vector<std::string>& notes() const;

 private:
  struct State;
  explicit Dataset(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// $TESSERA_CACHE, or .cache/tessera in the current folder.
std::filesystem::path default_cache_dir();

// The token stream of a source, named at `where`, under a tokenizer, from tokens-FINGERPRINT.bin in `cache_dir` or built and put there; a
// damaged file is built anew with a warning. Several processes may do this at once: one builds, the others wait for it.
TokenCache open_token_cache(const Source& source, const Tokenizer& tokenizer, const Where& where, const std::filesystem::path& cache_dir,
                            const ProgressCallback& progress = {});

}  // namespace tessera::data
