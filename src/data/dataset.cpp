#include "data/dataset.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"
#include "data/permutation.hpp"

namespace tessera::data {
namespace {

// Synthetic data is endless; these bounds only give it epochs and a validation split.
constexpr std::int64_t kSyntheticTrain = 1 << 20;
constexpr std::int64_t kSyntheticValidation = 256;

}  // namespace

struct Dataset::State {
  model::DataSpec spec;
  std::int64_t seq = 0;
  std::int64_t vocab = 0;
  std::uint64_t seed = 0;
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<TokenCache> tokens;  // none: synthetic
  std::int64_t train = 0;
  std::int64_t validation = 0;
  std::int64_t validation_begin = 0;  // in tokens

  void split() {
    const std::int64_t size = tokens->size();
    const auto wanted = static_cast<std::int64_t>(static_cast<double>(size) * spec.train_fraction);
    train = std::min(wanted, size - 1) / seq;
    if (train < 1 && spec.train_fraction > 0) {
      throw Error(ErrorCode::invalid_config,
                  text("the source has ", size, " tokens, of which ", wanted, " are for training: too few for one sequence of ", seq),
                  spec.where, text("more than ", seq, " tokens in the training split"), "use more text, or a shorter model.seq");
    }
    validation_begin = train > 0 ? train * seq + 1 : 0;
    validation = std::max<std::int64_t>(0, (size - validation_begin - 1) / seq);
    if (validation < 1 && spec.train_fraction < 1) {
      throw Error(ErrorCode::invalid_config,
                  text("the source has ", size, " tokens, of which ", std::max<std::int64_t>(0, size - validation_begin),
                       " are left for validation: too few for one sequence of ", seq),
                  spec.where, text("more than ", seq, " tokens in the validation split"),
                  spec.train_fraction > 0 ? "use more text, a smaller data.split.train, or 1.0 to go without validation" : "use more text");
    }
  }

  // The seq + 1 tokens of a sample as inputs and targets.
  void fill_from(std::int64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    tokens->read(first, inputs);
    std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
    tokens->read(first + seq, targets.last(1));
  }

  void fill_synthetic(std::int64_t sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
    Random random(seed_of(seed, static_cast<std::uint64_t>(sample), 0x73796E74));
    const auto draw = [&] { return static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocab))); };
    inputs[0] = draw();
    for (std::size_t index = 0; index < targets.size(); ++index) {
      targets[index] = draw();
      if (index + 1 < inputs.size()) inputs[index + 1] = targets[index];
    }
  }

  void check(std::int64_t sample, std::int64_t count, std::size_t inputs, std::size_t targets) const {
    ensure(sample >= 0 && sample < count, text("sample ", sample, " of ", count));
    ensure(static_cast<std::int64_t>(inputs) == seq && static_cast<std::int64_t>(targets) == seq,
           "a sample has seq tokens and seq targets");
  }
};

Dataset::Dataset(std::unique_ptr<State> state) : state_(std::move(state)) {}
Dataset::~Dataset() = default;

std::unique_ptr<Dataset> Dataset::open(const model::DataSpec& spec, std::int64_t seq, std::int64_t vocab, std::uint64_t seed,
                                       const std::filesystem::path& cache_dir, const ProgressCallback& progress) {
  ensure(seq > 0 && vocab > 0, "a dataset needs a sequence length and a vocabulary");
  auto state = std::make_unique<State>();
  state->spec = spec;
  state->seq = seq;
  state->vocab = vocab;
  state->seed = seed;
  if (spec.source == "synthetic") {
    state->train = kSyntheticTrain;
    state->validation = kSyntheticValidation;
    return std::unique_ptr<Dataset>(new Dataset(std::move(state)));
  }
  if (!(spec.train_fraction >= 0 && spec.train_fraction <= 1)) {
    throw Error(ErrorCode::invalid_config, text("data.split.train is ", spec.train_fraction), spec.where, "0 to 1", "set data.split.train");
  }
  const std::filesystem::path folder = cache_dir.empty() ? default_cache_dir() : cache_dir;
  state->tokenizer = make_tokenizer(spec, folder, progress);
  if (state->tokenizer->vocab_size() > vocab) {
    throw Error(ErrorCode::invalid_config, text("the tokenizer has ", state->tokenizer->vocab_size(), " tokens but model.vocab is ", vocab),
                spec.where, text("model.vocab of at least ", state->tokenizer->vocab_size()),
                text("set model.vocab to ", state->tokenizer->vocab_size(),
                     spec.tokenizer.kind == "bpe" ? text(", or data.tokenizer.vocab to ", vocab) : ""));
  }
  state->tokens.emplace(open_token_cache(spec, *state->tokenizer, folder, progress));
  state->split();
  return std::unique_ptr<Dataset>(new Dataset(std::move(state)));
}

