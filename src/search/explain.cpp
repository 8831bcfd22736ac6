#include <fmt/format.h>
#include <algorithm>
#include <optional>
#include <set>
#include <span>

#include "base/table.hpp"
#include "cost/cost.hpp"
#include "cost/extrapolation.hpp"
#include "plan/plan.hpp"
#include "plan/schedule/schedule.hpp"
#include "plan/stage_places.hpp"
#include "plan/tensor_cut.hpp"
#include "plan/uneven_batch.hpp"
#include "search/search.hpp"

namespace tessera::search {
namespace {

using Align = Table::Align;

// Of all blocks, when one strategy holds for all of them.
std::string strategies_text(const plan::Plan& plan) {
  const plan::Strategy& first = plan.stages.front().runs.front().strategy;
  for (const plan::Stage& stage : plan.stages)
    for (const plan::StrategyRun& run : stage.runs)
      if (run.strategy != first) return "strategies by block";
  return to_text(first);
}

std::string run_text(const plan::Plan& plan, const plan::Stage& stage, const plan::StrategyRun& run, const cluster::ClusterSpec& cluster) {
  return to_text(run.strategy) + (parts_across_nodes(plan, stage, run.strategy, cluster) ? ", parts across nodes" : "");
}

std::string block_range(const std::vector<model::BlockInstance>& blocks, int first, int last) {
  const std::string begin = blocks[first].name();
  const std::string end = blocks[last - 1].name();
  return first + 1 == last ? begin : begin + " .. " + end;
}

std::string range_text(int first, int last) { return first == last ? text(first) : text(first, " .. ", last); }

// The ranks of a stage need not stand in order.
std::string ranks_text(const plan::Stage& stage) {
  const auto [first, last] = std::ranges::minmax(stage.ranks);
  return range_text(first, last);
}

std::string nodes_text(const plan::Plan& plan, const plan::Stage& stage, const cluster::ClusterSpec& cluster) {
  const auto [first, last] = std::ranges::minmax(stage.ranks);
  const plan::RankPlace& low = plan.ranks[first];
  const plan::RankPlace& high = plan.ranks[last];
  const std::string group = cluster.groups.size() > 1 ? cluster.groups[low.group].name + " " : "";
  return group + range_text(low.node, high.node);
}

// Of stages on several kinds of device, who takes how much of each micro-batch; stages alike in this said once.
std::string shares_text(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  std::string out;
  std::string before;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::Stage& stage = plan.stages[s];
    std::string line;
    int first = 0;
    for (const plan::Share& share : stage.shares) {
      const plan::RankPlace& place = plan.ranks[stage.ranks[first]];
      line += fmt::format("{}{} on {} of {}", line.empty() ? "" : ", ", share.samples, share.ranks, cluster.groups[place.group].name);
      first += share.ranks;
    }
    if (!line.empty() && line != before)
      out += fmt::format("{}of each {} samples: {}\n", plan.stages.size() > 1 ? fmt::format("from stage {} on, ", s) : "", plan.samples(),
                         line);
    before = line;
  }
  return out;
}

// "0, 8, 16, .. 40"; all of them up to four.
std::string series(const std::vector<int>& numbers) {
  std::string out;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const bool left_out = numbers.size() > 4 && i > 2 && i + 1 < numbers.size();
    if (!left_out) out += text(i == 0 ? "" : numbers.size() > 4 && i + 1 == numbers.size() ? ", .. " : ", ", numbers[i]);
  }
  return out;
}

// Of pipeline rank i and 2 of the same ranks: "i, i + 8"; of a V: "i, 15 - i".
std::string placement_text(const plan::Plan& plan, const plan::Pipeline& pipeline) {
  if (is_v_shaped(plan.schedule)) return text("i and ", 2 * pipeline.size - 1, " - i");
  std::string out = text("i, i + ", pipeline.size);
  if (pipeline.chunks > 3) out += text(", i + ", 2 * pipeline.size);
  if (pipeline.chunks > 2) out += text(pipeline.chunks > 4 ? ", .. i + " : ", i + ", (pipeline.chunks - 1) * pipeline.size);
  return out;
}

// "2 blocks", "5 or 6 blocks".
std::string depth_text(const plan::Plan& plan) {
  const auto depth = [](const plan::Stage& stage) { return stage.last_block() - stage.first_block(); };
  const auto [shallowest, deepest] = std::ranges::minmax_element(plan.stages, {}, depth);
  const int least = depth(*shallowest), most = depth(*deepest);
  const std::string range = least == most ? text(least) : text(least, most == least + 1 ? " or " : " to ", most);
  return text(range, " block", most == 1 ? "" : "s");
}

