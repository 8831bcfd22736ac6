#include "plan/stage_fronts.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "plan/divisors.hpp"

namespace tessera::plan {
namespace {

constexpr double kMemoryAside = -1;

double option_of(const model::BlockSpec& block, const char* key) {
  const auto found = block.dims.find(key);
  return found == block.dims.end() ? 0 : found->second;
}

// Whether a block can be cut among so many tensor-parallel ranks.
bool tensor_divides(const model::BlockSpec& block, std::int64_t degree) {
  for (const model::ParameterSpec& parameter : block.parameters)
    if (parameter.split_dim >= 0 && parameter.shape[static_cast<std::size_t>(parameter.split_dim)] % degree != 0) return false;
  for (const char* key : {"heads", "kv_heads", "ffn", "expert_ffn"})
    if (static_cast<std::int64_t>(option_of(block, key)) % degree != 0) return false;
  return true;
}

// Whether `a` is nowhere worse than `b`.
bool covers(const BlockOption& a, const BlockOption& b) {
  return a.busy <= b.busy && a.fill <= b.fill && a.fixed <= b.fixed && a.saved <= b.saved && a.workspace <= b.workspace && a.tied_busy <= b.tied_busy &&
         a.tied_fixed <= b.tied_fixed;
}

template <typename Item, typename Covers>
void drop_covered(std::vector<Item>& items, const Covers& covers) {
  std::vector<Item> kept;
  for (const Item& item : items)
    if (std::none_of(kept.rbegin(), kept.rend(), [&](const Item& other) { return covers(other, item); })) kept.push_back(item);
  items = std::move(kept);
}

}  // namespace

StageFronts::StageFronts(const BlockProblem& problem, Loads& loads, const StageKind& kind)
    : problem_(problem), loads_(loads), kind_(kind), shares_(tessera::plan::fill_of(kind.schedule, 1, loads.weight_pass_bubble(kind.group))),
      samples_(problem.global_batch / kind.micro_batches), limit_(loads.memory_limit(kind.group) - loads.process_bytes(kind.group)),
      host_(loads.micro_batch_host(kind.group)), options_(problem.model.repeats.size()) {
  for (std::size_t repeat = 0; repeat < options_.size() && possible_; ++repeat) {
    list_options(static_cast<int>(repeat));
    possible_ = !options_[repeat].empty();
    const auto least = [&](double BlockOption::*part) {
      double out = std::numeric_limits<double>::infinity();
      for (const BlockOption& option : options_[repeat]) out = std::min(out, option.*part);
      return out;
    };
    least_busy_.push_back(least(&BlockOption::busy));
    least_fill_.push_back(least(&BlockOption::fill));
  }
}

void StageFronts::list_options(int repeat) {
  const model::BlockSpec& block = problem_.model.repeats[static_cast<std::size_t>(repeat)].block;
  const BlockSpace& space = problem_.space;
  const int domain = problem_.cluster.groups[static_cast<std::size_t>(kind_.group)].domain();
  const auto sequence = static_cast<std::int64_t>(option_of(block, "seq"));
  const auto experts = static_cast<std::int64_t>(option_of(block, "experts"));
  std::vector<BlockOption>& out = options_[static_cast<std::size_t>(repeat)];
  for (const std::int64_t tp : divisors_of(kind_.width)) {
    if (tp > std::min(domain, space.most_tensor) || !tensor_divides(block, tp)) continue;
    for (const std::int64_t cp : divisors_of(kind_.width / tp)) {
      if (cp > space.most_context || (cp > 1 && (sequence == 0 || sequence % (2 * cp) != 0))) continue;
      const std::int64_t dp = kind_.width / (tp * cp);
      if (samples_ % dp != 0) continue;
      std::vector<BlockOption> here;
      for (const std::int64_t ep : divisors_of(std::max<std::int64_t>(1, std::gcd(experts, dp * cp)))) {
        Strategy strategy;
        strategy.dp = static_cast<int>(dp);
        strategy.tp = static_cast<int>(tp);
        strategy.cp = static_cast<int>(cp);
        strategy.ep = static_cast<int>(ep);
        strategy.sequence_parallel = tp > 1;
        add_options(repeat, strategy, here);
        const auto heads = static_cast<std::int64_t>(option_of(block, "heads"));
        if (cp == 1 || heads == 0 || heads / tp % cp != 0) continue;
        strategy.context = model::ContextKind::ulysses;
        add_options(repeat, strategy, here);
      }
      drop_covered(here, covers);
      std::stable_sort(here.begin(), here.end(), [](const BlockOption& a, const BlockOption& b) { return a.busy < b.busy; });
      drop_covered(here, covers);
      out.insert(out.end(), here.begin(), here.end());
    }
  }
}

// Every way to keep its state and its activations.
void StageFronts::add_options(int repeat, Strategy strategy, std::vector<BlockOption>& out) {
  const bool end = repeat == 0 || repeat + 1 == static_cast<int>(options_.size());
  const auto count = static_cast<double>(kind_.micro_batches);
  for (const int zero : problem_.space.zero) {
    strategy.zero = strategy.dp * strategy.cp > 1 ? zero : 0;
    for (const model::Recompute recompute : problem_.space.recompute) {
      strategy.recompute = end ? model::Recompute::none : recompute;
      for (const bool offload : {false, true}) {
        if (offload && !problem_.space.offload) continue;
        strategy.offload_optimizer = offload;
        const BlockLoad& load = loads_.block(repeat, kind_.group, strategy, samples_);
        BlockOption option;
        option.strategy = strategy;
        option.layout = layout_of(strategy);
        option.fill = shares_.forward * load.forward + shares_.backward * load.backward();
        option.busy = count * (load.forward + load.backward()) - option.fill + load.exchange + load.optimizer;
        option.fixed = load.state_bytes();
        option.saved = load.saved;
        option.workspace = load.workspace;
        option.tied_busy = load.tied_exchange;
        option.tied_fixed = load.tied_bytes;
        out.push_back(option);
      }
      if (end) break;
    }
    if (strategy.dp * strategy.cp == 1) break;
  }
}

int StageFronts::layout_of(const Strategy& strategy) {
  const auto found = std::find_if(layouts_.begin(), layouts_.end(), [&](const Strategy& s) { return s.tp == strategy.tp && s.cp == strategy.cp; });
  if (found != layouts_.end()) return static_cast<int>(found - layouts_.begin());
  Strategy degrees;
  degrees.dp = strategy.dp;
  degrees.tp = strategy.tp;
  degrees.cp = strategy.cp;
  layouts_.push_back(degrees);
  return static_cast<int>(layouts_.size()) - 1;
}

double StageFronts::resplit(int repeat, int before, int after) {
  if (before == after) return 0;
  const auto [found, fresh] = resplits_.try_emplace({repeat, before, after});
  if (fresh) found->second = loads_.resplit(repeat, kind_.group, layouts_[static_cast<std::size_t>(before)], layouts_[static_cast<std::size_t>(after)], samples_);
  return found->second;
}

StageFronts::Key StageFronts::key_of(int first, int last, double held) const {
  Key key{{}, held};
  for (int b = first; b < last; ++b) {
    const int repeat = loads_.repeat_of()[static_cast<std::size_t>(b)];
    if (key.first.empty() || key.first.back().first != repeat) key.first.emplace_back(repeat, 0);
    ++key.first.back().second;
  }
  return key;
}

const StageFronts::Chain& StageFronts::chain(int first, int last, double held, double most) {
  Key key = key_of(first, last, held);
  const auto known = chains_.find(key);
  if (known != chains_.end()) return known->second;
  Chain made;
  if (last - first == 1) {
    StageEntry start;
    start.fill = shares_.forward * host_;
    start.busy = static_cast<double>(kind_.micro_batches) * host_ - start.fill;
    entries_.push_back(start);
    made = extended(Chain{{&entries_.back()}}, first, last, held, most);
  } else {
    made = extended(chain(first, last - 1, held, most), first, last, held, most);
  }
  return chains_.emplace(std::move(key), std::move(made)).first->second;
}

// Every entry of `before`, the range without its last block, with every option of that block.
StageFronts::Chain StageFronts::extended(const Chain& before, int first, int last, double held, double most) {
  const int repeat = loads_.repeat_of()[static_cast<std::size_t>(last - 1)];
  const bool start = last - first == 1;
  const bool keep_degrees = !start && !problem_.space.mixed_degrees && loads_.repeat_of()[static_cast<std::size_t>(last - 2)] == repeat;
  const bool tied = first > 0;
  const bool aside = held == kMemoryAside;
  const double counted = aside ? 0 : held;
  const double tolerance = 1 + problem_.tolerance;
  std::vector<std::vector<StageEntry>> made(layouts_.size());
  for (std::size_t from = 0; from < before.size(); ++from)
    for (const StageEntry* entry : before[from])
      for (std::size_t o = 0; o < options_[static_cast<std::size_t>(repeat)].size(); ++o) {
        const BlockOption& option = options_[static_cast<std::size_t>(repeat)][o];
        if (keep_degrees && option.layout != static_cast<int>(from)) continue;
        const double again = start ? 0 : resplit(repeat, static_cast<int>(from), option.layout);
        const double fill = (shares_.forward + shares_.backward) * again;
        StageEntry next;
        next.fill = entry->fill + option.fill + fill;
        next.busy = entry->busy + option.busy + 2 * static_cast<double>(kind_.micro_batches) * again - fill + (tied ? option.tied_busy : 0);
        if (next.busy + next.fill > most) continue;
        next.fixed = entry->fixed + option.fixed + (tied ? option.tied_fixed : 0);
        next.saved = entry->saved + option.saved;
        next.workspace = std::max(entry->workspace, option.workspace);
        if (!aside && next.bytes(counted) > limit_) continue;
        next.option = static_cast<int>(o);
        next.before = start ? nullptr : entry;
        made[static_cast<std::size_t>(option.layout)].push_back(next);
      }
  Chain out(layouts_.size());
  for (std::size_t layout = 0; layout < made.size(); ++layout) {
    std::vector<StageEntry>& entries = made[layout];
    std::stable_sort(entries.begin(), entries.end(), [&](const StageEntry& a, const StageEntry& b) {
      return std::tuple(a.busy, a.fill, a.bytes(counted)) < std::tuple(b.busy, b.fill, b.bytes(counted));
    });
    // An entry that covers another is never above `most` where the other is not: what `most` was does not change the answer.
    const auto covers = [&](const StageEntry& a, const StageEntry& b) {
      if (a.busy > b.busy * tolerance || a.fill > b.fill * tolerance || a.busy + a.fill > b.busy + b.fill) return false;
      return aside || (a.workspace <= b.workspace && a.fixed + counted * a.saved <= b.fixed + counted * b.saved);
    };
    drop_covered(entries, covers);
    for (StageEntry& entry : entries) {
      entries_.push_back(entry);
      out[layout].push_back(&entries_.back());
    }
  }
  return out;
}

double StageFronts::least_bytes(int first, int last, double held) const {
  double sum = 0;
  for (int b = first; b < last; ++b) {
    double least = std::numeric_limits<double>::infinity();
    for (const BlockOption& option : options_[static_cast<std::size_t>(loads_.repeat_of()[static_cast<std::size_t>(b)])])
      least = std::min(least, option.fixed + held * option.saved);
    sum += least;
  }
  return sum;
}

// What the buffers at the ends of a stage leave.
double StageFronts::room(int first, int last) const {
  double bytes = 0;
  if (first > 0) bytes = loads_.input_bytes(loads_.repeat_of()[static_cast<std::size_t>(first)], samples_);
  if (last < static_cast<int>(loads_.repeat_of().size())) bytes = std::max(bytes, loads_.input_bytes(loads_.repeat_of()[static_cast<std::size_t>(last)], samples_));
  return limit_ - 4 * bytes / kind_.width;
}

const std::vector<const StageEntry*>& StageFronts::front(int first, int last, double held, double most) {
  const auto [found, fresh] = fronts_.try_emplace({key_of(first, last, held), {first > 0, last < static_cast<int>(loads_.repeat_of().size())}});
  std::vector<const StageEntry*>& out = found->second;
  if (!fresh) return out;
  const double limit = room(first, last);
  if (least_bytes(first, last, held) > limit) return out;
  const auto collect = [&](const Chain& chain) {
    out.clear();
    for (const auto& entries : chain) out.insert(out.end(), entries.begin(), entries.end());
    std::stable_sort(out.begin(), out.end(), [&](const StageEntry* a, const StageEntry* b) { return std::tuple(a->busy, a->fill) < std::tuple(b->busy, b->fill); });
  };
  const auto thin = [&] { drop_covered(out, [](const StageEntry* a, const StageEntry* b) { return a->busy <= b->busy && a->fill <= b->fill; }); };
  const auto fits = [&](const StageEntry* entry) { return entry->bytes(held) <= limit; };
  // Where the fastest fit, memory decides nothing.
  collect(chain(first, last, kMemoryAside, most));
  thin();
  if (std::all_of(out.begin(), out.end(), fits)) return out;
  collect(chain(first, last, held, most));
  std::erase_if(out, [&](const StageEntry* entry) { return !fits(entry); });
  thin();
  return out;
}

std::vector<Strategy> StageFronts::strategies(const StageEntry& entry, int first, int last) const {
  std::vector<Strategy> out(static_cast<std::size_t>(last - first));
  const StageEntry* at = &entry;
  for (int b = last - 1; b >= first; --b, at = at->before)
    out[static_cast<std::size_t>(b - first)] = options_[static_cast<std::size_t>(loads_.repeat_of()[static_cast<std::size_t>(b)])][static_cast<std::size_t>(at->option)].strategy;
  return out;
}

}  // namespace tessera::plan
