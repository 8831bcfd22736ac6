// Click logs with named columns: CSV and MultiSlot, how their values become ids, and which samples are kept. tests/python/test_clicks.py
// has Parquet.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/expect_error.hpp"
#include "base/hash.hpp"
#include "base/temporary_folder.hpp"
#include "data/clicks/click_file.hpp"
#include "data/clicks/keys.hpp"
#include "data/compressed_files.hpp"
#include "data/dataset.hpp"
#include "model/job.hpp"

namespace tessera::data {
namespace {

using tessera::testing::error_of;

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kModel = "{arch: deepfm, dim: 4, hidden: [8], tables: 2, dense: 1}";

// A job on the file, as train.yaml says it.
model::JobSpec job_of(const std::filesystem::path& source, const std::string& data, const std::string& model = kModel) {
  return model::read_job(ConfigNode::parse(text("name: c\nmodel: ", model, "\ndata: {source: '", source.string(), "', ", data, "}\n"),
                                           source.parent_path() / "train.yaml"));
}

std::unique_ptr<Dataset> opened(const std::filesystem::path& source, const std::string& data, const std::string& model = kModel) {
  const model::JobSpec job = job_of(source, data, model);
  return open_dataset(job.data, job.model, 1);
}

struct Shown {
  std::int32_t label = -5;
  std::vector<float> dense;
  std::vector<std::uint64_t> keys, history;
};

Shown sample_of(const Dataset& dataset, std::int64_t sample) {
  Shown out;
  std::vector<Row> rows;
  for (const Field& field : dataset.fields()) {
    const auto count = static_cast<std::size_t>(field.count());
    if (field.name == "labels") rows.emplace_back(std::span(&out.label, 1));
    if (field.name == "dense") rows.emplace_back(std::span(out.dense = std::vector<float>(count)));
    if (field.name == "keys") rows.emplace_back(std::span(out.keys = std::vector<std::uint64_t>(count)));
    if (field.name == "history") rows.emplace_back(std::span(out.history = std::vector<std::uint64_t>(count)));
  }
  dataset.fill({sample, 0}, rows);
  return out;
}

constexpr const char* kColumns = "columns: {label: click, dense: [price], categories: [user, item]}, split: {train: 1.0}";

std::uint64_t hashed(const std::string& value) { return hash64(value) % kEmptyId; }

TEST(Csv, FindsItsColumnsByTheFirstLine) {
  const TemporaryFolder folder;
  const auto path = folder.write("log.csv",
                                 "item,click,price,other,user\r\n"
                                 "shoe,1,2.5,x,ann\r\n"
                                 "\"a, \"\"b\"\"\",0,,\"\",\r\n");
  for (const std::string& name : {std::string("log.csv"), std::string("log.csv.gz"), std::string("log.csv.zst")}) {
    const std::string content = read_whole(path);
    if (name.ends_with("gz")) folder.write(name, gzipped(content));
    if (name.ends_with("zst")) folder.write(name, zstandard(content));
    const auto dataset = opened(path.parent_path() / name, std::string("format: csv, ") + kColumns);
    ASSERT_EQ(dataset->train_samples(), 2);
    const Shown first = sample_of(*dataset, 0), second = sample_of(*dataset, 1);
    EXPECT_EQ(first.label, 1);
    EXPECT_THAT(first.dense, ElementsAre(2.5f));
    EXPECT_THAT(first.keys, ElementsAre(key_of(0, hashed("ann")), key_of(1, hashed("shoe"))));
    EXPECT_EQ(second.label, 0);
    EXPECT_THAT(second.dense, ElementsAre(0.0f));
    EXPECT_THAT(second.keys, ElementsAre(key_of(0, kEmptyId), key_of(1, hashed("a, \"b\""))));
  }
}

TEST(Csv, WithoutAFirstLineHasTheNamesOfTheYaml) {
  const TemporaryFolder folder;
  const auto dataset = opened(folder.write("log.tsv", "1\t7\t3\t12\n"),
                              "format: csv, split: {train: 1.0}, columns: {names: [click, user, price, item], separator: \"\\t\", "
                              "label: click, dense: [price], categories: [{name: user, ids: number}, item]}",
                              "{arch: deepfm, dim: 4, hidden: [8], tables: [8, 5], dense: 1}");
  const Shown sample = sample_of(*dataset, 0);
  EXPECT_EQ(sample.label, 1);
  EXPECT_THAT(sample.dense, ElementsAre(3.0f));
  // What is hashed finds one of the rows that its table declares.
  EXPECT_THAT(sample.keys, ElementsAre(key_of(0, 7), key_of(1, hash64("12") % 5)));
}

TEST(Csv, NamesTheLineAndTheColumnThatCannotBeRead) {
  const TemporaryFolder folder;
  const std::string first = "click,price,user,item\n1,2,a,b\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1,2,a", "it has 3 fields, and not 4"},
      {"1,2,a,b,c", "it has more than 4 fields"},
      {"yes,2,a,b", "its column 'click' is 'yes', and not 0 or 1"},
      {"1,dear,a,b", "its column 'price' is 'dear', and not a number"},
      {"1,inf,a,b", "its column 'price' is 'inf', and not a number"},
      {"1,2,\"a,b", "its field 3 has a quote that does not end where the field does"},
      {"1,2,\"a\"b,c", "its field 3 has a quote that does not end"}};
  for (const auto& [line, problem] : cases) {
    const auto path = folder.write("log.csv", first + line + "\n");
    const Error error = error_of([&] { opened(path, std::string("format: csv, ") + kColumns); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_EQ(error.where().line, 3);
    EXPECT_THAT(error.what(), HasSubstr(problem));
    EXPECT_THAT(error.what(), HasSubstr("data.on_error: skip"));
  }
  const auto path = folder.write("log.csv", "click,price,usr,item\n1,2,a,b\n");
  const Error error = error_of([&] { opened(path, std::string("format: csv, ") + kColumns); });
  EXPECT_THAT(error.what(), HasSubstr("there is no column 'user'"));
  EXPECT_THAT(error.what(), HasSubstr("did you mean 'usr'?"));
  const Error beyond = error_of([&] {
    opened(folder.write("log.csv", first + "1,2,8,9\n"),
           "format: csv, columns: {label: click, dense: [price], categories: [user, {name: price, ids: number}]}",
           "{arch: deepfm, dim: 4, hidden: [8], tables: [0, 2], dense: 1}");
  });
  EXPECT_EQ(beyond.where().line, 2);
  EXPECT_THAT(beyond.what(), HasSubstr("id 2 of table 2"));
}

TEST(Multislot, HasACountBeforeTheValuesOfEachSlot) {
  const TemporaryFolder folder;
  const std::string data =
      "format: multislot, split: {train: 1.0}, columns: {names: [click, price, skipped, user, item], label: click, dense: [price], "
      "categories: [user, item]}";
  const char* const model = "{arch: deepfm, dim: 4, hidden: [8], tables: 2, lookups: 3, dense: 2}";
  const std::uint64_t large = ~std::uint64_t{0} - 5;
  const auto dataset = opened(folder.write("part-0", text("1 1 2 0.5 1.5 1 99 1 7 3 5 6 ", large, " \n1 0 2 0 0 0 0 1 4\n")), data, model);
  const Shown first = sample_of(*dataset, 0), second = sample_of(*dataset, 1);
  EXPECT_EQ(first.label, 1);
  EXPECT_THAT(first.dense, ElementsAre(0.5f, 1.5f));
  EXPECT_THAT(first.keys, ElementsAre(key_of(0, 7), kNoKey, kNoKey, key_of(1, 5), key_of(1, 6), key_of(1, hashed(text(large)))));
  EXPECT_THAT(second.keys, ElementsAre(kNoKey, kNoKey, kNoKey, key_of(1, 4), kNoKey, kNoKey));
  for (const auto& [line, problem] : std::vector<std::pair<std::string, std::string>>{
           {"1 1 2 0.5 1.5 1 99 1 7", "it ends before slot 'item'"},
           {"1 1 2 0.5 1.5 1 99 1 7 3 5", "it ends behind 1 of the 3 values of slot 'item'"},
           {"1 1 2 0.5 1.5 x 99 1 7 1 5", "slot 'skipped' has 'x' values"},
           {"1 1 2 0.5 1.5 0 1 7 1 5 6", "'6' stands behind its last slot, 'item'"},
           {"1 1 1 0.5 0 1 7 1 5", "it has 1 numbers, and model.dense is 2"},
           {"1 1 2 0.5 1 0 1 -7 1 5", "its column 'user' is '-7', and not a whole number"},
           {"1 1 2 0.5 1 0 4 1 2 3 4 1 5", "its column 'user' has 4 values, and model.lookups is 3"}}) {
    const auto path = folder.write("part-0", line + "\n");
    const Error error = error_of([&] { opened(path, data, model); });
    EXPECT_EQ(error.where().line, 1);
    EXPECT_THAT(error.what(), HasSubstr(problem));
  }
}

// The rarest values, those of the file alone and those of validation lines have no ids of their own.
TEST(Vocabularies, AreOfTrainingLinesOrOfAFile) {
  const TemporaryFolder folder;
  folder.write("items.txt", "shoe\nhat\n");
  const auto path = folder.write("log.csv",
                                 "click,user,item\n1,bob,hat\n0,ann,shoe\n1,ann,hat\n0,bob,coat\n0,ann,hat\n1,cid,hat\n"
                                 "1,dan,hat\n0,dan,hat\n");
  const std::string data =
      "format: csv, split: {train: 0.75}, columns: {label: click, categories: [{name: user, ids: vocabulary, least: 2}, "
      "{name: item, ids: vocabulary, file: items.txt}]}";
  const auto dataset = opened(path, data, "{arch: deepfm, dim: 4, hidden: [8], tables: [3, 3]}");
  const auto ids = [&](std::int64_t sample) {
    const Shown shown = sample_of(*dataset, sample);
    return std::pair(id_of(shown.keys[0]), id_of(shown.keys[1]));
  };
  EXPECT_EQ(ids(0), std::pair(std::uint64_t{2}, std::uint64_t{2}));
  EXPECT_EQ(ids(1), std::pair(std::uint64_t{1}, std::uint64_t{1}));
  EXPECT_EQ(ids(3), std::pair(std::uint64_t{2}, std::uint64_t{0}));
  EXPECT_EQ(ids(5), std::pair(std::uint64_t{0}, std::uint64_t{2}));
  std::int32_t label = 0;
  std::vector<std::uint64_t> keys(2);
  dataset->fill_validation(0, {std::span(&label, 1), std::span(keys)});
  EXPECT_EQ(id_of(keys[0]), 0u);

  const std::uint64_t before = dataset->content_hash();
  folder.write("items.txt", "hat\nshoe\n");
  EXPECT_NE(opened(path, data, "{arch: deepfm, dim: 4, hidden: [8], tables: [3, 3]}")->content_hash(), before);
  folder.write("items.txt", "hat\nshoe\nhat\n");
  const Error error = error_of([&] { opened(path, data, "{arch: deepfm, dim: 4, hidden: [8], tables: 2}"); });
  EXPECT_EQ(error.where().line, 3);
  EXPECT_THAT(error.what(), HasSubstr("'hat' stands in line 1 already"));
}

// Its parts are one log, in the order of their days; values of the last lines have no ids of their own.
TEST(ClickFolders, AreReadAsOneLogInTheOrderOfTheirNumbers) {
  const TemporaryFolder folder;
  const std::string first = "click,user\n1,ann\n0,bob\n1,ann\n", second = "click,user\n0,cid\n0,bob\n", third = "click,user\n1,dan\n";
  folder.write("log/day_10.csv", third);
  folder.write("log/day_2.csv.gz", gzipped(second));
  folder.write("log/day_1.csv", first);
  folder.write("log/_SUCCESS", "");
  folder.write("log/.part", "nothing");
  folder.write("log/day_3.csv", "");
  const std::string data = "format: csv, split: {train: 0.84}, columns: {label: click, categories: [{name: user, ids: vocabulary}]}";
  constexpr const char* kFour = "{arch: deepfm, dim: 4, hidden: [8], tables: [4]}";
  const auto dataset = opened(folder.path() / "log", data, kFour);
  ASSERT_EQ(dataset->train_samples(), 5);
  ASSERT_EQ(dataset->validation_samples(), 1);
  std::vector<std::uint64_t> ids;
  for (std::int64_t sample = 0; sample < 5; ++sample) ids.push_back(id_of(sample_of(*dataset, sample).keys[0]));
  EXPECT_THAT(ids, ElementsAre(1, 2, 1, 3, 2));  // ann and bob come twice, and ann is the first by name
  std::int32_t label = 0;
  std::vector<std::uint64_t> keys(1);
  dataset->fill_validation(0, {std::span(&label, 1), std::span(keys)});
  EXPECT_EQ(label, 1);
  EXPECT_EQ(id_of(keys[0]), 0u);

  const std::uint64_t before = dataset->content_hash();
  folder.write("log/day_10.csv", "click,user\n1,eve\n");
  EXPECT_NE(opened(folder.path() / "log", data, kFour)->content_hash(), before);
  folder.write("log/day_10.csv", "click,shop\n1,eve\n");
  const Error other = error_of([&] { opened(folder.path() / "log", data, kFour); });
  EXPECT_THAT(other.where().file, HasSubstr("day_10.csv"));
  EXPECT_THAT(other.what(), HasSubstr("the first line of"));
  folder.write("empty/_SUCCESS", "1");
  EXPECT_THAT(error_of([&] { opened(folder.path() / "empty", data, kFour); }).what(), HasSubstr("holds no log"));
  EXPECT_THAT(error_of([&] { opened(folder.path() / "logs", data, kFour); }).what(),
              ::testing::AllOf(HasSubstr("a click log"), HasSubstr("did you mean")));
}

std::string log_of(int lines) {
  std::string log = "click,user\n";
  for (int n = 0; n < lines; ++n) log += text(n % 4 == 0 ? 1 : 0, ",", n, "\n");
  return log;
}

constexpr const char* kOneTable = "{arch: deepfm, dim: 4, hidden: [8], tables: 1}";
constexpr const char* kNumbers = "format: csv, columns: {label: click, categories: [{name: user, ids: number}]}";

TEST(Negatives, AreLeftOutOfTrainingByTheSeedAlone) {
  const TemporaryFolder folder;
  const auto path = folder.write("log.csv", log_of(4000));
  const auto kept = [&](std::uint64_t seed) {
    const model::JobSpec job = job_of(path, text(kNumbers, ", negatives: 0.25, split: {train: 0.75}"), kOneTable);
    const auto dataset = open_dataset(job.data, job.model, seed);
    EXPECT_EQ(dataset->validation_samples(), 1000);
    EXPECT_EQ(dataset->notes().size(), 1u);
    std::vector<std::uint64_t> clicks, others;
    for (std::int64_t n = 0; n < dataset->train_samples(); ++n) {
      const Shown shown = sample_of(*dataset, n);
      EXPECT_LT(id_of(shown.keys[0]), 3000u);
      EXPECT_EQ(shown.label, id_of(shown.keys[0]) % 4 == 0 ? 1 : 0);
      (shown.label == 1 ? clicks : others).push_back(id_of(shown.keys[0]));
    }
    EXPECT_EQ(clicks.size(), 750u);
    // Of 2250 a quarter; four deviations of that are 82.
    EXPECT_NEAR(static_cast<double>(others.size()), 2250 / 4.0, 82);
    return others;
  };
  EXPECT_EQ(kept(1), kept(1));
  EXPECT_NE(kept(1), kept(2));
}

TEST(ClickFiles, AreTheSameReadByAnyNumberOfThreads) {
  const TemporaryFolder folder;
  std::string log = log_of(500);
  for (const int number : {1, 100, 101, 498}) {
    std::size_t begin = 0;
    for (int n = 0; n < number; ++n) begin = log.find('\n', begin) + 1;
    log[begin] = 'x';
  }
  const auto path = folder.write("log.csv", log);
  const model::JobSpec job = job_of(path, text(kNumbers, ", on_error: skip"), kOneTable);
  const auto whole = open_dataset(job.data, job.model, 1);
  ASSERT_EQ(whole->train_samples() + whole->validation_samples(), 496);

  class Lines final : public ClickFormat {
   public:
    std::string read(std::string_view line, const ClickRoom& room) const override {
      room.label = line.starts_with('1') ? 1 : 0;
      return line.starts_with('x') ? "an x" : "";
    }
  } const format;
  const ClickShape shape{.dense = 0, .lookups = 1, .history = 0, .target = 0, .rows = {0}};
  for (const int threads : {1, 2, 7, 600, 5000}) {
    const auto file = [&](model::OnError on_error) {
      return ClickFile(ClickText({.path = path, .bytes = log.size()}), format, shape, on_error, true, threads, {});
    };
    const ClickFile read = file(model::OnError::skip);
    ASSERT_EQ(read.size(), 496);
    EXPECT_EQ(read.note(), text(path.string(), ": 4 lines cannot be read and were left out (2, 101, 102, ...); of the first, an x"));
    std::int64_t index = 0;
    for (int n = 0; n < 500; ++n) {
      if (n == 0 || n == 99 || n == 100 || n == 497) continue;
      EXPECT_EQ(read.line(index), text(n % 4 == 0 ? 1 : 0, ",", n));
      EXPECT_EQ(read.clicked(index), n % 4 == 0);
      ++index;
    }
    EXPECT_EQ(error_of([&] { file(model::OnError::stop); }).where().line, 2);
  }
}

TEST(Histories, AreKeysOfTheTargetsTable) {
  const TemporaryFolder folder;
  const auto path = folder.write("log.csv", "click,item,user,seen\n1,9,ann,1|2||3|4\n0,8,bob,\n");
  const auto dataset = opened(path,
                              "format: csv, split: {train: 1.0}, columns: {label: click, categories: [user, {name: item, ids: number}], "
                              "history: seen}",
                              "{arch: din, dim: 4, hidden: [8], tables: 2, history: 3, target: 1}");
  EXPECT_THAT(sample_of(*dataset, 0).history, ElementsAre(key_of(1, 3), key_of(1, 4), kNoKey));
  EXPECT_THAT(sample_of(*dataset, 1).history, Each(kNoKey));
}

}  // namespace
}  // namespace tessera::data
