// What `parallel:` fixes of a plan, as a part of the space of the search over blocks.
#include "search/devices.hpp"

#include <algorithm>
#include <numeric>
#include <set>

#include "cost/warm_up.hpp"
#include "plan/tensor_cut.hpp"

namespace tessera::search {
namespace {

constexpr plan::Schedule kSchedules[] = {plan::Schedule::one_f_one_b, plan::Schedule::gpipe, plan::Schedule::interleaved,
                                         plan::Schedule::zb_h1,       plan::Schedule::zb_h2, plan::Schedule::zb_v,
                                         plan::Schedule::dualpipe_v};

plan::Schedule schedule_named(const std::string& name) {
  return *std::ranges::find_if(kSchedules, [&](plan::Schedule schedule) { return name == name_of(schedule); });
}

std::string counted(std::int64_t count, const std::string& what) { return text(count, " ", what, count == 1 ? "" : "s"); }

class Check {
 public:
  Check(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Devices& devices)
      : job_(job), parallel_(job.parallel), cluster_(cluster), kind_(devices), groups_(static_cast<int>(devices.groups.size())) {
    for (const int index : devices.groups) {
      const cluster::ResourceGroup& group = cluster.groups[index];
      domain_ = std::max(domain_, group.domain());
      for (const NodeRanks& ranks : devices.node_ranks[index]) {
        const int nodes = std::min(group.nodes, ranks.most_nodes);
        for (int working = counts_hosts(job) ? nodes : 1; working <= nodes; ++working) worlds_.insert(std::int64_t{working} * ranks.count);
      }
      devices_ += most_ranks(group, devices.node_ranks[index]);
    }
    if (groups_ > 1) worlds_.insert(devices_);
  }

  void run() const {
    if (parallel_.threads > 0 && !kind_.workers) refuse("threads are of CPU workers; the devices are accelerators", "degrees alone", {});
    const auto has_heads = [](const model::Repeat& repeat) { return plan::option_of(repeat.block, "heads") > 0; };
    if (parallel_.recompute == "selective" && std::ranges::none_of(job_.model.repeats, has_heads))
      refuse("recompute selective is of attention, and the model has none", "none or full", {});
    if (parallel_.recompute == "selective" && plan::stands_whole(job_.model, kind_.trained))
      refuse(text("recompute selective is of attention alone, and blocks of arch ", job_.model.arch, " are computed again as a whole"),
             "none or full", {});
    if (parallel_.sequence_parallel.value_or(false) && parallel_.tp == 1)
      refuse("sequence_parallel cuts what tensor parallelism leaves whole, and tp is 1", "tp of at least 2, or no sequence_parallel", {});
    if (parallel_.context && parallel_.cp == 1)
      refuse("context says how context parallelism exchanges, and cp is 1", "cp of at least 2, or no context", {});
    check("tp", parallel_.tp, [&](std::int64_t degree) { return tensor_obstacle(degree); });
    check("cp", parallel_.cp, [&](std::int64_t degree) { return context_obstacle(degree); });
    check("pp", parallel_.pp, [&](std::int64_t degree) {
      const int blocks = job_.model.block_count();
      return degree > blocks ? text("is more than the model's ", blocks, " blocks") : std::string();
    });
    // Where devices of several kinds share a batch unevenly, replicas need not divide it.
    const std::int64_t batch = job_.train.global_batch;
    check("dp", parallel_.dp, [&](std::int64_t degree) {
      return groups_ == 1 && batch % degree != 0 ? text("does not divide train.global_batch ", batch) : std::string();
    });
    kind_.uniform ? check_workers() : check_devices();
    check_micro_batches();
    check_schedule();
    check_experts();
    check_placement();
  }

 private:
  [[noreturn]] void refuse(const std::string& message, const std::string& expected, const std::string& hint) const {
    throw Error(ErrorCode::invalid_config, "parallel: " + message, parallel_.where, expected, hint);
  }

