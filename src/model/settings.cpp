#include "model/settings.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::model {
namespace {

std::int64_t nearest_divisor(std::int64_t whole, std::int64_t wanted) {
  std::int64_t best = 1;
  const auto consider = [&](std::int64_t d) {
    if (std::abs(d - wanted) < std::abs(best - wanted) || (std::abs(d - wanted) == std::abs(best - wanted) && d < best)) best = d;
  };
  for (std::int64_t d = 1; d <= whole / d; ++d) {
    if (whole % d != 0) continue;
    consider(d);
    consider(whole / d);
  }
  return best;
}

}  // namespace

void Settings::allow_only(std::vector<std::string> valid) const {
  for (const char* key : {"arch", "preset", "hf", "plugin"}) valid.emplace_back(key);
  problems_.attempt([&] { said_.allow_only(valid); });
}

std::optional<ConfigNode> Settings::find(const std::string& key) const {
  if (auto found = said_.find(key)) return found;
  return base_ ? base_->find(key) : std::nullopt;
}

ConfigNode Settings::at(const std::string& key) const {
  if (auto found = find(key)) return *found;
  return said_.at(key);
}

std::int64_t bounded(const ConfigNode& node, std::int64_t least, std::int64_t most) {
  const std::int64_t value = node.as_int_at_least(least);
  if (value > most) throw node.error(text("found ", value), text("at most ", most));
  return value;
}

std::int64_t Settings::counted(const std::string& key, std::int64_t least, std::optional<std::int64_t> fallback) const {
  std::int64_t value = fallback.value_or(1);
  problems_.attempt([&] {
    const auto found = find(key);
    if (found || !fallback) value = bounded(found ? *found : said_.at(key), least);
  });
  return value;
}

std::int64_t Settings::count(const std::string& key) const { return counted(key, 1, std::nullopt); }
std::int64_t Settings::count(const std::string& key, std::int64_t fallback) const { return counted(key, 1, fallback); }
std::int64_t Settings::count_or_zero(const std::string& key, std::int64_t fallback) const { return counted(key, 0, fallback); }

double Settings::real(const std::string& key, double fallback) const {
  problems_.attempt([&] {
    if (const auto found = find(key)) fallback = found->as_double();
  });
  return fallback;
}

bool Settings::flag(const std::string& key, bool fallback) const {
  problems_.attempt([&] {
    if (const auto found = find(key)) fallback = found->as_bool();
  });
  return fallback;
}

std::string Settings::choice(const std::string& key, std::initializer_list<std::string_view> valid, const std::string& fallback) const {
  std::string word = fallback;
  problems_.attempt([&] {
    if (const auto found = find(key)) word = found->as_choice(valid);
  });
  return word;
}

void Settings::require_divides(const std::string& key, std::int64_t value, const std::string& whole, std::int64_t of) const {
  if (of % value == 0) return;
  throw at(key).error(text(value, " does not divide ", whole, " ", of), text("a divisor of ", of),
                      text("nearest: ", nearest_divisor(of, value)));
}

std::vector<std::string> with_run_keys(std::vector<std::string> keys) {
  for (const char* key : {"attention", "dropout", "keeps"}) keys.emplace_back(key);
  return keys;
}

void read_run_keys(const Settings& settings, std::map<std::string, double>& dims, const std::string& keeps, double dropout) {
  dropout = settings.real("dropout", dropout);
  if (dropout < 0 || dropout >= 1) throw settings.at("dropout").error(text("found ", dropout), "a probability of at least 0 and below 1");
  if (dropout > 0) dims["dropout"] = dropout;
  // Only what was said: where nothing was, the software that runs the model decides.
  if (settings.has("attention")) dims["attention_fused"] = settings.choice("attention", {"fused", "unfused"}, {}) == "fused" ? 1 : 0;
  if (settings.choice("keeps", {"tessera", "autograd"}, keeps) == "autograd" || settings.has("keeps"))
    dims["autograd"] = settings.choice("keeps", {"tessera", "autograd"}, keeps) == "autograd" ? 1 : 0;
}

Initializer normal(double deviation) { return {"normal", deviation}; }
Initializer residual_normal(std::int64_t layers) { return normal(0.02 / std::sqrt(2.0 * static_cast<double>(layers))); }

ParameterSpec norm_weight(const std::string& name, std::int64_t extent) {
  ParameterSpec weight{name, {extent}, -1, {"ones", 0}, false, {}};
  return weight;
}

ParameterSpec bias(const std::string& name, std::int64_t extent, int split_dim) {
  ParameterSpec values{name, {extent}, split_dim, {"zeros", 0}, false, {}};
  return values;
}

void add_layer_norm(std::vector<ParameterSpec>& parameters, const std::string& name, std::int64_t extent) {
  parameters.push_back(norm_weight(name + ".weight", extent));
  parameters.push_back(bias(name + ".bias", extent));
}

void add_linear(std::vector<ParameterSpec>& parameters, const std::string& name, std::int64_t out, std::int64_t in, int split_dim,
                bool biased, Initializer init) {
  parameters.push_back({name + ".weight", {out, in}, split_dim, init, true, {}});
  if (biased) parameters.push_back(bias(name + ".bias", out, split_dim == 0 ? 0 : -1));
}

void fill_dims(std::map<std::string, double>& dims) {
  for (const char* key : {"seq", "hidden", "heads", "kv_heads", "layers"}) dims.try_emplace(key, 1.0);
  for (const char* key : {"ffn", "vocab"}) dims.try_emplace(key, 0.0);
}

}  // namespace tessera::model
