// Outer choices whose pipeline ranks have several stages each: interleaved and V-shaped schedules.
#include <algorithm>
#include <numeric>

#include "plan/schedule/schedule.hpp"
#include "search/depths.hpp"
#include "search/outer_solver.hpp"

namespace tessera::search {
namespace {

// Up to so many ways to cut the blocks are all looked at.
constexpr int kMostCuts = 500;
// From so many micro-batches a pipeline rank on, the moments that decide come again and again.
constexpr std::int64_t kRounds = 4;

Placement placement_of(const Outer& outer) { return {outer.stages(), outer.chunks, outer.schedule}; }

// By chunk: at the moments with most micro-batches in flight, on average.
std::vector<double> mean_of_fullest(const std::vector<std::vector<int>>& peaks) {
  const auto all = [](const std::vector<int>& peak) { return std::accumulate(peak.begin(), peak.end(), 0); };
  const int most = all(*std::ranges::max_element(peaks, {}, all));
  std::vector<double> out(peaks.front().size(), 0.0);
  int count = 0;
  for (const std::vector<int>& peak : peaks) {
    if (all(peak) < most) continue;
    ++count;
    for (std::size_t chunk = 0; chunk < out.size(); ++chunk) out[chunk] += peak[chunk];
  }
  for (double& each : out) each /= count;
  return out;
}

std::vector<double> most_of_each(const std::vector<std::vector<int>>& peaks) {
  std::vector<double> out(peaks.front().size(), 0.0);
  for (const std::vector<int>& peak : peaks)
    for (std::size_t chunk = 0; chunk < out.size(); ++chunk) out[chunk] = std::max(out[chunk], static_cast<double>(peak[chunk]));
  return out;
}

}  // namespace

const OuterSolver::Peaks& OuterSolver::peaks_of(const Outer& outer) {
  const int ranks = outer.stages();
  const std::int64_t micro_batches = std::min<std::int64_t>(outer.micro_batches, kRounds * ranks);
  Peaks& out = peaks_[{outer.schedule, ranks, outer.chunks, micro_batches}];
  if (out.empty())
    for (int rank = 0; rank < ranks; ++rank)
      out.push_back(
          plan::peaks_in_flight(order_of(outer.schedule, rank, ranks, static_cast<int>(micro_batches), outer.chunks), outer.chunks));
  return out;
}

bool OuterSolver::exhausts(const Outer& outer) {
  if (outer.chunks == 1) return true;
  const Peaks& peaks = peaks_of(outer);
  return std::ranges::all_of(peaks, [](const auto& of_rank) { return of_rank.size() == 1; }) &&
         !all_cuts(static_cast<int>(cost_model_.repeat_of().size()), outer.stages() * outer.chunks, kMostCuts).empty();
}

std::vector<const StageEntry*> OuterSolver::fitting(const Outer& outer, int pipeline_rank, StageFronts& fronts,
                                                    std::vector<Segment>& segments, double most) {
  const std::vector<std::vector<int>>& peaks = peaks_of(outer)[pipeline_rank];
  const double room = fronts.room(segments);
  const auto fits = [&](const StageEntry* entry) {
    const std::vector<double> saved = fronts.saved(*entry, segments);
    return std::ranges::all_of(peaks, [&](const std::vector<int>& peak) {
      return entry->fixed + entry->workspace + std::inner_product(saved.begin(), saved.end(), peak.begin(), 0.0) <= room;
    });
  };
  std::vector<const StageEntry*> out;
  // No moment takes less than the fullest ones on average; one that takes more may be kept to by counting the most of each chunk.
  for (const std::vector<double>& in_flight : {mean_of_fullest(peaks), most_of_each(peaks)}) {
    for (std::size_t chunk = 0; chunk < segments.size(); ++chunk) segments[chunk].in_flight = in_flight[chunk];
    const std::vector<const StageEntry*>& front = fronts.front(segments, most);
    if (peaks.size() == 1) return front;
    std::ranges::copy_if(front, std::back_inserter(out), fits);
    if (!out.empty() || front.empty()) return out;
  }
  return out;
}

std::optional<OuterSolver::RankEntries> OuterSolver::best_of_cut(const Outer& outer, const std::vector<int>& cuts, double most) {
  const Placement placement = placement_of(outer);
  const std::vector<int>& repeat_of = cost_model_.repeat_of();
  std::vector<double> message(placement.ranks, 0.0);  // seconds
  for (int stage = 0; stage + 1 < placement.stages(); ++stage) {
    const int from = placement.rank_of(stage), to = placement.rank_of(stage + 1);
    if (from != to) message[from] += this->message(outer, *stages_.cuts[from], *stages_.cuts[to], cuts[stage + 1]);
  }
  RankEntries out;
  out.cuts = cuts;
  std::vector<double> warm_up;  // at least, by rank
  double busiest = 0;
  for (int rank = 0; rank < placement.ranks; ++rank) {
    const StageFronts& fronts = *stages_.kinds[rank];
    const double sends = message[rank];
    double busy = fronts.busy_of(sends);
    double fill = fronts.warm_up_of(sends);
    std::vector<Segment>& segments = out.segments.emplace_back();
    for (int chunk = 0; chunk < placement.chunks; ++chunk) {
      const int stage = stage_at(placement.schedule, rank, chunk, placement.ranks);
      segments.push_back({cuts[stage], cuts[stage + 1]});
      for (int block = cuts[stage]; block < cuts[stage + 1]; ++block) {
        busy += fronts.least(repeat_of[block]).busy;
        fill += fronts.least(repeat_of[block]).warm_up;
      }
    }
    busiest = std::max(busiest, busy);
    warm_up.push_back(fill);
  }
  const double all = std::accumulate(warm_up.begin(), warm_up.end(), 0.0);
  if (busiest + all > most) return {};
  struct Way {
    double busy;
    double warm_up;
    int rank;
    const StageEntry* entry;
  };
  std::vector<Way> ways;
  for (int rank = 0; rank < placement.ranks; ++rank) {
    StageFronts& fronts = *stages_.kinds[rank];
    const std::vector<const StageEntry*> entries = fitting(outer, rank, fronts, out.segments[rank], most - all + warm_up[rank]);
    if (entries.empty()) return {};
    for (const StageEntry* entry : entries)
      ways.push_back({entry->busy + fronts.busy_of(message[rank]), entry->warm_up + fronts.warm_up_of(message[rank]), rank, entry});
  }
  // With the busiest rank given, each rank takes the entry that fills the pipeline fastest of those that are no busier.
  std::ranges::stable_sort(ways, {}, &Way::busy);
  std::vector<const Way*> chosen(placement.ranks, nullptr);
  int missing = placement.ranks;
  double fill = 0;
  std::size_t taken = 0;
  for (std::size_t w = 0; w < ways.size(); ++w) {
    const Way*& of_rank = chosen[ways[w].rank];
    missing -= of_rank == nullptr ? 1 : 0;
    fill += ways[w].warm_up - (of_rank == nullptr ? 0 : of_rank->warm_up);
    of_rank = &ways[w];
    if (missing > 0 || ways[w].busy + fill >= out.step) continue;
    out.step = ways[w].busy + fill;
    taken = w;
  }
  if (out.step > most) return {};
  out.entries.resize(chosen.size());
  for (std::size_t w = 0; w <= taken; ++w) out.entries[ways[w].rank] = ways[w].entry;
  return out;
}

std::vector<std::vector<int>> OuterSolver::first_cuts(const Outer& outer) {
  const Placement placement = placement_of(outer);
  const StageFronts& first = *stages_.kinds.front();
  const std::vector<int>& repeat_of = cost_model_.repeat_of();
  const int blocks = static_cast<int>(repeat_of.size());
  std::vector<double> busy;
  for (const int repeat : repeat_of) busy.push_back(first.least(repeat).busy);
  const double send = first.busy_of(message(outer, *stages_.cuts.front(), *stages_.cuts.back(), blocks / 2));
  std::vector<std::vector<int>> out = {balanced_cuts(busy, send, shares_of(stages_.kinds), placement),
                                       even_cuts(blocks, placement.stages())};
  if (blocks - 2 >= placement.stages()) out.push_back(even_inner_cuts(blocks, placement.stages()));
  return out;
}

std::optional<OuterSolver::RankEntries> OuterSolver::best_entries(const Outer& outer, double most, bool rough) {
  const Placement placement = placement_of(outer);
  std::optional<RankEntries> best;
  const auto try_cuts = [&](const std::vector<std::vector<int>>& ways) {
    bool better = false;
    for (const std::vector<int>& cuts : ways) {
      effort_.watch();
      std::optional<RankEntries> found = best_of_cut(outer, cuts, best ? std::min(most, best->step) : most);
      if (!found || (best && found->step >= best->step * (1 - kEqual))) continue;
      best = std::move(found);
      better = true;
    }
    return better;
  };
  std::vector<std::vector<int>> all;
  if (!rough) all = all_cuts(static_cast<int>(cost_model_.repeat_of().size()), placement.stages(), kMostCuts);
  try_cuts(all.empty() ? first_cuts(outer) : all);
  while (!rough && all.empty() && best) {
    const auto busiest = std::ranges::max_element(best->entries, {}, &StageEntry::busy);
    if (!try_cuts(moves_from(best->cuts, placement, static_cast<int>(busiest - best->entries.begin())))) break;
  }
  return best;
}

plan::Plan OuterSolver::plan_of(const Outer& outer, const RankEntries& ranks) {
  const Placement placement = placement_of(outer);
  plan::Plan plan = frame_of(outer);
  std::vector<plan::Stage> stages(placement.stages());
  for (int rank = 0; rank < placement.ranks; ++rank) {
    const std::vector<Segment>& segments = ranks.segments[rank];
    const std::vector<plan::Strategy> strategies = stages_.kinds[rank]->strategies(*ranks.entries[rank], segments);
    auto strategy = strategies.begin();
    for (int chunk = 0; chunk < placement.chunks; ++chunk) {
      const Segment& segment = segments[chunk];
      plan::Stage& stage = stages[stage_at(placement.schedule, rank, chunk, placement.ranks)];
      stage = plan.stages[rank];
      for (int block = segment.first; block < segment.last; ++block) add_block(stage, block, *strategy++);
    }
  }
  plan.stages = std::move(stages);
  return plan;
}

}  // namespace tessera::search
