#include "calibrate/calibrate.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"
#include "calibrate/extent.hpp"
#include "calibrate/fit.hpp"

namespace tessera::calibrate {

profile::Calibration start_of(const std::string& accelerator, profile::AttentionKernel attention) {
  profile::Calibration out;
  out.accelerator = accelerator;
  out.attention = attention;
  out.layer_host = 5e-4;
  out.router_host = 3e-4;
  return out;
}

std::vector<std::string> parameters_for(const std::vector<const Row*>& rows) {
  const auto any = [&](const auto& of) { return std::any_of(rows.begin(), rows.end(), [&](const Row* row) { return of(*row); }); };
  std::vector<std::string> out = {"attention_share", "memory", "layer_host", "inside"};
  const auto add = [&](bool wanted, const char* name) {
    if (wanted) out.emplace_back(name);
  };
  add(any([](const Row& row) { return row.precision != model::Precision::f8; }), "matmul");
  add(any([](const Row& row) { return row.precision == model::Precision::f8 && !row.stack.format; }), "matmul_fp8");
  add(any([](const Row& row) { return row.stack.format.has_value(); }), "matmul_fp4");
  add(any([](const Row& row) { return row.degrees.ranks() > row.group.domain(); }), "network");
  add(any([](const Row& row) { return row.degrees.strategy.zero > 0 && row.degrees.strategy.copies() > row.group.domain(); }),
      "rank_latency");
  add(any([](const Row& row) { return row.has_experts(); }), "grouped_half");
  add(any([](const Row& row) { return row.has_experts(); }), "router_host");
  return out;
}

namespace {

// What an exchange runs beside is a property of the software and no number that could be fitted: all of it, the gradients' exchanges alone,
// or nothing. The first counts among equals.
std::vector<profile::Overlaps> candidates() {
  return {{.products = true, .weight_gradients = true, .shared_experts = true, .all_to_alls = true, .state = true, .messages = true},
          {.weight_gradients = true, .state = true},
          {}};
}

}  // namespace

profile::Calibration calibrated(const std::string& name, profile::AttentionKernel attention, const std::vector<const Row*>& rows) {
  if (rows.empty()) throw Error(ErrorCode::invalid_config, "no row that can be priced", {}, "at least one, better three of unlike plans");
  const std::string family = profile::family_of(rows.front()->group.device.name);
  for (const Row* row : rows)
    if (profile::family_of(row->group.device.name) != family)
      throw Error(
          ErrorCode::invalid_config,
          text("row ", rows.front()->number, " is of ", family, ", row ", row->number, " of ", profile::family_of(row->group.device.name)),
          {}, "rows of one accelerator: a stack is calibrated for each by itself");
  profile::Calibration start = start_of(family, attention);
  start.stack = name;
  start.name = family + "/" + name;
  const std::vector<std::string> parameters = parameters_for(rows);
  profile::Calibration best;
  double least = std::numeric_limits<double>::infinity();
  for (const profile::Overlaps& overlaps : candidates()) {
    start.overlaps = overlaps;
    profile::Calibration made = fitted(start, parameters, rows);
    const double error = misfit(start, made, parameters, rows);
    if (error >= least) continue;
    least = error;
    best = std::move(made);
  }
  best.measured = std::make_shared<const profile::Extent>(extent_of(rows));
  return best;
}

}  // namespace tessera::calibrate
