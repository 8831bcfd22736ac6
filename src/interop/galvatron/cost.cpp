#include "interop/galvatron/cost.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "interop/galvatron/space.hpp"

namespace tessera::interop::galvatron {
namespace {

// What ZeRO keeps beyond its exact share.
constexpr double kZeroSlack = 0.003;

// The framework's own MB, on every device.
constexpr double kContextMb = 1024;

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

// The share of the model states that stays on a rank when `shards` ranks divide them.
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

// MB that are set aside on each device.
int reserved_memory(const Settings& settings) { return settings.memory_gb > 20 ? static_cast<int>(settings.memory_gb * 1024 * 0.2) : 0; }

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
  const int samples = samples_per_rank(strategy, global_batch, chunks);
  const bool splits = strategy.sp > 1 || (strategy.tp > 1 && inputs.settings.sequence_parallel);
  return layer_mb(inputs, strategy, chunks, samples * micro_batches_in_flight(inputs.settings, strategy.pp, stage, chunks), splits);
}

void check(const Inputs& inputs, const Plan& plan) {
  const Settings& settings = inputs.settings;
  const int pp = static_cast<int>(plan.division.size());
  if (plan.global_batch < 1 || plan.chunks < 1 || plan.global_batch / plan.chunks < 1)
    throw impossible(settings, text(plan.chunks, " micro-batches of a batch of ", plan.global_batch), "chunks <= global_bsz");
  if (pp < 1 || std::accumulate(plan.division.begin(), plan.division.end(), 0) != static_cast<int>(plan.layers.size()) ||
      static_cast<int>(plan.layers.size()) != settings.layers)
    throw impossible(settings, text(plan.layers.size(), " layers in ", pp, " stages"),
                     text("the model's ", settings.layers, " layers, divided by pp_division"));
  if (plan.chunks < pp) throw impossible(settings, text(plan.chunks, " micro-batches for ", pp, " stages"), "chunks >= pp_deg");
  const auto check_strategy = [&](const Strategy& strategy, const std::string& whose, bool known) {
    if (strategy.pp != pp || strategy.pp * strategy.tp * strategy.sp * strategy.cp * strategy.dp != settings.devices())
      throw impossible(settings, text(whose, " on ", strategy.pp * strategy.tp * strategy.sp * strategy.cp * strategy.dp, " devices"),
                       text(settings.devices(), " devices"));
    if (plan.global_batch / plan.chunks < strategy.dp)
      throw impossible(settings, text(whose, " with dp", strategy.dp, " has less than a sample per rank"), "fewer chunks or a smaller dp");
    if (!known) throw impossible(settings, text("the profile lacks ", whose, ": ", to_text(strategy)), "degrees that were profiled");
  };
  for (std::size_t i = 0; i < plan.layers.size(); ++i) check_strategy(plan.layers[i], text("layer ", i), has_layer(inputs, plan.layers[i]));
  check_strategy(plan.embedding, "the embedding", has_embedding(inputs, plan.embedding));
}

}  // namespace

double hidden_state_mb(const Settings& settings, double samples) {
  return samples * settings.seq * settings.hidden * (settings.half_precision() ? 2 : 4) / kMegabyte;
}

double layer_mb(const Inputs& inputs, const Strategy& strategy, int chunks, double samples_in_flight, bool splits_checkpoint) {
  const Profile& profile = inputs.profile;
  const double share = zero_share(inputs.settings, strategy.sharding, strategy.shards(), chunks);
  const double states = kStatesOverParameters * profile.layer_parameters / strategy.tp * share;
  if (!strategy.checkpoint) return states + profile.layer_activation.at(strategy.split()) * samples_in_flight;
  return states + *profile.checkpoint_activation * samples_in_flight / (splits_checkpoint ? strategy.split() : 1);
}

std::vector<double> embedding_mb(const Inputs& inputs, const Strategy& strategy, int chunks, double first_samples, double last_samples) {
  const Profile& profile = inputs.profile;
  const double share = zero_share(inputs.settings, strategy.sharding, strategy.shards(), chunks);
  const auto mb = [&](const OtherMemory& memory, double samples_in_flight) {
    return memory.states.at(strategy.tp) * share + memory.activation.at(strategy.split()) * samples_in_flight;
  };
  std::vector<double> out(strategy.pp, kContextMb);
  if (strategy.pp == 1) {
    out.front() += mb(profile.alone, last_samples);
  } else {
    out.front() += mb(profile.first, first_samples);
    out.back() += mb(profile.last, last_samples);
  }
  return out;
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
  const auto samples_in_flight = [&](int stage) {
    return samples_per_rank(strategy, global_batch, chunks) * micro_batches_in_flight(inputs.settings, strategy.pp, stage, chunks);
  };
  return embedding_mb(inputs, strategy, chunks, samples_in_flight(0), samples_in_flight(strategy.pp - 1));
}

