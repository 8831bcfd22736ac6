// The ids of the `tokenizers` and `sentencepiece` packages against ours. reference.py makes the tokenizers and the texts.
#include <gtest/gtest.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "base/folders.hpp"
#include "base/temporary_folder.hpp"
#include "data/tokenizer.hpp"

namespace tessera::data {
namespace {

// Reads the numbers and strings that reference.py wrote.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : content_(read_whole(path)) {}
  std::uint32_t number() {
    std::uint32_t value = 0;
    if (position_ + sizeof value > content_.size()) throw std::runtime_error("the reference file is too short");
    std::memcpy(&value, content_.data() + position_, sizeof value);
    position_ += sizeof value;
    return value;
  }
  std::string string() {
    const std::uint32_t size = number();
    std::string value = content_.substr(position_, size);
    position_ += size;
    return value;
  }
  std::vector<std::uint32_t> ids() {
    std::vector<std::uint32_t> values(number());
    for (auto& value : values) value = number();
    return values;
  }
  bool at_end() const { return position_ == content_.size(); }

 private:
  std::string content_;
  std::size_t position_ = 0;
};

const std::string kShakespeare = std::string(kSourceFolder) + "/examples/shakespeare/shakespeare.txt";

// Runs the repository's Python; the test fails with its output when it does.
void run_python(const std::string& arguments) {
  const std::string python = std::string(kSourceFolder) + "/.venv/bin/python";
  ASSERT_TRUE(std::filesystem::exists(python)) << "the reference packages are missing: run ./dev setup first";
  const std::string command = python + " " + kSourceFolder + "/tests/data/" + arguments;
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
}

std::string visible(std::string_view text) { return nlohmann::json(text).dump(-1, ' ', true); }

TEST(Reference, EncodesAndDecodesAMillionPiecesAsTheReferencePackages) {
  const TemporaryFolder folder;
  const char* kept = std::getenv("TESSERA_REFERENCE_DATA");  // made by reference.py before, to look into a difference
  const std::filesystem::path data = kept != nullptr ? std::filesystem::path(kept) : folder.path();
  if (kept == nullptr) {
    ASSERT_NO_FATAL_FAILURE(run_python("reference.py " + kShakespeare + " " + data.string() + " 1000000"));
  }

  std::vector<std::string> pieces;
  Reader list(data / "pieces.bin");
  for (std::uint32_t left = list.number(); left > 0; --left) pieces.push_back(list.string());
  const std::string long_text = read_whole(data / "long.txt");

  std::size_t compared = 0, decoded = 0;
  std::ifstream cases(data / "cases.txt");
  for (std::string name; std::getline(cases, name);) {
    SCOPED_TRACE(name);
    const auto tokenizer = load_tokenizer(data / name);
    Reader ids(data / (name + ".ids")), texts(data / (name + ".texts"));
    int differences = 0;
    for (const std::string& piece : pieces) {
      const auto expected = ids.ids();
      ++compared;
      const auto actual = tokenizer->encode(piece);
      if (actual != expected && ++differences <= 5)
        ADD_FAILURE() << visible(piece) << "\n  " << testing::PrintToString(actual) << "\n  " << testing::PrintToString(expected);
      if (texts.at_end()) continue;
      ++decoded;
      const std::string text = texts.string();
      const std::string mine = tokenizer->decode(expected);
      if (mine != text && ++differences <= 5)
        ADD_FAILURE() << "decoded " << visible(mine) << "\nexpected " << visible(text) << testing::PrintToString(expected);
    }
    EXPECT_TRUE(ids.at_end());
    EXPECT_EQ(tokenizer->encode(long_text), Reader(data / (name + ".long")).ids());
    EXPECT_EQ(differences, 0);
  }
  std::printf("%zu pieces encoded and %zu decoded as the reference packages do\n", compared, decoded);
  EXPECT_GE(compared, 1'000'000u);
}

TEST(Reference, TrainsTheTokenizerThatTheTokenizersPackageTrains) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(run_python("reference_training.py " + kShakespeare + " " + folder.path().string() + " 8192"));
  BpeTrainer trainer;
  trainer.add(read_whole(kShakespeare));
  const auto tokenizer = trainer.train(8192);
  const auto ours = nlohmann::json::parse(tokenizer->content());
  const auto theirs = nlohmann::json::parse(read_whole(folder / "trained.json"));
  EXPECT_EQ(ours["model"]["vocab"], theirs["model"]["vocab"]);
  EXPECT_EQ(ours["model"]["merges"], theirs["model"]["merges"]);
  EXPECT_EQ(ours["added_tokens"], theirs["added_tokens"]);
  EXPECT_EQ(tokenizer->vocab_size(), 8192);
}

TEST(Reference, ReadsWhatWeSave) {
  const TemporaryFolder folder;
  BpeTrainer trainer;
  trainer.add(read_whole(kShakespeare).substr(0, 300000));
  trainer.train(1000)->save(folder / "bpe.json");
  make_byte_tokenizer()->save(folder / "bytes.json");
  ASSERT_NO_FATAL_FAILURE(run_python("reference_reading.py " + folder.path().string() + " bpe.json bytes.json"));
  for (const char* name : {"bpe.json", "bytes.json"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = load_tokenizer(folder / name);
    Reader results(folder / (std::string(name) + ".out"));
    for (std::uint32_t left = results.number(); left > 0; --left) {
      const std::string text = results.string();
      const auto expected = results.ids();
      EXPECT_EQ(tokenizer->encode(text), expected) << visible(text);
      EXPECT_EQ(tokenizer->decode(expected, true), text);
    }
  }
}

}  // namespace
}  // namespace tessera::data
