#include "cost/extrapolation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "cost/cost_model.hpp"
#include "plan/schedule/schedule.hpp"

namespace tessera::cost {
namespace {

using profile::Extent;
using profile::Range;

constexpr double kGigabit = 1e9 / 8;  // bytes

// Words of Extent::with that a plan chooses, and the part of a step that depends on them. The others are of the job.
struct Word {
  const char* word;
  const char* part;
};
constexpr Word kChosen[] = {{"recompute selective", "computed again"},
                            {"recompute full", "computed again"},
                            {"sequence parallelism", "tensor-parallel exchange"},
                            {"whole experts", "expert exchange"},
                            {"optimizer on the host", "optimizer"},
                            {"gradient exchange delayed", "gradient exchange"},
                            {"blocks of one stage cut differently", "resharding"},
                            {"devices of several kinds", "other devices"}};

const char* part_of(const std::string& word) {
  const auto found = std::find_if(std::begin(kChosen), std::end(kChosen), [&](const Word& one) { return word == one.word; });
  return found == std::end(kChosen) ? nullptr : found->part;
}

// The ends of a model are alike everywhere, and small.
bool is_end(const std::string& kind) {
  constexpr const char* kEnds[] = {"embedding",  "position_embedding", "lm_head",         "language_head",
                                   "final_norm", "projector",          "patch_embedding", "classifier"};
  return std::find(std::begin(kEnds), std::end(kEnds), kind) != std::end(kEnds);
}

void add_model(const model::ModelSpec& model, Extent& out) {
  out.add("parameters", static_cast<double>(model.parameter_count()));
  for (const model::Repeat& repeat : model.repeats) {
    const auto& dims = repeat.block.dims;
    if (is_end(repeat.block.kind)) continue;
    out.with.insert(repeat.block.kind);
    if (dims.contains("kv_lora")) out.with.insert("latent attention");
    if (dims.contains("experts") && dims.contains("expert_ffn")) out.add("expert_width", dims.at("expert_ffn"));
    if (dims.contains("heads") && dims.contains("seq")) out.add("sequence", dims.at("seq"));
  }
}

void add_links(const plan::Plan& plan, const cluster::ResourceGroup& group, int index, Extent& out) {
  std::set<int> domains;
  bool together = false;
  for (const plan::RankPlace& place : plan.ranks) {
    if (place.group != index) continue;
    together = !domains.insert(place.node / group.nodes_per_domain).second || together;
  }
  if (together) out.add("inside", group.inside.bandwidth.value / kGigabit);
  if (domains.size() > 1) out.add("network", group.network.bandwidth.value * group.adapters / group.devices_per_node / kGigabit);
}

void add_strategy(const plan::Plan& plan, const plan::Strategy& s, bool layers, double positions, Extent& out) {
  out.add("tokens", static_cast<double>(plan.samples()) / s.dp * positions / s.cp);
  if (s.tp > 1) out.add("tensor", s.tp);
  if (s.tp > 1 && s.sequence_parallel) out.with.insert("sequence parallelism");
  if (s.cp > 1) out.add(s.context == model::ContextKind::ring ? "ring" : "ulysses", s.cp);
  if (s.ep > 1) out.add("experts", s.ep);
  if (s.ep > 1 && s.tp > 1 && s.whole_experts) out.with.insert("whole experts");
  if (s.copies() > 1 && s.zero > 0) out.add(fmt::format("zero-{}", s.zero), s.sharded_over());
  if (s.copies() > s.sharded_over()) out.add("replicas", s.copies() / s.sharded_over());
  if (s.offload_optimizer) out.with.insert("optimizer on the host");
  if (layers && s.recompute != model::Recompute::none) out.with.insert(fmt::format("recompute {}", model::name_of(s.recompute)));
}

bool stands_on(const plan::Plan& plan, const plan::Stage& stage, int group) {
  return std::any_of(stage.ranks.begin(), stage.ranks.end(), [&](int rank) { return plan.ranks[rank].group == group; });
}

std::string described(const std::string& name, double value) {
  const auto of = [&](const char* form) { return fmt::format(fmt::runtime(form), fmt::format("{:.6g}", value)); };
  if (name == "devices") return of("{} devices");
  if (name == "inside") return of("links inside nodes at {} Gbit/s a device");
  if (name == "network") return of("network at {} Gbit/s a device");
  if (name == "parameters") return fmt::format("a model of {} parameters", count_text(value));
  if (name == "sequence") return of("samples of {} positions");
  if (name == "expert_width") return of("experts {} wide");
  if (name == "tokens") return of("micro-batches of {} positions on a rank");
  if (name == "tensor") return of("tensor-parallel exchange over {} ranks");
  if (name == "ring") return of("ring attention over {} ranks");
  if (name == "ulysses") return of("Ulysses attention over {} ranks");
  if (name == "experts") return of("all-to-all of experts over {} ranks");
  if (name == "replicas") return of("gradient exchange over {} replicas");
  if (name.rfind("zero-", 0) == 0) return "ZeRO-" + name.substr(5) + of(" over {} ranks");
  if (name == "chunks") return of("{} stages of the model on a rank");
  return name + of(" over {} pipeline ranks");
}

std::string described(const std::string& word) {
  if (word == "bf16" || word == "fp8" || word == "fp4") return word == "bf16" ? "matrix products in 16 bits" : "matrix products in " + word;
  return word.rfind("_layer") != std::string::npos || word.rfind("_block") != std::string::npos ? "blocks of kind " + word : word;
}

// Without its size.
std::string short_name(const std::string& name) {
  if (name == "tensor") return "tensor parallelism";
  if (name == "ring") return "ring attention";
  if (name == "ulysses") return "Ulysses attention";
  if (name == "experts") return "spread experts";
  return name.rfind("zero-", 0) == 0 ? "ZeRO-" + name.substr(5) : name;
}

std::string number_text(const std::string& name, double value) {
  return name == "parameters" ? count_text(value) : fmt::format("{:.6g}", value);
}

// What prices were fitted to, and how to speak of it.
struct Yardstick {
  const Extent& measured;
  bool own = true;  // of the device's own stack; otherwise of other accelerators
  const char* never() const { return own ? "never measured under this stack" : "never measured on any accelerator"; }
};

Extrapolation beyond(const std::string& name, double value, const Yardstick& yardstick) {
  const profile::Quantity& quantity = profile::quantity(name);
  Extrapolation out{.quantity = name, .what = described(name, value), .part = quantity.part, .given = quantity.given, .value = value};
  const auto found = yardstick.measured.ranges.find(name);
  if (found == yardstick.measured.ranges.end()) {
    out.reason = yardstick.never();
    return out;
  }
  const Range& range = found->second;
  out.measured = range;
  const std::string reach = range.least == range.most ? "at " + number_text(name, range.most)
                            : value > range.most      ? "up to " + number_text(name, range.most)
                                                      : "from " + number_text(name, range.least) + " on";
  out.reason = fmt::format("measured {}{}, {:.2g} x", reach, yardstick.own ? "" : " elsewhere", out.factor());
  if (yardstick.measured.assumed.contains(name)) out.reason += ", where that is assumed";
  return out;
}

// Of published steps rates are those of the line, of the links of a cluster what protocols leave of them.
Range widened(const std::string& name, const Range& measured) {
  constexpr double kProtocol = 1.1;
  if (name != "network" && name != "inside") return measured;
  return {measured.least / kProtocol, measured.most * kProtocol};
}

// The end of a plan's range that lies further outside of what was measured, when one does.
std::optional<double> outside(const std::string& name, const Range& asked, const Range& measured) {
  const Range same = widened(name, measured);
  if (same.holds(asked.least) && same.holds(asked.most)) return std::nullopt;
  const double above = asked.most > measured.most ? asked.most / std::max(measured.most, 1e-300) : 1;
  const double below = asked.least < measured.least ? measured.least / std::max(asked.least, 1e-300) : 1;
  return above >= below ? asked.most : asked.least;
}

// What the plan has at once, of what was measured by itself.
void compare_together(const Extent& asked, const Yardstick& yardstick, std::vector<Extrapolation>& out) {
  std::set<std::string> known;
  std::vector<std::string> names;
  for (const profile::Quantity& quantity : profile::quantities()) {
    const bool both = asked.ranges.contains(quantity.name) && yardstick.measured.ranges.contains(quantity.name);
    if (!both || !profile::is_combined(quantity.name)) continue;
    known.insert(quantity.name);
    names.push_back(short_name(quantity.name));
  }
  if (known.size() < 2 || yardstick.measured.had_together(known)) return;
  const std::string last = names.back();
  names.pop_back();
  out.push_back({.quantity = "together",
                 .what = fmt::format("{} and {} in one step", fmt::join(names, ", "), last),
                 .reason = yardstick.own ? "each was measured, never together" : "each was measured elsewhere, never together"});
}

void compare(const Extent& asked, const Yardstick& yardstick, std::vector<Extrapolation>& out) {
  for (const profile::Quantity& quantity : profile::quantities()) {
    const auto range = asked.ranges.find(quantity.name);
    if (range == asked.ranges.end()) continue;
    const auto known = yardstick.measured.ranges.find(quantity.name);
    const std::optional<double> value =
        known == yardstick.measured.ranges.end() ? std::optional(range->second.most) : outside(quantity.name, range->second, known->second);
    if (value) out.push_back(beyond(quantity.name, *value, yardstick));
  }
  for (const std::string& word : asked.with) {
    if (yardstick.measured.with.contains(word)) continue;
    const char* part = part_of(word);
    out.push_back({.quantity = word,
                   .what = described(word),
                   .part = part == nullptr ? "" : part,
                   .given = part == nullptr,
                   .reason = yardstick.never()});
  }
  compare_together(asked, yardstick, out);
}

std::set<int> calibrated_groups(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  std::set<int> out;
  for (const plan::RankPlace& place : plan.ranks)
    if (CostModel::calibrated(cluster.groups[place.group].device, plan.precision)) out.insert(place.group);
  return out;
}

}  // namespace

Extent extent_of(const plan::Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster, int group,
                 std::optional<profile::Format> format) {
  Extent out;
  out.add("devices", plan.world_size());
  add_links(plan, cluster.groups[group], group, out);
  add_model(model, out);
  out.with.insert(profile::name_of(format.value_or(plan.precision == model::Precision::f8 ? profile::Format::fp8 : profile::Format::bf16)));
  const std::vector<model::BlockInstance> blocks = model.blocks();
  const auto positions = static_cast<double>(std::max<std::int64_t>(1, model.dim("seq")));
  for (const plan::Stage& stage : plan.stages) {
    if (!stands_on(plan, stage, group)) continue;
    for (std::size_t i = 0; i < stage.runs.size(); ++i) {
      const plan::StrategyRun& run = stage.runs[i];
      const bool layers = std::any_of(blocks.begin() + run.first, blocks.begin() + run.last,
                                      [](const model::BlockInstance& block) { return !is_end(block.spec->kind); });
      add_strategy(plan, run.strategy, layers, positions, out);
      if (i > 0 && !run.strategy.same_layout(stage.runs[i - 1].strategy)) out.with.insert("blocks of one stage cut differently");
    }
  }
  if (const plan::Pipeline pipeline = pipeline_of(plan); pipeline.size > 1) {
    out.add(plan::name_of(plan.schedule), pipeline.size);
    if (plan.schedule == plan::Schedule::interleaved) out.add("chunks", pipeline.chunks);
  }
  if (plan.delayed_exchange) out.with.insert("gradient exchange delayed");
  const bool several =
      std::any_of(plan.ranks.begin(), plan.ranks.end(), [&](const plan::RankPlace& place) { return place.group != group; });
  if (several) out.with.insert("devices of several kinds");
  out.combine();
  return out;
}

double Extrapolation::factor() const {
  if (!measured || value == 0) return 0;
  return value > measured->most ? value / measured->most : value / measured->least;
}

std::string to_text(const Extrapolation& extrapolation) { return fmt::format("{} ({})", extrapolation.what, extrapolation.reason); }

std::vector<Extrapolation> extrapolated(const plan::Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster) {
  std::vector<Extrapolation> out;
  const std::set<int> groups = calibrated_groups(plan, cluster);
  for (const int index : groups) {
    const cluster::ResourceGroup& group = cluster.groups[index];
    const profile::Calibration calibration = calibration_of(group);
    const bool own = calibration.measured != nullptr;
    std::vector<Extrapolation> found;
    if (!own)
      found.push_back({.what = text("all times on ", group.device.name),
                       .given = true,
                       .reason = calibration.name.empty() ? "no step of it was measured: data sheets and usual shares of them"
                                                          : text("the calibration ", calibration.name, " does not say what was measured")});
    compare(extent_of(plan, model, cluster, index), {own ? *calibration.measured : profile::measured_anywhere(), own}, found);
    for (Extrapolation& one : found) {
      if (groups.size() > 1 && !one.quantity.empty()) one.what = text("on ", group.name, ": ", one.what);
      out.push_back(std::move(one));
    }
  }
  return out;
}

bool has_measured_steps(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  const std::set<int> groups = calibrated_groups(plan, cluster);
  return std::all_of(groups.begin(), groups.end(), [&](int group) { return calibration_of(cluster.groups[group]).measured != nullptr; });
}

bool within_measured(const plan::Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster) {
  if (calibrated_groups(plan, cluster).empty()) return false;
  const std::vector<Extrapolation> all = extrapolated(plan, model, cluster);
  return std::all_of(all.begin(), all.end(), [](const Extrapolation& one) { return one.given; });
}

}  // namespace tessera::cost
