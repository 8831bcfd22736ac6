// Text as samples: sequences of tokens.
#pragma once

#include "data/dataset.hpp"
#include "data/source.hpp"
#include "data/token_cache.hpp"
#include "data/tokenizer.hpp"

namespace tessera::data {

// All documents of a source, each followed by the end-of-text token, are one stream of tokens. Sample i of the training split holds the
// tokens [i*seq, i*seq + seq] of the stream: seq inputs, and as targets the same moved on by one. The validation split starts behind the
// last training target, so the two share no token. Where documents have prompts, a sample holds as many whole documents as fit, and the
// targets of prompts do not count. A sample's id is its index, behind those of the sources before its own. All epochs show it alike.
//
// With DataSpec::mask, some tokens of the same samples are masked, anew in each epoch, and are the targets at their own places (masks.hpp).
// With a decoder, samples are longer stretches, and spans of them are masked (spans.hpp).
//
// With DataSpec::lengths, a sample is one document, or as many random tokens as its length. Rows of any size from that on can be filled.
//
// Fields: "tokens", "targets" and, where attention is to stay within documents, "positions", seq whole numbers each. A target of -1 does
// not count. Positions are those of tokens in their documents: each 0 begins one. With a decoder: "tokens", seq, and "decoder_tokens" and
// "targets", decoder_seq.
class TextDataset final : public Dataset {
 public:
  // Reads, tokenizes and packs the sources, or finds all that in the cache. Synthetic data is seeded random tokens below `vocab` instead.
  // Throws not_found (source or tokenizer missing, with the nearest name), invalid_config (no source is named, the tokenizer has more
  // tokens than the model, too little text, no end-of-text token, no mask token, bad content), corrupt, io. An empty cache_dir means
  // default_cache_dir().
  static std::unique_ptr<TextDataset> open(const model::DataSpec& spec, std::int64_t seq, std::int64_t vocab, std::uint64_t seed,
                                           const std::filesystem::path& cache_dir, const ProgressCallback& progress = {});
  ~TextDataset() override;

  std::int64_t train_samples() const override;       // at least 1, but for a train_fraction of 0, with which all text is for validation
  std::int64_t validation_samples() const override;  // 0 only when train_fraction leaves nothing
  std::int64_t targets_per_sample() const override;
  std::uint64_t content_hash() const override;
  std::uint64_t source_hash() const override;
  std::vector<Draw> draws(std::int64_t step, std::int64_t global_batch) const override;
  std::vector<Field> fields() const override;
  void fill(const Draw& draw, const std::vector<Row>& rows) const override;
  // Several sources are mixed as in training.
  void fill_validation(std::int64_t index, const std::vector<Row>& rows) const override;
  std::int64_t counted_targets(std::int64_t sample) const override;

  // Tokens of a sample without padding at its end, with DataSpec::lengths; otherwise of each as many as there are fields for.
  std::int64_t length(std::int64_t sample) const;
  std::int64_t validation_length(std::int64_t index) const;
  // The lengths of the samples of the first steps, batch after batch: about 256, and those of one step at least. Throws as draws().
  std::vector<std::int64_t> first_lengths(std::int64_t global_batch) const;

  std::int64_t token_count() const;     // of all sources
  std::int64_t document_count() const;  // 0 for synthetic data

  // In nats: the entropy of the frequencies of all validation targets, which is the loss of a model that knows nothing but
  // how often each of them occurs. Throws invalid_config without validation samples.
  double unigram_entropy_of_validation() const;

  const Tokenizer* tokenizer() const override;  // null for synthetic data
  // The text of a sample's tokens as Tokenizer::decode gives it, with "[MASK]" for each masked one, and
  // "<extra_id_K>" for sentinel K of masked spans. Precondition: there is a tokenizer.
  std::string decode(std::span<const std::int32_t> tokens, bool keep_special = false) const;

  struct SourceShare {
    std::filesystem::path path;
    std::int64_t train = 0;      // samples
    std::int64_t per_epoch = 0;  // of these
    std::int64_t validation = 0;
  };
  std::vector<SourceShare> sources() const;  // none for synthetic data

 private:
  struct State;
  explicit TextDataset(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Throws invalid_config where the tokenizer has more tokens than the model's vocabulary.
void check_vocabulary(const model::DataSpec& spec, const Tokenizer& tokenizer, std::int64_t vocab);

// The token stream of a source, named at `where`, under a tokenizer, from tokens-FINGERPRINT.bin in `cache_dir` or built and put there; a
// damaged file is built anew with a warning. Several processes may do this at once: one builds, the others wait for it.
TokenCache open_token_cache(const Source& source, const Tokenizer& tokenizer, const Where& where, const std::filesystem::path& cache_dir,
                            const ProgressCallback& progress = {});

}  // namespace tessera::data
