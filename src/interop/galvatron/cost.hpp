// Internal: the terms of Galvatron's cost model. Milliseconds inside, seconds out.
#pragma once

#include <functional>
#include <vector>

#include "base/error.hpp"
#include "interop/galvatron/galvatron.hpp"

namespace tessera::interop::galvatron {

// Seconds of a micro-batch in a layer, or in all of a stage.
struct Times {
  double compute = 0;       // without the reduction of gradients
  double synchronised = 0;  // of the micro-batch that also reduces them; of a stage, in its layers alone
};
// What one layer costs under each strategy, and the MB that it keeps on a device of each stage.
struct LayerCosts {
  std::function<Times(const Strategy& strategy)> time;
  std::function<double(const Strategy& strategy, int stage)> memory;
};
// As 2.4.1 has them. `inputs` must outlive them.
LayerCosts layer_costs(const Inputs& inputs, int global_batch, int chunks);

// Seconds per micro-batch without the reduction of gradients, and MB including the context of the framework; by stage.
std::vector<double> embedding_time(const Inputs& inputs, const Strategy& strategy, int global_batch, int chunks);
std::vector<double> embedding_memory(const Inputs& inputs, const Strategy& strategy, int global_batch, int chunks);

// MB of the buffer that sequence parallelism gathers into, shared by all layers whose degree is at most `degree`.
int buffer_memory(const Settings& settings, int pp, int degree, int global_batch, int chunks);
// MB that a plan may use on each device: a fifth is set aside above 20 GB.
int usable_memory(const Settings& settings);

// Seconds of a step: the slower of what the first and the last stage see, plus what of the gradient reduction outlasts it.
double pipeline_time(const std::vector<Times>& stages, int chunks);

// All but the last stage get the same number of layers.
std::vector<int> even_division(int layers, int stages);

// Terms that both releases share.
constexpr double kMegabyte = 1024.0 * 1024.0;
constexpr double kBackwardOverForward = 2;
// fp32 weights, gradients and two Adam moments.
constexpr double kStatesOverParameters = 4;
double hidden_state_mb(const Settings& settings, double samples);
// MB of a layer: its states, and so many samples, whose checkpoints the ranks that split the layer may split too.
double layer_mb(const Inputs& inputs, const Strategy& strategy, int chunks, double samples_in_flight, bool splits_checkpoint);
// By stage, as embedding_memory has it: the states, and so many samples on the first and on the last stage.
std::vector<double> embedding_mb(const Inputs& inputs, const Strategy& strategy, int chunks, double first_samples, double last_samples);
// The backward pass beside `message` MB of gradient reduction at `rate` ms per MB: each slows the other while both run.
double overlapped(double message, double backward, double rate, double slowdown);
// Of embedding or head: each pass beside the fetching of parameters, then `gathers` gathers. From milliseconds.
double embedding_seconds(double fetched, double forward, double slowdown, double gathers, double gather);

// The cost of a plan whose embedding and head take so much in each stage. 2.4.0 adds them before the stage's layers, 2.4.1 behind them.
PlanCost sum_up(const Settings& settings, const Plan& plan, const LayerCosts& layer, const std::vector<double>& other_time,
                const std::vector<double>& other_memory, int buffer, int chunks);
// That a plan cannot be priced, and why.
Error impossible(const Settings& settings, const std::string& message, const std::string& expected);
// Whether the profile knows all degrees of a strategy for a layer, or for the embedding.
bool has_layer(const Inputs& inputs, const Strategy& strategy);
bool has_embedding(const Inputs& inputs, const Strategy& strategy);

}  // namespace tessera::interop::galvatron
