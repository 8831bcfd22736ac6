// How long a save stops training, when it is made in place and when it is made beside the steps that follow. Prints one JSON object with
// the seconds of each.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <iostream>

#include "base/clock.hpp"
#include "base/temporary_folder.hpp"
#include "data/data.hpp"
#include "model/job.hpp"
#include "nn/memory.hpp"
#include "plan/plan.hpp"
#include "train/trainer.hpp"

namespace tessera {
namespace {

plan::Plan on_one_device(const model::JobSpec& job) {
  plan::Plan plan;
  plan.model_fingerprint = job.model.fingerprint();
  plan.precision = job.train.precision;
  plan.global_batch = job.train.global_batch;
  plan.micro_batches = 1;
  plan.ranks.resize(1);
  plan::Stage stage;
  stage.ranks = {0};
  stage.runs.push_back({0, job.model.block_count(), {}});
  plan.stages.push_back(std::move(stage));
  return plan;
}

std::string list_of(const std::vector<double>& values) {
  std::string out;
  for (const double value : values) out += text(out.empty() ? "" : ", ", value);
  return "[" + out + "]";
}

struct Times {
  std::vector<double> in_place;      // a save
  std::vector<double> stopped;       // in which nothing is trained while one is made beside steps
  std::vector<double> beside;        // from the beginning of such a save until it is committed
  std::vector<double> steps;         // with no save under way
  std::vector<double> steps_beside;  // with one
};

double seconds_of(const std::function<void()>& work) {
  const Seconds begin = real_clock().now();
  work();
  return (real_clock().now() - begin).value;
}

void run(int rounds, int hidden, int layers, int batch) {
  const auto job = model::read_job(ConfigNode::parse(
      text("name: bench\nmodel: {arch: llama, hidden: ", hidden, ", layers: ", layers, ", heads: 8, kv_heads: 8, ffn: ", hidden * 8 / 3,
           ", seq: 128, vocab: 8192}\ndata: {source: synthetic}\ntrain: {global_batch: ", batch,
           ", optimizer: {kind: adamw, lr: 1.0e-4}}\n"),
      "bench.yaml"));
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const auto comm = comm::Communicator::connect({});
  train::Trainer trainer(job, on_one_device(job), *dataset, *comm);
  trainer.initialize();
  const TemporaryFolder scratch;
  const std::filesystem::path checkpoints = scratch.path() / "checkpoints";
  Times times;
  trainer.step();
  trainer.save(real_file_system(), checkpoints, 2);
  for (int round = 0; round < rounds; ++round) {
    for (int i = 0; i < 3; ++i) times.steps.push_back(trainer.step().seconds.value);
    times.in_place.push_back(seconds_of([&] { trainer.save(real_file_system(), checkpoints, 2); }));
    trainer.step();
    const Seconds begin = real_clock().now();
    trainer.begin_save(real_file_system(), checkpoints, 2);
    std::optional<train::SaveOutcome> ended;
    for (; !ended; ended = trainer.poll_save()) times.steps_beside.push_back(trainer.step().seconds.value);
    if (ended->error) throw *ended->error;
    times.stopped.push_back(ended->stopped.value);
    times.beside.push_back((real_clock().now() - begin).value);
  }
  std::printf("{\"parameters\": %lld, \"in_place\": %s, \"stopped\": %s, \"beside\": %s, \"steps\": %s, \"steps_beside\": %s}\n",
              static_cast<long long>(job.model.parameter_count()), list_of(times.in_place).c_str(), list_of(times.stopped).c_str(),
              list_of(times.beside).c_str(), list_of(times.steps).c_str(), list_of(times.steps_beside).c_str());
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  CLI::App app("Times of saves in place and beside steps");
  int rounds = 5;
  int threads = 2;
  int hidden = 512;
  int layers = 8;
  int batch = 8;
  app.add_option("--rounds", rounds);
  app.add_option("--threads", threads);
  app.add_option("--hidden", hidden);
  app.add_option("--layers", layers);
  app.add_option("--batch", batch);
  CLI11_PARSE(app, argc, argv);
  tessera::nn::configure_memory();
  at::set_num_threads(threads);
  try {
    tessera::run(rounds, hidden, layers, batch);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
