#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>

#include "base/error.hpp"
#include "checkpoint/checkpoint_helper.hpp"

namespace tessera::checkpoint {
namespace {

// Every tensor, read in the cuts of another world.
void expect_loads_as(const Reader& reader, const Tensors& tensors, const World& world, Random& random) {
  for (const auto& rank : cut(tensors, world, random))
    for (const Piece& wanted : rank) {
      Piece target = wanted;
      target.data = at::Tensor();
      reader.read_piece(target);
      EXPECT_TRUE(same(target.data, wanted.data))
          << wanted.name << " part " << wanted.split_index << " of " << wanted.split_size << " along " << wanted.split_dim << " from "
          << wanted.flat_begin << " to " << wanted.flat_end;
    }
}

TEST(Checkpoint, KeepsTensorsAndState) {
  const TemporaryFolder folder;
  const Tensors tensors = make_tensors(1);
  State state;
  state.tokens = 123456789012345;
  state.plan_json = "{\"stages\": []}";
  state.train_yaml = "model: {arch: llama}  # größer\n";
  state.model_fingerprint = "0123456789abcdef";
  state.seed = std::numeric_limits<std::uint64_t>::max();
  state.extra = {{"loss", 0.1 + 0.2}, {"worst", std::numeric_limits<double>::infinity()}};
  Random random(1);
  save(real_file_system(), folder.path(), 50, cut(tensors, {2, 2, true}, random), state);

  const auto path = latest(folder.path());
  ASSERT_TRUE(path.has_value());
  EXPECT_EQ(*path, folder.path() / "step-000050");
  const Reader reader(*path);
  EXPECT_EQ(difference(reader, tensors), "");
  EXPECT_EQ(reader.state().step, 50);
  EXPECT_EQ(reader.state().tokens, state.tokens);
  EXPECT_EQ(reader.state().plan_json, state.plan_json);
  EXPECT_EQ(reader.state().train_yaml, state.train_yaml);
  EXPECT_EQ(reader.state().model_fingerprint, state.model_fingerprint);
  EXPECT_EQ(reader.state().seed, state.seed);
  EXPECT_EQ(reader.state().extra, state.extra);
}

TEST(Checkpoint, LoadsExactlyUnderAnyOtherCut) {
  Random random(7);
  for (int round = 0; round < 60; ++round) {
    const TemporaryFolder folder;
    const Tensors tensors = make_tensors(random.next());
    const auto draw = [&] {
      constexpr int kTensorParallel[] = {1, 2, 3, 4, 6};
      return World{static_cast<int>(1 + random.below(5)), kTensorParallel[random.below(5)], random.below(2) == 0};
    };
    save(real_file_system(), folder.path(), round, cut(tensors, draw(), random));
    const Reader reader(step_folder(folder.path(), round));
    EXPECT_EQ(difference(reader, tensors), "");
    for (int other = 0; other < 4; ++other) expect_loads_as(reader, tensors, draw(), random);
  }
}

TEST(Checkpoint, ReadsIntoTheGivenBuffer) {
  const TemporaryFolder folder;
  const Tensors tensors = make_tensors(3);
  save(folder.path(), 1, tensors);
  const Reader reader(step_folder(folder.path(), 1));
  at::Tensor buffer = at::zeros({100}, at::TensorOptions().dtype(at::kFloat));
  Piece target{"layer.norm.weight", {13}, -1, 0, 1, 3, 10, buffer.narrow(0, 20, 7)};
  reader.read_piece(target);
  EXPECT_TRUE(same(buffer.narrow(0, 20, 7), tensors.at("layer.norm.weight").narrow(0, 3, 7)));
  EXPECT_EQ(buffer[19].item<float>(), 0);
  EXPECT_EQ(buffer[27].item<float>(), 0);
}

TEST(Checkpoint, SaysWhatDoesNotFit) {
  const TemporaryFolder folder;
  save(folder.path(), 1, make_tensors(3));
  const Reader reader(step_folder(folder.path(), 1));
  const auto message = [&](Piece target) {
    try {
      reader.read_piece(target);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message({"layer.norm.wieght", {13}, -1, 0, 1, 0, 13, {}}), testing::HasSubstr("'layer.norm.weight'"));
  EXPECT_THAT(message({"layer.norm.weight", {14}, -1, 0, 1, 0, 14, {}}), testing::HasSubstr("has the shape [13]"));
  EXPECT_THAT(message({"layer.norm.weight", {13}, -1, 0, 1, 0, 13, at::zeros({13}, at::TensorOptions().dtype(at::kLong))}),
              testing::HasSubstr("is of type Float"));
}

TEST(Checkpoint, RefusesToCommitWhatIsNotWhole) {
  const TemporaryFolder folder;
  Random random(5);
  auto ranks = cut(make_tensors(1), {2, 2, true}, random);
  save(real_file_system(), folder.path(), 1, ranks);

  auto twice = ranks;
  twice[1].push_back(twice[0].front());
  EXPECT_THROW(save(real_file_system(), folder.path(), 2, twice), Error);
  auto missing = ranks;
  missing[2].erase(missing[2].begin());
  EXPECT_THROW(save(real_file_system(), folder.path(), 2, missing), Error);
  EXPECT_EQ(list(folder.path()), (std::vector<std::int64_t>{1}));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "step-000002.tmp"));
}

TEST(Checkpoint, ReplacesOneOfTheSameStep) {
  const TemporaryFolder folder;
  save(folder.path(), 4, make_tensors(1));
  save(folder.path(), 4, make_tensors(2));
  EXPECT_EQ(difference(Reader(*latest(folder.path())), make_tensors(2)), "");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Checkpoint, PrunesButNeverTheNewest) {
  const TemporaryFolder folder;
  for (const int step : {1, 2, 3, 10, 20}) save(folder.path(), step, make_tensors(1));
  std::filesystem::create_directories(folder.path() / "step-000030.tmp");
  prune(real_file_system(), folder.path(), 3);
  EXPECT_EQ(list(folder.path()), (std::vector<std::int64_t>{3, 10, 20}));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "step-000030.tmp"));
  prune(real_file_system(), folder.path(), 2);
  EXPECT_EQ(list(folder.path()), (std::vector<std::int64_t>{10, 20}));
  // A damaged one does not count.
  save(folder.path(), 30, make_tensors(1));
  std::filesystem::remove(folder.path() / "step-000030/rank-00000.safetensors");
  prune(real_file_system(), folder.path(), 1);
  EXPECT_EQ(list(folder.path()), (std::vector<std::int64_t>{20, 30}));
  EXPECT_EQ(latest(folder.path()), folder.path() / "step-000020");
  std::filesystem::remove_all(folder.path() / "step-000030");
  prune(real_file_system(), folder.path(), 0);
  EXPECT_EQ(list(folder.path()), (std::vector<std::int64_t>{20}));
}

TEST(Checkpoint, AnEmptyPlaceHasNone) {
  EXPECT_TRUE(list("/nonexistent/checkpoints").empty());
  EXPECT_EQ(latest("/nonexistent/checkpoints"), std::nullopt);
  EXPECT_THROW(Reader("/nonexistent/checkpoints/step-000001"), Error);
}

}  // namespace
}  // namespace tessera::checkpoint
