// A model as data: an ordered list of blocks with their parameters and costs. The planner reads the costs, the runtime
// builds modules from the same list.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "base/units.hpp"

namespace tessera::model {

// The number format of computation; all keep fp32 master copies of the parameters. f8: matrix products in 8 bits, all else in bf16.
enum class Precision { f32, bf16, f16, f8 };
const char* name_of(Precision precision);
Bytes element_size(Precision precision);

// Which initial values a parameter has.
struct Initializer {
  std::string kind = "normal";  // the registry's key (nn/initializers.hpp): "normal", "uniform", "ones", "zeros"
  double scale = 0.02;          // standard deviation of normal, bound of uniform
};

// What a tensor-parallel rank holds of a dimension that is cut into `parts`: ceil(whole / parts). Where `parts` does not divide
// `whole`, the last rank's part is padded with zeros, which never enter a result.
std::int64_t shard_extent(std::int64_t whole, std::int64_t parts);
// How much of that is not padding on rank `index`: of 10 cut into 4 parts of 3, rank 3 holds 1.
std::int64_t real_extent(std::int64_t whole, std::int64_t parts, std::int64_t index);

struct ParameterSpec {
  std::string name;                 // as Hugging Face names it; "{}" stands for the block's repeat index
  std::vector<std::int64_t> shape;  // whole, not per rank: [out, in] for a linear map
  int split_dim = -1;               // which dimension tensor parallelism cuts; -1: every rank holds all of it
  Initializer init = {};
  bool decay = true;         // weight decay applies
  std::string tied_to = {};  // the name of the parameter that this one shares; empty: its own
  int expert_dim = -1;       // which dimension counts experts, and expert parallelism cuts; -1: none
  bool sparse = false;       // a table of which a step touches few rows: for a parameter server
  int stacked = 1;           // so many equal matrices stand one after another in the cut dimension, and each is cut by itself
  // Above 0, a buffer: a running mean of what samples show, which has no gradient. A step makes it
  // (1 - momentum) * buffer + momentum * (mean over the step's samples), whatever the plan: passes add what their samples show to its grad.
  double buffer_momentum = 0;
  // Above 0: a step moves each element by so much against the sign of its gradient, whatever the optimizer. The gradients' norm leaves it
  // out.
  double sign_rate = 0;

  std::int64_t count() const;
  // The same elements with the stack as a dimension of its own: [6, 4] of three stacked matrices, cut in dimension 0, is [3, 2, 4], cut in
  // dimension 1. A part of it is a part of each of them.
  ParameterSpec unstacked() const;
  // What each of `tensor_parallel` ranks holds, with padding.
  std::int64_t shard_extent(int tensor_parallel) const;  // of the cut dimension
  std::int64_t shard_count(int tensor_parallel) const;   // elements
};

// A tensor passed from block to block, which finds it by its name: shape per sample, without the batch dimension.
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
};

// What one sample costs a block of which only the forward pass is written: counted and measured with fp32 on one device
// (nn/measured_cost.hpp).
struct MeasuredCost {
  Flops forward;
  Flops backward;
  Bytes kept;  // from the forward to the backward pass, inputs included and outputs not
  Bytes forward_workspace;
  Bytes backward_workspace;
};

struct BlockSpec {
  // The registry's key: "embedding", "transformer_layer" and "lm_head" are Llama's. The others: "position_embedding", "encoder_layer",
  // "attention_sublayer", "feed_forward_sublayer", "decoder_layer", "moe_layer", "language_head", "final_norm", "projector",
  // "patch_embedding", "classifier"; "conv_layer", "residual_block"; "mlp", "embedding_tables", "interaction".
  std::string kind;
  std::string name;  // "embed", "layers.{}", "head"
  // "hidden", "heads", "kv_heads", "head_dim", "ffn", "seq", "vocab", "rope_theta", "norm_eps"; where a model has them, "qkv_bias",
  // "qk_norm", "window", and of scaled rotary positions "rope_factor", "rope_original_seq", and "rope_low_freq", "rope_high_freq" or,
  // by YaRN, "rope_beta_slow", "rope_beta_fast", "rope_whole_pairs", "rope_amplitude", "rope_score_scale", "rope_mscale_all_dim".
  std::map<std::string, double> dims;
  std::vector<ParameterSpec> parameters;
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  std::optional<MeasuredCost> measured = {};  // of a plug-in's block; the others' costs are formulas

