#include "nn/parameter_row.hpp"

namespace tessera::nn {

std::span<const Parameter> ParameterRow::take(std::size_t count) {
  ensure(rest_.size() >= count, "a block lacks parameters that its dimensions ask for");
  const auto taken = rest_.first(count);
  rest_ = rest_.subspan(count);
  return taken;
}

bool has(const model::BlockSpec& spec, const char* key) {
  const auto found = spec.dims.find(key);
  return found != spec.dims.end() && found->second != 0;
}

}  // namespace tessera::nn
