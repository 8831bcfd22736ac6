#include "search/within_measured.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/table.hpp"
#include "cost/cost.hpp"
#include "cost/extrapolation.hpp"

namespace tessera::search {
namespace {

bool faster(const Candidate& a, const Candidate& b) { return a.plan.predicted->step < b.plan.predicted->step; }

std::string share_text(const plan::Prediction& prediction, const std::string& part) {
  for (const auto& [name, time] : prediction.parts)
    if (name == part) return fmt::format("{:.1f} %", 100 * (time / prediction.step));
  return {};
}

// A row for each extrapolation, those that every plan has first.
std::string rows_text(const std::vector<cost::Extrapolation>& all, const plan::Prediction& prediction, int columns) {
  Table table({{"", Table::Align::right}, {"", Table::Align::right}, {"", Table::Align::wrapped}});
  for (const bool given : {true, false})
    for (const cost::Extrapolation& one : all) {
      if (one.given != given) continue;
      const std::string of = given ? "whatever the plan" : one.part.empty() ? "step" : one.part;
      table.add({of, given ? "" : share_text(prediction, one.part), to_text(one)});
    }
  return table.text(columns);
}

}  // namespace

std::string within_text(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  return cost::has_measured_steps(plan, cluster) ? "within what was measured" : "within what was measured elsewhere";
}

void keep_within_measured(SearchResult& result, const model::ModelSpec& model, const cluster::ClusterSpec& cluster) {
  const auto within = [&](const Candidate& candidate) { return cost::within_measured(candidate.plan, model, cluster); };
  if (cost::within_measured(result.best, model, cluster)) return;
  if (std::any_of(result.runners_up.begin(), result.runners_up.end(), within)) return;
  auto best = result.close.end();
  for (auto candidate = result.close.begin(); candidate != result.close.end(); ++candidate)
    if (within(*candidate) && (best == result.close.end() || faster(*candidate, *best))) best = candidate;
  if (best == result.close.end()) return;
  result.runners_up.push_back(std::move(*best));
  result.close.erase(best);
  std::stable_sort(result.runners_up.begin(), result.runners_up.end(), faster);
}

std::string extrapolation_text(const SearchResult& result, const model::ModelSpec& model, const cluster::ClusterSpec& cluster,
                               int columns) {
  if (cost::plays_exchanges(result.best, cluster)) return {};
  const plan::Prediction& prediction = *result.best.predicted;
  const std::vector<cost::Extrapolation> all = cost::extrapolated(result.best, model, cluster);
  const std::string out = "\nextrapolated\n" + rows_text(all, prediction, columns);
  if (std::all_of(all.begin(), all.end(), [](const cost::Extrapolation& one) { return one.given; }))
    return out + fmt::format("all that this plan chooses lies {}\n", within_text(result.best, cluster));
  const auto within = std::find_if(result.runners_up.begin(), result.runners_up.end(),
                                   [&](const Candidate& candidate) { return cost::within_measured(candidate.plan, model, cluster); });
  if (within == result.runners_up.end())
    return out + "of the plans that the search kept, none stays " + within_text(result.best, cluster) + "\n";
  return out + fmt::format("the fastest known plan {} is a runner-up: {}, {:+.1f} %\n", within_text(within->plan, cluster), within->family,
                           100 * (within->plan.predicted->step / prediction.step - 1));
}

}  // namespace tessera::search
