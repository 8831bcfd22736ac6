// Internal to the compiler: parameters that several blocks share.
#pragma once

#include <map>
#include <string>
#include <vector>

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
  explicit Ties(const std::vector<model::BlockInstance>& blocks);
  // nullptr where no other block holds the parameter.
  const Tie* of(const model::BlockInstance& block, const model::ParameterSpec& parameter) const;

 private:
  std::map<std::string, Tie> ties_;  // by the owner's name of the parameter
};

}  // namespace tessera::program
