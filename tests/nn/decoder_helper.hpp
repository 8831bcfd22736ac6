// A small model for the tests of nn, its blocks bound to parameters of their own, and the same model in plain ATen with
// autograd as the reference.
#pragma once

#include <ATen/core/Tensor.h>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/block.hpp"

namespace tessera::nn::test {

struct Dims {
  std::int64_t hidden = 64, layers = 2, heads = 4, kv_heads = 2, ffn = 96, vocab = 160, seq = 32;
  bool tied = false;
  std::int64_t head_dim = 0;  // 0: hidden / heads
  std::int64_t window = 0;    // 0: none
  bool qkv_bias = false;
  bool qk_norm = false;
  bool scaled = false;  // rotary positions, by Llama 3.1's rule
  double dropout = 0;
  // GPT-2's form: of what is above, `window`, `qkv_bias`, `qk_norm` and `scaled` are not asked for.
  bool gpt = false;
  bool gated = false;
  bool biases = true;
  bool embedding_norm = false;
  const char* positions = "learned";
  // BERT's form: with as many key-value heads as heads, and of what is above with `tied` and `dropout`.
  bool bert = false;
  bool token_types = false;  // batches have them
  bool split = false;        // each layer is two blocks

  std::int64_t head() const { return head_dim > 0 ? head_dim : hidden / heads; }
};
model::ModelSpec decoder(const Dims& dims);

// Whole parameters by name, f32, from their names and the seed: wider than in training, so that every term matters.
std::map<std::string, at::Tensor> whole_parameters(const model::ModelSpec& spec, std::uint64_t seed);
// This rank's rows or columns.
at::Tensor shard_of(const at::Tensor& whole, const model::ParameterSpec& spec, const BlockPlacement& placement);

enum class Layout { flat, scattered };  // one buffer per block, or a tensor per parameter

// All blocks of one rank.
class Model {
 public:
  Model(const model::ModelSpec& spec, const std::map<std::string, at::Tensor>& whole, model::Precision precision,
        BlockPlacement placement = {}, Layout layout = Layout::flat);

  struct Step {
    double loss = 0;
    std::int64_t tokens = 0;
  };
  // Forward and backward; gradients add up.
  Step step(const Pass& pass, bool recompute = false);
  double evaluate(Pass pass);
  at::Tensor logits(Pass pass, std::vector<KeyValueCache>* caches = nullptr);
  const std::map<std::string, at::Tensor>& grads() const { return grads_; }
  Block& block(std::size_t index) { return *blocks_.at(index); }
  std::size_t size() const { return blocks_.size(); }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
  std::map<std::string, at::Tensor> grads_;
};

struct Reference {
  double loss = 0;                          // sum of token losses
  std::map<std::string, at::Tensor> grads;  // of scale * loss, f32
};
// Plain ATen and autograd in f32 whatever the parameters' values. What `drops` says is dropped as by nn::dropout.
Reference reference(const Dims& dims, const std::map<std::string, at::Tensor>& parameters, const Batch& batch, double scale,
                    bool drops = false);

Batch random_batch(const Dims& dims, std::int64_t samples, std::uint64_t seed);

// Whether a parameter's gradient is a small difference of large sums, which 16 bits leave less of: without rotation the keys' biases
// would move all scores of a query alike, and change nothing.
bool cancels(const std::string& name);

// What bf16's rounding may change of a gradient, relative to its norm: more by ATen's kernels, which round scores before the softmax, and
// run on CPUs that have no instructions for 16 bits.
double bf16_tolerance();

// |gradient - wanted| / |wanted|, by their norms. Biases of keys change no share of attention, and have a gradient of rounding alone where
// positions do not turn: it is compared with that of the queries' biases among `all`.
double gradient_error(const std::string& name, const at::Tensor& gradient, const at::Tensor& wanted,
                      const std::map<std::string, at::Tensor>& all);

// max |a - b| / max |b|.
double relative_error(const at::Tensor& a, const at::Tensor& b);

}  // namespace tessera::nn::test
