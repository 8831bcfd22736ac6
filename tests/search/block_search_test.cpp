#include "search/block_search.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "base/expect_error.hpp"
#include "base/random.hpp"
#include "cost/cost_model.hpp"
#include "cost/priced_plan.hpp"
#include "cost/warm_up.hpp"
#include "plan/plan_helper.hpp"
#include "plan/schedule/schedule.hpp"
#include "plan/tensor_cut.hpp"
#include "search/outer_choices.hpp"
#include "search/stage_fronts.hpp"
#include "search/templates.hpp"

namespace tessera::search {
namespace {

using tessera::testing::error_of;

// Every plan of a space, one after the other, without any of the search's parts but the price of a whole plan.
class Enumeration {
 public:
  explicit Enumeration(const BlockProblem& problem) : problem_(problem), cost_model_(problem.model, problem.cluster, problem.precision) {}

  // The step of the fastest plan that fits; infinity where none does. Stops after `most` plans: then it is negative.
  double fastest(std::int64_t most) {
    left_ = most;
    best_ = std::numeric_limits<double>::infinity();
    std::vector<int> groups(problem_.cluster.groups.size());
    std::iota(groups.begin(), groups.end(), 0);
    std::vector<std::vector<int>> teams;
    orders(groups, teams);
    return left_ < 0 ? -1 : best_;
  }

 private:
  struct GroupRanks {
    int group = 0;
    int ranks = 0;
  };
  // What one stage stands on.
  struct Stand {
    std::vector<GroupRanks> parts;
    int team = 0;
    int of_team = 0;     // which of its stages
    int per_node = 0;    // all stages of the team on every domain, with so many devices each
    bool dealt = false;  // consecutive ranks on different domains
  };

  // Every sequence of sets of groups; those of one set stand side by side.
  void orders(const std::vector<int>& left, std::vector<std::vector<int>>& teams) {
    if (!teams.empty()) widths(teams, 0, {});
    for (std::size_t set = 1; set < (std::size_t{1} << left.size()); ++set) {
      std::vector<int> taken;
      std::vector<int> rest;
      for (std::size_t i = 0; i < left.size(); ++i) (set >> i & 1 ? taken : rest).push_back(left[i]);
      teams.push_back(taken);
      orders(rest, teams);
      teams.pop_back();
    }
  }

  void widths(const std::vector<std::vector<int>>& teams, std::size_t team, const std::vector<Stand>& stages) {
    if (team == teams.size()) {
      for (const std::int64_t count : plan::divisors_of(problem_.global_batch))
        for (const plan::Schedule schedule : problem_.space.schedules) shares(teams, 0, stages, {}, count, schedule);
      return;
    }
    working_nodes(teams, team, stages, {});
  }

  // `working`: devices of the team's first groups.
  void working_nodes(const std::vector<std::vector<int>>& teams, std::size_t team, const std::vector<Stand>& stages,
                     const std::vector<int>& working) {
    if (working.size() == teams[team].size()) return widths(teams, team, stages, working);
    const cluster::ResourceGroup& of = problem_.cluster.groups[static_cast<std::size_t>(teams[team][working.size()])];
    for (int nodes = 1; nodes <= of.nodes; ++nodes) {
      std::vector<int> more = working;
      more.push_back(nodes * of.devices_per_node);
      working_nodes(teams, team, stages, more);
    }
  }

  void widths(const std::vector<std::vector<int>>& teams, std::size_t team, const std::vector<Stand>& stages,
              const std::vector<int>& working) {
    for (int count = 1; count <= 8; ++count) {
      std::vector<GroupRanks> parts;
      bool divides = true;
      for (const int group : teams[team]) {
        const int devices = working[parts.size()];
        divides = divides && devices % count == 0;
        parts.push_back({group, devices / count});
      }
      if (!divides) continue;
      const int domain = problem_.cluster.groups[static_cast<std::size_t>(teams[team].front())].domain();
      const bool in_nodes = parts.size() == 1 && count > 1 && working.front() > domain && domain % count == 0;
      for (const int per_node : in_nodes ? std::vector<int>{0, domain / count} : std::vector<int>{0}) {
        auto more = stages;
        for (int i = 0; i < count; ++i) more.push_back({parts, static_cast<int>(team), i, per_node});
        if (static_cast<int>(more.size()) > std::min(problem_.model.block_count(), problem_.space.most_stages)) continue;
        widths(teams, team + 1, more);
        if (problem_.cluster.groups.size() > 1 || parts.size() > 1 || per_node > 0 || domain == 1 || parts.front().ranks <= domain ||
            parts.front().ranks % domain != 0)
          continue;
        for (std::size_t i = stages.size(); i < more.size(); ++i) more[i].dealt = true;
        widths(teams, team + 1, more);
      }
    }
  }

