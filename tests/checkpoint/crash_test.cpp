#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>
#include <cerrno>

#include "base/error.hpp"
#include "checkpoint/checkpoint_helper.hpp"
#include "checkpoint/crashing_file_system_helper.hpp"

namespace tessera::checkpoint {
namespace {

const World kWorld{2, 2, true};

std::vector<std::vector<Piece>> pieces_of(std::uint64_t seed) {
  Random random(seed);
  return cut(make_tensors(seed), kWorld, random);
}

// A run that has the steps 10, 20 and 30, and now saves 40 and keeps three.
void prepare(const std::filesystem::path& folder) {
  for (const int step : {10, 20, 30}) save(real_file_system(), folder, step, pieces_of(static_cast<std::uint64_t>(step)));
}

void save_and_prune(FileSystem& files, const std::filesystem::path& folder, std::int64_t step, std::uint64_t seed) {
  save(files, folder, step, pieces_of(seed));
  prune(files, folder, 3);
}

// The newest checkpoint is whole and one of the two; earlier ones that must be there are whole; the next save works.
void expect_usable(const std::filesystem::path& folder, const std::vector<std::pair<std::int64_t, std::uint64_t>>& either,
                   const std::string& at) {
  const auto check = [&] {
    const auto path = latest(folder);
    ASSERT_TRUE(path.has_value()) << at;
    const Reader reader(*path);
    std::string differences;
    bool matches = false;
    for (const auto& [step, seed] : either) {
      if (reader.state().step != step) continue;
      const std::string different = difference(reader, make_tensors(seed));
      matches = matches || different.empty();
      differences += different;
    }
    EXPECT_TRUE(matches) << at << ": step " << reader.state().step << ": " << differences;
  };
  check();
  clean(real_file_system(), folder);
  check();
  EXPECT_EQ(difference(Reader(step_folder(folder, 20)), make_tensors(20)), "") << at;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    EXPECT_FALSE(entry.path().has_extension()) << at << " left " << entry.path();
  save_and_prune(real_file_system(), folder, 50, 50);
  EXPECT_EQ(difference(Reader(*latest(folder)), make_tensors(50)), "") << at;
}

// Loses power at every operation of `action`, several times each with other losses; returns how many points there were.
template <typename Action>
std::int64_t lose_power_everywhere(const Action& action, const std::vector<std::pair<std::int64_t, std::uint64_t>>& either) {
  std::int64_t points = 0;
  for (std::int64_t lose_at = 0;; ++lose_at) {
    bool survived = false;
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const TemporaryFolder folder;
      prepare(folder.path());
      CrashingFileSystem disk(lose_at);
      try {
        action(disk, folder.path());
        survived = true;
      } catch (const PowerLoss&) {
        Random random(seed * 1000 + static_cast<std::uint64_t>(lose_at));
        if (seed > 0) disk.lose_unsynced(random);  // 0: the process was killed, the machine lived on
        ++points;
      }
      expect_usable(folder.path(), either, text("after ", lose_at, " operations, the last: ", disk.last_operation()));
      if (testing::Test::HasFailure()) return points;
    }
    if (survived) return points;
  }
}

TEST(CheckpointCrash, AtAnyOperationLeavesThePreviousOrTheNewOne) {
  const std::int64_t points =
      lose_power_everywhere([](FileSystem& disk, const auto& folder) { save_and_prune(disk, folder, 40, 40); }, {{30, 30}, {40, 40}});
  EXPECT_GE(points, 200);
  RecordProperty("points", static_cast<int>(points));
}

TEST(CheckpointCrash, WhileReplacingTheSameStepLeavesTheOldOrTheNewOne) {
  const std::int64_t points =
      lose_power_everywhere([](FileSystem& disk, const auto& folder) { save_and_prune(disk, folder, 30, 31); }, {{30, 30}, {30, 31}});
  EXPECT_GE(points, 200);
}

TEST(CheckpointCrash, AfterCommitTheNewOneStays) {
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    const TemporaryFolder folder;
    prepare(folder.path());
    CrashingFileSystem disk;
    save(disk, folder.path(), 40, pieces_of(40));
    Random random(seed);
    disk.lose_unsynced(random);
    EXPECT_EQ(difference(Reader(*latest(folder.path())), make_tensors(40)), "");
  }
}

