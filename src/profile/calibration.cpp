#include "profile/calibration.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <sstream>

#include "profile/quoted.hpp"

namespace tessera::profile {
namespace {

struct Entry {
  const char* name;
  double Calibration::*value;
};

struct OverlapName {
  const char* name;
  bool Overlaps::*value;
};

constexpr OverlapName kOverlaps[] = {{"products", &Overlaps::products},
                                     {"weight_gradients", &Overlaps::weight_gradients},
                                     {"shared_experts", &Overlaps::shared_experts},
                                     {"all_to_alls", &Overlaps::all_to_alls},
                                     {"state", &Overlaps::state},
                                     {"messages", &Overlaps::messages}};

constexpr Entry kParameters[] = {
    {"matmul", &Calibration::matmul},
    {"matmul_fp8", &Calibration::matmul_fp8},
    {"matmul_fp4", &Calibration::matmul_fp4},
    {"depth_half", &Calibration::depth_half},
    {"grouped_half", &Calibration::grouped_half},
    {"attention_share", &Calibration::attention_share},
    {"memory", &Calibration::memory},
    {"launch", &Calibration::launch},
    {"cast", &Calibration::cast},
    {"row_scales", &Calibration::row_scales},
    {"unfused", &Calibration::unfused},
    {"optimizer_bytes", &Calibration::optimizer_bytes},
    {"inside", &Calibration::inside},
    {"network", &Calibration::network},
    {"latency", &Calibration::latency},
    {"rank_latency", &Calibration::rank_latency},
    {"overlap_slowdown", &Calibration::overlap_slowdown},
    {"weight_pass_bubble", &Calibration::weight_pass_bubble},
    {"layer_host", &Calibration::layer_host},
    {"router_host", &Calibration::router_host},
    {"micro_batch_host", &Calibration::micro_batch_host},
    {"step_host", &Calibration::step_host},
};

std::string number(double value) {
  std::ostringstream out;
  out.precision(6);
  out << value;
  return out.str();
}

}  // namespace

const char* name_of(AttentionKernel kernel) { return kernel == AttentionKernel::unfused ? "unfused" : "fused"; }

double* parameter(Calibration& calibration, const std::string& name) {
  for (const Entry& entry : kParameters)
    if (name == entry.name) return &(calibration.*entry.value);
  return nullptr;
}

const std::vector<std::string>& parameter_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Entry& entry : kParameters) out.emplace_back(entry.name);
    return out;
  }();
  return names;
}

namespace {

// What times are divided by.
bool is_rate(const std::string& name) {
  constexpr const char* kRates[] = {"matmul", "matmul_fp8", "matmul_fp4", "attention_share", "memory", "inside", "network"};
  return std::find(std::begin(kRates), std::end(kRates), name) != std::end(kRates);
}
constexpr double kLeastShare = 1e-6;
constexpr double kMostParameter = 1e6;

}  // namespace

Calibration read_calibration(const ConfigNode& node) {
  node.allow_only({"name", "accelerator", "stack", "fitted_on", "attention", "overlaps", "vector_fallback", "parameters", "measured"});
  Calibration calibration;
  calibration.name = node.at("name").as_string();
  calibration.accelerator = node.at("accelerator").as_string();
  calibration.stack = node.at("stack").as_string();
  if (const auto rows = node.find("fitted_on"))
    for (const ConfigNode& row : rows->items()) calibration.fitted_on.push_back(row.as_string());
  if (const auto measured = node.find("measured")) calibration.measured = std::make_shared<const Extent>(read_extent(*measured));
  if (const auto kernel = node.find("attention"))
    calibration.attention = kernel->as_choice({"unfused", "fused"}) == "unfused" ? AttentionKernel::unfused : AttentionKernel::fused;
  if (const auto overlaps = node.find("overlaps"))
    for (const ConfigNode& item : overlaps->items()) {
      const std::string name = item.as_choice(
          {kOverlaps[0].name, kOverlaps[1].name, kOverlaps[2].name, kOverlaps[3].name, kOverlaps[4].name, kOverlaps[5].name});
      for (const OverlapName& overlap : kOverlaps)
        if (name == overlap.name) calibration.overlaps.*overlap.value = true;
    }
  calibration.vector_fallback = node.get("vector_fallback", true);
  if (const auto parameters = node.find("parameters")) {
    for (const std::string& key : parameters->keys()) {
      const ConfigNode value = parameters->at(key);
      double* target = parameter(calibration, key);
      if (target == nullptr) {
        const auto guess = nearest(key, parameter_names());
        throw value.error("no parameter of a calibration is called '" + key + "'", {},
                          guess ? "did you mean '" + *guess + "'?" : std::string());
      }
      *target = value.as_double();
      if (!(*target >= 0 && *target <= kMostParameter))
        throw value.error(text("found ", *target), text("a number from 0 to ", kMostParameter));
      if (is_rate(key) && *target < kLeastShare) throw value.error(text("found ", *target), text("a share of at least ", kLeastShare));
    }
  }
  return calibration;
}

