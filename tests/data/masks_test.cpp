#include "data/masks.hpp"

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

constexpr std::int64_t kSeq = 64;
constexpr std::int32_t kEnd = 256, kMask = 257;  // of bytes, and the id behind them

// Documents of 1 to 100 letters and digits.
std::string some_documents(int count) {
  Random random(3);
  std::string lines;
  for (int i = 0; i < count; ++i) {
    std::string words;
    for (std::uint64_t length = 1 + random.below(100); length > 0; --length) words += static_cast<char>('0' + random.below(60));
    std::erase(words, '\\');
    lines += "{\"text\": \"" + words + "x\"}\n";
  }
  return lines;
}

model::DataSpec text_spec(const std::filesystem::path& source) {
  model::DataSpec spec;
  spec.sources = {{.path = source}};
  spec.tokenizer.kind = "bytes";
  spec.train_fraction = 0.9;
  spec.where.file = "train.yaml";
  return spec;
}

struct Sample {
  Tokens tokens = Tokens(kSeq), targets = Tokens(kSeq);
  friend bool operator==(const Sample&, const Sample&) = default;
};
Sample training_sample(const Dataset& dataset, std::int64_t id, std::int64_t epoch = 0) {
  Sample sample;
  dataset.fill({id, epoch}, {sample.tokens, sample.targets});
  return sample;
}
Sample validation_sample(const Dataset& dataset, std::int64_t index) {
  Sample sample;
  dataset.fill_validation(index, {sample.tokens, sample.targets});
  return sample;
}
std::int64_t targets_of(const Sample& sample) { return kSeq - std::count(sample.targets.begin(), sample.targets.end(), -1); }

class Masked : public testing::Test {
 protected:
  std::unique_ptr<TextDataset> open(const model::DataSpec& spec, std::uint64_t seed = 1, std::int64_t vocab = 258) const {
    return TextDataset::open(spec, kSeq, vocab, seed, folder_ / "cache");
  }
  // A tokenizer.json with the byte values, <|endoftext|> and these special tokens behind them.
  model::DataSpec with_tokens(const std::vector<std::string>& special) const {
    auto root = nlohmann::json::parse(make_byte_tokenizer()->content());
    for (const std::string& content : special) {
      auto token = root["added_tokens"][0];
      token["id"] = 256 + root["added_tokens"].size();
      token["content"] = content;
      root["added_tokens"].push_back(token);
    }
    model::DataSpec spec = spec_;
    spec.tokenizer = {.kind = "hf", .file = folder_.write("tokenizer.json", root.dump())};
    return spec;
  }
  std::string error_with(const model::DataSpec& spec, std::int64_t vocab = 258) const {
    return error_of([&] { open(spec, 1, vocab); });
  }

  TemporaryFolder folder_;
  model::DataSpec plain_ = text_spec(folder_.write("a.jsonl", some_documents(2000)));
  model::DataSpec spec_ = [this] {
    model::DataSpec spec = plain_;
    spec.mask.emplace();
    return spec;
  }();
};

TEST_F(Masked, EightyTenAndTenPercentOfTheChosenAreMaskedReplacedAndKept) {
  const auto plain = open(plain_), dataset = open(spec_);
  ASSERT_EQ(dataset->train_samples(), plain->train_samples());
  double chosen = 0, masked = 0, replaced = 0;
  std::vector<double> at(kSeq), drawn(258);
  for (std::int64_t id = 0; id < dataset->train_samples(); ++id) {
    const Tokens original = training_sample(*plain, id).tokens;
    for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
      const Sample sample = training_sample(*dataset, id, epoch);
      for (std::size_t i = 0; i < sample.tokens.size(); ++i) {
        if (sample.targets[i] < 0) {
          ASSERT_EQ(sample.tokens[i], original[i]);
          continue;
        }
        ASSERT_EQ(sample.targets[i], original[i]);
        ASSERT_NE(sample.targets[i], kEnd);
        ++chosen;
        ++at[i];
        if (sample.tokens[i] == kMask) {
          ++masked;
        } else if (sample.tokens[i] != original[i]) {
          ++replaced;
          ++drawn[static_cast<std::size_t>(sample.tokens[i])];
        }
      }
    }
  }
  ASSERT_GT(chosen, 50000);
  // Five standard deviations; one of 256 random tokens is the original.
  EXPECT_NEAR(masked / chosen, 0.8, 5 * std::sqrt(0.8 * 0.2 / chosen));
  EXPECT_NEAR(replaced / chosen, 0.1 * 255 / 256, 5 * std::sqrt(0.1 * 0.9 / chosen));
  EXPECT_EQ(drawn[kEnd], 0) << "no end of text where there was none";
  EXPECT_EQ(std::count(drawn.begin(), drawn.begin() + 256, 0), 0) << "any ordinary token may be drawn";
  // Places are chosen alike: chi-square with 63 degrees of freedom stays below 130 but for one draw in a million.
  double chi = 0;
  for (const double count : at) chi += std::pow(count - chosen / kSeq, 2) / (chosen / kSeq);
  EXPECT_LT(chi, 130);
}

