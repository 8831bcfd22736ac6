#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "model/forms.hpp"
#include "plan/plan.hpp"
#include "plan/schedule/schedule.hpp"
#include "plan/tensor_cut.hpp"

namespace tessera::plan {

void refuse(const Where& where, const std::string& message, const std::string& expected, const std::string& hint) {
  throw Error(ErrorCode::invalid_config, "the plan cannot run: " + message, where, expected, hint);
}

namespace {

constexpr const char* kAgain = "make a plan for it with `tessera plan`";

void check_fingerprints(const Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster) {
  if (plan.model_fingerprint != model.fingerprint())
    refuse(plan.where, "it was made for another model (" + plan.model_fingerprint + ")", "a plan for model " + model.fingerprint(), kAgain);
  if (plan.cluster_fingerprint != cluster.fingerprint())
    refuse(plan.where, "it was made for other devices (" + plan.cluster_fingerprint + ")",
           text("a plan for ", cluster.name, " (", cluster.fingerprint(), ")"), kAgain);
}

void check_ranks(const Plan& plan, const cluster::ClusterSpec& cluster) {
  if (plan.ranks.empty()) refuse(plan.where, "it has no ranks", "at least one");
  std::map<std::tuple<int, int, int>, int> used;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    const RankPlace& place = plan.ranks[rank];
    const auto check_below = [&](const char* what, int index, int count, const std::string& whose) {
      if (index < 0 || index >= count)
        refuse(place.where, text("rank ", rank, " stands on ", what, ' ', index), text("a ", what, " below ", count, whose));
    };
    check_below("group", place.group, static_cast<int>(cluster.groups.size()), "");
    const cluster::ResourceGroup& group = cluster.groups[place.group];
    check_below("node", place.node, group.nodes, " of group " + group.name);
    check_below("device", place.device, group.most_ranks_per_node(), " of group " + group.name);
    if (place.threads < 1) refuse(place.where, text("rank ", rank, " has ", place.threads, " threads"), "at least 1");
    const auto [first, fresh] = used.try_emplace({place.group, place.node, place.device}, rank);
    if (!fresh) refuse(place.where, text("ranks ", first->second, " and ", rank, " stand on the same device"), "one rank a device");
  }
}

using Blocks = std::vector<const model::BlockSpec*>;  // of a run, equal ones in a row once

void check_tensor_parallel(const model::ModelSpec& model, const StrategyRun& run, const Blocks& blocks) {
  const auto fault_at = [&](std::int64_t degree) -> std::optional<TensorFault> {
    for (const model::BlockSpec* block : blocks)
      if (const auto fault = tensor_fault(model, *block, degree, experts_of(run.strategy))) return fault;
    return {};
  };
  if (const auto fault = fault_at(run.strategy.tp)) {
    std::int64_t nearest = run.strategy.tp - 1;
    while (fault_at(nearest)) --nearest;
    for (std::int64_t above = run.strategy.tp + 1; above - run.strategy.tp < run.strategy.tp - nearest; ++above)
      if (!fault_at(above)) nearest = above;
    refuse(run.where, text("tp ", run.strategy.tp, " ", fault->what()), fault->expected(), text("nearest: ", nearest));
  }
  if (!run.strategy.sequence_parallel) return;
  if (run.strategy.tp == 1) refuse(run.where, "sequence_parallel with tp 1", "tp of at least 2, or sequence_parallel: false");
  const Strategy& s = run.strategy;
  const std::int64_t parts = std::int64_t{s.tp} * s.cp;
  for (const model::BlockSpec* block : blocks)
    if (!sequence_divides(*block, parts))
      refuse(run.where,
             text("sequence_parallel with tp ", s.tp, s.cp == 1 ? ", which does" : text(" x cp ", s.cp, ", which do"), " not divide seq ",
                  block->dim("seq")),
             "degrees that divide seq, or sequence_parallel: false");
}

void check_whole_blocks(const model::ModelSpec& model, const StrategyRun& run, const Blocks& blocks) {
  const Strategy& s = run.strategy;
  const bool whole = std::ranges::any_of(blocks, [](const model::BlockSpec* block) { return !model::cut_by_nn(*block); });
  if (s.tp > 1 && whole) refuse(run.where, text("tp ", s.tp, " cuts blocks of arch ", model.arch, ", which stand whole"), "tp 1");
  if (s.cp > 1) refuse(run.where, text("cp ", s.cp, " cuts sequences, and blocks of arch ", model.arch, " take whole ones"), "cp 1");
  if (s.recompute == model::Recompute::selective)
    refuse(run.where, text("recompute selective, and blocks of arch ", model.arch, " are computed again as a whole"),
           "recompute none or full");
}

void check_context_parallel(const StrategyRun& run, const Blocks& blocks) {
  const Strategy& s = run.strategy;
  if (s.cp == 1) return;
  for (const model::BlockSpec* block : blocks) {
    const auto seq = block->dims.find("seq");
    if (seq == block->dims.end()) refuse(run.where, text("cp ", s.cp, " for blocks without a sequence (", block->kind, ")"), "cp 1");
    if (s.context == model::ContextKind::ulysses && !heads_divide(*block, s.tp, s.cp))
      refuse(run.where,
             text("cp ", s.cp, " with context ulysses, which does not divide the ", block->dim("heads") / s.tp,
                  " query heads of a tensor-parallel rank"),
             "a degree that divides them, or context: ring");
    if (context_divides(*block, s.cp)) continue;
    const auto positions = static_cast<std::int64_t>(seq->second);
    const std::int64_t nearest = positions % 2 == 0 ? nearest_of(divisors_of(positions / 2), s.cp) : 1;
    refuse(run.where, text("cp ", s.cp, ": twice that does not divide seq ", positions), "a degree of which twice divides seq",
           text("nearest: ", nearest));
  }
}

void check_expert_parallel(const model::ModelSpec& model, const StrategyRun& run, const Blocks& blocks) {
  const Strategy& s = run.strategy;
  if (s.ep == 1) return;
  if (!model.dims.contains("experts")) refuse(run.where, text("ep ", s.ep, " for a model without experts"), "ep 1");
  const int spread = s.ranks() / s.expert_tp();
  std::int64_t common = spread;
  for (const model::BlockSpec* block : blocks)
    if (block->dims.contains("experts")) common = std::gcd(common, block->dim("experts"));
  if (common % s.ep != 0)
    refuse(run.where, text("ep ", s.ep, " does not divide both the experts and dp x cp ", s.whole_experts ? "x tp " : "", spread),
           "a degree that divides both", text("nearest: ", nearest_of(divisors_of(common), s.ep)));
}

// That the shares of a stage make up its ranks and a micro-batch.
void check_shares(const Plan& plan, const Stage& stage, int index) {
  if (stage.shares.empty()) return;
  if (plan.global_batch % plan.micro_batches != 0)
    refuse(plan.where, text("micro_batches ", plan.micro_batches, " does not divide global_batch ", plan.global_batch), {},
           text("nearest: micro_batches ", nearest_of(divisors_of(plan.global_batch), plan.micro_batches)));
  std::int64_t ranks = 0;
  std::int64_t samples = 0;
  for (const Share& share : stage.shares) {
    ranks += share.ranks;
    samples += share.samples;
  }
  if (ranks != stage.width())
    refuse(stage.where, text("the shares of stage ", index, " are of ", ranks, " ranks, it has ", stage.width()),
           text(stage.width(), " ranks in all shares"));
  if (samples != plan.samples())
    refuse(stage.where, text("the shares of stage ", index, " are ", samples, " samples"),
           text(plan.samples(), " samples in all shares: global_batch / micro_batches"));
}

// That the ranks of a replica are of one kind.
void check_replicas(const Plan& plan, const Stage& stage, const StrategyRun& run) {
  const int replica = run.strategy.cp * run.strategy.tp;
  for (int i = 0; i < stage.width(); ++i) {
    const int first = stage.ranks[i / replica * replica];
    if (plan.ranks[stage.ranks[i]].group != plan.ranks[first].group)
      refuse(run.where, text("ranks ", first, " and ", stage.ranks[i], " of one replica stand on different groups of devices"),
             "each replica (cp x tp ranks) on one group");
  }
}

// That each share holds whole replicas, and whole groups of experts, which divide it.
void check_shares(const Plan& plan, const Stage& stage, const StrategyRun& run) {
  const Strategy& s = run.strategy;
  for (const Share& share : stage.shares) {
    const std::int64_t replica = std::int64_t{s.cp} * s.tp;
    if (share.ranks % replica != 0)
      refuse(run.where, text("a share of ", share.ranks, " ranks does not hold whole replicas of cp ", s.cp, " x tp ", s.tp),
             text("a multiple of ", replica, " ranks"));
    const std::int64_t replicas = share.ranks / replica;
    if (share.samples % replicas != 0)
      refuse(run.where, text(replicas, " replicas do not divide their share of ", share.samples, " samples"),
             text("a multiple of ", replicas, " samples"));
    if (replicas * s.cp % s.ep != 0)
      refuse(run.where, text("ep ", s.ep, " does not divide the dp x cp ", replicas * s.cp, " of a share"),
             text("a divisor of ", replicas * s.cp));
  }
}

void check_batch(const Plan& plan, const Stage& stage, const StrategyRun& run) {
  if (!stage.shares.empty()) return check_shares(plan, stage, run);
  const Strategy& s = run.strategy;
  if (plan.global_batch % (static_cast<std::int64_t>(s.dp) * plan.micro_batches) == 0) return;
  std::vector<std::int64_t> valid;
  for (std::int64_t count : divisors_of(plan.global_batch))
    if (plan.global_batch % (count * s.dp) == 0) valid.push_back(count);
  if (valid.empty())
    refuse(run.where, text("dp ", s.dp, " does not divide global_batch ", plan.global_batch), {},
           text("nearest: dp ", nearest_of(divisors_of(plan.global_batch), s.dp)));
  refuse(run.where, text("dp ", s.dp, " x micro_batches ", plan.micro_batches, " does not divide global_batch ", plan.global_batch), {},
         text("nearest: micro_batches ", nearest_of(valid, plan.micro_batches)));
}

// That norms over samples have more than one value. The samples divide evenly.
void check_samples(const Plan& plan, const Stage& stage, const StrategyRun& run, const Blocks& blocks) {
  const Strategy& s = run.strategy;
  std::int64_t least = plan.samples() / s.dp;
  for (const Share& share : stage.shares) least = std::min(least, share.samples * s.cp * s.tp / share.ranks);
  for (const model::BlockSpec* block : blocks)
    if (least < model::least_samples(*block, s.dp))
      refuse(run.where, text("micro-batches of ", least, " sample a rank leave batch norm one value a channel in ", block->name),
             text("at least ", model::least_samples(*block, s.dp), " samples of each micro-batch on a rank"),
             "fewer micro_batches or replicas, or larger images");
}

// How the plan's devices run the model.
struct Runs {
  bool whole_replicas = false;  // calibrations say the times of whole replicas on one kind of device
  bool whole_blocks = false;
};

Runs runs_of(const Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster) {
  const auto device = [&](const RankPlace& place) -> const cluster::Device& { return cluster.groups[place.group].device; };
  const auto accelerates = [&](const RankPlace& place) { return device(place).accelerates(plan.precision); };
  const auto works = [&](const RankPlace& place) { return device(place).shares_host(); };
  return {std::ranges::all_of(plan.ranks, accelerates), stands_whole(model, std::ranges::any_of(plan.ranks, works))};
}

// Every run of a stage uses all of its ranks.
void check_width(const Stage& stage, int index, const StrategyRun& run) {
  const Strategy& s = run.strategy;
  const std::int64_t parts = std::int64_t{s.cp} * s.tp;
  const std::int64_t wanted = s.dp * parts;
  if (wanted == stage.width()) return;
  const std::string degrees = text("dp ", s.dp, s.cp > 1 ? text(" x cp ", s.cp) : "", " x tp ", s.tp);
  refuse(run.where, text("stage ", index, " has ", stage.width(), " ranks for ", degrees, " of blocks [", run.first, ", ", run.last, ")"),
         text(wanted, wanted == 1 ? " rank" : " ranks", ", or degrees that make ", stage.width()),
         stage.width() % parts == 0 && stage.width() > 0 ? text("nearest: dp ", stage.width() / parts) : std::string());
}

void check_sharding(const StrategyRun& run) {
  const Strategy& s = run.strategy;
  if (s.shards == 0) return;
  if (s.zero == 0) refuse(run.where, text("shards ", s.shards, " with zero 0, which shards nothing"), "zero of at least 1, or no shards");
  if (s.shards < 1 || s.copies() % s.shards != 0)
    refuse(run.where, text("shards ", s.shards, " does not divide dp x cp ", s.copies()), "a degree that divides it",
           text("nearest: ", nearest_of(divisors_of(s.copies()), s.shards)));
}

Blocks blocks_of(const StrategyRun& run, const std::vector<model::BlockInstance>& all) {
  Blocks blocks;
  for (int b = run.first; b < run.last; ++b)
    if (blocks.empty() || blocks.back() != all[b].spec) blocks.push_back(all[b].spec);
  return blocks;
}

void check_run(const Plan& plan, const model::ModelSpec& model, int stage, const StrategyRun& run,
               const std::vector<model::BlockInstance>& all, const Runs& runs) {
  const Strategy& s = run.strategy;
  if (s.dp < 1 || s.tp < 1 || s.cp < 1 || s.ep < 1)
    refuse(run.where, text("dp ", s.dp, ", tp ", s.tp, ", cp ", s.cp, ", ep ", s.ep), "degrees of at least 1");
  if (s.zero < 0 || s.zero > 3)
    refuse(run.where, text("zero ", s.zero), "0, or what dp shards: 1 the optimizer's state, 2 the gradients too, 3 the parameters too",
           text("nearest: ", s.zero < 0 ? 0 : 3));
  const Blocks blocks = blocks_of(run, all);
  if (runs.whole_blocks) check_whole_blocks(model, run, blocks);
  check_tensor_parallel(model, run, blocks);
  check_batch(plan, plan.stages[stage], run);
  check_samples(plan, plan.stages[stage], run, blocks);
  check_width(plan.stages[stage], stage, run);
  if (runs.whole_replicas) check_replicas(plan, plan.stages[stage], run);
  check_sharding(run);
  check_context_parallel(run, blocks);
  check_expert_parallel(model, run, blocks);
}

void check_stages(const Plan& plan, const model::ModelSpec& model, const Runs& runs) {
  if (plan.stages.empty()) refuse(plan.where, "it has no stages", "at least one");
  const std::vector<model::BlockInstance> blocks = model.blocks();
  int next_block = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    if (stage.runs.empty()) refuse(stage.where, text("stage ", s, " has no blocks"), "at least one");
    for (int rank : stage.ranks)
      if (rank < 0 || rank >= plan.world_size())
        refuse(stage.where, text("stage ", s, " names rank ", rank), text("a rank below ", plan.world_size()));
    check_shares(plan, stage, static_cast<int>(s));
    for (const StrategyRun& run : stage.runs) {
      if (run.first != next_block)
        refuse(run.where,
               text("blocks [", run.first, ", ", run.last, ") of stage ", s, run.first > next_block ? " leave out" : " repeat", " block ",
                    std::min(run.first, next_block)),
               text("first: ", next_block));
      if (run.last <= run.first || run.last > model.block_count())
        refuse(run.where, text("blocks [", run.first, ", ", run.last, ") of stage ", s),
               text("last: above ", run.first, " and at most ", model.block_count()));
      check_run(plan, model, static_cast<int>(s), run, blocks, runs);
      next_block = run.last;
    }
  }
  for (std::size_t s = 0; s < plan.stages.size(); ++s)
    for (std::size_t other = 0; other < s; ++other)
      if (plan.stages[other].ranks == plan.stages[s].ranks && plan.stages[other].shares != plan.stages[s].shares)
        refuse(plan.stages[s].where, text("stages ", other, " and ", s, " are on the same ranks, and have different shares of the batch"),
               "the same shares for both");
  if (next_block != model.block_count())
    refuse(plan.stages.back().where, text("blocks ", next_block, " to ", model.block_count() - 1, " are in no stage"),
           text("stages that end at block ", model.block_count()));
}