std::string to_yaml(const Calibration& calibration) {
  const Calibration standard;
  std::string overlaps;
  for (const OverlapName& overlap : kOverlaps)
    if (calibration.overlaps.*overlap.value) overlaps += (overlaps.empty() ? "" : ", ") + std::string(overlap.name);
  std::string out = text("name: ", quoted(calibration.name), "\naccelerator: ", quoted(calibration.accelerator),
                         "\nstack: ", quoted(calibration.stack), "\nattention: ", name_of(calibration.attention), "\noverlaps: [", overlaps,
                         "]\nvector_fallback: ", calibration.vector_fallback ? "true" : "false", "\nparameters:\n");
  for (const Entry& entry : kParameters)
    if (calibration.*entry.value != standard.*entry.value) out += text("  ", entry.name, ": ", number(calibration.*entry.value), "\n");
  if (!calibration.fitted_on.empty()) out += "fitted_on:\n";
  for (const std::string& rows : calibration.fitted_on) out += text("  - ", quoted(rows), "\n");
  if (calibration.measured && !calibration.measured->empty()) out += "measured:\n" + to_yaml(*calibration.measured);
  return out;
}

std::string family_of(const std::string& device) {
  const auto starts = [&](const char* prefix) { return device.rfind(prefix, 0) == 0; };
  if (starts("a100") || starts("a800")) return "a100";
  if (starts("h100") || starts("h200") || starts("h800") || starts("h20") || starts("gh200")) return "h100";
  if (starts("b200") || starts("gb200")) return "b200";
  if (starts("b300") || starts("gb300")) return "b300";
  return device;
}

const Extent& measured_anywhere() {
  static const Extent all = [] {
    Extent out;
    for (const Calibration& calibration : known_calibrations())
      if (calibration.measured) out.add(*calibration.measured);
    return out;
  }();
  return all;
}

std::vector<std::string> stacks_of(const std::string& device) {
  std::vector<std::string> out;
  for (const Calibration& calibration : known_calibrations())
    if (calibration.accelerator == family_of(device)) out.push_back(calibration.stack);
  return out;
}

Calibration calibration_for(const std::string& device, const std::string& wanted) {
  // What a plan of today is priced with when nobody says how it will run.
  static const std::map<std::string, std::string> standards = {
      {"a100", "llm-foundry"}, {"h100", "megatron-bridge"}, {"b200", "megatron-bridge"}, {"b300", "megatron-bridge"}};
  const std::string family = family_of(device);
  const auto standard = standards.find(family);
  const std::string& stack = wanted.empty() && standard != standards.end() ? standard->second : wanted;
  const Calibration* first = nullptr;
  for (const Calibration& calibration : known_calibrations()) {
    if (calibration.accelerator != family) continue;
    if (calibration.stack == stack) return calibration;
    if (first == nullptr) first = &calibration;
  }
  return first != nullptr ? *first : Calibration{};
}

}  // namespace tessera::profile
