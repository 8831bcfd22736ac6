#include "interop/galvatron/galvatron.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/expect_error.hpp"
#include "base/folders.hpp"
#include "interop/galvatron/front.hpp"
#include "interop/galvatron/inputs.hpp"

namespace tessera::interop::galvatron {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path inputs_folder() { return fs::path(kSourceFolder) / "bench" / "planner" / "inputs"; }

Inputs llama(std::vector<std::string> overrides, Release release = Release::v2_4_1) {
  overrides.insert(overrides.begin(), "SEQ_LENGTH=2048");
  return read_inputs(inputs_folder() / "search_dist.yaml", overrides, release);
}

// A copy of the shipped inputs, to be spoiled.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / text("tessera-galvatron-", getpid(), "-", count_++)) { fs::copy(inputs_folder(), path_); }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  fs::path yaml() const { return path_ / "search_dist.yaml"; }
  const fs::path& path() const { return path_; }
  void replace(const std::string& file, const std::string& from, const std::string& to) const {
    std::ifstream in(path_ / file);
    std::string content((std::istreambuf_iterator<char>(in)), {});
    const std::size_t at = content.find(from);
    ASSERT_NE(at, std::string::npos);
    write(file, content.replace(at, from.size(), to));
  }
  void write(const std::string& file, const std::string& content) const { std::ofstream(path_ / file) << content; }

 private:
  static inline int count_ = 0;
  fs::path path_;
};

std::string refusal(const std::function<void()>& action) { return tessera::testing::error_of(action).what(); }

// Sixty plans drawn at random, priced by Galvatron's own classes: those of 2.4.0 (its package's TimeCostModel, MemoryCostModel,
// OtherTimeCostModel and pipeline_costmodel through bench/planner/peer.py), and those of the YAML-configured release (at commit
// cea12ff) on the inputs that bench/planner/inputs holds; fp32 profiles are the bf16 ones under another name.
TEST(GalvatronCost, EqualsGalvatronsOwnCode) {
  std::ifstream in(fs::path(kSourceFolder) / "tests" / "plan" / "data" / "galvatron_prices.json");
  const Folder folder;
  for (const char* kind : {"computation", "memory"})
    fs::copy_file(folder.path() / text(kind, "_profiling_bf16_llama2-7b_all.json"),
                  folder.path() / text(kind, "_profiling_fp32_llama2-7b_all.json"));
  int compared = 0;
  for (const auto& sample : nlohmann::json::parse(in)) {
    SCOPED_TRACE(sample.dump());
    std::vector<std::string> overrides = sample["overrides"];
    overrides.push_back("SEQ_LENGTH=2048");
    const Inputs inputs = read_inputs(folder.yaml(), overrides, sample["release"] == "2.4.0" ? Release::v2_4_0 : Release::v2_4_1);
    folder.write("plan.json", sample["config"].dump());
    Plan plan = read_config(folder.path() / "plan.json", 8);
    plan.counted_split = sample.value("counted_split", 0);
    const PlanCost found = cost_of(inputs, plan);
    EXPECT_NEAR(found.step.value, sample["step_s"].get<double>(), 1e-9 * found.step.value);
    EXPECT_EQ(found.memory_mb, sample["memory_mb"].get<std::vector<std::int64_t>>());
    ++compared;
  }
  EXPECT_EQ(compared, 60);
}

TEST(GalvatronSearch, IsNoWorseThanGalvatronsRecordedAnswers) {
  std::ifstream in(fs::path(kSourceFolder) / "bench" / "planner" / "answers_2.4.1.json");
  const Folder folder;
  for (const char* other : {"1nodes_4gpus", "2nodes_8gpus"})
    fs::copy_file(folder.path() / "sp_time_1nodes_8gpus_per_node.json", folder.path() / text("sp_time_", other, "_per_node.json"));
  const nlohmann::json recorded = nlohmann::json::parse(in);
  EXPECT_EQ(recorded.at("answers").size(), 7U);
  for (const auto& answer : recorded.at("answers")) {
    const Inputs inputs =
        read_inputs(folder.yaml(), {"SEQ_LENGTH=2048", "time_profile_mode=static", text("NUM_NODES=", answer["nodes"]),
                                    text("settle_bsz=", answer["batch"]), text("NUM_GPUS_PER_NODE=", answer["devices_per_node"]),
                                    text("MEMORY_CONSTRAINT=", answer["memory_gb"])});
    const SearchResult found = search(inputs);
    EXPECT_LE(found.cost.step.value, answer["cost_s"].get<double>() * (1 + 1e-9)) << answer.dump();
    EXPECT_TRUE(found.cost.fits);
  }
}