// What train.placement needs of a plan.
void check_placement(const Plan& plan, const model::JobSpec& job) {
  const Where& where = job.train.placement.where;
  const std::string hint = "or train.placement.kind: off";
  if (plan.stages.size() > 1)
    refuse(where, text("train.placement over ", plan.stages.size(), " pipeline stages"), "parallel: {pp: 1}", hint);
  const Stage& stage = plan.stages.front();
  std::optional<Strategy> first;
  for (const model::BlockInstance& block : job.model.blocks()) {
    if (!model::routes_to_experts(*block.spec)) continue;
    const Strategy& one = stage.strategy_of(block.index);
    if (one.tp > 1 || one.cp > 1)
      refuse(where, text("train.placement with tp ", one.tp, " and cp ", one.cp, " of blocks with experts"), "parallel: {tp: 1, cp: 1}",
             hint);
    if (first && (first->dp != one.dp || first->ep != one.ep || first->recompute != one.recompute))
      refuse(where, "train.placement, and blocks with experts are cut differently", "the same dp, ep and recompute for all of them", hint);
    first = one;
  }
  const int ep = first ? first->ep : 1;
  for (int i = 0; i < stage.width(); ++i) {
    const RankPlace& own = plan.ranks[stage.ranks[i]];
    const RankPlace& other = plan.ranks[stage.ranks[i / ep * ep]];
    if (own.group != other.group || own.node != other.node) return;
  }
  refuse(where, "train.placement, and no tokens cross from host to host", text("experts over several hosts; ep is ", ep), hint);
}