TEST_F(Masked, TheSameShareOfASampleIsChosenInEveryEpochAndCounted) {
  model::DataSpec few = spec_;
  few.mask->share = 1e-6;
  model::DataSpec all = spec_;
  all.mask->share = 1;
  const auto plain = open(plain_), dataset = open(spec_), one = open(few), whole = open(all);
  for (std::int64_t id = 0; id < dataset->train_samples(); ++id) {
    const Tokens original = training_sample(*plain, id).tokens;
    const auto ordinary = kSeq - std::count(original.begin(), original.end(), kEnd);
    ASSERT_EQ(dataset->counted_targets(id), std::llround(0.15 * static_cast<double>(ordinary)));
    ASSERT_EQ(one->counted_targets(id), 1);
    ASSERT_EQ(whole->counted_targets(id), ordinary);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      ASSERT_EQ(targets_of(training_sample(*dataset, id, epoch)), dataset->counted_targets(id));
      ASSERT_EQ(targets_of(training_sample(*one, id, epoch)), 1);
      ASSERT_EQ(targets_of(training_sample(*whole, id, epoch)), ordinary);
    }
  }
}

TEST_F(Masked, NothingIsChosenWhereAllTokensAreSpecial) {
  std::string lines;
  for (int i = 0; i < 10 * kSeq; ++i) lines += "{\"text\": \"<pad>\"}\n";
  model::DataSpec spec = with_tokens({"<pad>"});
  spec.sources = {{.path = folder_.write("pads.jsonl", lines)}};
  const auto dataset = open(spec, 1, 259);
  EXPECT_EQ(dataset->counted_targets(0), 0);
  EXPECT_EQ(targets_of(training_sample(*dataset, 0)), 0);
}

TEST_F(Masked, MasksDependOnSeedEpochAndSampleAlone) {
  const auto dataset = open(spec_), again = open(spec_), other = open(spec_, 2);
  int same_in_next_epoch = 0, same_with_other_seed = 0;
  for (std::int64_t id = 0; id < 100; ++id) {
    const Sample sample = training_sample(*dataset, id, 5);
    EXPECT_EQ(training_sample(*again, id, 5), sample);
    same_in_next_epoch += training_sample(*dataset, id, 6).targets == sample.targets;
    same_with_other_seed += training_sample(*other, id, 5).targets == sample.targets;
  }
  EXPECT_EQ(same_in_next_epoch, 0);
  EXPECT_EQ(same_with_other_seed, 0);
  EXPECT_EQ(dataset->draws(7, 16), open(plain_)->draws(7, 16)) << "the order is that of samples without masks";
}

TEST_F(Masked, ValidationSamplesAreMaskedAlikeInAllRuns) {
  const auto plain = open(plain_), dataset = open(spec_), other = open(spec_, 2);
  ASSERT_GT(dataset->validation_samples(), 10);
  for (std::int64_t index = 0; index < dataset->validation_samples(); ++index) {
    const Sample sample = validation_sample(*dataset, index);
    EXPECT_EQ(validation_sample(*other, index), sample);
    Tokens mended = sample.tokens;
    for (std::size_t i = 0; i < mended.size(); ++i)
      if (sample.targets[i] >= 0) mended[i] = sample.targets[i];
    EXPECT_EQ(mended, validation_sample(*plain, index).tokens);
    EXPECT_NE(mended, sample.tokens);
  }
}

TEST_F(Masked, DocumentsStayApart) {
  spec_.separate_documents = plain_.separate_documents = true;
  const auto plain = open(plain_), dataset = open(spec_);
  Sample a, b;
  Tokens positions(kSeq), expected(kSeq);
  for (std::int64_t id = 0; id < 20; ++id) {
    dataset->fill({id, 0}, {a.tokens, a.targets, positions});
    plain->fill({id, 0}, {b.tokens, b.targets, expected});
    EXPECT_EQ(positions, expected);
    EXPECT_EQ(targets_of(a), dataset->counted_targets(id));
  }
}

TEST_F(Masked, TheUnigramEntropyIsOfTheChosenTokens) {
  std::string letters;
  for (int i = 0; i < 40000; ++i) letters += "abcd"[i % 4];
  spec_.sources = {{.path = folder_.write("letters.txt", letters)}};
  EXPECT_NEAR(open(spec_)->unigram_entropy_of_validation(), std::log(4.0), 0.02);
}