// Profiles that never were measured, small enough for enumeration.
Inputs random_inputs(int devices, int layers) {
  Inputs inputs;
  Settings& settings = inputs.settings;
  settings.nodes = 1;
  settings.devices_per_node = devices;
  settings.layers = layers;
  settings.hidden = 1024;
  settings.seq = 1024;
  settings.memory_gb = *rc::gen::inRange(2, 8);
  settings.default_dp_type = *rc::gen::element("ddp", "zero2");
  settings.pipedream_flush = *rc::gen::arbitrary<bool>();
  settings.settled_batch = *rc::gen::element(4, 8);
  const auto real = [](int least, int most) { return *rc::gen::inRange(least, most) / 100.0; };
  Profile& profile = inputs.profile;
  profile.layer.per_sample = real(100, 1000);
  profile.other.per_sample = real(50, 900);
  profile.layer_parameters = real(5000, 40000);
  profile.checkpoint_activation = real(500, 3000);
  profile.overlap_slowdown = real(100, 150);
  profile.adjacent[1] = profile.strided[1] = 0;
  const double states = real(20000, 80000), activation = real(5000, 60000);
  for (int degree = 1; degree <= devices; degree *= 2) {
    profile.layer_activation[degree] = activation / degree;
    profile.alone.states[degree] = 2 * states / degree;
    profile.first.states[degree] = profile.last.states[degree] = states / degree;
    profile.alone.activation[degree] = profile.first.activation[degree] = profile.last.activation[degree] = real(1000, 9000) / degree;
    if (degree == 1) continue;
    profile.adjacent[degree] = real(1, 20);
    profile.strided[degree] = degree == devices ? profile.adjacent[degree] : real(1, 20);
    profile.point_to_point[degree] = real(1, 30);
    profile.all_gather[degree].line = {real(1, 20), real(1, 50)};
    profile.all_to_all[degree].line = {real(1, 20), real(1, 50)};
  }
  return inputs;
}

// Every strategy of one layer, written down as plainly as possible.
std::vector<Strategy> all_strategies(const Settings& settings, int pp) {
  std::vector<Strategy> out;
  const int width = settings.devices() / pp;
  for (int split = 1; split <= width; split *= 2)
    for (int kind = 0; kind < (split > 1 ? 2 : 1); ++kind)
      for (int sharded = 0; sharded < (width / split > 1 ? 2 : 1); ++sharded)
        for (int checkpoint = 0; checkpoint < 2; ++checkpoint) {
          if (split > 1 && (kind == 0 ? settings.no_tp : settings.no_sp)) continue;
          const Sharding by_default = settings.default_dp_type == "zero2" ? Sharding::zero2 : Sharding::none;
          const Sharding sharding = width == split ? Sharding::none : sharded == 1 ? Sharding::zero3 : by_default;
          for (int apart = 0; apart < (settings.release == Release::v2_4_0 && split > 1 && width > split ? 2 : 1); ++apart)
            out.push_back({pp, kind == 0 ? split : 1, kind == 1 ? split : 1, 1, width / split, sharding, checkpoint == 1, apart == 1});
        }
  return out;
}

// 2.4.0's way to count samples does not divide for every plan.
std::optional<PlanCost> cost_if_it_divides(const Inputs& inputs, const Plan& plan) {
  try {
    return cost_of(inputs, plan);
  } catch (const Error&) {
    if (inputs.settings.release == Release::v2_4_1) throw;
    return std::nullopt;
  }
}

