#include "base/problems.hpp"

#include <algorithm>

namespace tessera {

void Problems::keep(const Error& problem) {
  for (const Error& each : problem.each()) {
    const bool known = std::any_of(kept_.begin(), kept_.end(), [&](const Error& kept) { return kept.message() == each.message(); });
    if (!known && kept_.size() < kMost) kept_.push_back(each);
  }
}

void Problems::raise() const {
  if (kept_.empty()) return;
  std::vector<Error> sorted = kept_;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Error& a, const Error& b) {
    return std::pair(a.where().line, a.where().column) < std::pair(b.where().line, b.where().column);
  });
  throw Error(std::move(sorted));
}

Section::Section(const ConfigNode& node, std::initializer_list<std::string_view> keys) : node_(node) {
  if (!node.is_map()) node.allow_only(keys);
  problems_.attempt([&] { node.allow_only(keys); });
}

}  // namespace tessera
