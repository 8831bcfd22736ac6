// Compressed files give the documents of the plain ones, and damaged ones are never half a text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "data/compressed_files.hpp"
#include "data/source.hpp"

namespace tessera::data {
namespace {

using testing::HasSubstr;

std::vector<std::string> documents_of(const std::filesystem::path& path) {
  std::vector<std::string> all;
  const Source source = open_source(path);
  std::uint64_t position = 0;
  read_documents(source, [&](const Document& document) {
    EXPECT_LE(position, document.begin);
    EXPECT_LE(document.begin, document.end);
    EXPECT_LE(document.end, source.bytes);
    position = document.end;
    all.emplace_back(document.text);
  });
  return all;
}

// Lines of any length, some longer than the pieces that files are decompressed in.
std::string many_lines() {
  Random random(7);
  std::string out;
  for (int i = 0; i < 2000; ++i) {
    std::string words(i == 700 ? 3'000'000 : random.below(3000), ' ');
    for (char& letter : words) letter = static_cast<char>('a' + random.below(26));
    out += "{\"text\": \"" + words + "\"}\n";
  }
  return out;
}

TEST(Compressed, GivesTheDocumentsOfThePlainFile) {
  const TemporaryFolder folder;
  const std::string lines = many_lines();
  const auto expected = documents_of(folder.write("a.jsonl", lines));
  ASSERT_GT(expected.size(), 1900u);
  EXPECT_EQ(documents_of(folder.write("a.jsonl.gz", gzipped(lines))), expected);
  EXPECT_EQ(documents_of(folder.write("a.jsonl.zst", zstandard(lines))), expected);
  EXPECT_EQ(documents_of(folder.write("a.txt.gz", gzipped(lines))), std::vector{lines});
  EXPECT_EQ(documents_of(folder.write("book.zst", zstandard("\xEF\xBB\xBFonce"))), std::vector<std::string>{"once"});
}

TEST(Compressed, ReadsFilesThatWereJoined) {
  const TemporaryFolder folder;
  EXPECT_EQ(documents_of(folder.write("a.txt.gz", gzipped("one ") + gzipped("two") + std::string(512, '\0'))),
            std::vector<std::string>{"one two"});
  EXPECT_EQ(documents_of(folder.write("a.txt.zst", zstandard("one ") + zstandard("two"))), std::vector<std::string>{"one two"});
}

TEST(Compressed, DamagedOrCutOffFilesAreCorrupt) {
  const TemporaryFolder folder;
  const std::string text = many_lines().substr(0, 100'000);
  for (const auto& [name, whole] : {std::pair("a.jsonl.gz", gzipped(text)), std::pair("a.jsonl.zst", zstandard(text))}) {
    for (const std::string& damaged :
         {whole.substr(0, whole.size() / 2), whole.substr(0, whole.size() - 1), "plain" + whole, whole + "plain"}) {
      try {
        documents_of(folder.write(name, damaged));
        ADD_FAILURE() << name << " of " << damaged.size() << " bytes was read";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
        EXPECT_THAT(error.where().file, HasSubstr(name));
        EXPECT_THAT(error.what(), HasSubstr("fetch or compress the file again"));
      }
    }
  }
}

TEST(Compressed, PlacesInErrorsAreThoseOfTheContent) {
  const TemporaryFolder folder;
  try {
    documents_of(folder.write("a.jsonl.gz", gzipped("{\"text\": \"a\"}\n{\"test\": \"b\"}\n")));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.where().line, 2);
  }
}

}  // namespace
}  // namespace tessera::data
