// Internal to the compiler: parameters that several blocks share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/model.hpp"

namespace tessera::program {

// A parameter that more than one block holds.
struct Tie {
  std::string name;
  std::vector<int> blocks;  // its owner first, then the copies in model order
};

// Of a whole model.
class Ties {
 public:
  explicit Ties(const std::vector<model::BlockInstance>& blocks);
  // nullptr where no other block holds the parameter.
  const Tie* of(const model::BlockInstance& block, const model::ParameterSpec& parameter) const;

 private:
  std::map<std::string, Tie> ties_;  // by the owner's name of the parameter
};

}  // namespace tessera::program
