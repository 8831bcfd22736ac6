// Internal to the compiler: parameters that several blocks share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "model/model.hpp"

namespace tessera::program {

// A parameter that more than one block holds, such as the weights that embedding and head share.
struct Tie {
  std::string name;
  std::vector<int> blocks;  // its owner first, then the copies in model order
};

// The tied parameters of a model.
class Ties {
 public:
  explicit Ties(const std::vector<model::BlockInstance>& blocks) {
    for (const auto& block : blocks)
      for (const auto& parameter : block.spec->parameters)
        if (!parameter.tied_to.empty())
          ties_.try_emplace(parameter.tied_to, Tie{parameter.tied_to, {-1}}).first->second.blocks.push_back(block.index);
    if (ties_.empty()) return;
    for (const auto& block : blocks)
      for (const auto& parameter : block.spec->parameters)
        if (const auto tie = ties_.find(block.parameter_name(parameter)); tie != ties_.end() && parameter.tied_to.empty())
          tie->second.blocks.front() = block.index;
    for (const auto& [name, tie] : ties_)
      if (tie.blocks.front() < 0) throw Error(ErrorCode::internal, "no block owns the tied parameter " + name);
  }

  // nullptr where no other block holds the parameter.
  const Tie* of(const model::BlockInstance& block, const model::ParameterSpec& parameter) const {
    if (ties_.empty()) return nullptr;
    const auto tie = ties_.find(parameter.tied_to.empty() ? block.parameter_name(parameter) : parameter.tied_to);
    return tie == ties_.end() ? nullptr : &tie->second;
  }

 private:
  std::map<std::string, Tie> ties_;  // by the owner's name of the parameter
};

}  // namespace tessera::program
