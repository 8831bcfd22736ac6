#include "search/outer_choices.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <set>

#include "cost/warm_up.hpp"
#include "plan/tensor_cut.hpp"
#include "search/devices.hpp"

namespace tessera::search {
namespace {

// More groups than this are taken in the order of the cluster alone.
constexpr std::size_t kMostOrdered = 4;
// So many ways to share a micro-batch are tried.
constexpr std::size_t kMostShares = 12;
constexpr std::size_t kMostSharesOfMany = 4;  // in a cluster of more than two groups
// In a cluster of more groups than this, all of them stand side by side or none; of still more, none.
constexpr std::size_t kMostJoined = 3, kMostAllJoined = 8;

// Ranks are dealt over no more nodes than these, and only in a cluster of one group: it pays where weights are many beside
// the samples of a micro-batch, and doubles what is looked at.
constexpr int kMostDealt = 4;

// Outer choices with which further numbers of nodes, and then further choices of several groups, are left out.
constexpr std::size_t kMostOuters = 200'000;
// The same with so many combinations of numbers of nodes, of which few or none need make an outer choice.
constexpr std::size_t kMostCombinations = 500'000;

// How many nodes of each group may work beside other groups: any number, round numbers or all, or the largest round number or all.
enum class Nodes { any, round, most };

// Of a group: the nodes that work, its first ones, and the ranks on each.
struct Working {
  int nodes = 0;
  NodeRanks ranks;
  int devices() const { return nodes * ranks.count; }
};

// Groups side by side, or one alone, cut into equal stages.
struct Team {
  std::vector<int> groups;
  std::vector<Working> working = {};  // of each group
  int stages = 1;
};

// The ways to deal a group's nodes to ranks.
std::vector<NodeRanks> node_ranks(const BlockProblem& problem, int group) {
  const auto index = static_cast<std::size_t>(group);
  const std::vector<std::vector<NodeRanks>>& said = problem.space.node_ranks;
  return index < said.size() && !said[index].empty() ? said[index]
                                                     : std::vector<NodeRanks>{{problem.cluster.groups[index].devices_per_node}};
}

class Choices {
 public:
  explicit Choices(const BlockProblem& problem) : problem_(problem) {}

  OuterChoices list() {
    for (int g = 0; g < static_cast<int>(problem_.cluster.groups.size()); ++g)
      if (may_use(problem_, g)) usable_.push_back(g);
    out_.able = !usable_.empty();
    for (const int group : usable_) {
      std::vector<Team> teams = {{{group}}};
      problem_.space.idle_nodes ? list_alone(teams) : list_widths(teams, 0);
    }
    out_.alone = out_.outers.size();
    if (!problem_.space.mixed_groups || usable_.size() < 2) return std::move(out_);
    // As many numbers of nodes as there is room for.
    const OuterChoices alone = out_;
    for (nodes_ = problem_.space.idle_nodes ? Nodes::any : Nodes::most;; nodes_ = nodes_ == Nodes::any ? Nodes::round : Nodes::most) {
      list_teams({}, 0);
      // Of many groups, what is left out is found group by group.
      if (!full() || nodes_ == Nodes::most) return std::move(out_);
      out_ = alone;
      combinations_ = 0;
      stands_.clear();
      for (std::size_t i = 0; i < out_.devices.size(); ++i) stands_[out_.devices[i]] = static_cast<int>(problem_.cluster.groups.size() + i);
    }
  }

 private:
  // `taken`: a bit for each usable group that stands in a team already.
  void list_teams(std::vector<Team> teams, std::size_t taken) {
    if (teams.size() > 1 || (!teams.empty() && teams.front().groups.size() > 1)) list_widths(teams, 0);
    const std::size_t sets = std::size_t{1} << usable_.size();
    for (std::size_t set = 1; set < sets; ++set) {
      if ((set & taken) != 0) continue;
      const bool several = (set & (set - 1)) != 0;
      const std::size_t most = set + 1 == sets ? kMostAllJoined : kMostJoined;
      if (several && usable_.size() > most) continue;
      if (usable_.size() > kMostOrdered && set < taken) continue;
      teams.emplace_back();
      for (std::size_t i = 0; i < usable_.size(); ++i)
        if (set >> i & 1) teams.back().groups.push_back(usable_[i]);
      list_teams(teams, taken | set);
      teams.pop_back();
    }
  }

