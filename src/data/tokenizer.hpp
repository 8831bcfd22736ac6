// Tokenizers: text to token ids and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/progress.hpp"
#include "data/utf8.hpp"
#include "model/job.hpp"

namespace tessera::data {

// Receives the ids of a text in order, some thousands at a time, and how many bytes of the text are done.
using TokenSink = std::function<void(std::span<const std::uint32_t> ids, std::size_t done_bytes)>;

// Where in a text a decoder stands; SentencePiece drops the first space.
struct DecodeState {
  bool any_text = false;
};

// Immutable and safe to use from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The ids of `text`, without any token before or after it; exactly those of the reference packages (`tokenizers` with
  // add_special_tokens=False, `sentencepiece`). Throws invalid_config when `text` is not valid UTF-8. Linear in the text but for
  // single words of thousands of characters (n log n).
  std::vector<std::uint32_t> encode(std::string_view text) const;
  virtual void encode_to(std::string_view text, const TokenSink& sink) const = 0;

  // The text of `ids`; special tokens (end of text, padding) are left out unless `keep_special`. Always valid UTF-8: bytes
  // that make no character become U+FFFD. Throws invalid_config for an id outside the vocabulary.
  std::string decode(std::span<const std::uint32_t> ids, bool keep_special = false) const;
  // The bytes that one more id adds to a text; they need not end at a character's end.
  virtual void append_bytes(std::uint32_t id, bool keep_special, DecodeState& state, std::string& bytes) const = 0;
  virtual InvalidBytes invalid_bytes() const = 0;

  // One more than the largest id.
  virtual std::int64_t vocab_size() const = 0;
  // The token that ends a document; nothing when the file names none.
  virtual std::optional<std::uint32_t> end_of_text() const = 0;
  // Whether decode() leaves the token out. Precondition: id < vocab_size().
  virtual bool is_special(std::uint32_t id) const = 0;
  // The token that is written so; nothing where there is none. Linear in the vocabulary.
  virtual std::optional<std::uint32_t> id_of(std::string_view token) const = 0;

  // "tokenizer.json" or "tokenizer.model": the name under which others look for this file.
  virtual std::string file_name() const = 0;
  // The content of the tokenizer's file: tokenizer.json, or the .model for SentencePiece.
  const std::string& content() const { return content_; }
  // Writes content() whole or not at all.
  void save(const std::filesystem::path& path) const;
  // 32 hex digits; equal for equal files.
  const std::string& fingerprint() const { return fingerprint_; }

 protected:
  explicit Tokenizer(std::string content);

 private:
  std::string content_;
  std::string fingerprint_;
};

// Decodes ids as they come, for text that is shown while it is generated. Not thread-safe; keeps a reference.
class StreamingDecoder {
 public:
  explicit StreamingDecoder(const Tokenizer& tokenizer, bool keep_special = false);
  // The text that is certain after this id; complete characters only, often empty.
  std::string push(std::uint32_t id);
  // What is left at the end. The pushes and this one together equal Tokenizer::decode.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool keep_special_;
  DecodeState state_;
  Utf8Assembler assembler_;
};

// Whether a file is a tokenizer.json or a SentencePiece .model, by its content; so a tokenizer may have any name that ends in .json.
bool is_tokenizer(const std::filesystem::path& file);

// Reads a tokenizer.json (byte-level BPE or WordPiece, told by its content) or a SentencePiece .model (unigram or BPE). The end-of-text
// token is what tokenizer_config.json beside a tokenizer.json names as eos_token, or else a well-known name (<|endoftext|>, </s>, ...).
// Throws not_found, corrupt for damaged files, invalid_config for a component that is not supported, with its name.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& file);

// The same from memory; messages name the file `name`.
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string content, const std::string& name, const std::string& end_of_text = {});
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string content, const std::string& name);

// 256 tokens for the byte values, then <|endoftext|> as 256.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

// Learns byte-level BPE (Sennrich et al. 2016, with GPT-2's pre-tokenization) from documents; the same documents give the same
// tokenizer everywhere, and the one that the `tokenizers` package would train. <|endoftext|> is token 0.
class BpeTrainer {
 public:
  BpeTrainer();
  ~BpeTrainer();
  // Counts the words of one document of valid UTF-8.
  void add(std::string_view document);
  // At most `vocab` tokens, fewer when the text has no more pairs. Throws invalid_config when vocab < 257.
  std::unique_ptr<Tokenizer> train(std::int64_t vocab, const ProgressCallback& progress = {}) const;

 private:
  struct Words;
  std::unique_ptr<Words> words_;
};
std::unique_ptr<Tokenizer> train_bpe(std::span<const std::string> documents, std::int64_t vocab);

// The tokenizer that `spec` asks for. A bpe is trained once on all sources, whatever their weights, and kept in `cache_dir` as
// tokenizer-FINGERPRINT.json, where FINGERPRINT stands for the sources' content, their records and the vocabulary. Throws as
// load_tokenizer.
std::unique_ptr<Tokenizer> make_tokenizer(const model::DataSpec& spec, const std::filesystem::path& cache_dir,
                                          const ProgressCallback& progress = {});

}  // namespace tessera::data
