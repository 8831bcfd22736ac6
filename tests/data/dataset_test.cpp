#include "data/text_dataset.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <set>

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "data/error_helper.hpp"
#include "data/permutation.hpp"

namespace tessera::data {
namespace {

using testing::HasSubstr;

std::string some_text(std::size_t words) {
  Random random(1);
  const char* parts[] = {"king", "crown", "the", "of", "and", "storm", "night", "daggers"};
  std::string text;
  for (std::size_t index = 0; index < words; ++index) text += std::string(parts[random.below(8)]) + (random.below(9) == 0 ? ".\n" : " ");
  return text;
}

model::DataSpec text_spec(const std::filesystem::path& source, const std::string& kind = "bytes") {
  model::DataSpec spec;
  spec.sources = {{.path = source}};
  spec.tokenizer.kind = kind;
  spec.tokenizer.vocab = 300;
  spec.train_fraction = 0.9;
  return spec;
}

struct Sample {
  explicit Sample(const Dataset& dataset)
      : tokens(static_cast<std::size_t>(dataset.targets_per_sample())),
        targets(tokens.size()),
        positions(dataset.fields().size() > 2 ? tokens.size() : 0) {}
  std::vector<Row> rows() {
    std::vector<Row> out = {tokens, targets};
    if (!positions.empty()) out.emplace_back(positions);
    return out;
  }
  std::vector<std::int32_t> tokens, targets, positions;
};
Sample training_sample(const Dataset& dataset, std::int64_t id) {
  Sample sample(dataset);
  dataset.fill({id, 0}, sample.rows());
  return sample;
}
Sample validation_sample(const Dataset& dataset, std::int64_t index) {
  Sample sample(dataset);
  dataset.fill_validation(index, sample.rows());
  return sample;
}

std::vector<std::int64_t> ids(const Dataset& dataset, std::int64_t step, std::int64_t global_batch) {
  std::vector<std::int64_t> out;
  for (const Draw& draw : dataset.draws(step, global_batch)) out.push_back(draw.sample);
  return out;
}

TEST(Permutation, IsOneForEverySizeAndSeed) {
  for (std::uint64_t size : {1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 4095, 4096, 4097}) {
    for (std::uint64_t seed : {0, 1, 99}) {
      const Permutation order(size, seed);
      std::set<std::uint64_t> seen;
      for (std::uint64_t index = 0; index < size; ++index) {
        ASSERT_LT(order.at(index), size);
        seen.insert(order.at(index));
      }
      ASSERT_EQ(seen.size(), size);
    }
  }
}

TEST(Permutation, SpreadsElementsEvenly) {
  // Where element 0 .. 9 of 10 lands over many seeds: 100 cells of 200 expected; chi-square with 81 degrees of freedom
  // stays below 150 but for one draw in a million.
  constexpr int kSeeds = 2000, kSize = 10;
  std::vector<int> counts(kSize * kSize);
  for (int seed = 0; seed < kSeeds; ++seed) {
    const Permutation order(kSize, static_cast<std::uint64_t>(seed));
    for (std::uint64_t index = 0; index < kSize; ++index) ++counts[index * kSize + order.at(index)];
  }
  double chi = 0;
  for (int count : counts) chi += std::pow(count - kSeeds / kSize, 2) / (kSeeds / kSize);
  EXPECT_LT(chi, 150);
}

TEST(Dataset, PacksDocumentsWithAnEndOfTextEach) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"de\"}\n{\"text\": \"fghijklmnopqrst\"}\n");
  auto spec = text_spec(file);
  spec.train_fraction = 0.5;
  const auto dataset = TextDataset::open(spec, 4, 257, 1, folder / "cache");
  EXPECT_EQ(dataset->token_count(), 3 + 1 + 2 + 1 + 15 + 1);
  EXPECT_EQ(dataset->document_count(), 3);
  const Sample first = training_sample(*dataset, 0), second = training_sample(*dataset, 1);
  EXPECT_EQ(first.tokens, (std::vector<std::int32_t>{'a', 'b', 'c', 256}));
  EXPECT_EQ(first.targets, (std::vector<std::int32_t>{'b', 'c', 256, 'd'}));
  EXPECT_EQ(second.tokens, (std::vector<std::int32_t>{'d', 'e', 256, 'f'}));
  EXPECT_EQ(second.targets, (std::vector<std::int32_t>{'e', 256, 'f', 'g'}));
  // 23 tokens: 2 training sequences with their 9 tokens, then validation from token 9 on.
  EXPECT_EQ(dataset->train_samples(), 2);
  EXPECT_EQ(dataset->validation_samples(), 3);
  EXPECT_EQ(validation_sample(*dataset, 0).tokens, (std::vector<std::int32_t>{'h', 'i', 'j', 'k'}));
  EXPECT_EQ(validation_sample(*dataset, 2).targets, (std::vector<std::int32_t>{'q', 'r', 's', 't'}));
}

