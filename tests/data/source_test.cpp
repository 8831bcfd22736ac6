#include "data/source.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file_system.hpp"
#include "base/temporary_folder.hpp"

namespace tessera::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> documents_of(const std::filesystem::path& root, const std::string& field = "text") {
  std::vector<std::string> all;
  model::RecordSpec records;
  records.field = field;
  read_documents(open_source(root, records), [&](const Document& document) { all.emplace_back(document.text); });
  return all;
}

// The error that reading gives, or an internal one when it gives none.
Error failure_of(const std::filesystem::path& root, const std::string& field = "text") {
  try {
    documents_of(root, field);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::internal, "nothing was thrown");
}

TEST(Source, ReadsATextFileAsOneDocument) {
  const TemporaryFolder folder;
  EXPECT_THAT(documents_of(folder.write("a.txt", "To be,\r\nor not\n")), ElementsAre("To be,\r\nor not\n"));
  EXPECT_THAT(documents_of(folder.write("mark.txt", "\xEF\xBB\xBFhello")), ElementsAre("hello"));
}

TEST(Source, ReadsOneDocumentALineOfJson) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.jsonl", "{\"text\": \"a\\n\\u00e9\\u0000\"}\n\n{\"id\": 1, \"text\": \"\"}\r\n  {\"text\": \"last\"}");
  EXPECT_THAT(documents_of(file), ElementsAre(std::string("a\n\xC3\xA9\0", 5), "last"));
}

TEST(Source, ReadsFoldersInOrderOfPathAndLeavesOtherFilesAlone) {
  const TemporaryFolder folder;
  folder.write("b.txt", "second");
  folder.write("a/z.jsonl", "{\"body\": \"first\"}\n");
  folder.write("c/d/e.json", "{\"body\": \"third\"}\n{\"body\": \"fourth\"}");
  folder.write("picture.png", std::string_view("\x89PNG\0", 5));
  folder.write(".hidden/x.txt", "no");
  folder.write("empty.txt", "");
  EXPECT_THAT(documents_of(folder.path(), "body"), ElementsAre("first", "second", "third", "fourth"));
}

TEST(Source, SaysWhatOfAFolderIsLeftOutAndWhy) {
  const TemporaryFolder folder;
  folder.write("a.jsonl", "{\"prompt\": \"p\", \"answer\": \"a\"}\n");
  folder.write("b.txt", "text");
  folder.write("c/empty.jsonl", "");
  folder.write("c/notes.md", "# no");
  folder.write("LICENSE", "no");
  folder.write(".git/config", "no");
  const auto left_out = [](const Source& source) {
    std::vector<std::string> all;
    for (const LeftOut& file : source.left_out) all.push_back(file.path.lexically_relative(source.root).string() + " " + file.reason);
    return all;
  };
  const Source text = open_source(folder.path());
  EXPECT_THAT(left_out(text), ElementsAre(".git is hidden", "LICENSE has no ending", "c/empty.jsonl is empty", "c/notes.md ends in .md"));
  EXPECT_EQ(left_out_text(text),
            "left out of " + folder.path().string() + ": .git (is hidden), LICENSE (has no ending), c/empty.jsonl (is empty) and 1 more");
  model::RecordSpec prompts;
  prompts.prompt = "prompt";
  prompts.answer = "answer";
  EXPECT_THAT(left_out(open_source(folder.path(), prompts)), testing::Contains("b.txt is text, which has no prompts"));
  EXPECT_EQ(left_out_text(open_source(folder / "a.jsonl")), "");
}

TEST(Source, SkipsRecordsThatCannotBeReadOnRequestAndCountsThem) {
  const TemporaryFolder folder;
  const auto file =
      folder.write("a.jsonl", "{\"text\": \"a\"}\nnonsense\n{\"test\": 1}\n{\"text\": 5}\n\n{\"text\": \"\xFF\"}\n{\"text\": \"b\"}\n");
  model::RecordSpec records;
  records.on_error = model::OnError::skip;
  std::vector<std::string> all;
  EXPECT_EQ(read_documents(open_source(file, records), [&](const Document& document) { all.emplace_back(document.text); }), 4u);
  EXPECT_THAT(all, ElementsAre("a", "b"));
  const Error stopped = failure_of(file);
  EXPECT_EQ(stopped.where().line, 2);
  EXPECT_THAT(stopped.hint(), HasSubstr("data.on_error: skip"));
  try {
    read_documents(open_source(folder.write("b.jsonl", "no\nno\n"), records), [](const Document&) {});
    FAIL() << "nothing is left";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("all 2 records were skipped"));
  }
}

