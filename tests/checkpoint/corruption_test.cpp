#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/expect_error.hpp"
#include "checkpoint/checkpoint_helper.hpp"

namespace tessera::checkpoint {
namespace {

using tessera::testing::error_of;

// What a reader says that opens the folder and uses everything; empty when it finds nothing wrong.
std::string complaint(const std::filesystem::path& folder) {
  try {
    const Reader reader(folder);
    for (const TensorInfo& tensor : reader.tensors()) reader.read(tensor.name);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
    return error.what();
  }
  return {};
}

std::filesystem::path save_four_ranks(const std::filesystem::path& folder, std::int64_t step, std::uint64_t seed) {
  Random random(1);
  State state;
  state.train_yaml = "model: {arch: llama}\n";
  state.extra = {{"loss", 1.25}};
  save(real_file_system(), folder, step, cut(make_tensors(seed), {2, 2, true}, random), state);
  return step_folder(folder, step);
}

TEST(CheckpointCorruption, EveryFlippedBitIsFoundBeforeUseAndNamed) {
  const TemporaryFolder folder;
  const auto path = save_four_ranks(folder.path(), 1, 1);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(path)) files.push_back(entry.path());
  ASSERT_EQ(files.size(), 5u);
  ASSERT_EQ(complaint(path), "");

  Random random(2026);
  int in_tensors = 0;
  for (int flip = 0; flip < 2500; ++flip) {
    const auto& file = files[random.below(files.size())];
    const std::string good = read_whole(file);
    std::string bad = good;
    const std::size_t byte = random.below(bad.size());
    const int bit = static_cast<int>(random.below(8));
    bad[byte] = static_cast<char>(bad[byte] ^ (1 << bit));
    write_whole(real_file_system(), file, bad);
    const std::string found = complaint(path);
    EXPECT_THAT(found, ::testing::HasSubstr(file.filename().string())) << "bit " << bit << " of byte " << byte << " of " << bad.size();
    if (found.find("tensor '") != std::string::npos) {
      ++in_tensors;
      EXPECT_THAT(found, ::testing::HasSubstr("from offset"));
    }
    write_whole(real_file_system(), file, good);
  }
  EXPECT_EQ(complaint(path), "");
  EXPECT_GT(in_tensors, 500);
}

// All bits of the bytes that are not tensor data: the manifest and the headers with their padding.
TEST(CheckpointCorruption, EveryBitOfTheManifestAndTheHeadersCounts) {
  const TemporaryFolder folder;
  Random random(1);
  save(real_file_system(), folder.path(), 1, cut({{"w", make_tensors(1).at("odd")}}, {}, random));
  const auto path = step_folder(folder.path(), 1);
  for (const char* name : {"manifest.json", "rank-00000.safetensors"}) {
    const std::string good = read_whole(path / name);
    for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
      std::string bad = good;
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
      write_whole(real_file_system(), path / name, bad);
      EXPECT_THAT(complaint(path), ::testing::HasSubstr(name)) << "bit " << bit;
    }
    write_whole(real_file_system(), path / name, good);
  }
}

TEST(CheckpointCorruption, TruncatedAndExtendedFilesAreFound) {
  const TemporaryFolder folder;
  const auto path = save_four_ranks(folder.path(), 1, 1);
  for (const char* name : {"manifest.json", "rank-00002.safetensors"}) {
    const std::string good = read_whole(path / name);
    for (const std::size_t size : {std::size_t{0}, std::size_t{7}, good.size() / 2, good.size() - 1}) {
      write_whole(real_file_system(), path / name, good.substr(0, size));
      EXPECT_THAT(complaint(path), ::testing::HasSubstr(name));
    }
    write_whole(real_file_system(), path / name, good + "\n");
    EXPECT_THAT(complaint(path), ::testing::HasSubstr(name));
    write_whole(real_file_system(), path / name, good);
  }
}

