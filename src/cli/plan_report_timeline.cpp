#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "cli/plan_report_parts.hpp"
#include "program/program.hpp"
#include "sim/sim.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;
using program::Op;

constexpr std::size_t kMostRanks = 8;
// Of the step: what is shorter cannot be told apart on the page.
constexpr double kShortest = 1.0 / 2000;
// Micro-batches that are shown before and after the cut, beyond those that fill the pipeline.
constexpr std::int64_t kSteady = 4;

struct Kind {
  const char* name;
  int lane;  // 0 computation, 1 messages, 2 collectives
};
constexpr std::array<Kind, 11> kKinds = {
    Kind{"forward", 0}, {"backward", 0}, {"backward input", 0},    {"backward weight", 0},  {"optimizer step", 0}, {"send", 1},
    {"receive", 1},     {"reduce", 2},   {"gather parameters", 2}, {"exposed exchange", 0}, {"gather inputs", 2}};
constexpr int kExchange = 9;  // of a pass or a step, behind its computing

int kind_of(Op op) {
  switch (op) {
    case Op::forward: return 0;
    case Op::backward: return 1;
    case Op::backward_input: return 2;
    case Op::backward_weight: return 3;
    case Op::optimizer_step: return 4;
    case Op::send_activation:
    case Op::send_gradient: return 5;
    case Op::receive_activation:
    case Op::receive_gradient: return 6;
    case Op::gather_parameters: return 8;
    case Op::gather_activation:
    case Op::gather_gradient: return 10;
    default: return 7;
  }
}

struct Piece {
  double begin;
  double end;
  int kind;
  int micro_batch;  // -1 for none, and where several were joined
};

struct Row {
  RankFold fold;
  std::vector<Piece> pieces;  // by begin
};

// Neighbours of one kind that are too short to be seen become one.
std::vector<Piece> joined(const std::vector<Piece>& pieces, double shortest) {
  std::map<int, std::size_t> open;  // by lane, the last piece
  std::vector<Piece> out;
  for (const Piece& piece : pieces) {
    const int lane = kKinds[piece.kind].lane;
    const auto last = open.find(lane);
    if (last != open.end() && out[last->second].kind == piece.kind && piece.end - piece.begin < shortest &&
        piece.begin - out[last->second].end < shortest) {
      out[last->second].end = std::max(out[last->second].end, piece.end);
      out[last->second].micro_batch = -1;
      continue;
    }
    open[lane] = out.size();
    out.push_back(piece);
  }
  return out;
}

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
  std::array<double, kKinds.size()> sums{};
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
        if (span.exposed > Seconds(0)) row->pieces.push_back({(span.end - span.exposed).value, span.end.value, kExchange, -1});
      }
  }
  const double step = result.step.value;
  const auto [from, to] = steady(rows, plan.micro_batches, plan.stages.size());
  Json kinds = Json::array();
  for (const Kind& kind : kKinds) kinds.push_back({kind.name, kind.lane});
  Json out = {{"step", step},   {"bubble", result.bubble},         {"exposed", result.exposed},
              {"kinds", kinds}, {"cut", {from / step, to / step}}, {"rows", Json::array()}};
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
