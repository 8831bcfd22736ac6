// Tables that begin with the rows of saved ones.
#include "ps/first_rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <optional>

#include "base/free_port.hpp"
#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "ps/killed_server.hpp"
#include "ps/running_server.hpp"
#include "ps/told_helper.hpp"

namespace tessera::ps {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TableSpec monday() { return {.name = "monday", .dimension = kDimension, .optimizer = {.rule = Rule::adam}}; }
TableSpec tuesday(const OptimizerSpec& optimizer = {.rule = Rule::adam}) {
  return {.name = "tuesday", .dimension = kDimension, .optimizer = optimizer};
}

// A client with one table on so many servers.
struct Day {
  Day(const TableSpec& spec, std::size_t count) : servers(count) {
    for (const RunningServer& server : servers) places.push_back(server.place);
    client.emplace(places, "");
    table = client->open(spec);
  }
  std::vector<Key> push(std::uint64_t seed, std::size_t count = 3000) {
    Random random(seed);
    std::vector<Key> keys(count);
    for (Key& key : keys) key = 1 + random.below(kKeys);
    std::vector<float> gradients(count * kDimension);
    for (float& gradient : gradients) gradient = static_cast<float>(random.uniform() - 0.5);
    client->push(table, keys, gradients);
    return keys;
  }
  std::vector<float> values() {
    std::vector<float> all(kKeys * kDimension);
    client->pull(table, all_keys(), all, Absent::zeros);
    return all;
  }
  std::uint64_t rows(std::size_t of = 0) {
    std::uint64_t sum = 0;
    for (const ServerStatus& server : client->status()) sum += server.tables.at(of).rows;
    return sum;
  }
  void save(const std::filesystem::path& folder, SnapshotRows rows = SnapshotRows::all) {
    client->begin_save(folder, rows);
    client->finish_save();
  }
  std::deque<RunningServer> servers;
  std::vector<std::string> places;
  std::optional<Client> client;
  Client::TableId table = 0;
};

TEST(FirstRows, AreThoseOfABaseAndItsDeltasWhicheverServersHadThem) {
  TemporaryFolder folder;
  Day before(monday(), 2);
  for (std::uint64_t seed = 0; seed < 5; ++seed) before.push(seed);
  before.save(folder.path());
  before.push(20, 300);
  before.save(folder.path(), SnapshotRows::changed);
  ASSERT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 5);  // two chains of two files, and tables.json
  const std::vector<float> then = before.values();
  for (const std::size_t count : {1, 2, 3}) {
    Day after(tuesday(), count);
    EXPECT_GE(put_first_rows(*after.client, after.table, {folder.path(), "monday"}), before.rows());
    EXPECT_EQ(after.values(), then) << count << " servers";
    EXPECT_EQ(after.rows(), before.rows());
  }
}

TEST(FirstRows, DoNotComeBackOnceTheyWereEvicted) {
  TemporaryFolder folder;
  TableSpec spec = monday();
  spec.lifecycle = Lifecycle{.eviction = {.unseen = 1}};
  Day before(spec, 2);
  before.push(1);
  before.save(folder.path());
  for (int period = 0; period < 2; ++period) {
    before.client->end_period(before.table);
    before.push(2, 500);
  }
  const std::uint64_t all = before.rows();
  before.save(folder.path(), SnapshotRows::changed);
  ASSERT_LT(all, 600u);
  spec.name = "tuesday";
  Day after(spec, 1);
  put_first_rows(*after.client, after.table, {folder.path(), "monday"});
  EXPECT_EQ(after.rows(), all);
  EXPECT_EQ(after.values(), before.values());
  // They were seen in the last period, which goes on, and go as they would have gone.
  EXPECT_EQ(after.client->status().front().tables.front().lifecycle->period, 2u);
  EXPECT_EQ(after.client->end_period(after.table), 0u);
  EXPECT_EQ(after.client->end_period(after.table), all);
}

TEST(FirstRows, AreStillThereWhereOneOfBothTablesCountsShowsAlone) {
  TemporaryFolder folder;
  TableSpec counting = monday();
  counting.lifecycle = Lifecycle{};
  for (const bool counted : {false, true}) {
    const std::filesystem::path saved = folder.path() / (counted ? "counted" : "plain");
    Day before(counted ? counting : monday(), 2);
    before.push(1);
    before.save(saved);
    TableSpec spec = tuesday();
    if (!counted) spec.lifecycle = Lifecycle{};
    Day after(spec, 2);
    put_first_rows(*after.client, after.table, {saved, "monday"});
    EXPECT_EQ(after.values(), before.values());
    after.push(2);
    EXPECT_NE(after.values(), before.values());
  }
}

