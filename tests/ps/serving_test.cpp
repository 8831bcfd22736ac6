// Finished tables: what servers have saved, as a file of values, and the server that answers from it.
#include "ps/serving_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "base/free_port.hpp"
#include "base/temporary_folder.hpp"
#include "ps/client.hpp"
#include "ps/row_values.hpp"
#include "ps/running_server.hpp"
#include "ps/serving_server.hpp"
#include "ps/table_file.hpp"
#include "ps/tables_helper.hpp"
#include "ps/told_helper.hpp"

namespace tessera::ps {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kDimension = 5;

// What two servers have saved into `folder`: a base and a delta each, of a table some of whose rows were erased meanwhile. Returns what
// the servers answer for `keys`, then.
std::vector<float> save_a_table(const TableSpec& spec, const std::filesystem::path& folder, const std::vector<Key>& keys, bool deltas) {
  const RunningServer first, second;
  Client client({first.place, second.place}, "");
  const auto table = client.open(spec);
  Random random(11);
  for (int round = 0; round < (deltas ? 2 : 1); ++round) {
    const Drawn drawn = batch(random, 6000, spec.dimension);
    client.push(table, drawn.keys, drawn.gradients);
    client.begin_save(folder, round == 0 ? SnapshotRows::all : SnapshotRows::changed);
    client.finish_save();
  }
  std::vector<float> values(keys.size() * static_cast<std::size_t>(spec.dimension));
  client.pull(table, keys, values, Absent::zeros);
  return values;
}

std::vector<Key> some_keys() {
  std::vector<Key> keys;
  for (std::uint64_t row = 0; row < 3000; ++row) keys.push_back(key_of(row * 7));
  keys.push_back(~Key{0});
  return keys;
}

std::vector<float> found_in(const ServingTable& table, const std::vector<Key>& keys) {
  std::vector<float> values(keys.size() * static_cast<std::size_t>(table.dimension()), 7.0f);
  table.find(keys, values);
  return values;
}

TEST(Serving, AFileHasTheValuesThatServersHaveSaved) {
  const std::vector<Key> keys = some_keys();
  for (const bool deltas : {false, true})
    for (const RowType type : {RowType::fp32, RowType::bf16, RowType::int8}) {
      const TemporaryFolder folder;
      const TableSpec spec{.name = "ads", .dimension = kDimension, .type = type, .optimizer = {.rule = Rule::adam}};
      const std::vector<float> expected = save_a_table(spec, folder / "saved", keys, deltas);
      const std::uint64_t rows = write_serving_table(real_file_system(), folder / "saved", "ads", {}, folder / "rows.table");
      const ServingTable table(folder / "rows.table");
      table.verify();
      EXPECT_EQ(table.rows(), rows);
      EXPECT_EQ(table.name(), "ads");
      EXPECT_EQ(table.type(), type);
      EXPECT_EQ(found_in(table, keys), expected);
      EXPECT_NE(expected, std::vector<float>(expected.size()));
    }
}

TEST(Serving, SmallerRowsAreTheNearestOnes) {
  const TemporaryFolder folder;
  const std::vector<Key> keys = some_keys();
  const std::vector<float> exact = save_a_table({.name = "ads", .dimension = kDimension}, folder / "saved", keys, false);
  for (const RowType type : {RowType::bf16, RowType::int8}) {
    write_serving_table(real_file_system(), folder / "saved", "ads", type, folder / "rows.table");
    const std::vector<float> rounded = found_in(ServingTable(folder / "rows.table"), keys);
    for (std::size_t row = 0; row < keys.size(); ++row) {
      float largest = 0;
      for (std::size_t i = row * kDimension; i < (row + 1) * kDimension; ++i) largest = std::max(largest, std::abs(exact[i]));
      for (std::size_t i = row * kDimension; i < (row + 1) * kDimension; ++i)
        EXPECT_LE(std::abs(rounded[i] - exact[i]), type == RowType::bf16 ? std::abs(exact[i]) / 256 : largest / 127 * 0.5001f);
    }
  }
}

TEST(Serving, EveryRowIsFoundHoweverManyThereAre) {
  const TemporaryFolder folder;
  for (const std::uint64_t count : {0, 1, 2, 3, 11, 1000, 100'000}) {
    ServingWriter writer(real_file_system(), folder / "rows.table", "t", 1, RowType::fp32);
    for (std::uint64_t row = 0; row < count; ++row) {
      const auto value = static_cast<float>(row + 1);
      writer.add(key_of(row), RowType::fp32, std::as_bytes(std::span(&value, 1)));
    }
    EXPECT_EQ(writer.finish(), count);
    const ServingTable table(folder / "rows.table");
    std::vector<Key> keys;
    for (std::uint64_t row = 0; row < 2 * count + 5; ++row) keys.push_back(key_of(row));
    std::vector<float> values(keys.size(), -1);
    EXPECT_EQ(table.find(keys, values), count);
    for (std::uint64_t row = 0; row < keys.size(); ++row) ASSERT_EQ(values[row], row < count ? static_cast<float>(row + 1) : 0) << row;
  }
}

TEST(Serving, AKeyThatComesTwiceIsRefusedAndLeavesNoFile) {
  const TemporaryFolder folder;
  {
    ServingWriter writer(real_file_system(), folder / "rows.table", "t", 1, RowType::fp32);
    const float value = 1;
    for (int i = 0; i < 2; ++i) writer.add(9, RowType::fp32, std::as_bytes(std::span(&value, 1)));
    EXPECT_THAT(told([&] { writer.finish(); }), AllOf(HasSubstr("corrupt"), HasSubstr("two rows of key 9")));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Serving, NoChangedByteGoesUnnoticed) {
  const TemporaryFolder folder;
  {
    ServingWriter writer(real_file_system(), folder / "rows.table", "ads", 3, RowType::bf16);
    const std::vector<float> values = {1, 2, 3};
    for (Key key = 0; key < 40; ++key) writer.add(key, RowType::fp32, std::as_bytes(std::span(values)));
    writer.finish();
  }
  const std::string whole = read_whole(folder / "rows.table");
  const auto refused = [&](const std::string& content) {
    std::ofstream(folder / "changed", std::ios::binary) << content;
    return told([&] {
      const ServingTable table(folder / "changed");
      std::vector<Key> keys = {1, 39, 77};
      std::vector<float> values(9);
      // Whatever it says, nothing outside is read.
      EXPECT_NO_FATAL_FAILURE(told([&] { table.find(keys, values); }));
      table.verify();
    });
  };
  const std::size_t rows_end = 40 * row_bytes(RowType::bf16, 3), index_at = (rows_end + 63) / 64 * 64;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    if (at >= rows_end && at < index_at) continue;  // nobody reads what fills up the last line
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x41);
    EXPECT_THAT(refused(changed), HasSubstr("corrupt")) << at;
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{79}, whole.size() - 1})
    EXPECT_THAT(refused(whole.substr(0, size)), HasSubstr("corrupt"));
  EXPECT_EQ(refused(whole), "");
}

