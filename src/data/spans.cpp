#include "data/spans.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"

namespace tessera::data {
namespace {

// The lengths of `parts` parts of `length`, none of them empty; all ways to cut it are equally likely.
std::vector<std::int64_t> cut(std::int64_t length, std::int64_t parts, Random& random) {
  std::vector<std::int64_t> lengths;
  std::int64_t begin = 0;
  for (std::int64_t place = 1; place < length; ++place) {
    const auto cuts_left = static_cast<std::uint64_t>(parts - 1 - std::ssize(lengths));
    if (random.below(static_cast<std::uint64_t>(length - place)) >= cuts_left) continue;
    lengths.push_back(place - begin);
    begin = place;
  }
  lengths.push_back(length - begin);
  return lengths;
}

// The first of so many, as T5's tokenizers name them.
std::optional<std::int64_t> named_sentinel(const model::DataSpec& spec, const Tokenizer& tokenizer, std::int64_t count) {
  const auto first = tokenizer.id_of("<extra_id_0>");
  if (!first) return {};
  const std::string last = text("<extra_id_", count - 1, ">");
  if (const auto id = tokenizer.id_of(last); id && std::int64_t{*id} == std::int64_t{*first} - (count - 1)) return *first;
  throw Error(ErrorCode::invalid_config,
              text("a sample has ", count, " sentinels, and the tokenizer has no ", last, " of id ", *first, " - ", count - 1), spec.where,
              "sentinels <extra_id_0> and so on, whose ids count down", "fewer spans: a larger data.mask.span or a shorter model.seq");
}

}  // namespace

Spans::Spans(const model::DataSpec& spec, const Tokenizer* tokenizer, std::int64_t seq, std::int64_t vocab)
    : spec_(*spec.mask), sentinel_(vocab - 1), decoder_(*spec.mask->decoder_seq) {
  ensure(spec_.share > 0 && spec_.share <= 0.5 && spec_.span >= 1, "half of a text at most, in spans of at least one token");
  if (seq < 2)
    throw Error(ErrorCode::invalid_config, text("model.seq is ", seq), spec.where, "at least 2: a token, and one that is masked");
  // The longest text of which seq tokens are left.
  for (std::int64_t next = seq;; ++next) {
    measure(next);
    if (next - noise_ + spans_ > seq) break;
    text_ = next;
  }
  measure(text_);
  if (counted_targets() > decoder_)
    throw Error(ErrorCode::invalid_config,
                text("samples of model.seq ", seq, " have ", counted_targets(), " targets, and model.decoder_seq is ", decoder_),
                spec.where, text("model.decoder_seq of at least ", counted_targets()), "or a smaller data.mask.share");
  const std::int64_t tokens = tokenizer == nullptr ? 1 : tokenizer->vocab_size();
  const std::int64_t sentinels = spans_ + 1;
  if (const auto named = tokenizer == nullptr ? std::nullopt : named_sentinel(spec, *tokenizer, sentinels)) {
    sentinel_ = *named;
    return;
  }
  if (tokens + sentinels > vocab)
    throw Error(ErrorCode::invalid_config,
                text("a sample has ", sentinels, " sentinels, and beside the ", tokens, " tokens of the tokenizer model.vocab ", vocab,
                     " leaves no ids for them"),
                spec.where, text("model.vocab of at least ", tokens + sentinels),
                text("set model.vocab to ", tokens + sentinels,
                     spec.tokenizer.kind == "bpe" && tokenizer != nullptr ? text(", or data.tokenizer.vocab to ", vocab - sentinels) : ""));
}

// One token more of text is one more of noise or one more that is left, and so at most one more for the encoder.
void Spans::measure(std::int64_t text) {
  noise_ = std::clamp<std::int64_t>(std::llround(static_cast<double>(text) * spec_.share), 1, text / 2);
  spans_ = std::max<std::int64_t>(1, std::llround(static_cast<double>(noise_) / spec_.span));
}

std::uint64_t Spans::settings_hash() const {
  return seed_of(std::bit_cast<std::uint64_t>(spec_.share), std::bit_cast<std::uint64_t>(spec_.span), static_cast<std::uint64_t>(decoder_),
                 static_cast<std::uint64_t>(sentinel_ + 1));
}

std::optional<std::int64_t> Spans::sentinel_of(std::int64_t token) const {
  return token < least_sentinel() || token > sentinel_ ? std::nullopt : std::optional(sentinel_ - token);
}

void Spans::apply(std::span<const std::int32_t> text, std::span<std::int32_t> tokens, std::span<std::int32_t> decoder_tokens,
                  std::span<std::int32_t> targets, std::uint64_t seed) const {
  Random random(seed);
  const std::vector<std::int64_t> kept = cut(text_ - noise_, spans_, random), removed = cut(noise_, spans_, random);
  auto read = text.begin();
  auto seen = tokens.begin();
  auto written = targets.begin();
  const auto sentinel = [&](std::size_t k) { return static_cast<std::int32_t>(sentinel_ - static_cast<std::int64_t>(k)); };
  const auto move = [&](std::int64_t count, auto& out) {
    out = std::copy_n(read, count, out);
    read += count;
  };
  for (std::size_t k = 0; k < kept.size(); ++k) {
    move(kept[k], seen);
    *seen++ = *written++ = sentinel(k);
    move(removed[k], written);
  }
  *written++ = sentinel(kept.size());
  std::fill(written, targets.end(), -1);
  // T5's decoder begins with its padding, token 0.
  decoder_tokens[0] = 0;
  std::transform(targets.begin(), targets.end() - 1, decoder_tokens.begin() + 1, [](std::int32_t target) { return std::max(target, 0); });
}

}  // namespace tessera::data
