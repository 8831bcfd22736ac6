// Hetu-Galvatron's inputs and its answer file.
#include <cctype>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/config.hpp"
#include "base/folders.hpp"
#include "base/temporary_folder.hpp"
#include "fuzz/checks.hpp"
#include "interop/galvatron/galvatron.hpp"

namespace tessera::fuzz {
namespace {

namespace galvatron = interop::galvatron;

constexpr const char* kFiles[] = {"search_dist.yaml",
                                  "llama2-7b.yaml",
                                  "computation_profiling_bf16_llama2-7b_all.json",
                                  "memory_profiling_bf16_llama2-7b_all.json",
                                  "allreduce_bandwidth_1nodes_8gpus_per_node.json",
                                  "p2p_bandwidth_1nodes_8gpus_per_node.json",
                                  "sp_time_1nodes_8gpus_per_node.json",
                                  "overlap_coefficient.json"};

std::filesystem::path inputs_folder() { return std::filesystem::path(kSourceFolder) / "bench/planner/inputs"; }

// All files as one map, without the raw measurements ("1_1_8_sp", "layernum[2]_bsz1_seq2048") that a search passes over.
std::string bundle(const std::string& time_profile_mode) {
  nlohmann::ordered_json out;
  for (const char* name : kFiles) {
    ConfigNode file = ConfigNode::load(inputs_folder() / name);
    if (std::string_view(name) == kFiles[0])
      file = file.with_override("SEQ_LENGTH", "2048").with_override("search_engine.profiling_info.time_profile_mode", time_profile_mode);
    const auto whole = nlohmann::ordered_json::parse(file.to_json());
    for (const auto& [key, value] : whole.items())
      if (!key.starts_with("layernum[") && !(std::isdigit(static_cast<unsigned char>(key[0])) && value.is_object())) out[name][key] = value;
  }
  return out.dump();
}

}  // namespace

Target galvatron_target() {
  Target target;
  // Files that are not there, as well.
  target.refusals = {ErrorCode::invalid_config, ErrorCode::not_found};
  target.seeds = {bundle("batch"), bundle("static")};
  target.short_run = 400;
  target.read = [folder = std::make_shared<TemporaryFolder>()](const std::string& input) {
    const ConfigNode files = ConfigNode::parse(input, "bundle.json");
    for (const char* name : kFiles) folder->write(name, files.at(name).to_json());
    const galvatron::Inputs inputs = galvatron::read_inputs(*folder / kFiles[0], {});
    if (inputs.settings.nodes < 1 || inputs.settings.devices_per_node < 1 || inputs.settings.layers < 1)
      throw Defect("settings that are no cluster and no model");
  };
  return target;
}

Target galvatron_plan_target() {
  const auto inputs = std::make_shared<galvatron::Inputs>(galvatron::read_inputs(
      inputs_folder() / "search_dist.yaml", {"SEQ_LENGTH=2048", "search_engine.profiling_info.time_profile_mode=static"}));
  Target target;
  target.seeds = {galvatron::to_config(*inputs, galvatron::search(*inputs).plan)};
  target.read = [inputs, folder = std::make_shared<TemporaryFolder>()](const std::string& input) {
    const auto path = folder->write("plan.json", input);
    const galvatron::Plan plan = galvatron::read_config(path, inputs->settings.devices());
    const galvatron::PlanCost cost = galvatron::cost_of(*inputs, plan);
    if (!(cost.step.value > 0)) throw Defect(text("a step of ", cost.step.value, " s"));
  };
  return target;
}

}  // namespace tessera::fuzz
