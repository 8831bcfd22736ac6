#include "cli/plan_write.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "interop/flags.hpp"

namespace tessera::cli {
namespace {

struct System {
  const char* name;
  void (*check_model)(const model::ModelSpec&);
  std::string (*express)(const plan::Plan&, const model::ModelSpec&, const model::TrainSpec&);
};

constexpr System kSystems[] = {{"megatron", interop::check_megatron_model, interop::megatron_flags},
                               {"torchtitan", interop::check_torchtitan_model, interop::torchtitan_toml}};

const System& system_of(const std::string& name) {
  const auto* found = std::find_if(std::begin(kSystems), std::end(kSystems), [&](const System& system) { return system.name == name; });
  if (found == std::end(kSystems))
    throw Error(ErrorCode::invalid_config, text("--write ", name, ": no such system"), {}, "megatron or torchtitan");
  return *found;
}

}  // namespace

void check_writes(const Writes& writes, const model::ModelSpec& model) {
  for (const auto& [name, file] : writes) {
    system_of(name).check_model(model);
    check_can_write(file);
  }
}

std::vector<Written> write_for_others(const Writes& writes, const std::vector<std::pair<std::string, const plan::Plan*>>& plans,
                                      const model::JobSpec& job) {
  std::vector<std::string> texts;
  std::vector<Written> out;
  for (const auto& [name, file] : writes) {
    const System& system = system_of(name);
    std::optional<Error> refusal;
    bool expressed = false;
    for (std::size_t i = 0; i < plans.size() && !expressed; ++i) {
      try {
        texts.push_back(system.express(*plans[i].second, job.model, job.train));
        const bool first = i == 0;
        out.push_back({name, file, first ? "" : plans[i].first,
                       first ? 0 : plans[i].second->predicted->step / plans.front().second->predicted->step - 1});
        expressed = true;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::invalid_config) throw;
        if (!refusal) refusal = error;
      }
    }
    if (!expressed) throw *refusal;
  }
  for (std::size_t i = 0; i < texts.size(); ++i) write_named(writes[i].second, texts[i]);
  return out;
}

nlohmann::ordered_json to_json(const std::vector<Written>& written) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const Written& one : written) out[one.system] = one.file;
  return out;
}

std::string to_text(const std::vector<Written>& written) {
  std::string out;
  for (const Written& one : written) {
    out += text("written for ", one.system, " to ", one.file);
    if (!one.family.empty())
      out += fmt::format(": the fastest of these plans that it can run ({}, {:.1f} % slower)", one.family, 100 * one.slower);
    out += "\n";
  }
  return out;
}

}  // namespace tessera::cli