// A row that is pushed to for the first time moves as its rule says of one without a past.
TEST(FirstRows, BeginTheirOptimizersAnew) {
  TemporaryFolder folder;
  Day before(monday(), 1);
  for (std::uint64_t seed = 0; seed < 5; ++seed) before.push(seed);
  before.save(folder.path());
  const std::vector<float> then = before.values();
  const std::vector<Key> keys = before.push(0, 1);
  for (const OptimizerSpec& optimizer :
       {OptimizerSpec{.rule = Rule::adam, .learning_rate = 0.01f}, OptimizerSpec{.rule = Rule::adagrad, .learning_rate = 0.01f},
        OptimizerSpec{.rule = Rule::adagrad, .row_moment = true, .learning_rate = 0.01f}}) {
    Day after(tuesday(optimizer), 1);
    put_first_rows(*after.client, after.table, {folder.path(), "monday"});
    after.client->push(after.table, keys, std::vector<float>(kDimension, 0.25f));
    std::vector<float> row(kDimension);
    after.client->pull(after.table, keys, row);
    for (std::size_t i = 0; i < kDimension; ++i) EXPECT_NEAR(row[i], then[(keys[0] - 1) * kDimension + i] - 0.01f, 1e-5f);
  }
}

TEST(FirstRows, KeepTheirValuesWhereFtrlWorksThemOutOfItsState) {
  TemporaryFolder folder;
  Day before(monday(), 1);
  for (std::uint64_t seed = 0; seed < 5; ++seed) before.push(seed);
  before.save(folder.path());
  const std::vector<float> then = before.values();
  const std::vector<Key> keys = before.push(0, 50);
  Day after(tuesday({.rule = Rule::ftrl, .learning_rate = 0.1f, .l1 = 0.01f, .l2 = 0.5f, .beta = 1}), 1);
  put_first_rows(*after.client, after.table, {folder.path(), "monday"});
  EXPECT_EQ(after.values(), then);
  after.client->push(after.table, keys, std::vector<float>(keys.size() * kDimension, 1e-6f));
  const std::vector<float> now = after.values();
  for (std::size_t i = 0; i < now.size(); ++i) ASSERT_NEAR(now[i], then[i], 1e-5f);
}

TEST(FirstRows, LeaveOtherTablesOfTheServersAlone) {
  TemporaryFolder folder;
  Day day(monday(), 2);
  day.push(1);
  day.save(folder.path());
  const std::vector<float> then = day.values();
  day.push(2);
  const std::vector<float> now = day.values();
  const Client::TableId next = day.client->open(tuesday());
  put_first_rows(*day.client, next, {folder.path(), "monday"});
  EXPECT_EQ(day.values(), now);
  day.table = next;
  EXPECT_EQ(day.values(), then);
}

TEST(FirstRows, AreRefusedWhereTheyDoNotFitBeforeOneIsThere) {
  TemporaryFolder folder;
  {
    Day before(monday(), 2);
    before.push(1);
    before.save(folder.path());
  }
  const auto said = [&](TableSpec spec, const std::string& from = "monday") {
    RunningServer server;
    Client client({server.place}, "");
    const Client::TableId table = client.open(spec);
    const std::string words = told([&] { put_first_rows(client, table, {folder.path(), from}); });
    EXPECT_EQ(client.status().front().tables.front().rows, 0u);
    const std::string before = told([&] { check_first_rows({folder.path(), from}, spec); });
    EXPECT_EQ(before, words);
    return words;
  };
  TableSpec other = tuesday();
  other.dimension = 9;
  EXPECT_THAT(said(other), AllOf(HasSubstr("invalid_config"), HasSubstr("dimension of its rows is 4, and 9 in table tuesday")));
  other = tuesday();
  other.type = RowType::bf16;
  EXPECT_THAT(said(other), HasSubstr("type of its rows is \"fp32\", and \"bf16\" in table tuesday"));
  other = tuesday();
  other.lifecycle = Lifecycle{.growth = {{.seen = 0, .dimension = 2}, {.seen = 3, .dimension = kDimension}}};
  EXPECT_THAT(said(other), HasSubstr("its rows do not grow, and those of table tuesday do"));
  EXPECT_THAT(said(tuesday(), "sunday"), AllOf(HasSubstr("not_found"), HasSubstr("there is no table sunday")));
}

TEST(FirstRows, OfADamagedFileAreRefusedBeforeOneIsThere) {
  TemporaryFolder folder;
  {
    Day before(monday(), 1);
    before.push(1);
    before.save(folder.path());
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    if (entry.path().extension() == ".rows") std::filesystem::resize_file(entry.path(), entry.file_size() - 1);
  Day after(tuesday(), 1);
  EXPECT_THAT(told([&] { put_first_rows(*after.client, after.table, {folder.path(), "monday"}); }), HasSubstr("corrupt"));
  EXPECT_EQ(after.rows(), 0u);
}

TEST(FirstRows, AreInTheLogOfAServerThatIsKilled) {
  TemporaryFolder folder;
  std::vector<float> saved;
  {
    Day before(monday(), 2);
    before.push(1);
    before.save(folder.path() / "saved");
    saved = before.values();
  }
  const std::string place = free_loopback_place();
  const ServerOptions options{.log = ServerLog{.folder = folder.path() / "log"}};
  {
    const KilledServer server(place, options);
    Client client({place}, "");
    put_first_rows(client, client.open(tuesday()), {folder.path() / "saved", "monday"});
  }
  std::filesystem::remove_all(folder.path() / "saved");
  const KilledServer again(place, options);
  Client client({place}, "");
  const Client::TableId table = client.open(tuesday());
  std::vector<float> values(kKeys * kDimension);
  client.pull(table, all_keys(), values, Absent::zeros);
  EXPECT_EQ(values, saved);
}

}  // namespace
}  // namespace tessera::ps
