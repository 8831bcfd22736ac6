#include "plan/uniform_search.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <thread>
#include <tuple>

#include "base/error.hpp"
#include "plan/divisors.hpp"
#include "plan/uniform_parts.hpp"

namespace tessera::plan {
namespace {

// What decides the times of the blocks. All else that a plan says only decides how they are put together.
struct Cut {
  int tp = 1;
  int cp = 1;
  int ep = 1;
  std::int64_t micro_batch = 1;
  Again again = Again::nothing;
};

// How the stages are worked through.
struct Order {
  Schedule schedule = Schedule::one_f_one_b;
  int chunks = 1;
};

std::vector<int> divisors(std::int64_t of, std::int64_t most) {
  std::vector<int> out;
  for (const std::int64_t d : divisors_of(of))
    if (d <= most) out.push_back(static_cast<int>(d));
  return out;
}

std::int64_t rounded(double seconds) { return std::llround(std::log(seconds) * 1e6); }

auto simplicity(const UniformPlan& p) {
  return std::tuple(p.pp, p.tp, p.cp, p.ep, p.chunks, p.schedule, p.zero, p.again, -p.micro_batch, p.stage_layers);
}

bool faster(const UniformCandidate& a, const UniformCandidate& b) {
  const std::int64_t left = rounded(a.price.step);
  const std::int64_t right = rounded(b.price.step);
  return left != right ? left < right : simplicity(a.plan) < simplicity(b.plan);
}

bool smaller(const UniformCandidate& a, const UniformCandidate& b) {
  return std::tuple(std::llround(a.memory), rounded(a.price.step), simplicity(a.plan)) <
         std::tuple(std::llround(b.memory), rounded(b.price.step), simplicity(b.plan));
}

// Plans of a kind, for the runners-up.
int family_index(const UniformPlan& p) {
  return (p.tp > 1 ? 1 : 0) | (p.cp > 1 ? 2 : 0) | (p.pp > 1 ? 4 : 0) | (p.ep > 1 ? 8 : 0) | (p.zero == 3 ? 16 : 0) | (p.dp > 1 ? 32 : 0);
}

// What one thread has found, and what several have together.
struct Findings {
  std::map<int, UniformCandidate> best;       // by family
  std::vector<UniformCandidate> frontier;     // by time; memory falls
  std::optional<UniformCandidate> smallest;
  std::int64_t considered = 0;

  void add(UniformCandidate candidate) {
    const int family = family_index(candidate.plan);
    const auto known = best.find(family);
    if (known == best.end() || faster(candidate, known->second)) best.insert_or_assign(family, candidate);
    add_to_frontier(std::move(candidate));
  }
  void add_small(const UniformCandidate& candidate) {
    if (!smallest || smaller(candidate, *smallest)) smallest = candidate;
  }
  void add_to_frontier(UniformCandidate candidate) {
    const auto place = std::lower_bound(frontier.begin(), frontier.end(), candidate, faster);
    if (place != frontier.begin() && std::prev(place)->memory <= candidate.memory) return;
    auto last = place;
    while (last != frontier.end() && last->memory >= candidate.memory) ++last;
    frontier.insert(frontier.erase(place, last), std::move(candidate));
  }
  void add(Findings other) {
    for (auto& [family, candidate] : other.best) {
      const auto known = best.find(family);
      if (known == best.end() || faster(candidate, known->second)) best.insert_or_assign(family, std::move(candidate));
    }
    for (UniformCandidate& candidate : other.frontier) add_to_frontier(std::move(candidate));
    if (other.smallest) add_small(*other.smallest);
    considered += other.considered;
  }
};

class Search {
 public:
  explicit Search(const UniformProblem& problem) : problem_(problem), devices_(problem.group.nodes * problem.group.devices_per_node) {
    list_cuts();
  }