TEST(CheckpointCorruption, MissingSwappedAndStaleShardsAreFound) {
  const TemporaryFolder folder;
  const auto path = save_four_ranks(folder.path(), 1, 1);
  const auto other_step = save_four_ranks(folder.path(), 2, 1);
  const auto other_weights = save_four_ranks(folder.path() / "other", 1, 2);
  const auto shard = path / "rank-00001.safetensors";
  const std::string good = read_whole(shard);

  std::filesystem::remove(shard);
  EXPECT_THAT(complaint(path), ::testing::AllOf(::testing::HasSubstr("rank-00001"), ::testing::HasSubstr("missing")));
  write_whole(real_file_system(), shard, read_whole(path / "rank-00003.safetensors"));
  EXPECT_THAT(complaint(path), ::testing::HasSubstr("rank-00001"));
  // The same values saved at another step, and other values of the same step.
  write_whole(real_file_system(), shard, read_whole(other_step / "rank-00001.safetensors"));
  EXPECT_THAT(complaint(path), ::testing::HasSubstr("rank-00001"));
  write_whole(real_file_system(), shard, read_whole(other_weights / "rank-00001.safetensors"));
  EXPECT_THAT(complaint(path), ::testing::HasSubstr("rank-00001"));
  write_whole(real_file_system(), shard, good);
  EXPECT_EQ(complaint(path), "");
}

TEST(CheckpointCorruption, LatestFallsBackToTheNewestGoodOne) {
  const TemporaryFolder folder;
  save_four_ranks(folder.path(), 1, 1);
  const auto path = save_four_ranks(folder.path(), 2, 2);
  std::string content = read_whole(path / "rank-00000.safetensors");
  content.back() = static_cast<char>(content.back() ^ 1);
  write_whole(real_file_system(), path / "rank-00000.safetensors", content);
  EXPECT_EQ(latest(folder.path()), step_folder(folder.path(), 1));
}

TEST(CheckpointCorruption, OneIsFoundByItsStepAndADamagedOneNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { find(folder.path()); }).what(), ::testing::HasSubstr("there is no checkpoint"));
  save_four_ranks(folder.path(), 1, 1);
  const auto path = save_four_ranks(folder.path(), 2, 2);
  EXPECT_EQ(find(folder.path()), path);
  EXPECT_EQ(find(folder.path(), 1), step_folder(folder.path(), 1));
  EXPECT_THAT(error_of([&] { find(folder.path(), 3); }).what(),
              ::testing::HasSubstr("there is no checkpoint of step 3; expected one of the steps 1, 2"));
  const auto flip = [](const std::filesystem::path& checkpoint) {
    std::string content = read_whole(checkpoint / "rank-00000.safetensors");
    content.back() = static_cast<char>(content.back() ^ 1);
    write_whole(real_file_system(), checkpoint / "rank-00000.safetensors", content);
  };
  flip(path);
  EXPECT_EQ(find(folder.path()), step_folder(folder.path(), 1));
  EXPECT_EQ(error_of([&] { find(folder.path(), 2); }).code(), ErrorCode::corrupt);
  flip(step_folder(folder.path(), 1));
  EXPECT_THAT(error_of([&] { find(folder.path()); }).what(), ::testing::HasSubstr("step-000002"));
}

TEST(CheckpointCorruption, WhatIsSetAsideIsReadByNobody) {
  const TemporaryFolder folder;
  for (const int step : {1, 2, 3}) save_four_ranks(folder.path(), step, 1);
  set_aside_after(real_file_system(), folder.path(), 1);
  EXPECT_EQ(list(folder.path()), (std::vector<std::int64_t>{1}));
  clean(real_file_system(), folder.path());
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "step-000003.damaged/manifest.json"));
}

TEST(CheckpointCorruption, StaleFilesOfAnInterruptedSaveDoNotGetIn) {
  const TemporaryFolder folder;
  Random random(1);
  const auto four = cut(make_tensors(1), {4, 1, true}, random);
  for (int rank = 0; rank < 4; ++rank) Writer(real_file_system(), folder.path(), 7, rank, 4).write(four[static_cast<std::size_t>(rank)]);
  save(real_file_system(), folder.path(), 7, cut(make_tensors(2), {2, 1, true}, random));
  EXPECT_EQ(difference(Reader(step_folder(folder.path(), 7)), make_tensors(2)), "");
  EXPECT_FALSE(std::filesystem::exists(step_folder(folder.path(), 7) / "rank-00003.safetensors"));
}

}  // namespace
}  // namespace tessera::checkpoint
