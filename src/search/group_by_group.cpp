// Outer choices that are near another one.
#include "search/outer_choices.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "cost/warm_up.hpp"

namespace tessera::search {
namespace {

// Widths of the stages of a further group.
constexpr std::size_t kWidths = 4;

class Neighbours {
 public:
  Neighbours(const BlockProblem& problem, const cost::CostModel& cost_model, const Outer& outer)
      : problem_(problem), cost_model_(cost_model), outer_(outer), stage_speed_(speed_of(outer) / outer.stages()) {}

  std::vector<Outer> list() {
    std::set<int> taken;
    for (const GroupCut& cut : outer_.groups)
      for (const cost::StageDevices::Part& part : cost_model_.parts_of(cut.devices).parts) taken.insert(part.group);
    for (std::size_t g = 0; g < problem_.cluster.groups.size(); ++g)
      if (!taken.contains(static_cast<int>(g)) && may_use(problem_, static_cast<int>(g))) add(static_cast<int>(g));
    return std::move(out_);
  }

 private:
  double speed_of(const Outer& outer) const {
    double out = 0;
    for (const GroupCut& cut : outer.groups) {
      const std::vector<cost::StageDevices::Part>& parts = cost_model_.parts_of(cut.devices).parts;
      for (const cost::StageDevices::Part& part : parts)
        out += cut.stages * (parts.size() == 1 ? cut.width : part.ranks) * search::speed_of(problem_, part.group);
    }
    return out;
  }

  void add(int group) {
    for (const std::int64_t micro_batches : {outer_.micro_batches, 2 * outer_.micro_batches, outer_.micro_batches / 2}) {
      if (micro_batches == 0 || problem_.global_batch % micro_batches != 0 ||
          !GivenDegrees::allows(problem_.space.given.micro_batches, micro_batches) || !cuts_divide(micro_batches))
        continue;
      for (const GroupCut& cut : cuts_of(group, micro_batches))
        for (std::size_t place = 0; place <= outer_.groups.size(); ++place) add(cut, place, micro_batches);
    }
  }

  // Whether the stages that there are can have so many micro-batches.
  bool cuts_divide(std::int64_t micro_batches) const {
    if (micro_batches == outer_.micro_batches) return true;
    return std::ranges::all_of(outer_.groups, [&](const GroupCut& cut) {
      const std::vector<cost::StageDevices::Part>& parts = cost_model_.parts_of(cut.devices).parts;
      return parts.size() == 1 && widths_of(problem_, parts.front().group, problem_.global_batch / micro_batches).contains(cut.width);
    });
  }

  std::vector<GroupCut> cuts_of(int group, std::int64_t micro_batches) const {
    const cluster::ResourceGroup& of = problem_.cluster.groups[group];
    const int left = std::min(problem_.space.most_stages, problem_.model.block_count()) - outer_.stages();
    std::vector<GroupCut> out;
    for (const std::int64_t width : widths_of(problem_, group, problem_.global_batch / micro_batches))
      for (int stages = static_cast<int>(std::min<std::int64_t>(left, of.nodes * of.devices_per_node / width)); stages > 0; --stages) {
        const auto devices = static_cast<int>(stages * width);
        if (devices % of.devices_per_node != 0 || (!problem_.space.idle_nodes && devices != of.nodes * of.devices_per_node)) continue;
        out.push_back({group, static_cast<int>(width), stages});
        break;
      }
    const auto unlike = [&](const GroupCut& cut) {
      return std::abs(std::log(cut.width * search::speed_of(problem_, group) / stage_speed_));
    };
    std::ranges::stable_sort(out, {}, unlike);
    out.resize(std::min(out.size(), kWidths));
    return out;
  }

  void add(const GroupCut& cut, std::size_t place, std::int64_t micro_batches) {
    Outer outer{.groups = outer_.groups, .micro_batches = micro_batches};
    outer.groups.insert(outer.groups.begin() + place, cut);
    if (!GivenDegrees::allows(problem_.space.given.stages, outer.stages())) return;
    for (const plan::Schedule schedule : problem_.space.schedules) {
      if (cost::several_stages_a_rank(schedule) || micro_batches < cost::least_micro_batches(schedule, outer.stages())) continue;
      outer.schedule = schedule;
      out_.push_back(outer);
    }
  }

  const BlockProblem& problem_;
  const cost::CostModel& cost_model_;
  const Outer& outer_;
  const double stage_speed_;
  std::vector<Outer> out_;
};

}  // namespace

std::vector<Outer> with_one_group_more(const BlockProblem& problem, const cost::CostModel& cost_model, const Outer& outer) {
  return Neighbours(problem, cost_model, outer).list();
}

}  // namespace tessera::search