TEST(Dataset, SharesNoTokenBetweenTrainingAndValidation) {
  const TemporaryFolder folder;
  for (std::size_t length = 40; length < 90; length += 7) {
    std::string text;
    for (std::size_t index = 0; index < length; ++index) text.push_back(static_cast<char>('!' + index));  // each token once
    const auto dataset = TextDataset::open(text_spec(folder.write("a.txt", text)), 3, 257, 1, folder / "cache");
    std::set<std::int32_t> train, validation;
    for (std::int64_t id = 0; id < dataset->train_samples(); ++id) {
      const Sample sample = training_sample(*dataset, id);
      train.insert(sample.tokens.begin(), sample.tokens.end());
      train.insert(sample.targets.begin(), sample.targets.end());
    }
    for (std::int64_t index = 0; index < dataset->validation_samples(); ++index) {
      const Sample sample = validation_sample(*dataset, index);
      validation.insert(sample.tokens.begin(), sample.tokens.end());
      validation.insert(sample.targets.begin(), sample.targets.end());
    }
    EXPECT_EQ(train.size(), static_cast<std::size_t>(dataset->train_samples() * 3 + 1));
    EXPECT_EQ(validation.size(), static_cast<std::size_t>(dataset->validation_samples() * 3 + 1));
    for (std::int32_t token : validation) EXPECT_FALSE(train.contains(token));
  }
}

TEST(Dataset, VisitsEverySampleOnceAnEpochInAnOrderOfSeedAndEpochAlone) {
  const TemporaryFolder folder;
  const auto spec = text_spec(folder.write("a.txt", some_text(600)));
  const auto dataset = TextDataset::open(spec, 8, 257, 5, folder / "cache");
  const std::int64_t samples = dataset->train_samples(), batch = 7;
  // The concatenation of the steps is cut into epochs, whatever the batch.
  std::vector<std::int64_t> stream;
  for (std::int64_t step = 0; static_cast<std::int64_t>(stream.size()) < 3 * samples; ++step) {
    const auto batch_ids = ids(*dataset, step, batch);
    ASSERT_EQ(batch_ids.size(), 7u);
    stream.insert(stream.end(), batch_ids.begin(), batch_ids.end());
  }
  for (int epoch = 0; epoch < 3; ++epoch) {
    const std::set<std::int64_t> seen(stream.begin() + epoch * samples, stream.begin() + (epoch + 1) * samples);
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), samples);
    EXPECT_EQ(*seen.begin(), 0);
    EXPECT_EQ(*seen.rbegin(), samples - 1);
  }
  EXPECT_FALSE(std::equal(stream.begin(), stream.begin() + samples, stream.begin() + samples)) << "two epochs in the same order";
  const auto other_batch = ids(*dataset, 0, samples);
  EXPECT_TRUE(std::equal(other_batch.begin(), other_batch.end(), stream.begin()));
  const auto again = TextDataset::open(spec, 8, 257, 5, folder / "cache");
  EXPECT_EQ(ids(*again, 11, batch), ids(*dataset, 11, batch)) << "resuming needs the step alone";
  EXPECT_NE(ids(*TextDataset::open(spec, 8, 257, 6, folder / "cache"), 0, samples), other_batch);
}

using Tokens = std::vector<std::int32_t>;

