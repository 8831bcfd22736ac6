#include "train/vision_helper.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <mutex>

#include "base/hash.hpp"
#include "program/program.hpp"
#include "train/executor.hpp"

namespace tessera::train {
namespace {

// Runs of elements of one tensor, on all ranks together.
void add_pieces(const std::vector<checkpoint::Piece>& pieces, NamedTensors& tensors) {
  for (const checkpoint::Piece& piece : pieces) {
    at::Tensor& whole = tensors[piece.name];
    if (!whole.defined()) whole = at::zeros(piece.shape);
    // Runs are of the part that tensor parallelism leaves to a rank.
    at::Tensor part = piece.split_size > 1 ? whole.chunk(piece.split_size, piece.split_dim)[piece.split_index] : whole;
    const at::Tensor flat = part.flatten().clone();
    flat.narrow(0, piece.flat_begin, piece.flat_end - piece.flat_begin).copy_(piece.data);
    part.copy_(flat.view_as(part));
  }
}

void fill_pieces(const NamedTensors& tensors, std::vector<checkpoint::Piece>& pieces) {
  for (checkpoint::Piece& piece : pieces)
    piece.data.copy_(tensors.at(piece.name).flatten().narrow(0, piece.flat_begin, piece.flat_end - piece.flat_begin));
}

}  // namespace

model::JobSpec vision_job(const std::string& model, std::int64_t global_batch, double lr) {
  return model::read_job(ConfigNode::parse(
      text("name: vision\nmodel: ", model, "\ndata: {source: synthetic}\ntrain: {global_batch: ", global_batch,
           ", optimizer: {kind: sgd, lr: ", lr, ", momentum: 0.9, weight_decay: 0, clip: 0}, schedule: {kind: constant}}\n"),
      "vision.yaml"));
}

Trained train_on_images(const model::JobSpec& job, const plan::Plan& plan, const at::Tensor& images, const at::Tensor& labels,
                        const NamedTensors& initial, int threads) {
  Trained out;
  std::mutex mutex;  // guards out
  on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
    at::set_num_threads(threads);
    const program::Program program = program::compile(plan, job.model).at(static_cast<std::size_t>(comm.rank()));
    Store store(job.model, program, plan.precision, job.train.optimizer);
    store.initialize(job.train.seed);
    if (!initial.empty()) store.load([&](std::vector<checkpoint::Piece>& pieces) { fill_pieces(initial, pieces); }, false);
    Executor executor(program, job.model, plan.precision, store, comm);
    const std::int64_t steps = images.size(0) / plan.global_batch;
    for (std::int64_t step = 0; step < steps; ++step) {
      Batches batches;
      for (const program::Cut& cut : program.cuts) {
        batches.emplace_back();
        for (std::int64_t m = 0; m < program.micro_batches; ++m) {
          nn::Batch batch;
          batch.first_sample = program.first_sample(m, cut);
          batch.seed = seed_of(job.train.seed, static_cast<std::uint64_t>(step));
          const std::int64_t first = step * plan.global_batch + batch.first_sample;
          batch.tensors["images"] = images.narrow(0, first, cut.micro_batch_size);
          batch.tensors["labels"] = labels.narrow(0, first, cut.micro_batch_size);
          batches.back().push_back(std::move(batch));
        }
      }
      store.zero_grads();
      const double lr = model::learning_rate(job.train, step);
      const Scalars scalars = executor.run(batches, 1.0 / static_cast<double>(plan.global_batch), {},
                                           [&](int bucket, const Scalars&) { store.step(bucket, job.train.optimizer, lr, 1.0, step + 1); });
      if (comm.rank() == 0) out.losses.push_back(scalars.loss / scalars.tokens);
    }
    const std::lock_guard lock(mutex);
    for (const checkpoint::Piece& piece : store.pieces())
      if (!piece.name.ends_with(".momentum") && !piece.name.ends_with(".exp_avg")) add_pieces({piece}, out.tensors);
  });
  return out;
}

}  // namespace tessera::train
