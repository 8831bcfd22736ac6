// The most important property: whatever plan may be written, the trainer trains the same model as one device.
#include <ATen/ops/norm.h>
#include <ATen/ops/sub.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <set>

#include "base/file_system.hpp"
#include "base/random.hpp"
#include "checkpoint/checkpoint.hpp"
#include "cluster/cluster.hpp"
#include "plan/schedule/schedule.hpp"
#include "plan/schedule/tuned_orders.hpp"
#include "plan/tensor_cut.hpp"
#include "train/job_helper.hpp"
#include "train/skip_model_helper.hpp"
#include "train/vision_helper.hpp"

namespace tessera::train {
namespace {

using model::Recompute;
using plan::Schedule;
using plan::Strategy;

constexpr int kPlans = 200;
constexpr int kVisionPlans = 50;
constexpr int kMostRanks = 4;
constexpr std::int64_t kSteps = 5;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  bool one_in(std::uint64_t times) { return random_.below(times) == 0; }
  int below(int bound) { return static_cast<int>(random_.below(static_cast<std::uint64_t>(bound))); }
  template <typename Value>
  Value of(std::initializer_list<Value> values) {
    return *(values.begin() + below(static_cast<int>(values.size())));
  }

  // How `width` ranks cut a block; what does not go together is refused when the plan is whole.
  Strategy strategy(int width, const model::ModelSpec& model) {
    Strategy out;
    if (!plan::stands_whole(model, true)) {
      if (width % 2 == 0 && one_in(2)) out.tp = one_in(3) ? width : 2;
      if (width / out.tp % 2 == 0 && one_in(3)) out.cp = 2;
    }
    out.dp = width / (out.tp * out.cp);
    own(out, model);
    return out;
  }

  // What a block may have otherwise than its neighbours.
  void own(Strategy& out, const model::ModelSpec& model) {
    out.zero = below(4);
    out.shards = out.zero > 0 && out.copies() == 4 && one_in(2) ? 2 : 0;
    out.recompute = of({Recompute::none, Recompute::none, Recompute::selective, Recompute::full});
    out.sequence_parallel = out.tp > 1 && one_in(2);
    out.context = of({model::ContextKind::ring, model::ContextKind::ulysses});
    out.offload_optimizer = one_in(6);
    if (model.dims.contains("experts")) {
      if (out.copies() % 2 == 0 && one_in(2)) out.ep = 2;
      out.whole_experts = out.tp > 1 && one_in(3);
    }
  }

  plan::Plan plan(const model::JobSpec& job) {
    const int places = of({1, 1, 2, 2, 3, 4});
    Degrees degrees;
    degrees.pp = places;
    degrees.micro_batches = of({1, 2, 4});
    degrees.schedule = places == 1 ? Schedule::one_f_one_b
                                   : of({Schedule::one_f_one_b, Schedule::gpipe, Schedule::interleaved, Schedule::zb_h1, Schedule::zb_h2,
                                         Schedule::zb_v, Schedule::dualpipe_v});
    degrees.chunks =
        degrees.schedule == Schedule::interleaved || degrees.schedule == Schedule::zb_v || degrees.schedule == Schedule::dualpipe_v ? 2 : 1;
    if (job.model.block_count() < places * degrees.chunks) degrees.chunks = 1, degrees.schedule = Schedule::one_f_one_b;
    degrees.delayed_exchange = one_in(4);
    plan::Plan out = plan_of(job, degrees);
    out.bucket_size = Bytes(of({4 << 10, 32 << 10, 1 << 20}));
    std::vector<int> widths(static_cast<std::size_t>(places), 1);
    for (int left = kMostRanks - places; left > 0; --left)
      if (!one_in(5)) ++widths[static_cast<std::size_t>(below(places))];
    std::vector<int> begins(widths.size(), 0);
    std::partial_sum(widths.begin(), widths.end() - 1, begins.begin() + 1);
    out.ranks.assign(static_cast<std::size_t>(begins.back() + widths.back()), {});
    for (std::size_t rank = 0; rank < out.ranks.size(); ++rank) out.ranks[rank].device = static_cast<int>(rank);
    for (plan::Stage& stage : out.stages) {
      const auto place = static_cast<std::size_t>(stage.ranks.front());  // of one rank each
      stage.ranks.resize(static_cast<std::size_t>(widths[place]));
      std::iota(stage.ranks.begin(), stage.ranks.end(), begins[place]);
      cut(stage, job.model);
      const Strategy& first = stage.runs.front().strategy;
      if (first.dp == 2 && out.samples() > 2 && one_in(2))
        stage.shares = {{first.cp * first.tp, out.samples() - 1}, {first.cp * first.tp, 1}};
    }
    // Stages of the same ranks have the same.
    for (plan::Stage& stage : out.stages)
      for (const plan::Stage& other : out.stages)
        if (stage.ranks == other.ranks) stage.shares = other.shares;
    if (places > 1 && one_in(3)) out.order = own_order(out);
    return out;
  }

