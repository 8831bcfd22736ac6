#include "profile/profile.hpp"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "base/expect_error.hpp"
#include "base/temporary_folder.hpp"

namespace tessera::profile {
namespace {

using model::Precision;
using testing::error_of;
using ::testing::HasSubstr;

const model::ModelSpec& a_model() {
  static const model::ModelSpec model = model::read_model(
      ConfigNode::parse("{arch: llama, hidden: 64, layers: 2, heads: 8, kv_heads: 4, ffn: 96, seq: 32, vocab: 512}", "m.yaml"));
  return model;
}
const model::BlockSpec& layer() { return a_model().repeats[1].block; }

cluster::Device four_cores() {
  cluster::Device device;
  device.name = "cpu:test";
  device.vendor = "cpu";
  device.peak["fp32"] = FlopsPerSecond(50e9);
  device.peak["bf16"] = FlopsPerSecond(100e9);
  device.memory = Bytes(8LL << 30);
  device.memory_bandwidth = BytesPerSecond(40e9);
  device.cores = 4;
  return device;
}

BlockSample sample(std::int64_t micro_batch, double forward, int threads = 1, int neighbours = 1, int tensor_parallel = 1,
                   double weight_share = 0.5) {
  BlockSample s;
  s.kind = "transformer_layer";
  s.micro_batch_size = micro_batch;
  s.tensor_parallel = tensor_parallel;
  s.threads = threads;
  s.neighbours = neighbours;
  s.forward = s.forward_low = s.forward_high = Seconds(forward);
  s.backward = s.backward_low = s.backward_high = Seconds(2 * forward);
  s.weight_share = weight_share;
  return s;
}

BlockTime time_at(const Profile& profile, std::int64_t micro_batch, int threads = 1, int neighbours = 1, int tensor_parallel = 1,
                  Precision precision = Precision::f32) {
  return block_time(profile, layer(), {micro_batch, tensor_parallel, precision, model::Recompute::none}, four_cores(), threads, neighbours);
}

TEST(BlockTime, IsWhatWasMeasured) {
  Profile profile;
  profile.blocks = {sample(2, 0.010), sample(4, 0.018)};
  const BlockTime time = time_at(profile, 4);
  EXPECT_TRUE(time.measured);
  EXPECT_DOUBLE_EQ(time.forward.value, 0.018);
  EXPECT_DOUBLE_EQ(time.backward.value, 0.036);
}

TEST(BlockTime, IsLinearBetweenAndBeyondMeasurements) {
  Profile profile;
  profile.blocks = {sample(8, 0.034), sample(2, 0.010), sample(4, 0.018)};
  EXPECT_NEAR(time_at(profile, 3).forward.value, 0.014, 1e-12);
  EXPECT_NEAR(time_at(profile, 6).forward.value, 0.026, 1e-12);
  EXPECT_NEAR(time_at(profile, 16).forward.value, 0.066, 1e-12);
  EXPECT_NEAR(time_at(profile, 1).forward.value, 0.006, 1e-12);
}

// Two samples that chance struck would otherwise be told to take less than twice as long as one, and eight less than four times as long.
TEST(BlockTime, BeyondMeasurementsHasAFixedPartOnlyAsFarAsItIsSure) {
  const auto within = [](BlockSample sample, double low, double high) {
    sample.forward_low = Seconds(low), sample.forward_high = Seconds(high);
    return sample;
  };
  Profile profile;
  profile.blocks = {within(sample(1, 0.012), 0.009, 0.013), within(sample(2, 0.017), 0.016, 0.020)};
  EXPECT_NEAR(time_at(profile, 8).forward.value, 0.068, 1e-12);
  // A part of 2 ms and more is sure: 2 * 9 ms for a sample each, of which two took at most 16 ms.
  profile.blocks[1] = within(sample(2, 0.015), 0.014, 0.016);
  EXPECT_NEAR(time_at(profile, 8).forward.value, 0.002 + 4 * 0.013, 1e-12);
  // Times that grow faster than samples.
  profile.blocks[1] = within(sample(2, 0.032), 0.030, 0.034);
  EXPECT_NEAR(time_at(profile, 8).forward.value, -0.004 + 4 * 0.036, 1e-12);
}

TEST(BlockTime, HasTheWeightHalfsShareOfTheNearestMeasurements) {
  Profile profile;
  profile.blocks = {sample(2, 0.010, 1, 1, 1, 0.4), sample(4, 0.018, 1, 1, 1, 0.6)};
  EXPECT_NEAR(time_at(profile, 3).weight_share, 0.5, 1e-12);
  EXPECT_NEAR(time_at(profile, 4).weight_share, 0.6, 1e-12);
  EXPECT_NEAR(time_at(profile, 64).weight_share, 0.6, 1e-12);
  EXPECT_NEAR(time_at({}, 4).weight_share, 0.5, 0.1);
}

TEST(BlockTime, OfOneMeasurementIsProportional) {
  Profile profile;
  profile.blocks = {sample(2, 0.010)};
  EXPECT_NEAR(time_at(profile, 6).forward.value, 0.030, 1e-12);
}

TEST(BlockTime, NeverFallsToNothing) {
  Profile profile;
  profile.blocks = {sample(8, 0.010), sample(16, 0.030)};
  EXPECT_GT(time_at(profile, 1).forward.value, 0);
  profile.blocks = {sample(1, 0.010), sample(2, 0.005)};
  EXPECT_DOUBLE_EQ(time_at(profile, 8).forward.value, 0.005);
}

TEST(BlockTime, OfAnotherShapeIsScaledAndSaysThatItWasNotMeasured) {
  Profile profile;
  profile.blocks = {sample(4, 0.018, 1, 1)};
  const BlockTime two = time_at(profile, 4, 2, 1);
  EXPECT_FALSE(two.measured);
  EXPECT_LE(two.forward.value, 0.018);
  const BlockTime crowded = time_at(profile, 4, 1, 8);
  EXPECT_GE(crowded.forward.value, 0.018);
}

TEST(BlockTime, PrefersTheMeasurementOfTheAskedShape) {
  Profile profile;
  profile.blocks = {sample(4, 0.018, 1, 1), sample(4, 0.030, 1, 4), sample(4, 0.012, 2, 1), sample(4, 0.011, 1, 1, 2)};
  EXPECT_DOUBLE_EQ(time_at(profile, 4, 1, 4).forward.value, 0.030);
  EXPECT_DOUBLE_EQ(time_at(profile, 4, 2, 1).forward.value, 0.012);
  EXPECT_DOUBLE_EQ(time_at(profile, 4, 1, 1, 2).forward.value, 0.011);
}

TEST(BlockTime, WithoutMeasurementIsTheRoofline) {
  const Profile empty;
  const BlockTime time = time_at(empty, 8);
  const model::BlockCost cost = model::cost_of(layer(), {8, 1, Precision::f32, model::Recompute::none});
  EXPECT_FALSE(time.measured);
  EXPECT_GE(time.forward, cost.forward / FlopsPerSecond(50e9));
  EXPECT_GE(time.forward, cost.forward_traffic / BytesPerSecond(40e9));
  EXPECT_GT(time.backward, time.forward);
  // Of the other precision nothing is known from this one.
  Profile profile;
  profile.blocks = {sample(8, 100)};
  EXPECT_LT(time_at(profile, 8, 1, 1, 1, Precision::bf16).forward.value, 1);
}

TEST(BlockTime, IgnoresCpuMeasurementsOnAccelerators) {
  Profile profile;
  profile.blocks = {sample(8, 100)};
  const BlockTime time =
      block_time(profile, layer(), {8, 1, Precision::f32, model::Recompute::none}, cluster::known_device("h100-sxm"), 1, 1);
  EXPECT_FALSE(time.measured);
  EXPECT_LT(time.forward.value, 1e-2);
}

TEST(BlockTime, GrowsWithTheWorkAndTheCrowd) {
  EXPECT_TRUE(rc::check([] {
    const std::int64_t batch = *rc::gen::inRange(1, 64);
    const int threads = *rc::gen::inRange(1, 5);
    const int neighbours = *rc::gen::inRange(1, 9);
    const BlockTime time = time_at({}, batch, threads, neighbours);
    RC_ASSERT(time.forward.value > 0 && time.backward.value > 0);
    RC_ASSERT(time_at({}, batch + 1, threads, neighbours).forward >= time.forward);
    RC_ASSERT(time_at({}, batch, threads, neighbours + 1).forward >= time.forward);
  }));
}

cluster::Link wire(bool shared) { return {"net", BytesPerSecond(1e9), Seconds(1e-5), shared}; }

TEST(CollectiveTime, FollowsTheRingForLargeBuffers) {
  const Bytes size(1 << 30);
  const double bytes = static_cast<double>(size.value);
  EXPECT_NEAR(collective_time({}, "all_reduce", size, 4, wire(false), Medium::bus).value, 6 * 1e-5 + 1.5 * bytes / 1e9, 1e-6);
  EXPECT_NEAR(collective_time({}, "reduce_scatter", size, 4, wire(false), Medium::bus).value, 3 * 1e-5 + 0.75 * bytes / 1e9, 1e-6);
  EXPECT_NEAR(collective_time({}, "all_gather", size, 4, wire(false), Medium::bus).value, 3 * 1e-5 + 0.75 * bytes / 1e9, 1e-6);
  EXPECT_NEAR(collective_time({}, "send", size, 2, wire(false), Medium::bus).value, 1e-5 + bytes / 1e9, 1e-6);
}

TEST(CollectiveTime, OfOneRankIsNothing) {
  EXPECT_EQ(collective_time({}, "all_reduce", Bytes(1 << 20), 1, wire(false), Medium::bus).value, 0);
}

TEST(CollectiveTime, OfSmallBuffersDependsOnLatencyByTheLogarithm) {
  EXPECT_NEAR(collective_time({}, "all_reduce", Bytes(8), 16, wire(false), Medium::bus).value, 8 * 1e-5, 1e-6);
}

TEST(CollectiveTime, OnASharedLinkIsSlower) {
  EXPECT_GT(collective_time({}, "all_reduce", Bytes(1 << 26), 4, wire(true), Medium::bus),
            collective_time({}, "all_reduce", Bytes(1 << 26), 4, wire(false), Medium::bus));
  // An adapter carries what one host sends and receives.
  EXPECT_EQ(collective_time({}, "all_reduce", Bytes(1 << 26), 4, wire(true), Medium::adapter),
            collective_time({}, "all_reduce", Bytes(1 << 26), 4, wire(false), Medium::adapter));
}

TEST(CollectiveTime, UsesTheFitOfTheSameLinkAndOperation) {
  Profile profile;
  profile.communication = {{"all_reduce", "net", 4, Seconds(1e-3), BytesPerSecond(1e8)},
                           {"all_reduce", "other", 4, Seconds(9), BytesPerSecond(1)}};
  EXPECT_NEAR(collective_time(profile, "all_reduce", Bytes(100'000'000), 4, wire(false), Medium::bus).value, 1.001, 1e-9);
  EXPECT_LT(collective_time(profile, "all_gather", Bytes(100'000'000), 4, wire(false), Medium::bus).value, 0.5);
  // Other ranks: the fit, scaled as the ring says.
  const double eight = collective_time(profile, "all_reduce", Bytes(100'000'000), 8, wire(false), Medium::bus).value;
  EXPECT_GT(eight, 1.001);
  EXPECT_LT(eight, 1.3);
}

TEST(CollectiveTime, IsReadBetweenTheMeasuredSizes) {
  Profile profile;
  profile.communication = {{"send", "net", 2, Seconds(9), BytesPerSecond(1)}};
  profile.communication[0].points = {{Bytes(1000), {0.1, 0.1, 0.1}}, {Bytes(3000), {0.3, 0.3, 0.3}}};
  profile.communication[0].in_turn = {{Bytes(2000), {0.15, 0.15, 0.15}}, {Bytes(3000), {0.2, 0.2, 0.2}}};
  EXPECT_DOUBLE_EQ(collective_time(profile, "send", Bytes(10), 2, wire(false), Medium::bus).value, 0.1);
  EXPECT_DOUBLE_EQ(collective_time(profile, "send", Bytes(2000), 2, wire(false), Medium::bus).value, 0.2);
  EXPECT_DOUBLE_EQ(collective_time(profile, "send", Bytes(5000), 2, wire(false), Medium::bus).value, 0.5);
  // In turn with computing it is faster, beyond the sizes where that was measured by as much as there; never less than nothing.
  EXPECT_NEAR(collective_time(profile, "send", Bytes(2500), 2, wire(false), Medium::bus, Pace::in_turn).value, 0.175, 1e-9);
  EXPECT_NEAR(collective_time(profile, "send", Bytes(5000), 2, wire(false), Medium::bus, Pace::in_turn).value, 0.4, 1e-5);
  EXPECT_GT(collective_time(profile, "send", Bytes(10), 2, wire(false), Medium::bus, Pace::in_turn).value, 0);
}

TEST(CollectiveTime, AndComputingSlowEachOtherDownAsMeasured) {
  Profile profile;
  profile.overlap_slowdown = 1.5;
  profile.communication = {{"all_reduce", "net", 4, Seconds(1e-3), BytesPerSecond(1e8)}};
  EXPECT_EQ(overlap_of(profile, "all_reduce", 4, wire(false)).slows, 1.5);
  EXPECT_EQ(overlap_of(profile, "all_reduce", 4, wire(false)).slowed, 1);
  profile.communication[0].slows = {1.2, 1.1, 1.3};
  profile.communication[0].slowed = {1.4, 1.3, 1.5};
  EXPECT_EQ(overlap_of(profile, "all_reduce", 4, wire(false)).slows, 1.2);
  EXPECT_EQ(overlap_of(profile, "all_reduce", 4, wire(false)).slowed, 1.4);
}

TEST(CollectiveTime, OfAnUnknownOperationIsADefect) {
  EXPECT_EQ(error_of([] { collective_time({}, "gossip", Bytes(1), 2, wire(false), Medium::bus); }).code(), ErrorCode::internal);
}

TEST(CollectiveTime, NeverFallsWithMoreBytes) {
  EXPECT_TRUE(rc::check([] {
    const std::string operation = *rc::gen::elementOf(std::vector<std::string>{"all_reduce", "reduce_scatter", "all_gather", "send"});
    const int ranks = *rc::gen::inRange(2, 100);
    const std::int64_t bytes = *rc::gen::inRange<std::int64_t>(0, 1LL << 32);
    const cluster::Link link = wire(*rc::gen::arbitrary<bool>());
    const Medium medium = *rc::gen::element(Medium::bus, Medium::adapter);
    RC_ASSERT(collective_time({}, operation, Bytes(bytes), ranks, link, medium).value > 0);
    RC_ASSERT(collective_time({}, operation, Bytes(2 * bytes), ranks, link, medium) >=
              collective_time({}, operation, Bytes(bytes), ranks, link, medium));
  }));
}

TEST(ShareOfPairs, IsToldByPassesOverPartsOfSamples) {
  constexpr std::int64_t kWhole = 4096;
  Profile profile;
  const auto share = [&] { return share_of_pairs(profile, layer(), Precision::f32, kWhole); };
  // A token takes 2, and a pair of them 1 over so many tokens: a third of the whole.
  const auto add = [&](std::int64_t positions, int threads, double slower = 1) {
    const double length = positions == 0 ? 1 : static_cast<double>(positions) / kWhole;
    profile.blocks.push_back(sample(1, slower * (2 * length + length * length), threads));
    profile.blocks.back().positions = positions;
  };
  add(0, 1);
  add(512, 2);
  EXPECT_FALSE(share()) << "on other workers";
  add(512, 1);
  EXPECT_NEAR(share().value(), 1.0 / 3, 1e-12);
  // Passes are priced by whole samples.
  EXPECT_EQ(time_at(profile, 1).forward.value, 3);
  // By chance a part took less than its square, or more than its length.
  profile.blocks.pop_back();
  add(512, 1, 1e-3);
  EXPECT_EQ(share(), 1);
  add(0, 2, 0.1);
  EXPECT_EQ(share(), 0.5) << "the mean";
}

TEST(OptimizerTime, IsMeasuredPerParameterOrByBandwidth) {
  Profile profile;
  profile.optimizers = {{"adamw", 2, 1, Precision::f32, {1e-9, 1e-9, 1e-9}}};
  EXPECT_DOUBLE_EQ(optimizer_time(profile, "adamw", 1'000'000, Precision::f32, four_cores(), 2, 1).value, 1e-3);
  EXPECT_GT(optimizer_time(profile, "adamw", 1'000'000, Precision::f32, four_cores(), 1, 4).value, 1e-3);
  const Seconds adam = optimizer_time({}, "adamw", 1'000'000, Precision::f32, four_cores(), 1, 1);
  const Seconds sgd = optimizer_time({}, "sgd", 1'000'000, Precision::f32, four_cores(), 1, 1);
  EXPECT_GT(adam, sgd);
  EXPECT_GT(adam.value, 28e6 / 40e9);
}

Profile any_profile() {
  Profile profile;
  profile.model_fingerprint = *rc::gen::elementOf(std::vector<std::string>{"", "0123456789abcdef"});
  profile.host = *rc::gen::elementOf(std::vector<std::string>{"", "a \"host\"\\", "cpu:zen4 x 2"});
  profile.process_baseline = Bytes(*rc::gen::inRange<std::int64_t>(0, 1LL << 40));
  profile.overlap_slowdown = 1 + *rc::gen::inRange(0, 1000) / 997.0;
  const auto seconds = [] { return Seconds(*rc::gen::inRange(1, 1'000'000) / 7e8); };
  const auto small = [] { return *rc::gen::inRange(1, 65); };
  const auto precision = [] { return *rc::gen::element(Precision::f32, Precision::bf16); };
  for (int i = *rc::gen::inRange(0, 5); i > 0; --i)
    profile.blocks.push_back({*rc::gen::elementOf(std::vector<std::string>{"embedding", "transformer_layer"}), small(), small(), small(),
                              small(), precision(), seconds(), seconds(), seconds(), seconds(), seconds(), seconds(), small() / 65.0,
                              *rc::gen::inRange(0, 3)});
  for (int i = *rc::gen::inRange(0, 5); i > 0; --i)
    profile.communication.push_back({*rc::gen::elementOf(std::vector<std::string>{"all_reduce", "send"}), "shm", small() + 1, seconds(),
                                     BytesPerSecond(small() * 1e9 / 7)});
  const auto measured = [&] { return MeasuredValue{seconds().value, seconds().value, seconds().value}; };
  for (CommSample& sample : profile.communication) {
    for (auto* points : {&sample.points, &sample.in_turn})
      for (int size = *rc::gen::inRange(0, 4); size > 0; --size)
        points->push_back({Bytes((static_cast<std::int64_t>(points->size()) + 1) << 10), measured()});
    if (*rc::gen::arbitrary<bool>()) sample.slows = sample.slowed = measured();
  }
  for (int i = *rc::gen::inRange(0, 3); i > 0; --i) profile.optimizers.push_back({"sgd", small(), small(), precision(), measured()});
  for (int i = *rc::gen::inRange(0, 5); i > 0; --i) profile.speeds.push_back(small() / 7.0);
  return profile;
}

TEST(ProfileFile, AnyProfileReadsBackExactly) {
  EXPECT_TRUE(rc::check([] {
    const Profile profile = any_profile();
    const Profile back = read_profile(ConfigNode::parse(to_json(profile), "p.json"));
    RC_ASSERT(to_json(back) == to_json(profile));
    RC_ASSERT(back.model_fingerprint == profile.model_fingerprint);
    RC_ASSERT(back.host == profile.host);
    RC_ASSERT(back.process_baseline == profile.process_baseline);
    RC_ASSERT(back.overlap_slowdown == profile.overlap_slowdown);
    RC_ASSERT(back.speeds == profile.speeds);
    RC_ASSERT(back.blocks.size() == profile.blocks.size());
    for (std::size_t i = 0; i < back.blocks.size(); ++i) {
      RC_ASSERT(back.blocks[i].kind == profile.blocks[i].kind);
      RC_ASSERT(back.blocks[i].precision == profile.blocks[i].precision);
      RC_ASSERT(back.blocks[i].neighbours == profile.blocks[i].neighbours);
      RC_ASSERT(back.blocks[i].forward == profile.blocks[i].forward);
      RC_ASSERT(back.blocks[i].backward_high == profile.blocks[i].backward_high);
      RC_ASSERT(back.blocks[i].weight_share == profile.blocks[i].weight_share);
    }
    RC_ASSERT(back.communication.size() == profile.communication.size());
    for (std::size_t i = 0; i < back.communication.size(); ++i)
      RC_ASSERT(back.communication[i].bandwidth == profile.communication[i].bandwidth);
    RC_ASSERT(back.optimizers.size() == profile.optimizers.size());
    for (std::size_t i = 0; i < back.optimizers.size(); ++i)
      RC_ASSERT(to_json(back) == to_json(profile) &&
                back.optimizers[i].seconds_per_parameter.median == profile.optimizers[i].seconds_per_parameter.median);
  }));
}

constexpr const char* kProfile =
    "{\"format\": \"tessera-profile\", \"version\": 1, \"model\": \"\", \"host\": \"h\", \"process_baseline\": 0, \"overlap_slowdown\": "
    "1.5,\n"
    " \"blocks\": [],\n"
    " \"communication\": [{\"operation\": \"send\", \"link\": \"shm\", \"ranks\": 2, \"latency\": 1e-5, \"bandwidth\": 5e9}],\n"
    " \"optimizers\": []}\n";

std::string with(const std::string& from, const std::string& to) {
  std::string content = kProfile;
  return content.replace(content.find(from), from.size(), to);
}

TEST(ProfileFile, IsReadFromDisk) {
  const TemporaryFolder folder;
  EXPECT_EQ(load_profile(folder.write("p.json", kProfile)).communication.size(), 1u);
  EXPECT_EQ(error_of([&] { load_profile(folder / "absent.json"); }).code(), ErrorCode::not_found);
}

TEST(ProfileFile, NamesTheLineOfWhatIsWrong) {
  const auto refusal = [](const std::string& content) {
    return std::string(error_of([&] { read_profile(ConfigNode::parse(content, "p.json")); }).what());
  };
  EXPECT_THAT(refusal(with("tessera-profile", "tessera-plan")), AllOf(HasSubstr("p.json:1:"), HasSubstr("this is no profile")));
  EXPECT_THAT(refusal(with("\"version\": 1", "\"version\": 2")),
              AllOf(HasSubstr("version 2 cannot be read"), HasSubstr("tessera profile")));
  EXPECT_THAT(refusal(with("\"send\"", "\"sent\"")), AllOf(HasSubstr("p.json:3:"), HasSubstr("did you mean 'send'?")));
  EXPECT_THAT(refusal(with("\"ranks\": 2", "\"ranks\": 1")), HasSubstr("needs two ranks"));
  EXPECT_THAT(refusal(with("5e9", "0")), HasSubstr("a number above 0"));
  EXPECT_THAT(refusal(with("1.5", "0.5")), HasSubstr("a factor of at least 1"));
  EXPECT_THAT(refusal(with("\"optimizers\"", "\"optimisers\"")), HasSubstr("did you mean 'optimizers'?"));
}

}  // namespace
}  // namespace tessera::profile