TEST(Dataset, DocumentsThatAreKeptApartBeginAtPositionZeroAndAreNotForetold) {
  const TemporaryFolder folder;
  auto spec = text_spec(folder.write("a.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"de\"}\n{\"text\": \"fghijklmnopqrst\"}\n"));
  spec.train_fraction = 0.5;
  spec.separate_documents = true;
  const auto dataset = TextDataset::open(spec, 5, 257, 1, folder / "cache");
  // The stream is a b c <> d e <> f g h ...; samples are those of one stream, with borders.
  const Sample first = training_sample(*dataset, 0), second = training_sample(*dataset, 1);
  EXPECT_EQ(first.tokens, (Tokens{'a', 'b', 'c', 256, 'd'}));
  EXPECT_EQ(first.targets, (Tokens{'b', 'c', 256, -1, 'e'}));
  EXPECT_EQ(first.positions, (Tokens{0, 1, 2, 3, 0}));
  EXPECT_EQ(second.tokens, (Tokens{'e', 256, 'f', 'g', 'h'}));
  EXPECT_EQ(second.targets, (Tokens{256, -1, 'g', 'h', 'i'}));
  EXPECT_EQ(second.positions, (Tokens{0, 1, 0, 1, 2})) << "what a sample cuts off begins anew";
  EXPECT_EQ(dataset->counted_targets(0), 4);
  EXPECT_EQ(dataset->counted_targets(1), 4);
}

model::DataSpec answers_spec(const std::filesystem::path& source) {
  model::DataSpec spec = text_spec(source);
  spec.records.prompt = "p";
  spec.records.answer = "a";
  spec.separate_documents = true;
  spec.train_fraction = 1.0;
  return spec;
}

TEST(Dataset, SamplesOfAnswersAreWholeDocumentsWhosePromptsDoNotCount) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.jsonl",
                                 "{\"p\": \"ab\", \"a\": \"c\"}\n"            // 3 places: a b c
                                 "{\"p\": \"d\", \"a\": \"ef\"}\n"            // 3
                                 "{\"p\": \"\", \"a\": \"ghi\"}\n"            // 3: does not fit any more
                                 "{\"p\": \"0123456789\", \"a\": \"x\"}\n"    // its prompt alone is longer than a sample
                                 "{\"p\": \"jk\", \"a\": \"lmnopqrst\"}\n");  // loses its end
  const auto dataset = TextDataset::open(answers_spec(file), 8, 257, 1, folder / "cache");
  ASSERT_EQ(dataset->train_samples(), 3);
  const Sample first = training_sample(*dataset, 0), second = training_sample(*dataset, 1), third = training_sample(*dataset, 2);
  EXPECT_EQ(first.tokens, (Tokens{'a', 'b', 'c', 'd', 'e', 'f', 256, 256}));
  EXPECT_EQ(first.targets, (Tokens{-1, 'c', 256, 'e', 'f', 256, -1, -1}));
  EXPECT_EQ(first.positions, (Tokens{0, 1, 2, 0, 1, 2, 0, 1}));
  EXPECT_EQ(second.tokens, (Tokens{'g', 'h', 'i', 256, 256, 256, 256, 256}));
  EXPECT_EQ(second.targets, (Tokens{'h', 'i', 256, -1, -1, -1, -1, -1}));
  EXPECT_EQ(third.tokens, (Tokens{'j', 'k', 'l', 'm', 'n', 'o', 'p', 'q'}));
  EXPECT_EQ(third.targets, (Tokens{-1, 'l', 'm', 'n', 'o', 'p', 'q', 'r'}));
  EXPECT_EQ(dataset->counted_targets(0), 5);
  EXPECT_EQ(dataset->counted_targets(1), 3);
  EXPECT_EQ(dataset->counted_targets(2), 7);
  EXPECT_THAT(dataset->notes(), testing::ElementsAre(HasSubstr("4 answers in 3 sequences of 8, of which they fill 70 %"),
                                                     HasSubstr("1 of them are longer than model.seq 8"), HasSubstr("1 are left out")));
}

