// What runs on accelerators, ATen's kernels and CUDA's, against those written for CPUs: on a GPU where the test has one, otherwise on the
// CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <functional>

#include "base/random.hpp"
#include "nn/decoder_helper.hpp"
#include "nn/device_helper.hpp"
#include "nn/kernels/adamw.hpp"
#include "nn/kernels/attention.hpp"
#include "nn/kernels/bias.hpp"
#include "nn/kernels/convolution.hpp"
#include "nn/kernels/cross_entropy.hpp"
#include "nn/kernels/cuda/library.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/dropout.hpp"
#include "nn/kernels/dropped_attention.hpp"
#include "nn/kernels/gelu.hpp"
#include "nn/kernels/gemm.hpp"
#include "nn/kernels/layer_norm.hpp"
#include "nn/kernels/lookup.hpp"
#include "nn/kernels/norm.hpp"
#include "nn/kernels/rope.hpp"
#include "nn/kernels/swiglu.hpp"
#include "nn/optimizer.hpp"

namespace tessera::nn::kernels {
namespace {

std::int64_t pick(Random& random, std::initializer_list<std::int64_t> from) { return *(from.begin() + random.below(from.size())); }

// What a kernel leaves in its results, which it is given as copies of its own.
using Computation = std::function<void(Tensors& results)>;

// Where the computation runs.
at::Device& device_here() {
  static at::Device device = at::kCPU;
  return device;
}

at::Tensor here(const at::Tensor& tensor) { return tensor.defined() ? tensor.to(device_here()) : tensor; }

const test::Side kOurs{at::Device(at::kCPU), Kernels::cpu};

// On the CPU.
Tensors results_of(const test::Side& side, const Tensors& before, const Computation& run) {
  const KernelsScope scope(side.kernels);
  device_here() = side.device;
  Tensors results;
  for (const at::Tensor& tensor : before)
    results.push_back(tensor.to(side.device, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
  run(results);
  for (at::Tensor& result : results) result = result.to(at::kCPU);
  return results;
}

// What a kernel has besides the form for CPUs.
enum class Forms { aten, aten_and_cuda };

// Largest differences, relative to the largest element or to 1, which is what the elements that are added up are like.
void expect_same(const Tensors& before, const Computation& run, double tolerance, const std::string& which, Forms forms = Forms::aten) {
  const Tensors ours = results_of(kOurs, before, run);
  for (const test::Side& side : test::sides()) {
    if (side.kernels == Kernels::cuda && forms == Forms::aten) continue;
    const Tensors theirs = results_of(side, before, run);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      ASSERT_TRUE(at::isfinite(ours[i]).all().item<bool>()) << which << ", result " << i;
      const at::Tensor difference = (theirs[i].to(at::kDouble) - ours[i].to(at::kDouble)).abs().max();
      const double size = std::max(1.0, ours[i].to(at::kDouble).abs().max().item<double>());
      EXPECT_LT(difference.item<double>(), tolerance * size) << test::name_of(side.kernels) << ": " << which << ", result " << i;
    }
  }
}

double tolerance_of(at::ScalarType type) { return type == at::kFloat ? 5e-6 : 1.6e-2; }

// Runs body(random, type) so often, in both types.
void for_cases(int rounds, const std::function<void(Random&, at::ScalarType)>& body) {
  at::manual_seed(1);
  Random random(1);
  for (int round = 0; round < rounds; ++round)
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) body(random, type);
}

TEST(Kernels, AreChosenByDeviceAndByTheScope) {
  {
    const KernelsScope ours(Kernels::cpu);
    EXPECT_TRUE(use_cpu_kernels(at::empty({1})));
    EXPECT_FALSE(use_cpu_kernels(at::empty({1}, at::kMeta)));
    {
      const KernelsScope atens(Kernels::aten);
      EXPECT_FALSE(use_cpu_kernels(at::empty({1})));
    }
    EXPECT_TRUE(use_cpu_kernels(at::empty({1})));
  }
}

TEST(AtenKernels, MultiplyAsOurs) {
  for_cases(60, [](Random& random, at::ScalarType type) {
    const std::int64_t m = pick(random, {1, 8, 13, 61, 200}), n = pick(random, {1, 17, 33, 100}), k = pick(random, {1, 3, 33, 511});
    const at::Tensor a = at::randn({m, k}).to(type);
    const at::Tensor b = at::randn({n, k}).to(type).t();
    for (const at::ScalarType result : {at::kFloat, type})
      for (const bool accumulate : {false, true})
        expect_same(
            {at::randn({m, n + 5}).to(result)}, [&](Tensors& c) { gemm(here(a), here(b), c[0].narrow(1, 2, n), accumulate); },
            tolerance_of(type), text(type, " ", m, "x", n, "x", k, " into ", result));
  });
}

TEST(AtenKernels, ConvolveAsOurs) {
  for_cases(60, [](Random& random, at::ScalarType type) {
    const std::int64_t side = pick(random, {1, 3, 5}), in = pick(random, {1, 3, 16}), out = pick(random, {1, 7, 64, 96});
    const std::int64_t samples = pick(random, {1, 2, 5}), extent = pick(random, {1, 2, 5});
    // Of windows that step over a single pixel libtorch's gradient in bf16 is another one in each call (2.13, two threads).
    const std::int64_t stride = extent == 1 ? 1 : pick(random, {1, 2});
    const bool biased = random.below(2) == 0;
    const auto random_maps = [&](std::int64_t channels, std::int64_t step) {
      return at::randn({samples, channels, (extent - 1) / step + 1, (extent - 1) / step + 1})
          .to(type)
          .contiguous(at::MemoryFormat::ChannelsLast);
    };
    const at::Tensor maps = random_maps(in, 1), grad = random_maps(out, stride);
    const at::Tensor weight = at::randn({out, in, side, side}).to(type), bias = biased ? at::randn({out}).to(type) : at::Tensor();
    expect_same(
        {at::empty_like(grad), at::empty_like(maps), at::randn(weight.sizes()), at::randn({out})},
        [&](Tensors& r) {
          r[0].copy_(convolve(here(maps), here(weight), here(bias), stride));
          r[1].copy_(convolve_backward_maps(here(grad), here(maps), here(weight), stride));
          convolve_backward_weight(here(grad), here(maps), r[2], biased ? r[3] : at::Tensor(), stride);
        },
        tolerance_of(type),
        text(type, " windows of ", side, " every ", stride, " on ", samples, " maps of ", extent, " x ", extent, ", channels ", in, " to ",
             out));
  });
}

TEST(AtenKernels, SumGradientsOfBiasesAsOurs) {
  for_cases(10, [](Random& random, at::ScalarType type) {
    const std::int64_t rows = pick(random, {1, 127, 300}), width = pick(random, {1, 37, 64});
    const at::Tensor dy = at::randn({rows, width + 9}).to(type).narrow(1, 4, width);
    expect_same(
        {at::randn({width})}, [&](Tensors& grad) { bias_backward(here(dy), grad[0]); }, 2e-6, text(type, " ", rows, " rows"));
  });
}

TEST(AtenKernels, NormalizeAsOurs) {
  for_cases(20, [](Random& random, at::ScalarType type) {
    // More rows than slabs of them, or a row longer than a block.
    const std::int64_t rows = pick(random, {1, 7, 129, 600});
    const std::int64_t width = rows > 7 ? pick(random, {1, 15, 64, 100}) : pick(random, {1, 64, 4100, 4104});
    const at::Tensor x = at::randn({rows, width}).to(type);
    const at::Tensor dy = at::randn({rows, width}).to(type);
    const at::Tensor residual = random.below(2) == 1 ? at::randn({rows, width}).to(type) : at::Tensor();
    const at::Tensor weight = at::randn({width}).to(type);
    const std::string which = text(type, " ", rows, " rows of ", width);
    expect_same(
        {at::randn({rows, width}).to(type), x, at::empty({rows}), x, at::empty({width})},
        [&](Tensors& r) {
          add_rms_norm(r[0], here(x), here(weight), 1e-5, r[1], r[2]);
          rms_norm_again(r[0], here(weight), r[2], r[3]);
          EXPECT_TRUE(at::equal(r[1], r[3]));
          rms_norm(r[0], here(weight), 1e-5, r[3], r[2]);
          EXPECT_TRUE(at::equal(r[1], r[3]));
          // The gradient takes the place of what it is made of.
          r[3].copy_(dy);
          rms_norm_backward(r[3], here(x), here(weight), r[2], here(residual), r[3], r[4]);
        },
        tolerance_of(type), which, Forms::aten_and_cuda);
  });
}

TEST(AtenKernels, CenterAsOurs) {
  for_cases(20, [](Random& random, at::ScalarType type) {
    const std::int64_t rows = pick(random, {1, 7, 129, 300}), width = pick(random, {2, 15, 64, 100});
    const at::Tensor x = at::randn({rows, width}).add_(1).to(type);
    const at::Tensor dy = at::randn({rows, width}).to(type);
    const at::Tensor residual = random.below(2) == 1 ? at::randn({rows, width}).to(type) : at::Tensor();
    const at::Tensor weight = at::randn({width}).to(type);
    const at::Tensor bias = random.below(2) == 1 ? at::randn({width}).to(type) : at::Tensor();
    expect_same(
        {at::randn({rows, width}).to(type), x, at::empty({rows, 2}), x, at::empty({2, width})},
        [&](Tensors& r) {
          add_layer_norm(r[0], here(x), here(weight), here(bias), 1e-5, r[1], r[2]);
          layer_norm_again(r[0], here(weight), here(bias), r[2], r[3]);
          EXPECT_TRUE(at::equal(r[1], r[3]));
          layer_norm(r[0], here(weight), here(bias), 1e-5, r[3], r[2]);
          EXPECT_TRUE(at::equal(r[1], r[3]));
          r[3].copy_(dy);
          layer_norm_backward(r[3], r[0], here(weight), r[2], here(residual), r[3], r[4]);
        },
        4 * tolerance_of(type), text(type, " ", rows, " rows of ", width));
  });
}

TEST(AtenKernels, NormalizeHeadsAsOurs) {
  for_cases(20, [](Random& random, at::ScalarType type) {
    const HeadShape shape{pick(random, {1, 2, 6}), pick(random, {1, 2}), pick(random, {2, 24, 64})};
    const std::int64_t rows = pick(random, {1, 7, 129});
    const at::Tensor qkv = at::randn({rows, (shape.heads + 2 * shape.kv_heads) * shape.head_dim}).to(type);
    const at::Tensor weights = at::randn({2, shape.head_dim}).to(type);
    expect_same(
        {at::empty_like(qkv), at::randn(qkv.sizes()).to(type), at::empty({2, shape.head_dim})},
        [&](Tensors& r) {
          rms_norm_heads(here(qkv), shape, here(weights[0]), here(weights[1]), 1e-6, r[0]);
          rms_norm_heads_backward(here(qkv), shape, here(weights[0]), here(weights[1]), 1e-6, r[1], r[2]);
        },
        tolerance_of(type), text(type, " ", rows, " rows, head_dim ", shape.head_dim));
  });
}

TEST(AtenKernels, RotateAsOurs) {
  for_cases(20, [](Random& random, at::ScalarType type) {
    const std::int64_t batch = pick(random, {1, 3}), seq = pick(random, {1, 13, 40}), heads = pick(random, {1, 5}),
                       head_dim = pick(random, {2, 16, 40});
    const std::int64_t position = pick(random, {0, 0, 7});
    const at::Tensor positions = random.below(2) == 1 ? at::randint(0, seq, {batch, seq}, at::kLong) : at::Tensor();
    const at::Tensor table = rope_table(position + seq, head_dim, {}, at::kCPU);
    const at::Tensor rows = at::randn({batch * seq, heads * head_dim + pick(random, {6, 8})}).to(type);
    for (const bool inverse : {false, true})
      expect_same(
          {rows}, [&](Tensors& x) { rope(x[0], heads, head_dim, seq, position, here(table), inverse, here(positions)); },
          tolerance_of(type), text(type, " seq ", seq, " head_dim ", head_dim), Forms::aten_and_cuda);
  });
}

TEST(AtenKernels, ActivateAsOurs) {
  for_cases(20, [](Random& random, at::ScalarType type) {
    const std::int64_t rows = pick(random, {0, 1, 7, 129}), width = pick(random, {1, 15, 64, 100});
    if (rows == 0) {
      const KernelsScope atens(Kernels::aten);
      at::Tensor none = at::empty({0, width}, type);
      at::Tensor gate_up = at::empty({0, 2 * width}, type);
      swiglu(gate_up, none);
      swiglu_backward(gate_up, none);
      return;
    }
    const at::Tensor gate_up = at::randn({rows, 2 * width}).mul_(3).to(type);
    const at::Tensor hidden = at::randn({rows, width}).to(type);
    expect_same(
        {gate_up, hidden, hidden},
        [&](Tensors& r) {
          swiglu(r[0], r[2]);
          swiglu_backward(r[0], r[1]);
        },
        tolerance_of(type), text(type, " ", rows, " rows of ", width), Forms::aten_and_cuda);
  });
}

TEST(AtenKernels, ActivateByGeluAsOurs) {
  for_cases(20, [](Random& random, at::ScalarType type) {
    const std::int64_t rows = pick(random, {1, 7, 129}), width = pick(random, {1, 15, 100});
    const std::int64_t parts = pick(random, {1, 2});
    const GeluForm form = random.below(2) == 1 ? GeluForm::exact : GeluForm::tanh;
    const at::Tensor x = at::randn({rows, parts * width}).mul_(3).to(type);
    const at::Tensor hidden = at::randn({rows, width}).to(type);
    expect_same(
        {x, hidden, hidden},
        [&](Tensors& r) {
          gelu(r[0], r[2], form);
          gelu_backward(r[0], r[1], form);
        },
        tolerance_of(type),
        text(type, " ", rows, " rows of ", width, parts == 2 ? ", gated" : "", form == GeluForm::exact ? ", exact" : ""));
  });
}

TEST(AtenKernels, DropTheSameElementsAsOurs) {
  for_cases(20, [](Random& random, at::ScalarType type) {
    const std::int64_t samples = pick(random, {1, 3}), rows = pick(random, {1, 5, 33}), width = pick(random, {1, 7, 64, 513});
    const double probability = 0.1 * static_cast<double>(random.below(10));
    std::vector<std::uint64_t> seeds;
    for (std::int64_t i = 0; i < samples; ++i) seeds.push_back(random.next());
    const at::Tensor x = at::rand({samples, rows, width}).add_(1).to(type);
    const Computation run = [&](Tensors& out) { dropout(here(x), probability, seeds, out[0]); };
    const at::Tensor ours = results_of(kOurs, {x}, run)[0];
    const at::Tensor atens = results_of(test::sides()[0], {x}, run)[0];
    EXPECT_TRUE(at::equal(ours == 0, atens == 0)) << type << " " << probability << " of " << samples << "x" << rows << "x" << width;
    EXPECT_TRUE(at::allclose(ours, atens, tolerance_of(type)));
  });
}

TEST(AtenKernels, DropTheSameElementsOfRowsAsOurs) {
  for_cases(20, [](Random& random, at::ScalarType type) {
    const std::int64_t width = pick(random, {1, 7, 64, 513});
    std::vector<RowPlace> places;
    for (int row = 0; row < 9; ++row) places.push_back({random.next(), static_cast<std::int64_t>(random.below(100000))});
    const at::Tensor x = at::rand({9, width}).add_(1).to(type);
    const Computation run = [&](Tensors& out) { dropout_rows(here(x), 0.3, places, out[0]); };
    const at::Tensor ours = results_of(kOurs, {x}, run)[0];
    EXPECT_TRUE(at::equal(ours == 0, results_of(test::sides()[0], {x}, run)[0] == 0)) << type << " " << width;
  });
}

TEST(AtenKernels, LookUpAsOurs) {
  for_cases(20, [](Random& random, at::ScalarType type) {
    const std::int64_t rows = pick(random, {1, 19, 300}), width = pick(random, {1, 37, 64}), count = pick(random, {1, 77, 1000});
    const std::int64_t first = pick(random, {0, 5, 400});  // with the last one, other ranks hold all or many of the tokens
    const at::Tensor table = at::randn({rows, width}).to(type);
    const at::Tensor tokens = at::randint(0, rows + 50, {count}, at::kLong);
    const at::Tensor gradient = at::randn({count, width}).to(type);
    expect_same(
        {at::empty({count, width}, type), at::randn({rows, width})},
        [&](Tensors& r) {
          lookup(here(table), here(tokens), first, r[0]);
          lookup_backward(here(gradient), here(tokens), first, r[1]);
        },
        2e-6, text(type, " ", count, " tokens of ", rows, " rows"));
  });
}

TEST(AtenKernels, AddToATableInOneOrder) {
  const KernelsScope atens(Kernels::aten);
  const at::Tensor tokens = at::randint(0, 7, {3000}, at::kLong);
  const at::Tensor gradient = at::randn({3000, 64});
  const auto once = [&] {
    at::Tensor grad = at::zeros({7, 64});
    lookup_backward(gradient, tokens, 0, grad);
    return grad;
  };
  const at::Tensor first = once();
  for (int round = 0; round < 5; ++round) EXPECT_TRUE(at::equal(first, once()));
}

TEST(AtenKernels, FindLossesAsOurs) {
  for_cases(20, [](Random& random, at::ScalarType type) {
    const std::int64_t rows = pick(random, {1, 7, 40}), width = pick(random, {1, 15, 100, 1001, 5000});
    const std::int64_t first = pick(random, {0, 0, 10});
    const at::Tensor logits = at::randn({rows, width}).mul_(5);
    const at::Tensor targets = at::randint(-1, width + 20, {rows}, at::kLong);
    targets[0] = -1;
    const at::Tensor statistic = at::empty({rows});
    LossSum total(logits);
    expect_same(
        {logits, statistic, statistic, statistic, at::empty({rows, width}, type), total.loss, total.tokens},
        [&](Tensors& r) {
          cross_entropy_maximum(r[0], here(targets), first, r[1], r[2]);
          cross_entropy_exponentials(r[0], r[1], r[3]);
          LossSum sum(r[0]);
          add_losses(here(targets), r[1], r[3], r[2], sum);
          add_losses(here(targets), r[1], r[3], r[2], sum);
          r[5] = sum.loss;
          r[6] = sum.tokens;
          cross_entropy_gradient(r[0], here(targets), first, r[3], 0.3, r[4]);
          // In place.
          cross_entropy_gradient(r[0], here(targets), first, r[3], 0.3, r[0]);
        },
        tolerance_of(type), text(type, " ", rows, " rows of ", width), Forms::aten_and_cuda);
  });
}

// Consecutive documents of random lengths.
std::vector<Segment> documents(Random& random, std::int64_t batch, std::int64_t seq) {
  std::vector<Segment> segments;
  for (std::int64_t sample = 0; sample < batch; ++sample)
    for (std::int64_t first = 0; first < seq; first += segments.back().rows)
      segments.push_back({sample, first, std::min(seq - first, pick(random, {1, 5, 40, 300}))});
  return segments;
}

TEST(AtenKernels, AttendAsOurs) {
  for_cases(40, [](Random& random, at::ScalarType type) {
    const std::int64_t kv_heads = pick(random, {1, 2, 3});
    // More queries than one piece of them.
    AttentionShape shape{
        pick(random, {1, 2}),         pick(random, {1, 2, 15, 57, 300, 600}),    kv_heads * pick(random, {1, 2, 4}), kv_heads,
        pick(random, {2, 8, 40, 64}), pick(random, {0, 0, 1, 31, 99, 256, 1000})};
    if (random.below(2) == 1) shape.segments = documents(random, shape.batch, shape.seq);
    shape.causal = shape.window > 0 || random.below(2) == 1;
    const std::int64_t rows = shape.batch * shape.seq, width = shape.heads * shape.head_dim;
    const at::Tensor qkv = at::randn({rows, width + 2 * kv_heads * shape.head_dim}).to(type);
    const at::Tensor out_grad = at::randn({rows, width}).to(type);
    expect_same(
        {at::empty({rows, width}, type), at::empty({shape.batch, shape.heads, shape.seq}), qkv},
        [&](Tensors& r) {
          attention(here(qkv), shape, r[0], r[1]);
          attention_backward(here(out_grad), r[0], r[1], shape, r[2]);
        },
        type == at::kFloat ? 2e-5 : 4e-2,
        text(type, " seq ", shape.seq, " head_dim ", shape.head_dim, " window ", shape.window, " in ", shape.segments.size(), " documents",
             shape.causal ? "" : ", not causal"));
  });
}

TEST(AtenKernels, AttendAcrossPartsOfASequenceAsOurs) {
  for_cases(40, [](Random& random, at::ScalarType type) {
    CrossShape shape{pick(random, {1, 2}), pick(random, {1, 13, 40, 300}), 0, 0, pick(random, {1, 2}), pick(random, {8, 32, 40}), 0};
    shape.heads = shape.kv_heads * pick(random, {1, 3});
    shape.keys = pick(random, {1, 14, 57, 300});
    shape.offset = pick(random, {0, shape.keys, shape.keys / 2});
    // All queries see some of the keys.
    if (random.below(3) == 0) shape.window = std::max<std::int64_t>(1, shape.offset + shape.queries - shape.keys + 5);
    shape.causal = shape.window > 0 || random.below(2) == 1;
    const std::int64_t rows = shape.batch * shape.queries, width = shape.heads * shape.head_dim;
    const at::Tensor queries = at::randn({rows, width}).to(type);
    const at::Tensor keys_values = at::randn({shape.batch * shape.keys, 2 * shape.kv_heads * shape.head_dim}).to(type);
    const at::Tensor out_grad = at::randn({rows, width}).to(type);
    expect_same(
        {at::empty({rows, width}, type), at::empty({shape.batch, shape.heads, shape.queries}), queries, keys_values},
        [&](Tensors& r) {
          attention_across(here(queries), here(keys_values), shape, r[0], r[1]);
          attention_across_backward(here(out_grad), r[0], r[1], shape, r[2], r[3]);
        },
        type == at::kFloat ? 2e-5 : 4e-2,
        text(type, " ", shape.queries, " queries, ", shape.keys, " keys, offset ", shape.offset, " window ", shape.window));
  });
}

TEST(AtenKernels, AttendWithDropoutAsOurs) {
  for_cases(20, [](Random& random, at::ScalarType type) {
    const std::int64_t kv_heads = pick(random, {1, 2});
    AttentionShape shape{2,        pick(random, {1, 15, 57, 300}), kv_heads * pick(random, {1, 3}),
                         kv_heads, pick(random, {8, 40}),          pick(random, {0, 0, 31})};
    if (random.below(2) == 1) shape.segments = documents(random, shape.batch, shape.seq);
    shape.causal = shape.window > 0 || random.below(2) == 1;
    const std::vector<std::uint64_t> seeds = {random.next(), random.next()};
    const ScoreMask mask{.probability = 0.3, .seeds = seeds, .first_head = 3, .seq = shape.seq};
    const std::int64_t rows = shape.batch * shape.seq, width = shape.heads * shape.head_dim;
    const at::Tensor qkv = at::randn({rows, width + 2 * kv_heads * shape.head_dim}).to(type);
    const at::Tensor out_grad = at::randn({rows, width}).to(type);
    expect_same(
        {at::empty({rows, width}, type), at::empty({shape.batch, shape.heads, shape.seq}), qkv},
        [&](Tensors& r) {
          dropped_attention(here(qkv), shape, mask, r[0], r[1]);
          dropped_attention_backward(here(out_grad), r[0], r[1], shape, mask, r[2]);
        },
        type == at::kFloat ? 2e-5 : 4e-2,
        text(type, " seq ", shape.seq, " window ", shape.window, " in ", shape.segments.size(), " documents"));
  });
}

TEST(AtenKernels, AttendToACacheAsOurs) {
  for_cases(20, [](Random& random, at::ScalarType type) {
    const AttentionShape shape{2, pick(random, {1, 1, 9, 300}), 6, 2, pick(random, {8, 24}), pick(random, {0, 5, 40})};
    const std::int64_t position = pick(random, {0, 1, 50}), width = shape.heads * shape.head_dim;
    const at::Tensor cache = at::randn({shape.batch, shape.kv_heads, 360, shape.head_dim}).to(type);
    const at::Tensor qkv = at::randn({shape.batch * shape.seq, width + 4 * shape.head_dim}).to(type);
    expect_same(
        {cache, cache, at::empty({shape.batch * shape.seq, width}, type)},
        [&](Tensors& r) { attention_with_cache(here(qkv), shape, position, r[0], r[1], r[2]); }, type == at::kFloat ? 2e-5 : 4e-2,
        text(type, " ", shape.seq, " behind ", position, " window ", shape.window));
  });
}

TEST(AtenKernels, StepAsOurs) {
  at::manual_seed(1);
  for (const bool keeps : {false, true}) {
    const at::Tensor x = at::randn({9001});
    const at::Tensor grad = at::randn({9001});
    const at::Tensor compute = at::empty({9001}, at::kBFloat16);
    const std::string which = keeps ? "with momentum" : "without";
    expect_same(
        {x, at::zeros({9001}), at::zeros({9001}), compute},
        [&](Tensors& r) {
          at::Tensor none;
          for (const std::int64_t step : {1, 2, 3})
            adamw_step(r[0], here(grad), r[1], r[2], keeps ? r[3] : none, {1e-2, 0.9, 0.95, 1e-8, 0.1, step, 0.7});
          if (!keeps) r[3].zero_();
        },
        1e-5, which, Forms::aten_and_cuda);
    expect_same(
        {x, at::full({9001}, 7.0), compute},
        [&](Tensors& r) {
          for (const bool first : {true, false}) sgd_step(r[0], here(grad), r[1], r[2], {0.1, keeps ? 0.9 : 0.0, 0.1, first, 0.7});
        },
        1e-5, which);
    const double ours = squared_norm(grad);
    for (const test::Side& side : test::sides()) {
      const KernelsScope scope(side.kernels);
      EXPECT_NEAR(squared_norm(grad.to(side.device)), ours, 1e-12 * ours) << test::name_of(side.kernels);
    }
  }
}

// More than one launch takes, of lengths and at places that packs do not fit.
TEST(CudaKernels, StepManyTensorsAtOnceAsOneByOne) {
  test::sides();
  const cuda::Library* const library = cuda::library();
  ASSERT_NE(library, nullptr) << "build tessera_cuda_kernels";
  const at::Device device = test::test_device();
  const at::Tensor master = at::randn({70 * 9001}), grad = at::randn({70 * 9001});
  const at::Tensor compute = at::zeros({70 * 9001}, at::kBFloat16);
  const Tensors before = {master, at::zeros_like(master), at::zeros_like(master), compute};
  Tensors together, apart;
  for (const at::Tensor& tensor : before) {
    together.push_back(tensor.to(device, tensor.scalar_type(), false, true));
    apart.push_back(tensor.clone());
  }
  const at::Tensor grads = grad.to(device);
  std::vector<TesseraAdamwTensor> tensors;
  const AdamW options{1e-2, 0.9, 0.95, 1e-8, 0.1, 3, 0.7};
  const AdamWFactors f = factors_of(options);
  for (std::int64_t i = 0; i < 70; ++i) {
    const std::int64_t first = i * 9001, count = i % 3 == 0 ? 9001 : i;
    const auto at = [&](const at::Tensor& flat) { return static_cast<float*>(flat.data_ptr()) + first; };
    const bool keeps = i % 2 == 0;
    tensors.push_back({at(together[0]), at(grads), at(together[1]), at(together[2]),
                       keeps ? static_cast<at::BFloat16*>(together[3].data_ptr()) + first : nullptr, count, f.decay});
    Tensors parts;
    for (const at::Tensor& tensor : apart) parts.push_back(tensor.narrow(0, first, count));
    at::Tensor none;
    const KernelsScope ours(Kernels::cpu);
    adamw_step(parts[0], grad.narrow(0, first, count), parts[1], parts[2], keeps ? parts[3] : none, options);
  }
  ASSERT_EQ(library->adamw(tensors.data(), 70, f.grad_scale, f.first_share, f.beta2, f.second_share, f.step_size, f.correction, f.epsilon,
                           nullptr),
            nullptr);
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(at::allclose(together[i].to(at::kCPU), apart[i], i == 3 ? 8e-3 : 1e-5, 1e-6)) << "result " << i;
}

// A layer as a whole, of Llama's form and of GPT-2's, and its gradients.
TEST(AtenKernels, TrainAModelAsOurs) {
  for (const auto& [precision, tolerance] : {std::pair{model::Precision::f32, 2e-5}, {model::Precision::bf16, 6e-2}}) {
    for (const bool gpt : {false, true}) {
      const test::Dims dims = gpt ? test::Dims{.kv_heads = 4, .gpt = true} : test::Dims{.head_dim = 24, .qkv_bias = true, .qk_norm = true};
      const model::ModelSpec spec = test::decoder(dims);
      const auto whole = test::whole_parameters(spec, 3);
      const Batch batch = test::random_batch(dims, 3, 5);
      const auto run = [&](const test::Side& side) {
        const KernelsScope scope(side.kernels);
        Batch there = batch;
        for (auto& [name, tensor] : there.tensors) tensor = tensor.to(side.device);
        BlockPlacement placement;
        placement.device = side.device;
        test::Model model(spec, whole, precision, placement);
        Pass pass;
        pass.batch = &there;
        pass.precision = precision;
        pass.loss_scale = 1.0 / 96;
        const double loss = model.step(pass).loss;
        std::map<std::string, at::Tensor> grads;
        for (const auto& [name, grad] : model.grads()) grads[name] = grad.to(at::kCPU);
        return std::pair{loss, grads};
      };
      const auto [loss, grads] = run(kOurs);
      for (const test::Side& side : test::sides()) {
        const auto [its_loss, its_grads] = run(side);
        const std::string which = text(test::name_of(side.kernels), " ", model::name_of(precision), gpt ? " gpt" : " llama");
        EXPECT_LT(std::abs(its_loss - loss), tolerance * loss) << which;
        for (const auto& [name, grad] : grads) {
          if (test::cancels(name)) continue;
          EXPECT_LT(test::relative_error(its_grads.at(name), grad), tolerance) << which << " " << name;
        }
      }
    }
  }
}

// Tensors without elements: whatever reads one on the host, or adds or multiplies it with one that lies there, is refused.
TEST(AtenKernels, OfALayerStayOnItsDevice) {
  const at::Device device = at::kMeta;
  for (const auto& [precision, gpt] :
       {std::pair{model::Precision::f32, false}, {model::Precision::bf16, false}, {model::Precision::bf16, true}}) {
    const auto type = precision == model::Precision::f32 ? at::kFloat : at::kBFloat16;
    const model::ModelSpec spec =
        test::decoder(gpt ? test::Dims{.kv_heads = 4, .seq = 300, .gpt = true}
                          : test::Dims{.seq = 300, .head_dim = 24, .window = 20, .qkv_bias = true, .qk_norm = true});
    for (const model::BlockInstance& instance : spec.blocks()) {
      if (instance.spec->inputs.empty()) continue;  // it reads tokens on the host
      BlockPlacement placement;
      placement.device = device;
      const auto block = make_block(*instance.spec, placement);
      std::vector<Parameter> parameters;
      for (const model::ParameterSpec& parameter : instance.spec->parameters)
        parameters.push_back({&parameter, parameter.name, at::empty(parameter.shape, at::TensorOptions(device).dtype(type)),
                              at::empty(parameter.shape, at::TensorOptions(device).dtype(at::kFloat))});
      block->bind(std::move(parameters));
      Batch batch;
      Pass pass;
      pass.batch = &batch;
      pass.precision = precision;
      const bool last = instance.index + 1 == spec.block_count();
      pass.training = !last;
      const at::Tensor x = at::empty({2, 300, spec.blocks()[1].spec->dim("hidden")}, at::TensorOptions(device).dtype(type));
      Saved saved;
      const Tensors outputs = block->forward({x}, saved, pass);
      EXPECT_EQ(outputs.at(0).device(), device);
      if (last) continue;
      const Tensors grads = block->backward_input({outputs.at(0)}, saved, pass);
      block->backward_weight(saved, pass);
      EXPECT_EQ(grads.at(0).device(), device);
    }
  }
}

TEST(AtenKernels, OfLossesAndStepsStayOnTheirDevice) {
  const auto empty = [](at::IntArrayRef shape, at::ScalarType type = at::kFloat) {
    return at::empty(shape, at::TensorOptions(at::kMeta).dtype(type));
  };
  const at::Tensor targets = empty({9}, at::kLong);
  at::Tensor logits = empty({9, 50}), maximum = empty({9}), target_logit = empty({9}), sum = empty({9});
  cross_entropy_maximum(logits, targets, 0, maximum, target_logit);
  cross_entropy_exponentials(logits, maximum, sum);
  LossSum total(logits);
  add_losses(targets, maximum, sum, target_logit, total);
  cross_entropy_gradient(logits, targets, 0, sum, 1, logits);
  at::Tensor rows = empty({9, 16}), table = empty({50, 16});
  dropout(rows, 0.5, {1, 2, 3, 4, 5, 6, 7, 8, 9}, rows);
  at::Tensor none;
  adamw_step(table, table, table, table, none, {1e-2, 0.9, 0.95, 1e-8, 0.1, 1, 0.7});
  EXPECT_EQ(total.loss.device(), at::Device(at::kMeta));
}

}  // namespace
}  // namespace tessera::nn::kernels
