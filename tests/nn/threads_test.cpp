#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <mutex>
#include <set>
#include <thread>

#include "nn/decoder_helper.hpp"

namespace tessera::nn::test {
namespace {

// at::parallel_for compiled without OpenMP is a plain loop, and everything still works, slowly.
TEST(Threads, ShareTheWork) {
  at::set_num_threads(2);
  std::mutex mutex;  // guards threads
  std::set<std::thread::id> threads;
  at::parallel_for(0, 2, 1, [&](std::int64_t, std::int64_t) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), 2u);
}

TEST(Threads, DoNotChangeTheResultBeyondRounding) {
  const Dims dims{.hidden = 128, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 320, .vocab = 700, .seq = 128};
  const model::ModelSpec spec = decoder(dims);
  const auto whole = whole_parameters(spec, 7);
  const Batch batch = random_batch(dims, 4, 3);
  for (const model::Precision precision : {model::Precision::f32, model::Precision::bf16}) {
    Pass pass;
    pass.batch = &batch;
    pass.precision = precision;
    at::set_num_threads(1);
    Model one(spec, whole, precision);
    const double loss = one.step(pass).loss;
    for (const int threads : {2, 3, 5}) {
      at::set_num_threads(threads);
      Model several(spec, whole, precision);
      EXPECT_NEAR(several.step(pass).loss, loss, 1e-6 * loss) << threads;
      for (const auto& [name, grad] : one.grads()) {
        EXPECT_LT(relative_error(several.grads().at(name), grad), precision == model::Precision::f32 ? 1e-5 : 2e-2) << name;
      }
    }
    at::set_num_threads(2);
  }
}

}  // namespace
}  // namespace tessera::nn::test
