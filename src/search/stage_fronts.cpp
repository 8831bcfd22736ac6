#include "search/stage_fronts.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "plan/divisors.hpp"
#include "plan/tensor_cut.hpp"

namespace tessera::search {
namespace {

// Prices of a byte that bounds are computed with: so many powers of two around the least time over the memory, and 0.
constexpr int kPrices = 16;
// Of these, so many on each side of the one that bounds a range best are used within it.
constexpr std::size_t kNeighbours = 2;

template <typename Item, typename Covers>
void drop_covered(std::vector<Item>& items, const Covers& covers) {
  std::vector<Item> kept;
  for (const Item& item : items)
    if (std::none_of(kept.rbegin(), kept.rend(), [&](const Item& other) { return covers(other, item); })) kept.push_back(item);
  items = std::move(kept);
}

// Lists the options of the blocks of one stage.
class Lister {
 public:
  Lister(const BlockProblem& problem, cost::CostModel& cost_model, const StageRanks& ranks)
      : problem_(problem), cost_model_(cost_model), ranks_(ranks), samples_(problem.global_batch / ranks.micro_batches) {}

  StageOptions list() {
    for (std::size_t repeat = 0; repeat < problem_.model.repeats.size() && out_.possible; ++repeat) {
      out_.blocks.emplace_back();
      list(static_cast<int>(repeat));
      out_.possible = !out_.blocks.back().empty();
    }
    return std::move(out_);
  }

 private:
  void list(int repeat) {
    const model::BlockSpec& block = problem_.model.repeats[static_cast<std::size_t>(repeat)].block;
    const BlockSpace& space = problem_.space;
    const int domain = cost_model_.domain(ranks_.devices);
    const auto experts = static_cast<std::int64_t>(plan::option_of(block, "experts"));
    const auto heads = static_cast<std::int64_t>(plan::option_of(block, "heads"));
    for (const std::int64_t tp : plan::divisors_of(ranks_.width)) {
      if (!GivenDegrees::allows(ranks_.fixed.tensor, tp)) continue;
      if (tp > (space.uniform ? space.most_tensor : std::min(domain, space.most_tensor)) || !GivenDegrees::allows(space.given.tensor, tp) ||
          plan::tensor_fault(block, tp))
        continue;
      // A limit of the space: without it each stage would be searched twice where nothing is cut.
      if (tp == 1 && cost_model_.parts_of(ranks_.devices).dealt_over > 0) continue;
      for (const std::int64_t cp : plan::divisors_of(ranks_.width / tp)) {
        if (cp > space.most_context || !GivenDegrees::allows(space.given.context, cp) || !context_divides(block, cp)) continue;
        const std::int64_t dp = ranks_.width / (tp * cp);
        if (!GivenDegrees::allows(space.given.data, dp)) continue;
        std::vector<BlockOption> here;
        for (const std::int64_t ep : plan::divisors_of(std::max<std::int64_t>(1, std::gcd(experts, dp * cp)))) {
          if ((experts > 0 && !GivenDegrees::allows(space.given.experts, ep)) || (space.uniform && ep > 1)) continue;
          plan::Strategy strategy;
          strategy.dp = static_cast<int>(dp);
          strategy.tp = static_cast<int>(tp);
          strategy.cp = static_cast<int>(cp);
          strategy.ep = static_cast<int>(ep);
          strategy.sequence_parallel = tp > 1 && !space.uniform;
          if (!cost_model_.divides(ranks_.devices, strategy, samples_)) continue;
          add_states(repeat, strategy, here);
          if (cp == 1 || heads == 0 || heads / tp % cp != 0) continue;
          strategy.context = model::ContextKind::ulysses;
          add_states(repeat, strategy, here);
        }
        std::stable_sort(here.begin(), here.end(),
                         [](const BlockOption& a, const BlockOption& b) { return a.forward + a.backward < b.forward + b.backward; });
        drop_covered(here, [](const BlockOption& a, const BlockOption& b) {
          return a.forward <= b.forward && a.backward <= b.backward && a.once <= b.once && a.fixed <= b.fixed && a.saved <= b.saved &&
                 a.workspace <= b.workspace && a.tied_once <= b.tied_once && a.tied_fixed <= b.tied_fixed;
        });
        out_.blocks.back().insert(out_.blocks.back().end(), here.begin(), here.end());
      }
    }
  }