  // Those of each team of several groups.
  void shares(const std::vector<std::vector<int>>& teams, std::size_t team, const std::vector<Stand>& stages,
              std::vector<std::vector<std::int64_t>> chosen, std::int64_t count, plan::Schedule schedule) {
    if (team == teams.size()) return cut(stages, chosen, count, schedule);
    chosen.emplace_back();
    if (teams[team].size() == 1) return shares(teams, team + 1, stages, chosen, count, schedule);
    const auto first = std::find_if(stages.begin(), stages.end(), [&](const Stand& stand) { return stand.team == static_cast<int>(team); });
    std::vector<SharePart> parts;
    for (const GroupRanks& part : first->parts)
      parts.push_back(
          {part.ranks,
           part.ranks * problem_.cluster.groups[static_cast<std::size_t>(part.group)].device.peak_of(problem_.precision).value});
    for (const auto& each : batch_shares(parts, problem_.global_batch / count, 12)) {
      chosen.back() = each;
      shares(teams, team + 1, stages, chosen, count, schedule);
    }
  }

  void cut(const std::vector<Stand>& stages, const std::vector<std::vector<std::int64_t>>& shares, std::int64_t count,
           plan::Schedule schedule) {
    if (cost::several_stages_a_rank(schedule)) return cut_in_chunks(stages, shares, count, schedule);
    const auto& all = problem_.space.schedules;
    if (stages.size() == 1 && schedule != *std::find_if_not(all.begin(), all.end(), cost::several_stages_a_rank)) return;
    const auto places = static_cast<std::int64_t>(stages.size());
    if (places > 1 &&
        ((schedule == plan::Schedule::zb_h1 && count < places) || (schedule == plan::Schedule::zb_h2 && count < 2 * places - 1)))
      return;
    plan::Plan plan = frame(stages, shares, count, schedule);
    strategies(plan, 0, 0, stages);
  }

  // Several stages on each rank.
  void cut_in_chunks(const std::vector<Stand>& stands, const std::vector<std::vector<std::int64_t>>& shares, std::int64_t count,
                     plan::Schedule schedule) {
    const int ranks = static_cast<int>(stands.size());
    const bool v_shaped = plan::is_v_shaped(schedule);
    if (ranks == 1 || stands.back().team > 0 || (v_shaped ? count < 2 * ranks : count % ranks != 0)) return;
    for (int chunks = 2; chunks <= (v_shaped ? 2 : 8) && ranks * chunks <= problem_.model.block_count(); ++chunks) {
      plan::Plan plan = frame(stands, shares, count, schedule);
      const std::vector<plan::Stage> of_rank = std::move(plan.stages);
      plan.stages.assign(static_cast<std::size_t>(ranks * chunks), {});
      std::vector<Stand> stages(plan.stages.size());
      for (int rank = 0; rank < ranks; ++rank)
        for (int chunk = 0; chunk < chunks; ++chunk) {
          const auto stage = static_cast<std::size_t>(stage_at(schedule, rank, chunk, ranks));
          plan.stages[stage] = of_rank[static_cast<std::size_t>(rank)];
          stages[stage] = stands[static_cast<std::size_t>(rank)];
        }
      strategies(plan, 0, 0, stages);
    }
  }

