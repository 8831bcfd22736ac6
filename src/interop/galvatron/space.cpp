#include "interop/galvatron/space.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::interop::galvatron {
namespace {

// What is the same for all choices of one batch size, micro-batch count and depth.
struct Frame {
  const Inputs& inputs;
  int usable_mb;
  int global_batch, chunks, pp;
  LayerCosts layer() const { return layer_costs(inputs, global_batch, chunks); }
  int most_dp() const { return std::max(1, std::min(global_batch / chunks, inputs.settings.devices() / pp)); }
};

void add_choice(const Frame& frame, const Strategy& embedding, int buffer_mb, Space& space) {
  space.choices.push_back(
      {frame.global_batch, frame.chunks, even_division(frame.inputs.settings.layers, frame.pp), embedding,
       embedding_time(frame.inputs, embedding, frame.global_batch, frame.chunks),
       room_beside(embedding_memory(frame.inputs, embedding, frame.global_batch, frame.chunks), frame.usable_mb - buffer_mb),
       space.menus.size() - 1});
}

std::vector<Strategy> embedding_strategies(const Settings& settings, std::vector<Strategy> layers) {
  std::vector<Strategy> out;
  for (Strategy strategy : layers) {
    strategy.checkpoint = false;
    const bool off = (settings.no_embedding_tp && strategy.tp > 1) || (settings.no_embedding_sp && strategy.sp > 1);
    // Vocabulary-parallel embeddings exist with sequence parallelism only.
    const bool impossible = strategy.tp > 1 && !settings.sequence_parallel;
    if (!off && !impossible && std::find(out.begin(), out.end(), strategy) == out.end()) out.push_back(strategy);
  }
  return out;
}

std::vector<Strategy> keep(std::vector<Strategy> strategies, const auto& wanted) {
  std::erase_if(strategies, [&](const Strategy& strategy) { return !wanted(strategy); });
  return strategies;
}

// A mix of tensor parallelism and Ulysses up to `degree`, with the buffer that degree needs. Tensor parallelism alone is part of it.
void add_mixes(const Frame& frame, const std::vector<Strategy>& strategies, const std::vector<Strategy>& embeddings, Space& space) {
  const Settings& settings = frame.inputs.settings;
  const int width = settings.devices() / frame.pp, most = std::min(width, settings.max_tp);
  const auto add = [&](int degree, bool only_ulysses) {
    const auto wanted = [&](const Strategy& strategy) { return strategy.split() <= degree && (!only_ulysses || strategy.tp == 1); };
    const std::vector<Strategy> layers = keep(strategies, wanted);
    if (layers.empty()) return;
    space.menus.push_back(menu_of(layers, frame.pp, frame.layer()));
    const int buffer = only_ulysses ? 0 : buffer_memory(settings, frame.pp, degree, frame.global_batch, frame.chunks);
    for (const Strategy& embedding : keep(embeddings, wanted)) add_choice(frame, embedding, buffer, space);
  };
  add(most, true);
  for (int degree : powers_of_two(std::max(1, width / frame.most_dp()), most)) add(degree, false);
}

// Without the fine-grained mode every layer, the embedding and the head do the same.
void add_uniform(const Frame& frame, const std::vector<Strategy>& strategies, Space& space) {
  for (Strategy strategy : strategies) {
    space.menus.push_back(menu_of({strategy}, frame.pp, frame.layer()));
    strategy.checkpoint = false;
    if (!has_embedding(frame.inputs, strategy)) continue;
    const bool ulysses = strategy.tp == 1;
    const int buffer = ulysses ? 0 : buffer_memory(frame.inputs.settings, frame.pp, strategy.split(), frame.global_batch, frame.chunks);
    add_choice(frame, strategy, buffer, space);
  }
}

std::vector<Strategy> layer_strategies(const Settings& settings, int pp) {
  std::vector<Strategy> out;
  const int width = settings.devices() / pp;
  for (int cp : powers_of_two(1, settings.no_cp ? 1 : std::min(width, settings.max_cp)))
    for (int split : powers_of_two(1, width / cp)) {
      const int dp = width / cp / split;
      if (settings.no_dp && dp > 1) continue;
      if (split == 1 || (!settings.no_tp && split <= settings.max_tp)) add_variants(settings, {pp, split, 1, cp, dp}, out);
      if (split > 1 && !settings.no_sp && split <= settings.max_sp) add_variants(settings, {pp, 1, split, cp, dp}, out);
    }
  return out;
}

void add_frame(const Frame& frame, Space& space) {
  const auto divides = [&](const Strategy& strategy) { return strategy.dp <= frame.most_dp(); };
  const std::vector<Strategy> all = keep(layer_strategies(frame.inputs.settings, frame.pp), divides);
  const std::vector<Strategy> layers = keep(all, [&](const Strategy& strategy) { return has_layer(frame.inputs, strategy); });
  if (!frame.inputs.settings.fine_grained) return add_uniform(frame, layers, space);
  const auto embeddings = keep(embedding_strategies(frame.inputs.settings, all),
                               [&](const Strategy& strategy) { return has_embedding(frame.inputs, strategy); });
  add_mixes(frame, layers, embeddings, space);
}

std::vector<int> batch_sizes(const Settings& settings) {
  if (settings.settled_batch) return {*settings.settled_batch};
  std::vector<int> sizes;
  for (int size = std::max(settings.min_batch, settings.batch_step); size <= settings.max_batch; size += settings.batch_step)
    sizes.push_back(size);
  return sizes;
}

}  // namespace

