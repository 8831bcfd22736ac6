#include "train/measure.hpp"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "profile/host_links.hpp"
#include "train/job_helper.hpp"
#include "train/measure_links.hpp"
#include "train/vision_helper.hpp"

namespace tessera::train {
namespace {

void expect_ordered(const profile::MeasuredValue& measured) {
  EXPECT_GT(measured.low, 0);
  EXPECT_LE(measured.low, measured.median);
  EXPECT_LE(measured.median, measured.high);
}

// All ranks of the job measure; what each found, as JSON.
std::vector<std::string> measured_by(int ranks, const model::JobSpec& job, const MeasureOptions& options, profile::Profile& first) {
  std::vector<std::string> out(static_cast<std::size_t>(ranks));
  std::mutex mutex;  // guards out and first
  on_ranks(ranks, [&](comm::Communicator& comm) {
    profile::Profile profile = measure(job, comm, options);
    profile.process_baseline = Bytes(0);  // the one thing that is each rank's own
    const std::lock_guard lock(mutex);
    out[static_cast<std::size_t>(comm.rank())] = profile::to_json(profile);
    if (comm.rank() == 0) first = std::move(profile);
  });
  return out;
}

TEST(Measure, FindsTheSameOnAllRanks) {
  const model::JobSpec job = tiny_job("precision: bf16", ", qkv_bias: true, qk_norm: true, window: 9");
  profile::Profile profile;
  const auto found = measured_by(2, job, {.budget = Seconds(120), .sample = Seconds(0.001)}, profile);
  EXPECT_EQ(found[0], found[1]);
  std::set<std::tuple<std::string, std::int64_t, int>> cells;
  for (const profile::BlockSample& block : profile.blocks) {
    cells.insert({block.kind, block.micro_batch_size, block.tensor_parallel});
    expect_ordered({block.forward.value, block.forward_low.value, block.forward_high.value});
    expect_ordered({block.backward.value, block.backward_low.value, block.backward_high.value});
    EXPECT_EQ(block.neighbours, 2);
  }
  for (const char* kind : {"embedding", "transformer_layer", "lm_head"})
    for (const std::int64_t micro_batch : {1, 4, 16})
      for (const int tensor_parallel : {1, 2}) EXPECT_TRUE(cells.contains({kind, micro_batch, tensor_parallel})) << kind << micro_batch;
  std::set<std::string> operations;
  for (const profile::CommSample& sample : profile.communication) {
    operations.insert(sample.operation);
    EXPECT_EQ(sample.ranks, 2);
    EXPECT_EQ(sample.points.size(), 4u);
    for (const profile::CommPoint& point : sample.points) expect_ordered(point.seconds);
    expect_ordered(sample.slows);
    expect_ordered(sample.slowed);
  }
  EXPECT_EQ(operations, (std::set<std::string>{"all_gather", "all_reduce", "reduce_scatter", "send"}));
  ASSERT_EQ(profile.optimizers.size(), 1u);
  expect_ordered(profile.optimizers.front().seconds_per_parameter);
}

// Of an odd number of hosts, one of which rests in each round, and of hosts with several ranks.
TEST(Measure, FindsEveryPairOfHosts) {
  for (const auto& [ranks, per_host, pairs] : {std::tuple{5, 1, 10u}, {8, 2, 6u}, {4, 2, 0u}}) {
    std::vector<std::string> found(static_cast<std::size_t>(ranks));
    std::mutex mutex;  // guards found
    on_ranks(ranks, [&](comm::Communicator& comm) {
      profile::Profile profile;
      profile.communication = measure_links(Meter(comm, Seconds(0.001)), comm, "lab", first_ranks(comm.world_size(), per_host));
      std::set<std::string> links;
      for (const profile::CommSample& sample : profile.communication) {
        links.insert(sample.link);
        EXPECT_EQ(sample.operation, "send");
        for (const profile::CommPoint& point : sample.points) expect_ordered(point.seconds);
      }
      EXPECT_EQ(links.size(), pairs);
      EXPECT_EQ(profile.communication.size(), pairs);
      EXPECT_EQ(profile::HostLinks::of(profile, "lab", ranks / per_host).has_value(), pairs > 0);
      const std::lock_guard lock(mutex);
      found[static_cast<std::size_t>(comm.rank())] = profile::to_json(profile);
    });
    for (const std::string& other : found) EXPECT_EQ(other, found[0]);
  }
}

TEST(Measure, LeavesLargeMicroBatchesOutWhereTimeIsShort) {
  profile::Profile profile;
  measured_by(1, tiny_job(), {.budget = Seconds(0), .sample = Seconds(0.001)}, profile);
  EXPECT_EQ(profile.blocks.size(), 3u);
  for (const profile::BlockSample& block : profile.blocks) EXPECT_EQ(block.micro_batch_size, 1);
}

TEST(Measure, TimesLayersWithAPartOfSamplesOfDifferentLengths) {
  const model::JobSpec job = model::read_job(
      ConfigNode::parse("model: {arch: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 4, ffn: 96, seq: 1024, vocab: 256}\n"
                        "data: {source: synthetic, lengths: {kind: uniform}}\ntrain: {global_batch: 2}\n",
                        "lengths.yaml"));
  profile::Profile profile;
  measured_by(1, job, {.budget = Seconds(0), .sample = Seconds(0.001)}, profile);
  std::map<std::string, std::set<std::int64_t>> positions;
  for (const profile::BlockSample& block : profile.blocks) positions[block.kind].insert(block.positions);
  EXPECT_EQ(positions,
            (std::map<std::string, std::set<std::int64_t>>{{"embedding", {0}}, {"transformer_layer", {0, 128}}, {"lm_head", {0}}}));
}

// The layers of either side are alike, and the decoder's are given what is encoded.
TEST(Measure, TimesBothSidesOfAnEncoderAndADecoder) {
  profile::Profile profile;
  measured_by(1, tiny_t5_job(", decoder_layers: 3"), {.budget = Seconds(0), .sample = Seconds(0.001)}, profile);
  EXPECT_EQ(profile.blocks.size(), 6u);
}

// Blocks of a kind differ in shape, and are timed one by one; each with 1, 4 and 16 samples, however short the time is. VGG's classifier is
// timed as a whole and cut.
TEST(Measure, TimesModelsOfImages) {
  for (const auto& [model, shapes] : {std::pair("{arch: resnet18, image: 32, classes: 10}", 9),
                                      {"{arch: vgg11, image: 32, classes: 10, norm: true}", 10},
                                      {"{arch: vit, hidden: 32, layers: 6, heads: 4, image: 16, patch: 4, classes: 10}", 3}}) {
    model::JobSpec job = vision_job(model, 16, 0.1);
    job.model = narrowed(job.model);
    profile::Profile profile;
    measured_by(2, job, {.budget = Seconds(0), .sample = Seconds(0.001)}, profile);
    EXPECT_EQ(profile.blocks.size(), static_cast<std::size_t>(3 * shapes)) << model;
  }
}

}  // namespace
}  // namespace tessera::train