 private:
  // Made for times at random.
  plan::Orders own_order(const plan::Plan& of) {
    plan::TimedPipeline pipeline{
        .placement = of.schedule, .pipeline = pipeline_of(of), .micro_batches = static_cast<int>(of.micro_batches)};
    plan::Orders first;
    const auto any = [&] { return Seconds(1 + below(9)); };
    for (std::size_t s = 0; s < of.stages.size(); ++s) pipeline.stages.push_back({any(), any(), any(), any() * 0.1});
    pipeline.between.assign(static_cast<std::size_t>(pipeline.pipeline.size), Seconds(0));
    for (int rank = 0; rank < pipeline.pipeline.size; ++rank) first.push_back(order_of(of, rank));
    return tuned_orders(pipeline, first, 100'000);
  }

  // Blocks alike, each with what may be its own, or each with a cut of its own.
  void cut(plan::Stage& stage, const model::ModelSpec& model) {
    const Strategy common = strategy(stage.width(), model);
    const int kind = below(3);
    std::vector<plan::StrategyRun> runs;
    for (int block = stage.first_block(); block < stage.last_block(); ++block) {
      Strategy one = kind == 2 ? strategy(stage.width(), model) : common;
      if (kind == 1) own(one, model);
      runs.push_back({block, block + 1, one});
    }
    if (kind == 0)
      stage.runs.front().strategy = common;
    else
      stage.runs = std::move(runs);
  }

  Random random_;
};

// What batch norm makes of a sample depends on the others of its micro-batch.
bool normalizes_batches(const model::ModelSpec& model) {
  return std::ranges::any_of(model.repeats, [](const model::Repeat& repeat) { return model::exchanges_over_replicas(repeat.block); });
}

// The losses of all steps, and the gradients of the last one; under batch norm of the first one. There rounding turns a unit on or off that
// was almost at zero, which changes gradients by some per cent from then on: so does a rate that is greater by a hundred-thousandth.
struct Outcome {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> gradients;
};

Outcome outcome_of(const model::JobSpec& job, const plan::Plan& plan) {
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const TemporaryFolder folder;
  const std::int64_t compared = normalizes_batches(job.model) ? 0 : kSteps - 1;
  Outcome out;
  on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm);
    trainer.initialize();
    for (std::int64_t i = 0; i < kSteps; ++i) {
      const StepReport report = trainer.step();
      if (comm.rank() == 0) out.losses.push_back(report.loss);
      if (i == compared) trainer.save_gradients(real_file_system(), folder.path());
    }
  });
  const checkpoint::Reader reader(*checkpoint::latest(folder.path()));
  for (const checkpoint::TensorInfo& tensor : reader.tensors()) out.gradients[tensor.name] = reader.read(tensor.name);
  return out;
}

// The largest error of a gradient, of its norm and of a thousandth of the largest one's: what nothing flows through is noise.
double worst_error(const Outcome& many, const Outcome& one) {
  double largest = 0;
  for (const auto& [name, gradient] : one.gradients) largest = std::max(largest, gradient.norm().item<double>());
  double worst = many.gradients.size() == one.gradients.size() ? 0 : 1;
  for (const auto& [name, gradient] : one.gradients) {
    const auto found = many.gradients.find(name);
    if (found == many.gradients.end()) return 1;
    const double scale = std::max(gradient.norm().item<double>(), 1e-3 * largest);
    worst = std::max(worst, at::sub(found->second, gradient).norm().item<double>() / scale);
  }
  return worst;
}