double by_enumeration(const Inputs& inputs) {
  const int batch = *inputs.settings.settled_batch, layers = inputs.settings.layers;
  double best = INFINITY;
  for (int pp = 1; pp <= inputs.settings.devices() && pp <= layers; pp *= 2)
    for (int chunks = 1; chunks <= batch; ++chunks) {
      const bool too_few = chunks < pp && inputs.settings.release == Release::v2_4_1;
      if (batch % chunks != 0 || too_few) continue;
      std::vector<int> division(pp, layers / pp);
      division.back() += layers % pp;
      std::vector<Strategy> strategies;
      for (const Strategy& strategy : all_strategies(inputs.settings, pp))
        if (strategy.dp <= batch / chunks) strategies.push_back(strategy);
      std::vector<Strategy> embeddings = strategies;
      // 2.4.0 has the flag to shard embeddings whether anything is left to shard over or not, and prices it.
      if (inputs.settings.release == Release::v2_4_0)
        for (Strategy strategy : strategies) {
          strategy.sharding = Sharding::zero3;
          if (strategy.dp == 1) embeddings.push_back(strategy);
        }
      for (const Strategy& embedding : embeddings) {
        if (embedding.checkpoint || embedding.apart) continue;
        std::vector<std::size_t> digits(layers, 0);
        for (bool more = !strategies.empty(); more;) {
          Plan plan{batch, chunks, division, {}, embedding, 0};
          for (std::size_t digit : digits) plan.layers.push_back(strategies[digit]);
          const std::optional<PlanCost> found = cost_if_it_divides(inputs, plan);
          if (found && found->fits) best = std::min(best, found->step.value);
          std::size_t at = 0;
          while (at < digits.size() && ++digits[at] == strategies.size()) digits[at++] = 0;
          more = at < digits.size();
        }
      }
    }
  return best;
}

RC_GTEST_PROP(GalvatronSearch, EqualsEnumerationOnSmallInstances, ()) {
  // Eight devices without tensor parallelism reach data parallelism inside four stages, and stay small enough.
  const int devices = *rc::gen::element(1, 2, 4, 8), layers = devices == 8 ? 4 : *rc::gen::inRange(1, devices == 4 ? 4 : 5);
  Inputs inputs = random_inputs(devices, layers);
  inputs.settings.no_tp = inputs.settings.no_sp = devices == 8;
  inputs.settings.release = devices < 4 && *rc::gen::arbitrary<bool>() ? Release::v2_4_0 : Release::v2_4_1;
  const double enumerated = by_enumeration(inputs);
  RC_CLASSIFY(enumerated == INFINITY, "nothing fits");
  try {
    const SearchResult found = search(inputs);
    RC_ASSERT(found.cost.fits);
    RC_LOG() << "found " << found.cost.step.value << ", enumerated " << enumerated << "\n" << to_config(inputs, found.plan);
    RC_ASSERT(std::abs(found.cost.step.value - enumerated) <= 1e-9 * enumerated);
  } catch (const Error& error) {
    // Nothing fits, or no micro-batch has a sample for every rank.
    RC_ASSERT(error.code() == ErrorCode::resource_exhausted || error.message().starts_with("nothing divides"));
    RC_ASSERT(enumerated == INFINITY);
  }
}

RC_GTEST_PROP(GalvatronFront, HoldsEveryMixThatNothingBeats, ()) {
  std::vector<Item> items;
  for (int i = 0, count = *rc::gen::inRange(1, 5); i < count; ++i)
    items.push_back({*rc::gen::inRange(1, 40) / 8.0, *rc::gen::inRange(0, 40) / 8.0, *rc::gen::inRange(1, 30)});
  const int layers = *rc::gen::inRange(1, 6), room = *rc::gen::inRange(0, 150);
  // Every multiset, as counts.
  std::vector<std::pair<double, double>> possible;
  std::vector<int> counts(items.size(), 0);
  const std::function<void(std::size_t, int)> place = [&](std::size_t item, int left) {
    if (item + 1 == items.size()) {
      counts[item] = left;
      double compute = 0, exposed = 0;
      int memory = 0;
      for (std::size_t i = 0; i < items.size(); ++i) {
        compute += counts[i] * items[i].compute;
        exposed += counts[i] * items[i].exposed;
        memory += counts[i] * items[i].memory;
      }
      if (memory <= room) possible.emplace_back(compute, exposed);
      return;
    }
    for (counts[item] = 0; counts[item] <= left; ++counts[item]) place(item + 1, left - counts[item]);
  };
  place(0, layers);
  std::vector<std::pair<double, double>> front;
  for (const auto& one : possible)
    if (std::none_of(possible.begin(), possible.end(),
                     [&](const auto& other) { return other != one && other.first <= one.first && other.second <= one.second; }))
      front.push_back(one);
  std::sort(front.begin(), front.end());
  front.erase(std::unique(front.begin(), front.end()), front.end());
  std::vector<std::pair<double, double>> found;
  for (const Mix& mix : pareto_mixes(items, layers, room, {{1, 0, INFINITY}})) found.emplace_back(mix.compute, mix.exposed);
  RC_ASSERT(found == front);
  if (!front.empty()) RC_ASSERT(least(items, layers, room, 1, 0) <= front.front().first + 1e-9);
}