// A rank holds one part of a parameter that its blocks share.
void check_shared_parameters(const Plan& plan, const model::ModelSpec& model) {
  std::map<std::string, std::vector<std::pair<int, const Stage*>>> holders;  // blocks and their stages
  const auto blocks = model.blocks();
  for (const Stage& stage : plan.stages)
    for (int b = stage.first_block(); b < stage.last_block(); ++b) {
      const int own = stage.strategy_of(b).tp;
      for (const model::ParameterSpec& parameter : blocks[b].spec->parameters) {
        if (parameter.split_dim < 0) continue;
        auto& others = holders[parameter.tied_to.empty() ? blocks[b].parameter_name(parameter) : parameter.tied_to];
        for (const auto& [block, other] : others)
          if (const int tp = other->strategy_of(block).tp; other->ranks == stage.ranks && tp != own)
            refuse(stage.where,
                   text("blocks ", block, " and ", b, " share a parameter on the same ranks, and have tp ", tp, " and tp ", own),
                   "the same tp for both");
        others.emplace_back(b, &stage);
      }
    }
}

// All ranks hold the same weights, and may share any sequence.
void check_lengths(const Plan& plan) {
  if (!plan.lengths) return;
  if (plan.stages.size() != 1)
    refuse(plan.where, text("it deals samples of different lengths to ", plan.stages.size(), " stages"), "one stage");
  if (plan.delayed_exchange) refuse(plan.where, "it deals samples of different lengths, and delays the exchange", "no delayed_exchange");
  const Stage& stage = plan.stages.front();
  if (!stage.shares.empty()) refuse(stage.where, "it deals samples of different lengths, and stage 0 has shares of a batch", "no shares");
  const Strategy& first = stage.runs.front().strategy;
  for (const StrategyRun& run : stage.runs) {
    const Strategy& s = run.strategy;
    if (s.tp > 1 || s.ep > 1 || s.zero > 1 || !s.same_layout(first))
      refuse(run.where, text("it deals samples of different lengths, and has ", to_text(s)),
             "the same dp and cp for all blocks, tp 1, ep 1, and zero 0 or 1");
  }
  for (const Lengths::Group& group : plan.lengths->groups)
    if (first.cp % group.degree != 0)
      refuse(plan.where, text("groups of ", group.degree, " ranks do not divide cp ", first.cp), "degrees that divide cp");
  if (plan.lengths->groups.back().degree != first.cp)
    refuse(plan.where, text("its widest groups have ", plan.lengths->groups.back().degree, " ranks"), text("cp ", first.cp));
}

