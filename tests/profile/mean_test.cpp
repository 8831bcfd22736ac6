#include "profile/mean.hpp"

#include <gmock/gmock.h>

namespace tessera::profile {
namespace {

BlockSample block(std::int64_t micro_batch, double forward, double backward) {
  BlockSample out;
  out.kind = "transformer_layer";
  out.micro_batch_size = micro_batch;
  out.forward = Seconds(forward);
  out.forward_low = Seconds(forward / 2);
  out.forward_high = Seconds(forward * 2);
  out.backward = out.backward_low = out.backward_high = Seconds(backward);
  return out;
}

CommSample all_reduce(int ranks, std::vector<CommPoint> points) {
  CommSample out;
  out.operation = "all_reduce";
  out.link = "shm";
  out.ranks = ranks;
  out.points = std::move(points);
  return out;
}

Profile a_profile() {
  Profile out;
  out.blocks = {block(1, 0.010, 0.020), block(2, 0.018, 0.040)};
  out.communication = {all_reduce(2, {{Bytes(1 << 10), {1e-5, 1e-5, 2e-5}}, {Bytes(1 << 20), {1e-3, 1e-3, 3e-3}}})};
  out.optimizers = {{"adamw", 1, 1, model::Precision::f32, {1e-9, 1e-9, 1e-9}}};
  out.process_baseline = Bytes(100);
  return out;
}

TEST(MeanOf, AProfileAndItselfIsTheSame) {
  Profile profile = a_profile();
  profile.rows = {{"pull", {1e-6, 1e-6, 1e-6}, {2e-6, 2e-6, 2e-6}, 64}};
  profile.speeds = {1, 2};
  EXPECT_EQ(to_json(mean_of(profile, profile)), to_json(profile));
}

TEST(MeanOf, HoldsMeansOfWhatBothProfilesHold) {
  const Profile a = a_profile();
  Profile b = a_profile();
  b.blocks = {block(1, 0.020, 0.024)};
  b.communication.front().points.pop_back();
  b.communication.front().points.front().seconds.median = 3e-5;
  b.communication.front().slows = {1.5, 1, 2};
  b.communication.push_back(all_reduce(4, {}));
  b.optimizers.front().seconds_per_parameter.median = 3e-9;
  b.process_baseline = Bytes(200);
  for (const Profile& mean : {mean_of(a, b), mean_of(b, a)}) {
    ASSERT_EQ(mean.blocks.size(), 1u);
    EXPECT_DOUBLE_EQ(mean.blocks[0].forward.value, 0.015);
    EXPECT_DOUBLE_EQ(mean.blocks[0].forward_low.value, 0.0075);
    EXPECT_DOUBLE_EQ(mean.blocks[0].forward_high.value, 0.03);
    EXPECT_DOUBLE_EQ(mean.blocks[0].backward.value, 0.022);
    ASSERT_EQ(mean.communication.size(), 1u);
    ASSERT_EQ(mean.communication[0].points.size(), 1u);
    EXPECT_DOUBLE_EQ(mean.communication[0].points[0].seconds.median, 2e-5);
    EXPECT_DOUBLE_EQ(mean.communication[0].slows.median, 1.5);
    ASSERT_EQ(mean.optimizers.size(), 1u);
    EXPECT_DOUBLE_EQ(mean.optimizers[0].seconds_per_parameter.median, 2e-9);
    EXPECT_EQ(mean.process_baseline, Bytes(200));
  }
}

TEST(MeanOf, TakesTheSpeedsOfHostsFromTheProfileThatKnowsThem) {
  Profile knows;
  knows.speeds = {1, 2};
  EXPECT_EQ(mean_of(knows, {}).speeds, knows.speeds);
  EXPECT_EQ(mean_of({}, knows).speeds, knows.speeds);
  Profile other;
  other.speeds = {1, 3};
  EXPECT_EQ(mean_of(knows, other).speeds, (std::vector<double>{1, 2.5}));
}

}  // namespace
}  // namespace tessera::profile
