#include "model/model.hpp"

#include <algorithm>

#include "base/hash.hpp"
#include "model/forms.hpp"

namespace tessera::model {
namespace {

std::string with_index(const std::string& name, int index) {
  const std::size_t place = name.find("{}");
  if (place == std::string::npos) return name;
  return name.substr(0, place) + std::to_string(index) + name.substr(place + 2);
}

double value_of(const std::map<std::string, double>& dims, const std::string& key, const std::string& owner) {
  const auto found = dims.find(key);
  if (found == dims.end()) throw Error(ErrorCode::internal, owner + " has no dimension '" + key + "'");
  return found->second;
}

}  // namespace

const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::f32: return "fp32";
    case Precision::bf16: return "bf16";
    case Precision::f16: return "fp16";
    case Precision::f8: return "fp8";
  }
  return "fp32";
}
Bytes element_size(Precision precision) { return Bytes(precision == Precision::f32 ? 4 : 2); }
const char* name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::none: return "none";
    case Recompute::selective: return "selective";
    case Recompute::full: return "full";
  }
  return "none";
}

std::int64_t ParameterSpec::count() const {
  std::int64_t count = 1;
  for (std::int64_t extent : shape) count *= extent;
  return count;
}

std::int64_t shard_extent(std::int64_t whole, std::int64_t parts) { return whole / parts + (whole % parts != 0 ? 1 : 0); }

std::int64_t real_extent(std::int64_t whole, std::int64_t parts, std::int64_t index) {
  const std::int64_t each = shard_extent(whole, parts);
  return each == 0 || index >= shard_extent(whole, each) ? 0 : std::min(each, whole - index * each);
}

ParameterSpec ParameterSpec::unstacked() const {
  ParameterSpec out = *this;
  if (stacked == 1) return out;
  out.stacked = 1;
  out.shape[static_cast<std::size_t>(split_dim)] /= stacked;
  out.shape.insert(out.shape.begin() + split_dim, stacked);
  ++out.split_dim;
  return out;
}

std::int64_t ParameterSpec::shard_extent(int tensor_parallel) const {
  return stacked * model::shard_extent(shape[static_cast<std::size_t>(split_dim)] / stacked, tensor_parallel);
}

std::int64_t ParameterSpec::shard_count(int tensor_parallel) const {
  return split_dim < 0 ? count() : count() / shape[static_cast<std::size_t>(split_dim)] * shard_extent(tensor_parallel);
}

double BlockSpec::real(const std::string& key) const { return value_of(dims, key, "block " + name); }
std::int64_t BlockSpec::dim(const std::string& key) const { return static_cast<std::int64_t>(real(key)); }

std::string BlockSpec::profile_key() const {
  // Of blocks that nn/ cuts, and of those that are not computed, a model has one of a kind.
  if (!measured && (cut_by_nn(*this) || !computed_by_nn(*this))) return kind;
  std::string all;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    all += " " + name;
    for (const std::int64_t extent : shape) all += "," + std::to_string(extent);
  };
  for (const auto& [key, value] : dims) all += text(" ", key, "=", value);
  for (const ParameterSpec& parameter : parameters) add("p", parameter.shape);
  for (const TensorSpec& input : inputs) add("i", input.shape);
  for (const TensorSpec& output : outputs) add("o", output.shape);
  return kind + " " + hash128_hex(all).substr(0, 8);
}

std::int64_t BlockSpec::parameter_count() const {
  std::int64_t count = 0;
  for (const ParameterSpec& parameter : parameters)
    if (parameter.tied_to.empty() && parameter.buffer_momentum == 0) count += parameter.count();
  return count;
}

std::int64_t BlockSpec::active_parameter_count() const {
  std::int64_t count = 0;
  for (const ParameterSpec& parameter : parameters) {
    if (!parameter.tied_to.empty() || parameter.buffer_momentum > 0) continue;
    count += parameter.expert_dim < 0 ? parameter.count() : parameter.count() / dim("experts") * dim("experts_per_token");
  }
  return count;
}

std::string BlockInstance::name() const { return with_index(spec->name, repeat_index); }
std::string BlockInstance::parameter_name(const ParameterSpec& parameter) const { return with_index(parameter.name, repeat_index); }

int ModelSpec::block_count() const {
  int count = 0;
  for (const Repeat& repeat : repeats) count += repeat.count;
  return count;
}

std::vector<BlockInstance> ModelSpec::blocks() const {
  std::vector<BlockInstance> blocks;
  for (const Repeat& repeat : repeats)
    for (int i = 0; i < repeat.count; ++i) blocks.push_back({&repeat.block, static_cast<int>(blocks.size()), repeat.first_index + i});
  return blocks;
}

std::int64_t ModelSpec::parameter_count() const {
  std::int64_t count = 0;
  for (const Repeat& repeat : repeats) count += repeat.count * repeat.block.parameter_count();
  return count;
}

std::int64_t ModelSpec::active_parameter_count() const {
  std::int64_t count = 0;
  for (const Repeat& repeat : repeats) count += repeat.count * repeat.block.active_parameter_count();
  return count;
}

std::int64_t ModelSpec::dim(const std::string& key) const { return static_cast<std::int64_t>(value_of(dims, key, "model " + arch)); }

std::string ModelSpec::fingerprint() const {
  std::ostringstream out;
  out.precision(17);
  out << arch << ' ' << tied_embeddings;
  // How a router's experts are balanced is of a run, which may begin with what another one has trained.
  for (const auto& [key, value] : dims)
    if (key != "balance_loss" && key != "z_loss" && key != "score_bias_rate") out << ' ' << key << '=' << value;
  for (const Repeat& repeat : repeats) {
    out << ' ' << repeat.block.kind << '*' << repeat.count;
    for (const ParameterSpec& parameter : repeat.block.parameters) {
      out << ' ' << parameter.name << parameter.tied_to;
      for (std::int64_t extent : parameter.shape) out << ',' << extent;
    }
  }
  return hash128_hex(out.str()).substr(0, 16);
}

}  // namespace tessera::model