TEST(GalvatronConfig, RoundTripsThroughGalvatronsFormat) {
  for (Release release : {Release::v2_4_0, Release::v2_4_1}) {
    const Inputs inputs = llama({"time_profile_mode=static", "MEMORY_CONSTRAINT=30"}, release);
    const Plan plan = search(inputs).plan;
    const Folder folder;
    folder.write("plan.json", to_config(inputs, plan));
    const Plan again = read_config(folder.path() / "plan.json", 8);
    EXPECT_EQ(again.layers, plan.layers);
    EXPECT_EQ(again.division, plan.division);
    EXPECT_EQ(again.chunks, plan.chunks);
    EXPECT_EQ(again.embedding.split(), plan.embedding.split());
    EXPECT_EQ(to_config(inputs, again), to_config(inputs, plan));
    EXPECT_DOUBLE_EQ(cost_of(inputs, again).step.value, cost_of(inputs, plan).step.value);
  }
}

TEST(GalvatronCost, CountsBordersBetweenSplitsApart) {
  const Inputs inputs = llama({"time_profile_mode=static"});
  Plan plan = search(inputs).plan;
  for (Strategy& layer : plan.layers) layer = {1, 4, 1, 1, 2, Sharding::zero2, false, false};
  EXPECT_EQ(relayout_time(inputs, plan).value, 0);
  plan.layers.back() = {1, 2, 1, 1, 4, Sharding::zero2, false, false};
  // Sixteen micro-batches of four samples in two groups: 32 MB of bf16, three quarters of it from elsewhere, there and back.
  ASSERT_EQ(plan.chunks, 16);
  EXPECT_NEAR(relayout_time(inputs, plan).value, 2 * 16 * 32 * 0.75 / 159.119 * 1e-3, 1e-12);
}

TEST(GalvatronConfig, HasTheKeysAndTheNameThatGalvatronGives) {
  const Inputs inputs = llama({"time_profile_mode=static"});
  const auto config = nlohmann::ordered_json::parse(to_config(inputs, search(inputs).plan));
  std::vector<std::string> keys;
  for (const auto& [key, value] : config.items()) keys.push_back(key);
  EXPECT_THAT(keys,
              ::testing::ElementsAre("pp_deg", "tp_sizes_enc", "tp_consecutive_flags", "dp_types_enc", "use_sp", "checkpoint", "world_size",
                                     "global_bsz", "chunks", "pp_division", "pipeline_type", "default_dp_type", "vtp", "vsp", "embed_sdp"));
  EXPECT_EQ(config_name(inputs.settings), "galvatron_config_llama2-7b_1nodes_8gpus_per_node_38GB_bf16.json");
  EXPECT_EQ(config_name(llama({"time_profile_mode=static", "settle_bsz=32", "disable_tp=1", "disable_ckpt=1"}).settings),
            "galvatron_config_llama2-7b_1nodes_8gpus_per_node_38GB_bf16_bsz32_[tp_ckpt_off].json");
}

TEST(GalvatronConfig, SaysWhatIsWrongWithAPlan) {
  const Folder folder;
  const auto plan_with = [&](const std::string& from, const std::string& to) {
    const Inputs inputs = llama({"time_profile_mode=static"});
    folder.write("plan.json", to_config(inputs, search(inputs).plan));
    folder.replace("plan.json", from, to);
    return refusal([&] { cost_of(inputs, read_config(folder.path() / "plan.json", 8)); });
  };
  EXPECT_THAT(plan_with("\"pp_deg\": 1", "\"pp_deg\": 2"), HasSubstr("divides into 1 stages"));
  EXPECT_THAT(plan_with("\"tp_sizes_enc\": \"4", "\"tp_sizes_enc\": \"3"), HasSubstr("does not divide 8 devices"));
  EXPECT_THAT(plan_with("\"vtp\"", "\"vpt\""), HasSubstr("the key 'vtp' is missing"));
  EXPECT_THAT(plan_with("\"chunks\": 16", "\"chunks\": 64"), HasSubstr("has less than a sample per rank"));
}