  // `obstacle(degree)`: why it cannot be, or nothing.
  template <typename Obstacle>
  void check(const char* name, std::int64_t degree, const Obstacle& obstacle) const {
    const auto all = [&](std::int64_t wish) {
      const std::string own = obstacle(wish);
      // Of a uniform space all degrees are looked at together.
      const bool uses_all = kind_.uniform || (groups_ == 1 ? devices_ % wish == 0 : wish <= devices_);
      return own.empty() && !uses_all
                 ? text(groups_ == 1 ? "does not divide the " : "is more than the ", devices_, " devices of ", cluster_.name)
                 : own;
    };
    if (degree == 0) return;
    const std::string reason = all(degree);
    if (reason.empty()) return;
    std::vector<std::int64_t> valid;
    for (std::int64_t other = 1; other <= (kind_.uniform ? 2 * degree : std::min<std::int64_t>(devices_, 2 * degree)); ++other)
      if (all(other).empty()) valid.push_back(other);
    refuse(text(name, " ", degree, " ", reason), {}, text("nearest: ", name, " ", plan::nearest_of(valid, degree)));
  }

  bool keeps_whole(const model::BlockSpec& block) const { return plan::stands_whole(job_.model, block, kind_.trained); }

  std::string tensor_obstacle(std::int64_t degree) const {
    if (!kind_.uniform && degree > domain_) return text("is more than the ", counted(domain_, "device"), " that the fastest link joins");
    const std::vector<model::Repeat>& repeats = job_.model.repeats;
    if (degree > 1 && std::ranges::all_of(repeats, [&](const model::Repeat& repeat) { return keeps_whole(repeat.block); }))
      return text("cuts blocks of kind ", repeats.front().block.kind, ", which the trainer keeps whole");
    for (const model::Repeat& repeat : repeats) {
      if (keeps_whole(repeat.block)) continue;
      if (const auto fault = plan::tensor_fault(job_.model, repeat.block, degree)) return fault->what();
      if (parallel_.sequence_parallel.value_or(false) && !plan::sequence_divides(repeat.block, degree * std::max(1, parallel_.cp)))
        return text(parallel_.cp > 1 ? text("x cp ", parallel_.cp, " ") : "", "does not divide seq ", repeat.block.dim("seq"),
                    ", which sequence_parallel cuts");
    }
    return {};
  }

  std::string context_obstacle(std::int64_t degree) const {
    for (const model::Repeat& repeat : job_.model.repeats) {
      if (keeps_whole(repeat.block) && degree > 1)
        return text("cuts sequences, of which blocks of kind ", repeat.block.kind, " take the whole in the trainer");
      const int tp = std::max(1, parallel_.tp);
      if (parallel_.context == model::ContextKind::ulysses && !plan::heads_divide(repeat.block, tp, degree))
        return text("does not divide the ", counted(repeat.block.dim("heads") / tp, "query head"),
                    " of a rank, which context: ulysses deals out");
      if (plan::context_divides(repeat.block, degree)) continue;
      const auto sequence = static_cast<std::int64_t>(plan::option_of(repeat.block, "seq"));
      return sequence > 0 ? text("does not cut a sequence of ", sequence, " into twice as many parts")
                          : text("cuts sequences, and the ", repeat.block.kind, " blocks of the model have none");
    }
    return {};
  }

  // Some number of ranks that the devices can be dealt to is a multiple of what the degrees need.
  void check_workers() const {
    const bool all_given = parallel_.dp > 0 && parallel_.pp > 0 && parallel_.tp > 0 && (parallel_.cp > 0 || !job_.data.lengths);
    const std::int64_t product =
        std::int64_t{std::max(1, parallel_.dp)} * std::max(1, parallel_.pp) * std::max(1, parallel_.tp) * std::max(1, parallel_.cp);
    // Groups beside each other may work in part.
    if (groups_ > 1 && product <= devices_) return;
    if (std::ranges::any_of(worlds_, [&](std::int64_t world) { return all_given ? world == product : world % product == 0; })) return;
    const std::string unit = kind_.workers ? "workers" : "devices";
    const std::string needs = text("the degrees need ", product, " ", unit);
    if (job_.cluster.kind == model::ClusterChoice::Kind::local)
      refuse(text(needs, "; cluster.local.devices is ", job_.cluster.devices), text("degrees whose product is ", job_.cluster.devices),
             text("or cluster: {local: {devices: ", product, "}}"));
    const std::int64_t nearest = plan::nearest_of({worlds_.begin(), worlds_.end()}, product);
    refuse(text(needs, "; ", cluster_.name, " offers ", *worlds_.rbegin()), text("degrees whose product is ", nearest),
           text("nearest: ", nearest, " ", unit));
  }

