#include <algorithm>
#include <filesystem>

#include "base/error.hpp"
#include "cost/cost_model.hpp"

namespace tessera::cost {

profile::Calibration calibration_of(const cluster::ResourceGroup& group) {
  if (std::filesystem::path(group.stack).extension() == ".yaml") {
    const profile::Calibration own = profile::read_calibration(ConfigNode::load(group.stack));
    const std::string family = profile::family_of(group.device.name);
    if (own.accelerator == family) return own;
    throw Error(ErrorCode::invalid_config,
                text("group ", group.name, " is of ", group.device.name, ", and ", group.stack, " calibrates ", own.accelerator),
                group.stack_where, text("a calibration of ", family));
  }
  const std::vector<std::string> stacks = profile::stacks_of(group.device.name);
  if (group.stack.empty() || std::find(stacks.begin(), stacks.end(), group.stack) != stacks.end())
    return profile::calibration_for(group.device.name, group.stack);
  std::string names;
  for (const std::string& stack : stacks) names += (names.empty() ? "" : ", ") + stack;
  const auto guess = nearest(group.stack, stacks);
  throw Error(ErrorCode::invalid_config,
              text("group ", group.name, ": nothing has been calibrated for ", group.device.name, " under the stack '", group.stack, "'"),
              group.stack_where, names.empty() ? "no stack" : "one of " + names, guess ? "did you mean '" + *guess + "'?" : std::string());
}

}  // namespace tessera::cost
