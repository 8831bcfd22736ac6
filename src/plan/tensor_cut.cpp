#include "plan/tensor_cut.hpp"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "model/forms.hpp"

namespace tessera::plan {
namespace {

constexpr const char* kHeads[] = {"heads", "kv_heads"};

std::int64_t extent_of(const model::BlockSpec& block, const char* key) { return static_cast<std::int64_t>(option_of(block, key)); }

// True for embeddings and language heads.
bool holds_vocabulary(const model::BlockSpec& block) {
  return block.kind == "embedding" || block.kind == "position_embedding" || block.kind == "lm_head" || block.kind == "language_head";
}

// What the degree may pad in a block, with its extents; 0 where a block has none of a name.
std::vector<std::pair<const char*, std::int64_t>> padded_extents(const model::BlockSpec& block, Experts experts) {
  if (holds_vocabulary(block)) return {{"vocab", extent_of(block, "vocab")}};
  // Of a layer with experts, `ffn` is the width of the dense layers beside it.
  if (extent_of(block, "experts") > 0)
    return {{"expert_ffn", experts == Experts::whole ? 0 : extent_of(block, "expert_ffn")}, {"shared_ffn", extent_of(block, "shared_ffn")}};
  return {{"ffn", extent_of(block, "ffn")}};
}

}  // namespace

std::vector<std::int64_t> divisors_of(std::int64_t whole) {
  std::vector<std::int64_t> out;
  for (std::int64_t d = 1; d * d <= whole; ++d)
    if (whole % d == 0) out.push_back(d);
  for (std::size_t i = out.size(); i-- > 0;)
    if (out[i] * out[i] != whole) out.push_back(whole / out[i]);
  return out;
}

std::int64_t nearest_of(const std::vector<std::int64_t>& valid, std::int64_t wish) {
  return std::ranges::min(valid, {}, [&](std::int64_t value) { return std::abs(value - wish); });
}

double option_of(const model::BlockSpec& block, const char* key, double fallback) {
  const auto found = block.dims.find(key);
  return found == block.dims.end() ? fallback : found->second;
}

std::string TensorFault::what() const {
  return padded ? text("leaves a rank nothing of ", key, " ", extent) : text("does not divide ", key, " ", extent);
}

std::string TensorFault::expected() const {
  return padded ? text("a degree that leaves each rank a part of ", key) : "a degree that divides heads and kv_heads, which are not padded";
}

bool stands_whole(const model::ModelSpec& model, bool trained) {
  return std::ranges::any_of(model.repeats, [&](const model::Repeat& repeat) { return stands_whole(model, repeat.block, trained); });
}

bool stands_whole(const model::ModelSpec& model, const model::BlockSpec& block, bool trained) {
  return (trained || !model.plugin.empty()) && !model::cut_by_nn(block);
}

std::optional<TensorFault> tensor_fault(const model::ModelSpec& model, const model::BlockSpec& block, std::int64_t degree,
                                        Experts experts) {
  if (degree == 1 || block.kind == "final_norm") return {};
  const bool cut = std::any_of(block.parameters.begin(), block.parameters.end(), [](const auto& of) { return of.split_dim >= 0; });
  if (!holds_vocabulary(block) && (extent_of(block, "heads") > 0 || !cut))
    for (const char* key : kHeads)
      if (const std::int64_t extent = model.dim(key); extent % degree != 0) return TensorFault{key, extent};
  for (const auto& [key, extent] : padded_extents(block, experts))
    if (extent > 0 && model::real_extent(extent, degree, degree - 1) == 0) return TensorFault{key, extent, true};
  if (holds_vocabulary(block)) return {};
  for (const char* key : kHeads)
    if (const std::int64_t extent = extent_of(block, key); extent % degree != 0) return TensorFault{key, extent};
  if (extent_of(block, "heads") > 0) return {};
  for (const model::ParameterSpec& parameter : block.parameters)
    if (parameter.split_dim >= 0 && !(parameter.expert_dim >= 0 && experts == Experts::whole))
      if (const std::int64_t extent = parameter.shape[parameter.split_dim]; extent % degree != 0)
        return TensorFault{parameter.name, extent};
  return {};
}

std::optional<TensorFault> tensor_fault(const model::ModelSpec& model, std::int64_t degree) {
  for (const model::Repeat& repeat : model.repeats)
    if (const auto fault = tensor_fault(model, repeat.block, degree)) return fault;
  return {};
}

bool context_divides(const model::BlockSpec& block, std::int64_t degree) { return degree == 1 || sequence_divides(block, 2 * degree); }

bool heads_divide(const model::BlockSpec& block, std::int64_t tensor, std::int64_t context) {
  return extent_of(block, "heads") / tensor % context == 0;
}

bool sequence_divides(const model::BlockSpec& block, std::int64_t degree) {
  const std::int64_t sequence = extent_of(block, "seq");
  return sequence > 0 && sequence % degree == 0;
}

std::vector<bool> sharing_parameters(const model::ModelSpec& model) {
  std::set<std::string> shared;
  const auto cut = [](const model::ParameterSpec& parameter) { return parameter.split_dim >= 0; };
  for (const model::Repeat& repeat : model.repeats)
    for (const model::ParameterSpec& parameter : repeat.block.parameters)
      if (cut(parameter) && !parameter.tied_to.empty()) shared.insert(parameter.tied_to);
  std::vector<bool> out;
  for (const model::Repeat& repeat : model.repeats)
    out.push_back(std::any_of(repeat.block.parameters.begin(), repeat.block.parameters.end(), [&](const model::ParameterSpec& parameter) {
      return cut(parameter) && (!parameter.tied_to.empty() ||
                                shared.contains(model::BlockInstance{&repeat.block, 0, repeat.first_index}.parameter_name(parameter)));
    }));
  return out;
}

std::string Padding::what() const {
  return text(key, " ", extent, " is padded to ", degree * model::shard_extent(extent, degree), " for tp ", degree);
}

std::vector<Padding> paddings(const Plan& plan, const model::ModelSpec& model) {
  std::vector<Padding> out;
  const std::vector<model::BlockInstance> blocks = model.blocks();
  for (const Stage& stage : plan.stages)
    for (const StrategyRun& run : stage.runs)
      for (int b = run.first; b < run.last && run.strategy.tp > 1; ++b)
        for (const auto& [key, extent] : padded_extents(*blocks[b].spec, experts_of(run.strategy))) {
          const Padding padding{key, extent, run.strategy.tp};
          if (extent % run.strategy.tp != 0 && std::find(out.begin(), out.end(), padding) == out.end()) out.push_back(padding);
        }
  return out;
}

}  // namespace tessera::plan
