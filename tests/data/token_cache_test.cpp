#include "data/token_cache.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "data/token_cache_files.hpp"

namespace tessera::data {
namespace {

using testing::HasSubstr;

const std::string kFingerprint(32, 'a');

std::vector<std::uint32_t> some_tokens(std::size_t count, std::uint64_t vocab) {
  Random random(3);
  std::vector<std::uint32_t> tokens(count);
  for (auto& token : tokens) token = static_cast<std::uint32_t>(random.below(vocab));
  return tokens;
}

void write_cache(const std::filesystem::path& path, const std::vector<std::uint32_t>& tokens, std::int64_t vocab) {
  TokenCacheWriter writer(real_file_system(), path, vocab, kFingerprint);
  writer.append(std::span(tokens).first(tokens.size() / 3));
  writer.end_document();
  writer.append(std::span(tokens).subspan(tokens.size() / 3));
  writer.end_document();
  writer.finish();
}

// Opens and reads all of it.
std::vector<std::int32_t> read_all(const std::filesystem::path& path) {
  const TokenCache cache(path, kFingerprint);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(cache.size()));
  cache.read(0, tokens);
  return tokens;
}

ErrorCode code_of_reading(const std::filesystem::path& path) {
  try {
    read_all(path);
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::internal;
}

// A cache of 12 tokens of 300 in two documents, with another number at `at`, and checksums that fit.
std::string refusal_with(std::int64_t at, std::uint64_t value, std::size_t size) {
  const TemporaryFolder folder;
  write_cache(folder / "tokens.bin", some_tokens(12, 300), 300);
  std::string file = read_whole(folder / "tokens.bin");
  std::memcpy(file.data() + (at < 0 ? static_cast<std::int64_t>(file.size()) + at : at), &value, size);
  folder.write("tokens.bin", resealed(file));
  try {
    const TokenCache cache(folder / "tokens.bin");
    cache.verify();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_THAT(error.what(), HasSubstr("tokens.bin"));
    return error.message();
  }
  return {};
}

TEST(TokenCache, IsNotBelievedForItsChecksums) {
  constexpr std::int64_t kFooter = -72, kDocuments = kFooter - 40;  // two document ends, two beginnings of texts, one block
  EXPECT_EQ(refusal_with(64, 299, 2), "");
  EXPECT_THAT(refusal_with(64, 300, 2), HasSubstr("hold token 300 of a vocabulary of 300"));
  EXPECT_THAT(refusal_with(16, 0, 8), HasSubstr("its vocabulary has 0 tokens"));
  EXPECT_THAT(refusal_with(16, std::uint64_t{1} << 40, 8), HasSubstr("its vocabulary has 1099511627776 tokens"));
  EXPECT_THAT(refusal_with(kDocuments, 13, 8), HasSubstr("document 0 ends behind token 13"));
  EXPECT_THAT(refusal_with(kDocuments + 8, 3, 8), HasSubstr("document 1 ends behind token 3 and begins behind token 4"));
  EXPECT_THAT(refusal_with(kDocuments + 8, ~std::uint64_t{0}, 8), HasSubstr("document 1 ends behind token"));
  EXPECT_THAT(refusal_with(kDocuments + 24, 3, 8), HasSubstr("the text of document 1 begins at token 3, outside of it"));
  EXPECT_THAT(refusal_with(kFooter + 8, std::uint64_t{1} << 63, 8), HasSubstr("its counts do not fit its size"));
}

TEST(TokenCache, GivesBackWhatWasWrittenInTwoAndFourBytes) {
  const TemporaryFolder folder;
  for (std::int64_t vocab : {300, 65536, 65537, 128256}) {
    const auto tokens = some_tokens(1'200'001, static_cast<std::uint64_t>(vocab));  // several blocks
    write_cache(folder / "tokens.bin", tokens, vocab);
    EXPECT_EQ(std::filesystem::file_size(folder / "tokens.bin") > 4 * tokens.size(), vocab > 65536);
    const TokenCache cache(folder / "tokens.bin", kFingerprint);
    EXPECT_EQ(cache.vocab(), vocab);
    EXPECT_EQ(cache.document_count(), 2);
    EXPECT_EQ(cache.document_begin(1), 400'000);
    EXPECT_EQ(cache.document_begin(2), cache.size());
    EXPECT_EQ(read_all(folder / "tokens.bin"), std::vector<std::int32_t>(tokens.begin(), tokens.end()));
    std::vector<std::int32_t> part(7);
    cache.read(524'285, part);  // over a block's end
    EXPECT_EQ(part, std::vector<std::int32_t>(tokens.begin() + 524'285, tokens.begin() + 524'292));
  }
}

TEST(TokenCache, KnowsWherePromptsEndAndWhichDocumentHoldsAToken) {
  const TemporaryFolder folder;
  const auto tokens = some_tokens(9, 300);
  TokenCacheWriter writer(real_file_system(), folder / "tokens.bin", 300, kFingerprint);
  writer.append(std::span(tokens).first(3));
  writer.end_prompt();
  writer.append(std::span(tokens).subspan(3, 2));
  writer.end_document();
  writer.append(std::span(tokens).subspan(5));
  writer.end_document();
  writer.finish(7);
  const TokenCache cache(folder / "tokens.bin", kFingerprint);
  EXPECT_EQ(cache.text_begin(0), 3);
  EXPECT_EQ(cache.text_begin(1), 5) << "a document without a prompt";
  EXPECT_EQ(cache.skipped(), 7);
  for (std::int64_t token = 0; token < 9; ++token) EXPECT_EQ(cache.document_of(token), token < 5 ? 0 : 1) << token;
}

TEST(TokenCache, IsCaughtWhenItIsTruncatedAnywhere) {
  const TemporaryFolder folder;
  write_cache(folder / "tokens.bin", some_tokens(60, 500), 500);
  const std::string whole = read_whole(folder / "tokens.bin");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    folder.write("cut.bin", whole.substr(0, size));
    ASSERT_EQ(code_of_reading(folder / "cut.bin"), ErrorCode::corrupt) << size << " of " << whole.size();
  }
  folder.write("cut.bin", whole + '\0');
  EXPECT_EQ(code_of_reading(folder / "cut.bin"), ErrorCode::corrupt);
}

TEST(TokenCache, IsCaughtWhenABitOfAnyByteFlips) {
  const TemporaryFolder folder;
  write_cache(folder / "tokens.bin", some_tokens(60, 500), 500);
  const std::string whole = read_whole(folder / "tokens.bin");
  for (std::size_t bit = 0; bit < whole.size() * 8; bit += 3) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    folder.write("damaged.bin", damaged);
    ASSERT_EQ(code_of_reading(folder / "damaged.bin"), ErrorCode::corrupt) << "bit " << bit;
  }
}

TEST(TokenCache, ChecksABlockBeforeItsFirstUseOnly) {
  const TemporaryFolder folder;
  write_cache(folder / "tokens.bin", some_tokens(1'200'000, 500), 500);
  std::string content = read_whole(folder / "tokens.bin");
  content[64 + (1 << 20) + 5] ^= 1;  // in the second block
  folder.write("tokens.bin", content);
  const TokenCache cache(folder / "tokens.bin", kFingerprint);
  std::vector<std::int32_t> part(100);
  EXPECT_NO_THROW(cache.read(0, part));
  try {
    cache.read(600'000, part);
    FAIL() << "a damaged block was used";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_THAT(error.what(), HasSubstr("bytes 1048640 to 2097216"));
    EXPECT_THAT(error.what(), HasSubstr("delete it"));
  }
  EXPECT_THROW(cache.verify(), Error);
}

TEST(TokenCache, IsRefusedWhenItWasMadeOfSomethingElse) {
  const TemporaryFolder folder;
  write_cache(folder / "tokens.bin", some_tokens(300, 500), 500);
  try {
    const TokenCache cache(folder / "tokens.bin", std::string(32, 'b'));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_THAT(error.what(), HasSubstr("another source"));
  }
}

TEST(TokenCache, LeavesNothingBehindWhenWritingStops) {
  const TemporaryFolder folder;
  {
    TokenCacheWriter writer(real_file_system(), folder / "tokens.bin", 500, kFingerprint);
    writer.append(some_tokens(1000, 500));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// A disk that is full after so many bytes.
class FullDisk final : public FileSystem {
 public:
  explicit FullDisk(std::size_t room) : room_(room) {}
  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override {
    return std::make_unique<File>(real_file_system().create(path), room_);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override { real_file_system().rename(from, to); }
  void sync_directory(const std::filesystem::path& path) override { real_file_system().sync_directory(path); }
  void create_directories(const std::filesystem::path& path) override { real_file_system().create_directories(path); }
  void remove_all(const std::filesystem::path& path) override { real_file_system().remove_all(path); }

 private:
  struct File final : WritableFile {
    File(std::unique_ptr<WritableFile> file, std::size_t& room) : file_(std::move(file)), room_(room) {}
    void append(std::span<const std::byte> data) override {
      if (data.size() > room_) throw Error(ErrorCode::io, "no space left on device");
      room_ -= data.size();
      file_->append(data);
    }
    void sync() override { file_->sync(); }
    void close() override { file_->close(); }
    std::unique_ptr<WritableFile> file_;
    std::size_t& room_;
  };
  std::size_t room_;
};

TEST(TokenCache, KeepsTheOldFileWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  const auto tokens = some_tokens(1000, 500);
  write_cache(folder / "tokens.bin", tokens, 500);
  const std::string before = read_whole(folder / "tokens.bin");
  for (std::size_t room = 0; room < before.size(); room += 16) {
    FullDisk disk(room);
    EXPECT_THROW(
        {
          TokenCacheWriter writer(disk, folder / "tokens.bin", 500, kFingerprint);
          writer.append(tokens);
          for (int document = 0; document < 2; ++document) writer.end_document();
          writer.finish();
        },
        Error);
    EXPECT_EQ(read_whole(folder / "tokens.bin"), before);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "temporary files stayed behind";
}

}  // namespace
}  // namespace tessera::data