  // Every way to keep the state and the activations.
  void add_states(int repeat, plan::Strategy strategy, std::vector<BlockOption>& out) {
    const std::vector<model::Repeat>& repeats = problem_.model.repeats;
    const bool end = repeat == 0 || repeat + 1 == static_cast<int>(repeats.size());
    const std::vector<model::Recompute>& recomputes = problem_.space.recompute;
    for (const auto& [zero, shards] : sharding_of(strategy)) {
      strategy.zero = zero;
      strategy.shards = shards;
      for (const model::Recompute recompute : recomputes) {
        // Fused attention computes its scores again by itself.
        if (recompute == model::Recompute::selective && recomputes.size() > 1 && (end || cost_model_.attention_is_fused(ranks_.devices)))
          continue;
        strategy.recompute = end ? model::Recompute::none : recompute;
        for (const bool offload : {false, true}) {
          if (offload && !problem_.space.offload) continue;
          strategy.offload_optimizer = offload;
          const cost::BlockLoad load = cost_model_.priced(repeat, ranks_.devices, strategy, samples_);
          out.push_back({strategy, layout_of(strategy), load.forward, load.backward(), load.exchange + load.optimizer, load.state_bytes(),
                         load.saved, load.workspace, load.tied_exchange, load.tied_bytes});
        }
        if (end) break;
      }
    }
  }

  // ZeRO's stages, each over all replicas and over those of one domain: {zero, shards}.
  std::vector<std::pair<int, int>> sharding_of(const plan::Strategy& strategy) const {
    if (strategy.copies() == 1) return {{0, 0}};
    if (problem_.space.uniform) return {{ranks_.fixed.zero, 0}};
    const int group = problem_.space.sharding_groups ? sharding_group(cost_model_, ranks_.devices, strategy) : 0;
    std::vector<std::pair<int, int>> out;
    for (const int zero : problem_.space.zero) {
      out.emplace_back(zero, 0);
      if (zero > 0 && group > 0) out.emplace_back(zero, group);
    }
    return out;
  }

  int layout_of(const plan::Strategy& strategy) {
    const auto found = std::find_if(out_.layouts.begin(), out_.layouts.end(),
                                    [&](const plan::Strategy& s) { return s.tp == strategy.tp && s.cp == strategy.cp; });
    if (found != out_.layouts.end()) return static_cast<int>(found - out_.layouts.begin());
    plan::Strategy degrees;
    degrees.dp = strategy.dp;
    degrees.tp = strategy.tp;
    degrees.cp = strategy.cp;
    out_.layouts.push_back(degrees);
    return static_cast<int>(out_.layouts.size()) - 1;
  }

