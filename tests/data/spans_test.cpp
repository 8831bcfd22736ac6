#include "data/spans.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "data/error_helper.hpp"
#include "data/text_dataset.hpp"

namespace tessera::data {
namespace {

using testing::HasSubstr;
using Tokens = std::vector<std::int32_t>;

// 64 tokens of the encoder: 71 of text, of which 11 are masked in 4 spans.
constexpr std::int64_t kSeq = 64, kText = 71, kNoise = 11, kSpans = 4, kDecoder = 20;
constexpr std::int32_t kVocab = 300, kFirstSentinel = 295;

struct Sample {
  Tokens tokens = Tokens(kSeq), decoder_tokens = Tokens(kDecoder), targets = Tokens(kDecoder);
  friend bool operator==(const Sample&, const Sample&) = default;
};
Sample training_sample(const Dataset& dataset, std::int64_t id, std::int64_t epoch = 0) {
  Sample sample;
  dataset.fill({id, epoch}, {sample.tokens, sample.decoder_tokens, sample.targets});
  return sample;
}
Sample validation_sample(const Dataset& dataset, std::int64_t index) {
  Sample sample;
  dataset.fill_validation(index, {sample.tokens, sample.decoder_tokens, sample.targets});
  return sample;
}

// The spans by their sentinels, as the targets have them; the last is empty.
std::vector<Tokens> spans_of(const Sample& sample) {
  std::vector<Tokens> spans;
  for (const std::int32_t token : sample.targets) {
    if (token < 0) break;
    if (token >= kFirstSentinel) {
      EXPECT_EQ(token, kVocab - 1 - std::ssize(spans));
      spans.emplace_back();
    } else {
      spans.back().push_back(token);
    }
  }
  return spans;
}
// The text with the spans back in their places.
Tokens mended(const Sample& sample) {
  const std::vector<Tokens> spans = spans_of(sample);
  Tokens text;
  for (const std::int32_t token : sample.tokens) {
    if (token < kFirstSentinel) {
      text.push_back(token);
      continue;
    }
    const Tokens& span = spans.at(static_cast<std::size_t>(kVocab - 1 - token));
    text.insert(text.end(), span.begin(), span.end());
  }
  return text;
}

class Corrupted : public testing::Test {
 protected:
  std::unique_ptr<TextDataset> open(const model::DataSpec& spec, std::uint64_t seed = 1, std::int64_t seq = kSeq,
                                    std::int64_t vocab = kVocab) const {
    return TextDataset::open(spec, seq, vocab, seed, folder_ / "cache");
  }
  model::DataSpec plain() const {
    Random random(3);
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += static_cast<char>('0' + random.below(60));
    model::DataSpec spec;
    spec.sources = {{.path = folder_.write("a.txt", text)}};
    spec.tokenizer.kind = "bytes";
    spec.train_fraction = 0.9;
    spec.where.file = "train.yaml";
    return spec;
  }