TEST(GalvatronInputs, OverridesReachEveryUseOfAVariable) {
  const Inputs inputs = llama({"NUM_GPUS_PER_NODE=8", "MEMORY_CONSTRAINT=24", "search_engine.profiling_info.time_profile_mode=static",
                               "++search_engine.search_space_info.max_tp_deg=4"});
  EXPECT_EQ(inputs.settings.seq, 2048);
  EXPECT_EQ(inputs.settings.memory_gb, 24);
  EXPECT_EQ(inputs.settings.max_tp, 4);
  EXPECT_DOUBLE_EQ(inputs.profile.layer.per_sample, 4.396252679824831);
  EXPECT_EQ(inputs.settings.layers, 32);
}

TEST(GalvatronInputs, NamesWhatWasMistyped) {
  EXPECT_THAT(refusal([] { llama({"MEMORY_CONSTRAIT=24"}); }), HasSubstr("did you mean 'MEMORY_CONSTRAINT'?"));
  EXPECT_THAT(refusal([] { llama({"search_engine.hardware_info.num_node=2"}); }), HasSubstr("did you mean 'num_nodes'?"));
  EXPECT_THAT(refusal([] { llama({"time_profile_mode=statik"}); }), HasSubstr("did you mean 'static'?"));
  EXPECT_THAT(refusal([] { llama({"MEMORY_CONSTRAINT=much"}); }), HasSubstr("found 'much'"));
  EXPECT_THAT(refusal([] { llama({"38"}); }), HasSubstr("KEY=VALUE"));
  const Folder folder;
  folder.replace("search_dist.yaml", "seq_length:", "seq_lenght:");
  EXPECT_THAT(refusal([&] { read_inputs(folder.yaml(), {}); }), HasSubstr("did you mean 'seq_length'?"));
}

TEST(GalvatronInputs, SaysWhatIsMissing) {
  EXPECT_THAT(refusal([] { read_inputs(inputs_folder() / "nothing.yaml", {}); }), HasSubstr("nothing.yaml"));
  EXPECT_THAT(refusal([] {
                llama({"time_profile_mode=static", "NUM_NODES=4"});
              }),
              HasSubstr("allreduce_bandwidth_4nodes_8gpus_per_node.json"));
  EXPECT_THAT(refusal([] {
                llama({"time_profile_mode=static", "model_size=llama3"});
              }),
              HasSubstr("computation_profiling_bf16_llama3_all.json"));
  EXPECT_THAT(refusal([] { llama({"time_profile_mode=sequence"}); }), HasSubstr("needs 3 sequence lengths"));
  EXPECT_THAT(refusal([] { llama({"time_profile_mode=static", "SEQ_LENGTH=4096"}); }), HasSubstr("sequence length 4096 was not profiled"));
  const Folder folder;
  folder.replace("allreduce_bandwidth_1nodes_8gpus_per_node.json", "allreduce_size_4_consec_0", "allreduce_size_4_consec_9");
  EXPECT_THAT(refusal([&] {
                read_inputs(folder.yaml(), {"SEQ_LENGTH=2048", "time_profile_mode=static"});
              }),
              HasSubstr("allreduce_size_4_consec_0"));
}

TEST(GalvatronSearch, NamesTheSmallestMemoryThatWouldDo) {
  EXPECT_THAT(refusal([] {
                search(llama({"time_profile_mode=static", "MEMORY_CONSTRAINT=10"}));
              }),
              HasSubstr("memory_constraint of at least "));
  const std::string text = refusal([] { search(llama({"time_profile_mode=static", "MEMORY_CONSTRAINT=10"})); });
  const int enough = std::stoi(text.substr(text.find("at least ") + 9));
  EXPECT_NO_THROW(search(llama({"time_profile_mode=static", tessera::text("MEMORY_CONSTRAINT=", enough)})));
  EXPECT_THROW(search(llama({"time_profile_mode=static", tessera::text("MEMORY_CONSTRAINT=", enough - 1)})), Error);
}

RC_GTEST_PROP(GalvatronFit, FindsThePolynomialThatMadeTheSamples, ()) {
  const double a = *rc::gen::inRange(-50, 50) / 7.0, b = *rc::gen::inRange(-50, 50) / 3.0, c = *rc::gen::inRange(-50, 50) * 1e-4;
  Samples samples;
  for (int x = 512; x <= 8192; x *= 2) samples.emplace_back(x, a + b * x + c * x * x);
  const std::vector<double> found = fit_polynomial(samples, 2);
  for (const auto& [x, y] : samples) RC_ASSERT(std::abs(found[0] + found[1] * x + found[2] * x * x - y) <= 1e-6 * (1 + std::abs(y)));
}

}  // namespace
}  // namespace tessera::interop::galvatron