  UniformSearchResult run() {
    const int wanted = problem_.threads > 0 ? problem_.threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    std::vector<Findings> found(static_cast<std::size_t>(wanted));
    {
      std::vector<std::jthread> threads;
      for (Findings& mine : found) threads.emplace_back([this, &mine] { work(mine); });
    }
    Findings all;
    for (Findings& part : found) all.add(std::move(part));
    if (!all.smallest)
      throw Error(ErrorCode::invalid_config, text("no parallel degrees divide ", devices_, " devices, a global batch of ", problem_.global_batch, ", ", problem_.model.layers,
                                                  " layers and ", problem_.model.heads, " heads at once"),
                  {}, "for example a global batch that is a multiple of the devices");
    UniformSearchResult out;
    for (auto& [family, candidate] : all.best) out.families.push_back(std::move(candidate));
    std::sort(out.families.begin(), out.families.end(), faster);
    out.frontier = std::move(all.frontier);
    out.smallest = *all.smallest;
    out.considered = all.considered;
    return out;
  }

 private:
  void list_cuts() {
    const Transformer& model = problem_.model;
    const std::int64_t split = std::gcd(model.heads, model.latent.key_value_rank > 0 ? model.ffn : std::gcd(model.kv_heads, model.ffn));
    for (const int tp : divisors(split, std::min(devices_, problem_.group.domain())))
      for (const int cp : divisors(devices_ / tp, 64)) {
        if (devices_ % tp != 0 || model.seq % (2 * cp) != 0) continue;
        for (const int ep : expert_degrees(tp))
          for (const int micro_batch : divisors(problem_.global_batch, 16))
            for (const Again again : {Again::nothing, Again::attention, Again::layer}) {
              if (again == Again::attention && problem_.calibration.attention == profile::AttentionKernel::fused) continue;
              cuts_.push_back({tp, cp, ep, micro_batch, again});
            }
      }
  }

  std::vector<int> expert_degrees(int tp) const {
    if (problem_.model.experts.count == 0) return {1};
    return divisors(problem_.model.experts.count, devices_ / tp);
  }

  void work(Findings& mine) {
    for (std::size_t i = next_++; i < cuts_.size(); i = next_++) consider(cuts_[i], mine);
  }

  void consider(const Cut& cut, Findings& mine) {
    UniformPlan plan;
    plan.tp = cut.tp;
    plan.cp = cut.cp;
    plan.ep = cut.ep;
    plan.micro_batch = cut.micro_batch;
    plan.again = cut.again;
    plan.global_batch = problem_.global_batch;
    plan.format = problem_.format;
    plan.sequence_parallel = cut.tp > 1;
    const Pricing pricing(plan, problem_.model, problem_.group, problem_.calibration);
    std::optional<BlockTimes> blocks;
    std::optional<SavedBytes> saved;
    for (const int pp : divisors(devices_ / (cut.tp * cut.cp), problem_.model.layers)) {
      plan.pp = pp;
      plan.dp = devices_ / (cut.tp * cut.cp * pp);
      if (problem_.global_batch % (plan.dp * cut.micro_batch) != 0 || (plan.dp * plan.cp) % plan.ep != 0) continue;
      if (!blocks) {
        blocks = block_times(pricing);
        saved = saved_of(pricing.blocks, problem_.model, plan);
      }
      for (const std::vector<int>& layers : layer_splits(*blocks, pp)) {
        plan.stage_layers = layers;
        consider(plan, pricing, *blocks, *saved, mine);
      }
    }
  }

  // Even stages, and those that give the ends fewer layers to make up for embedding and head.
  std::vector<std::vector<int>> layer_splits(const BlockTimes& blocks, int pp) const {
    std::vector<std::vector<int>> out;
    std::vector<int> even(static_cast<std::size_t>(pp), problem_.model.layers / pp);
    for (int i = 0; i < problem_.model.layers % pp; ++i) ++even[static_cast<std::size_t>(i)];
    out.push_back(even);
    if (pp < 2) return out;
    std::vector<int> fair = balanced(blocks, pp);
    if (fair != even) out.push_back(std::move(fair));
    return out;
  }

