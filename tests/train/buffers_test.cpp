// Running means that a model keeps beside its parameters: the same under every plan, and part of its state.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "train/job_helper.hpp"
#include "train/skip_model_helper.hpp"

namespace tessera::train {
namespace {

using plan::Schedule;

// The tensors of a checkpoint after so many steps.
std::map<std::string, at::Tensor> state_after(const model::JobSpec& job, const Degrees& degrees, std::int64_t steps) {
  const plan::Plan plan = plan_of(job, degrees);
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const TemporaryFolder folder;
  on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm);
    trainer.initialize();
    for (std::int64_t step = 0; step < steps; ++step) trainer.step();
    trainer.save(real_file_system(), folder.path(), 1);
  });
  const checkpoint::Reader reader(checkpoint::find(folder.path()));
  std::map<std::string, at::Tensor> out;
  for (const auto& tensor : reader.tensors()) out[tensor.name] = reader.read(tensor.name);
  return out;
}

// Of the step's samples, what the first layer's buffer is the mean of: its input, over samples and positions.
at::Tensor first_layers_mean(const model::JobSpec& job, const at::Tensor& embedding) {
  const std::int64_t seq = job.model.dim("seq");
  const auto dataset = data::TextDataset::open(job.data, seq, job.model.dim("vocab"), job.train.seed, data::default_cache_dir());
  at::Tensor sum = at::zeros({embedding.size(1)});
  const auto draws = dataset->draws(0, job.train.global_batch);
  for (const data::Draw& draw : draws) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(seq)), targets(tokens);
    dataset->fill(draw, {tokens, targets});
    for (const std::int32_t token : tokens) sum += embedding[token];
  }
  return sum / static_cast<double>(std::ssize(draws) * seq);
}

const std::string kBuffer = "layers.0.center";
const std::vector<Degrees> kPlans = {
    {.dp = 4, .zero = 3, .recompute = model::Recompute::full},
    {.dp = 2, .pp = 2, .zero = 2, .micro_batches = 4, .schedule = Schedule::zb_h1},
    {.dp = 3, .micro_batches = 2, .delayed_exchange = true},
};

TEST(Buffers, MoveTowardsTheMeanOfAStepsSamples) {
  const model::JobSpec job = skip_job();
  const at::Tensor embedding = state_after(job, {}, 0).at("embed.weight");
  const at::Tensor expected = 0.5 * first_layers_mean(job, embedding);
  EXPECT_GT(expected.abs().max().item<double>(), 1e-3);
  EXPECT_TRUE(at::allclose(state_after(job, {}, 1).at(kBuffer), expected, 1e-4, 1e-7));
  for (const Degrees& degrees : kPlans) {
    SCOPED_TRACE(to_text(degrees));
    EXPECT_TRUE(at::allclose(state_after(job, degrees, 1).at(kBuffer), expected, 1e-4, 1e-7));
  }
}

TEST(Buffers, CountNotInTheNormOfGradients) {
  const model::JobSpec job = skip_job();
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const TemporaryFolder folder;
  double norm = 0;
  on_ranks(1, [&](comm::Communicator& comm) {
    Trainer trainer(job, plan_of(job, {}), *dataset, comm);
    trainer.initialize();
    norm = trainer.step().grad_norm;
    trainer.save_gradients(real_file_system(), folder.path());
  });
  const checkpoint::Reader reader(checkpoint::find(folder.path()));
  double gradients = 0, means = 0;
  for (const auto& tensor : reader.tensors()) {
    const double square = reader.read(tensor.name).square().sum().item<double>();
    (tensor.name.find(".center") == std::string::npos ? gradients : means) += square;
  }
  EXPECT_NEAR(norm, std::sqrt(gradients), 1e-4 * norm);
  EXPECT_GT(means, 1e-3 * gradients) << "so that counting them would show";
}

}  // namespace
}  // namespace tessera::train