TEST(Source, ReadsPromptsAndAnswers) {
  const TemporaryFolder folder;
  const auto file =
      folder.write("a.jsonl", "{\"q\": \"1+1=\", \"a\": \"2\"}\n{\"q\": \"\", \"a\": \"free\"}\n{\"q\": \"nothing?\", \"a\": \"\"}\n");
  model::RecordSpec records;
  records.prompt = "q";
  records.answer = "a";
  std::vector<std::string> all;
  read_documents(open_source(file, records), [&](const Document& document) { all.push_back(text(document.prompt, "|", document.text)); });
  EXPECT_THAT(all, ElementsAre("1+1=|2", "|free")) << "an empty answer is no document";
  records.answer = "answer";
  try {
    read_documents(open_source(file, records), [](const Document&) {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("no field \"answer\""));
    EXPECT_THAT(error.what(), HasSubstr("data.answer"));
  }
  EXPECT_THAT(failure_of(folder.write("b.txt", "text")).what(), HasSubstr("nothing was thrown"));
  try {
    open_source(folder / "b.txt", records);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("has no prompts and answers"));
  }
}

TEST(Source, NamesTheNearestFileWhenOneIsMissing) {
  const TemporaryFolder folder;
  folder.write("shakespeare.txt", "x");
  const Error error = failure_of(folder / "shakespere.txt");
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.what(), HasSubstr("did you mean"));
  EXPECT_THAT(error.what(), HasSubstr("shakespeare.txt"));
}

TEST(Source, RefusesWhatHoldsNoText) {
  const TemporaryFolder folder;
  EXPECT_THAT(failure_of(folder.write("a.txt", "")).what(), HasSubstr("is empty"));
  EXPECT_THAT(failure_of(folder.write("b.jsonl", "\n\n")).what(), HasSubstr("no text"));
  std::filesystem::create_directory(folder / "none");
  EXPECT_THAT(failure_of(folder / "none").what(), HasSubstr("holds no text"));
}

TEST(Source, SaysWhereABinaryFileIsNoText) {
  const TemporaryFolder folder;
  const Error zero = failure_of(folder.write("zero.txt", std::string_view("abc\0def", 7)));
  EXPECT_EQ(zero.code(), ErrorCode::invalid_config);
  EXPECT_THAT(zero.what(), HasSubstr("a NUL byte at byte 3"));
  EXPECT_THAT(zero.where().file, HasSubstr("zero.txt"));
  EXPECT_THAT(failure_of(folder.write("latin.txt", "caf\xE9 au lait")).what(), HasSubstr("invalid UTF-8 at byte 3"));
  EXPECT_THAT(failure_of(folder.write("cut.txt", "caf\xC3")).what(), HasSubstr("invalid UTF-8 at byte 3"));
  EXPECT_THAT(failure_of(folder.write("surrogate.txt", "a\xED\xA0\x80")).what(), HasSubstr("at byte 1"));
  const Error line = failure_of(folder.write("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\xFF\"}\n"));
  EXPECT_THAT(line.what(), HasSubstr("invalid UTF-8 at byte 24"));
  EXPECT_EQ(line.where().line, 2);
}

TEST(Source, SaysWhichLineIsWrong) {
  const TemporaryFolder folder;
  const auto file = folder.write("a.jsonl", "{\"text\": \"a\"}\n{\"test\": \"b\"}\n");
  const Error missing = failure_of(file);
  EXPECT_EQ(missing.where().line, 2);
  EXPECT_THAT(missing.what(), HasSubstr("no field \"text\""));
  EXPECT_THAT(missing.what(), HasSubstr("set data.field to \"test\""));
  for (const char* wrong : {"{\"text\": 5}", "[1]", "{\"text\": \"a\"", "{\"text\": \"a\"} x", "{\"text\": \"\\ud800\"}", "text"}) {
    const Error error = failure_of(folder.write("b.jsonl", std::string("{\"text\": \"a\"}\n\n") + wrong));
    EXPECT_EQ(error.code(), ErrorCode::invalid_config) << wrong;
    EXPECT_EQ(error.where().line, 3) << wrong;
  }
}

TEST(Source, FingerprintsChangeWithTheContentAlone) {
  const TemporaryFolder folder, cache;
  const auto fingerprint = [&](const std::filesystem::path& path) { return fingerprint_of(open_source(path), cache.path()); };
  const std::string first = fingerprint(folder.write("a.txt", "one text"));
  EXPECT_EQ(fingerprint(folder.write("b.txt", "one text")), first);
  EXPECT_NE(fingerprint(folder.write("a.txt", "two text")), first);
  EXPECT_NE(fingerprint(folder.write("a.jsonl", "one text")), first);
}

TEST(Source, FindsTheFingerprintOfUnchangedFilesAgain) {
  const TemporaryFolder folder, cache;
  const auto file = folder.write("a.txt", "one text");
  // Only files that have been left alone for a while are trusted to show each change in their times.
  const auto long_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  const std::string fingerprint = fingerprint_of(open_source(file), cache.path());
  EXPECT_TRUE(std::filesystem::is_empty(cache.path())) << "a file changed just now must be read each time";
  std::filesystem::last_write_time(file, long_ago);
  EXPECT_EQ(fingerprint_of(open_source(file), cache.path()), fingerprint);
  folder.write("a.txt", "two text");
  std::filesystem::last_write_time(file, long_ago);
  EXPECT_NE(fingerprint_of(open_source(file), cache.path()), fingerprint) << "same size, name and write time, other content";
}

}  // namespace
}  // namespace tessera::data
