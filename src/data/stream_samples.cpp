#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"
#include "data/samples.hpp"

namespace tessera::data {
namespace {

class SyntheticSamples final : public Samples {
 public:
  SyntheticSamples(std::int64_t seq, std::int64_t vocab, std::uint64_t seed, const std::optional<model::LengthSpec>& lengths)
      : seq_(seq), vocab_(static_cast<std::uint64_t>(vocab)), seed_(seed), lengths_(lengths) {
    // These bounds only give endless data epochs and a validation split.
    train_ = 1 << 20;
    validation_ = 256;
  }

  void fill(std::int64_t index, const SampleRoom& room) const override {
    Random random(seed_of(seed_, static_cast<std::uint64_t>(index), 0x73796E74));
    const auto draw = [&] { return static_cast<std::int32_t>(random.below(vocab_)); };
    room.tokens[0] = draw();
    for (std::size_t i = 0; i < room.targets.size(); ++i) {
      room.targets[i] = draw();
      if (i + 1 < room.tokens.size()) room.tokens[i + 1] = room.targets[i];
    }
    std::iota(room.positions.begin(), room.positions.end(), 0);
    const std::int64_t own = length(index);
    if (own < std::ssize(room.targets)) std::fill(room.targets.begin() + own, room.targets.end(), -1);
    if (own < std::ssize(room.positions)) std::iota(room.positions.begin() + own, room.positions.end(), 0);
  }
  std::int64_t counted(std::int64_t index) const override { return length(index); }
  std::int64_t length(std::int64_t index) const override {
    if (!lengths_) return seq_;
    Random random(seed_of(seed_, static_cast<std::uint64_t>(index), 0x6C656E67));
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(drawn(random)), 1, seq_);
  }

 private:
  double drawn(Random& random) const {
    const auto longest = static_cast<double>(seq_);
    const auto median = static_cast<double>(lengths_->median);
    switch (lengths_->kind) {
      case model::LengthSpec::Kind::lognormal: {
        // The sum of twelve uniform numbers is close to normal, and comes to no more than six deviations.
        double normal = -6;
        for (int i = 0; i < 12; ++i) normal += random.uniform();
        return median * std::exp(std::log(longest / median) / 3 * normal);
      }
      case model::LengthSpec::Kind::pareto: return median / 2 / (1 - random.uniform());
      case model::LengthSpec::Kind::uniform: return 1 + random.uniform() * longest;
      case model::LengthSpec::Kind::documents: break;
    }
    throw Error(ErrorCode::internal, "synthetic data has no documents");
  }

  std::int64_t seq_;
  std::uint64_t vocab_;
  std::uint64_t seed_;
  std::optional<model::LengthSpec> lengths_;
};

class StreamSamples final : public Samples {
 public:
  StreamSamples(const TokenCache& cache, std::int64_t seq, const model::DataSpec& spec, const Where& where)
      : cache_(cache), seq_(seq), separate_(spec.separate_documents) {
    const std::int64_t size = cache.size();
    const auto wanted = static_cast<std::int64_t>(static_cast<double>(size) * spec.train_fraction);
    train_ = std::min(wanted, size - 1) / seq;
    if (train_ < 1 && spec.train_fraction > 0) {
      throw Error(ErrorCode::invalid_config,
                  text("the source has ", size, " tokens, of which ", wanted, " are for training: too few for one sequence of ", seq),
                  where, text("more than ", seq, " tokens in the training split"), "use more text, or a shorter model.seq");
    }
    validation_begin_ = train_ > 0 ? train_ * seq + 1 : 0;
    validation_ = std::max<std::int64_t>(0, (size - validation_begin_ - 1) / seq);
    if (validation_ < 1 && spec.train_fraction < 1) {
      throw Error(ErrorCode::invalid_config,
                  text("the source has ", size, " tokens, of which ", std::max<std::int64_t>(0, size - validation_begin_),
                       " are left for validation: too few for one sequence of ", seq),
                  where, text("more than ", seq, " tokens in the validation split"),
                  spec.train_fraction > 0 ? "use more text, a smaller data.split.train, or 1.0 to go without validation" : "use more text");
    }
  }

  void fill(std::int64_t index, const SampleRoom& room) const override {
    const std::int64_t first = first_token(index);
    cache_.read(first, room.tokens);
    std::copy(room.tokens.begin() + 1, room.tokens.end(), room.targets.begin());
    cache_.read(first + seq_, room.targets.last(1));
    if (!separate_) return;
    std::iota(room.positions.begin(), room.positions.end(), 0);
    for_each_begin(first, [&](std::int64_t next) {
      room.targets[static_cast<std::size_t>(next - 1)] = -1;
      if (next < seq_ && !room.positions.empty()) std::iota(room.positions.begin() + next, room.positions.end(), 0);
    });
  }

  std::int64_t counted(std::int64_t index) const override {
    std::int64_t left_out = 0;
    if (separate_) for_each_begin(first_token(index), [&](std::int64_t) { ++left_out; });
    return seq_ - left_out;
  }
  std::int64_t length(std::int64_t) const override { return seq_; }

 private:
  std::int64_t first_token(std::int64_t index) const { return index < train_ ? index * seq_ : validation_begin_ + (index - train_) * seq_; }

  // Where documents begin behind the sample's first token, up to its last target: 1 to seq.
  template <typename Visit>
  void for_each_begin(std::int64_t first, const Visit& visit) const {
    for (std::int64_t document = cache_.document_of(first); document < cache_.document_count(); ++document) {
      const std::int64_t end = cache_.document_begin(document + 1);
      if (end > first + seq_) return;
      if (end > first) visit(end - first);
    }
  }

  const TokenCache& cache_;
  std::int64_t seq_;
  bool separate_;
  std::int64_t validation_begin_ = 0;  // in tokens
};

}  // namespace

std::unique_ptr<Samples> make_synthetic_samples(std::int64_t seq, std::int64_t vocab, std::uint64_t seed,
                                                const std::optional<model::LengthSpec>& lengths) {
  return std::make_unique<SyntheticSamples>(seq, vocab, seed, lengths);
}

std::unique_ptr<Samples> make_stream_samples(const TokenCache& cache, std::int64_t seq, const model::DataSpec& spec, const Where& where) {
  return std::make_unique<StreamSamples>(cache, seq, spec, where);
}

}  // namespace tessera::data
