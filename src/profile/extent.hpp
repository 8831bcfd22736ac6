// How far measured steps reach: for each quantity that a price depends on, the range of its values among them.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/config.hpp"

namespace tessera::profile {

struct Range {
  double least = 0;
  double most = 0;
  bool holds(double value) const { return least <= value && value <= most; }
  // Around both.
  static Range around(const Range& a, const Range& b);
  bool operator==(const Range&) const = default;
};

// One quantity of a plan. A plan has those that its step takes time for: one without tensor parallelism has no "tensor".
struct Quantity {
  const char* name;  // in calibration files
  const char* part;  // of a step (plan::Prediction::parts) that depends on it most; empty: all of it
  // Every plan of a job on its cluster has the same: the search has no choice of it.
  bool given;
};
// In the order in which people read them.
const std::vector<Quantity>& quantities();
// Whether it matters for the step what else a plan has: exchanges and schedules, which hide behind one another or get in each other's way.
bool is_combined(const std::string& quantity);
// Throws internal for other names.
const Quantity& quantity(const std::string& name);

// The extent of one plan or of several. For one plan each range is one value, or the values of its blocks; for several, it spans them all.
struct Extent {
  std::map<std::string, Range> ranges;  // by the name of a quantity
  std::set<std::string> with;           // what there is or is not: "bf16", "moe_layer", "recompute full"
  // Quantities that have an exchange or a schedule (is_combined), by name: those that one step had at once, two or more. Sets that another
  // one holds are left out.
  std::set<std::set<std::string>> together;
  std::set<std::string> assumed;  // quantities, or words of `with`, that no source states: they are as it was priced

  bool empty() const { return ranges.empty() && with.empty(); }
  void add(const std::string& quantity, double value);
  // Sets `together` to what one plan has.
  void combine();
  // Whether one step had all of these.
  bool had_together(const std::set<std::string>& quantities) const;
  // Grows to hold the other. What is assumed in both stays so; a range is around stated values alone where there are any.
  void add(const Extent& other);
  bool operator==(const Extent&) const = default;
};

// The map below `measured:` of a calibration. Throws invalid_config for quantities that do not exist and ranges that are none.
Extent read_extent(const ConfigNode& node);
// Lines of YAML, each indented by two blanks.
std::string to_yaml(const Extent& extent);

}  // namespace tessera::profile