// Where ranks hold several stages: a line for each pipeline rank and strategy.
std::string folded_drawing(const plan::Plan& plan, const plan::Pipeline& pipeline, const std::vector<model::BlockInstance>& blocks,
                           const cluster::ClusterSpec& cluster, int columns) {
  const std::string head = fmt::format("{} stages of {}: {} on the same ranks, for i from 0 to {}\n", plan.stages.size(), depth_text(plan),
                                       placement_text(plan, pipeline), pipeline.size - 1);
  Table table({{"stages", Align::wrapped}, {"ranks", Align::right}, {"nodes", Align::right}, {"blocks"}, {"strategy", Align::wrapped}});
  for (int pipeline_rank = 0; pipeline_rank < pipeline.size; ++pipeline_rank) {
    std::vector<int> stages;
    // By strategy, in order of appearance: how many blocks, and the range where it is one.
    struct Run {
      const plan::StrategyRun* first = nullptr;
      int last = 0;
      int count = 0;
      bool one_range = true;
    };
    std::vector<Run> runs;
    for (int chunk = 0; chunk < pipeline.chunks; ++chunk) {
      stages.push_back(stage_at(plan.schedule, pipeline_rank, chunk, pipeline.size));
      for (const plan::StrategyRun& run : plan.stages[stages.back()].runs) {
        auto found = std::ranges::find_if(runs, [&](const Run& known) { return known.first->strategy == run.strategy; });
        if (found == runs.end()) found = runs.insert(runs.end(), Run{&run, run.first});
        found->one_range = found->one_range && found->last == run.first;
        found->last = run.last;
        found->count += run.last - run.first;
      }
    }
    const plan::Stage& stage = plan.stages[stages.front()];
    for (const Run& run : runs)
      table.add({series(stages), ranks_text(stage), nodes_text(plan, stage, cluster),
                 run.one_range ? block_range(blocks, run.first->first, run.last) : text(run.count, " of them"),
                 run_text(plan, stage, *run.first, cluster)});
  }
  return head + table.text(columns);
}

// Blocks down, ranks across: which rank works on which block, and as what.
Table matrix(const plan::Plan& plan, const std::vector<model::BlockInstance>& blocks, const cluster::ClusterSpec& cluster) {
  std::vector<Table::Column> heads = {{""}};
  for (int rank = 0; rank < plan.world_size(); ++rank) heads.push_back({text("r", rank), Align::right});
  heads.push_back({"", Align::wrapped});
  Table table(heads);
  for (const plan::Stage& stage : plan.stages)
    for (const plan::StrategyRun& run : stage.runs) {
      std::vector<std::string> cells = {block_range(blocks, run.first, run.last)};
      for (int rank = 0; rank < plan.world_size(); ++rank) {
        const auto place = std::ranges::find(stage.ranks, rank);
        if (place == stage.ranks.end()) {
          cells.emplace_back(".");
          continue;
        }
        const int index = static_cast<int>(place - stage.ranks.begin());
        const int tp = run.strategy.tp;
        const int cp = run.strategy.cp;
        cells.push_back(fmt::format("d{}{}t{}", index / (tp * cp), cp > 1 ? fmt::format("c{}", index / tp % cp) : "", index % tp));
      }
      cells.push_back(run_text(plan, stage, run, cluster));
      table.add(std::move(cells));
    }
  return table;
}

// Many ranks, and those that have no room side by side, are only named.
std::string drawing(const plan::Plan& plan, const std::vector<model::BlockInstance>& blocks, const cluster::ClusterSpec& cluster,
                    int columns) {
  constexpr int most_ranks = 16;
  if (const plan::Pipeline pipeline = pipeline_of(plan); pipeline.chunks > 1)
    return folded_drawing(plan, pipeline, blocks, cluster, columns);
  if (plan.world_size() <= most_ranks)
    if (const Table table = matrix(plan, blocks, cluster); table.fits(columns))
      return table.text(columns) + "d: data-parallel replica, c: context-parallel part, t: tensor-parallel part\n";
  Table table({{"blocks"}, {"ranks", Align::right}, {"nodes", Align::right}, {"strategy", Align::wrapped}});
  for (const plan::Stage& stage : plan.stages)
    for (const plan::StrategyRun& run : stage.runs)
      table.add({block_range(blocks, run.first, run.last), ranks_text(stage), nodes_text(plan, stage, cluster),
                 run_text(plan, stage, run, cluster)});
  return table.text(columns);
}

std::string bar(double share) {
  constexpr int width = 22;
  const int filled = std::clamp(static_cast<int>(share * width + 0.5), 0, width);
  std::string out;
  for (int i = 0; i < width; ++i) out += i < filled ? "█" : "░";
  return out;
}

