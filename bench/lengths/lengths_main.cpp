// tessera_bench_lengths TRAIN.yaml PLAN.json: how long dealing batches of different lengths takes, and how close it comes to its bound, on
// the plan's ranks and for 512 samples on 64 ranks at the plan's prices. Prints one JSON object.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "data/data.hpp"
#include "model/job.hpp"
#include "plan/uneven_batch.hpp"

namespace {

using namespace tessera;
using Json = nlohmann::ordered_json;

constexpr int kBatches = 21;

Json dealt(const data::TextDataset& dataset, const plan::Lengths& lengths, std::int64_t batch, int ranks, std::int64_t tokens) {
  std::vector<double> milliseconds, gaps, seconds;
  for (int step = 0; step < kBatches; ++step) {
    std::vector<std::int64_t> samples;
    for (const data::Draw& draw : dataset.draws(step, batch)) samples.push_back(dataset.length(draw.sample));
    const auto begin = std::chrono::steady_clock::now();
    const plan::UnevenBatch out = plan::deal(samples, lengths, ranks, tokens);
    milliseconds.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    gaps.push_back(out.seconds / out.bound);
    seconds.push_back(out.seconds);
  }
  for (auto* values : {&milliseconds, &gaps}) std::sort(values->begin(), values->end());
  return {{"samples", batch},
          {"ranks", ranks},
          {"milliseconds", milliseconds[kBatches / 2]},
          {"over_bound", gaps[kBatches / 2]},
          {"seconds", seconds}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: tessera_bench_lengths TRAIN.yaml PLAN.json\n";
    return 2;
  }
  try {
    const model::JobSpec job = model::read_job(argv[1]);
    const plan::Plan plan = plan::load_plan(argv[2]);
    const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
    const std::int64_t tokens = plan::tokens_per_rank(plan, job.model.dim("seq"));
    const auto& text = *data::as_text(*dataset);
    std::cout << Json{dealt(text, *plan.lengths, plan.global_batch, plan.world_size(), tokens), dealt(text, *plan.lengths, 512, 64, tokens)}
              << "\n";
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