  const cluster::ResourceGroup& group_at(int group) const { return problem_.cluster.groups[group]; }

  int most_stages() const { return std::min(problem_.space.most_stages, problem_.model.block_count()); }

  // Any whole number of the group's nodes. What is listed does not depend on how many nodes there are, beyond that they suffice: so a
  // larger group has every choice of a smaller one, and is never planned slower.
  void list_alone(std::vector<Team>& teams) {
    Team& team = teams.front();
    const int group = team.groups.front();
    for (const NodeRanks& ranks : node_ranks(problem_, group)) {
      const int most = std::min(group_at(group).nodes, ranks.most_nodes) * ranks.count;
      for (const std::int64_t width : widths_of(group, problem_.global_batch))
        for (std::int64_t stages = 1; stages <= most_stages() && stages * width <= most; ++stages) {
          if (stages * width % ranks.count != 0 || !GivenDegrees::allows(problem_.space.given.stages, stages)) continue;
          team.working = {{static_cast<int>(stages * width / ranks.count), ranks}};
          team.stages = static_cast<int>(stages);
          list_micro_batches(teams, team.stages);
        }
    }
  }

  const std::set<std::int64_t>& widths_of(int group, std::int64_t samples) {
    const auto [found, fresh] = widths_.try_emplace({group, samples});
    if (fresh) found->second = search::widths_of(problem_, group, samples);
    return found->second;
  }

  // How much of a group may work beside other groups: with the fewest or the most ranks on a node, of the ways that hold for several nodes.
  std::vector<Working> may_work(int group) const {
    const int all = group_at(group).nodes;
    std::vector<int> counts = {all};
    if (problem_.space.idle_nodes) {
      for (int nodes = all - 1; nodes > 0; --nodes)
        if (nodes_ == Nodes::any || (nodes_ == Nodes::round && round_number(nodes) == nodes)) counts.push_back(nodes);
      if (nodes_ == Nodes::most && round_number(all) < all) counts.push_back(round_number(all));
    }
    std::vector<NodeRanks> ways = node_ranks(problem_, group);
    std::erase_if(ways, [](const NodeRanks& ranks) { return ranks.most_nodes == 1; });
    if (ways.size() > 2) ways.erase(ways.begin() + 1, ways.end() - 1);
    std::vector<Working> out;
    for (const int nodes : counts)
      for (const NodeRanks& ranks : ways) out.push_back({nodes, ranks});
    return out;
  }

  bool full() const { return out_.outers.size() > kMostOuters || combinations_ > kMostCombinations; }

  void list_widths(std::vector<Team>& teams, std::size_t at) {
    if (full()) return;
    int stages = 0;
    for (std::size_t t = 0; t < at; ++t) stages += teams[t].stages;
    if (at == teams.size()) {
      if (GivenDegrees::allows(problem_.space.given.stages, stages)) list_micro_batches(teams, stages);
      return;
    }
    teams[at].working.clear();
    list_nodes(teams, at, 0, most_stages() - stages);
  }

  // `common`: what divides the working devices of all groups of the team so far.
  void list_nodes(std::vector<Team>& teams, std::size_t at, int common, int most) {
    Team& team = teams[at];
    if (team.working.size() == team.groups.size()) {
      ++combinations_;
      for (team.stages = 1; team.stages <= std::min(common, most); ++team.stages)
        if (common % team.stages == 0) list_widths(teams, at + 1);
      return;
    }
    for (const Working& working : may_work(team.groups[team.working.size()])) {
      if (full()) return;
      team.working.push_back(working);
      list_nodes(teams, at, std::gcd(common, working.devices()), most);
      team.working.pop_back();
    }
  }