std::int64_t Dataset::train_samples() const { return state_->train; }
std::int64_t Dataset::validation_samples() const { return state_->validation; }
std::int64_t Dataset::token_count() const {
  return state_->tokens ? state_->tokens->size() : (state_->train + state_->validation) * state_->seq;
}
std::int64_t Dataset::document_count() const { return state_->tokens ? state_->tokens->document_count() : 0; }
std::int64_t Dataset::sequence_length() const { return state_->seq; }
std::uint64_t Dataset::content_hash() const {
  return seed_of(state_->tokens ? state_->tokens->content_hash() : state_->seed, static_cast<std::uint64_t>(state_->train),
                 static_cast<std::uint64_t>(state_->validation), static_cast<std::uint64_t>(state_->seq));
}
std::uint64_t Dataset::stream_hash() const { return state_->tokens ? state_->tokens->content_hash() : 0; }
const Tokenizer* Dataset::tokenizer() const { return state_->tokenizer.get(); }

std::vector<std::int64_t> Dataset::sample_ids(std::int64_t step, std::int64_t global_batch) const {
  ensure(step >= 0 && global_batch > 0, "a step and a batch");
  if (global_batch > state_->train) {
    throw Error(
        ErrorCode::invalid_config,
        text("a batch has ", global_batch, " sequences but the training split has only ", state_->train, " of ", state_->seq, " tokens"),
        state_->spec.where, text("train.global_batch of at most ", state_->train),
        "use more text, a smaller train.global_batch or a shorter model.seq");
  }
  std::vector<std::int64_t> ids;
  ids.reserve(static_cast<std::size_t>(global_batch));
  const auto train = static_cast<std::uint64_t>(state_->train);
  std::uint64_t position = static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(global_batch);
  std::uint64_t epoch = position / train;
  Permutation order(train, seed_of(state_->seed, epoch));
  for (std::int64_t index = 0; index < global_batch; ++index, ++position) {
    if (position / train != epoch) {
      epoch = position / train;
      order = Permutation(train, seed_of(state_->seed, epoch));
    }
    ids.push_back(static_cast<std::int64_t>(order.at(position % train)));
  }
  return ids;
}

void Dataset::fill(std::int64_t sample_id, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  state_->check(sample_id, state_->train, tokens.size(), targets.size());
  if (!state_->tokens) return state_->fill_synthetic(sample_id, tokens, targets);
  state_->fill_from(sample_id * state_->seq, tokens, targets);
}

void Dataset::fill_validation(std::int64_t index, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  state_->check(index, state_->validation, tokens.size(), targets.size());
  if (!state_->tokens) return state_->fill_synthetic(state_->train + index, tokens, targets);
  state_->fill_from(state_->validation_begin + index * state_->seq, tokens, targets);
}

double Dataset::unigram_entropy_of_validation() const {
  const State& s = *state_;
  if (s.validation == 0) {
    throw Error(ErrorCode::invalid_config, "there are no validation tokens", s.spec.where, "data.split.train below 1",
                "set data.split.train to 0.95");
  }
  std::vector<std::int64_t> counts(static_cast<std::size_t>(s.vocab));
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(s.seq)), targets(inputs.size());
  for (std::int64_t index = 0; index < s.validation; ++index) {
    fill_validation(index, inputs, targets);
    for (std::int32_t token : targets) ++counts[static_cast<std::size_t>(token)];
  }
  const auto total = static_cast<double>(s.validation * s.seq);
  double entropy = 0;
  for (std::int64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / total;
    entropy -= share * std::log(share);
  }
  return entropy;
}

}  // namespace tessera::data