  TemporaryFolder folder_;
  model::DataSpec plain_ = plain();
  model::DataSpec spec_ = [this] {
    model::DataSpec spec = plain_;
    spec.mask.emplace().decoder_seq = kDecoder;
    return spec;
  }();
};

TEST_F(Corrupted, SpansArePutBackToTheText) {
  const auto dataset = open(spec_), whole = open(plain_, 1, kText);
  ASSERT_EQ(dataset->train_samples(), whole->train_samples());
  for (std::int64_t id = 0; id < dataset->train_samples(); ++id) {
    const Sample sample = training_sample(*dataset, id);
    Tokens expected(kText), unused(kText);
    whole->fill({id, 0}, {expected, unused});
    ASSERT_EQ(mended(sample), expected);
    const std::vector<Tokens> spans = spans_of(sample);
    ASSERT_EQ(std::ssize(spans), kSpans + 1);
    for (std::size_t k = 0; k + 1 < spans.size(); ++k) ASSERT_FALSE(spans[k].empty());
    ASSERT_TRUE(spans.back().empty());
    ASSERT_EQ(std::count_if(sample.targets.begin(), sample.targets.end(), [](std::int32_t target) { return target >= 0; }),
              kNoise + kSpans + 1);
    ASSERT_EQ(dataset->counted_targets(id), kNoise + kSpans + 1);
  }
}

TEST_F(Corrupted, TheDecoderReadsItsTargetsOneLater) {
  const auto dataset = open(spec_);
  const Sample sample = training_sample(*dataset, 5);
  EXPECT_EQ(sample.decoder_tokens[0], 0);
  for (std::size_t i = 1; i < kDecoder; ++i) EXPECT_EQ(sample.decoder_tokens[i], std::max(sample.targets[i - 1], 0)) << i;
}

TEST_F(Corrupted, HaveTheLengthsOfThePaper) {
  spec_.mask->decoder_seq = 114;
  const Spans spans(spec_, nullptr, 512, 32128);
  EXPECT_EQ(spans.text_length(), 569);
  EXPECT_EQ(spans.counted_targets(), 114);
}

TEST_F(Corrupted, TheEncoderReadsNoPaddingWhateverTheLengths) {
  spec_.mask->decoder_seq = 200;
  for (const double share : {1e-6, 0.15, 0.4, 0.5})
    for (const double span : {1.0, 2.5, 100.0})
      for (const std::int64_t seq : {2, 3, 4, 7, 20, 31, 40}) {
        spec_.mask->share = share;
        spec_.mask->span = span;
        const auto dataset = open(spec_, 1, seq);
        Tokens tokens(static_cast<std::size_t>(seq), -5);
        Tokens decoder_tokens(200), targets(200);
        dataset->fill({0, 0}, {tokens, decoder_tokens, targets});
        ASSERT_EQ(std::count(tokens.begin(), tokens.end(), -5), 0) << share << " " << span << " " << seq;
        ASSERT_EQ(std::count_if(targets.begin(), targets.end(), [](std::int32_t target) { return target >= 0; }),
                  dataset->counted_targets(0));
      }
}

TEST_F(Corrupted, AllCutsAreEquallyLikely) {
  const auto dataset = open(spec_);
  std::vector<int> first(kNoise + 1);
  constexpr int kEpochs = 4000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) ++first[spans_of(training_sample(*dataset, 0, epoch)).front().size()];
  // 11 tokens in 4 spans, of which the first has n: C(10 - n, 2) of C(10, 3) = 120 ways.
  for (int length = 1; length <= 8; ++length) {
    const double share = (10 - length) * (9 - length) / 2 / 120.0;
    EXPECT_NEAR(first[static_cast<std::size_t>(length)], kEpochs * share, 5 * std::sqrt(kEpochs * share)) << length;
  }
}

TEST_F(Corrupted, SpansDependOnSeedEpochAndSampleAlone) {
  const auto dataset = open(spec_), again = open(spec_), other = open(spec_, 2);
  for (std::int64_t id = 0; id < 50; ++id) {
    const Sample sample = training_sample(*dataset, id, 5);
    EXPECT_EQ(training_sample(*again, id, 5), sample);
    EXPECT_NE(training_sample(*dataset, id, 6), sample);
    EXPECT_NE(training_sample(*other, id, 5), sample);
    EXPECT_EQ(validation_sample(*other, id), validation_sample(*dataset, id));
  }
}

TEST_F(Corrupted, SaysWhenTheDecoderOrTheVocabularyIsTooSmall) {
  spec_.mask->decoder_seq = 15;
  EXPECT_THAT(error_of([&] { open(spec_); }), HasSubstr("samples of model.seq 64 have 16 targets, and model.decoder_seq is 15"));
  spec_.mask->decoder_seq = 16;
  EXPECT_EQ(open(spec_, 1, kSeq, 257 + 5)->counted_targets(0), 16);
  const std::string error = error_of([&] { open(spec_, 1, kSeq, 257 + 4); });
  EXPECT_THAT(error,
              HasSubstr("a sample has 5 sentinels, and beside the 257 tokens of the tokenizer model.vocab 261 leaves no ids for them"));
  EXPECT_THAT(error, HasSubstr("set model.vocab to 262"));
  EXPECT_THAT(error_of([&] { open(spec_, 1, 1); }), HasSubstr("model.seq is 1"));
}

TEST_F(Corrupted, OtherSpansAreOtherData) {
  const std::uint64_t hash = open(spec_)->content_hash();
  EXPECT_EQ(open(spec_, 2)->content_hash(), hash);
  EXPECT_NE(open(plain_)->content_hash(), hash);
  model::DataSpec share = spec_, span = spec_;
  share.mask->share = 0.151;
  span.mask->span = 3.1;
  EXPECT_NE(open(share)->content_hash(), hash);
  EXPECT_NE(open(span)->content_hash(), hash);
}

TEST_F(Corrupted, SyntheticTokensLeaveRoomForSentinels) {
  model::DataSpec spec;
  spec.synthetic = true;
  spec.mask.emplace().decoder_seq = kDecoder;
  const auto dataset = open(spec);
  for (std::int64_t id = 0; id < 20; ++id) {
    const Sample sample = training_sample(*dataset, id);
    EXPECT_EQ(std::count_if(sample.tokens.begin(), sample.tokens.end(), [](std::int32_t token) { return token >= kFirstSentinel; }),
              kSpans);
    EXPECT_EQ(std::ssize(mended(sample)), kText);
  }
}

TEST_F(Corrupted, SentinelsAreShownInTheText) { EXPECT_EQ(open(spec_)->decode(Tokens{'a', 299, 'b', 298}), "a<extra_id_0>b<extra_id_1>"); }

// Those of T5's tokenizers, whose vocabulary is smaller than the model's.
TEST_F(Corrupted, SentinelsThatTheTokenizerNamesAreUsed) {
  const auto named = [&](int count) {
    nlohmann::json vocab, added = {{{"id", 60}, {"content", "<|endoftext|>"}, {"special", true}}};
    for (int c = '0'; c < '0' + 60; ++c) vocab[std::string(1, static_cast<char>(c))] = c - '0';
    for (int k = 0; k < count; ++k) added.push_back({{"id", 60 + count - k}, {"content", text("<extra_id_", k, ">")}, {"special", true}});
    model::DataSpec spec = spec_;
    spec.tokenizer.kind = "hf";
    spec.tokenizer.file = folder_.write(
        text("named", count, ".json"),
        nlohmann::json{{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}, {"added_tokens", added}}
            .dump());
    return open(spec);
  };
  const auto dataset = named(10);
  const Sample sample = training_sample(*dataset, 0);
  EXPECT_EQ(sample.targets[0], 70);
  EXPECT_EQ(std::count_if(sample.tokens.begin(), sample.tokens.end(), [](std::int32_t token) { return token > 60; }), kSpans);
  EXPECT_EQ(*std::max_element(sample.tokens.begin(), sample.tokens.end()), 70);
  EXPECT_EQ(dataset->decode(Tokens{1, 70, 2}), "1<extra_id_0>2");
  EXPECT_THAT(error_of([&] { named(4); }), HasSubstr("a sample has 5 sentinels, and the tokenizer has no <extra_id_4> of id 64 - 4"));
}

TEST_F(Corrupted, TheUnigramEntropyIsOfAllTheDecoderWrites) {
  spec_.sources = {{.path = folder_.write("letters.txt", std::string(20000, 'a'))}};
  // Of 16 targets 11 are the letter, and five sentinels.
  EXPECT_NEAR(open(spec_)->unigram_entropy_of_validation(), -11.0 / 16 * std::log(11.0 / 16) + 5.0 / 16 * std::log(16.0), 1e-9);
}

}  // namespace
}  // namespace tessera::data