TEST(Dataset, EachDocumentIsASampleOfItsOwnLength) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.jsonl",
                                 "{\"p\": \"ab\", \"a\": \"c\"}\n"
                                 "{\"p\": \"\", \"a\": \"\"}\n"  // left out
                                 "{\"p\": \"jk\", \"a\": \"lmnopqrst\"}\n");
  auto answers = answers_spec(file);
  answers.lengths.emplace();
  const auto dataset = TextDataset::open(answers, 8, 257, 1, folder / "cache");
  ASSERT_EQ(dataset->train_samples(), 2);
  EXPECT_EQ(dataset->length(0), 3);
  EXPECT_EQ(dataset->length(1), 8) << "it loses its end";
  EXPECT_EQ(dataset->counted_targets(0), 2);
  Tokens tokens(3), targets(3), positions(3);
  dataset->fill({0, 0}, {tokens, targets, positions});
  EXPECT_EQ(tokens, (Tokens{'a', 'b', 'c'}));
  EXPECT_EQ(targets, (Tokens{-1, 'c', 256}));
  EXPECT_EQ(positions, (Tokens{0, 1, 2}));
  // With more room, padding is a document of its own.
  const Sample padded = training_sample(*dataset, 0);
  EXPECT_EQ(padded.targets, (Tokens{-1, 'c', 256, -1, -1, -1, -1, -1}));
  EXPECT_EQ(padded.positions, (Tokens{0, 1, 2, 0, 1, 2, 3, 4}));
  auto texts = text_spec(file);
  texts.records.field = "a";
  texts.separate_documents = true;
  texts.lengths.emplace();
  texts.train_fraction = 1.0;
  const auto plain = TextDataset::open(texts, 8, 257, 1, folder / "cache");
  EXPECT_EQ(plain->train_samples(), 2);
  EXPECT_EQ(plain->length(0), 1);
  EXPECT_EQ(plain->counted_targets(0), 1);
}

TEST(Dataset, SyntheticLengthsHaveTheirDistribution) {
  constexpr std::int64_t kLongest = 4096;
  for (const auto kind : {model::LengthSpec::Kind::lognormal, model::LengthSpec::Kind::pareto, model::LengthSpec::Kind::uniform}) {
    model::DataSpec spec;
    spec.synthetic = spec.separate_documents = true;
    const bool uniform = kind == model::LengthSpec::Kind::uniform;
    spec.lengths = {kind, uniform ? 0 : 128};
    const auto dataset = TextDataset::open(spec, kLongest, 257, 1, {});
    std::vector<std::int64_t> lengths;
    for (std::int64_t sample = 0; sample < 4000; ++sample) lengths.push_back(dataset->length(sample));
    std::sort(lengths.begin(), lengths.end());
    EXPECT_GE(lengths.front(), 1);
    EXPECT_LE(lengths.back(), kLongest);
    EXPECT_GT(lengths.back(), kLongest / 2);
    const double median = uniform ? kLongest / 2 : 128;
    EXPECT_NEAR(static_cast<double>(lengths[2000]), median, 0.1 * median);
  }
}

TEST(Dataset, CountsTheTargetsThatSamplesHave) {
  const TemporaryFolder folder;
  Random random(9);
  std::string lines;
  for (int i = 0; i < 400; ++i)
    lines += "{\"p\": \"" + std::string(random.below(12), 'p') + "\", \"a\": \"" + std::string(1 + random.below(20), 'a') + "\"}\n";
  const auto file = folder.write("a.jsonl", lines);
  auto apart = text_spec(file);
  apart.records.field = "a";
  apart.separate_documents = true;
  auto together = apart;
  together.separate_documents = false;
  for (const auto& spec : {answers_spec(file), apart, together}) {
    const auto dataset = TextDataset::open(spec, 16, 257, 1, folder / "cache");
    for (std::int64_t id = 0; id < dataset->train_samples(); ++id) {
      const Sample sample = training_sample(*dataset, id);
      ASSERT_EQ(dataset->counted_targets(id), std::ssize(sample.targets) - std::count(sample.targets.begin(), sample.targets.end(), -1))
          << id;
    }
  }
}