  void check_devices() const {
    std::int64_t product = 1;
    std::string names;
    for (const auto& [name, degree] : {std::pair{"dp", parallel_.dp}, {"tp", parallel_.tp}, {"cp", parallel_.cp}, {"pp", parallel_.pp}}) {
      if (degree == 0) continue;
      product *= degree;
      names += (names.empty() ? "" : " x ") + text(name, " ", degree);
    }
    const bool may_cut = parallel_.cp == 0 && context_obstacle(2).empty();
    const bool all_given = parallel_.dp > 0 && parallel_.tp > 0 && parallel_.pp > 0 && !may_cut;
    if (groups_ > 1 && product > devices_)
      refuse(text(names, " needs ", counted(product, "device"), "; ", cluster_.name, " has ", devices_), {}, {});
    if (groups_ == 1 && all_given && product != devices_)
      refuse(text(names, " makes ", counted(product, "device"), "; ", cluster_.name, " has ", devices_, ", and all of them are used"),
             text("degrees whose product is ", devices_), "a cluster file may describe a part of the devices");
    if (groups_ == 1 && devices_ % product != 0)
      refuse(text(names, " needs ", counted(product, "device"), ", or a multiple; ", cluster_.name, " has ", devices_),
             text("degrees whose product divides ", devices_),
             text("nearest product: ", plan::nearest_of(plan::divisors_of(devices_), product)));
  }

  void check_micro_batches() const {
    if (parallel_.micro_batches == 0) return;
    const std::int64_t share = groups_ == 1 && parallel_.dp > 0 ? job_.train.global_batch / parallel_.dp : job_.train.global_batch;
    if (share % parallel_.micro_batches == 0) return;
    refuse(text("micro_batches ", parallel_.micro_batches, " does not divide ",
                parallel_.dp > 1 ? text("the ", counted(share, "sample"), " of each of ", parallel_.dp, " replicas")
                                 : text("train.global_batch ", share)),
           {}, text("nearest: micro_batches ", plan::nearest_of(plan::divisors_of(share), parallel_.micro_batches)));
  }

  void check_schedule() const {
    if (parallel_.chunks > 0 && parallel_.schedule != "interleaved")
      refuse(text("chunks ", parallel_.chunks, " is the number of stages that a rank has in turn under schedule interleaved, and ",
                  parallel_.schedule.empty() ? "no schedule is given" : "the schedule is " + parallel_.schedule),
             {}, "add `schedule: interleaved`, or leave chunks out");
    if (parallel_.schedule.empty()) return;
    const plan::Schedule schedule = schedule_named(parallel_.schedule);
    const bool several = cost::several_stages_a_rank(schedule);
    if (several && parallel_.pp == 1) refuse(text("schedule ", parallel_.schedule, " runs a pipeline, and pp is 1"), "pp 2 or more", {});
    check_chunks(schedule);
    if (parallel_.pp < 2 || parallel_.micro_batches == 0) return;
    const std::int64_t least = kind_.uniform ? 1 : cost::least_micro_batches(schedule, parallel_.pp);
    if (parallel_.micro_batches < least)
      refuse(text("schedule ", parallel_.schedule, " over ", parallel_.pp, " stages has work enough from ", least,
                  " micro-batches on, and there are ", parallel_.micro_batches),
             text("micro_batches ", least, " or more"), {});
    if (schedule == plan::Schedule::interleaved && parallel_.micro_batches % parallel_.pp != 0)
      refuse(text("schedule interleaved over ", parallel_.pp, " stages takes micro-batches in turns of ", parallel_.pp, ", and there are ",
                  parallel_.micro_batches),
             text("a multiple of ", parallel_.pp), {});
  }

  // A block for each stage.
  void check_chunks(plan::Schedule schedule) const {
    if (parallel_.chunks == 1)
      refuse("chunks 1 puts one stage on each rank, which schedule 1f1b runs", "chunks 2 or more, or schedule 1f1b", {});
    const int chunks = schedule == plan::Schedule::interleaved ? parallel_.chunks : cost::several_stages_a_rank(schedule) ? 2 : 1;
    const int blocks = job_.model.block_count();
    if (chunks < 2 || std::max(2, parallel_.pp) * chunks <= blocks) return;
    refuse(text(std::max(2, parallel_.pp), " ranks of a pipeline with ", chunks, " stages each are more stages than the model's ", blocks,
                " blocks"),
           text("at most ", blocks, " stages"), {});
  }