  // Without blocks.
  plan::Plan frame(const std::vector<Stand>& stages, const std::vector<std::vector<std::int64_t>>& shares, std::int64_t count,
                   plan::Schedule schedule) const {
    plan::Plan plan;
    plan.precision = problem_.precision;
    plan.global_batch = problem_.global_batch;
    plan.micro_batches = count;
    plan.schedule = schedule;
    std::map<int, int> next;
    for (const Stand& stand : stages) {
      plan::Stage stage;
      for (std::size_t p = 0; p < stand.parts.size(); ++p) {
        const auto& [group, ranks] = stand.parts[p];
        const cluster::ResourceGroup& of = problem_.cluster.groups[static_cast<std::size_t>(group)];
        if (stand.parts.size() > 1) stage.shares.push_back({ranks, shares[static_cast<std::size_t>(stand.team)][p]});
        for (int i = 0; i < ranks; ++i) {
          const int first = next[group] - i;
          int device = next[group]++;
          if (stand.dealt) device = first + i % (ranks / of.domain()) * of.domain() + i / (ranks / of.domain());
          if (stand.per_node > 0) device = i / stand.per_node * of.domain() + stand.of_team * stand.per_node + i % stand.per_node;
          stage.ranks.push_back(plan.world_size());
          plan.ranks.push_back({group, device / of.devices_per_node, device % of.devices_per_node});
        }
      }
      plan.stages.push_back(stage);
    }
    return plan;
  }

  // Block `block` goes to stage `stage` or opens the next one.
  void strategies(plan::Plan& plan, int block, std::size_t stage, const std::vector<Stand>& stands) {
    if (left_ < 0) return;
    if (block == problem_.model.block_count()) {
      if (stage + 1 == stands.size() && !plan.stages.back().runs.empty()) price(plan);
      return;
    }
    for (const std::size_t here : {stage, stage + 1}) {
      if (here == stands.size() || (here > stage && plan.stages[stage].runs.empty())) continue;
      for (const plan::Strategy& strategy : options(block, stands[here], plan.stages[here], plan)) {
        plan.stages[here].runs.push_back({block, block + 1, strategy});
        strategies(plan, block + 1, here, stands);
        plan.stages[here].runs.pop_back();
      }
    }
  }

  std::vector<plan::Strategy> options(int block, const Stand& stand, const plan::Stage& stage, const plan::Plan& plan) const {
    const int width = stage.width();
    const bool end = block == 0 || block + 1 == problem_.model.block_count();
    std::vector<plan::Strategy> out;
    int domain = stand.per_node;
    for (const GroupRanks& part : stand.parts)
      if (const int of = problem_.cluster.groups[static_cast<std::size_t>(part.group)].domain();
          stand.per_node == 0 && (domain == 0 || of < domain))
        domain = of;
    for (int tp = stand.dealt ? 2 : 1; tp <= std::min({width, domain, problem_.space.most_tensor}); ++tp)
      for (int cp = 1; cp <= std::min(width, problem_.space.most_context); ++cp) {
        if (width % (tp * cp) != 0 || (cp > 1 && problem_.model.dim("seq") % (2 * cp) != 0)) continue;
        const int domains = width / domain;
        if (stand.dealt && ((domains % tp != 0 && tp % domains != 0) || (domains % (tp * cp) != 0 && tp * cp % domains != 0))) continue;
        if (!end && (problem_.model.dim("heads") % tp != 0 || problem_.model.dim("kv_heads") % tp != 0)) continue;
        const int dp = width / (tp * cp);
        const std::vector<plan::Share> shares = plan.shares_of(stage);
        if (std::any_of(shares.begin(), shares.end(), [&](const plan::Share& share) {
              return share.ranks % (tp * cp) != 0 || share.samples % (share.ranks / (tp * cp)) != 0;
            }))
          continue;
        for (const int zero : dp* cp > 1 ? problem_.space.zero : std::vector<int>{0})
          for (const model::Recompute recompute : end ? std::vector{model::Recompute::none} : problem_.space.recompute)
            for (const model::ContextKind context : {model::ContextKind::ring, model::ContextKind::ulysses}) {
              if (context == model::ContextKind::ulysses && (end || cp == 1 || problem_.model.dim("heads") / tp % cp != 0)) continue;
              plan::Strategy strategy;
              strategy.dp = dp;
              strategy.tp = tp;
              strategy.cp = cp;
              strategy.context = context;
              strategy.zero = zero;
              strategy.recompute = recompute;
              strategy.sequence_parallel = tp > 1 && problem_.model.dim("seq") % (tp * cp) == 0;
              out.push_back(strategy);
              strategy.shards = zero > 0 ? sharding_group(cost_model_, cost_model_.devices_of(plan, stage), strategy) : 0;
              if (strategy.shards > 0) out.push_back(strategy);
            }
      }
    return out;
  }