TEST(Dataset, SaysWhenNoAnswerFits) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.jsonl", "{\"p\": \"0123456789\", \"a\": \"x\"}\n");
  EXPECT_THAT(error_of([&] { TextDataset::open(answers_spec(file), 8, 257, 1, folder / "cache"); }),
              HasSubstr("the prompts of all 1 are longer than model.seq 8"));
}

TEST(Dataset, RefusesAJobThatNamesNoSource) {
  model::DataSpec spec;
  spec.where.file = "train.yaml";
  const std::string error = error_of([&] { TextDataset::open(spec, 8, 257, 1, {}); });
  EXPECT_THAT(error, HasSubstr("data.source is not set"));
  EXPECT_THAT(error, HasSubstr("set data.source in train.yaml"));
}

// Sources of letters of their own, so that tokens tell where a sample is from.
model::DataSpec mixed_spec(const TemporaryFolder& folder, std::vector<std::optional<double>> weights) {
  model::DataSpec spec = text_spec("");
  spec.sources.clear();
  spec.train_fraction = 0.8;
  for (std::size_t k = 0; k < weights.size(); ++k) {
    const std::string letters(1000 * (k + 1), static_cast<char>('a' + k));
    spec.sources.push_back({.path = folder.write(std::string(1, static_cast<char>('a' + k)) + ".txt", letters), .weight = weights[k]});
  }
  return spec;
}

TEST(Dataset, MixesSourcesByTheirWeights) {
  const TemporaryFolder folder;
  const auto dataset = TextDataset::open(mixed_spec(folder, {1.0, 3.0}), 8, 257, 1, folder / "cache");
  const auto sources = dataset->sources();
  ASSERT_EQ(sources.size(), 2u);
  // 100 and 200 samples: with shares of 1/4 and 3/4 the second is seen first, after 67 of the first.
  EXPECT_EQ(sources[0].train, 100);
  EXPECT_EQ(sources[1].train, 200);
  EXPECT_EQ(sources[0].per_epoch, 67);
  EXPECT_EQ(sources[1].per_epoch, 200);
  const std::int64_t epoch = 267;
  std::vector<std::int64_t> of_first;
  for (int e = 0; e < 3; ++e) {
    std::set<std::int64_t> of_second;
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < epoch; ++i) {
      const std::int64_t id = ids(*dataset, e * epoch + i, 1)[0];
      const char letter = static_cast<char>(training_sample(*dataset, id).tokens[0]);
      EXPECT_EQ(letter, id < 100 ? 'a' : 'b');
      if (id < 100) {
        of_first.push_back(id);
        ++count;
      } else {
        of_second.insert(id);
      }
    }
    EXPECT_EQ(count, 67);
    EXPECT_EQ(of_second.size(), 200u) << "each sample of the source that is seen whole stands once";
  }
  EXPECT_EQ(std::set(of_first.begin(), of_first.begin() + 67).size(), 67u) << "no sample stands twice in an epoch";
  std::set<std::int64_t> firsts(of_first.begin(), of_first.end());
  EXPECT_EQ(firsts.size(), 100u) << "three epochs pass over the first source twice";
  const auto again = TextDataset::open(mixed_spec(folder, {1.0, 3.0}), 8, 257, 1, folder / "cache");
  EXPECT_EQ(ids(*again, 40, 16), ids(*dataset, 40, 16));
  EXPECT_EQ(ids(*dataset, 20, 32), [&] {
    auto both = ids(*dataset, 40, 16);
    const auto second = ids(*dataset, 41, 16);
    both.insert(both.end(), second.begin(), second.end());
    return both;
  }()) << "the order knows nothing of batches";
}

TEST(Dataset, SourcesWithoutWeightsAreSeenWholeInEachEpoch) {
  const TemporaryFolder folder;
  const auto dataset = TextDataset::open(mixed_spec(folder, {std::nullopt, std::nullopt, std::nullopt}), 8, 257, 1, folder / "cache");
  ASSERT_EQ(dataset->train_samples(), 100 + 200 + 300);
  const auto drawn = ids(*dataset, 0, 600);
  EXPECT_EQ(std::set(drawn.begin(), drawn.end()).size(), 600u);
  EXPECT_NE(dataset->content_hash(), TextDataset::open(mixed_spec(folder, {1.0, 1.0, 1.0}), 8, 257, 1, folder / "cache")->content_hash());
}