  void list_micro_batches(const std::vector<Team>& teams, int stages) {
    side_by_side_ = std::ranges::any_of(teams, [](const Team& team) { return team.groups.size() > 1; });
    for (const std::int64_t micro_batches : plan::divisors_of(problem_.global_batch))
      if (GivenDegrees::allows(problem_.space.given.micro_batches, micro_batches)) list_cuts(teams, {}, stages, micro_batches);
  }

  void list_cuts(const std::vector<Team>& teams, std::vector<GroupCut> cuts, int stages, std::int64_t micro_batches) {
    if (cuts.size() == teams.size()) {
      for (const plan::Schedule schedule : problem_.space.schedules) {
        if (cost::several_stages_a_rank(schedule))
          list_chunks({cuts, micro_batches, schedule});
        else if (stages > 1 ? fills(schedule, micro_batches, stages) : schedule == whole_schedule())
          list({cuts, micro_batches, schedule});
      }
      return;
    }
    const Team& team = teams[cuts.size()];
    const std::int64_t samples = problem_.global_batch / micro_batches;
    int width = 0;
    for (const Working& working : team.working) width += working.devices() / team.stages;
    if (team.groups.size() == 1 && !widths_of(team.groups.front(), samples).contains(width)) return;
    for (const int devices : stands_of(team, samples)) {
      cuts.push_back({devices, width, team.stages});
      list_cuts(teams, cuts, stages, micro_batches);
      cuts.pop_back();
    }
  }

  // What a pipeline of one rank is said to run under.
  plan::Schedule whole_schedule() const {
    const std::vector<plan::Schedule>& schedules = problem_.space.schedules;
    const auto found = std::ranges::find_if(schedules, [](auto schedule) { return !cost::several_stages_a_rank(schedule); });
    return found != schedules.end() ? *found : schedules.front();
  }

  // Whether a pipeline has so many micro-batches that the closed form holds. The simulator prices any number.
  bool fills(plan::Schedule schedule, std::int64_t micro_batches, int ranks) const {
    return problem_.space.uniform || micro_batches >= cost::least_micro_batches(schedule, ranks);
  }

  // How many stages each rank of a pipeline may have. On several teams only in a uniform space: elsewhere these would be most of what is
  // looked at.
  void list_chunks(Outer outer) {
    const int ranks = outer.stages();
    const bool interleaved = outer.schedule == plan::Schedule::interleaved;
    if ((outer.groups.size() > 1 && !problem_.space.uniform) || ranks == 1 || !fills(outer.schedule, outer.micro_batches, ranks)) return;
    if (interleaved && outer.micro_batches % ranks != 0) return;
    const int given = problem_.space.given.chunks;
    const int fewest = interleaved && given > 0 ? given : 2;
    const int most = interleaved && given == 0 ? kMostChunks : fewest;
    for (outer.chunks = fewest; outer.chunks <= most && ranks * outer.chunks <= problem_.model.block_count(); ++outer.chunks) list(outer);
  }

  void list(const Outer& outer) { problem_.space.uniform ? list_degrees(outer) : out_.outers.push_back(outer); }

  // The degrees that all blocks may have on stages of one width.
  void list_degrees(Outer outer) {
    const std::vector<GroupCut>& cuts = outer.groups;
    const int width = cuts.front().width;
    const GivenDegrees& given = problem_.space.given;
    if (std::ranges::any_of(cuts, [&](const GroupCut& cut) { return cut.width != width; })) return;
    if (side_by_side_ && outer.stages() > 1) return;
    for (const std::int64_t tp : plan::divisors_of(side_by_side_ ? 1 : width)) {
      if (tp > problem_.space.most_tensor || !GivenDegrees::allows(given.tensor, tp) || !cuts_blocks(tp)) continue;
      for (const std::int64_t cp : plan::divisors_of(side_by_side_ ? 1 : width / tp)) {
        const std::int64_t dp = width / (tp * cp);
        if (!cuts_sequences(tp, cp) || !GivenDegrees::allows(given.data, dp)) continue;
        if (!side_by_side_ && problem_.global_batch / outer.micro_batches % dp != 0) continue;
        for (const int zero : dp* cp > 1 ? problem_.space.zero : std::vector<int>{0}) {
          outer.fixed = {static_cast<int>(tp), static_cast<int>(cp), zero};
          out_.outers.push_back(outer);
        }
      }
    }
  }

