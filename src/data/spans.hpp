// internal: span corruption (Raffel et al. 2020, section 3.1.4): the encoder reads a text without some spans, and the decoder writes these.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "data/tokenizer.hpp"
#include "model/job.hpp"

namespace tessera::data {

// Spans of random length, together a share of a stretch of text, are cut out at random places. The tokens seen are the rest, with a
// sentinel in place of each span; the targets are each span behind its sentinel, and one more sentinel at the end. Sentinels are the
// tokenizer's <extra_id_0> and those after it where it has them (T5's), else the last ids of the vocabulary; both count down. Immutable;
// safe to use from several threads.
//
//   text            Thank you for inviting me to your party last week
//   tokens          Thank you <X> me to your party <Y> week
//   targets         <X> for inviting <Y> last <Z>
//   decoder_tokens  0 <X> for inviting <Y> last
class Spans {
 public:
  // Samples have `seq` tokens and as many targets as spec.mask says that the decoder has room for. The tokenizer is null for synthetic
  // tokens, and not kept. Throws invalid_config where the decoder's length or the vocabulary is too small, or the
  // tokenizer has too few sentinels. Precondition: spec.mask with
  // decoder_seq, a share of at most 0.5 and a span of at least 1.
  Spans(const model::DataSpec& spec, const Tokenizer* tokenizer, std::int64_t seq, std::int64_t vocab);

  std::int64_t text_length() const { return text_; }  // tokens of text that a sample takes
  std::int64_t decoder_length() const { return decoder_; }
  std::int64_t counted_targets() const { return noise_ + spans_ + 1; }  // of every sample; the rest of the decoder's room is -1
  std::int64_t least_sentinel() const { return sentinel_ - spans_; }    // of those that a sample has
  // Which of these a token is, from 0 on; nothing where it is another token.
  std::optional<std::int64_t> sentinel_of(std::int64_t token) const;
  std::uint64_t settings_hash() const;

  // `text` has text_length() tokens, `tokens` seq, the others decoder_length(). All that is random depends on `seed` alone. Linear.
  void apply(std::span<const std::int32_t> text, std::span<std::int32_t> tokens, std::span<std::int32_t> decoder_tokens,
             std::span<std::int32_t> targets, std::uint64_t seed) const;

 private:
  void measure(std::int64_t text);

  model::MaskSpec spec_;
  std::int64_t sentinel_;  // the id of the first one
  std::int64_t decoder_;
  std::int64_t text_ = 0;
  std::int64_t noise_ = 0;  // tokens of all spans
  std::int64_t spans_ = 0;
};

}  // namespace tessera::data