  // Blocks that take equally long have this in common: `kind` and, where a plug-in may use it for blocks of several shapes, which of them.
  std::string profile_key() const;
  std::int64_t dim(const std::string& key) const;  // throws internal when missing
  double real(const std::string& key) const;
  std::int64_t parameter_count() const;         // tied parameters do not count again
  std::int64_t active_parameter_count() const;  // counts, of routed experts, only those that one token is routed to
};

// A block that stands `count` times in a row.
struct Repeat {
  BlockSpec block;
  int count = 1;
  int first_index = 0;  // what "{}" of its names becomes in the first one
};

// One block of the flattened model.
struct BlockInstance {
  const BlockSpec* spec = nullptr;  // owned by the ModelSpec
  int index = 0;                    // in the whole model, 0-based
  int repeat_index = 0;             // what "{}" becomes

  std::string name() const;
  std::string parameter_name(const ParameterSpec& parameter) const;
};

struct ModelSpec {
  std::string arch;  // "llama"
  // As in BlockSpec, plus "layers". All models have "seq" (positions of a sample), "hidden", "heads", "kv_heads", "ffn" (the
  // greatest common divisor of all widths that tensor parallelism cuts; 0: none) and "vocab" (0: none). `heads` and `kv_heads`
  // are 1 where there is no attention to cut.
  std::map<std::string, double> dims;
  bool tied_embeddings = false;
  std::string plugin;  // the shared library that has its blocks (model/plugin.hpp); empty: they are Tessera's own
  // In an order in which the blocks can run one after another. What each reads of which is a matter of names (model/tensor_flow.hpp).
  std::vector<Repeat> repeats;

  int block_count() const;
  std::vector<BlockInstance> blocks() const;  // pointers into this object
  std::int64_t parameter_count() const;
  std::int64_t active_parameter_count() const;
  std::int64_t dim(const std::string& key) const;
  // Changes when anything that shapes the parameters or the computation changes; 16 hex digits.
  std::string fingerprint() const;
};

// The `model:` section: an `arch` with its dimensions, a `preset` of the catalogue, or `hf`, the path of a Hugging Face
// config.json; further keys change single values of the last two. docs/train-yaml.md has all keys.
// Throws invalid_config with the line and the nearest valid value when dimensions do not divide.
ModelSpec read_model(const ConfigNode& node);

// The names of the catalogue, sorted: "bert-large", "deepseek-v3", ...
std::vector<std::string> preset_names();

// selective: the attention core alone (scores, softmax, their product with the values), whose tensors grow with the square of
// the sequence (Korthikanti et al. 2022, section 5).
enum class Recompute { none, selective, full };
const char* name_of(Recompute recompute);

// How a sequence is cut among the ranks of a context-parallel group: by passing keys and values round a ring (Liu et al. 2023),
// or by exchanging sequence against heads around the attention (DeepSpeed-Ulysses, Jacobs et al. 2023).
enum class ContextKind { ring, ulysses };

// How one block runs on one rank.
struct BlockShard {
  std::int64_t micro_batch_size = 1;  // samples
  int tensor_parallel = 1;
  Precision precision = Precision::f32;
  Recompute recompute = Recompute::none;
  bool sequence_parallel = false;  // what tensor parallelism leaves whole is cut along the sequence (Korthikanti et al. 2022)
  int context_parallel = 1;
  ContextKind context = ContextKind::ring;
  int expert_parallel = 1;
  bool whole_experts = false;  // tensor parallelism does not cut experts; its ranks take a part of the tokens each
  int replicas = 1;            // that exchange within passes; 1 where the block's do not (exchanges_over_replicas)
  auto operator<=>(const BlockShard&) const = default;
};