  // Whether all blocks may be cut so that do not stand whole.
  bool cuts_blocks(std::int64_t tp) const {
    return std::ranges::none_of(problem_.model.repeats, [&](const model::Repeat& repeat) {
      return plan::tensor_fault(problem_.model, repeat.block, tensor_of(problem_.space, repeat.block, tp)).has_value();
    });
  }
  // Whether the sequences of all blocks may be cut so.
  bool cuts_sequences(std::int64_t tp, std::int64_t cp) const {
    return cp <= problem_.space.most_context && GivenDegrees::allows(problem_.space.given.context, cp) &&
           std::ranges::all_of(problem_.model.repeats, [&](const model::Repeat& repeat) {
             const std::int64_t own = tensor_of(problem_.space, repeat.block, tp);
             return plan::context_divides(repeat.block, cp) && sequence_parallel_of(problem_.space, repeat.block, own, cp);
           });
  }

  // What the stages of a team may stand on.
  std::vector<int> stands_of(const Team& team, std::int64_t samples) {
    const auto part_of = [&](std::size_t i, std::int64_t share) {
      const NodeRanks& ranks = team.working[i].ranks;
      const bool workers = ranks.threads > 0;
      return cost::StageDevices::Part{team.groups[i], team.groups.size() > 1 ? team.working[i].devices() / team.stages : 0, share,
                                      ranks.threads, workers ? ranks.count : 0};
    };
    if (team.groups.size() > 1) {
      std::vector<SharePart> parts;
      for (std::size_t i = 0; i < team.groups.size(); ++i) {
        const int ranks = team.working[i].devices() / team.stages;
        parts.push_back({ranks, ranks * std::max(1, team.working[i].ranks.threads) * speed_of(problem_, team.groups[i])});
      }
      std::vector<int> out;
      for (const std::vector<std::int64_t>& shares :
           batch_shares(parts, samples, problem_.cluster.groups.size() > 2 ? kMostSharesOfMany : kMostShares)) {
        // Of a uniform space each rank is a replica.
        bool whole = true;
        for (std::size_t p = 0; p < parts.size(); ++p) whole = whole && shares[p] % parts[p].ranks == 0;
        if (problem_.space.uniform && !whole) continue;
        cost::StageDevices devices;
        for (std::size_t p = 0; p < parts.size(); ++p) devices.parts.push_back(part_of(p, shares[p]));
        out.push_back(stand_for(devices));
      }
      return out;
    }
    const int group = team.groups.front();
    const int working = team.working.front().devices();
    if (team.working.front().ranks.threads > 0) return {stand_for({{part_of(0, 0)}})};
    std::vector<int> out = {group};
    const int domain = group_at(group).domain();
    const bool several_domains = working > domain && working % domain == 0;
    if (!problem_.space.uniform && team.stages > 1 && several_domains && domain % team.stages == 0)
      out.push_back(stand_for({{{group, 0, 0}}, domain / team.stages}));
    const int width = working / team.stages;
    const bool may_deal = !problem_.space.uniform && problem_.cluster.groups.size() == 1 && problem_.space.most_tensor > 1;
    if (may_deal && domain > 1 && width > domain && width % domain == 0 && width / domain <= kMostDealt) {
      cost::StageDevices dealt{{{group, 0, 0}}};
      dealt.dealt_over = width / domain;
      out.push_back(stand_for(dealt));
    }
    return out;
  }

