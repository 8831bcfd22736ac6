#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.hpp"
#include "base/temporary_folder.hpp"
#include "data/clicks/click_file.hpp"
#include "data/clicks/keys.hpp"
#include "data/dataset.hpp"
#include "data/error_helper.hpp"
#include "model/forms.hpp"

namespace tessera::data {
namespace {

using testing::Each;
using testing::HasSubstr;

model::ModelSpec deepfm(const std::string& tables = "26", const std::string& more = "dense: 13") {
  return model::read_model(ConfigNode::parse(text("{arch: deepfm, dim: 4, hidden: [8], tables: ", tables, ", ", more, "}"), "train.yaml"));
}

// Category i of line n is n + i, its first number n, its label n modulo 2.
std::string line_of(int n) {
  std::string out = text(n % 2, "\t", n);
  for (int i = 1; i < 13; ++i) out += "\t";
  char digits[16];
  for (int i = 0; i < 26; ++i) {
    std::snprintf(digits, sizeof digits, "\t%08x", static_cast<unsigned>(n + i));
    out += digits;
  }
  return out;
}

std::string log_of(int lines, const std::string& end = "\n") {
  std::string out;
  for (int n = 0; n < lines; ++n) out += line_of(n) + end;
  return out;
}

model::DataSpec spec_of(const std::filesystem::path& source, model::OnError on_error = model::OnError::stop) {
  model::DataSpec spec;
  spec.sources = {{.path = source}};
  spec.format = model::ClickFormat::criteo;
  spec.train_fraction = 0.8;
  spec.records.on_error = on_error;
  spec.where.file = "train.yaml";
  return spec;
}

struct Shown {
  std::int32_t label = -5;
  std::vector<float> dense = std::vector<float>(13);
  std::vector<std::uint64_t> keys = std::vector<std::uint64_t>(26);
  std::vector<Row> rows() { return {std::span(&label, 1), std::span(dense), std::span(keys)}; }
  // Of line_of().
  int line() const { return static_cast<int>(id_of(keys[0])); }
};
Shown validated(const Dataset& dataset, std::int64_t index) {
  Shown out;
  dataset.fill_validation(index, out.rows());
  return out;
}
Shown trained(const Dataset& dataset, std::int64_t sample) {
  Shown out;
  dataset.fill({sample, 0}, out.rows());
  return out;
}

TEST(Clicks, AreALabelNumbersAndAKeyForEachCategory) {
  const TemporaryFolder folder;
  folder.write("log.tsv", "1\t7\t-2" + std::string(11, '\t') + "\tff\t" + "\tffffffff" + std::string(23, '\t') + "\n" + line_of(1) + "\n");
  model::DataSpec spec = spec_of(folder / "log.tsv");
  spec.train_fraction = 0.5;
  const auto dataset = open_dataset(spec, deepfm(), 1);
  const std::vector<Field> fields = dataset->fields();
  ASSERT_EQ(fields.size(), 3u);
  EXPECT_EQ(fields[0].name, "labels");
  EXPECT_EQ(fields[1].shape, (std::vector<std::int64_t>{13}));
  EXPECT_EQ(fields[2].shape, (std::vector<std::int64_t>{26, 1}));
  EXPECT_EQ(fields[2].type, FieldType::key);
  const Shown sample = trained(*dataset, 0);
  EXPECT_EQ(sample.label, 1);
  EXPECT_FLOAT_EQ(sample.dense[0], std::log(8.0f));
  EXPECT_EQ(sample.dense[1], 0);  // below zero
  EXPECT_EQ(sample.dense[2], 0);  // empty
  EXPECT_EQ(sample.keys[0], 0xff);
  EXPECT_EQ(sample.keys[1], (std::uint64_t{1} << 48) + kEmptyId);
  EXPECT_EQ(sample.keys[2], (std::uint64_t{2} << 48) + 0xffffffff);
  EXPECT_EQ(std::set<std::uint64_t>(sample.keys.begin(), sample.keys.end()).size(), 26u);
}

TEST(Clicks, AreFoundByTheirLineAndTheLastOnesValidate) {
  const TemporaryFolder folder;
  for (const char* end : {"\n", "\r\n"}) {
    const auto dataset = open_dataset(spec_of(folder.write("log.tsv", log_of(100, end))), deepfm(), 1);
    ASSERT_EQ(dataset->train_samples(), 80);
    ASSERT_EQ(dataset->validation_samples(), 20);
    for (int n = 0; n < 100; ++n) {
      const Shown sample = n < 80 ? trained(*dataset, n) : validated(*dataset, n - 80);
      EXPECT_EQ(sample.line(), n);
      EXPECT_EQ(sample.label, n % 2);
    }
  }
}

TEST(Clicks, AreDrawnOnceAnEpochInAnotherOrderEach) {
  const TemporaryFolder folder;
  const auto dataset = open_dataset(spec_of(folder.write("log.tsv", log_of(100))), deepfm(), 1);
  std::vector<std::int64_t> first, second;
  for (const Draw& draw : dataset->draws(0, 80)) first.push_back(draw.sample);
  for (const Draw& draw : dataset->draws(1, 80)) second.push_back(draw.sample);
  EXPECT_NE(first, second);
  EXPECT_EQ(std::set<std::int64_t>(first.begin(), first.end()).size(), 80u);
  EXPECT_EQ(std::set<std::int64_t>(second.begin(), second.end()).size(), 80u);
  EXPECT_THAT(error_of([&] { dataset->draws(0, 81); }), HasSubstr("a batch has 81 samples but the training split has only 80 lines"));
}

// Lines before, between and behind damaged ones are found all the same.
TEST(Clicks, ThatCannotBeReadAreLeftOutAndCounted) {
  const TemporaryFolder folder;
  std::string log;
  for (int n = 0; n < 100; ++n) log += (n == 0 || n == 17 || n == 18 || n == 99 ? "1\tbroken" : line_of(n)) + "\n";
  const auto path = folder.write("log.tsv", log);
  const auto dataset = open_dataset(spec_of(path, model::OnError::skip), deepfm(), 1);
  EXPECT_EQ(dataset->train_samples() + dataset->validation_samples(), 96);
  std::set<int> seen;
  for (int n = 0; n < dataset->train_samples(); ++n) seen.insert(trained(*dataset, n).line());
  for (int n = 0; n < dataset->validation_samples(); ++n) seen.insert(validated(*dataset, n).line());
  EXPECT_EQ(seen.size(), 96u);
  for (const int damaged : {0, 17, 18, 99}) EXPECT_FALSE(seen.contains(damaged));
  ASSERT_EQ(dataset->notes().size(), 1u);
  EXPECT_THAT(dataset->notes().front(),
              HasSubstr("4 lines cannot be read and were left out (1, 18, 19, ...); of the first, it has 2 fields"));
}

Error refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  return {ErrorCode::internal, "nothing was thrown"};
}

TEST(Clicks, NameTheLineThatCannotBeRead) {
  const TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"2" + line_of(1).substr(1), "its label is '2'"},
      {"", "it has 1 fields, and not 40"},
      {line_of(1) + "\t", "it has 41 fields"},
      {line_of(1).replace(2, 1, "1.5"), "its number 1 is '1.5'"},
      {line_of(1).substr(0, line_of(1).size() - 8) + "0x12", "its category 26 is '0x12'"},
      {line_of(1) + "0", "its category 26 is '0000001a0'"}};
  for (const auto& [line, problem] : cases) {
    const auto path = folder.write("log.tsv", log_of(5) + line + "\n" + log_of(5));
    const Error error = refusal([&] { open_dataset(spec_of(path), deepfm(), 1); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_EQ(error.where().line, 6);
    EXPECT_THAT(error.what(), HasSubstr(problem));
    EXPECT_THAT(error.what(), HasSubstr("data.on_error: skip"));
  }
}

TEST(Clicks, OfWhichTooManyCannotBeReadAreNoClickLog) {
  const TemporaryFolder folder;
  std::string log;
  for (int n = 0; n < 12; ++n) log += "some text\n";
  const auto path = folder.write("log.tsv", log_of(50) + log);
  const Error error = refusal([&] { open_dataset(spec_of(path, model::OnError::skip), deepfm(), 1); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_EQ(error.where().line, 61);
  EXPECT_THAT(error.what(), HasSubstr("11 of the first 61 lines cannot be read"));
}

TEST(Clicks, WithAnIdBeyondTheDeclaredRowsAreRefusedWithTheirLine) {
  const TemporaryFolder folder;
  std::string tables = "[40";
  for (int i = 1; i < 26; ++i) tables += ", 0";
  const auto path = folder.write("log.tsv", log_of(60));
  const Error error = refusal([&] { open_dataset(spec_of(path), deepfm(tables + "]"), 1); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_config);
  EXPECT_EQ(error.where().line, 41);
  EXPECT_THAT(error.what(), HasSubstr("id 40 of table 1, for which model.tables declares 40 rows"));
  tables.replace(1, 2, "60");
  EXPECT_NO_THROW(open_dataset(spec_of(path), deepfm(tables + "]"), 1));
}

TEST(Clicks, AreReadAsTheModelIs) {
  const TemporaryFolder folder;
  const auto path = folder.write("log.tsv", log_of(10));
  EXPECT_THAT(error_of([&] { open_dataset(spec_of(path), deepfm("25"), 1); }), HasSubstr("model.tables is 25"));
  EXPECT_THAT(error_of([&] { open_dataset(spec_of(path), deepfm("26", "dense: 12"), 1); }), HasSubstr("model.dense is 12"));
  EXPECT_THAT(error_of([&] { open_dataset(spec_of(path), deepfm("26", "lookups: 2"), 1); }), HasSubstr("model.lookups is 2"));
  EXPECT_EQ(open_dataset(spec_of(path), deepfm("26", "dense: 0"), 1)->fields().size(), 2u);
}

TEST(Clicks, OfLibsvmAreNumbersAndCategoriesInTheirOrder) {
  const TemporaryFolder folder;
  model::DataSpec spec = spec_of(folder.write("log.txt", "+1 2:0.5 9:1 7:1 100:1\n-1 1:-3\n0 5:1 6:1 7:1 8:1\n1 1:1\n0 1:1\n"));
  spec.format = model::ClickFormat::libsvm;
  const auto dataset = open_dataset(spec, deepfm("2", "dense: 2, lookups: 2"), 1);
  const auto read = [&](std::int64_t sample) {
    Shown out;
    out.dense.assign(2, -1);
    out.keys.assign(4, 0);
    dataset->fill({sample, 0}, out.rows());
    return out;
  };
  const std::uint64_t second = std::uint64_t{1} << kIdBits;
  EXPECT_EQ(read(0).label, 1);
  EXPECT_EQ(read(0).dense, (std::vector<float>{0, 0.5}));
  EXPECT_EQ(read(0).keys, (std::vector<std::uint64_t>{9, 7, second + 100, kNoKey}));
  EXPECT_EQ(read(1).label, 0);
  EXPECT_EQ(read(1).dense, (std::vector<float>{-3, 0}));
  EXPECT_THAT(read(1).keys, Each(kNoKey));
  EXPECT_EQ(read(2).keys, (std::vector<std::uint64_t>{5, 6, second + 7, second + 8}));
  for (const auto& [line, problem] :
       std::vector<std::pair<std::string, std::string>>{{"2 1:1", "its label is '2'"},
                                                        {"1 3", "'3' is no INDEX:VALUE"},
                                                        {"1 1:nan", "'1:nan' is no INDEX:VALUE"},
                                                        {"1 9:0.5", "category 9 has the value 0.5"},
                                                        {"1 3:1 4:1 5:1 6:1 7:1", "it has more than 4 categories"}}) {
    spec.sources = {{.path = folder.write("log.txt", "0 1:1\n" + line + "\n")}};
    const Error error = refusal([&] { open_dataset(spec, deepfm("2", "dense: 2, lookups: 2"), 1); });
    EXPECT_EQ(error.where().line, 2);
    EXPECT_THAT(error.what(), HasSubstr(problem));
  }
}

TEST(Clicks, OfLibffmAreNumbersAndTablesByTheirFields) {
  const TemporaryFolder folder;
  model::DataSpec spec = spec_of(folder.write("log.txt", "1 2:7:0.5 0:0:-1.5 1:9:1 2:8:0.5\n-1 1:3:0.25\n0 1:1:1\n0 1:1:1\n"));
  spec.format = model::ClickFormat::libffm;
  const model::ModelSpec model = deepfm("2", "dense: 1, lookups: 2");
  const auto dataset = open_dataset(spec, model, 1);
  const auto read = [&](std::int64_t sample) {
    Shown out;
    out.dense.assign(1, -1);
    out.keys.assign(4, 0);
    dataset->fill({sample, 0}, out.rows());
    return out;
  };
  const std::uint64_t second = std::uint64_t{1} << kIdBits;
  EXPECT_EQ(read(0).label, 1);
  EXPECT_EQ(read(0).dense, (std::vector<float>{-1.5}));
  EXPECT_EQ(read(0).keys, (std::vector<std::uint64_t>{9, kNoKey, second + 7, second + 8}));
  EXPECT_EQ(read(1).label, 0);
  EXPECT_EQ(read(1).dense, (std::vector<float>{0}));
  EXPECT_EQ(read(1).keys, (std::vector<std::uint64_t>{3, kNoKey, kNoKey, kNoKey}));
  for (const auto& [line, problem] :
       std::vector<std::pair<std::string, std::string>>{{"yes 1:1:1", "its label is 'yes'"},
                                                        {"1 3:1", "'3:1' is no FIELD:INDEX:VALUE"},
                                                        {"1 0:0:inf", "'0:0:inf' is no FIELD:INDEX:VALUE"},
                                                        {"1 3:1:1", "it has a field 3, and model.dense and model.tables say fields 0 to 2"},
                                                        {"1 1:1:1 1:2:1 1:3:1", "field 1 has more than 2 ids, the model's lookups"}}) {
    spec.sources = {{.path = folder.write("log.txt", "0 1:1:1\n" + line + "\n")}};
    const Error error = refusal([&] { open_dataset(spec, model, 1); });
    EXPECT_EQ(error.where().line, 2);
    EXPECT_THAT(error.what(), HasSubstr(problem));
  }
}

TEST(Clicks, ChangeTheirHashWithEveryByte) {
  const TemporaryFolder folder;
  const auto hash_of = [&](const std::string& log) {
    return open_dataset(spec_of(folder.write("log.tsv", log)), deepfm(), 1)->content_hash();
  };
  std::string log = log_of(50);
  const std::uint64_t hash = hash_of(log);
  EXPECT_EQ(hash_of(log), hash);
  log.back() = ' ';
  log.back() = '\n';
  log[log.size() - 2] = 'f';
  EXPECT_NE(hash_of(log), hash);
}

TEST(Clicks, ThatAreSyntheticAreTheSameForASeed) {
  model::DataSpec spec;
  spec.synthetic = true;
  const model::ModelSpec model = deepfm("[3, 0]", "dense: 2, lookups: 4");
  const auto keys_of = [&](std::uint64_t seed) {
    std::int32_t label = -1;
    std::vector<float> dense(2);
    std::vector<std::uint64_t> keys(8);
    open_dataset(spec, model, seed)->fill({5, 0}, {std::span(&label, 1), std::span(dense), std::span(keys)});
    return keys;
  };
  EXPECT_EQ(keys_of(1), keys_of(1));
  EXPECT_NE(keys_of(1), keys_of(2));
  const auto keys = keys_of(1);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_LT(keys[i], 3u);
  for (std::size_t i = 4; i < 8; ++i) EXPECT_EQ(keys[i] >> kIdBits, 1u);
}

}  // namespace
}  // namespace tessera::data