// A disk on which the operation with number `fail_at` is refused as a full disk refuses it.
class FullFileSystem final : public FileSystem {
 public:
  explicit FullFileSystem(std::int64_t fail_at) : fail_at_(fail_at) {}
  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override {
    count(path);
    return std::make_unique<File>(*this, path);
  }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    count(to), real_file_system().rename(from, to);
  }
  void sync_directory(const std::filesystem::path& path) override { count(path), real_file_system().sync_directory(path); }
  void create_directories(const std::filesystem::path& path) override { count(path), real_file_system().create_directories(path); }
  void remove_all(const std::filesystem::path& path) override { real_file_system().remove_all(path); }
  bool failed() const { return next_ > fail_at_; }

 private:
  class File final : public WritableFile {
   public:
    File(FullFileSystem& disk, const std::filesystem::path& path) : disk_(disk), path_(path), file_(real_file_system().create(path)) {}
    void append(std::span<const std::byte> data) override { disk_.count(path_), file_->append(data); }
    void sync() override { disk_.count(path_), file_->sync(); }
    void close() override { file_->close(); }

   private:
    FullFileSystem& disk_;
    std::filesystem::path path_;
    std::unique_ptr<WritableFile> file_;
  };
  void count(const std::filesystem::path& path) {
    if (next_++ == fail_at_) throw_errno("write", path, ENOSPC);
  }
  std::int64_t fail_at_;
  std::int64_t next_ = 0;
};

TEST(CheckpointFullDisk, AtAnyOperationIsAnErrorThatLeavesNothingBehind) {
  const TemporaryFolder folder;
  prepare(folder.path());
  std::int64_t refused = 0;
  for (std::int64_t fail_at = 0;; ++fail_at, ++refused) {
    FullFileSystem disk(fail_at);
    try {
      save(disk, folder.path(), 40, pieces_of(40));
      break;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::io);
      EXPECT_THAT(error.what(), testing::HasSubstr("step 40"));
      EXPECT_THAT(error.what(), testing::HasSubstr("No space left on device"));
      EXPECT_THAT(error.what(), testing::HasSubstr("earlier checkpoints are as they were"));
    }
    EXPECT_FALSE(std::filesystem::exists(folder.path() / "step-000040.tmp")) << fail_at;
    for (const int step : {10, 20, 30})
      EXPECT_EQ(difference(Reader(step_folder(folder.path(), step)), make_tensors(static_cast<std::uint64_t>(step))), "");
    // The sync of the parent comes after the rename: the checkpoint is there by then.
    if (std::filesystem::exists(folder.path() / "step-000040")) std::filesystem::remove_all(folder.path() / "step-000040");
  }
  EXPECT_GE(refused, 60);
  EXPECT_EQ(difference(Reader(*latest(folder.path())), make_tensors(40)), "");
}

// A small file system in memory, taken away with the object.
class SmallDisk {
 public:
  explicit SmallDisk(const std::filesystem::path& path) : path_(path) {
    std::filesystem::create_directories(path);
    mounted_ = ::mount("tmpfs", path.c_str(), "tmpfs", 0, "size=1m") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }

 private:
  std::filesystem::path path_;
  bool mounted_ = false;
};

TEST(CheckpointFullDisk, ARealOneToo) {
  const TemporaryFolder folder;
  const SmallDisk disk(folder.path() / "small");
  if (!disk.mounted()) GTEST_SKIP() << "SKIPPED: mounting a small tmpfs needs root";
  const auto place = folder.path() / "small/checkpoints";
  const Tensors large = {{"w", at::zeros({200, 1000}, at::TensorOptions().dtype(at::kFloat))}};  // 800 kB
  save(place, 1, make_tensors(1));
  save(place, 2, make_tensors(2));
  try {
    Random random(1);
    save(real_file_system(), place, 3, cut({{"w", at::zeros({400, 1000}, at::TensorOptions().dtype(at::kFloat))}}, {2, 1, true}, random));
    FAIL() << "1.6 MB fitted into 1 MiB";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_THAT(error.what(), testing::HasSubstr("No space left on device"));
  }
  EXPECT_FALSE(std::filesystem::exists(place / "step-000003.tmp"));
  EXPECT_EQ(difference(Reader(*latest(place)), make_tensors(2)), "");
  save(place, 4, large);
  EXPECT_EQ(difference(Reader(*latest(place)), large), "");
}

}  // namespace
}  // namespace tessera::checkpoint