  int stand_for(const cost::StageDevices& devices) {
    const auto [found, fresh] = stands_.try_emplace(devices, static_cast<int>(problem_.cluster.groups.size() + out_.devices.size()));
    if (fresh) out_.devices.push_back(devices);
    return found->second;
  }

  const BlockProblem& problem_;
  std::vector<int> usable_;    // groups
  bool side_by_side_ = false;  // some team of those that are being cut
  Nodes nodes_ = Nodes::most;
  std::size_t combinations_ = 0;  // of numbers of nodes, with nodes_
  std::map<cost::StageDevices, int> stands_;
  std::map<std::pair<int, std::int64_t>, std::set<std::int64_t>> widths_;  // by group and samples of a micro-batch
  OuterChoices out_;
};

}  // namespace

std::set<std::int64_t> widths_of(const BlockProblem& problem, int group, std::int64_t samples) {
  const cluster::ResourceGroup& of = problem.cluster.groups[group];
  const GivenDegrees& given = problem.space.given;
  const std::int64_t most = most_ranks(of, node_ranks(problem, group));
  // Between ranks on one domain of the inside link, where a space is not uniform.
  const std::int64_t most_tensor = std::min<std::int64_t>(problem.space.uniform ? most : of.domain(), problem.space.most_tensor);
  std::set<std::int64_t> out;
  for (std::size_t repeat = 0; repeat < problem.model.repeats.size(); ++repeat) {
    const model::BlockSpec& block = problem.model.repeats[repeat].block;
    std::set<std::int64_t> here;
    for (std::int64_t tp = 1; tp <= most_tensor; ++tp) {
      const bool whole = tensor_of(problem.space, block, 2) == 1;
      if (whole ? tp > 1 : !GivenDegrees::allows(given.tensor, tp)) continue;
      if (plan::tensor_fault(problem.model, block, tp)) continue;
      for (std::int64_t cp = 1; cp <= problem.space.most_context && tp * cp <= most; ++cp) {
        if (!GivenDegrees::allows(given.context, cp) || !plan::context_divides(block, cp)) continue;
        for (const std::int64_t dp : plan::divisors_of(samples))
          if ((whole || GivenDegrees::allows(given.data, dp)) && tp * cp * dp <= most && (repeat == 0 || out.contains(tp * cp * dp)))
            here.insert(tp * cp * dp);
      }
    }
    out = std::move(here);
  }
  return out;
}

int round_number(int nodes) {
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(nodes)));
  return power > 1 && power / 2 * 3 <= nodes ? power / 2 * 3 : power;
}

bool may_use(const BlockProblem& problem, int group) {
  const std::vector<int>& groups = problem.space.groups;
  return problem.cluster.groups[group].device.has(problem.precision) &&
         (groups.empty() || std::ranges::find(groups, group) != groups.end());
}

double speed_of(const BlockProblem& problem, int group) {
  const cluster::ResourceGroup& of = problem.cluster.groups[group];
  return of.device.peak_of(problem.precision).value * of.speed_of(0);
}

plan::Plan frame_of(const BlockProblem& problem, std::int64_t micro_batches, plan::Schedule schedule) {
  plan::Plan plan;
  plan.model_fingerprint = problem.model.fingerprint();
  plan.cluster_fingerprint = problem.cluster.fingerprint();
  plan.precision = problem.precision;
  plan.global_batch = problem.global_batch;
  plan.rows_ahead = problem.rows_ahead;
  plan.micro_batches = micro_batches;
  plan.schedule = schedule;
  return plan;
}

void add_block(plan::Stage& stage, int block, const plan::Strategy& strategy) {
  if (!stage.runs.empty() && stage.runs.back().strategy == strategy)
    ++stage.runs.back().last;
  else
    stage.runs.push_back({block, block + 1, strategy});
}

OuterChoices outer_choices(const BlockProblem& problem) { return Choices(problem).list(); }

}  // namespace tessera::search