int buffer_memory(const Settings& settings, int pp, int degree, int global_batch, int chunks) {
  if (!settings.sequence_parallel || !settings.global_memory_buffer) return 0;
  const int dp = settings.devices() / pp / degree;
  const double samples = static_cast<double>(global_batch) / chunks / dp;
  return static_cast<int>(samples * settings.hidden * settings.seq * 2 / kMegabyte);
}

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

Error impossible(const Settings& settings, const std::string& message, const std::string& expected) {
  return Error(ErrorCode::invalid_config, "the plan cannot be priced: " + message, {settings.file.string(), 0, 0, -1, {}}, expected);
}

PlanCost sum_up(const Settings& settings, const Plan& plan, const LayerCosts& layer, const std::vector<double>& other_time,
                const std::vector<double>& other_memory, int buffer, int chunks) {
  const bool others_first = settings.release == Release::v2_4_0;
  std::vector<Times> stages;
  PlanCost out;
  std::size_t next = 0;
  for (std::size_t stage = 0; stage < plan.division.size(); ++stage) {
    Times time{others_first ? other_time[stage] : 0, 0};
    std::int64_t memory = buffer + static_cast<std::int64_t>(std::ceil(other_memory[stage]));
    for (int i = 0; i < plan.division[stage]; ++i, ++next) {
      const Times one = layer.time(plan.layers[next]);
      time.compute += one.compute;
      time.synchronised += one.synchronised;
      memory += static_cast<std::int64_t>(std::ceil(layer.memory(plan.layers[next], static_cast<int>(stage))));
    }
    if (!others_first) time.compute += other_time[stage];
    stages.push_back(time);
    out.memory_mb.push_back(memory + reserved_memory(settings));
  }
  out.step = Seconds(pipeline_time(stages, chunks));
  out.fits = std::ranges::all_of(out.memory_mb, [&](std::int64_t mb) { return mb <= settings.memory_gb * 1024; });
  return out;
}

PlanCost cost_of(const Inputs& inputs, const Plan& plan) {
  if (inputs.settings.release == Release::v2_4_0) return packaged::cost_of(inputs, plan);
  check(inputs, plan);
  const int pp = static_cast<int>(plan.division.size());
  // The buffer of the widest split; Ulysses alone needs none.
  int degree = plan.embedding.split();
  bool tensor_parallel = plan.embedding.tp > 1;
  for (const Strategy& layer : plan.layers) {
    degree = std::max(degree, layer.split());
    tensor_parallel = tensor_parallel || layer.tp > 1;
  }
  const int buffer = tensor_parallel ? buffer_memory(inputs.settings, pp, degree, plan.global_batch, plan.chunks) : 0;
  return sum_up(inputs.settings, plan, layer_costs(inputs, plan.global_batch, plan.chunks),
                embedding_time(inputs, plan.embedding, plan.global_batch, plan.chunks),
                embedding_memory(inputs, plan.embedding, plan.global_batch, plan.chunks), buffer, plan.chunks);
}

Seconds relayout_time(const Inputs& inputs, const Plan& plan) {
  double milliseconds = 0;
  std::size_t layer = 0;
  for (int count : plan.division)
    for (int i = 0; i < count; ++i, ++layer) {
      if (i == 0 || plan.layers[layer].split() == plan.layers[layer - 1].split()) continue;
      const int split = std::max(plan.layers[layer].split(), plan.layers[layer - 1].split());
      const double groups = inputs.settings.devices() / plan.division.size() / static_cast<double>(split);
      const double mb = hidden_state_mb(inputs.settings, plan.global_batch / static_cast<double>(plan.chunks) / groups);
      milliseconds += 2 * plan.chunks * mb * (split - 1) / split * inputs.profile.adjacent.at(split);
    }
  return Seconds(milliseconds * 1e-3);
}

std::string to_text(const Strategy& strategy) {
  std::string out;
  const auto add = [&](const std::string& word) { out += (out.empty() ? "" : " ") + word; };
  if (strategy.tp > 1) add(text("tp", strategy.tp));
  if (strategy.sp > 1) add(text("ulysses", strategy.sp));
  if (strategy.cp > 1) add(text("cp", strategy.cp));
  if (strategy.dp > 1 || out.empty()) add(text("dp", strategy.dp));
  if (strategy.sharding == Sharding::zero2) add("zero2");
  if (strategy.sharding == Sharding::zero3) add("zero3");
  if (strategy.checkpoint) add("ckpt");
  if (strategy.apart) add("apart");
  return out;
}

}  // namespace tessera::interop::galvatron