// One kernel of a block's forward or backward pass on one rank: what a roofline prices. Products are `batch` times
// [m, k] x [k, n]; others have flops and traffic alone. Attention is one kernel that keeps its scores on the chip: `batch` heads,
// m queries, n keys, k dimensions of a key. Its flops are those that it computes: under a causal mask the kernel skips what
// is masked, so they are about half of what BlockCost::forward counts.
struct Operator {
  enum class Kind { matmul, attention, convolution, lookup, elementwise } kind = Kind::elementwise;
  std::string name;  // "qkv", "attention", "gate_up", "norm"
  std::int64_t batch = 1;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  Flops flops;
  Bytes traffic;             // read and written when nothing stays in a cache
  bool weight_half = false;  // of the backward pass: makes gradients of weights only, so that zero-bubble schedules may delay it
};

// A communication on a block's critical path, once per pass.
struct Exchange {
  enum class Axis { tensor, context, expert, replica } axis = Axis::tensor;
  std::string operation;  // "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"
  Bytes bytes;            // the whole buffer: what an all-gather ends with and a reduce-scatter begins with; what a
                          // rank holds for an all-to-all; what a rank sends
  bool overlaps = false;  // software may run it beside operators of its own block: those from `ready` to `needed`
  int messages = 1;       // one after another, that share `bytes`: steps of the ring, chunks of the head
  int pieces = 1;         // in which Tessera's trainer makes it, each beside the product of the next. No time counts them: the
                          // profile's exchanges within layers are made so, and other software does not do it
  // Where it stands among the operators of its pass: it may begin when those before `ready` have run, and the operator `needed` waits for
  // it. Between two operators both are the index of the second. The number of operators: the end of the pass.
  int ready = 0;
  int needed = 0;
  bool operator==(const Exchange&) const = default;
};

// Whether the block's passes exchange over data-parallel replicas: batch norm that is synchronized.
bool exchanges_over_replicas(const BlockSpec& block);

// In how many pieces Tessera's trainer sums `rows` rows of `bytes` in all over tensor-parallel ranks: each has as many rows, and is not so
// small that its latency counts.
int summed_pieces(std::int64_t rows, Bytes bytes);

// What a block costs one rank for one micro-batch.
struct BlockCost {
  Flops forward;
  Flops backward;         // without recomputation
  Bytes forward_traffic;  // read and written, for the roofline
  Bytes backward_traffic;
  Bytes saved;              // held from the forward to the backward pass
  Bytes saved_for_weight;   // held from the input half of a backward pass in two halves to the weight half
  Bytes forward_workspace;  // largest temporary beyond saved and passed-on tensors
  Bytes backward_workspace;
  Bytes output;  // passed on to the next block
  // Tensor-parallel all-reduces on the critical path: how many, and the size of each.
  int forward_all_reduces = 0;
  int backward_all_reduces = 0;
  Bytes all_reduce_size;
  // The same work kernel by kernel. Backward is without what recomputation repeats; `recomputed` is what it repeats.
  std::vector<Operator> forward_operators;
  std::vector<Operator> backward_operators;
  std::vector<Operator> recomputed_operators;
  // All exchanges of a pass, tensor-parallel ones included; recomputation's own are in `recomputed_exchanges`.
  std::vector<Exchange> forward_exchanges;
  std::vector<Exchange> backward_exchanges;
  std::vector<Exchange> recomputed_exchanges;
};

// Formulas: FLOPs are 2mnk per matrix product as torch's FlopCounterMode counts them, causal attention counted in full
// (FlopCounterMode does not know about the mask). Under a window they are as much less as it leaves fewer pairs than the causal mask
// alone. Bytes are those that nn/'s blocks really keep.
BlockCost cost_of(const BlockSpec& block, const BlockShard& shard);

// Forward and backward of one whole sample, all blocks: what MFU is computed from.
Flops training_flops_per_sample(const ModelSpec& model);

}  // namespace tessera::model
