#include "interop/galvatron/cost.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::interop::galvatron {
namespace {

// What ZeRO keeps beyond its exact share.
constexpr double kZeroSlack = 0.003;

int samples_per_rank(const Strategy& strategy, int global_batch, int chunks) { return global_batch / chunks / strategy.dp; }

// Milliseconds per MB of an all-reduce among the ranks that hold the same parameters.
double reduction_rate(const Profile& profile, const Strategy& strategy) {
  return (strategy.tp != 1 ? profile.strided : profile.adjacent).at(strategy.shards());
}

double split_communication(const Inputs& inputs, const Strategy& strategy, int samples) {
  if (strategy.split() == 1) return 0;
  const bool ulysses = strategy.tp == 1;
  // Four all-to-alls of a layer; six gathers or scatters of which two run beside computation in truth, and count here.
  const double collectives = (ulysses ? 4 : 6) * (strategy.checkpoint ? 1.5 : 1);
  const auto& times = ulysses ? inputs.profile.all_to_all : inputs.profile.all_gather;
  return collectives * times.at(strategy.split()).at(hidden_state_mb(inputs.settings, samples));
}

// How many micro-batches' activations a stage holds at once.
int micro_batches_in_flight(const Settings& settings, int pp, int stage, int chunks) {
  if (pp == 1) return 1;
  return settings.pipedream_flush ? pp - stage : chunks;
}

Times layer_time(const Inputs& inputs, const Strategy& strategy, int global_batch, int chunks) {
  const Settings& settings = inputs.settings;
  const Profile& profile = inputs.profile;
  const int samples = samples_per_rank(strategy, global_batch, chunks);
  const double forward = profile.layer.at(static_cast<double>(samples) / strategy.split());
  const double backward = forward * kBackwardOverForward + (strategy.checkpoint ? forward : 0);
  const double rate = reduction_rate(profile, strategy);
  const double parameters = profile.layer_parameters / strategy.tp;
  const double message = 2.0 * (strategy.shards() - 1) * parameters / strategy.shards() / (settings.half_precision() ? 2 : 1);
  double rest = forward + split_communication(inputs, strategy, samples);
  if (strategy.sharding == Sharding::zero3) rest += message / 2 * rate;
  // Galvatron counts the exchange between stages once for the whole model.
  if (strategy.pp > 1)
    rest += strategy.pp * 2.0 * hidden_state_mb(settings, samples) * profile.point_to_point.at(strategy.pp) / settings.layers;
  const auto seconds = [&](double milliseconds) { return milliseconds * 1e-3 * settings.time_coefficient; };
  // Without data parallelism nothing is reduced, even where Ulysses or context parallelism holds copies.
  const double reduced = strategy.dp > 1 ? overlapped(message, backward, rate, profile.overlap_slowdown) : backward;
  return {seconds(rest + backward), seconds(rest + reduced)};
}

double layer_memory(const Inputs& inputs, const Strategy& strategy, int global_batch, int chunks, int stage) {
  const Settings& settings = inputs.settings;
  const Profile& profile = inputs.profile;
  const double samples_in_flight =
      samples_per_rank(strategy, global_batch, chunks) * micro_batches_in_flight(settings, strategy.pp, stage, chunks);
  const double states =
      kStatesOverParameters * profile.layer_parameters / strategy.tp * zero_share(settings, strategy.sharding, strategy.shards(), chunks);
  if (!strategy.checkpoint) return states + profile.layer_activation.at(strategy.split()) * samples_in_flight;
  const bool split = strategy.sp > 1 || (strategy.tp > 1 && settings.sequence_parallel);
  return states + *profile.checkpoint_activation * samples_in_flight / (split ? strategy.split() : 1);
}

}  // namespace

double hidden_state_mb(const Settings& settings, double samples) {
  return samples * settings.seq * settings.hidden * (settings.half_precision() ? 2 : 4) / kMegabyte;
}

double zero_share(const Settings& settings, Sharding sharding, int shards, int chunks) {
  const double share = 1.0 / shards + kZeroSlack;
  const auto all_but = [&](double kept) { return (1 - kept) * share + kept; };
  const bool half = settings.half_precision();
  switch (sharding) {
    case Sharding::none: return 1;
    case Sharding::zero2:
      // Gradients that wait for the last micro-batch are whole.
      if (chunks == 1) return half ? all_but(1.0 / 8) : all_but(1.0 / 4);
      if (settings.async_grad_reduce) return half ? all_but(2.0 / 8) : all_but(2.0 / 4);
      return half ? all_but(1.0 / 8) * 5 / 4 : all_but(1.0 / 4);
    case Sharding::zero3:
      if (chunks == 1) return share;
      if (settings.async_grad_reduce) return half ? all_but(1.0 / 8) : all_but(1.0 / 4);
      return share * 5 / 4;  // fp32 gradients
  }
  return 1;
}

double overlapped(double message, double backward, double rate, double slowdown) {
  const double reduction = message * rate * slowdown;
  const double slowed = backward * slowdown;
  if (reduction > slowed) return slowed + (message - slowed / (rate * slowdown)) * rate;
  if (reduction < slowed) return reduction + (backward - reduction / slowdown);
  return slowed;
}

double embedding_seconds(double fetched, double forward, double slowdown, double gathers, double gather) {
  const auto beside_fetching = [&](double compute) {
    const double slowed = compute * slowdown;
    return slowed > fetched ? fetched + (slowed - fetched) / slowdown : fetched;
  };
  return 1e-3 * (beside_fetching(forward) + beside_fetching(forward * kBackwardOverForward) + gathers * gather);
}