Menu menu_of(std::vector<Strategy> strategies, int pp, const LayerCosts& layer) {
  Menu menu{std::move(strategies), {}, std::vector<std::vector<int>>(pp)};
  for (const Strategy& strategy : menu.strategies) {
    menu.times.push_back(layer.time(strategy));
    for (int stage = 0; stage < pp; ++stage) menu.memory[stage].push_back(static_cast<int>(std::ceil(layer.memory(strategy, stage))));
  }
  return menu;
}

std::vector<int> room_beside(const std::vector<double>& taken_mb, int usable_mb) {
  std::vector<int> out;
  for (const double mb : taken_mb) out.push_back(usable_mb - static_cast<int>(std::ceil(mb)));
  return out;
}

Sharding sharding_of(bool zero2_by_default, bool zero3, int dp) {
  if (dp == 1) return Sharding::none;
  if (zero3) return Sharding::zero3;
  return zero2_by_default ? Sharding::zero2 : Sharding::none;
}

void add_variants(const Settings& settings, Strategy strategy, std::vector<Strategy>& out) {
  for (const bool zero3 : {false, true}) {
    if (zero3 ? strategy.dp == 1 || settings.no_zero3 : strategy.dp > 1 && settings.no_dp) continue;
    strategy.sharding = sharding_of(settings.zero2_by_default(), zero3, strategy.dp);
    for (const bool checkpoint : {false, true}) {
      if (checkpoint && settings.no_checkpoint) continue;
      strategy.checkpoint = checkpoint;
      out.push_back(strategy);
    }
  }
}

std::vector<int> powers_of_two(int least, int most) {
  std::vector<int> powers;
  for (int power = 1; power <= most; power *= 2)
    if (power >= least) powers.push_back(power);
  return powers;
}

Space enumerate(const Inputs& inputs, int usable_mb) {
  const Settings& settings = inputs.settings;
  const bool later = settings.release != Release::v2_4_0;
  Space space;
  for (int global_batch : batch_sizes(settings))
    for (int chunks = 1; chunks <= global_batch; ++chunks) {
      if (global_batch % chunks != 0 || (settings.settled_chunks && chunks != *settings.settled_chunks)) continue;
      const int deepest = std::min({settings.devices(), settings.max_pp, settings.layers, later ? chunks : settings.layers});
      for (int pp : powers_of_two(1, settings.no_pp ? 1 : deepest))
        if (later)
          add_frame({inputs, usable_mb, global_batch, chunks, pp}, space);
        else
          packaged::add_frames(inputs, usable_mb, global_batch, chunks, pp, space);
    }
  return space;
}

}  // namespace tessera::interop::galvatron
