#include "data/masks.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"

namespace tessera::data {
namespace {

std::int64_t last_id(const model::DataSpec& spec, std::int64_t vocab) {
  if (!spec.mask->token.empty())
    throw Error(ErrorCode::invalid_config, text("synthetic data has no token \"", spec.mask->token, "\""), spec.where, "no data.mask.token",
                "without it the mask is the last id of model.vocab");
  if (vocab < 2)
    throw Error(ErrorCode::invalid_config, text("model.vocab is ", vocab, ", of which the mask takes one"), spec.where,
                "model.vocab of at least 2");
  return vocab - 1;
}

std::int64_t mask_token(const model::DataSpec& spec, const Tokenizer& tokenizer, std::int64_t vocab) {
  const std::string& named = spec.mask->token;
  if (!named.empty()) {
    if (const auto id = tokenizer.id_of(named)) return *id;
    throw Error(ErrorCode::invalid_config, text("the tokenizer has no token \"", named, "\""), spec.where,
                "data.mask.token: a token of the tokenizer", "leave data.mask.token out to use an id behind the tokenizer's last");
  }
  for (const char* known : {"[MASK]", "<mask>"})
    if (const auto id = tokenizer.id_of(known)) return *id;
  const std::int64_t size = tokenizer.vocab_size();
  if (size < vocab) return size;
  throw Error(ErrorCode::invalid_config,
              text("the tokenizer has no mask token, and with its ", size, " tokens model.vocab ", vocab, " leaves no id for one"),
              spec.where, text("model.vocab of at least ", size + 1),
              text("set model.vocab to ", size + 1, spec.tokenizer.kind == "bpe" ? text(", or data.tokenizer.vocab to ", vocab - 1) : "",
                   ", or name a token of the tokenizer with data.mask.token"));
}

}  // namespace

Masks::Masks(const model::DataSpec& spec, const Tokenizer* tokenizer, std::int64_t vocab)
    : share_(spec.mask->share),
      token_(static_cast<std::int32_t>(tokenizer == nullptr ? last_id(spec, vocab) : mask_token(spec, *tokenizer, vocab))),
      ordinary_(static_cast<std::size_t>(tokenizer == nullptr ? vocab : tokenizer->vocab_size()), true) {
  if (tokenizer != nullptr)
    for (std::size_t id = 0; id < ordinary_.size(); ++id) ordinary_[id] = !tokenizer->is_special(static_cast<std::uint32_t>(id));
  if (const auto mask = static_cast<std::size_t>(token_); mask < ordinary_.size()) ordinary_[mask] = false;
}

std::uint64_t Masks::settings_hash() const { return seed_of(std::bit_cast<std::uint64_t>(share_), static_cast<std::uint64_t>(token_)); }

std::int64_t Masks::share_of(std::int64_t places) const {
  return std::min(places, std::max<std::int64_t>(1, std::llround(share_ * static_cast<double>(places))));
}

std::int64_t Masks::count(std::span<const std::int32_t> tokens) const {
  return share_of(std::count_if(tokens.begin(), tokens.end(), [this](std::int32_t token) { return ordinary(token); }));
}

void Masks::apply(std::span<std::int32_t> tokens, std::span<std::int32_t> targets, std::uint64_t seed) const {
  constexpr double kMasked = 0.8, kReplaced = 0.1;
  std::vector<std::size_t> places;
  for (std::size_t place = 0; place < tokens.size(); ++place)
    if (ordinary(tokens[place])) places.push_back(place);
  std::fill(targets.begin(), targets.end(), -1);
  Random random(seed);
  const auto chosen = static_cast<std::size_t>(share_of(std::ssize(places)));
  for (std::size_t k = 0; k < chosen; ++k) {
    std::swap(places[k], places[k + random.below(places.size() - k)]);
    std::int32_t& token = tokens[places[k]];
    targets[places[k]] = token;
    const double part = random.uniform();
    if (part < kMasked) {
      token = token_;
    } else if (part < kMasked + kReplaced) {
      do token = static_cast<std::int32_t>(random.below(ordinary_.size()));
      while (!ordinary(token));
    }
  }
}

}  // namespace tessera::data
