#include "base/file_system.hpp"

#include <gmock/gmock.h>
#include <cerrno>

#include "base/expect_error.hpp"
#include "base/random.hpp"
#include "base/temporary_folder.hpp"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

int entry_count(const TemporaryFolder& folder) {
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) count += entry.exists() ? 1 : 0;
  return count;
}

// Passes everything on until the operation with number `fail_at`, which fails as a full disk does.
class FullDisk final : public FileSystem {
 public:
  explicit FullDisk(int fail_at) : fail_at_(fail_at) {}

  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override {
    step("create", path);
    return std::make_unique<File>(*this, real_file_system().create(path), path);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    step("rename", to);
    real_file_system().rename(from, to);
  }
  void sync_directory(const std::filesystem::path& path) override {
    step("sync_directory", path);
    real_file_system().sync_directory(path);
  }
  void create_directories(const std::filesystem::path& path) override { real_file_system().create_directories(path); }
  void remove_all(const std::filesystem::path& path) override { real_file_system().remove_all(path); }

  std::vector<std::string> steps;

 private:
  class File final : public WritableFile {
   public:
    File(FullDisk& disk, std::unique_ptr<WritableFile> file, std::filesystem::path path)
        : disk_(disk), file_(std::move(file)), path_(std::move(path)) {}
    void append(std::span<const std::byte> data) override {
      // A full disk takes the first part.
      file_->append(data.first(data.size() / 2));
      disk_.step("append", path_);
      file_->append(data.subspan(data.size() / 2));
    }
    void sync() override {
      disk_.step("sync", path_);
      file_->sync();
    }
    void close() override {
      disk_.step("close", path_);
      file_->close();
    }

   private:
    FullDisk& disk_;
    std::unique_ptr<WritableFile> file_;
    std::filesystem::path path_;
  };

  void step(const std::string& name, const std::filesystem::path& path) {
    steps.push_back(name);
    if (static_cast<int>(steps.size()) - 1 == fail_at_) throw_errno(name, path, ENOSPC);
  }

  int fail_at_;
};

TEST(WriteWhole, SyncsTheFileBeforeTheNameAndTheFolderAfterIt) {
  const TemporaryFolder folder;
  FullDisk disk(-1);
  write_whole(disk, folder / "a.json", std::string("content"));
  EXPECT_THAT(disk.steps, ElementsAre("create", "append", "sync", "close", "rename", "sync_directory"));
  EXPECT_EQ(read_whole(folder / "a.json"), "content");
  EXPECT_EQ(entry_count(folder), 1);
}

TEST(WriteWhole, AFullDiskLeavesWhatWasThereAndNothingElse) {
  constexpr int kBeforeRename = 5;
  for (int step = 0; step < kBeforeRename; ++step) {
    const TemporaryFolder folder;
    folder.write("a.json", "old");
    FullDisk disk(step);
    const Error error = error_of([&] { write_whole(disk, folder / "a.json", std::string("new and longer")); });
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_THAT(error.what(), HasSubstr("No space left on device"));
    EXPECT_EQ(read_whole(folder / "a.json"), "old") << "failing at " << disk.steps.back();
    EXPECT_EQ(entry_count(folder), 1) << "failing at " << disk.steps.back();
  }
}

// Few sizes, around those of buffers and pages: each file waits for the disk.
TEST(WriteWhole, ContentOfEachSizeReadsBack) {
  const TemporaryFolder folder;
  Random random(11);
  for (const std::size_t size : {0, 1, 4095, 4096, 65536, 65537, 200'001}) {
    std::string content(size, ' ');
    for (char& c : content) c = static_cast<char>(random.next());
    write_whole(real_file_system(), folder / "f", content);
    EXPECT_EQ(read_whole(folder / "f"), content);
    const MappedFile map(folder / "f");
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size()), content);
  }
}

TEST(WriteWhole, NamesAFolderThatIsNotThere) {
  const TemporaryFolder folder;
  const Error error = error_of([&] { write_whole(real_file_system(), folder / "absent" / "a", std::string("x")); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.what(), HasSubstr("absent"));
}

TEST(WriteWhole, TheRealFullDeviceFails) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  const auto file = real_file_system().create("/dev/full");
  const std::byte data[1] = {};
  const Error error = error_of([&] { file->append(data); });
  EXPECT_THAT(error.what(), HasSubstr("cannot write /dev/full: No space left on device"));
}

TEST(ReadWhole, NamesWhatItCannotRead) {
  const TemporaryFolder folder;
  EXPECT_EQ(error_of([&] { read_whole(folder / "absent"); }).code(), ErrorCode::not_found);
  EXPECT_EQ(error_of([&] { read_whole(folder / ""); }).code(), ErrorCode::io);
}

TEST(MappedFile, AnEmptyFileIsAnEmptySpan) {
  const TemporaryFolder folder;
  const MappedFile map(folder.write("empty", ""));
  EXPECT_TRUE(map.bytes().empty());
}

TEST(MappedFile, MovesItsMapping) {
  const TemporaryFolder folder;
  MappedFile first(folder.write("f", "abc"));
  MappedFile second(std::move(first));
  MappedFile third(folder.write("g", "defg"));
  third = std::move(second);
  ASSERT_EQ(third.bytes().size(), 3u);
  EXPECT_EQ(static_cast<char>(third.bytes()[2]), 'c');
}

TEST(MappedFile, NamesWhatIsNotThere) {
  const TemporaryFolder folder;
  EXPECT_EQ(error_of([&] { MappedFile(folder / "absent"); }).code(), ErrorCode::not_found);
}

}  // namespace
}  // namespace tessera
