#include "search/stage_fronts.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "plan/schedule/schedule.hpp"
#include "plan/tensor_cut.hpp"

namespace tessera::search {
namespace {

// Prices of a byte that bounds are computed with: so many powers of two around the least time over the memory, and 0.
constexpr int kPrices = 16;
// Of these, so many on each side of the one that bounds a range best are used within it.
constexpr std::size_t kNeighbours = 2;

void thin(std::vector<const StageEntry*>& entries) {
  std::ranges::stable_sort(entries, {}, [](const StageEntry* entry) { return std::tuple(entry->busy, entry->warm_up); });
  drop_covered(entries, [](const StageEntry* a, const StageEntry* b) { return a->warm_up <= b->warm_up; });
}

}  // namespace

StageFronts::StageFronts(const BlockProblem& problem, cost::CostModel& cost_model, const StageRanks& ranks, plan::Schedule schedule,
                         int chunks, const StageOptions& options, Effort& effort, std::pmr::memory_resource& memory)
    : cost_model_(cost_model),
      effort_(effort),
      ranks_(ranks),
      listed_(options),
      shares_(tessera::cost::warm_up_of(schedule, chunks, cost_model.weight_pass_bubble(ranks.devices))),
      samples_(problem.global_batch / ranks.micro_batches),
      limit_(problem.space.memory * cost_model.memory_limit(ranks.devices) - cost_model.process_bytes(ranks.devices)),
      host_(cost_model.micro_batch_host(ranks.devices)),
      reshards_(options.blocks.size()),
      entries_(&memory),
      shares_parameters_(plan::sharing_parameters(problem.model)),
      chunks_(chunks),
      splits_backward_(plan::splits_backward(schedule)) {
  for (const std::vector<BlockOption>& of_block : options.blocks) {
    priced_.emplace_back();
    Least& least = least_.emplace_back();
    for (const BlockOption& option : of_block) {
      Priced& priced = priced_.back().emplace_back();
      priced.warm_up = shares_.forward * option.forward + shares_.backward * option.backward;
      priced.busy = static_cast<double>(ranks.micro_batches) * (option.forward + option.backward) - priced.warm_up + option.once;
      least.busy = std::min(least.busy, priced.busy);
      least.warm_up = std::min(least.warm_up, priced.warm_up);
      least.bytes = std::min(least.bytes, option.fixed + saved_of(option));
    }
  }
  double work = 0;
  for (const int repeat : cost_model.repeat_of()) work += least(repeat).busy + least(repeat).warm_up;
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
  std::vector<double>& table = reshards_[repeat];
  if (table.empty()) table.assign(listed_.layouts.size() * listed_.layouts.size(), -1);
  double& seconds = table[before * listed_.layouts.size() + after];
  if (seconds < 0) seconds = cost_model_.reshard(repeat, ranks_.devices, listed_.layouts[before], listed_.layouts[after], samples_);
  return seconds;
}

StageFronts::InFlight& StageFronts::at(double in_flight) {
  const auto found = in_flight_.find(in_flight);
  return found != in_flight_.end() ? found->second : in_flight_.emplace(in_flight, made_at(in_flight)).first->second;
}

StageFronts::InFlight StageFronts::made_at(double in_flight) const {
  InFlight out;
  out.least.resize(listed_.blocks.size());
  for (std::size_t repeat = 0; repeat < listed_.blocks.size(); ++repeat) {
    const std::vector<BlockOption>& options = listed_.blocks[repeat];
    const std::vector<Priced>& priced = priced_[repeat];
    const auto bytes = [&](int o) {
      const BlockOption& option = options[o];
      return option.fixed + in_flight * saved_of(option);
    };
    std::vector<int> kept(options.size());
    std::iota(kept.begin(), kept.end(), 0);
    std::ranges::stable_sort(kept, {}, [&](int o) { return std::tuple(options[o].layout, priced[o].busy, bytes(o)); });
    drop_covered(kept, [&](int i, int j) {
      const BlockOption& a = options[i];
      const BlockOption& b = options[j];
      return a.layout == b.layout && priced[i].busy <= priced[j].busy && priced[i].warm_up <= priced[j].warm_up && bytes(i) <= bytes(j) &&
             a.workspace <= b.workspace && a.tied_once <= b.tied_once && a.tied_fixed <= b.tied_fixed;
    });
    const auto least = [&](const auto& of) {
      double all = kNever;
      for (const int o : kept) all = std::min(all, of(o));
      return all;
    };
    for (const double price : prices_)
      out.least[repeat].push_back(least([&](int o) { return priced[o].busy + priced[o].warm_up + price * bytes(o); }));
    out.least_bytes.push_back(least(bytes));
    out.workspaces.push_back(least([&](int o) { return options[o].workspace; }));
    out.options.push_back(std::move(kept));
  }
  return out;
}

// Only those that are cut into fronts need it.
void StageFronts::sum_up(InFlight& tables) const {
  if (!tables.sums.empty()) return;
  const std::vector<int>& repeat_of = cost_model_.repeat_of();
  for (std::size_t p = 0; p < prices_.size(); ++p) {
    std::vector<double> sum(repeat_of.size() + 1, 0.0);
    for (std::size_t b = 0; b < repeat_of.size(); ++b) sum[b + 1] = sum[b] + tables.least[repeat_of[b]][p];
    tables.sums.push_back(std::move(sum));
  }
  tables.bytes_before.push_back(0);
  for (const int repeat : repeat_of) tables.bytes_before.push_back(tables.bytes_before.back() + tables.least_bytes[repeat]);
}

double StageFronts::bound(const Target& target, const Range& range, int from, const StageEntry& entry, std::size_t price) const {
  const std::vector<double>& sums = range.tables->sums[price];
  const double rest = sums[range.segment.last] - sums[from] + range.least_behind[price];
  return entry.busy + entry.warm_up + rest + prices_[price] * (bytes(entry, target) - target.limit);
}

StageEntry StageFronts::empty() const {
  StageEntry out;
  out.warm_up = shares_.forward * chunks_ * host_;
  out.busy = static_cast<double>(ranks_.micro_batches) * chunks_ * host_ - out.warm_up;
  return out;
}

StageEntry StageFronts::with(const StageEntry& entry, const Target& target, const Range& range, int block, int from, int o) {
  effort_.spend();
  const int repeat = repeat_of(block);
  const BlockOption& option = listed_.blocks[repeat][o];
  const Priced& priced = priced_[repeat][o];
  const int first = target.ranges.front().segment.first;
  const double again = block == range.segment.first ? 0 : reshard(repeat, from, option.layout);
  const double warm_up = (shares_.forward + shares_.backward) * again;
  StageEntry out;
  out.warm_up = entry.warm_up + priced.warm_up + warm_up;
  out.busy =
      entry.busy + priced.busy + 2 * static_cast<double>(ranks_.micro_batches) * again - warm_up + (first > 0 ? option.tied_once : 0);
  out.fixed = entry.fixed + option.fixed + (first > 0 ? option.tied_fixed : 0);
  out.saved = entry.saved + range.segment.in_flight * saved_of(option);
  out.workspace = std::max(entry.workspace, option.workspace);
  out.option = o;
  out.before = block == first ? nullptr : &entry;
  return out;
}

// Every entry of `before`, the blocks up to `block`, with every option of that block.
StageFronts::Chain StageFronts::extended(const Target& target, const Range& range, const Chain& before, int block) {
  const int repeat = repeat_of(block);
  const std::vector<BlockOption>& options = listed_.blocks[repeat];
  const InFlight& tables = *range.tables;
  const double rest = tables.bytes_before[range.segment.last] - tables.bytes_before[block + 1] + range.bytes_behind;
  std::vector<std::vector<StageEntry>> made(listed_.layouts.size());
  for (std::size_t from = 0; from < before.size(); ++from)
    for (const StageEntry* entry : before[from]) {
      effort_.watch();
      for (const int o : tables.options[repeat]) {
        const int layout = options[o].layout;
        if (target.shared_tp > 0 && shares_parameters_[repeat] && listed_.layouts[layout].tp != target.shared_tp) continue;
        const StageEntry next = with(*entry, target, range, block, static_cast<int>(from), o);
        if (bound(target, range, block + 1, next, 0) > target.most) continue;
        if (target.memory && (bytes(next, target) + rest > target.limit || std::ranges::any_of(target.prices, [&](std::size_t price) {
                                return bound(target, range, block + 1, next, price) > target.most;
                              })))
          continue;
        made[layout].push_back(next);
      }
    }
  Chain out(listed_.layouts.size());
  for (std::size_t layout = 0; layout < made.size(); ++layout) {
    std::vector<const StageEntry*> entries;
    entries.reserve(made[layout].size());
    for (const StageEntry& entry : made[layout]) entries.push_back(&entry);
    std::ranges::sort(entries, {}, [&](const StageEntry* one) { return std::tuple(one->busy, one->warm_up, bytes(*one, target), one); });
    drop_covered(entries, [&](const StageEntry* a, const StageEntry* b) {
      if (a->warm_up > b->warm_up) return false;
      return !target.memory || (std::max(a->workspace, target.workspace) <= std::max(b->workspace, target.workspace) &&
                                a->fixed + a->saved <= b->fixed + b->saved);
    });
    for (const StageEntry* entry : entries) {
      entries_.push_back(*entry);
      out[layout].push_back(&entries_.back());
    }
  }
  return out;
}

// By repeat: the option of the layout, where it has one, that costs least with bytes at a price.
const std::vector<int>& StageFronts::cheapest(double in_flight, int layout, std::size_t price) {
  InFlight& tables = at(in_flight);
  const auto [found, fresh] = tables.cheapest.try_emplace({layout, price});
  std::vector<int>& out = found->second;
  if (!fresh) return out;
  for (std::size_t repeat = 0; repeat < listed_.blocks.size(); ++repeat) {
    const std::vector<int>& options = tables.options[repeat];
    out.push_back(options.front());
    std::pair least(true, kNever);
    for (const int o : options) {
      const BlockOption& option = listed_.blocks[repeat][o];
      const Priced& priced = priced_[repeat][o];
      const std::pair cost(option.layout != layout,
                           priced.busy + priced.warm_up + prices_[price] * (option.fixed + in_flight * saved_of(option)));
      if (cost >= least) continue;
      least = cost;
      out.back() = o;
    }
  }
  return out;
}

std::vector<int> StageFronts::cheapest(const Target& target, int layout, std::size_t price) {
  std::vector<int> out;
  for (const Range& range : target.ranges) {
    const std::vector<int>& by_repeat = cheapest(range.segment.in_flight, layout, price);
    for (int block = range.segment.first; block < range.segment.last; ++block) out.push_back(by_repeat[repeat_of(block)]);
  }
  return out;
}

const StageEntry* StageFronts::built(const Target& target, const std::vector<int>& options) {
  entries_.push_back(empty());
  const StageEntry* at = &entries_.back();
  int layout = 0;
  auto option = options.begin();
  for (const Range& range : target.ranges)
    for (int block = range.segment.first; block < range.segment.last; ++block, ++option) {
      entries_.push_back(with(*at, target, range, block, layout, *option));
      at = &entries_.back();
      layout = listed_.blocks[repeat_of(block)][*option].layout;
    }
  return at;
}

// In every layout the lowest price of memory at which the blocks fit, with as many blocks as fit run as at the next lower one.
std::vector<const StageEntry*> StageFronts::rough_entries(const Target& target) {
  std::vector<const StageEntry*> out;
  for (int layout = 0; layout < static_cast<int>(listed_.layouts.size()); ++layout) {
    const auto fitting = [&](const std::vector<int>& options) {
      const StageEntry* entry = built(target, options);
      return entry->bytes() <= target.limit ? entry : nullptr;
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
    double bytes = entry->bytes();
    std::size_t i = 0;
    for (const Range& range : target.ranges)
      for (int block = range.segment.first; block < range.segment.last; ++block, ++i) {
        const auto& choices = listed_.blocks[repeat_of(block)];
        const BlockOption& from = choices[options[i]];
        const BlockOption& to = choices[before[i]];
        const double more = to.fixed - from.fixed + range.segment.in_flight * (saved_of(to) - saved_of(from)) +
                            std::max(0.0, to.workspace - entry->workspace);
        if (bytes + more > target.limit) continue;
        bytes += more;
        options[i] = before[i];
      }
    if (const StageEntry* mixed = fitting(options)) out.push_back(mixed);
  }
  return out;
}

double StageFronts::room(std::span<const Segment> segments) const {
  const int blocks = static_cast<int>(cost_model_.repeat_of().size());
  double most = 0;
  for (const Segment& segment : segments) {
    cost::StageBuffers of{.width = ranks_.width, .samples = samples_, .micro_batches = ranks_.micro_batches};
    if (segment.first > 0) of.receives = repeat_of(segment.first);
    if (segment.last < blocks) of.sends = repeat_of(segment.last);
    if (cost_model_.plays_exchanges(ranks_.devices))
      for (int b = segment.first; b < segment.last; ++b) {
        of.strategy = listed_.blocks[repeat_of(b)].front().strategy;
        const cost::BlockLoad& load = cost_model_.block(repeat_of(b), ranks_.devices, of.strategy, samples_);
        of.gradients += load.gradients + (segments.front().first > 0 ? load.tied_gradients : 0);
        of.output = std::max(of.output, load.output);
      }
    most = std::max(most, cost_model_.buffers(ranks_.devices, of));
  }
  return limit_ - most;
}

std::vector<const StageEntry*> StageFronts::entries(const Target& target) {
  const StageEntry start = empty();
  Chain chain{{&start}};
  for (const Range& range : target.ranges)
    for (int block = range.segment.first; block < range.segment.last; ++block) chain = extended(target, range, chain, block);
  std::vector<const StageEntry*> out;
  for (const auto& of_layout : chain) out.insert(out.end(), of_layout.begin(), of_layout.end());
  return out;
}

template <typename Visit>
void StageFronts::for_options(const StageEntry& entry, std::span<const Segment> segments, const Visit& visit) const {
  const StageEntry* at = &entry;
  for (std::size_t s = segments.size(); s-- > 0;)
    for (int b = segments[s].last - 1; b >= segments[s].first; --b, at = at->before) visit(s, b, listed_.blocks[repeat_of(b)][at->option]);
}

StageFronts::Key StageFronts::key_of(std::span<const Segment> segments) const {
  Key out;
  for (const Segment& segment : segments) {
    std::vector<std::pair<int, int>> runs;
    for (int b = segment.first; b < segment.last; ++b) {
      if (runs.empty() || runs.back().first != repeat_of(b)) runs.emplace_back(repeat_of(b), 0);
      ++runs.back().second;
    }
    out.emplace_back(std::move(runs), segment.in_flight, segment.first > 0,
                     segment.last < static_cast<int>(cost_model_.repeat_of().size()));
  }
  return out;
}

StageFronts::Target StageFronts::target_of(std::span<const Segment> segments, double most) {
  Target out;
  out.most = most;
  out.limit = room(segments);
  for (const Segment& segment : segments) {
    InFlight& tables = at(segment.in_flight);
    sum_up(tables);
    out.ranges.push_back({segment, &tables, std::vector<double>(prices_.size(), 0.0)});
    for (int b = segment.first; b < segment.last; ++b) out.workspace = std::max(out.workspace, tables.workspaces[repeat_of(b)]);
  }
  for (std::size_t r = out.ranges.size() - 1; r > 0; --r) {
    const Range& behind = out.ranges[r];
    const int first = behind.segment.first, last = behind.segment.last;
    Range& range = out.ranges[r - 1];
    for (std::size_t price = 0; price < prices_.size(); ++price)
      range.least_behind[price] = behind.least_behind[price] + behind.tables->sums[price][last] - behind.tables->sums[price][first];
    range.bytes_behind = behind.bytes_behind + behind.tables->bytes_before[last] - behind.tables->bytes_before[first];
  }
  return out;
}

const std::vector<const StageEntry*>& StageFronts::front(std::span<const Segment> segments, double most) {
  const auto [found, fresh] = fronts_.try_emplace(key_of(segments));
  std::vector<const StageEntry*>& out = found->second;
  if (!fresh) return out;
  Target target = target_of(segments, most);
  const auto of_all = [&](std::size_t price) { return bound(target, target.ranges.front(), segments.front().first, {}, price); };
  std::size_t best = 0;
  for (std::size_t price = 1; price < prices_.size(); ++price)
    if (of_all(price) > of_all(best)) best = price;
  if (of_all(best) > most) return out;
  for (std::size_t price = std::max<std::size_t>(1, best < kNeighbours ? 1 : best - kNeighbours);
       price <= std::min(prices_.size() - 1, best + kNeighbours); ++price)
    target.prices.push_back(price);
  const auto unlike = [&](const StageEntry* entry) { return !shares_alike(*entry, segments); };
  if (rough_) {
    out = rough_entries(target);
    std::erase_if(out, unlike);
    thin(out);
    return out;
  }
  // Where the fastest fit, memory decides nothing.
  target.memory = best > 0;
  out = thinned(target);
  if (std::ranges::none_of(out, unlike)) return out;
  out.clear();
  std::set<int> degrees;
  for (const plan::Strategy& layout : listed_.layouts) degrees.insert(layout.tp);
  for (const int degree : degrees) {
    target.shared_tp = degree;
    target.memory = best > 0;
    const std::vector<const StageEntry*> alike = thinned(target);
    out.insert(out.end(), alike.begin(), alike.end());
  }
  thin(out);
  return out;
}

std::vector<const StageEntry*> StageFronts::thinned(Target& target) {
  std::vector<const StageEntry*> out = entries(target);
  if (!target.memory && std::ranges::any_of(out, [&](const StageEntry* entry) { return entry->bytes() > target.limit; })) {
    target.memory = true;
    out = entries(target);
  }
  thin(out);
  return out;
}

bool StageFronts::shares_alike(const StageEntry& entry, std::span<const Segment> segments) const {
  int tp = 0;
  bool alike = true;
  for_options(entry, segments, [&](std::size_t, int block, const BlockOption& option) {
    if (!shares_parameters_[repeat_of(block)]) return;
    alike = alike && (tp == 0 || tp == option.strategy.tp);
    tp = option.strategy.tp;
  });
  return alike;
}

std::vector<double> StageFronts::saved(const StageEntry& entry, std::span<const Segment> segments) const {
  std::vector<double> out(segments.size(), 0.0);
  for_options(entry, segments, [&](std::size_t segment, int, const BlockOption& option) { out[segment] += saved_of(option); });
  return out;
}

std::vector<plan::Strategy> StageFronts::strategies(const StageEntry& entry, std::span<const Segment> segments) const {
  std::vector<plan::Strategy> out;
  std::vector<std::pair<std::size_t, int>> at;  // segment and repeat of each block
  for_options(entry, segments, [&](std::size_t segment, int block, const BlockOption& option) {
    out.push_back(option.strategy);
    at.emplace_back(segment, repeat_of(block));
  });
  std::reverse(out.begin(), out.end());
  std::reverse(at.begin(), at.end());
  // Equal blocks of a stage that are cut alike may stand in any order; like beside like reads best.
  const auto alike = [&](std::size_t a, std::size_t b) { return at[a] == at[b] && out[a].tp == out[b].tp && out[a].cp == out[b].cp; };
  for (std::size_t begin = 0, end = 0; begin < out.size(); begin = end) {
    while (end < out.size() && alike(begin, end)) ++end;
    const auto order = [](const plan::Strategy& s) {
      return std::tuple(s.zero, s.shards, s.recompute, s.offload_optimizer, s.ep, s.context);
    };
    std::ranges::stable_sort(out.begin() + begin, out.begin() + end, {}, order);
  }
  return out;
}

}  // namespace tessera::search
