#include "cli/run_report_timeline.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "cli/plan_report_parts.hpp"
#include "cli/report_timeline.hpp"
#include "program/timeline.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostRanks = 12;
// With more pieces, those that are too short to be seen are joined.
constexpr std::size_t kMostPieces = 12000;

// Texts that many pieces share, each once.
class Words {
 public:
  int of(const std::string& words) {
    const auto [found, is_new] = index_.try_emplace(words, static_cast<int>(list_.size()));
    if (is_new) list_.push_back(words);
    return found->second;
  }
  const std::vector<std::string>& list() const { return list_; }

 private:
  std::map<std::string, int> index_;
  std::vector<std::string> list_;
};

std::string words_of(const program::TracedInstruction& instruction) {
  std::string out = instruction.label;
  if (program::is_compute(instruction.op) && !instruction.blocks.empty()) out += " of blocks " + instruction.blocks;
  if (instruction.peer >= 0) out += text(instruction.label.starts_with("send") ? " to" : " from", " rank ", instruction.peer);
  if (!instruction.group.empty()) out += " over " + instruction.group;
  if (instruction.bytes > Bytes(0)) out += ", " + to_text(instruction.bytes);
  return out;
}

// The ranks that the page shows.
std::set<int> shown_ranks(const program::TracedStep& step, const plan::Plan* plan) {
  std::set<int> out;
  if (step.size() > kMostRanks && plan != nullptr) {
    std::set<std::vector<int>> seen;
    const auto stages = stages_of_ranks(*plan);
    for (const auto& [rank, of] : step)
      if (rank < plan->world_size() && seen.insert(stages[static_cast<std::size_t>(rank)]).second) out.insert(rank);
  }
  if (out.empty())
    for (const auto& [rank, of] : step) out.insert(rank);
  while (out.size() > kMostRanks) out.erase(std::prev(out.end()));
  return out;
}

Json timeline_of(const program::TracedStep& step, const std::set<int>& ranks, const plan::Plan* plan, const cluster::ClusterSpec* cluster,
                 Words& words) {
  const auto transfers = program::transfers_of(step);
  const auto times = program::times_of(step, transfers);
  Seconds origin = step.begin()->second.step.begin;
  Seconds end = origin;
  for (const auto& [rank, of] : step) {
    origin = std::min(origin, of.step.begin);
    end = std::max(end, of.step.end);
  }
  const double length = (end - origin).value;
  std::vector<RankFold> folds;
  if (plan != nullptr && cluster != nullptr) folds = fold_ranks(*plan, *cluster, static_cast<std::size_t>(plan->world_size()));
  const auto stages = plan != nullptr ? stages_of_ranks(*plan) : std::vector<std::vector<int>>();
  std::map<int, std::vector<Piece>> pieces;
  std::size_t count = 0;
  for (const int rank : ranks) {
    const auto found = step.find(rank);
    if (found == step.end()) continue;
    std::vector<Piece>& row = pieces[rank];
    const auto add = [&](const program::Interval& time, int kind, int micro_batch, int said, int instruction) {
      row.push_back({(time.begin - origin).value, (time.end - origin).value, kind, micro_batch, said, instruction});
    };
    for (const auto& [index, instruction] : found->second.instructions) {
      const auto transfer = transfers.find({rank, index});
      const auto parts =
          transfer == transfers.end() ? std::vector{instruction.time} : program::within(found->second.step, transfer->second);
      for (const program::Interval& part : parts)
        add(part, kind_of(instruction.op), instruction.micro_batch, words.of(words_of(instruction)), index);
    }
    for (const program::TracedWork& work : found->second.work)
      add(work.time, work.name == "samples" ? kReading : kWork, -1, words.of(work.name), -1);
    // Behind what they lie upon.
    std::stable_sort(row.begin(), row.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
    for (const program::Interval& exposure : times.at(rank).exposures) add(exposure, kExposed, -1, words.of("exposed communication"), -1);
    count += row.size();
  }
  const auto micro = [](double seconds) { return std::round(seconds * 1e7) / 10; };
  Json rows = Json::array();
  for (const auto& [rank, of] : pieces) {
    Json spans = Json::array();
    for (const Piece& piece : count > kMostPieces ? joined(of, kShortest * length) : of)
      spans.push_back({piece.kind, micro(piece.begin), micro(piece.end - piece.begin), piece.micro_batch, piece.words, piece.instruction});
    const auto at = static_cast<std::size_t>(rank);
    rows.push_back({{"rank", rank},
                    {"place", at < folds.size() ? folds[at].place : ""},
                    {"stages", at < stages.size() ? Json(stages[at]) : Json::array()},
                    {"spans", spans}});
  }
  return {{"length", length}, {"ranks", step.size()}, {"joined", count > kMostPieces}, {"rows", rows}};
}

}  // namespace

Json timelines_of(const program::TracedStep* measured, std::int64_t step, std::size_t traced, const program::TracedStep* predicted,
                  const plan::Plan* plan, const cluster::ClusterSpec* cluster, bool alike) {
  Words words;
  Json out = {{"kinds", kinds_json()}, {"step", step + 1},   {"traced", traced},
              {"alike", alike},        {"measured", Json()}, {"predicted", Json()}};
  if (measured == nullptr && predicted == nullptr) return out;
  const std::set<int> ranks = shown_ranks(measured != nullptr ? *measured : *predicted, plan);
  if (measured != nullptr) out["measured"] = timeline_of(*measured, ranks, plan, cluster, words);
  if (predicted != nullptr) out["predicted"] = timeline_of(*predicted, ranks, plan, cluster, words);
  out["words"] = words.list();
  return out;
}

}  // namespace tessera::cli
