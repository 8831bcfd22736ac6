// Samples and experts that are placed near each other: the model is trained as without, and fewer bytes cross from host to host.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <algorithm>
#include <fstream>
#include <numeric>

#include "checkpoint/checkpoint.hpp"
#include "program/traffic.hpp"
#include "train/assign.hpp"
#include "train/job_helper.hpp"
#include "train/placement.hpp"
#include "train/relabel.hpp"
#include "train/traffic.hpp"

namespace tessera::train {
namespace {

std::int64_t cost_of(const std::vector<std::vector<std::int64_t>>& costs, const std::vector<int>& classes) {
  std::int64_t sum = 0;
  for (std::size_t item = 0; item < costs.size(); ++item) sum += costs[item][static_cast<std::size_t>(classes[item])];
  return sum;
}

bool fits(const std::vector<int>& classes, const std::vector<std::int64_t>& room) {
  for (std::size_t one = 0; one < room.size(); ++one)
    if (std::count(classes.begin(), classes.end(), static_cast<int>(one)) > room[one]) return false;
  return true;
}

RC_GTEST_PROP(Assign, EqualsEnumerationOnSmallInstances, ()) {
  const int classes = *rc::gen::inRange(1, 5);
  const int items = *rc::gen::inRange(0, 7);
  std::vector<std::int64_t> room;
  for (int one = 0; one < classes; ++one) room.push_back(*rc::gen::inRange(0, 4));
  room.back() += std::max<std::int64_t>(0, items - std::accumulate(room.begin(), room.end(), std::int64_t{0}));
  std::vector<std::vector<std::int64_t>> costs(static_cast<std::size_t>(items));
  for (auto& row : costs)
    for (int one = 0; one < classes; ++one) row.push_back(*rc::gen::inRange(-20, 20));
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::vector<int> any(static_cast<std::size_t>(items), 0);
  for (bool more = true; more;) {
    if (fits(any, room)) least = std::min(least, cost_of(costs, any));
    std::size_t digit = 0;
    while (digit < any.size() && ++any[digit] == classes) any[digit++] = 0;
    more = digit < any.size();
  }
  const std::vector<int> found = assign(costs, room);
  RC_ASSERT(fits(found, room));
  RC_ASSERT(cost_of(costs, found) == least);
}

// Of `hosts` hosts with two ranks each.
plan::Plan on_hosts(const model::JobSpec& job, const Degrees& degrees, int per_host) {
  plan::Plan plan = plan_of(job, degrees);
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) plan.ranks[rank].node = static_cast<int>(rank) / per_host;
  return plan;
}

Seats seats_on_hosts(const Degrees& degrees, int per_host) {
  const auto job = tiny_experts_job();
  const plan::Plan plan = on_hosts(job, degrees, per_host);
  return seats_of(job.model, plan, program::compile(plan, job.model));
}

TEST(Seats, AreThoseOfHosts) {
  const Seats seats = seats_on_hosts({.dp = 4, .micro_batches = 2, .ep = 4}, 2);
  EXPECT_EQ(seats.crosses, (std::vector<std::vector<bool>>{{false, false, true, true}, {true, true, false, false}}));
  EXPECT_EQ(seats.class_of_rank, (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(seats.class_of_place, (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(seats.blocks, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(seats.experts_each(), 1);
}

TEST(Seats, OfSeveralGroupsOfRanksAreOfOneClassWhereTheyReachTheSameExperts) {
  const Seats seats = seats_on_hosts({.dp = 4, .ep = 2}, 1);
  EXPECT_EQ(seats.crosses, (std::vector<std::vector<bool>>{{false, true}, {true, false}}));
  EXPECT_EQ(seats.class_of_rank, (std::vector<int>{0, 1, 0, 1}));
}

TEST(Placement, SamplesStayWhereNothingIsGained) {
  const Seats seats = seats_on_hosts({.dp = 4, .ep = 4}, 2);
  std::vector<std::vector<std::int64_t>> copies;
  for (std::size_t sample = 0; sample < 16; ++sample)
    copies.push_back(sample < 8 ? std::vector<std::int64_t>{5, 5, 1, 1} : std::vector<std::int64_t>{0, 1, 2, 9});
  std::vector<std::int64_t> own(16);
  std::iota(own.begin(), own.end(), 0);
  EXPECT_EQ(place_samples(seats, copies), own);
  std::swap(copies[3], copies[12]);
  std::swap(own[3], own[12]);
  EXPECT_EQ(place_samples(seats, copies), own);
  EXPECT_EQ(crossing(seats, copies, own), 8 * 2 + 8 * 1);
}

TEST(Placement, ExpertsMoveWhereThatPays) {
  const Seats seats = seats_on_hosts({.dp = 4, .ep = 4}, 2);
  const std::vector<std::int64_t> copies = {9, 1, 2, 6, 3, 4, 7, 2};  // [expert][host]
  EXPECT_EQ(crossing(seats, copies), 1 + 6 + 3 + 7);
  // 1 and 3 change places: 1 + 2 + 3 + 2 cross then, nine fewer.
  EXPECT_EQ(place_experts(seats, copies, 4), (std::vector<int>{0, 3, 2, 1}));
  EXPECT_EQ(place_experts(seats, copies, 5), (std::vector<int>{0, 1, 2, 3}));
}

TEST(TokenRates, OfTokensThatWereNeverSeenAreThoseOfAll) {
  const TokenRates rates(std::vector<std::int64_t>{9000, 1000, 0, 0, 1000, 9000}, 2);
  const std::int64_t half = TokenRates::kUnit / 2;
  EXPECT_EQ(rates.expected(std::vector<std::int32_t>{1, 1}), (std::vector<std::int64_t>{2 * half, 2 * half}));
  const auto of_first = rates.expected(std::vector<std::int32_t>{0});
  EXPECT_NEAR(static_cast<double>(of_first[0]), 0.9 * TokenRates::kUnit, 1000);
}

// Two texts of different letters, one sample after the other.
model::JobSpec two_texts_job(const TemporaryFolder& folder, const std::string& train, const std::string& model = {}) {
  const auto path = folder.path() / "text.txt";
  std::ofstream out(path);
  std::uint32_t state = 1;
  for (int sample = 0; sample < 400; ++sample)
    for (int i = 0; i < 32; ++i) {
      state = state * 1664525u + 1013904223u;
      out << static_cast<char>((sample * 7 % 3 == 0 ? 'a' : 'N') + static_cast<char>((state >> 20) % 12));
    }
  out.close();
  const std::string yaml = text(
      "name: tiny\nmodel: {arch: mixtral, hidden: 32, layers: 3, heads: 2, kv_heads: 2, ffn: 24, experts: 8, experts_per_token: 2, seq: "
      "32, vocab: 257",
      model, "}\ndata: {source: ", path.string(),
      ", tokenizer: {kind: bytes}}\ntrain: {global_batch: 16, steps: 12, optimizer: {kind: adamw, "
      "lr: 3.0e-3}",
      train, "}\n");
  return model::read_job(ConfigNode::parse(yaml, "tiny.yaml"));
}

struct Outcome {
  std::vector<double> losses;
  double evaluated = 0;   // halfway
  double at_the_end = 0;  // of what was saved, by one device
  PlacementReport placement;
};

constexpr int kSteps = 12;

Outcome outcome_of(const model::JobSpec& job, const plan::Plan& plan, const TemporaryFolder& folder) {
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed, folder.path() / "cache");
  Outcome out;
  const TemporaryFolder saved;
  on_ranks(plan.world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, plan, *dataset, comm);
    trainer.initialize();
    for (int step = 0; step < kSteps; ++step) {
      const double loss = trainer.step().loss;
      if (comm.rank() == 0) out.losses.push_back(loss);
      if (step + 1 != kSteps / 2) continue;
      const double evaluated = trainer.evaluate(16).loss;
      if (comm.rank() == 0) out.evaluated = evaluated;
    }
    trainer.save(real_file_system(), saved.path(), 1);
    if (const auto report = trainer.placement(); report && comm.rank() == 0) out.placement = *report;
  });
  const plan::Plan one = plan_of(job, {});
  on_ranks(1, [&](comm::Communicator& comm) {
    model::JobSpec alone = job;
    alone.train.placement = {};
    Trainer trainer(alone, one, *dataset, comm);
    trainer.load(checkpoint::find(saved.path()));
    EXPECT_EQ(trainer.next_step(), kSteps);
    out.at_the_end = trainer.evaluate(16).loss;
  });
  return out;
}

void expect_the_same(const Outcome& placed, const Outcome& plain) {
  EXPECT_LT(worst_difference(placed.losses, plain.losses), 1e-4);
  EXPECT_NEAR(placed.evaluated, plain.evaluated, 1e-4 * plain.evaluated);
  EXPECT_NEAR(placed.at_the_end, plain.at_the_end, 1e-4 * plain.at_the_end);
}

TEST(Placement, TrainsTheSameModelUnderEveryPlan) {
  const TemporaryFolder folder;
  const std::string losses = ", balance_loss: 0.02, z_loss: 0.01, capacity: 1.5, dropout: 0.1";
  const auto plain_job = two_texts_job(folder, "", losses);
  const Outcome plain = outcome_of(plain_job, plan_of(plain_job, {}), folder);
  for (const Degrees& degrees : {Degrees{.dp = 4, .micro_batches = 2, .ep = 4}, Degrees{.dp = 4, .zero = 1, .ep = 2},
                                 Degrees{.dp = 4, .zero = 3, .micro_batches = 2, .recompute = model::Recompute::full, .ep = 2}}) {
    SCOPED_TRACE(to_text(degrees));
    const auto job = two_texts_job(folder, ", placement: {kind: samples_and_experts, every: 3}", losses);
    const Outcome placed = outcome_of(job, on_hosts(job, degrees, degrees.ep / 2), folder);
    expect_the_same(placed, plain);
    EXPECT_GT(placed.placement.placed, 0);
    EXPECT_GT(placed.placement.relabellings, 0);
  }
}

TEST(Placement, GoesWithADelayedExchange) {
  const TemporaryFolder folder;
  const auto plain_job = two_texts_job(folder, "");
  auto job = two_texts_job(folder, ", placement: {kind: samples_and_experts, every: 3}");
  job.train.optimizer.clip = 0;
  auto unclipped = plain_job;
  unclipped.train.optimizer.clip = 0;
  const Degrees degrees{.dp = 4, .delayed_exchange = true, .ep = 4};
  const Outcome placed = outcome_of(job, on_hosts(job, degrees, 2), folder);
  expect_the_same(placed, outcome_of(unclipped, plan_of(unclipped, {}), folder));
  EXPECT_GT(placed.placement.relabellings, 0);
}

TEST(Placement, SendsFewerRowsFromHostToHost) {
  const TemporaryFolder folder;
  std::map<std::string, PlacementReport> reports;
  for (const std::string kind : {"samples", "samples_and_experts"}) {
    const auto job = two_texts_job(folder, text(", placement: {kind: ", kind, ", every: 3}"));
    reports[kind] = outcome_of(job, on_hosts(job, {.dp = 4, .ep = 4}, 2), folder).placement;
    EXPECT_EQ(reports[kind].steps, kSteps);
    EXPECT_NEAR(static_cast<double>(reports[kind].predicted.value), static_cast<double>(reports[kind].crossed_placed.value),
                0.1 * static_cast<double>(reports[kind].predicted.value));
  }
  // As drawn, half of all copies cross: of 16 samples of 32 tokens two each, in three blocks.
  const double half = kSteps * 16 * 32 * 2 * 3 / 2.0 * (4 * 32 * 4 + 8);
  EXPECT_LT(static_cast<double>(reports.at("samples").crossed.value), 0.97 * half);
  EXPECT_LT(reports.at("samples_and_experts").crossed, reports.at("samples").crossed);
}

TEST(Placement, CountsWhatRoutersSend) {
  const TemporaryFolder folder;
  const auto job = two_texts_job(folder, ", placement: {kind: samples}", ", capacity: 1.0");
  const plan::Plan plan = on_hosts(job, {.dp = 4, .micro_batches = 2, .recompute = model::Recompute::full, .ep = 4}, 1);
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed, folder.path() / "cache");
  comm::Options network;
  network.shared_memory = false;
  on_ranks(
      4,
      [&](comm::Communicator& comm) {
        Trainer trainer(job, plan, *dataset, comm);
        trainer.initialize();
        for (int step = 0; step < 3; ++step) trainer.step();
        const PlacementReport report = trainer.placement().value();
        // Ranks tell each other how many rows come: in 3 blocks of 2 micro-batches of 3 steps, forward and again.
        const Bytes told = comm::bytes_on_network("all_to_all", 4, Bytes(8 * 8)) * (3 * 2 * 3 * 2);
        EXPECT_EQ(sent(comm).at("expert").bytes, report.crossed + told);
      },
      network);
}

// In bf16, too, nothing but the labels changes: not the weights of computation, nor what is exact of them, nor the optimizer's state.
TEST(Relabelling, ThereAndBackChangesNoBit) {
  const auto job = tiny_experts_job();
  const ExpertLabels there = {{1, {2, 0, 3, 1}}, {3, {3, 2, 1, 0}}};
  const ExpertLabels back = {{1, {1, 3, 0, 2}}, {3, {3, 2, 1, 0}}};
  for (const model::Precision precision : {model::Precision::f32, model::Precision::bf16})
    for (const int zero : {0, 1, 3}) {
      const plan::Plan plan = plan_of(job, {.dp = 4, .zero = zero, .ep = 2});
      on_ranks(4, [&](comm::Communicator& comm) {
        Store store(job.model, program::compile(plan, job.model).at(static_cast<std::size_t>(comm.rank())), precision, job.train.optimizer);
        store.initialize(1);
        for (int bucket = 0; bucket < store.bucket_count(); ++bucket) store.bucket(bucket).exp_avg.copy_(store.bucket(bucket).master);
        const auto all = [&] {
          std::map<std::string, at::Tensor> out;
          for (int bucket = 0; bucket < store.bucket_count(); ++bucket) {
            if (zero < 3) out[text("values ", bucket)] = store.bucket(bucket).values.clone();
            for (const checkpoint::Piece& piece : store.pieces(bucket, Holds::all))
              out[text(piece.name, " ", piece.flat_begin)] = piece.data.clone();
          }
          return out;
        };
        const auto before = all();
        relabel_experts(store, comm, job.model, there);
        const auto between = all();
        relabel_experts(store, comm, job.model, back);
        const auto after = all();
        int changed = 0;
        ASSERT_EQ(before.size(), after.size());
        for (const auto& [name, tensor] : before) {
          EXPECT_TRUE(at::equal(tensor, after.at(name))) << name;
          const bool differs = !at::equal(tensor, between.at(name));
          if (differs) ++changed;
          EXPECT_TRUE(!differs || name.starts_with("values") || name.find(".mlp.") != std::string::npos) << name;
          EXPECT_FALSE(differs && name.find("layers.1.") != std::string::npos) << name << ", whose block keeps its labels";
        }
        EXPECT_GT(changed, 0);
      });
    }
}

}  // namespace
}  // namespace tessera::train