  // A rank that holds the first block and the last has one part of what they share.
  bool shares_alike(const plan::Plan& plan) const {
    const plan::Stage& first = plan.stages.front();
    const plan::Stage& last = plan.stages.back();
    return !problem_.model.tied_embeddings || first.ranks != last.ranks || first.runs.front().strategy.tp == last.runs.back().strategy.tp;
  }

  // What a stage's ranks hold, as blocks are priced: bytes against memory_limit of its devices.
  double bytes_held(const plan::Plan& plan, const plan::Stage& stage) const {
    const auto first = std::find_if(plan.stages.begin(), plan.stages.end(), [&](const auto& other) { return other.ranks == stage.ranks; });
    double out = 0;
    for (const auto& [name, bytes] :
         cost::PricedPlan(plan, cost_model_).terms(static_cast<int>(first - plan.stages.begin()), cost::kAllParts))
      out += static_cast<double>(bytes.value);
    return out;
  }

  void price(const plan::Plan& plan) {
    if (--left_ < 0 || !shares_alike(plan)) return;
    const plan::Prediction prediction = cost::predict(plan, cost_model_);
    for (const plan::Stage& stage : plan.stages) {
      const auto rank = static_cast<std::size_t>(stage.ranks.front());
      const double bytes = stage.shares.empty() ? static_cast<double>(prediction.memory[rank].value) : bytes_held(plan, stage);
      if (bytes > cost_model_.memory_limit(plan.ranks[rank].group)) return;
    }
    best_ = std::min(best_, prediction.step.value);
  }

