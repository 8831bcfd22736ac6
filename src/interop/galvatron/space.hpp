// Internal: Galvatron's search space as a flat list of choices, each with the strategies that its layers may mix.
#pragma once

#include "interop/galvatron/cost.hpp"

namespace tessera::interop::galvatron {

// Strategies that layers may take under one batch, micro-batch count and depth, with their costs.
struct Menu {
  std::vector<Strategy> strategies;
  std::vector<Times> times;              // by strategy
  std::vector<std::vector<int>> memory;  // [stage][strategy], MB of a layer, rounded up as Galvatron's search does
};

struct Choice {
  int global_batch = 0;
  int chunks = 1;
  std::vector<int> division;
  Strategy embedding;
  std::vector<double> other_time;  // seconds per micro-batch, by stage
  std::vector<int> room;           // MB left for the layers, by stage; negative when not even the embedding fits
  std::size_t menu = 0;
  int counted_split = 0;  // see Plan
};

struct Space {
  std::vector<Menu> menus;
  std::vector<Choice> choices;
};

Menu menu_of(std::vector<Strategy> strategies, int pp, const LayerCosts& layer);
// A layer's, without ZeRO-3 or with it; nothing is sharded without data parallelism.
Sharding sharding_of(bool zero2_by_default, bool zero3, int dp);
// A strategy as it is sharded and computed again in all ways that are on.
void add_variants(const Settings& settings, Strategy strategy, std::vector<Strategy>& out);
// Choice::room where the embedding takes so much of each stage.
std::vector<int> room_beside(const std::vector<double>& taken_mb, int usable_mb);
std::vector<int> powers_of_two(int least, int most);
// Everything, in a fixed order.
Space enumerate(const Inputs& inputs, int usable_mb);

// Of Galvatron 2.4.0, as the package index has it. It differs from the later release in how samples are counted (against the least degree
// in use), in the overlap of tensor-parallel backward passes, in placing groups of ranks side by side or apart, and in the terms of the
// embedding.
namespace packaged {
void add_frames(const Inputs& inputs, int usable_mb, int global_batch, int chunks, int pp, Space& space);
PlanCost cost_of(const Inputs& inputs, const Plan& plan);
}  // namespace packaged

}  // namespace tessera::interop::galvatron