double MessageTime::at(double mb) const {
  if (mb == std::floor(mb) && mb < 1e9) {
    const auto found = measured.find(static_cast<int>(mb));
    if (found != measured.end()) return found->second;
  }
  return line.at(mb);
}

LayerCosts layer_costs(const Inputs& inputs, int global_batch, int chunks) {
  return {[=, &inputs](const Strategy& strategy) { return layer_time(inputs, strategy, global_batch, chunks); },
          [=, &inputs](const Strategy& strategy, int stage) { return layer_memory(inputs, strategy, global_batch, chunks, stage); }};
}

std::vector<double> embedding_time(const Inputs& inputs, const Strategy& strategy, int global_batch, int chunks) {
  const Settings& settings = inputs.settings;
  const Profile& profile = inputs.profile;
  const int samples = samples_per_rank(strategy, global_batch, chunks);
  const double forward = profile.other.at(static_cast<double>(samples) / strategy.split() / strategy.cp);
  const double gather = strategy.tp > 1 ? profile.all_gather.at(strategy.tp).at(hidden_state_mb(settings, samples)) : 0;
  const double rate = reduction_rate(profile, strategy) * (strategy.shards() - 1) / strategy.shards();
  // ZeRO-3 gathers the parameters in both passes; reductions of gradients are not counted per micro-batch.
  const auto stage_seconds = [&](const OtherMemory& memory, double share, double gathers) {
    const double message = memory.states.at(strategy.tp) / kStatesOverParameters * (settings.half_precision() ? 0.5 : 1);
    const double fetched = strategy.sharding == Sharding::zero3 ? 0.5 * message * rate : 0;
    return embedding_seconds(fetched, forward * share, profile.overlap_slowdown, gathers, gather);
  };
  if (strategy.pp == 1) return {stage_seconds(profile.alone, 1, 2)};
  std::vector<double> seconds(strategy.pp, 0.0);
  seconds.front() = stage_seconds(profile.first, 0.5, 1);
  seconds.back() = stage_seconds(profile.last, 0.5, 1);
  return seconds;
}

std::vector<double> embedding_memory(const Inputs& inputs, const Strategy& strategy, int global_batch, int chunks) {
  const Profile& profile = inputs.profile;
  const int samples = samples_per_rank(strategy, global_batch, chunks);
  const double share = zero_share(inputs.settings, strategy.sharding, strategy.shards(), chunks);
  const auto add = [&](double& mb, const OtherMemory& memory, int stage) {
    const double samples_in_flight = samples * micro_batches_in_flight(inputs.settings, strategy.pp, stage, chunks);
    mb += memory.states.at(strategy.tp) * share + memory.activation.at(strategy.split()) * samples_in_flight;
  };
  std::vector<double> mb(strategy.pp, kContextMb);
  if (strategy.pp == 1) {
    add(mb.front(), profile.alone, 0);
  } else {
    add(mb.front(), profile.first, 0);
    add(mb.back(), profile.last, strategy.pp - 1);
  }
  return mb;
}

int buffer_memory(const Settings& settings, int pp, int degree, int global_batch, int chunks) {
  if (!settings.sequence_parallel || !settings.global_memory_buffer) return 0;
  const int dp = settings.devices() / pp / degree;
  const double samples = static_cast<double>(global_batch) / chunks / dp;
  return static_cast<int>(samples * settings.hidden * settings.seq * 2 / kMegabyte);
}

int reserved_memory(const Settings& settings) { return settings.memory_gb > 20 ? static_cast<int>(settings.memory_gb * 1024 * 0.2) : 0; }

int usable_memory(const Settings& settings) { return settings.memory_gb * 1024 - reserved_memory(settings); }

double pipeline_time(const std::vector<Times>& stages, int chunks) {
  const int depth = static_cast<int>(stages.size());
  const double first = stages.front().compute;
  double all = 0;
  for (const Times& stage : stages) all += stage.compute;
  const double by_last = all + stages.back().compute * (chunks - 1);
  const double warm_up = std::max(std::min(depth - 1, chunks - 1) * first, all - first);
  const double by_first = warm_up + first * std::max(0, chunks + 1 - depth);
  double outlasting = 0, passed = 0;
  for (const Times& stage : stages) {
    passed += stage.compute;
    outlasting = std::max(outlasting, stage.synchronised - passed);
  }
  return std::max(by_last, by_first) + outlasting;
}

std::vector<int> even_division(int layers, int stages) {
  std::vector<int> division(stages, layers / stages);
  division.back() = layers - layers / stages * (stages - 1);
  return division;
}

bool has_layer(const Inputs& inputs, const Strategy& strategy) {
  const Profile& profile = inputs.profile;
  const bool ulysses = strategy.tp == 1;
  const bool messages = strategy.split() == 1 || (ulysses ? profile.all_to_all : profile.all_gather).contains(strategy.split());
  const bool memory = strategy.checkpoint ? profile.checkpoint_activation.has_value() : profile.layer_activation.contains(strategy.split());
  return messages && memory && (ulysses ? profile.adjacent : profile.strided).contains(strategy.shards()) &&
         (strategy.pp == 1 || profile.point_to_point.contains(strategy.pp));
}

bool has_embedding(const Inputs& inputs, const Strategy& strategy) {
  const Profile& profile = inputs.profile;
  const auto knows = [&](const OtherMemory& memory) {
    return memory.states.contains(strategy.tp) && memory.activation.contains(strategy.split());
  };
  const bool memory = strategy.pp == 1 ? knows(profile.alone) : knows(profile.first) && knows(profile.last);
  return memory && (strategy.tp == 1 || profile.all_gather.contains(strategy.tp)) &&
         (strategy.tp != 1 ? profile.strided : profile.adjacent).contains(strategy.shards());
}

}  // namespace tessera::interop::galvatron
