#include <algorithm>

#include "base/problems.hpp"
#include "model/servers_section.hpp"

namespace tessera::model {
namespace {

constexpr double kMost = 1e9;
constexpr std::int64_t kMostPeriods = 1'000'000'000;

auto number(double least, double most) {
  return [least, most](const ConfigNode& node) {
    const double value = node.as_double();
    if (!(value >= least && value <= most)) throw node.error(text("found ", value), text("a number from ", least, " to ", most));
    return value;
  };
}

double share(const ConfigNode& node) {
  const double value = node.as_double();
  if (!(value > 0 && value <= 1)) throw node.error(text("found ", value), "more than 0, 1 at most");
  return value;
}

int periods(const ConfigNode& node) { return static_cast<int>(node.as_int_between(1, kMostPeriods)); }

void read_admission(const ConfigNode& node, Section& section, AdmissionSpec& admission) {
  constexpr std::int64_t kMostCount = 15;
  section.read("after", admission.after, [](const ConfigNode& after) { return after.as_int_between(1, kMostCount); });
  section.read("probability", admission.probability, share);
  section.attempt([&] {
    if (node.has("after") && node.has("probability"))
      throw node.at("probability").error("a key is admitted by its count, and by chance", "after or probability");
  });
}

AdmissionSpec read_table_admission(const ConfigNode& node) {
  AdmissionSpec admission;
  Section section(node, {"after", "probability"});
  read_admission(node, section, admission);
  section.finish();
  return admission;
}

EvictionSpec read_eviction(const ConfigNode& node) {
  EvictionSpec eviction;
  Section section(node, {"unseen", "below"});
  section.read("unseen", eviction.unseen, periods);
  section.read("below", eviction.below, number(0, kMost));
  section.finish();
  return eviction;
}

std::vector<GrowthStepSpec> read_growth(const ConfigNode& node) {
  constexpr std::int64_t kMostDimension = 65536;
  std::vector<GrowthStepSpec> growth;
  for (const ConfigNode& item : node.items()) {
    GrowthStepSpec step;
    Section section(item, {"seen", "dimension"});
    section.need("seen", step.seen, number(0, kMost));
    section.need("dimension", step.dimension, [](const ConfigNode& values) { return values.as_int_between(1, kMostDimension); });
    section.finish();
    if (growth.empty() && step.seen != 0) throw item.error("the first step begins later", "seen: 0");
    if (!growth.empty() && (step.seen <= growth.back().seen || step.dimension <= growth.back().dimension))
      throw item.error("seen and dimension do not rise", "more of both with each step");
    growth.push_back(step);
  }
  if (growth.empty()) throw node.error("the list is empty", "steps such as {seen: 0, dimension: 4}");
  return growth;
}

std::vector<int> read_tables_of(const ConfigNode& node) {
  constexpr std::int64_t kMostTable = (1 << 15) - 1;
  std::vector<int> tables;
  for (const ConfigNode& item : node.items()) tables.push_back(static_cast<int>(item.as_int_between(0, kMostTable)));
  if (tables.empty()) throw node.error("the list is empty", "numbers of tables, from 0");
  return tables;
}

std::vector<TableLifecycleSpec> read_tables(const ConfigNode& node) {
  std::vector<TableLifecycleSpec> all;
  std::vector<int> seen;
  for (const ConfigNode& item : node.items()) {
    TableLifecycleSpec& one = all.emplace_back();
    one.where = item.where();
    Section section(item, {"tables", "lr_scale", "admission", "eviction", "growth"});
    section.need("tables", one.tables, read_tables_of);
    section.read("lr_scale", one.lr_scale, number(1e-6, 1e6));
    section.read("admission", one.admission, read_table_admission);
    section.read("eviction", one.eviction, read_eviction);
    section.read("growth", one.growth, read_growth);
    section.finish();
    for (const int table : one.tables) {
      if (std::ranges::find(seen, table) != seen.end()) throw item.error(text("table ", table, " stands twice"), "each table once");
      seen.push_back(table);
    }
  }
  return all;
}

}  // namespace

LifecycleSpec read_lifecycle(const ConfigNode& node) {
  LifecycleSpec lifecycle;
  Section section(node, {"period", "decay", "click_weight", "unclicked_weight", "admission", "eviction", "growth", "tables"});
  section.need("period", lifecycle.period, [](const ConfigNode& period) { return period.as_int_between(1, kMostPeriods); });
  section.read("decay", lifecycle.decay, share);
  section.read("click_weight", lifecycle.click_weight, number(0, kMost));
  section.read("unclicked_weight", lifecycle.unclicked_weight, number(0, kMost));
  section.attempt([&] {
    const auto admission = node.find("admission");
    if (!admission) return;
    constexpr std::int64_t kMostWaiting = 1'000'000'000;
    Section inner(*admission, {"after", "probability", "waiting_keys", "forget_after"});
    read_admission(*admission, inner, lifecycle.admission);
    inner.read("waiting_keys", lifecycle.waiting_keys, [](const ConfigNode& keys) { return keys.as_int_between(1, kMostWaiting); });
    inner.read("forget_after", lifecycle.forget_after, periods);
    inner.finish();
  });
  section.read("eviction", lifecycle.eviction, read_eviction);
  section.read("growth", lifecycle.growth, read_growth);
  section.read("tables", lifecycle.tables, read_tables);
  section.finish();
  return lifecycle;
}

}  // namespace tessera::model