  const BlockProblem& problem_;
  mutable cost::CostModel cost_model_;  // remembers
  std::int64_t left_ = 0;
  double best_ = 0;
};

struct Instance {
  model::ModelSpec model;
  cluster::ClusterSpec cluster;
  BlockSpace space;
  std::int64_t global_batch = 1;
};

template <typename Item>
Item one_of(Random& random, const std::vector<Item>& items) {
  return items[static_cast<std::size_t>(random.below(items.size()))];
}

// Up to 6 blocks on up to 8 devices of one or two kinds; often so large that memory decides.
Instance random_instance(Random& random) {
  const int hidden = one_of<int>(random, {2048, 4096, 8192});
  const int layers = 1 + static_cast<int>(random.below(4));
  const bool tied = random.below(4) == 0;
  Instance out;
  out.model = model::read_model(ConfigNode::parse(
      text("{arch: llama, hidden: ", hidden, ", layers: ", layers, ", heads: 16, kv_heads: ", one_of<int>(random, {2, 16}), ", ffn: ",
           2 * hidden, ", seq: ", one_of<int>(random, {513, 2048, 8192}), ", vocab: 32000, tied: ", tied ? "true" : "false", "}"),
      "model"));
  const double state = 18.0 * static_cast<double>(out.model.parameter_count());
  const int groups = 1 + static_cast<int>(random.below(2));
  std::string yaml = "name: small\nbetween: rdma-100g\ngroups:\n";
  std::vector<std::string> kinds = {"a100-80", "h100-sxm", "l40s", "rtx4090"};
  for (int g = 0; g < groups; ++g) {
    const std::size_t kind = static_cast<std::size_t>(random.below(kinds.size()));
    const int nodes = one_of<int>(random, groups == 1 ? std::vector<int>{1, 1, 2, 2, 3, 4} : std::vector<int>{1, 2});
    const int each = one_of<int>(random, nodes == 4    ? std::vector<int>{2}
                                         : groups == 1 ? std::vector<int>{1, 2, 3, 4}
                                                       : std::vector<int>{1, 2});
    const double memory = 1.2 * (1 << 30) + state * (0.08 + 1.2 * random.uniform());
    yaml += text("  - {name: g", g, ", device: ", kinds[kind], ", nodes: ", nodes, ", devices_per_node: ", each,
                 ", memory: ", static_cast<std::int64_t>(memory / (1 << 20)),
                 " MiB, inside: ", one_of<std::string>(random, {"nvlink3", "pcie4"}),
                 ", network: ", one_of<std::string>(random, {"rdma-100g", "tcp-10g"}), "}\n");
    kinds.erase(kinds.begin() + static_cast<std::ptrdiff_t>(kind));
  }
  out.cluster = cluster::read_cluster(ConfigNode::parse(yaml, "cluster.yaml"));
  out.space.zero = one_of<std::vector<int>>(random, {{0}, {0, 1}, {0, 3}, {1, 3}, {0, 2}, {0, 1, 2, 3}});
  out.space.recompute =
      one_of<std::vector<model::Recompute>>(random, {{model::Recompute::none}, {model::Recompute::none, model::Recompute::full}});
  out.space.schedules =
      one_of<std::vector<plan::Schedule>>(random, {{plan::Schedule::one_f_one_b},
                                                   {plan::Schedule::zb_h1},
                                                   {plan::Schedule::one_f_one_b, plan::Schedule::zb_h2},
                                                   {plan::Schedule::zb_v},
                                                   {plan::Schedule::interleaved},
                                                   {plan::Schedule::one_f_one_b, plan::Schedule::interleaved, plan::Schedule::zb_v}});
  out.space.most_tensor = one_of<int>(random, {1, 2, 8});
  out.space.most_context = one_of<int>(random, {1, 1, 2});
  out.space.offload = false;
  out.global_batch = one_of<int>(random, {2, 4, 6, 8, 12});
  return out;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kInstances = 30;
#else
constexpr int kInstances = 500;
#endif

int depth_of(const plan::Stage& stage) { return stage.last_block() - stage.first_block(); }

TEST(BlockSearch, EqualsEnumerationOnRandomSmallInstances) {
  Random random(20261121);
  int compared = 0;
  int feasible = 0;
  int mixed = 0;
  int side_by_side = 0;
  int bound_by_memory = 0;
  int across_nodes = 0;
  int sharding_groups = 0;
  int several_stages = 0;
  int unequal_depths = 0;
  while (compared < kInstances) {
    const Instance instance = random_instance(random);
    const BlockProblem problem{
        .model = instance.model, .cluster = instance.cluster, .global_batch = instance.global_batch, .space = instance.space, .threads = 1};
    const double fastest = Enumeration(problem).fastest(30000);
    if (fastest < 0) continue;  // too many to enumerate
    ++compared;
    BlockAnswer answer;
    try {
      answer = search(problem);
    } catch (const Error& error) {
      ASSERT_EQ(fastest, std::numeric_limits<double>::infinity()) << error.what();
      continue;
    }
    ASSERT_EQ(answer.plans.empty(), fastest == std::numeric_limits<double>::infinity()) << cluster::to_yaml(instance.cluster);
    if (answer.plans.empty()) continue;
    ++feasible;
    const plan::Plan& best = answer.plans.front();
    ASSERT_NO_THROW(check(best, instance.model, instance.cluster)) << to_json(best);
    // Not every plan of interleaved stages is ruled out where their activations peak at several moments.
    ASSERT_LE(answer.bound / fastest, 1 + 1e-9) << cluster::to_yaml(instance.cluster) << to_json(best);
    if (std::none_of(problem.space.schedules.begin(), problem.space.schedules.end(), cost::several_stages_a_rank)) {
      ASSERT_NEAR(answer.bound / fastest, 1, 1e-9) << cluster::to_yaml(instance.cluster) << to_json(best);
    }
    // Of plans that are equal to one part in a million the simplest is taken.
    cost::CostModel cost_model(instance.model, instance.cluster, problem.precision);
    ASSERT_NEAR(cost::predict(best, cost_model).step.value / fastest, 1, 2e-6) << cluster::to_yaml(instance.cluster) << to_json(best);
    for (std::size_t rank = 0; rank < best.ranks.size(); ++rank)
      ASSERT_LE(static_cast<double>(best.predicted->memory[rank].value), cost_model.memory_limit(best.ranks[rank].group) + 1)
          << cluster::to_yaml(instance.cluster) << to_json(best);
    side_by_side += best.stages.front().shares.empty() ? 0 : 1;
    across_nodes += std::any_of(best.stages.begin(), best.stages.end(),
                                [](const plan::Stage& stage) { return !std::is_sorted(stage.ranks.begin(), stage.ranks.end()); })
                        ? 1
                        : 0;
    sharding_groups += std::any_of(best.stages.begin(), best.stages.end(),
                                   [](const plan::Stage& stage) {
                                     return std::any_of(stage.runs.begin(), stage.runs.end(),
                                                        [](const plan::StrategyRun& run) { return run.strategy.shards > 0; });
                                   })
                           ? 1
                           : 0;
    several_stages += cost::several_stages_a_rank(best.schedule) ? 1 : 0;
    const auto [shallowest, deepest] = std::minmax_element(
        best.stages.begin(), best.stages.end(), [](const plan::Stage& a, const plan::Stage& b) { return depth_of(a) < depth_of(b); });
    unequal_depths += cost::several_stages_a_rank(best.schedule) && depth_of(*shallowest) < depth_of(*deepest) ? 1 : 0;
    mixed += best.ranks.front().group != best.ranks.back().group ? 1 : 0;
    cluster::ClusterSpec roomy = instance.cluster;
    for (cluster::ResourceGroup& group : roomy.groups) group.device.memory = group.device.memory * 1000;
    BlockProblem free = {
        .model = instance.model, .cluster = roomy, .global_batch = instance.global_batch, .space = instance.space, .threads = 1};
    bound_by_memory += search(free).bound < answer.bound * (1 - 1e-9) ? 1 : 0;
  }
  std::printf(
      "%d instances: %d feasible, %d with both kinds of device in the best plan, in %d of these side by side, %d with a block's parts "
      "across nodes, %d with state sharded within nodes, %d with several stages a rank, in %d of these of unequal depth, %d in which "
      "memory "
      "decides\n",
      compared, feasible, mixed, side_by_side, across_nodes, sharding_groups, several_stages, unequal_depths, bound_by_memory);
  RecordProperty("feasible", feasible);
  EXPECT_GT(feasible, kInstances / 2);
  EXPECT_GT(mixed, kInstances / 50);
  EXPECT_GT(bound_by_memory, kInstances / 20);
  EXPECT_GE(across_nodes, kInstances / 500);
  EXPECT_GE(sharding_groups, kInstances / 250);
  EXPECT_GT(several_stages, kInstances / 20);
  EXPECT_GT(unequal_depths, kInstances / 50);
}

TEST(BlockSearch, GivesTheSameAnswerWithAnyNumberOfThreads) {
  const auto job = plan::preset_job("llama-2-13b", 64);
  const auto cluster = plan::gpu_cluster(2, 8, "a100-40");
  std::vector<std::string> answers;
  for (const int threads : {1, 2, 5}) {
    const BlockProblem problem{
        .model = job.model, .cluster = cluster, .global_batch = 64, .tolerance = 1e-3, .effort = 100'000, .threads = threads};
    const BlockAnswer answer = search(problem);
    ASSERT_FALSE(answer.plans.empty());
    answers.push_back(to_json(answer.plans.front()));
  }
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_EQ(answers[0], answers[2]);
}

TEST(BlockSearch, MixesStrategiesWhereMemoryIsShort) {
  const auto job = plan::preset_job("llama-2-7b", 64);
  const auto cluster = plan::gpu_cluster(1, 8, "a100-40");
  const BlockAnswer answer = search(BlockProblem{.model = job.model, .cluster = cluster, .global_batch = 64});
  ASSERT_FALSE(answer.plans.empty());
  const plan::Plan& plan = answer.plans.front();
  EXPECT_GT(plan.stages.front().runs.size(), 2u);  // not the same for all layers
  EXPECT_NO_THROW(check(plan, job, cluster));
  cost::CostModel cost_model(job.model, cluster, plan.precision);
  EXPECT_LE(static_cast<double>(plan.predicted->memory.front().value), cost_model.memory_limit(0));
  EXPECT_GT(static_cast<double>(plan.predicted->memory.front().value), 0.95 * cost_model.memory_limit(0));
}

TEST(BlockSearch, KeepsToItsEffortAndSaysWhatIsLeft) {
  const auto job = plan::preset_job("llama-3-70b", 256);
  const auto cluster = plan::gpu_cluster(16, 8);
  const BlockAnswer answer = search(BlockProblem{.model = job.model, .cluster = cluster, .global_batch = 256, .effort = 1});
  ASSERT_FALSE(answer.plans.empty());
  EXPECT_LT(answer.bound, answer.plans.front().predicted->step.value);
  EXPECT_GT(answer.bound, 0);
}

// A second passes whenever somebody looks.
class Ticking : public Clock {
 public:
  Seconds now() const override { return Seconds(static_cast<double>(++looks_)); }
  void sleep(Seconds) override {}

 private:
  mutable std::atomic<std::int64_t> looks_ = 0;
};

TEST(BlockSearch, TimeCountsFromTheBeginningAndEndsListingToo) {
  const auto job = plan::preset_job("llama-3-70b", 256);
  const auto cluster = plan::gpu_cluster(16, 8);
  const std::int64_t all = search(BlockProblem{.model = job.model, .cluster = cluster, .global_batch = 256, .effort = 1}).considered;
  const auto after = [&](double seconds) {
    const Ticking clock;
    return search(
        BlockProblem{.model = job.model, .cluster = cluster, .global_batch = 256, .effort = 1, .seconds = seconds, .clock = &clock});
  };
  const BlockAnswer answer = after(3);
  ASSERT_FALSE(answer.plans.empty());
  EXPECT_NO_THROW(check(answer.plans.front(), job, cluster));
  EXPECT_LT(answer.considered, all);
  EXPECT_LT(answer.bound, answer.plans.front().predicted->step.value);
  // With time enough, all are considered as without a clock.
  EXPECT_EQ(after(1e12).considered, all);
}

// The time is over at the first look at the clock.
TEST(BlockSearch, GoesOnAfterItsTimeUntilThereIsAPlan) {
  const auto job = plan::preset_job("llama-3-8b", 64);
  const auto cluster = plan::gpu_cluster(2, 8);
  const Ticking clock;
  const BlockAnswer answer =
      search(BlockProblem{.model = job.model, .cluster = cluster, .global_batch = 64, .seconds = 0.5, .clock = &clock});
  EXPECT_FALSE(answer.plans.empty());
}

TEST(BlockSearch, RefusesWhatDoesNotDivide) {
  const auto job = plan::preset_job("llama-2-7b", 3);
  const auto cluster = plan::gpu_cluster(1, 8);
  BlockProblem problem{.model = job.model, .cluster = cluster, .global_batch = 3};
  problem.space.most_tensor = problem.space.most_context = problem.space.most_stages = 1;
  EXPECT_EQ(error_of([&] { search(problem); }).code(), ErrorCode::invalid_config);
  problem.precision = model::Precision::f8;
  EXPECT_EQ(error_of([&] { search(problem); }).code(), ErrorCode::invalid_config);
}

// A template is a point of the space: the search is never slower, and on two kinds of device never slower than on one.
TEST(BlockSearch, IsNeverSlowerThanTemplatesOrOneKindOfDevice) {
  const auto job = plan::preset_job("llama-3-8b", 32);
  const auto cluster = cluster::read_cluster(
      ConfigNode::parse("name: two\nbetween: rdma-100g\ngroups:\n"
                        "  - {name: h, device: h100-sxm, nodes: 1, devices_per_node: 4, inside: nvlink4, network: rdma-400g}\n"
                        "  - {name: a, device: a100-40, nodes: 1, devices_per_node: 8, inside: nvlink3, network: rdma-100g}\n",
                        "cluster.yaml"));
  BlockProblem problem{.model = job.model, .cluster = cluster, .global_batch = 32, .tolerance = 1e-3, .effort = 200'000};
  const double step = search(problem).plans.front().predicted->step.value;
  cost::CostModel cost_model(job.model, cluster, problem.precision);
  for (const int group : {0, 1}) {
    const auto fixed = best_template(problem, {.group = group, .schedules = {plan::Schedule::one_f_one_b}}, cost_model);
    if (fixed) {
      EXPECT_NO_THROW(check(*fixed, job, cluster));
      EXPECT_LE(step, fixed->predicted->step.value * (1 + 1e-3));
    }
    BlockProblem alone = problem;
    alone.space.groups = {group};
    for (const plan::Plan& plan : search(alone).plans) {
      EXPECT_EQ(plan.ranks.front().group, group);
      EXPECT_LE(step, plan.predicted->step.value * (1 + 1e-3));
    }
  }
}

}  // namespace
}  // namespace tessera::search
