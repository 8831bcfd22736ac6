#include "ps/table_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/temporary_folder.hpp"
#include "ps/tables_helper.hpp"
#include "ps/told_helper.hpp"

namespace tessera::ps {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TableFile saved(Table& table, const std::filesystem::path& path, const std::string& last = {}) {
  TableSave save(table, real_file_system(), path, last);
  while (save.save_some()) {}
  return save.file();
}

Rows loaded(const TableSpec& spec, const std::vector<std::filesystem::path>& files) {
  Table table(spec);
  load_table(table, files);
  return rows_of(table);
}

// What happens to a table between two saves, and during one.
void change(Table& table, Random& random, std::size_t keys) {
  const Drawn drawn = batch(random, keys, table.spec().dimension);
  table.push(drawn.keys, drawn.gradients);
  const Drawn gone = batch(random, keys / 8, table.spec().dimension);
  table.erase(gone.keys);
  const Drawn back = batch(random, keys / 8, table.spec().dimension);
  std::vector<float> values(back.gradients.size());
  table.pull(back.keys, values);
}

TEST(TableFile, ABaseAndItsDeltasAreTheTableWhenTheLastBegan) {
  for (const bool tiered : {false, true})
    for (const RowType type : {RowType::fp32, RowType::int8}) {
      const TableSpec spec{.name = "ads", .dimension = 4, .type = type};
      const TemporaryFolder folder;
      Table table(spec, tiered ? std::optional(TableStorage{folder.path(), least_memory(spec)}) : std::nullopt);
      Random random(17);
      std::vector<std::filesystem::path> files;
      std::string last;
      for (int round = 0; round < 5; ++round) {
        for (int step = 0; step < 4; ++step) change(table, random, round == 0 ? 30'000 : 5000);
        const Rows at_begin = rows_of(table);
        const std::uint64_t pushes = table.push_count();
        files.push_back(folder / std::to_string(round));
        TableSave save(table, real_file_system(), files.back(), last);
        // The table goes on changing while it is saved.
        while (save.save_some(2000)) change(table, random, 1000);
        EXPECT_EQ(save.file().rows, round == 0 ? SnapshotRows::all : SnapshotRows::changed);
        EXPECT_EQ(save.file().push_count, pushes);
        EXPECT_EQ(save.file().row_count<at_begin.size(), round> 0);
        last = save.file().id;
        EXPECT_TRUE(loaded(spec, files) == at_begin) << "round " << round;
      }
      EXPECT_EQ(table.memory().misses > 1000, tiered);
    }
}

TEST(TableFile, ATableLargerThanMemoryIsLoadedIntoOneAsLarge) {
  const TableSpec spec{.name = "ads", .dimension = 4};
  const TemporaryFolder folder;
  Table table(spec), after(spec, TableStorage{folder.path(), least_memory(spec)});
  Random random(3);
  for (int step = 0; step < 5; ++step) change(table, random, 50'000);
  saved(table, folder / "base");
  load_table(after, std::vector{folder / "base"});
  EXPECT_GT(after.memory().disk.value, 0);
  EXPECT_EQ(after.size(), table.size());
  EXPECT_TRUE(rows_of(after) == rows_of(table));
  change(table, random, 1000);
}

TEST(TableFile, AFlippedBitOrAMissingEndIsFoundBeforeARowIsUsed) {
  const TableSpec spec{.name = "ads", .dimension = 2};
  const TemporaryFolder folder;
  Table table(spec);
  table.push(std::vector<Key>{1, 2, 3}, std::vector<float>(6, 1));
  const std::filesystem::path path = folder / "base";
  saved(table, path);
  std::string content;
  {
    std::ifstream in(path, std::ios::binary);
    content.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto refused = [&](const std::string& changed) {
    std::ofstream(path, std::ios::binary) << changed;
    Table after(spec);
    const std::string words = told([&] { load_table(after, std::vector{path}); });
    const bool says = words.starts_with("corrupt: ") && words.find("rows of a table cannot be read") != std::string::npos;
    return after.size() == 0 && says && words.find(path.string()) != std::string::npos;
  };
  for (std::size_t byte = 0; byte < content.size(); ++byte) {
    std::string changed = content;
    changed[byte] = static_cast<char>(changed[byte] ^ (1 << (byte % 8)));
    EXPECT_TRUE(refused(changed)) << "a bit of byte " << byte;
    EXPECT_TRUE(refused(content.substr(0, byte))) << "only " << byte << " bytes";
  }
  EXPECT_TRUE(refused(content + "x"));
  EXPECT_FALSE(refused(content));
}

TEST(TableFile, RowsOfAnotherTableAreRefusedWithWhatDiffers) {
  const TemporaryFolder folder;
  Table table({.name = "ads", .dimension = 2});
  saved(table, folder / "base");
  const auto told_by = [&](const TableSpec& spec) { return told([&] { loaded(spec, {folder / "base"}); }); };
  EXPECT_EQ(told_by({.name = "ads", .dimension = 2, .optimizer = {.learning_rate = 1}}), "");
  EXPECT_THAT(told_by({.name = "ads", .dimension = 3}),
              AllOf(HasSubstr("invalid_config"), HasSubstr("dimension is 2 in the file and 3 in the table")));
  EXPECT_THAT(told_by({.name = "users", .dimension = 2}), HasSubstr("name is \"ads\" in the file and \"users\" in the table"));
  EXPECT_THAT(told_by({.name = "ads", .dimension = 2, .type = RowType::bf16}), HasSubstr("type is \"fp32\" in the file"));
  EXPECT_THAT(told_by({.name = "ads", .dimension = 2, .optimizer = {.rule = Rule::sgd}}), HasSubstr("rule is \"adagrad\" in the file"));
  EXPECT_THAT(told_by({.name = "ads", .dimension = 2, .optimizer = {.row_moment = true}}), HasSubstr("row_moment is false in the file"));
}

TEST(TableFile, ADeltaIsLoadedAfterTheFileThatItFollowsOnly) {
  const TableSpec spec{.name = "ads", .dimension = 2};
  const TemporaryFolder folder;
  Table table(spec);
  Random random(1);
  std::string last;
  for (const char* const name : {"base", "one", "two"}) {
    change(table, random, 100);
    last = saved(table, folder / name, last).id;
  }
  const auto told_by = [&](const std::vector<std::filesystem::path>& files) { return told([&] { loaded(spec, files); }); };
  EXPECT_EQ(told_by({folder / "base", folder / "one", folder / "two"}), "");
  EXPECT_THAT(told_by({folder / "base", folder / "two"}), HasSubstr("do not follow the file before"));
  EXPECT_THAT(told_by({folder / "one"}), HasSubstr("follow another file"));
}

TEST(TableFile, ASaveThatFailsLeavesTheFileBeforeAndTheNextIsABase) {
  const TableSpec spec{.name = "ads", .dimension = 4};
  const TemporaryFolder folder;
  Table table(spec);
  Random random(9);
  change(table, random, 60'000);
  const std::string first = saved(table, folder / "base").id;
  const Rows before = rows_of(table);
  change(table, random, 60'000);
  {
    const FullDisk full(100 << 10);
    TableSave save(table, real_file_system(), folder / "base", first);
    EXPECT_THAT(told([&] {
                  while (save.save_some(1000)) change(table, random, 1000);
                }),
                AllOf(HasSubstr("io: "), HasSubstr("base.tmp")));
    EXPECT_FALSE(save.save_some());
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "base.tmp"));
  EXPECT_TRUE(loaded(spec, {folder / "base"}) == before);
  const TableFile next = saved(table, folder / "next", first);
  EXPECT_EQ(next.rows, SnapshotRows::all);
  EXPECT_TRUE(loaded(spec, {folder / "next"}) == rows_of(table));
}

}  // namespace
}  // namespace tessera::ps