  void check_placement() const {
    if (job_.train.placement.kind == model::PlacementKind::off) return;
    int hosts = 0;
    for (const int group : kind_.groups) hosts += cluster_.groups[static_cast<std::size_t>(group)].nodes;
    if (hosts == 1)
      throw Error(ErrorCode::invalid_config, "train.placement, and all ranks are on one host", job_.train.placement.where, "several hosts",
                  "or train.placement.kind: off");
  }

  void check_experts() const {
    if (parallel_.ep == 0) return;
    std::int64_t experts = 0;
    for (const model::Repeat& repeat : job_.model.repeats)
      experts = std::max(experts, static_cast<std::int64_t>(plan::option_of(repeat.block, "experts")));
    if (experts == 0 && parallel_.ep > 1)
      refuse(text("ep ", parallel_.ep, " spreads experts, and the model has none"), "ep 1, or a mixture of experts", {});
    if (experts == 0) return;
    const bool given = parallel_.dp > 0 && parallel_.cp > 0;
    const std::int64_t ranks =
        given ? std::int64_t{parallel_.dp} * parallel_.cp : devices_ / (std::max(1, parallel_.tp) * std::max(1, parallel_.pp));
    const bool spreads = groups_ == 1 || given ? ranks % parallel_.ep == 0 : parallel_.ep <= ranks;
    if (experts % parallel_.ep == 0 && spreads) return;
    refuse(text("ep ", parallel_.ep, " does not divide the ",
                experts % parallel_.ep != 0 ? counted(experts, "expert") : counted(ranks, "rank") + " of dp x cp"),
           {}, text("nearest: ep ", plan::nearest_of(plan::divisors_of(std::gcd(experts, ranks)), parallel_.ep)));
  }

  const model::JobSpec& job_;
  const model::ParallelChoice& parallel_;
  const cluster::ClusterSpec& cluster_;
  const Devices& kind_;
  const int groups_;
  std::int64_t devices_ = 0;       // or workers, at most
  std::set<std::int64_t> worlds_;  // how many of them may work
  int domain_ = 1;
};

}  // namespace

BlockSpace space_of(const model::ParallelChoice& parallel) {
  BlockSpace out;
  out.given = {parallel.dp, parallel.tp, parallel.cp, parallel.ep, parallel.pp, parallel.micro_batches, parallel.chunks};
  if (parallel.zero) out.zero = {*parallel.zero};
  // It holds the gradients of two steps whole.
  if (parallel.staleness > 0 && !parallel.zero) std::erase_if(out.zero, [](int zero) { return zero > 1; });
  if (!parallel.recompute.empty())
    std::erase_if(out.recompute, [&](model::Recompute recompute) { return parallel.recompute != model::name_of(recompute); });
  if (!parallel.schedule.empty()) out.schedules = {schedule_named(parallel.schedule)};
  // Degrees name the devices of the whole cluster.
  out.idle_nodes = parallel.dp == 0 && parallel.tp == 0 && parallel.cp == 0 && parallel.pp == 0;
  out.most_context = std::max(out.most_context, parallel.cp);
  out.context = parallel.context;
  if (parallel.sequence_parallel) out.sequence_parallel = *parallel.sequence_parallel ? SequenceParallel::always : SequenceParallel::never;
  return out;
}

void check_given(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Devices& devices) {
  Check(job, cluster, devices).run();
}

std::string given_text(const model::ParallelChoice& parallel) {
  std::string out;
  const auto add = [&](const char* name, const std::string& value) { out += (out.empty() ? "" : ", ") + text(name, " ", value); };
  for (const auto& [name, degree] :
       {std::pair{"dp", parallel.dp}, {"tp", parallel.tp}, {"cp", parallel.cp}, {"ep", parallel.ep}, {"pp", parallel.pp}})
    if (degree > 0) add(name, text(degree));
  if (parallel.context) add("context", *parallel.context == model::ContextKind::ulysses ? "ulysses" : "ring");
  if (parallel.zero) add("zero", text(*parallel.zero));
  if (parallel.micro_batches > 0) add("micro_batches", text(parallel.micro_batches));
  if (!parallel.schedule.empty()) add("schedule", parallel.schedule);
  if (parallel.chunks > 0) add("chunks", text(parallel.chunks));
  if (!parallel.recompute.empty()) add("recompute", parallel.recompute);
  if (parallel.sequence_parallel) add("sequence_parallel", *parallel.sequence_parallel ? "true" : "false");
  return out;
}

}  // namespace tessera::search
