// Internal: all sensible ways to give the layers of one stage their strategies.
#pragma once

#include <limits>
#include <vector>

namespace tessera::interop::galvatron {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

// The caller wants only mixes for which compute * Mix::compute + exposed * Mix::exposed <= most.
struct Cutoff {
  double compute = 1;
  double exposed = 0;
  double most = 0;
};

// A lower bound of a cutoff's left side for `layers` identical layers within `room` MB: that of the best fractional mix.
// Infinity when none fits.
double least(const std::vector<Item>& items, int layers, int room, double compute, double exposed);

// The mixes of `layers` layers within `room` MB that no other mix beats in both compute and exposed time, least compute
// first. Mixes beyond a cutoff may be left out. Exact: layers are identical, so only counts matter; the fronts of fewer layers
// are kept in (memory, compute, exposed), and cut by the Lagrangian bound of the layers still to come.
std::vector<Mix> pareto_mixes(const std::vector<Item>& items, int layers, int room, const std::vector<Cutoff>& cutoffs);

}  // namespace tessera::interop::galvatron