  const BlockProblem& problem_;
  cost::CostModel& cost_model_;
  const StageRanks& ranks_;
  const std::int64_t samples_;
  StageOptions out_;
};

}  // namespace

int sharding_group(const cost::CostModel& cost_model, int devices, const plan::Strategy& strategy) {
  const cost::StageDevices& on = cost_model.parts_of(devices);
  const int inside = on.parts.size() > 1 || on.dealt_over > 0 ? 0 : cost_model.domain(devices) / strategy.tp;
  return inside > 1 && inside < strategy.copies() && strategy.copies() % inside == 0 ? inside : 0;
}

bool context_divides(const model::BlockSpec& block, std::int64_t degree) {
  const auto sequence = static_cast<std::int64_t>(plan::option_of(block, "seq"));
  return degree == 1 || (sequence > 0 && sequence % (2 * degree) == 0);
}

StageOptions options_of(const BlockProblem& problem, cost::CostModel& cost_model, const StageRanks& ranks) {
  return Lister(problem, cost_model, ranks).list();
}

StageFronts::StageFronts(const BlockProblem& problem, cost::CostModel& cost_model, const StageRanks& ranks, plan::Schedule schedule,
                         const StageOptions& options, Effort& effort, std::pmr::memory_resource& memory)
    : problem_(problem),
      cost_model_(cost_model),
      effort_(effort),
      ranks_(ranks),
      listed_(options),
      shares_(tessera::cost::warm_up_of(schedule, 1, cost_model.weight_pass_bubble(ranks.devices))),
      samples_(problem.global_batch / ranks.micro_batches),
      limit_(problem.space.memory * cost_model.memory_limit(ranks.devices) - cost_model.process_bytes(ranks.devices)),
      host_(cost_model.micro_batch_host(ranks.devices)),
      reshards_(options.blocks.size()),
      entries_(&memory) {
  for (const std::vector<BlockOption>& of_block : options.blocks) {
    priced_.emplace_back();
    double busy = std::numeric_limits<double>::infinity();
    double warm_up = busy;
    double bytes = busy;
    for (const BlockOption& option : of_block) {
      Priced& priced = priced_.back().emplace_back();
      priced.warm_up = shares_.forward * option.forward + shares_.backward * option.backward;
      priced.busy = static_cast<double>(ranks.micro_batches) * (option.forward + option.backward) - priced.warm_up + option.once;
      busy = std::min(busy, priced.busy);
      warm_up = std::min(warm_up, priced.warm_up);
      bytes = std::min(bytes, option.fixed + option.saved);
    }
    least_busy_.push_back(busy);
    least_warm_up_.push_back(warm_up);
    least_bytes_.push_back(bytes);
  }
  double work = 0;
  for (const int repeat : cost_model.repeat_of()) work += least_busy(repeat) + least_warm_up(repeat);
  prices_ = {0};
  for (int power = -kPrices; power <= kPrices; ++power) prices_.push_back(std::ldexp(work / limit_, power));
}

void StageFronts::start(bool rough) {
  rough_ = rough;
  forget();
}

void StageFronts::forget() {
  fronts_.clear();
  entries_.clear();
}

double StageFronts::reshard(int repeat, int before, int after) {
  if (before == after) return 0;
  std::vector<double>& table = reshards_[static_cast<std::size_t>(repeat)];
  if (table.empty()) table.assign(listed_.layouts.size() * listed_.layouts.size(), -1);
  double& seconds = table[static_cast<std::size_t>(before) * listed_.layouts.size() + static_cast<std::size_t>(after)];
  if (seconds < 0)
    seconds = cost_model_.reshard(repeat, ranks_.devices, listed_.layouts[static_cast<std::size_t>(before)],
                                  listed_.layouts[static_cast<std::size_t>(after)], samples_);
  return seconds;
}

StageFronts::Held& StageFronts::at(double held) {
  const auto found = held_.find(held);
  return found != held_.end() ? found->second : held_.emplace(held, made_at(held)).first->second;
}

StageFronts::Held StageFronts::made_at(double held) const {
  Held out;
  out.least.resize(listed_.blocks.size());
  for (std::size_t repeat = 0; repeat < listed_.blocks.size(); ++repeat) {
    const std::vector<BlockOption>& options = listed_.blocks[repeat];
    const std::vector<Priced>& priced = priced_[repeat];
    const auto bytes = [&](int o) {
      return options[static_cast<std::size_t>(o)].fixed + held * options[static_cast<std::size_t>(o)].saved;
    };
    std::vector<int> kept(options.size());
    std::iota(kept.begin(), kept.end(), 0);
    std::stable_sort(kept.begin(), kept.end(), [&](int a, int b) {
      return std::tuple(options[static_cast<std::size_t>(a)].layout, priced[static_cast<std::size_t>(a)].busy, bytes(a)) <
             std::tuple(options[static_cast<std::size_t>(b)].layout, priced[static_cast<std::size_t>(b)].busy, bytes(b));
    });
    drop_covered(kept, [&](int i, int j) {
      const BlockOption& a = options[static_cast<std::size_t>(i)];
      const BlockOption& b = options[static_cast<std::size_t>(j)];
      return a.layout == b.layout && priced[static_cast<std::size_t>(i)].busy <= priced[static_cast<std::size_t>(j)].busy &&
             priced[static_cast<std::size_t>(i)].warm_up <= priced[static_cast<std::size_t>(j)].warm_up && bytes(i) <= bytes(j) &&
             a.workspace <= b.workspace && a.tied_once <= b.tied_once && a.tied_fixed <= b.tied_fixed;
    });
    double workspace = std::numeric_limits<double>::infinity();
    for (const double price : prices_) {
      double best = std::numeric_limits<double>::infinity();
      for (const int o : kept)
        best = std::min(best, priced[static_cast<std::size_t>(o)].busy + priced[static_cast<std::size_t>(o)].warm_up + price * bytes(o));
      out.least[repeat].push_back(best);
    }
    double least_bytes = std::numeric_limits<double>::infinity();
    for (const int o : kept) {
      workspace = std::min(workspace, options[static_cast<std::size_t>(o)].workspace);
      least_bytes = std::min(least_bytes, bytes(o));
    }
    out.least_bytes.push_back(least_bytes);
    out.options.push_back(std::move(kept));
    out.workspaces.push_back(workspace);
  }
  return out;
}

// Only those that are cut into fronts need it.
void StageFronts::sum_up(Held& held) const {
  if (!held.sums.empty()) return;
  const std::vector<int>& repeat_of = cost_model_.repeat_of();
  for (std::size_t p = 0; p < prices_.size(); ++p) {
    std::vector<double> sum(repeat_of.size() + 1, 0.0);
    for (std::size_t b = 0; b < repeat_of.size(); ++b) sum[b + 1] = sum[b] + held.least[static_cast<std::size_t>(repeat_of[b])][p];
    held.sums.push_back(std::move(sum));
  }
  held.bytes_before.push_back(0);
  for (const int repeat : repeat_of)
    held.bytes_before.push_back(held.bytes_before.back() + held.least_bytes[static_cast<std::size_t>(repeat)]);
}

double StageFronts::bound(const Held& held, const Target& target, int from, const StageEntry& entry, std::size_t price) const {
  const std::vector<double>& sums = held.sums[price];
  const double rest = sums[static_cast<std::size_t>(target.last)] - sums[static_cast<std::size_t>(from)];
  return entry.busy + entry.warm_up + rest + prices_[price] * (bytes(entry, target) - target.limit);
}

StageEntry StageFronts::empty() const {
  StageEntry out;
  out.warm_up = shares_.forward * host_;
  out.busy = static_cast<double>(ranks_.micro_batches) * host_ - out.warm_up;
  return out;
}

StageEntry StageFronts::with(const StageEntry& entry, const Target& target, int block, int from, int o) {
  effort_.spend();
  const int repeat = cost_model_.repeat_of()[static_cast<std::size_t>(block)];
  const BlockOption& option = listed_.blocks[static_cast<std::size_t>(repeat)][static_cast<std::size_t>(o)];
  const Priced& priced = priced_[static_cast<std::size_t>(repeat)][static_cast<std::size_t>(o)];
  const bool start = block == target.first;
  const bool tied = target.first > 0;
  const double again = start ? 0 : reshard(repeat, from, option.layout);
  const double warm_up = (shares_.forward + shares_.backward) * again;
  StageEntry out;
  out.warm_up = entry.warm_up + priced.warm_up + warm_up;
  out.busy = entry.busy + priced.busy + 2 * static_cast<double>(ranks_.micro_batches) * again - warm_up + (tied ? option.tied_once : 0);
  out.fixed = entry.fixed + option.fixed + (tied ? option.tied_fixed : 0);
  out.saved = entry.saved + option.saved;
  out.workspace = std::max(entry.workspace, option.workspace);
  out.option = o;
  out.before = start ? nullptr : &entry;
  return out;
}

// Every entry of `before`, the range up to `block`, with every option of that block.
StageFronts::Chain StageFronts::extended(const Held& held, const Target& target, const Chain& before, int block) {
  const std::vector<int>& repeat_of = cost_model_.repeat_of();
  const int repeat = repeat_of[static_cast<std::size_t>(block)];
  const std::vector<BlockOption>& options = listed_.blocks[static_cast<std::size_t>(repeat)];
  const bool keep_degrees =
      block > target.first && !problem_.space.mixed_degrees && repeat_of[static_cast<std::size_t>(block) - 1] == repeat;
  const double rest = held.bytes_before[static_cast<std::size_t>(target.last)] - held.bytes_before[static_cast<std::size_t>(block) + 1];
  std::vector<std::vector<StageEntry>> made(listed_.layouts.size());
  for (std::size_t from = 0; from < before.size(); ++from)
    for (const StageEntry* entry : before[from]) {
      effort_.watch();
      for (const int o : held.options[static_cast<std::size_t>(repeat)]) {
        const int layout = options[static_cast<std::size_t>(o)].layout;
        if (keep_degrees && layout != static_cast<int>(from)) continue;
        const StageEntry next = with(*entry, target, block, static_cast<int>(from), o);
        if (bound(held, target, block + 1, next, 0) > target.most) continue;
        if (target.memory && (bytes(next, target) + rest > target.limit ||
                              std::any_of(target.prices.begin(), target.prices.end(),
                                          [&](std::size_t price) { return bound(held, target, block + 1, next, price) > target.most; })))
          continue;
        made[static_cast<std::size_t>(layout)].push_back(next);
      }
    }
  Chain out(listed_.layouts.size());
  for (std::size_t layout = 0; layout < made.size(); ++layout) {
    std::vector<const StageEntry*> entries;
    entries.reserve(made[layout].size());
    for (const StageEntry& entry : made[layout]) entries.push_back(&entry);
    std::sort(entries.begin(), entries.end(), [&](const StageEntry* a, const StageEntry* b) {
      return std::tuple(a->busy, a->warm_up, bytes(*a, target), a) < std::tuple(b->busy, b->warm_up, bytes(*b, target), b);
    });
    drop_covered(entries, [&](const StageEntry* a, const StageEntry* b) {
      if (a->warm_up > b->warm_up) return false;
      return !target.memory || (std::max(a->workspace, target.workspace) <= std::max(b->workspace, target.workspace) &&
                                a->fixed + target.held * a->saved <= b->fixed + target.held * b->saved);
    });
    for (const StageEntry* entry : entries) {
      entries_.push_back(*entry);
      out[layout].push_back(&entries_.back());
    }
  }
  return out;
}

// By repeat: the option of the layout, where it has one, that costs least with bytes at a price.
const std::vector<int>& StageFronts::cheapest(double held, int layout, std::size_t price) {
  Held& tables = at(held);
  const auto [found, fresh] = tables.cheapest.try_emplace({layout, price});
  std::vector<int>& out = found->second;
  if (!fresh) return out;
  for (std::size_t repeat = 0; repeat < listed_.blocks.size(); ++repeat) {
    const std::vector<int>& options = tables.options[repeat];
    out.push_back(options.front());
    std::pair least(true, std::numeric_limits<double>::infinity());
    for (const int o : options) {
      const BlockOption& option = listed_.blocks[repeat][static_cast<std::size_t>(o)];
      const Priced& priced = priced_[repeat][static_cast<std::size_t>(o)];
      const std::pair cost(option.layout != layout, priced.busy + priced.warm_up + prices_[price] * (option.fixed + held * option.saved));
      if (cost >= least) continue;
      least = cost;
      out.back() = o;
    }
  }
  return out;
}

std::vector<int> StageFronts::cheapest(const Target& target, int layout, std::size_t price) {
  const std::vector<int>& by_repeat = cheapest(target.held, layout, price);
  std::vector<int> out;
  for (int block = target.first; block < target.last; ++block)
    out.push_back(by_repeat[static_cast<std::size_t>(cost_model_.repeat_of()[static_cast<std::size_t>(block)])]);
  return out;
}

const StageEntry* StageFronts::built(const Target& target, const std::vector<int>& options) {
  entries_.push_back(empty());
  const StageEntry* at = &entries_.back();
  int layout = 0;
  for (int block = target.first; block < target.last; ++block) {
    const int option = options[static_cast<std::size_t>(block - target.first)];
    entries_.push_back(with(*at, target, block, layout, option));
    at = &entries_.back();
    layout =
        listed_.blocks[static_cast<std::size_t>(cost_model_.repeat_of()[static_cast<std::size_t>(block)])][static_cast<std::size_t>(option)]
            .layout;
  }
  return at;
}

// In every layout the lowest price of memory at which the blocks fit, with as many blocks as fit run as at the next lower one.
std::vector<const StageEntry*> StageFronts::rough_entries(const Target& target) {
  std::vector<const StageEntry*> out;
  for (int layout = 0; layout < static_cast<int>(listed_.layouts.size()); ++layout) {
    const auto fitting = [&](const std::vector<int>& options) {
      const StageEntry* entry = built(target, options);
      return entry->bytes(target.held) <= target.limit ? entry : nullptr;
    };
    // The dearer memory is, the less the cheapest options take.
    std::size_t low = 0;
    std::size_t high = prices_.size() - 1;
    std::vector<int> options = cheapest(target, layout, low);
    if (const StageEntry* entry = fitting(options)) {
      out.push_back(entry);
      continue;
    }
    std::vector<int> before = options;
    options = cheapest(target, layout, high);
    const StageEntry* entry = fitting(options);
    if (entry == nullptr) continue;
    while (high - low > 1) {
      const std::size_t middle = (low + high) / 2;
      std::vector<int> tried = cheapest(target, layout, middle);
      const bool known = tried == options || tried == before;
      const StageEntry* made = known ? nullptr : fitting(tried);
      if (tried == options || made != nullptr) {
        high = middle;
        options = std::move(tried);
        if (made != nullptr) entry = made;
      } else {
        low = middle;
        before = std::move(tried);
      }
    }
    out.push_back(entry);
    double bytes = entry->bytes(target.held);
    for (std::size_t i = 0; i < options.size(); ++i) {
      const auto& choices = listed_.blocks[static_cast<std::size_t>(cost_model_.repeat_of()[static_cast<std::size_t>(target.first) + i])];
      const BlockOption& from = choices[static_cast<std::size_t>(options[i])];
      const BlockOption& to = choices[static_cast<std::size_t>(before[i])];
      const double more = to.fixed - from.fixed + target.held * (to.saved - from.saved) + std::max(0.0, to.workspace - entry->workspace);
      if (bytes + more > target.limit) continue;
      bytes += more;
      options[i] = before[i];
    }
    if (const StageEntry* mixed = fitting(options)) out.push_back(mixed);
  }
  return out;
}

// What the buffers of a stage leave.
double StageFronts::room(int first, int last) const {
  const std::vector<int>& repeat_of = cost_model_.repeat_of();
  cost::StageBuffers of{.width = ranks_.width, .samples = samples_, .micro_batches = ranks_.micro_batches};
  if (first > 0) of.receives = repeat_of[static_cast<std::size_t>(first)];
  if (last < static_cast<int>(repeat_of.size())) of.sends = repeat_of[static_cast<std::size_t>(last)];
  if (cost_model_.plays_exchanges(ranks_.devices))
    for (int b = first; b < last; ++b) {
      const int repeat = repeat_of[static_cast<std::size_t>(b)];
      of.strategy = listed_.blocks[static_cast<std::size_t>(repeat)].front().strategy;
      const cost::BlockLoad& load = cost_model_.block(repeat, ranks_.devices, of.strategy, samples_);
      of.gradients += load.gradients + (first > 0 ? load.tied_gradients : 0);
      of.output = std::max(of.output, load.output);
    }
  return limit_ - cost_model_.buffers(ranks_.devices, of);
}

std::vector<const StageEntry*> StageFronts::entries(const Target& target) {
  const Held& held = at(target.held);
  const StageEntry start = empty();
  Chain chain{{&start}};
  for (int block = target.first; block < target.last; ++block) chain = extended(held, target, chain, block);
  std::vector<const StageEntry*> out;
  for (const auto& of_layout : chain) out.insert(out.end(), of_layout.begin(), of_layout.end());
  return out;
}

const std::vector<const StageEntry*>& StageFronts::front(int first, int last, double held, double most) {
  const std::vector<int>& repeat_of = cost_model_.repeat_of();
  std::vector<std::pair<int, int>> runs;
  for (int b = first; b < last; ++b) {
    if (runs.empty() || runs.back().first != repeat_of[static_cast<std::size_t>(b)])
      runs.emplace_back(repeat_of[static_cast<std::size_t>(b)], 0);
    ++runs.back().second;
  }
  const auto [found, fresh] = fronts_.try_emplace({std::move(runs), held, first > 0, last < static_cast<int>(repeat_of.size())});
  std::vector<const StageEntry*>& out = found->second;
  if (!fresh) return out;
  Held& tables = at(held);
  sum_up(tables);
  Target target{first, last, held, most, room(first, last), 0, false, {}};
  for (int b = first; b < last; ++b)
    target.workspace = std::max(target.workspace, tables.workspaces[static_cast<std::size_t>(repeat_of[static_cast<std::size_t>(b)])]);
  std::size_t best = 0;
  for (std::size_t price = 1; price < prices_.size(); ++price)
    if (bound(tables, target, first, {}, price) > bound(tables, target, first, {}, best)) best = price;
  if (bound(tables, target, first, {}, best) > most) return out;
  for (std::size_t price = std::max<std::size_t>(1, best < kNeighbours ? 1 : best - kNeighbours);
       price <= std::min(prices_.size() - 1, best + kNeighbours); ++price)
    target.prices.push_back(price);
  const auto thin = [&] {
    std::stable_sort(out.begin(), out.end(), [&](const StageEntry* a, const StageEntry* b) {
      return std::tuple(a->busy, a->warm_up) < std::tuple(b->busy, b->warm_up);
    });
    drop_covered(out, [](const StageEntry* a, const StageEntry* b) { return a->warm_up <= b->warm_up; });
  };
  if (rough_) {
    out = rough_entries(target);
    thin();
    return out;
  }
  // Where the fastest fit, memory decides nothing.
  target.memory = best > 0;
  out = entries(target);
  if (target.memory || std::all_of(out.begin(), out.end(), [&](const StageEntry* entry) { return entry->bytes(held) <= target.limit; })) {
    thin();
    return out;
  }
  target.memory = true;
  out = entries(target);
  thin();
  return out;
}

std::vector<plan::Strategy> StageFronts::strategies(const StageEntry& entry, int first, int last) const {
  std::vector<plan::Strategy> out(static_cast<std::size_t>(last - first));
  const StageEntry* at = &entry;
  for (int b = last - 1; b >= first; --b, at = at->before)
    out[static_cast<std::size_t>(b - first)] =
        listed_.blocks[static_cast<std::size_t>(cost_model_.repeat_of()[static_cast<std::size_t>(b)])][static_cast<std::size_t>(at->option)]
            .strategy;
  // Equal blocks cut alike may stand in any order; like beside like reads best.
  const std::vector<int>& repeat_of = cost_model_.repeat_of();
  const auto alike = [&](std::size_t a, std::size_t b) {
    return repeat_of[static_cast<std::size_t>(first) + a] == repeat_of[static_cast<std::size_t>(first) + b] && out[a].tp == out[b].tp &&
           out[a].cp == out[b].cp;
  };
  for (std::size_t begin = 0, end = 0; begin < out.size(); begin = end) {
    while (end < out.size() && alike(begin, end)) ++end;
    const auto order = [](const plan::Strategy& s) {
      return std::tuple(s.zero, s.shards, s.recompute, s.offload_optimizer, s.ep, s.context);
    };
    std::stable_sort(out.begin() + static_cast<std::ptrdiff_t>(begin), out.begin() + static_cast<std::ptrdiff_t>(end),
                     [&](const plan::Strategy& a, const plan::Strategy& b) { return order(a) < order(b); });
  }
  return out;
}

}  // namespace tessera::search
