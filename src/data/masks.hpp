// internal: masked language modelling (Devlin et al. 2019, section 3.1): which tokens of a sample are to be predicted, and what is seen
// there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/tokenizer.hpp"
#include "model/job.hpp"

namespace tessera::data {

// A share of the tokens of each sample is chosen at random, special tokens and the mask token aside. Of the chosen ones 80 % are seen as
// the mask token, 10 % as a random token that is not special, 10 % as they are. Immutable; safe to use from several threads.
class Masks {
 public:
  // The mask token is that of data.mask.token; where none is named, "[MASK]" or "<mask>"; where the tokenizer has neither, the id behind
  // its last token. Without a tokenizer, for synthetic tokens, it is the last id of the vocabulary. The tokenizer is not kept. Throws
  // invalid_config where the tokenizer has no such token, or `vocab` no id for one more. Precondition: spec.mask.
  Masks(const model::DataSpec& spec, const Tokenizer* tokenizer, std::int64_t vocab);

  std::int32_t token() const { return token_; }
  // Identifies the share and the mask token.
  std::uint64_t settings_hash() const;
  // How many of these unmasked tokens apply() chooses: the share of those that it may choose, rounded, and at least one of them. Linear.
  std::int64_t count(std::span<const std::int32_t> tokens) const;
  // Changes `tokens` at the chosen places; `targets`, as many, become the tokens that stood there, and -1 elsewhere. All that is random
  // depends on `seed` alone. Linear.
  void apply(std::span<std::int32_t> tokens, std::span<std::int32_t> targets, std::uint64_t seed) const;

 private:
  bool ordinary(std::int32_t token) const { return ordinary_[static_cast<std::size_t>(token)]; }
  std::int64_t share_of(std::int64_t places) const;

  double share_;
  std::int32_t token_;
  std::vector<bool> ordinary_;  // by id: neither special nor the mask
};

}  // namespace tessera::data
