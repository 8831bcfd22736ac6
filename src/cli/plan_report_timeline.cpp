#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "cli/plan_report_parts.hpp"
#include "cli/report_timeline.hpp"
#include "program/program.hpp"
#include "sim/sim.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostRanks = 8;
// Micro-batches that are shown before and after the cut, beyond those that fill the pipeline.
constexpr std::int64_t kSteady = 4;

struct Row {
  RankFold fold;
  std::vector<Piece> pieces;  // by begin
};

// When the first row is done with its first few backward passes, and when it begins its last few: between them the pipeline
// repeats itself. Equal when nothing is to be cut.
std::pair<double, double> steady(const std::vector<Row>& rows, std::int64_t micro_batches, std::size_t stages) {
  if (micro_batches <= static_cast<std::int64_t>(stages) + 4 * kSteady) return {0, 0};
  double from = 0;
  double to = 0;
  std::int64_t done = 0;
  const std::int64_t cut_to = micro_batches - kSteady;
  for (const Piece& piece : rows.front().pieces) {
    if (piece.kind != 1 && piece.kind != 2) continue;
    ++done;
    if (done == kSteady) from = piece.end;
    if (done == cut_to) to = piece.begin;
  }
  return to > from ? std::pair(from, to) : std::pair(0.0, 0.0);
}

Json json_of(const Row& row, double from, double to, double step) {
  // A part in 100,000 of the step is less than a pixel.
  const auto rounded = [&](double seconds) { return std::round(seconds / step * 1e5) / 1e5; };
  std::array<double, kKindCount> sums{};
  for (const Piece& piece : row.pieces) sums[piece.kind] += piece.end - piece.begin;
  Json spans = Json::array();
  for (const Piece& piece : joined(row.pieces, kShortest * (step - (to - from)))) {
    if ((piece.begin >= from && piece.end <= to) || piece.begin >= step) continue;
    // What goes on in the next step ends at the border.
    spans.push_back({piece.kind, rounded(piece.begin), rounded(std::min(piece.end, step)), piece.micro_batch});
  }
  return {{"label", row.fold.label}, {"place", row.fold.place}, {"spans", spans}, {"sums", sums}};
}

// Each rank, or one of each set of ranks that hold the same stages.
std::vector<Row> rows_of(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  std::vector<Row> rows;
  if (plan.ranks.size() <= kMostRanks) {
    for (RankFold& fold : fold_ranks(plan, cluster, kMostRanks)) rows.push_back({std::move(fold), {}});
    return rows;
  }
  for (RankFold& fold : fold_ranks(plan, cluster, 1)) rows.push_back({std::move(fold), {}});
  for (Row& row : rows)
    row.fold.label = text("rank ", row.fold.ranks.front(), row.fold.ranks.size() > 1 ? text(", one of ", row.fold.ranks.size()) : "");
  return rows;
}

}  // namespace

Json timeline_of(const PlanInput& input, const plan::Plan& plan) {
  // Where the ranks of every stage do the same, one program stands for them.
  const auto [programs, result] = sim::simulate(plan, input.job.model, input.job.train, input.cluster, input.profile);
  const auto stages = stages_of_ranks(plan);
  std::vector<Row> rows = rows_of(plan, input.cluster);
  std::map<int, std::vector<Row*>> shown;
  std::map<int, const program::Program*> program_of;
  for (const program::Program& program : programs) program_of[program.rank] = &program;
  for (Row& row : rows) {
    const int rank = row.fold.ranks.front();
    const auto same = std::find_if(programs.begin(), programs.end(),
                                   [&](const program::Program& program) { return stages[program.rank] == stages[rank]; });
    shown[program_of.contains(rank) ? rank : same->rank].push_back(&row);
  }
  for (const sim::Span& span : result.spans) {
    const program::Instruction& instruction = program_of.at(span.rank)->instructions[span.instruction];
    if (const auto found = shown.find(span.rank); found != shown.end())
      for (Row* row : found->second) {
        row->pieces.push_back({span.begin.value, (span.end - span.exposed).value, kind_of(instruction.op), instruction.micro_batch});
        if (span.exposed > Seconds(0)) row->pieces.push_back({(span.end - span.exposed).value, span.end.value, kExposed, -1});
      }
  }
  const double step = result.step.value;
  const auto [from, to] = steady(rows, plan.micro_batches, plan.stages.size());
  Json out = {{"step", step},          {"bubble", result.bubble},         {"exposed", result.exposed},
              {"kinds", kinds_json()}, {"cut", {from / step, to / step}}, {"rows", Json::array()}};
  for (const Row& row : rows) {
    Json shown_row = json_of(row, from, to, step);
    const sim::RankResult& of_rank = result.ranks[row.fold.ranks.front()];
    shown_row["busy"] = of_rank.busy.value;
    shown_row["exposed"] = of_rank.exposed.value;
    shown_row["idle"] = of_rank.idle.value;
    shown_row["stages"] = stages[row.fold.ranks.front()];
    out["rows"].push_back(std::move(shown_row));
  }
  return out;
}

std::vector<std::vector<int>> stages_of_ranks(const plan::Plan& plan) {
  std::vector<std::vector<int>> out(plan.ranks.size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s)
    for (int rank : plan.stages[s].ranks) out[rank].push_back(static_cast<int>(s));
  return out;
}

std::vector<RankFold> fold_ranks(const plan::Plan& plan, const cluster::ClusterSpec& cluster, std::size_t most) {
  const auto stages = stages_of_ranks(plan);
  // Neighbours with an equal key are one fold.
  const auto folded = [&](const auto& key) {
    std::vector<RankFold> out;
    for (int rank = 0; rank < plan.world_size(); ++rank) {
      if (out.empty() || key(rank) != key(out.back().ranks.front())) out.push_back({});
      out.back().ranks.push_back(rank);
    }
    return out;
  };
  std::vector<RankFold> folds = folded([](int rank) { return rank; });
  if (folds.size() > most)
    folds = folded([&](int rank) { return std::tuple(stages[rank], plan.ranks[rank].group, plan.ranks[rank].node); });
  if (folds.size() > most) folds = folded([&](int rank) { return std::tuple(stages[rank], plan.ranks[rank].group); });
  for (RankFold& fold : folds) {
    const plan::RankPlace& first = plan.ranks[fold.ranks.front()];
    const plan::RankPlace& last = plan.ranks[fold.ranks.back()];
    fold.label = fold.ranks.size() == 1 ? text("rank ", fold.ranks.front()) : text("ranks ", fold.ranks.front(), "–", fold.ranks.back());
    fold.place = cluster.groups[first.group].name;
    if (cluster.groups[first.group].nodes > 1)
      fold.place += first.node == last.node ? text(", node ", first.node) : text(", nodes ", first.node, "–", last.node);
  }
  return folds;
}

}  // namespace tessera::cli
