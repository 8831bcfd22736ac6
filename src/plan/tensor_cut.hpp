// Which tensor-parallel degrees a block can be cut by, and what is padded then.
//
// A degree must divide the numbers of query heads and of key-value heads. It need not divide the vocabulary and the widths of feed-forward
// networks: these are padded (model::shard_extent), as long as every rank holds some that is no padding.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.hpp"

namespace tessera::plan {

// A dimension that a degree cannot cut.
struct TensorFault {
  std::string key;  // "heads"
  std::int64_t extent = 0;
  bool padded = false;           // true: it could be padded, but a rank would hold nothing but padding; false: it cannot be padded
  std::string what() const;      // follows the degree: "does not divide heads 4", "leaves a rank nothing of vocab 4"
  std::string expected() const;  // "a degree that divides heads and kv_heads, which are not padded"
};

// Whether the trainer cuts all of a model's blocks (model::computed_by_nn); those of plug-ins stand whole on each rank.
bool cut_by_trainer(const model::ModelSpec& model);

// True for embeddings and language heads.
bool holds_vocabulary(const model::BlockSpec& block);
// Whether tensor parallelism cuts experts too. Whole ones stand on one rank each, and their width need not be divided.
enum class Experts { cut, whole };
inline Experts experts_of(const Strategy& strategy) { return strategy.whole_experts ? Experts::whole : Experts::cut; }
// The first fault of a block, or of any block of a model; none where `degree` cuts it.
std::optional<TensorFault> tensor_fault(const model::BlockSpec& block, std::int64_t degree, Experts experts = Experts::cut);
std::optional<TensorFault> tensor_fault(const model::ModelSpec& model, std::int64_t degree);
// The degrees from 1 to `most` that cut all blocks of a model.
std::vector<std::int64_t> tensor_degrees(const model::ModelSpec& model, std::int64_t most);

// Whether sequence parallelism can cut the positions of a model's samples into so many equal parts, as the trainer needs.
bool sequence_divides(const model::ModelSpec& model, std::int64_t degree);

// A dimension that a degree does not divide.
struct Padding {
  std::string key;
  std::int64_t extent = 0;
  int degree = 1;
  bool operator==(const Padding&) const = default;
  std::string what() const;  // "vocab 259 is padded to 261 for tp 3"
};

// What a plan pads, each once; nothing where all degrees divide.
std::vector<Padding> paddings(const Plan& plan, const model::ModelSpec& model);

}  // namespace tessera::plan
