// Internal: the front of step time against memory that a search keeps when it is asked to.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "search/search.hpp"

namespace tessera::search {

// Plans of which none is both faster and smaller than another; smaller is by share of the limit.
class Front {
 public:
  // Takes the point if it belongs, and drops those that it beats.
  void add(FrontPoint point);
  // Fastest first, at least 1 % of memory apart.
  std::vector<FrontPoint> points() const;

 private:
  std::map<double, FrontPoint> by_share_;  // the larger the share, the shorter the step
};

// `plan` has a prediction.
FrontPoint front_point(const plan::Plan& plan, const std::string& family, const cluster::ClusterSpec& cluster);

}  // namespace tessera::search