void check_servers(const Plan& plan, const model::JobSpec& job) {
  const bool own = model::reads_clicks(job.model) && job.parameter_servers.places.empty();
  if (own && plan.servers.empty())
    refuse(plan.where, "it has no servers for the model's tables, and the job names none", "servers: [{rank: 0, threads: 1}]",
           "or name some in parameter_servers.servers");
  if (!own && !plan.servers.empty())
    refuse(plan.servers.front().where, "it has servers of its own",
           model::reads_clicks(job.model) ? "none, as the job names others in parameter_servers.servers" : "none: the model has no tables");
  int last = -1;
  for (const Server& server : plan.servers) {
    if (server.rank >= plan.world_size())
      refuse(server.where, text("there is no rank ", server.rank), text("0 to ", plan.world_size() - 1));
    if (server.rank <= last)
      refuse(server.where, text("servers of rank ", server.rank, " stand behind those of rank ", last), "each rank once, ascending");
    last = server.rank;
  }
}

}  // namespace

void check(const Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster) {
  check_fingerprints(plan, model, cluster);
  if (plan.global_batch < 1 || plan.micro_batches < 1)
    refuse(plan.where, text("global_batch ", plan.global_batch, ", micro_batches ", plan.micro_batches), "at least 1");
  check_ranks(plan, cluster);
  check_stages(plan, model, runs_of(plan, model, cluster));
  check_shared_parameters(plan, model);
  check_lengths(plan);
  check_schedule(plan);
}