  // The least time T in which every stage's share can be done, by bisection, filling stages up to T from the last one on.
  std::vector<int> balanced(const BlockTimes& blocks, int pp) const {
    const auto total = [](const LayerTime& t) { return t.forward.total() + t.backward.total() + t.again.total(); };
    const LayerTime& usual = problem_.model.experts.count > 0 ? blocks.routed : blocks.plain;
    const double layer = total(usual);
    const double first = total(blocks.embedding);
    const double last = total(blocks.head) * (problem_.model.predicts_two ? 2 : 1) + (problem_.model.predicts_two ? layer : 0);
    const auto fill = [&](double limit) {
      std::vector<int> out(static_cast<std::size_t>(pp), 0);
      int left = problem_.model.layers;
      for (int s = pp - 1; s >= 0; --s) {
        const double spare = limit - (s == 0 ? first : 0) - (s == pp - 1 ? last : 0);
        const int most = std::min(left - s, std::max(1, static_cast<int>(spare / layer + 1e-9)));
        out[static_cast<std::size_t>(s)] = std::max(1, most);
        left -= out[static_cast<std::size_t>(s)];
      }
      if (left > 0) out.clear();
      return out;
    };
    double low = layer;
    double high = first + last + layer * problem_.model.layers;
    for (int i = 0; i < 40; ++i) {
      const double middle = (low + high) / 2;
      (fill(middle).empty() ? low : high) = middle;
    }
    return fill(high);
  }

  std::vector<Order> orders(const UniformPlan& plan) const {
    std::vector<Order> out = {{Schedule::one_f_one_b, 1}};
    if (plan.pp == 1) return out;
    out.push_back({Schedule::zb_h1, 1});
    out.push_back({Schedule::zb_h2, 1});
    const int least = *std::min_element(plan.stage_layers.begin(), plan.stage_layers.end());
    if (least >= 2) out.push_back({Schedule::zb_v, 1});
    const auto count = static_cast<std::int64_t>(plan.micro_batches());
    if (count % plan.pp == 0)
      for (int chunks = 2; chunks <= least; ++chunks)
        if (problem_.model.layers % (plan.pp * chunks) == 0) out.push_back({Schedule::interleaved, chunks});
    return out;
  }

  std::vector<int> zero_stages(const UniformPlan& plan) const {
    if (plan.dp * plan.cp == 1) return {0};
    if (plan.pp > 1 || problem_.model.experts.count > 0) return {0, 1};
    return {0, 1, 2, 3};
  }

  // `plan` is what `pricing` refers to: its schedule and ZeRO stage are set here.
  void consider(UniformPlan& plan, const Pricing& pricing, const BlockTimes& blocks, const SavedBytes& saved, Findings& mine) {
    for (const Order& order : orders(plan)) {
      plan.schedule = order.schedule;
      plan.chunks = order.chunks;
      for (const int zero : zero_stages(plan)) {
        plan.zero = zero;
        ++mine.considered;
        UniformCandidate candidate{plan, {}, peak(plan, saved), {}};
        if (candidate.memory > problem_.memory) {
          if (!mine.smallest || candidate.memory <= mine.smallest->memory) {
            candidate.price = price_of(pricing, problem_.group, blocks, plan.stage_layers);
            mine.add_small(candidate);
          }
          continue;
        }
        candidate.price = price_of(pricing, problem_.group, blocks, plan.stage_layers);
        mine.add_small(candidate);
        mine.add(std::move(candidate));
      }
    }
    plan.schedule = Schedule::one_f_one_b;
    plan.chunks = 1;
    plan.zero = 0;
  }

  double peak(const UniformPlan& plan, const SavedBytes& saved) const {
    double most = 0;
    for (int stage = 0; stage < plan.pp; ++stage) most = std::max(most, memory_of(plan, problem_.model, saved, plan.stage_layers, stage).total());
    return most;
  }

  const UniformProblem& problem_;
  const int devices_;
  std::vector<Cut> cuts_;
  std::atomic<std::size_t> next_{0};
};

}  // namespace

std::string family_of(const UniformPlan& plan) {
  std::string out;
  const auto add = [&](const std::string& part) { out += (out.empty() ? "" : " x ") + part; };
  if (plan.tp > 1) add("tp");
  if (plan.cp > 1) add("cp");
  if (plan.pp > 1) add("pp");
  if (plan.dp > 1) add("dp");
  if (out.empty()) add("one device");
  if (plan.ep > 1) add("ep");
  if (plan.zero == 3) out += " + ZeRO-3";
  return out;
}

UniformSearchResult search(const UniformProblem& problem) {
  UniformSearchResult out = Search(problem).run();
  for (UniformCandidate& candidate : out.families) candidate.family = family_of(candidate.plan);
  for (UniformCandidate& candidate : out.frontier) candidate.family = family_of(candidate.plan);
  out.smallest.family = family_of(out.smallest.plan);
  return out;
}

}  // namespace tessera::plan