TEST(Dataset, ValidatesOnTheMixtureThatItTrainsOn) {
  const TemporaryFolder folder;
  const auto dataset = TextDataset::open(mixed_spec(folder, {3.0, 1.0}), 4, 257, 1, folder / "cache");
  std::int64_t of_first = 0;
  for (std::int64_t i = 0; i < dataset->validation_samples(); ++i) of_first += validation_sample(*dataset, i).tokens[0] == 'a';
  EXPECT_NEAR(static_cast<double>(of_first) / static_cast<double>(dataset->validation_samples()), 0.75, 0.02);
  const auto other_seed = TextDataset::open(mixed_spec(folder, {3.0, 1.0}), 4, 257, 2, folder / "cache");
  for (std::int64_t i = 0; i < dataset->validation_samples(); ++i)
    EXPECT_EQ(validation_sample(*other_seed, i).tokens, validation_sample(*dataset, i).tokens);
}

TEST(Dataset, GivesTheUnigramEntropyOfTheValidationTargets) {
  const TemporaryFolder folder;
  // Validation targets are a, b, c, d equally often but for the end: -log of a quarter.
  std::string text;
  for (int index = 0; index < 4000; ++index) text.push_back("abcd"[index % 4]);
  const auto dataset = TextDataset::open(text_spec(folder.write("a.txt", text)), 4, 257, 1, folder / "cache");
  EXPECT_NEAR(dataset->unigram_entropy_of_validation(), std::log(4.0), 1e-12);
}

TEST(Dataset, MakesSyntheticTokensOfTheModelsVocabulary) {
  model::DataSpec spec;
  spec.synthetic = true;
  const auto dataset = TextDataset::open(spec, 16, 100, 3, {});
  EXPECT_EQ(dataset->tokenizer(), nullptr);
  const Sample sample = training_sample(*dataset, ids(*dataset, 5, 4)[2]);
  EXPECT_TRUE(std::equal(sample.tokens.begin() + 1, sample.tokens.end(), sample.targets.begin()));
  for (std::int32_t token : sample.tokens) EXPECT_TRUE(token >= 0 && token < 100);
  EXPECT_EQ(training_sample(*TextDataset::open(spec, 16, 100, 3, {}), 17).tokens, training_sample(*dataset, 17).tokens);
  EXPECT_NE(training_sample(*TextDataset::open(spec, 16, 100, 4, {}), 17).tokens, training_sample(*dataset, 17).tokens);
  EXPECT_NE(validation_sample(*dataset, 0).tokens, training_sample(*dataset, 0).tokens);
  EXPECT_GT(dataset->unigram_entropy_of_validation(), 4.5);
  EXPECT_LE(dataset->unigram_entropy_of_validation(), std::log(100.0));
}

TEST(Dataset, SaysWhatToSetWhenTheTokenizerIsTooLarge) {
  const TemporaryFolder folder;
  auto spec = text_spec(folder.write("a.txt", some_text(2000)), "bpe");
  spec.tokenizer.vocab = 280;
  const std::string error = error_of([&] { TextDataset::open(spec, 8, 200, 1, folder / "cache"); });
  EXPECT_THAT(error, HasSubstr("the tokenizer has 280 tokens but model.vocab is 200"));
  EXPECT_THAT(error, HasSubstr("set model.vocab to 280, or data.tokenizer.vocab to 200"));
}

TEST(Dataset, SaysWhenThereIsTooLittleText) {
  const TemporaryFolder folder;
  const auto spec = text_spec(folder.write("a.txt", some_text(30)));
  EXPECT_THAT(error_of([&] { TextDataset::open(spec, 1000, 257, 1, folder / "cache"); }), HasSubstr("too few for one sequence of 1000"));
  EXPECT_THAT(error_of([&] { TextDataset::open(spec, 64, 257, 1, folder / "cache"); }), HasSubstr("left for validation"));
  const auto dataset = TextDataset::open(spec, 8, 257, 1, folder / "cache");
  EXPECT_THAT(error_of([&] { ids(*dataset, 0, 500); }), HasSubstr("a batch has 500 sequences but the training split has only"));
}