// The devices of each group that the plan does not use, and why.
std::string idle_text(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  std::string out;
  for (std::size_t g = 0; g < cluster.groups.size(); ++g) {
    const cluster::ResourceGroup& group = cluster.groups[g];
    // Of ranks that share a host, the hosts.
    const bool hosts = group.device.shares_host();
    std::set<std::pair<int, int>> places;
    for (const plan::RankPlace& place : plan.ranks)
      if (place.group == static_cast<int>(g)) places.emplace(place.node, hosts ? 0 : place.device);
    const auto used = static_cast<int>(places.size());
    const int all = hosts ? group.nodes : group.nodes * group.devices_per_node;
    if (used >= all) continue;
    const bool able = group.device.has(plan.precision);
    out += fmt::format("unused: {}the {} of {}{}\n", used > 0 ? fmt::format("{} of ", all - used) : "", all, group.name,
                       able ? ", with which no faster plan was found"
                            : fmt::format(", as a {} does not compute in {}", group.device.name, model::name_of(plan.precision)));
  }
  return out;
}

std::optional<Seconds> part_of(const plan::Prediction& prediction, const std::string& name) {
  for (const auto& [part, time] : prediction.parts)
    if (part == name) return time;
  return {};
}

// A row for each extrapolation, those that every plan has first; with its share of the step where the step has a part for it.
std::string rows_text(const std::vector<cost::Extrapolation>& all, const plan::Prediction& prediction, int columns) {
  Table table({{"", Align::right}, {"", Align::right}, {"", Align::wrapped}});
  for (const bool given : {true, false})
    for (const cost::Extrapolation& one : all) {
      if (one.given != given) continue;
      const std::string of = given ? "whatever the plan" : one.part.empty() ? "step" : one.part;
      const std::optional<Seconds> time = given ? std::nullopt : part_of(prediction, one.part);
      table.add({of, time ? fmt::format("{:.1f} %", 100 * (*time / prediction.step)) : "", to_text(one)});
    }
  return table.text(columns);
}

// On devices without measured steps those of others count.
std::string within_text(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  return cost::has_measured_steps(plan, cluster) ? "within what was measured" : "within what was measured elsewhere";
}

// What of the best plan is extrapolated, and how far; then the runner-up that stays within what was measured. Empty where no calibration
// prices the plan.
std::string extrapolation_text(const SearchResult& result, const model::ModelSpec& model, const cluster::ClusterSpec& cluster,
                               int columns) {
  if (cost::plays_exchanges(result.best, cluster)) return {};
  const plan::Prediction& prediction = *result.best.predicted;
  const std::vector<cost::Extrapolation> all = cost::extrapolated(result.best, model, cluster);
  const std::string out = "\nextrapolated\n" + rows_text(all, prediction, columns);
  if (std::ranges::all_of(all, [](const cost::Extrapolation& one) { return one.given; }))
    return out + fmt::format("all that this plan chooses lies {}\n", within_text(result.best, cluster));
  const auto within = std::ranges::find_if(
      result.runners_up, [&](const Candidate& candidate) { return cost::within_measured(candidate.plan, model, cluster); });
  if (within == result.runners_up.end())
    return out + "of the plans that the search kept, none stays " + within_text(result.best, cluster) + "\n";
  return out + fmt::format("the fastest known plan {} is a runner-up: {}, {:+.1f} %\n", within_text(within->plan, cluster), within->family,
                           100 * (within->plan.predicted->step / prediction.step - 1));
}

// Where a runner-up loses most against the best plan.
std::string largest_loss(const plan::Prediction& loser, const plan::Prediction& best) {
  std::string name = "-";
  double most = 0;
  for (const auto& [part, time] : loser.parts) {
    const double loss = time.value - part_of(best, part).value_or(Seconds(0)).value;
    if (loss > most) {
      most = loss;
      name = fmt::format("{} +{}", part, to_text(Seconds(loss)));
    }
  }
  return name;
}

std::string shape_text(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  if (!cluster.groups[plan.ranks.front().group].device.shares_host())
    return fmt::format("{} device{}", plan.world_size(), plan.world_size() == 1 ? "" : "s");
  return fmt::format("{} x {}", plan.world_size(), plan.threads_text());
}

// Of samples of different lengths.
std::string lengths_text(const plan::Plan& plan, const model::ModelSpec& model) {
  if (!plan.lengths) return {};
  std::string degrees;
  for (const plan::Lengths::Group& group : plan.lengths->groups) degrees += text(degrees.empty() ? "" : ", ", group.degree);
  const std::string of = plan.lengths->mean > 0 ? fmt::format("of samples of {:.0f} tokens on average", plan.lengths->mean)
                                                : text("were all samples ", model.dim("seq"), " tokens long");
  return text(of, "; ranks hold ", plan::tokens_per_rank(plan, model.dim("seq")), " tokens at once, and share rows in groups of ", degrees,
              "\n");
}

}  // namespace

