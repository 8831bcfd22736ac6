// Internal: the front of step time against memory that a search keeps when it is asked to.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/plan.hpp"
#include "search/exhausted.hpp"
#include "search/search.hpp"

namespace tessera::search {

// Plans of which none is both faster and smaller than another; smaller is by share of the limit.
class Front {
 public:
  // Whether a plan that takes at least `seconds` and needs `share` of its limit could be on it.
  bool admits(double seconds, double share) const;
  // Takes the point if it belongs, and drops those that it beats.
  void add(FrontPoint point);
  // Fastest first, at least 1 % of memory apart.
  std::vector<FrontPoint> points() const;

 private:
  std::map<double, FrontPoint> by_share_;  // the larger the share, the shorter the step
};

// `plan` has a prediction.
FrontPoint front_point(const plan::Plan& plan, const std::string& family, const Usage& usage);

}  // namespace tessera::search