void check_trained(const Plan& plan, const model::ModelSpec& model) {
  if (!stands_whole(model, true)) return;
  const std::vector<model::BlockInstance> all = model.blocks();
  for (const Stage& stage : plan.stages)
    for (const StrategyRun& run : stage.runs) check_whole_blocks(model, run, blocks_of(run, all));
}

void check(const Plan& plan, const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  check(plan, job.model, cluster);
  check_servers(plan, job);
  if (plan.global_batch != job.train.global_batch)
    refuse(plan.where, text("it is for a global batch of ", plan.global_batch), text("train.global_batch ", job.train.global_batch),
           kAgain);
  if (plan.precision != job.train.precision)
    refuse(plan.where, text("it computes in ", model::name_of(plan.precision)),
           text("train.precision ", model::name_of(job.train.precision)), kAgain);
  if (plan.lengths.has_value() != job.data.lengths.has_value())
    refuse(plan.where, plan.lengths ? "it deals samples of different lengths" : "it takes samples of one length",
           plan.lengths ? "data.lengths" : "no data.lengths", kAgain);
  if (job.train.placement.kind != model::PlacementKind::off) check_placement(plan, job);
  if (plan.staleness > 0)
    for (const Stage& stage : plan.stages)
      for (const StrategyRun& run : stage.runs)
        if (run.strategy.zero > 1)
          refuse(stage.where, text("it has ZeRO-", run.strategy.zero, " and staleness 1, which holds the gradients of two steps whole"),
                 "ZeRO 0 or 1, or staleness 0");
  if (plan.rows_ahead && !job.parameter_servers.allows_rows_ahead())
    refuse(plan.where, "it pulls rows of tables a step ahead of their use, which these tables do not allow",
           "parameter_servers: {consistency: asynchronous, staleness: 1}, or rows_ahead: false",
           "make a plan for them with `tessera plan`");
  if (plan.delayed_exchange && job.train.optimizer.clip > 0)
    refuse(plan.where,
           text("it delays the exchange of gradients into the next step, and train.optimizer.clip ", job.train.optimizer.clip,
                " needs their norm before any is used"),
           "train.optimizer.clip: 0, or delayed_exchange: false");
}

}  // namespace tessera::plan