std::string explain(const SearchResult& result, const model::ModelSpec& model, const cluster::ClusterSpec& cluster, int columns) {
  const plan::Plan& plan = result.best;
  const plan::Prediction& prediction = *plan.predicted;
  const auto blocks = model.blocks();
  std::string out = fmt::format("{} parameters in {} blocks on {}\n", count_text(static_cast<double>(model.parameter_count())),
                                model.block_count(), cluster.name);
  out += fmt::format("plan: {}{}, {} stage{}, {}; {} micro-batch{} of {}, {}\n{}\n", shape_text(plan, cluster),
                     cluster.groups[plan.ranks.front().group].device.shares_host() ? " workers" : "", plan.stages.size(),
                     plan.stages.size() == 1 ? "" : "s", strategies_text(plan), plan.micro_batches, plan.micro_batches == 1 ? "" : "es",
                     plan.micro_batch_text(), plan.schedule_text(), shares_text(plan, cluster));
  if (!plan.servers.empty()) out += "parameter servers: " + plan.servers_text() + "\n";
  out += drawing(plan, blocks, cluster, columns) + "\n";
  const bool tokens = model.dim("vocab") > 0;
  // What samples of other lengths than model.seq compute is not counted.
  const std::string utilization =
      plan.lengths && plan.lengths->mean > 0
          ? ""
          : fmt::format(", model FLOPs utilization {:.1f} %", 100 * cost::utilization(plan, model, cluster, prediction.step));
  out +=
      fmt::format("step {}, {} {}/s{}, ranks idle {:.1f} %\n", to_text(prediction.step),
                  count_text(static_cast<double>(plan.global_batch) * (tokens ? plan.tokens_of_sample(model) : 1) / prediction.step.value),
                  tokens ? "tokens" : "samples", utilization, 100 * prediction.bubble);
  out += lengths_text(plan, model);
  for (const auto& [name, time] : prediction.parts)
    out += fmt::format("{:>30}  {:>10}  {:5.1f} %  {}\n", name, to_text(time), 100 * (time / prediction.step), bar(time / prediction.step));
  // Further off the search has proved too little to say.
  if (result.bound > 0.75 * prediction.step.value)
    out += fmt::format("no plan of the space is faster than {} ({:.1f} % less)\n", to_text(Seconds(result.bound)),
                       100 * (1 - result.bound / prediction.step.value));
  for (const plan::Padding& padding : plan::paddings(plan, model)) out += padding.what() + "\n";
  out += idle_text(plan, cluster);
  out += "\nmemory\n";
  const std::vector<Bytes> limits = cost::memory_limits(plan, cluster);
  // Ranks with several stages are listed with their first one.
  for (const plan::Stage& stage : std::span(plan.stages).first(pipeline_of(plan).size)) {
    int first = 0;
    for (const plan::Share& share : plan.shares_of(stage)) {
      const int rank = stage.ranks[first];
      first += share.ranks;
      const Bytes needed = prediction.memory[rank];
      const Bytes limit = limits[rank];
      out +=
          fmt::format("{:>30}  {:>10} of {}  {}\n",
                      share.ranks == 1 ? fmt::format("rank {}", rank) : fmt::format("ranks {} .. {}, each", rank, stage.ranks[first - 1]),
                      to_text(needed), to_text(limit), bar(needed / limit));
    }
  }
  if (!plan.servers.empty())
    out += fitted(
        "without the rows that the parameter servers hold: how many keys the data has is known only once they have come, and the "
        "run's servers.json says what they took\n",
        columns);
  out += extrapolation_text(result, model, cluster, columns);
  if (!result.runners_up.empty()) {
    Table table({{"runners-up", Align::wrapped},
                 {"workers", Align::right},
                 {"step", Align::right},
                 {"", Align::right},
                 {"loses most in", Align::wrapped}});
    for (const Candidate& candidate : result.runners_up)
      table.add({candidate.family, shape_text(candidate.plan, cluster), to_text(candidate.plan.predicted->step),
                 fmt::format("{:+.1f}%", 100 * (candidate.plan.predicted->step / prediction.step - 1)),
                 largest_loss(*candidate.plan.predicted, prediction) +
                     (cost::within_measured(candidate.plan, model, cluster) ? "; " + within_text(candidate.plan, cluster) : "")});
    out += "\n" + table.text(columns);
  }
  if (!result.too_large.empty()) {
    Table table({{"do not fit", Align::wrapped}, {"workers", Align::right}, {"needs", Align::right}});
    for (const Candidate& candidate : result.too_large)
      table.add({candidate.family, shape_text(candidate.plan, cluster), to_text(std::ranges::max(candidate.plan.predicted->memory))});
    out += "\n" + table.text(columns);
  }
  return out;
}

}  // namespace tessera::search
