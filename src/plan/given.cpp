#include "plan/given.hpp"

#include <algorithm>

#include "plan/divisors.hpp"
#include "plan/stage_fronts.hpp"

namespace tessera::plan {
namespace {

constexpr Schedule kSchedules[] = {Schedule::one_f_one_b, Schedule::gpipe, Schedule::interleaved, Schedule::zb_h1,
                                   Schedule::zb_h2,       Schedule::zb_v,  Schedule::dualpipe_v};

class Check {
 public:
  Check(const model::JobSpec& job, const cluster::ClusterSpec& cluster) : job_(job), parallel_(job.parallel), cluster_(cluster) {}

  void run() const {
    if (parallel_.threads > 0) refuse("threads are of CPU workers; the devices are accelerators", "degrees alone", {});
    if (parallel_.pp > job_.model.block_count())
      refuse(text("pp ", parallel_.pp, " is more than the model's ", job_.model.block_count(), " blocks"), {},
             text("nearest: pp ", job_.model.block_count()));
    if (parallel_.delayed_exchange && job_.train.optimizer.clip > 0)
      refuse(text("delayed_exchange leaves no time for the norm of all gradients, and train.optimizer.clip ", job_.train.optimizer.clip,
                  " needs it"),
             "train.optimizer.clip: 0, or delayed_exchange: false", {});
    check_batch();
    int domain = 1;
    for (const cluster::ResourceGroup& group : cluster_.groups) domain = std::max(domain, group.domain());
    if (parallel_.tp > domain)
      refuse(text("tp ", parallel_.tp, " is more than the ", domain, domain == 1 ? " device" : " devices", " that the fastest link joins"),
             {}, text("nearest: tp ", domain));
    check_blocks("tp", parallel_.tp, tensor_divides);
    check_blocks("cp", parallel_.cp, context_divides);
    check_experts();
    check_devices();
  }

 private:
  [[noreturn]] void refuse(const std::string& message, const std::string& expected, const std::string& hint) const {
    throw Error(ErrorCode::invalid_config, "parallel: " + message, parallel_.where, expected, hint);
  }

  // Where devices of several kinds share a batch unevenly, replicas need not divide it.
  void check_batch() const {
    const std::int64_t batch = job_.train.global_batch;
    if (parallel_.micro_batches > 0 && batch % parallel_.micro_batches != 0)
      refuse(text("micro_batches ", parallel_.micro_batches, " does not divide train.global_batch ", batch), {},
             text("nearest: micro_batches ", nearest_of(divisors_of(batch), parallel_.micro_batches)));
    if (cluster_.groups.size() > 1 || parallel_.dp == 0) return;
    if (batch % parallel_.dp != 0)
      refuse(text("dp ", parallel_.dp, " does not divide train.global_batch ", batch), {},
             text("nearest: dp ", nearest_of(divisors_of(batch), parallel_.dp)));
    const std::int64_t share = batch / parallel_.dp;
    if (parallel_.micro_batches > 0 && share % parallel_.micro_batches != 0)
      refuse(text("micro_batches ", parallel_.micro_batches, " does not divide the ", share, " samples of each of ", parallel_.dp,
                  " replicas"),
             {}, text("nearest: micro_batches ", nearest_of(divisors_of(share), parallel_.micro_batches)));
  }

  void check_blocks(const char* name, int degree, bool (*divides)(const model::BlockSpec&, std::int64_t)) const {
    for (const model::Repeat& repeat : job_.model.repeats) {
      if (degree == 0 || divides(repeat.block, degree)) continue;
      std::int64_t nearest = degree;
      while (nearest > 1 && !std::all_of(job_.model.repeats.begin(), job_.model.repeats.end(),
                                         [&](const model::Repeat& each) { return divides(each.block, nearest); }))
        --nearest;
      refuse(text(name, " ", degree, " does not divide the blocks '", repeat.block.name, "' of the model"), {},
             text("nearest: ", name, " ", nearest));
    }
  }

