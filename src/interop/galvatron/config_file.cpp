#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/config.hpp"
#include "interop/galvatron/space.hpp"

namespace tessera::interop::galvatron {
namespace {

// "1,1,0": how Galvatron writes lists, of flags too.
template <typename Values, typename Function>
std::string list_of(const Values& values, const Function& number) {
  std::string out;
  for (const auto& value : values) out += (out.empty() ? "" : ",") + std::to_string(number(value));
  return out;
}

std::vector<int> read_list(const ConfigNode& node) {
  std::vector<int> out;
  const std::string word = node.as_string();
  for (std::size_t from = 0; from <= word.size();) {
    const std::size_t comma = std::min(word.find(',', from), word.size());
    const std::string part = word.substr(from, comma - from);
    if (part.empty() || part.size() > 6 || part.find_first_not_of("0123456789") != std::string::npos)
      throw node.error("found '" + part + "' in a list", "integers with commas between them");
    out.push_back(std::stoi(part));
    from = comma + 1;
  }
  return out;
}

int read_int(const ConfigNode& root, const char* key, int least) { return static_cast<int>(root.at(key).as_int_at_least(least)); }

}  // namespace

std::string to_config(const Inputs& inputs, const Plan& plan) {
  const Settings& settings = inputs.settings;
  nlohmann::ordered_json out;
  out["pp_deg"] = plan.division.size();
  out["tp_sizes_enc"] = list_of(plan.layers, [](const Strategy& layer) { return layer.split(); });
  out["tp_consecutive_flags"] = list_of(plan.layers, [](const Strategy& layer) { return !layer.apart; });
  out["dp_types_enc"] = list_of(plan.layers, [](const Strategy& layer) { return layer.sharding == Sharding::zero3; });
  out["use_sp"] = list_of(plan.layers, [](const Strategy& layer) { return layer.sp > 1; });
  // Galvatron's own files leave context parallelism out when there is none.
  const bool context = plan.embedding.cp > 1 || std::ranges::any_of(plan.layers, [](const Strategy& layer) { return layer.cp > 1; });
  if (context) out["cp_sizes_enc"] = list_of(plan.layers, [](const Strategy& layer) { return layer.cp; });
  out["checkpoint"] = list_of(plan.layers, [](const Strategy& layer) { return layer.checkpoint; });
  out["world_size"] = settings.devices();
  out["global_bsz"] = plan.global_batch;
  out["chunks"] = plan.chunks;
  out["pp_division"] = list_of(plan.division, [](int layers) { return layers; });
  out["pipeline_type"] = settings.pipedream_flush ? "pipedream_flush" : "gpipe";
  out["default_dp_type"] = settings.default_dp_type;
  out["vtp"] = plan.embedding.split();
  out["vsp"] = int{plan.embedding.sp > 1};
  if (context) out["vcp"] = plan.embedding.cp;
  out["embed_sdp"] = int{plan.embedding.sharding == Sharding::zero3};
  return out.dump(4);
}

std::string config_name(const Settings& settings) {
  std::string off;
  const auto add = [&](bool disabled, const char* name) {
    if (disabled) off += (off.empty() ? "" : "_") + std::string(name);
  };
  add(settings.no_dp, "dp");
  add(settings.no_tp, "tp");
  add(settings.no_pp, "pp");
  add(settings.no_zero3, "fsdp");
  add(settings.no_checkpoint, "ckpt");
  return text("galvatron_config_", settings.model, "_", settings.nodes, "nodes_", settings.devices_per_node, "gpus_per_node_",
              settings.memory_gb, "GB_", settings.mixed_precision, settings.settled_batch ? text("_bsz", *settings.settled_batch) : "",
              off.empty() ? "" : "_[" + off + "_off]", ".json");
}

Plan read_config(const std::filesystem::path& path, int devices) {
  const ConfigNode root = ConfigNode::load(path);
  // 2.4.0 does not write the number of devices.
  const int pp = read_int(root, "pp_deg", 1), world = root.has("world_size") ? read_int(root, "world_size", 1) : devices;
  const bool zero2_by_default = root.at("default_dp_type").as_choice({"ddp", "zero2", "zero3"}) != "ddp";
  Plan plan{read_int(root, "global_bsz", 1), read_int(root, "chunks", 1), read_list(root.at("pp_division")), {}, {}, 0};
  if (static_cast<int>(plan.division.size()) != pp)
    throw root.at("pp_division").error(text("divides into ", plan.division.size(), " stages"), text(pp, " numbers, as pp_deg says"));
  const std::vector<int> splits = read_list(root.at("tp_sizes_enc"));
  const auto same_length = [&](const char* key, bool optional, int fallback) {
    if (optional && !root.has(key)) return std::vector<int>(splits.size(), fallback);
    std::vector<int> values = read_list(root.at(key));
    if (values.size() != splits.size())
      throw root.at(key).error(text("holds ", values.size(), " layers"), text(splits.size(), " as tp_sizes_enc does"));
    return values;
  };
  const std::vector<int> ulysses = same_length("use_sp", true, 0), zero3 = same_length("dp_types_enc", false, 0),
                         contexts = same_length("cp_sizes_enc", true, 1), checkpoints = same_length("checkpoint", false, 0),
                         adjacent = same_length("tp_consecutive_flags", true, 1);
  const auto make = [&](const ConfigNode& where, int split, bool sp, int cp, bool sharded, bool checkpoint) {
    if (split < 1 || cp < 1 || world % (pp * split * cp) != 0)
      throw where.error(text(pp, " x ", split, " x ", cp, " does not divide ", world, " devices"), "degrees that divide world_size");
    const int dp = world / pp / split / cp;
    return Strategy{pp, sp ? 1 : split, sp ? split : 1, cp, dp, sharding_of(zero2_by_default, sharded, dp), checkpoint, false};
  };
  for (std::size_t i = 0; i < splits.size(); ++i) {
    plan.layers.push_back(make(root.at("tp_sizes_enc"), splits[i], ulysses[i] == 1, contexts[i], zero3[i] == 1, checkpoints[i] == 1));
    plan.layers.back().apart = adjacent[i] == 0;
  }
  plan.embedding = make(root.at("vtp"), read_int(root, "vtp", 1), read_int(root, "vsp", 0) == 1,
                        root.has("vcp") ? read_int(root, "vcp", 1) : 1, read_int(root, "embed_sdp", 0) == 1, false);
  return plan;
}

}  // namespace tessera::interop::galvatron