TEST_F(Masked, TheMaskIsATokenOfTheTokenizerOrTheIdBehindItsLast) {
  const auto mask_of = [&](const model::DataSpec& spec, std::int64_t vocab) {
    const auto dataset = open(spec, 1, vocab);
    std::vector<int> seen(static_cast<std::size_t>(vocab));
    for (std::int64_t id = 0; id < 50; ++id)
      for (const std::int32_t token : training_sample(*dataset, id).tokens) ++seen[static_cast<std::size_t>(token)];
    return std::max_element(seen.begin(), seen.end()) - seen.begin();
  };
  EXPECT_EQ(mask_of(spec_, 258), 257);
  EXPECT_EQ(mask_of(spec_, 300), 257);
  EXPECT_EQ(mask_of(with_tokens({"<pad>", "[MASK]"}), 259), 258);
  EXPECT_EQ(mask_of(with_tokens({"<mask>", "<pad>"}), 300), 257);
  model::DataSpec named = with_tokens({"[MASK]", "<gap>"});
  named.mask->token = "<gap>";
  EXPECT_EQ(mask_of(named, 259), 258);
}

TEST_F(Masked, SaysWhenThereIsNoMaskToken) {
  const std::string full = error_with(spec_, 257);
  EXPECT_THAT(full, HasSubstr("the tokenizer has no mask token, and with its 257 tokens model.vocab 257 leaves no id for one"));
  EXPECT_THAT(full, HasSubstr("set model.vocab to 258, or name a token of the tokenizer with data.mask.token"));
  model::DataSpec learned = spec_;
  learned.tokenizer.kind = "bpe";
  learned.tokenizer.vocab = 300;
  EXPECT_THAT(error_with(learned, 300), HasSubstr("set model.vocab to 301, or data.tokenizer.vocab to 299"));
  model::DataSpec named = with_tokens({"[MASK]"});
  named.mask->token = "[MSK]";
  EXPECT_THAT(error_with(named, 300), HasSubstr("train.yaml: the tokenizer has no token \"[MSK]\""));
}

TEST_F(Masked, OtherMasksAreOtherData) {
  const auto hash_of = [&](const model::DataSpec& spec) { return open(spec, 1, 300)->content_hash(); };
  model::DataSpec share = spec_;
  share.mask->share = 0.2;
  EXPECT_EQ(hash_of(spec_), hash_of(spec_));
  EXPECT_NE(hash_of(spec_), hash_of(plain_));
  EXPECT_NE(hash_of(share), hash_of(spec_));
  model::DataSpec first = with_tokens({"[MASK]", "<gap>"});
  model::DataSpec second = first;
  second.mask->token = "<gap>";
  EXPECT_NE(hash_of(first), hash_of(second));
}

TEST_F(Masked, SyntheticTokensAreMaskedByTheLastOfTheVocabulary) {
  model::DataSpec spec;
  spec.synthetic = true;
  spec.mask.emplace();
  const auto dataset = open(spec, 1, 40);
  int masked = 0;
  for (std::int64_t id = 0; id < 50; ++id) {
    const Sample sample = training_sample(*dataset, id);
    EXPECT_EQ(targets_of(sample), 10);
    EXPECT_EQ(dataset->counted_targets(id), 10);
    for (std::size_t i = 0; i < sample.tokens.size(); ++i) {
      EXPECT_LT(sample.targets[i], 39);
      EXPECT_TRUE(sample.tokens[i] < 39 || sample.targets[i] >= 0);
      masked += sample.tokens[i] == 39;
    }
  }
  EXPECT_NEAR(masked, 400, 50);
  EXPECT_THAT(error_with(spec, 1), HasSubstr("model.vocab of at least 2"));
  spec.mask->token = "[MASK]";
  EXPECT_THAT(error_with(spec), HasSubstr("synthetic data has no token \"[MASK]\""));
}

TEST_F(Masked, MasksAreShownInTheText) {
  const auto dataset = open(spec_);
  EXPECT_EQ(dataset->decode(Tokens{'a', kMask, kMask, 'b', kEnd}), "a[MASK][MASK]b");
  EXPECT_EQ(dataset->decode(Tokens{'a', kEnd, kMask}, true), "a<|endoftext|>[MASK]");
  // A mask within a character of several bytes, which leaves none of it.
  EXPECT_EQ(dataset->decode(Tokens{0xC3, kMask, 'x'}), "\xEF\xBF\xBD[MASK]x");
}

}  // namespace
}  // namespace tessera::data