  void check_experts() const {
    if (parallel_.ep == 0) return;
    std::int64_t experts = 0;
    for (const model::Repeat& repeat : job_.model.repeats)
      if (const auto found = repeat.block.dims.find("experts"); found != repeat.block.dims.end())
        experts = std::max(experts, static_cast<std::int64_t>(found->second));
    if (experts == 0 && parallel_.ep > 1)
      refuse(text("ep ", parallel_.ep, " spreads experts, and the model has none"), "ep 1, or a mixture of experts", {});
    if (experts > 0 && experts % parallel_.ep != 0)
      refuse(text("ep ", parallel_.ep, " does not divide the ", experts, " experts"), {},
             text("nearest: ep ", nearest_of(divisors_of(experts), parallel_.ep)));
    if (const int ranks = std::max(1, parallel_.dp) * std::max(1, parallel_.cp);
        parallel_.dp > 0 && parallel_.cp > 0 && ranks % parallel_.ep != 0)
      refuse(text("ep ", parallel_.ep, " does not divide dp x cp ", ranks), {},
             text("nearest: ep ", nearest_of(divisors_of(ranks), parallel_.ep)));
  }

  void check_devices() const {
    std::int64_t devices = 0;
    for (const cluster::ResourceGroup& group : cluster_.groups) devices += static_cast<std::int64_t>(group.nodes) * group.devices_per_node;
    std::int64_t product = 1;
    std::string names;
    for (const auto& [name, degree] : {std::pair{"dp", parallel_.dp}, {"tp", parallel_.tp}, {"cp", parallel_.cp}, {"pp", parallel_.pp}}) {
      if (degree == 0) continue;
      product *= degree;
      names += (names.empty() ? "" : " x ") + text(name, " ", degree);
    }
    const bool fits = cluster_.groups.size() > 1 ? product <= devices : devices % product == 0;
    if (!fits)
      refuse(text(names, " needs ", product, " devices, or a multiple; ", cluster_.name, " has ", devices),
             text("degrees whose product divides ", devices), text("nearest product: ", nearest_of(divisors_of(devices), product)));
  }

  const model::JobSpec& job_;
  const model::ParallelChoice& parallel_;
  const cluster::ClusterSpec& cluster_;
};

}  // namespace

BlockSpace space_of(const model::ParallelChoice& parallel) {
  BlockSpace out;
  out.given = {parallel.dp, parallel.tp, parallel.cp, parallel.ep, parallel.pp, parallel.micro_batches};
  if (parallel.zero) out.zero = {*parallel.zero};
  if (!parallel.recompute.empty())
    std::erase_if(out.recompute, [&](model::Recompute recompute) { return parallel.recompute != model::name_of(recompute); });
  if (!parallel.schedule.empty())
    out.schedules = {*std::find_if(std::begin(kSchedules), std::end(kSchedules),
                                   [&](Schedule schedule) { return parallel.schedule == name_of(schedule); })};
  return out;
}

void check_given(const model::JobSpec& job, const cluster::ClusterSpec& cluster) { Check(job, cluster).run(); }

std::string given_text(const model::ParallelChoice& parallel) {
  std::string out;
  const auto add = [&](const char* name, const std::string& value) { out += (out.empty() ? "" : ", ") + text(name, " ", value); };
  for (const auto& [name, degree] :
       {std::pair{"dp", parallel.dp}, {"tp", parallel.tp}, {"cp", parallel.cp}, {"ep", parallel.ep}, {"pp", parallel.pp}})
    if (degree > 0) add(name, text(degree));
  if (parallel.zero) add("zero", text(*parallel.zero));
  if (parallel.micro_batches > 0) add("micro_batches", text(parallel.micro_batches));
  if (!parallel.schedule.empty()) add("schedule", parallel.schedule);
  if (!parallel.recompute.empty()) add("recompute", parallel.recompute);
  return out;
}

}  // namespace tessera::plan
