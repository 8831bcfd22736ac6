#include "train/batch_loader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mutex>
#include <set>

#include "base/error.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

std::unique_ptr<data::Dataset> images() {
  model::ModelSpec model;
  model.dims = {{"channels", 3}, {"image", 8}, {"classes", 10}};
  model::DataSpec spec;
  spec.synthetic = true;
  spec.images.flip = true;
  return data::open_dataset(spec, model, 1);
}

// One rank of two, with two micro-batches of two samples each.
program::Program program_of_rank(int rank) {
  const model::JobSpec job = tiny_job();
  plan::Plan plan = plan_of(job, {.dp = 2, .micro_batches = 2});
  plan.global_batch = 8;
  return program::compile(plan, job.model).at(static_cast<std::size_t>(rank));
}

BatchLoader::FillSample fill_of(const data::Dataset& dataset, std::int64_t step) {
  return [&dataset, draws = dataset.draws(step, 8)](std::int64_t sample, const std::vector<data::Row>& rows) {
    dataset.fill(draws.at(static_cast<std::size_t>(sample)), rows);
    return true;
  };
}

void expect_same(const Batches& a, const Batches& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t k = 0; k < a.size(); ++k) {
    ASSERT_EQ(a[k].size(), b[k].size());
    for (std::size_t m = 0; m < a[k].size(); ++m)
      for (const auto& [name, tensor] : a[k][m].tensors) EXPECT_TRUE(tensor.equal(b[k][m].at(name))) << name;
  }
}

TEST(BatchLoader, MakesTensorsOfTheSamplesThatTheProgramNames) {
  const auto dataset = images();
  const program::Program program = program_of_rank(1);
  std::mutex mutex;  // guards `asked`
  std::multiset<std::int64_t> asked;
  const auto fill = fill_of(*dataset, 3);
  const Batches batches = BatchLoader(*dataset, 3).load(program, [&](std::int64_t sample, const auto& rows) {
    const std::lock_guard lock(mutex);
    asked.insert(sample);
    return fill(sample, rows);
  });
  // Of eight samples rank 1 has the second half of each micro-batch of four, once, however many cuts its blocks have.
  EXPECT_EQ(asked, (std::multiset<std::int64_t>{2, 3, 6, 7}));
  const auto draws = dataset->draws(3, 8);
  std::vector<float> image(3 * 8 * 8);
  std::int32_t label = 0;
  for (std::size_t m = 0; m < 2; ++m) {
    const nn::Batch& batch = batches.at(0).at(m);
    EXPECT_EQ(batch.first_sample, m == 0 ? 2 : 6);
    ASSERT_EQ(batch.at("images").sizes().vec(), (std::vector<std::int64_t>{2, 3, 8, 8}));
    ASSERT_EQ(batch.at("labels").sizes().vec(), std::vector<std::int64_t>{2});
    EXPECT_EQ(batch.at("labels").scalar_type(), at::kLong);
    for (std::int64_t row = 0; row < 2; ++row) {
      dataset->fill(draws.at(static_cast<std::size_t>(batch.first_sample + row)), {image, std::span(&label, 1)});
      EXPECT_TRUE(std::equal(image.begin(), image.end(), batch.at("images").data_ptr<float>() + row * std::ssize(image)));
      EXPECT_EQ(batch.at("labels").data_ptr<std::int64_t>()[row], label);
    }
  }
}

TEST(BatchLoader, GivesTheSameWithAnyNumberOfThreadsAheadOrNot) {
  const auto dataset = images();
  const program::Program program = program_of_rank(0);
  const Batches expected = BatchLoader(*dataset, 1).load(program, fill_of(*dataset, 5));
  for (const int threads : {2, 5, 16}) expect_same(BatchLoader(*dataset, threads).load(program, fill_of(*dataset, 5)), expected);
  BatchLoader loader(*dataset, 2);
  loader.begin(5, program, fill_of(*dataset, 5));
  expect_same(loader.take(5, program, fill_of(*dataset, 5)), expected);
  loader.begin(4, program, fill_of(*dataset, 4));
  expect_same(loader.take(5, program, fill_of(*dataset, 5)), expected);
}

TEST(BatchLoader, MarksSamplesThatAreNotThere) {
  const auto dataset = images();
  const Batches batches = BatchLoader(*dataset, 2).load(program_of_rank(0), [](std::int64_t, const auto&) { return false; });
  EXPECT_EQ(batches.at(0).at(1).at("labels").eq(-1).sum().item<std::int64_t>(), 2);
  EXPECT_EQ(batches.at(0).at(1).at("images").abs().sum().item<double>(), 0);
}

TEST(BatchLoader, ThrowsWhatReadingThrowsWhenTheSamplesAreTaken) {
  const auto dataset = images();
  const program::Program program = program_of_rank(0);
  const auto broken = [](std::int64_t sample, const std::vector<data::Row>&) -> bool {
    throw Error(ErrorCode::corrupt, text("sample ", sample, " is damaged"));
  };
  BatchLoader loader(*dataset, 3);
  loader.begin(2, program, broken);
  // Of several that fail at once, which one is named is left open.
  EXPECT_THROW(loader.take(2, program, broken), Error);
  loader.begin(3, program, broken);  // and is never taken
}

}  // namespace
}  // namespace tessera::train
