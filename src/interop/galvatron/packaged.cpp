#include <algorithm>
#include <numeric>
#include <optional>

#include "interop/galvatron/space.hpp"

namespace tessera::interop::galvatron::packaged {
namespace {

// Everything of a plan that is not a strategy. `least_split`: the smallest degree of tensor parallelism or Ulysses in use;
// samples are counted as if every layer had it.
struct Frame {
  const Inputs& inputs;
  int global_batch, chunks, pp, least_split;

  int width() const { return inputs.settings.devices() / pp; }
  int ranks() const { return width() / least_split; }
  int samples() const { return global_batch / ranks(); }
  int micro_batch_size() const { return (samples() + chunks - 1) / chunks; }
  bool divides() const { return least_split <= width() && global_batch % ranks() == 0 && chunks <= samples() && chunks == real_chunks(); }
  // Galvatron cuts like torch.chunk: so many equal pieces and a smaller one, perhaps fewer than asked for.
  int real_chunks() const { return (samples() + micro_batch_size() - 1) / micro_batch_size(); }
};

double rate(const std::map<int, double>& rates, const Profile& profile, int devices, int size) {
  return size == 1 || size == devices ? profile.adjacent.at(size) : rates.at(size);
}

// Of the ranks that hold the same parameters.
double reduction_rate(const Inputs& inputs, const Strategy& strategy) {
  const Profile& profile = inputs.profile;
  const int devices = inputs.settings.devices();
  if (strategy.sp > 1) return rate(profile.adjacent, profile, devices, strategy.dp * strategy.sp);
  const bool strided = strategy.tp > 1 && strategy.dp > 1 && !strategy.apart;
  return rate(strided ? profile.strided : profile.adjacent, profile, devices, strategy.dp);
}

double split_communication(const Inputs& inputs, const Strategy& strategy, double samples) {
  const int split = strategy.split();
  if (split == 1) return 0;
  const double collectives = 4 * (strategy.checkpoint ? 1.5 : 1);
  const double mb = hidden_state_mb(inputs.settings, samples);
  if (!inputs.settings.no_sp)
    return collectives * (strategy.sp > 1 ? inputs.profile.all_to_all : inputs.profile.all_gather).at(split).at(mb);
  const auto& rates = strategy.dp > 1 && strategy.apart ? inputs.profile.strided : inputs.profile.adjacent;
  return collectives * 2 * (split - 1) / split * mb * rate(rates, inputs.profile, inputs.settings.devices(), split);
}

Times layer_time(const Frame& frame, const Strategy& strategy) {
  const Settings& settings = frame.inputs.settings;
  const Profile& profile = frame.inputs.profile;
  const double samples = static_cast<double>(frame.global_batch) / frame.real_chunks() / strategy.dp;
  const double forward = profile.layer.at(samples / strategy.split());
  const double backward = forward * kBackwardOverForward + (strategy.checkpoint ? forward : 0);
  const double parameters = profile.layer_parameters / strategy.tp;
  const double message = 2.0 * (strategy.dp - 1) / strategy.dp * parameters / (settings.half_precision() ? 2 : 1);
  const double per_mb = reduction_rate(frame.inputs, strategy);
  double rest = forward + split_communication(frame.inputs, strategy, samples);
  if (strategy.sharding == Sharding::zero3) rest += message / 2 * per_mb;
  if (strategy.pp > 1)
    rest += strategy.pp * 2.0 * hidden_state_mb(settings, samples) * profile.point_to_point.at(strategy.pp) / settings.layers;
  const auto with = [&](double reduced) {
    if (strategy.dp == 1) return backward;
    // With wide splits only half of the backward pass runs beside the reduction.
    const double beside = strategy.split() == 1 || strategy.split() < strategy.split() * strategy.dp / 2 ? 1 : 0.5;
    return backward * (1 - beside) + overlapped(reduced, backward * beside, per_mb, profile.overlap_slowdown);
  };
  const auto seconds = [&](double milliseconds) { return milliseconds * 1e-3 * settings.time_coefficient; };
  return {seconds(rest + with(0)), seconds(rest + with(message))};
}

// How many micro-batches a layer's own samples make.
int layer_chunks(const Frame& frame, const Strategy& strategy) {
  const int samples = frame.global_batch / strategy.dp / (strategy.split() / frame.least_split);
  const int wanted = std::max(1, (samples + frame.micro_batch_size() - 1) / frame.micro_batch_size());
  return std::min(wanted, std::max(1, frame.global_batch / (strategy.split() * strategy.dp / frame.least_split)));
}

double layer_memory(const Frame& frame, const Strategy& strategy, int stage) {
  const Settings& settings = frame.inputs.settings;
  const int chunks = layer_chunks(frame, strategy);
  const int samples = frame.global_batch / strategy.dp / (strategy.split() / frame.least_split);
  const int each = (samples + chunks - 1) / chunks;
  double samples_in_flight = each;
  if (settings.pipedream_flush || strategy.pp == 1) {
    const int in_flight = std::min(strategy.pp - stage, chunks);
    samples_in_flight = static_cast<double>(std::min(in_flight * each, samples)) / samples * frame.global_batch / strategy.dp;
  }
  return layer_mb(frame.inputs, strategy, chunks, samples_in_flight, settings.sequence_parallel);
}

// `frame` must outlive them.
LayerCosts layer_costs(const Frame& frame) {
  return {[&](const Strategy& strategy) { return layer_time(frame, strategy); },
          [&](const Strategy& strategy, int stage) { return layer_memory(frame, strategy, stage); }};
}

Strategy as_embedding(const Frame& frame, int split, bool ulysses, bool zero3) {
  const Sharding by_default = frame.inputs.settings.zero2_by_default() ? Sharding::zero2 : Sharding::none;
  const Sharding sharding = zero3 ? Sharding::zero3 : by_default;
  return {frame.pp, ulysses ? 1 : split, ulysses ? split : 1, 1, frame.width() / split, sharding, false, false};
}

std::vector<double> embedding_time(const Frame& frame, const Strategy& strategy) {
  const Settings& settings = frame.inputs.settings;
  const Profile& profile = frame.inputs.profile;
  const int devices = settings.devices();
  const double forward = profile.other.at(static_cast<double>(frame.micro_batch_size()) / frame.least_split);
  double gather = 0;
  if (strategy.tp > 1) {
    const double mb = hidden_state_mb(settings, frame.micro_batch_size());
    // The line even where the size was measured: Galvatron looks the size up among the group sizes.
    const auto& rates = strategy.dp == 1 ? profile.adjacent : profile.strided;
    gather = !settings.no_sp ? profile.all_gather.at(strategy.tp).line.at(mb)
                             : (strategy.tp - 1.0) / strategy.tp * mb * rate(rates, profile, devices, strategy.tp);
  }
  const int shards = strategy.shards();
  const auto& rates = strategy.tp > 1 ? profile.strided : profile.adjacent;
  const double per_mb = rate(rates, profile, devices, shards) * (shards - 1) / shards;
  // Both ends of a pipeline are given the parameters of one of them.
  const OtherMemory& memory = strategy.pp == 1 ? profile.alone : strategy.sp > 1 ? profile.last : profile.first;
  const double fetched = strategy.sharding == Sharding::zero3 ? 0.5 * memory.states.at(strategy.tp) / kStatesOverParameters * per_mb : 0;
  const auto seconds = [&](double share, double gathers) {
    return embedding_seconds(fetched, forward * share, profile.overlap_slowdown, gathers, gather);
  };
  if (strategy.pp == 1) return {seconds(1, 2)};
  std::vector<double> out(strategy.pp, 0.0);
  out.front() = out.back() = seconds(0.5, 1);
  return out;
}

std::vector<double> embedding_memory(const Frame& frame, const Strategy& strategy) {
  const Strategy narrowest{frame.pp, frame.least_split, 1, 1, frame.ranks(), Sharding::none, false, false};
  const int chunks = layer_chunks(frame, narrowest);
  const double samples = static_cast<double>(frame.global_batch) * strategy.split() / frame.width() / chunks;
  return embedding_mb(frame.inputs, strategy, chunks, samples * (frame.inputs.settings.pipedream_flush ? strategy.pp : 1), samples);
}

int buffer_mb(const Frame& frame, int most_split) {
  const Settings& settings = frame.inputs.settings;
  if (!settings.sequence_parallel || !settings.global_memory_buffer) return 0;
  return static_cast<int>(static_cast<double>(frame.micro_batch_size()) / frame.least_split * most_split * settings.hidden * settings.seq *
                          2 / kMegabyte);
}

std::vector<Strategy> strategies_of(const Settings& settings, int pp) {
  std::vector<Strategy> out;
  const int width = settings.devices() / pp;
  for (int split : powers_of_two(1, settings.no_tp ? 1 : std::min(width, settings.max_tp))) {
    const int dp = width / split;
    for (const bool ulysses : {false, true})
      for (const bool apart : {false, true}) {
        if ((ulysses && (split == 1 || settings.no_sp)) || (apart && (split == 1 || dp == 1))) continue;
        add_variants(settings, {pp, ulysses ? 1 : split, ulysses ? split : 1, 1, dp, Sharding::none, false, apart}, out);
      }
  }
  return out;
}

// Which of tensor parallelism and Ulysses the layers may use; only Ulysses alone needs no buffer.
enum class Mode { tensor, ulysses, both };

void add_menu(const Frame& frame, int most_split, Mode mode, int usable_mb, Space& space) {
  const Settings& settings = frame.inputs.settings;
  std::vector<Strategy> strategies = strategies_of(settings, frame.pp);
  std::erase_if(strategies, [&](const Strategy& strategy) {
    return strategy.split() < frame.least_split || strategy.split() > most_split || (mode == Mode::tensor && strategy.sp > 1) ||
           (mode == Mode::ulysses && strategy.tp > 1) || !has_layer(frame.inputs, strategy);
  });
  if (strategies.empty()) return;
  space.menus.push_back(menu_of(std::move(strategies), frame.pp, layer_costs(frame)));
  const int buffer = mode == Mode::ulysses ? 0 : buffer_mb(frame, most_split);
  for (int split : powers_of_two(frame.least_split, std::min(most_split, frame.width())))
    for (const bool ulysses : {false, true})
      for (const bool zero3 : {false, true}) {
        if ((ulysses && mode == Mode::tensor) || (!ulysses && mode == Mode::ulysses) || (zero3 && settings.no_zero3)) continue;
        Strategy embedding = as_embedding(frame, split, ulysses, zero3);
        if (!has_embedding(frame.inputs, embedding)) continue;
        space.choices.push_back({frame.global_batch, frame.real_chunks(), even_division(settings.layers, frame.pp), embedding,
                                 embedding_time(frame, embedding), room_beside(embedding_memory(frame, embedding), usable_mb - buffer),
                                 space.menus.size() - 1, frame.least_split});
      }
}

void check(const Inputs& inputs, const Plan& plan) {
  const Settings& settings = inputs.settings;
  const int pp = static_cast<int>(plan.division.size()), layers = inputs.settings.layers;
  if (static_cast<int>(plan.layers.size()) != layers || std::accumulate(plan.division.begin(), plan.division.end(), 0) != layers)
    throw impossible(settings, text(plan.layers.size(), " layers in ", pp, " stages"), text("the model's ", layers, " layers"));
  for (std::size_t i = 0; i < plan.layers.size(); ++i)
    if (plan.layers[i].pp != pp || !has_layer(inputs, plan.layers[i]))
      throw impossible(settings, text("the profile lacks layer ", i, ": ", to_text(plan.layers[i])), "degrees that were profiled");
  if (!has_embedding(inputs, plan.embedding))
    throw impossible(settings, "the profile lacks the embedding: " + to_text(plan.embedding), "degrees that were profiled");
}

}  // namespace

void add_frames(const Inputs& inputs, int usable_mb, int global_batch, int chunks, int pp, Space& space) {
  const Settings& settings = inputs.settings;
  for (int least : powers_of_two(1, std::min(settings.devices() / pp, settings.max_tp))) {
    const Frame frame{inputs, global_batch, chunks, pp, least};
    if (!frame.divides()) continue;
    const int width = std::min(frame.width(), settings.max_tp);
    for (int most : powers_of_two(settings.global_memory_buffer ? least : width, width))
      for (const Mode mode : {Mode::tensor, Mode::ulysses, Mode::both})
        if (mode == Mode::tensor || !settings.no_sp) add_menu(frame, most, mode, usable_mb, space);
  }
}

PlanCost cost_of(const Inputs& inputs, const Plan& plan) {
  check(inputs, plan);
  int least = plan.embedding.split(), most = least;
  // Where Ulysses is off, the buffer counts even if nothing is split.
  bool only_ulysses = plan.embedding.tp == 1 && !inputs.settings.no_sp;
  for (const Strategy& layer : plan.layers) {
    least = std::min(least, layer.split());
    most = std::max(most, layer.split());
    only_ulysses = only_ulysses && layer.tp == 1;
  }
  std::optional<PlanCost> best;
  for (int counted : plan.counted_split > 0 ? std::vector<int>{plan.counted_split} : powers_of_two(1, least)) {
    const Frame frame{inputs, plan.global_batch, plan.chunks, static_cast<int>(plan.division.size()), counted};
    if (!frame.divides()) continue;
    const Strategy embedding =
        as_embedding(frame, plan.embedding.split(), plan.embedding.sp > 1, plan.embedding.sharding == Sharding::zero3);
    const PlanCost cost = sum_up(inputs.settings, plan, layer_costs(frame), embedding_time(frame, embedding),
                                 embedding_memory(frame, embedding), only_ulysses ? 0 : buffer_mb(frame, most), frame.real_chunks());
    if (!best || (cost.fits && !best->fits) || (cost.fits == best->fits && cost.step < best->step)) best = cost;
  }
  if (!best)
    throw impossible(inputs.settings, text(plan.chunks, " micro-batches of a batch of ", plan.global_batch),
                     "a batch that its ranks and chunks divide");
  return *best;
}

}  // namespace tessera::interop::galvatron::packaged
