#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/expect_error.hpp"
#include "base/temporary_folder.hpp"
#include "checkpoint/checkpoint_helper.hpp"

namespace tessera::checkpoint {
namespace {

using ::testing::ElementsAre;
using testing::error_of;

void save_step(const std::filesystem::path& folder, std::int64_t step) { save(folder, step, make_tensors(1)); }

TEST(BestCheckpoint, IsNeverPruned) {
  const TemporaryFolder folder;
  for (const int step : {10, 20, 30, 40, 50}) save_step(folder.path(), step);
  set_best(real_file_system(), folder.path(), {20, 3.5});
  prune(real_file_system(), folder.path(), 2);
  EXPECT_THAT(list(folder.path()), ElementsAre(20, 40, 50));
  EXPECT_EQ(best(folder.path())->step, 20);
  EXPECT_EQ(best(folder.path())->validation_loss, 3.5);
  set_best(real_file_system(), folder.path(), {50, 3.25});
  prune(real_file_system(), folder.path(), 2);
  EXPECT_THAT(list(folder.path()), ElementsAre(40, 50)) << "what was the best before goes";
}

TEST(BestCheckpoint, IsOneThatIsThere) {
  const TemporaryFolder folder;
  EXPECT_FALSE(best(folder.path()));
  save_step(folder.path(), 10);
  set_best(real_file_system(), folder.path(), {20, 3.5});
  EXPECT_FALSE(std::filesystem::exists(folder / "best.json"));
  set_best(real_file_system(), folder.path(), {10, 3.5});
  EXPECT_EQ(read_whole(folder / "best.json"), "{\"step\":10,\"validation_loss\":3.5}\n");
  std::filesystem::remove_all(step_folder(folder.path(), 10));
  EXPECT_FALSE(best(folder.path()));
}

TEST(BestCheckpoint, ADamagedNameIsToldAndEndsNoSave) {
  const TemporaryFolder folder;
  for (const int step : {10, 20, 30}) save_step(folder.path(), step);
  for (const char* content : {"{\"step\": 1.5, \"validation_loss\": 2}", "{\"step\": 20}", "[]", "{\"step\": 20, \"val"}) {
    folder.write("best.json", content);
    const Error error = error_of([&] { best(folder.path()); });
    EXPECT_EQ(error.code(), ErrorCode::corrupt) << content;
    EXPECT_THAT(error.what(), ::testing::HasSubstr("best.json"));
  }
  prune(real_file_system(), folder.path(), 2);
  EXPECT_THAT(list(folder.path()), ElementsAre(20, 30));
}

}  // namespace
}  // namespace tessera::checkpoint
