#include "search/outer_choices.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "cost/warm_up.hpp"
#include "plan/divisors.hpp"
#include "search/batch_shares.hpp"

namespace tessera::search {
namespace {

// More groups than this are taken in the order of the cluster alone.
constexpr std::size_t kMostOrdered = 4;
// So many ways to share a micro-batch are tried.
constexpr std::size_t kMostShares = 12;
constexpr std::size_t kMostSharesOfMany = 4;  // in a cluster of more than two groups
// More groups than this do not stand side by side.
constexpr std::size_t kMostJoined = 3;

// Ranks are dealt over no more nodes than these, and only in a cluster of one group: it pays where weights are many beside
// the samples of a micro-batch, and doubles what is looked at.
constexpr int kMostDealt = 4;

// Groups side by side, or one alone, cut into equal stages.
struct Team {
  std::vector<int> groups;
  int stages = 1;
};

class Choices {
 public:
  explicit Choices(const BlockProblem& problem) : problem_(problem) {}

  OuterChoices list() {
    for (std::size_t g = 0; g < problem_.cluster.groups.size(); ++g)
      if (problem_.cluster.groups[g].device.has(problem_.precision) && allowed(static_cast<int>(g))) usable_.push_back(static_cast<int>(g));
    list_teams({}, 0);
    return std::move(out_);
  }

 private:
  // `taken`: a bit for each usable group that stands in a team already.
  void list_teams(std::vector<Team> teams, std::size_t taken) {
    if (!teams.empty()) list_widths(teams, 0);
    if (!teams.empty() && !problem_.space.mixed_groups) return;
    const std::size_t sets = std::size_t{1} << usable_.size();
    for (std::size_t set = 1; set < sets; ++set) {
      if ((set & taken) != 0) continue;
      const bool several = (set & (set - 1)) != 0;
      if (several && (!problem_.space.uneven_batch || !problem_.space.mixed_groups || usable_.size() > kMostJoined)) continue;
      if (usable_.size() > kMostOrdered && set < taken) continue;
      teams.emplace_back();
      for (std::size_t i = 0; i < usable_.size(); ++i)
        if (set >> i & 1) teams.back().groups.push_back(usable_[i]);
      list_teams(teams, taken | set);
      teams.pop_back();
    }
  }

  bool allowed(int group) const {
    const std::vector<int>& groups = problem_.space.groups;
    return groups.empty() || std::find(groups.begin(), groups.end(), group) != groups.end();
  }

  int devices_in(int group) const {
    const cluster::ResourceGroup& of = problem_.cluster.groups[static_cast<std::size_t>(group)];
    return of.nodes * of.devices_per_node;
  }

  void list_widths(std::vector<Team>& teams, std::size_t at) {
    int stages = 0;
    for (std::size_t t = 0; t < at; ++t) stages += teams[t].stages;
    if (at == teams.size()) {
      if (GivenDegrees::allows(problem_.space.given.stages, stages)) list_micro_batches(teams, stages);
      return;
    }
    const int most = std::min(problem_.space.most_stages, problem_.model.block_count()) - stages;
    int common = 0;
    for (const int group : teams[at].groups) common = std::gcd(common, devices_in(group));
    for (const std::int64_t count : plan::divisors_of(common)) {
      if (count > most) continue;
      teams[at].stages = static_cast<int>(count);
      list_widths(teams, at + 1);
    }
  }

  void list_micro_batches(const std::vector<Team>& teams, int stages) {
    for (const std::int64_t micro_batches : plan::divisors_of(problem_.global_batch))
      if (micro_batches <= problem_.space.most_micro_batches && GivenDegrees::allows(problem_.space.given.micro_batches, micro_batches))
        list_cuts(teams, {}, stages, micro_batches);
  }

  void list_cuts(const std::vector<Team>& teams, std::vector<GroupCut> cuts, int stages, std::int64_t micro_batches) {
    if (cuts.size() == teams.size()) {
      for (const plan::Schedule schedule : problem_.space.schedules)
        if (stages > 1 ? micro_batches >= cost::least_micro_batches(schedule, stages) : schedule == problem_.space.schedules.front())
          out_.outers.push_back({cuts, micro_batches, schedule});
      return;
    }
    const Team& team = teams[cuts.size()];
    int width = 0;
    for (const int group : team.groups) width += devices_in(group) / team.stages;
    for (const int devices : stands_of(team, problem_.global_batch / micro_batches)) {
      cuts.push_back({devices, width, team.stages});
      list_cuts(teams, cuts, stages, micro_batches);
      cuts.pop_back();
    }
  }

  // What the stages of a team may stand on.
  std::vector<int> stands_of(const Team& team, std::int64_t samples) {
    if (team.groups.size() > 1) {
      std::vector<SharePart> parts;
      for (const int group : team.groups) {
        const int ranks = devices_in(group) / team.stages;
        parts.push_back({ranks, ranks * problem_.cluster.groups[static_cast<std::size_t>(group)].device.peak_of(problem_.precision).value});
      }
      std::vector<int> out;
      for (const std::vector<std::int64_t>& shares :
           batch_shares(parts, samples, problem_.cluster.groups.size() > 2 ? kMostSharesOfMany : kMostShares)) {
        cost::StageDevices devices;
        for (std::size_t p = 0; p < parts.size(); ++p) devices.parts.push_back({team.groups[p], parts[p].ranks, shares[p]});
        out.push_back(stand_for(devices));
      }
      return out;
    }
    const int group = team.groups.front();
    std::vector<int> out = {group};
    const int domain = problem_.cluster.groups[static_cast<std::size_t>(group)].domain();
    const bool several_domains = devices_in(group) > domain && devices_in(group) % domain == 0;
    if (problem_.space.pipelines_in_nodes && team.stages > 1 && several_domains && domain % team.stages == 0)
      out.push_back(stand_for({{{group, 0, 0}}, domain / team.stages}));
    const int width = devices_in(group) / team.stages;
    const bool may_deal = problem_.space.replicas_in_nodes && problem_.cluster.groups.size() == 1 && problem_.space.most_tensor > 1;
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
  std::vector<int> usable_;  // groups
  std::map<cost::StageDevices, int> stands_;
  OuterChoices out_;
};

}  // namespace

OuterChoices outer_choices(const BlockProblem& problem) { return Choices(problem).list(); }

}  // namespace tessera::search