// Two servers of one table, on threads of their own.
class ServedTable {
 public:
  explicit ServedTable(const ServingTable& table) {
    for (int i = 0; i < 2; ++i) {
      places.push_back(free_loopback_place());
      std::promise<void> listening;
      threads_.emplace_back([place = places.back(), &table, &listening](const std::stop_token& stop) {
        ServingServer server(place, "", table);
        listening.set_value();
        server.serve(stop);
      });
      listening.get_future().wait();
    }
  }
  std::vector<std::string> places;

 private:
  std::vector<std::jthread> threads_;
};

TEST(Serving, AClientReadsAsFromTheServersThatTrainedIt) {
  const TemporaryFolder folder;
  const std::vector<Key> keys = some_keys();
  const std::vector<float> expected = save_a_table({.name = "ads", .dimension = kDimension}, folder / "saved", keys, false);
  write_serving_table(real_file_system(), folder / "saved", "ads", {}, folder / "rows.table");
  const ServingTable table(folder / "rows.table");
  const ServedTable served(table);
  Client client(served.places, "");
  const auto id = client.open({.name = "ads", .dimension = kDimension});
  std::vector<float> values(expected.size(), 7);
  client.pull(id, keys, values, Absent::zeros);
  EXPECT_EQ(values, expected);
  std::uint64_t pulled = 0;
  for (const ServerStatus& status : client.status()) {
    EXPECT_EQ(status.tables.at(0).rows, table.rows());
    pulled += status.tables.at(0).keys_pulled;
  }
  EXPECT_EQ(pulled, keys.size());
}

TEST(Serving, WhatWouldChangeATableIsRefused) {
  const TemporaryFolder folder;
  ServingWriter(real_file_system(), folder / "rows.table", "ads", 1, RowType::fp32).finish();
  const ServingTable table(folder / "rows.table");
  const ServedTable served(table);
  Client client(served.places, "");
  EXPECT_THAT(told([&] { client.open({.name = "ads", .dimension = 2}); }), HasSubstr("'ads' of dimension 1"));
  EXPECT_THAT(told([&] { client.open({.name = "ads", .dimension = 1, .wire = RowType::bf16}); }),
              HasSubstr("open the table with wire fp32"));
  const auto id = client.open({.name = "ads", .dimension = 1});
  const std::vector<Key> keys = {1, 2, 3};
  std::vector<float> values(3);
  EXPECT_THAT(told([&] { client.pull(id, keys, values); }), AllOf(HasSubstr("invalid_config"), HasSubstr("Absent::zeros")));
  EXPECT_THAT(told([&] { client.push(id, keys, values); }), AllOf(HasSubstr("invalid_config"), HasSubstr("is finished")));
  EXPECT_THAT(told([&] { client.begin_save(folder / "saved"); }), HasSubstr("is finished"));
  client.pull(id, keys, values, Absent::zeros);
  EXPECT_EQ(values, std::vector<float>(3));
  Client worker(served.places, "", {.worker = Worker{.index = 0, .count = 1, .run = 1, .first_step = 0}});
  EXPECT_THAT(told([&] { worker.open({.name = "ads", .dimension = 1}); }), HasSubstr("is finished"));
}

}  // namespace
}  // namespace tessera::ps
