// The keys of a `model:` section, those of a preset or of an imported config.json behind them, and what all
// architectures build their blocks from.
#pragma once

#include <optional>

#include "base/problems.hpp"
#include "model/model.hpp"

namespace tessera::model {

// Throws for numbers below `least` or above `most`.
std::int64_t bounded(const ConfigNode& node, std::int64_t least, std::int64_t most = (1LL << 31) - 1);

// Unknown keys and bad values are gathered, so that all of a section are said at once: in place of a bad value stands its fallback,
// or 1, until `finish`. What is found wrong beside them may come of that.
class Settings {
 public:
  // `base` answers for the keys that `said` leaves out.
  explicit Settings(ConfigNode said, std::optional<ConfigNode> base = std::nullopt) : said_(std::move(said)), base_(std::move(base)) {}

  // Gathers other keys than these, "arch", "preset" and "hf".
  void allow_only(std::vector<std::string> valid) const;

  bool has(const std::string& key) const { return find(key).has_value(); }
  std::optional<ConfigNode> find(const std::string& key) const;
  ConfigNode at(const std::string& key) const;
  // Whole numbers of at least 1 (or 0) and below 2^31, so that products of two have room in 64 bits.
  std::int64_t count(const std::string& key) const;
  std::int64_t count(const std::string& key, std::int64_t fallback) const;
  std::int64_t count_or_zero(const std::string& key, std::int64_t fallback = 0) const;
  double real(const std::string& key, double fallback) const;
  bool flag(const std::string& key, bool fallback) const;
  std::string choice(const std::string& key, std::initializer_list<std::string_view> valid, const std::string& fallback) const;
  // Throws when `value` (of the key) does not divide `whole`, naming the nearest that does.
  void require_divides(const std::string& key, std::int64_t value, const std::string& whole, std::int64_t of) const;
  // Throws what was gathered.
  void finish() const { problems_.raise(); }

 private:
  std::int64_t counted(const std::string& key, std::int64_t least, std::optional<std::int64_t> fallback) const;

  ConfigNode said_;
  std::optional<ConfigNode> base_;
  mutable Problems problems_;
};

// Keys of all transformers that say how a framework runs them, and are not part of the model: `attention` (fused, unfused),
// `dropout`, `keeps` (tessera: what nn/ keeps; autograd: what PyTorch frameworks keep). Written to `dims` where they differ from
// what nn/ does.
std::vector<std::string> with_run_keys(std::vector<std::string> keys);
void read_run_keys(const Settings& settings, std::map<std::string, double>& dims, const std::string& keeps, double dropout);

Initializer normal(double deviation = 0.02);
// Projections back into the residual stream start smaller the deeper the model is (GPT-2).
Initializer residual_normal(std::int64_t layers);
ParameterSpec norm_weight(const std::string& name, std::int64_t extent);
ParameterSpec bias(const std::string& name, std::int64_t extent, int split_dim = -1);
// Both parameters of a LayerNorm called `name`.
void add_layer_norm(std::vector<ParameterSpec>& parameters, const std::string& name, std::int64_t extent);
// A linear map called `name`, [out, in], with its bias. `split_dim`: 0 divides outputs, 1 inputs, -1 nothing.
void add_linear(std::vector<ParameterSpec>& parameters, const std::string& name, std::int64_t out, std::int64_t in, int split_dim,
                bool biased, Initializer init = normal());
// What ModelSpec::dims says of things that this model does not have.
void fill_dims(std::map<std::string, double>& dims);

}  // namespace tessera::model
