// Internal: all sensible ways to give the layers of one stage their strategies.
#pragma once

#include <vector>

namespace tessera::plan::galvatron {

// What one layer costs under one strategy.
struct Item {
  double compute = 0;  // seconds per micro-batch
  double exposed = 0;  // what the reduction of gradients adds to one of them
  int memory = 0;      // MB
};

struct Mix {
  double compute = 0;
  double exposed = 0;
  std::vector<int> counts;  // layers by item
};

// A lower bound of the compute of `layers` identical layers within `room` MB: the fractional mix. Infinity when none fits.
double least_compute(const std::vector<Item>& items, int layers, int room);

// The mixes of `layers` layers within `room` MB that no other mix beats in both compute and exposed time, least compute
// first. Mixes with more compute than `limit` may be left out. Exact: layers are identical, so only counts matter; the
// fronts of fewer layers are kept in (memory, compute, exposed).
std::vector<Mix> pareto_mixes(const std::vector<Item>& items, int layers, int room, double limit);

}  // namespace tessera::plan::galvatron