TEST(Dataset, BuildsTheCacheOnceAndAnewWhenTheSourceChanged) {
  const TemporaryFolder folder;
  const auto spec = text_spec(folder.write("a.txt", some_text(3000)), "bpe");
  std::vector<std::string> stages;
  const auto open = [&] {
    stages.clear();
    return TextDataset::open(spec, 8, 300, 1, folder / "cache", [&](const Progress& progress) { stages.push_back(progress.stage); });
  };
  const auto first = open();
  EXPECT_THAT(stages, testing::Contains("tokenizing"));
  const auto second = open();
  EXPECT_THAT(stages, testing::Not(testing::Contains("tokenizing")));
  EXPECT_EQ(training_sample(*second, 3).tokens, training_sample(*first, 3).tokens);
  folder.write("a.txt", some_text(4000));
  EXPECT_GT(open()->token_count(), first->token_count());
  EXPECT_THAT(stages, testing::Contains("tokenizing"));
}

TEST(Dataset, RebuildsADamagedCacheOrTokenizerAndNeverUsesIt) {
  const TemporaryFolder folder;
  const auto spec = text_spec(folder.write("a.txt", some_text(3000)), "bpe");
  const auto open = [&] { return TextDataset::open(spec, 8, 300, 1, folder / "cache"); };
  const std::int64_t tokens = open()->token_count();
  const auto expected = training_sample(*open(), 3).tokens;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cache")) {
    if (entry.file_size() > 0) std::filesystem::resize_file(entry.path(), entry.file_size() / 2);
  }
  EXPECT_EQ(open()->token_count(), tokens);
  EXPECT_EQ(training_sample(*open(), 3).tokens, expected);
}

// Starts `work` in a child process, which exits with 0 when it does not throw.
pid_t in_child(const std::function<void()>& work) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  int status = 1;
  try {
    work();
    status = 0;
  } catch (...) {}
  ::_exit(status);
}

TEST(Dataset, IsBuiltByManyProcessesAtOnce) {
  const TemporaryFolder folder;
  const auto spec = text_spec(folder.write("a.txt", some_text(20000)), "bpe");
  std::vector<pid_t> children(6);
  for (pid_t& child : children) child = in_child([&] { TextDataset::open(spec, 8, 300, 1, folder / "cache"); });
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  int caches = 0, temporary = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cache")) {
    caches += entry.path().extension() == ".bin";
    temporary += entry.path().string().find(".tmp.") != std::string::npos;
  }
  EXPECT_EQ(caches, 1);
  EXPECT_EQ(temporary, 0);
  EXPECT_GT(TextDataset::open(spec, 8, 300, 1, folder / "cache")->token_count(), 20000);
}

TEST(Dataset, OutlivesABuilderThatIsKilled) {
  const TemporaryFolder folder;
  const auto spec = text_spec(folder.write("a.txt", some_text(20000)));
  // Dies in the middle of tokenizing, with its temporary file open and its lock held.
  const auto die = [](const Progress& progress) {
    if (progress.stage == "tokenizing") ::raise(SIGKILL);
  };
  const pid_t child = in_child([&] { TextDataset::open(spec, 8, 300, 1, folder / "cache", die); });
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_GT(TextDataset::open(spec, 8, 300, 1, folder / "cache")->token_count(), 20000);
  for (const auto& entry : std::filesystem::directory_iterator(folder / "cache"))
    EXPECT_EQ(entry.path().string().find(".tmp."), std::string::npos);
}

TEST(Dataset, KnowsTheFolderOfTheCache) {
  ASSERT_EQ(::setenv("TESSERA_CACHE", "/somewhere/else", 1), 0);
  EXPECT_EQ(default_cache_dir(), "/somewhere/else");
  ASSERT_EQ(::unsetenv("TESSERA_CACHE"), 0);
  EXPECT_EQ(default_cache_dir(), ".cache/tessera");
}

}  // namespace
}  // namespace tessera::data
