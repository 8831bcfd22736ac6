// Values and gradients that cross the network in fewer bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "ps/client.hpp"
#include "ps/messages.hpp"
#include "ps/running_server.hpp"

namespace tessera::ps {
namespace {

using testing::HasSubstr;

TableSpec ads(RowType wire, int dimension = 5) { return {.name = "ads", .dimension = dimension, .wire = wire}; }

// What pushes add stays as it came.
TableSpec sums(RowType wire, int dimension) {
  TableSpec spec = ads(wire, dimension);
  spec.optimizer.rule = Rule::add;
  spec.initializer.kind = InitialValues::zero;
  return spec;
}

std::vector<Key> first_keys(std::size_t count) {
  std::vector<Key> keys(count);
  std::iota(keys.begin(), keys.end(), Key{0});
  return keys;
}

class Wire : public testing::TestWithParam<RowType> {};
INSTANTIATE_TEST_SUITE_P(Each, Wire, testing::Values(RowType::bf16, RowType::int8),
                         [](const auto& info) { return info.param == RowType::bf16 ? "bf16" : "int8"; });

TEST_P(Wire, PullsRoundToTheNearest) {
  RunningServer server;
  Client client({server.place}, "");
  const Client::TableId table = client.open(ads(GetParam()));
  Table exact(ads(GetParam()));
  std::vector<Key> keys = first_keys(20'000);  // several messages
  keys.insert(keys.end(), {3, 3, 19'999});
  std::vector<float> values(keys.size() * 5), right(values.size());
  client.pull(table, keys, values);
  exact.pull(keys, right);
  std::size_t rounded = 0;
  for (std::size_t row = 0; row < keys.size(); ++row) {
    float largest = 0;
    for (std::size_t i = 5 * row; i < 5 * row + 5; ++i) largest = std::max(largest, std::abs(right[i]));
    for (std::size_t i = 5 * row; i < 5 * row + 5; ++i) {
      const float most = GetParam() == RowType::bf16 ? std::abs(right[i]) / 128 : largest / 127;  // of the last place
      ASSERT_NEAR(values[i], right[i], most / 2 * 1.0001f) << keys[row];
      rounded += values[i] != right[i] ? 1 : 0;
    }
  }
  EXPECT_GT(rounded, values.size() / 2);
}

TEST_P(Wire, PushesKeepTheMeanOfGradients) {
  RunningServer server;
  Client client({server.place}, "");
  const Client::TableId table = client.open(sums(GetParam(), 2));
  const std::vector<Key> keys = first_keys(20'000);
  std::vector<float> gradients(2 * keys.size());
  for (std::size_t i = 0; i < gradients.size(); i += 2) {
    gradients[i] = 1.002f;  // bf16: between 1 and 1.0078; int8: between 31 and 32 of 127ths of 4
    gradients[i + 1] = 4;
  }
  EXPECT_EQ(client.push(table, keys, gradients).applied, 20'000);
  std::vector<float> values(gradients.size());
  client.pull(table, keys, values);
  double mean = 0;
  for (std::size_t i = 0; i < values.size(); i += 2) {
    mean += values[i] / static_cast<double>(keys.size());
    EXPECT_FLOAT_EQ(values[i + 1], 4);
  }
  EXPECT_NEAR(mean, 1.002, 0.0006);  // a deviation of 0.0157 at most, over the root of 20,000, five times
}

TEST_P(Wire, GradientsThatAreNotFiniteAreRefused) {
  RunningServer server;
  Client client({server.place}, "");
  const Client::TableId table = client.open(sums(GetParam(), 2));
  const PushResult result = client.push(table, std::vector<Key>{1, 2, 3}, std::vector<float>{0, NAN, -INFINITY, 1, 1, 1});
  EXPECT_EQ(result.applied, 1);
  EXPECT_EQ(result.refused, 2);
  std::vector<float> values(6);
  client.pull(table, std::vector<Key>{1, 2, 3}, values);
  EXPECT_THAT(values, testing::Pointwise(testing::FloatEq(), {0, 0, 0, 0, 1, 1}));
}

// A worker's steps [begin, end) on the table.
void train(const std::string& place, RowType wire, std::int64_t begin, std::int64_t end, std::vector<float>& values) {
  Client client({place}, "",
                ClientOptions{.worker = Worker{.index = 0, .count = 1, .run = static_cast<std::uint64_t>(begin), .first_step = begin}});
  TableSpec spec = ads(wire);
  spec.consistency = Consistency::synchronous;
  const Client::TableId table = client.open(spec);
  const std::vector<Key> keys = first_keys(100);
  for (std::int64_t step = begin; step < end; ++step) {
    client.pull(table, keys, values);
    std::vector<float> gradients;
    for (const float value : values) gradients.push_back(value - 0.3f);
    client.push(table, keys, gradients);
    client.end_step();
  }
  client.pull(table, keys, values);
}

TEST_P(Wire, ARunThatGoesOnRoundsAsOneThatWasNotInterrupted) {
  std::vector<float> whole(500), parts(500);
  RunningServer one, other;
  train(one.place, GetParam(), 0, 6, whole);
  train(other.place, GetParam(), 0, 2, parts);
  train(other.place, GetParam(), 2, 6, parts);
  EXPECT_EQ(whole, parts);
}

TEST(WireOfATable, IsReadFromADescriptionWithAndWithoutIt) {
  EXPECT_EQ(spec_from_json(to_json(ads(RowType::int8))).wire, RowType::int8);
  std::string words = to_json(ads(RowType::fp32));
  const std::string member = R"(,"wire":"fp32")";
  ASSERT_THAT(words, HasSubstr(member));
  words.erase(words.find(member), member.size());
  EXPECT_EQ(spec_from_json(words).wire, RowType::fp32);
}

TEST(WireOfATable, IsOneForAllOfItsClients) {
  RunningServer server;
  Client first({server.place}, ""), second({server.place}, "");
  first.open(ads(RowType::bf16));
  EXPECT_THROW(second.open(ads(RowType::fp32)), Error);
}

}  // namespace
}  // namespace tessera::ps