bool is_legal(const plan::Plan& plan, const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  try {
    plan::check(plan, job, cluster);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// In words: that a draw leaves nothing out is looked at, too.
std::vector<std::string> traits_of(const plan::Plan& plan, const model::ModelSpec& model) {
  std::vector<std::string> out = {plan::name_of(plan.schedule)};
  if (plan::pipeline_of(plan).chunks > 1 && !plan.stages.front().shares.empty()) out.push_back("shares of several stages");
  if (plan.delayed_exchange) out.push_back("delayed exchange");
  if (!plan.order.empty()) out.push_back("own order");
  const plan::Stage& first = plan.stages.front();
  const plan::Stage& last = plan.stages.back();
  if (model.tied_embeddings && first.ranks == last.ranks && !first.runs.front().strategy.same_layout(last.runs.back().strategy))
    out.push_back("shared by unlike blocks");
  for (const plan::Stage& stage : plan.stages)
    for (const plan::StrategyRun& run : stage.runs) {
      const Strategy& s = run.strategy;
      for (const auto& [name, is] : {std::pair("dp", s.dp > 1),
                                     {"tp", s.tp > 1},
                                     {"cp", s.cp > 1},
                                     {"ep", s.ep > 1},
                                     {"zero 2", s.zero == 2},
                                     {"zero 3", s.zero == 3},
                                     {"shards", s.shards > 0},
                                     {"sequence parallel", s.sequence_parallel},
                                     {"whole experts", s.whole_experts},
                                     {"offload", s.offload_optimizer},
                                     {"recompute", s.recompute != Recompute::none},
                                     {"shares", !stage.shares.empty()},
                                     {"strategies by block", stage.runs.size() > 1},
                                     {"cut anew", !s.same_layout(plan.stages.front().runs.front().strategy)}})
        if (is) out.emplace_back(name);
    }
  return out;
}

cluster::ClusterSpec four_workers() {
  const char* job = "model: {preset: gpt2}\ndata: {source: synthetic}\ntrain: {global_batch: 8}\ncluster: {local: {devices: 4}}\n";
  return cluster::resolve(model::read_job(ConfigNode::parse(job, "four.yaml")).cluster);
}

// Draws plans for the jobs, of which each must train as one device does. What was drawn: by arch, and of all.
std::map<std::string, std::set<std::string>> train_drawn(std::vector<model::JobSpec> jobs, int plans, std::uint64_t seed) {
  // Late gradients cannot be clipped.
  for (model::JobSpec& job : jobs) job.train.optimizer.clip = 0;
  const cluster::ClusterSpec cluster = four_workers();
  std::map<std::pair<std::size_t, std::int64_t>, Outcome> one_device;  // by job and micro-batches
  Draw draw(seed);
  std::map<std::string, std::set<std::string>> seen;  // by arch
  struct Worst {
    int plans = 0;
    double losses = 0;
    double gradients = 0;
  };
  std::map<std::string, Worst> worst;  // by arch
  for (int drawn = 0, tries = 0; drawn < plans; ++tries) {
    if (tries == 500 * plans) {
      ADD_FAILURE() << "none was legal of so many after " << drawn << " plans";
      break;
    }
    const auto which = static_cast<std::size_t>(draw.below(static_cast<int>(jobs.size())));
    const model::JobSpec& job = jobs[which];
    plan::Plan plan = draw.plan(job);
    plan.cluster_fingerprint = cluster.fingerprint();
    if (!is_legal(plan, job, cluster)) continue;
    ++drawn;
    SCOPED_TRACE(job.model.arch + " " + plan::to_json(plan));
    const Outcome many = outcome_of(job, plan);
    const std::int64_t micro_batches = normalizes_batches(job.model) ? plan.micro_batches : 1;
    const auto [one, is_new] = one_device.try_emplace({which, micro_batches});
    if (is_new) one->second = outcome_of(job, plan_of(job, {.micro_batches = micro_batches}));
    const double losses = worst_difference(many.losses, one->second.losses);
    const double gradients = worst_error(many, one->second);
    EXPECT_LT(losses, 1e-4);
    // A bias before a batch norm has no gradient but rounding.
    EXPECT_LT(gradients, normalizes_batches(job.model) ? 1e-3 : 1e-4);
    Worst& so_far = worst[job.model.arch];
    so_far = {so_far.plans + 1, std::max(so_far.losses, losses), std::max(so_far.gradients, gradients)};
    if (drawn % 20 == 0) {
      const Outcome again = outcome_of(job, plan);
      EXPECT_EQ(again.losses, many.losses);
      EXPECT_EQ(worst_error(again, many), 0);
    }
    for (const std::string& trait : traits_of(plan, job.model))
      for (const std::string& arch : {std::string(), job.model.arch}) seen[arch].insert(trait);
  }
  for (const auto& [arch, of] : worst)
    std::printf("%s, %d plans: losses at most %.1e from one device's, gradients %.1e\n", arch.c_str(), of.plans, of.losses, of.gradients);
  return seen;
}

TEST(RandomPlans, TrainTheModelOfOneDevice) {
  std::vector<model::JobSpec> jobs = {
      tiny_job(),
      tiny_job({}, ", tied: true, dropout: 0.1"),
      tiny_experts_job(),
      tiny_experts_job(", dropout: 0.1"),
      tiny_latent_job(),
      skip_job(),
      tiny_gpt_job(", dropout: 0.1"),
      tiny_gpt_job(", dropout: 0.1, tied: false, kv_heads: 2, gated: true, positions: rotary, embedding_norm: true"),
      tiny_bert_job(", dropout: 0"),
      tiny_bert_job(", dropout: 0.1, tied: false"),
      tiny_t5_job(", dropout: 0.1"),
      tiny_t5_job(", dropout: 0, tied: false, gated: true, decoder_layers: 3")};
  std::map<std::string, std::set<std::string>> seen = train_drawn(std::move(jobs), kPlans, 20260716);
  for (const char* name : {"1f1b",
                           "gpipe",
                           "interleaved",
                           "zb-h1",
                           "zb-h2",
                           "zb-v",
                           "dualpipe-v",
                           "delayed exchange",
                           "dp",
                           "tp",
                           "cp",
                           "ep",
                           "zero 2",
                           "zero 3",
                           "shards",
                           "sequence parallel",
                           "whole experts",
                           "offload",
                           "recompute",
                           "shares",
                           "cut anew",
                           "shares of several stages",
                           "shared by unlike blocks"})
    EXPECT_TRUE(seen[""].contains(name)) << name << " was never drawn";
  for (const char* arch : {"gpt", "bert"})
    for (const char* name : {"dp", "tp", "cp", "zero 3", "sequence parallel", "recompute", "cut anew"})
      EXPECT_TRUE(seen[arch].contains(name)) << name << " was never drawn with " << arch;
  for (const char* name : {"dp", "zero 3", "recompute", "cut anew", "zb-h1", "interleaved"})
    EXPECT_TRUE(seen["t5"].contains(name)) << name << " was never drawn with t5";
}

// Stages may begin and end within them.
TEST(RandomPlans, TrainTheModelOfOneDeviceWithSplitLayers) {
  const std::vector<model::JobSpec> jobs = {tiny_bert_job(", dropout: 0, split_layers: true"),
                                            tiny_bert_job(", dropout: 0.1, tied: false, split_layers: true")};
  std::map<std::string, std::set<std::string>> seen = train_drawn(jobs, 30, 7);
  for (const char* name : {"dp", "tp", "cp", "zero 3", "sequence parallel", "recompute", "cut anew", "zb-v"})
    EXPECT_TRUE(seen["bert"].contains(name)) << name << " was never drawn";
}

// Batch norm is synchronized: by itself, a device normalizes what the plan gives it. Its models take small steps, so that a unit which
// rounding turns on or off does not show in the losses.
TEST(RandomPlans, TrainVisionModelsOfOneDevice) {
  std::vector<model::JobSpec> jobs = {
      vision_job("{arch: resnet18, image: 64, classes: 10, batch_norm: synchronized}", 16, 0.0002),
      vision_job("{arch: resnet18, image: 64, classes: 10, batch_norm: synchronized, split_layers: true}", 16, 0.0002),
      vision_job("{arch: vgg11, image: 32, classes: 10}", 16, 0.05),
      vision_job("{arch: vgg11, image: 32, classes: 10, norm: true, batch_norm: synchronized}", 16, 0.0002),
      vision_job("{arch: vit, hidden: 32, layers: 6, heads: 4, image: 16, patch: 4, classes: 10, dropout: 0.1}", 16, 0.05)};
  for (std::size_t i = 0; i < 4; ++i) jobs[i].model = narrowed(jobs[i].model);
  std::map<std::string, std::set<std::string>> seen = train_drawn(std::move(jobs), kVisionPlans, 20260718);
  for (const char* name : {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "shards", "offload"})
    EXPECT_TRUE(seen[""].contains(name)) << name << " was never drawn";
  for (const char* arch : {"resnet18", "vgg11", "vit"})
    for (const char* name : {"dp", "zero 2", "zero 3", "recompute", "shares", "delayed exchange", "own order", "strategies by block"})
      EXPECT_TRUE(seen[arch].contains(name)) << name << " was never drawn with " << arch;
}

}  // namespace
}  // namespace tessera::train
