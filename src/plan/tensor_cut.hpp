// Which degrees a block can be cut by, for the check of plans and the search alike, and what is padded then.
//
// A tensor-parallel degree must divide the numbers of query heads and of key-value heads. It need not divide the vocabulary and the widths
// of feed-forward networks: these are padded (model::shard_extent), as long as every rank holds some that is no padding.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.hpp"

namespace tessera::plan {

// Ascending.
std::vector<std::int64_t> divisors_of(std::int64_t whole);
// The element of `valid` nearest to `wish`, the smaller of two equally near ones. `valid` is ascending and not empty.
std::int64_t nearest_of(const std::vector<std::int64_t>& valid, std::int64_t wish);
// A dimension of a block by name; `fallback` if it has none of that name.
double option_of(const model::BlockSpec& block, const char* key, double fallback = 0);

// A dimension that a degree cannot cut.
struct TensorFault {
  std::string key;  // "heads"
  std::int64_t extent = 0;
  bool padded = false;           // true: it could be padded, but a rank would hold nothing but padding; false: it cannot be padded
  std::string what() const;      // follows the degree: "does not divide heads 4", "leaves a rank nothing of vocab 4"
  std::string expected() const;  // "a degree that divides heads and kv_heads, which are not padded"
};

// Whether every rank holds whole blocks, for whole sequences, and recomputes whole passes or nothing: true of plug-ins, which autograd
// differentiates, and, if the trainer runs the plan (`trained`), of all models that it does not cut. Plans for accelerators may be for
// other trainers.
bool stands_whole(const model::ModelSpec& model, bool trained);
// Whether one block has tp 1 beside others that tensor parallelism cuts.
bool stands_whole(const model::ModelSpec& model, const model::BlockSpec& block, bool trained);

// Whether tensor parallelism cuts experts too. Whole ones stand on one rank each, and their width need not be divided.
enum class Experts { cut, whole };
inline Experts experts_of(const Strategy& strategy) { return strategy.whole_experts ? Experts::whole : Experts::cut; }
// The first fault of one block, or of any; unset if `degree` cuts it. It must also divide the model's heads (1 without attention), except
// in blocks with a vocabulary and in blocks without attention whose parameters it cuts.
std::optional<TensorFault> tensor_fault(const model::ModelSpec& model, const model::BlockSpec& block, std::int64_t degree,
                                        Experts experts = Experts::cut);
std::optional<TensorFault> tensor_fault(const model::ModelSpec& model, std::int64_t degree);

// Whether context parallelism can cut the sequences of a block: each rank takes one part of the first half and one of the second, so that a
// causal mask leaves all as much to do. False for blocks without a sequence.
bool context_divides(const model::BlockSpec& block, std::int64_t degree);
// Whether Ulysses can deal the query heads of a tensor-parallel rank out to the context-parallel ones. True for blocks without attention.
bool heads_divide(const model::BlockSpec& block, std::int64_t tensor, std::int64_t context);
// Whether sequence parallelism can cut the positions of a block into so many (tp x cp) equal parts.
bool sequence_divides(const model::BlockSpec& block, std::int64_t degree);

// By index into ModelSpec::repeats: whether the blocks share a cut parameter with others. A rank holds one part of such a parameter, so all
// of its blocks that share it have the same tp.
std::vector<bool> sharing_parameters(const model::ModelSpec& model);

// A dimension that a degree does not divide.
struct Padding {
  std::string key;
  std::int64_t extent = 0;
  int degree = 1;
  bool operator==(const Padding&) const = default;
  std::string what() const;  // "vocab 259 is padded to 261 for tp 3"
};

// The dimensions that a plan pads, each once; empty if all degrees divide.
std::vector<Padding> paddings(const Plan& plan, const model::ModelSpec& model);

}  // namespace tessera::plan
