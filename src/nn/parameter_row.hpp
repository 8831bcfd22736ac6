// Internal: hands a block's parameters to its parts, in the order of the spec.
#pragma once

#include <span>

#include "nn/block.hpp"

namespace tessera::nn {

// Takes parameters off the front of those of a block.
class ParameterRow {
 public:
  explicit ParameterRow(std::span<const Parameter> parameters) : rest_(parameters) {}
  // Throws internal when there are fewer.
  std::span<const Parameter> take(std::size_t count);
  bool empty() const { return rest_.empty(); }

 private:
  std::span<const Parameter> rest_;
};

// Whether the spec's dimensions have `key`, and not as 0.
bool has(const model::BlockSpec& spec, const char* key);

}  // namespace tessera::nn
