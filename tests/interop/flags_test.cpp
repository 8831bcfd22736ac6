// Plans in the words of Megatron-LM and torchtitan, and what they cannot express.
#include "interop/flags.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <sstream>

#include "base/expect_error.hpp"
#include "plan/plan_helper.hpp"

namespace tessera::interop {
namespace {

using model::Recompute;
using tessera::testing::error_of;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kLlama =
    "{arch: llama, hidden: 64, layers: 8, heads: 4, kv_heads: 2, ffn: 160, seq: 64, vocab: 256, rope_theta: 500000}";
constexpr const char* kDeepseek =
    "{arch: deepseek, hidden: 64, layers: 8, heads: 4, ffn: 160, seq: 64, vocab: 256, q_lora: 24, kv_lora: 16, nope_dim: 16, rope_dim: 8, "
    "v_dim: 16, experts: 8, "
    "experts_per_token: 2, expert_ffn: 32, shared_ffn: 32, dense_layers: 2}";

struct Shape {
  plan::Strategy strategy = {};
  std::vector<int> layers = {8};  // of each stage
  int pipeline_size = 0;          // 0: a stage each
  plan::Schedule schedule = plan::Schedule::one_f_one_b;
  std::int64_t micro_batches = 4;
  const char* model = kLlama;
};

// A plan of a model with embedding, layers and head, the same for all blocks.
struct Case {
  explicit Case(const Shape& shape)
      : job(model::read_job(ConfigNode::parse(
            text("model: ", shape.model, "\ndata: {source: synthetic}\ntrain: {steps: 300, global_batch: 32, precision: bf16}\n"),
            "train.yaml"))) {
    const int pipeline_size = shape.pipeline_size == 0 ? static_cast<int>(shape.layers.size()) : shape.pipeline_size;
    const int width = shape.strategy.dp * shape.strategy.cp * shape.strategy.tp;
    plan.precision = model::Precision::bf16;
    plan.global_batch = 32;
    plan.micro_batches = shape.micro_batches;
    plan.schedule = shape.schedule;
    for (int rank = 0; rank < pipeline_size * width; ++rank) plan.ranks.push_back({0, rank / 8, rank % 8});
    int block = 0;
    for (int s = 0; s < static_cast<int>(shape.layers.size()); ++s) {
      const bool v = shape.schedule == plan::Schedule::zb_v || shape.schedule == plan::Schedule::dualpipe_v;
      const int pipeline_rank = v && s >= pipeline_size ? 2 * pipeline_size - 1 - s : s % pipeline_size;
      plan::Stage stage;
      stage.ranks.resize(width);
      std::iota(stage.ranks.begin(), stage.ranks.end(), pipeline_rank * width);
      const int blocks = shape.layers[s] + (s == 0 ? 1 : 0) + (s + 1 == static_cast<int>(shape.layers.size()) ? 1 : 0);
      stage.runs.push_back({block, block + blocks, shape.strategy});
      block += blocks;
      plan.stages.push_back(stage);
    }
  }

  std::vector<std::string> megatron() const {
    std::istringstream lines(megatron_flags(plan, job.model, job.train));
    std::vector<std::string> out;
    for (std::string line; std::getline(lines, line);) out.push_back(line);
    return out;
  }
  std::string torchtitan() const { return torchtitan_toml(plan, job.model, job.train); }
  Error megatron_error() const {
    return error_of([&] { megatron(); });
  }
  Error torchtitan_error() const {
    return error_of([&] { torchtitan(); });
  }

  // Cuts the run of a stage before `block`, and recomputes the part before it so.
  void recompute_first(int stage, int block, Recompute recompute) {
    std::vector<plan::StrategyRun>& runs = plan.stages[stage].runs;
    plan::StrategyRun rest = runs.back();
    runs.back().last = rest.first = block;
    runs.back().strategy.recompute = recompute;
    rest.where.file = "plan.json";
    rest.where.line = 7;
    runs.push_back(rest);
  }

  model::JobSpec job;
  plan::Plan plan;
};

TEST(MegatronFlags, SayTheModelTheBatchAndTheCut) {
  const Case made({.strategy = {.dp = 2, .tp = 2, .zero = 1, .sequence_parallel = true}, .layers = {4, 4}});
  EXPECT_EQ(made.megatron(), (std::vector<std::string>{"--num-layers 8",
                                                       "--hidden-size 64",
                                                       "--ffn-hidden-size 160",
                                                       "--seq-length 64",
                                                       "--norm-epsilon 1e-05",
                                                       "--num-attention-heads 4",
                                                       "--kv-channels 16",
                                                       "--group-query-attention",
                                                       "--num-query-groups 2",
                                                       "--normalization RMSNorm",
                                                       "--swiglu",
                                                       "--disable-bias-linear",
                                                       "--position-embedding-type rope",
                                                       "--rotary-base 500000",
                                                       "--max-position-embeddings 64",
                                                       "--hidden-dropout 0",
                                                       "--attention-dropout 0",
                                                       "--untie-embeddings-and-output-weights",
                                                       "--micro-batch-size 4",
                                                       "--global-batch-size 32",
                                                       "--train-iters 300",
                                                       "--bf16",
                                                       "--tensor-model-parallel-size 2",
                                                       "--sequence-parallel",
                                                       "--pipeline-model-parallel-size 2",
                                                       "--overlap-grad-reduce",
                                                       "--ddp-bucket-size 6553600",
                                                       "--use-distributed-optimizer"}));
}

TEST(MegatronFlags, SayHowTheSequenceAndTheParametersAreCut) {
  const Case ring({.strategy = {.dp = 2, .zero = 3, .cp = 2}});
  EXPECT_THAT(ring.megatron(),
              AllOf(Contains("--context-parallel-size 2"), Contains("--cp-comm-type p2p"), Contains("--use-megatron-fsdp"),
                    Contains("--data-parallel-sharding-strategy optim_grads_params"), Contains("--ckpt-format fsdp_dtensor")));
  const Case ulysses({.strategy = {.dp = 2, .zero = 2, .cp = 2, .context = model::ContextKind::ulysses}});
  EXPECT_THAT(ulysses.megatron(), AllOf(Contains("--cp-comm-type a2a"), Contains("--data-parallel-sharding-strategy optim_grads"),
                                        Not(Contains("--use-distributed-optimizer"))));
  const Case offloaded({.strategy = {.dp = 2, .zero = 1, .offload_optimizer = true}});
  EXPECT_THAT(offloaded.megatron(), AllOf(Contains("--optimizer-cpu-offload"), Contains("--use-precision-aware-optimizer")));
}

TEST(MegatronFlags, SayNothingOfZeroWithoutRanksToShardOver) {
  EXPECT_THAT(Case({.strategy = {.tp = 2, .zero = 1}}).megatron(), Not(Contains("--use-distributed-optimizer")));
}

TEST(MegatronFlags, SayUnequalAndInterleavedStages) {
  EXPECT_THAT(Case({.layers = {3, 2, 2, 1}}).megatron(), Contains("--pipeline-model-parallel-layout Ettt|tt|tt|tL"));
  const Shape interleaved{.layers = {2, 2, 2, 2}, .pipeline_size = 2, .schedule = plan::Schedule::interleaved};
  EXPECT_THAT(Case(interleaved).megatron(),
              AllOf(Contains("--pipeline-model-parallel-size 2"), Contains("--num-virtual-stages-per-pipeline-rank 2")));
}

TEST(MegatronFlags, SayExpertsAndLatentAttention) {
  const Case made({.strategy = {.dp = 4, .zero = 1, .ep = 4}, .model = kDeepseek});
  EXPECT_THAT(made.megatron(),
              AllOf(Contains("--expert-model-parallel-size 4"), Contains("--num-experts 8"), Contains("--moe-router-topk 2"),
                    Contains("--moe-ffn-hidden-size 32"), Contains("--moe-layer-freq ([0]*2+[1]*6)"),
                    Contains("--moe-shared-expert-intermediate-size 32"), Contains("--ffn-hidden-size 160")));
  EXPECT_THAT(made.megatron(), AllOf(Contains("--multi-latent-attention"), Contains("--q-lora-rank 24"), Contains("--kv-lora-rank 16"),
                                     Contains("--qk-head-dim 16"), Contains("--qk-pos-emb-head-dim 8"), Contains("--v-head-dim 16"),
                                     Contains("--rope-type rope"), Contains("--no-rope-fusion")));
}

TEST(MegatronFlags, SayGptsPositionsBiasesAndDropout) {
  const Case gpt({.model = "{arch: gpt, hidden: 64, layers: 8, heads: 4, seq: 64, max_positions: 128, vocab: 256}"});
  EXPECT_THAT(gpt.megatron(),
              AllOf(Contains("--max-position-embeddings 128"), Contains("--ffn-hidden-size 256"), Contains("--hidden-dropout 0.1"),
                    Not(Contains("--swiglu")), Not(Contains("--disable-bias-linear")),
                    Not(Contains("--untie-embeddings-and-output-weights")), Not(Contains(StartsWith("--position-embedding-type")))));
  EXPECT_THAT(Case({.model = "{arch: gpt, hidden: 64, layers: 8, heads: 4, seq: 64, vocab: 256, positions: rotary}"}).megatron(),
              Contains("--position-embedding-type rope"));
  EXPECT_THAT(
      Case({.model = "{arch: gpt, hidden: 64, layers: 8, heads: 4, seq: 64, vocab: 256, positions: alibi}"}).megatron_error().what(),
      HasSubstr("alibi"));
  EXPECT_THAT(Case({.model = "{arch: pangu, hidden: 64, layers: 8, heads: 4, ffn: 160, seq: 64, vocab: 256}"}).megatron_error().what(),
              HasSubstr("arch pangu"));
}

TEST(MegatronFlags, CountTheWindowWithoutThePositionItself) {
  EXPECT_THAT(Case({.model = "{arch: llama, hidden: 64, layers: 8, heads: 4, ffn: 160, seq: 64, vocab: 256, window: 16}"}).megatron(),
              Contains("--window-size 15,0"));
}

TEST(MegatronFlags, ScaleRotaryPositionsByTheNumbersOfLlama31Alone) {
  const auto scaled = [](const std::string& numbers) {
    const std::string model =
        "{arch: llama, hidden: 64, layers: 8, heads: 4, ffn: 160, seq: 64, vocab: 256, rope_scaling: {rope_type: llama3, " + numbers + "}}";
    return Case({.model = model.c_str()});
  };
  EXPECT_THAT(scaled("factor: 32, original_max_position_embeddings: 8192").megatron(),
              AllOf(Contains("--use-rope-scaling"), Contains("--rope-scaling-factor 32")));
  EXPECT_THAT(scaled("factor: 8, original_max_position_embeddings: 4096").megatron_error().what(),
              HasSubstr("original_max_position_embeddings 8192"));
}

TEST(MegatronFlags, SayWhichLayersAreRecomputed) {
  EXPECT_THAT(
      Case({.strategy = {.recompute = Recompute::full}}).megatron(),
      AllOf(Contains("--recompute-granularity full"), Contains("--recompute-method uniform"), Contains("--recompute-num-layers 1")));
  EXPECT_THAT(Case({.strategy = {.recompute = Recompute::selective}}).megatron(),
              AllOf(Contains("--recompute-granularity selective"), Contains("--recompute-modules core_attn")));
  Case first({.layers = {4, 4}});
  first.recompute_first(0, 3, Recompute::full);  // embedding and two layers
  first.recompute_first(1, 7, Recompute::full);
  EXPECT_THAT(first.megatron(), AllOf(Contains("--recompute-method block"), Contains("--recompute-num-layers 2")));
}

TEST(MegatronFlags, AreRefusedWhereBlocksDiffer) {
  Case unequal({.layers = {4, 4}});
  unequal.recompute_first(0, 3, Recompute::full);
  EXPECT_THAT(unequal.megatron_error().what(), HasSubstr("as many in all stages"));
  Case mixed({.strategy = {.dp = 4}});
  mixed.recompute_first(0, 4, Recompute::none);
  mixed.plan.stages[0].runs[1].strategy.dp = 2;
  mixed.plan.stages[0].runs[1].strategy.tp = 2;
  const Error error = mixed.megatron_error();
  EXPECT_EQ(error.code(), ErrorCode::invalid_config);
  EXPECT_EQ(error.where().line, 7);
  EXPECT_THAT(
      error.what(),
      HasSubstr("Megatron-LM cannot run this plan: blocks [4, 10) have dp 2 x tp 2, zero 0, blocks [0, 4) have dp 4 x tp 1, zero 0"));
  EXPECT_THAT(mixed.torchtitan_error().what(), HasSubstr("torchtitan cannot run this plan: blocks [4, 10)"));
}

TEST(MegatronFlags, AreRefusedForSchedulesItDoesNotHave) {
  for (const plan::Schedule schedule : {plan::Schedule::gpipe, plan::Schedule::zb_h1, plan::Schedule::zb_h2})
    EXPECT_THAT(Case({.layers = {4, 4}, .schedule = schedule}).megatron_error().what(),
                HasSubstr(text("its schedule is ", name_of(schedule))))
        << name_of(schedule);
  EXPECT_THAT(Case({.layers = {2, 2, 2, 2}, .pipeline_size = 2, .schedule = plan::Schedule::dualpipe_v}).megatron_error().what(),
              HasSubstr("dualpipe-v"));
  EXPECT_NO_THROW(Case({.schedule = plan::Schedule::gpipe}).megatron());  // one stage
  const Shape odd{.layers = {2, 1, 1, 1, 1, 2}, .pipeline_size = 3, .schedule = plan::Schedule::interleaved};
  EXPECT_THAT(Case(odd).megatron_error().what(), HasSubstr("4 micro-batches in groups of 3"));
  Case own({.layers = {4, 4}});
  own.plan.order = {{}, {}};
  EXPECT_THAT(own.megatron_error().what(), HasSubstr("an order of its own"));
  Case delayed({.layers = {4, 4}});
  delayed.plan.delayed_exchange = true;
  EXPECT_THAT(delayed.megatron_error().what(), HasSubstr("exchanges gradients while the next step begins"));
  EXPECT_THAT(delayed.torchtitan_error().expected(), HasSubstr("delayed_exchange: false"));
}

TEST(MegatronFlags, AreRefusedForRanksThatNoLauncherNumbersSo) {
  Case swapped({.layers = {4, 4}});
  std::swap(swapped.plan.ranks[0], swapped.plan.ranks[1]);
  EXPECT_THAT(swapped.megatron_error().what(), HasSubstr("rank 1 stands before rank 0"));
  Case crossed({.strategy = {.dp = 2}, .layers = {4, 4}});
  std::swap(crossed.plan.stages[0].ranks, crossed.plan.stages[1].ranks);
  EXPECT_THAT(crossed.megatron_error().what(), HasSubstr("stage 0 has rank 2 where rank 0 would be"));
}

TEST(MegatronFlags, AreRefusedWhereMegatronRefusesThem) {
  EXPECT_THAT(Case({.strategy = {.dp = 2, .tp = 2, .zero = 1, .ep = 2}, .model = kDeepseek}).megatron_error().what(),
              HasSubstr("no sequence parallelism"));
  EXPECT_THAT(Case({.strategy = {.dp = 2, .offload_optimizer = true}}).megatron_error().what(), HasSubstr("expected zero 1"));
  EXPECT_THAT(Case({.strategy = {.cp = 3}}).megatron_error().what(), HasSubstr("a multiple of 2 x cp = 6"));
}

constexpr const char* kOdd = "{arch: llama, hidden: 48, layers: 8, heads: 6, ffn: 97, seq: 96, vocab: 258}";
constexpr const char* kOddVocabulary = "{arch: llama, hidden: 48, layers: 8, heads: 6, ffn: 96, seq: 96, vocab: 259}";

TEST(MegatronFlags, LeaveTheVocabularyToMegatronsOwnPaddingAndRefuseAPaddedWidth) {
  EXPECT_THAT(Case({.strategy = {.tp = 3}, .model = kOddVocabulary}).megatron(), Contains("--tensor-model-parallel-size 3"));
  const Error error = Case({.strategy = {.tp = 3}, .model = kOdd}).megatron_error();
  EXPECT_THAT(error.what(), HasSubstr("tp 3 does not divide ffn 97"));
  EXPECT_THAT(error.expected(), HasSubstr("a width of 99"));
}

TEST(TorchtitanToml, IsRefusedWhereSomethingIsPadded) {
  const plan::Strategy strategy{.dp = 2, .tp = 3, .zero = 2, .sequence_parallel = true};
  EXPECT_THAT(Case({.strategy = strategy, .model = kOdd}).torchtitan_error().what(), HasSubstr("tp 3 does not divide ffn 97"));
  const Error error = Case({.strategy = strategy, .model = kOddVocabulary}).torchtitan_error();
  EXPECT_THAT(error.what(), HasSubstr("tp 3 does not divide vocab 259"));
  EXPECT_THAT(error.expected(), HasSubstr("vocab 261"));
}

TEST(TorchtitanToml, SaysBatchDegreesAndStages) {
  EXPECT_EQ(Case({.strategy = {.dp = 2, .tp = 2, .zero = 1, .recompute = Recompute::full, .sequence_parallel = true}, .layers = {3, 5}})
                .torchtitan(),
            R"(# For torchtitan 0.2 on 8 processes. [model] must name a flavor of 8 layers, hidden size 64, 4 heads and a vocabulary of 256.

[training]
local_batch_size = 16
global_batch_size = 32
seq_len = 64
steps = 300
mixed_precision_param = "bfloat16"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = 2
fsdp_reshard_after_forward = "never"
tensor_parallel_degree = 2
context_parallel_degree = 1
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "1F1B"
pipeline_parallel_microbatch_size = 4
module_fqns_per_model_part = [
  ["tok_embeddings", "layers.0", "layers.1", "layers.2"],
  ["layers.3", "layers.4", "layers.5", "layers.6", "layers.7", "norm", "output"],
]

[activation_checkpoint]
mode = "full"
)");
}

TEST(TorchtitanToml, SaysReplicasShardsSequenceAndExperts) {
  const std::string replicated = Case({.strategy = {.dp = 4}, .micro_batches = 1}).torchtitan();
  EXPECT_THAT(replicated, AllOf(HasSubstr("data_parallel_replicate_degree = 4\ndata_parallel_shard_degree = 1\n"),
                                HasSubstr("local_batch_size = 8\n"), Not(HasSubstr("fsdp"))));
  const std::string ring = Case({.strategy = {.dp = 2, .zero = 3, .cp = 2}}).torchtitan();
  EXPECT_THAT(ring, AllOf(HasSubstr("fsdp_reshard_after_forward = \"always\""),
                          HasSubstr("context_parallel_degree = 2\ncontext_parallel_rotate_method = \"alltoall\"")));
  const std::string experts = Case({.strategy = {.dp = 2, .tp = 2, .zero = 2, .ep = 2}, .model = kDeepseek}).torchtitan();
  EXPECT_THAT(experts, HasSubstr("expert_parallel_degree = 2\nexpert_tensor_parallel_degree = 2\n"));
}

TEST(TorchtitanToml, SaysWhatDiffersFromThePlan) {
  EXPECT_THAT(
      Case({.strategy = {.dp = 2, .tp = 2, .zero = 1}}).torchtitan(),
      AllOf(HasSubstr("# Tensor parallelism cuts"), HasSubstr("# FSDP shards gradients too"), HasSubstr("after each of 4 micro-batches")));
  EXPECT_THAT(Case({.strategy = {.dp = 2, .zero = 3}, .layers = {4, 4}}).torchtitan(),
              HasSubstr("# In a pipeline FSDP keeps whole gradients"));
}

TEST(TorchtitanToml, NamesTheSchedules) {
  const Shape v{.strategy = {.dp = 2, .zero = 1}, .layers = {2, 2, 2, 2}, .pipeline_size = 2, .schedule = plan::Schedule::zb_v};
  EXPECT_THAT(Case(v).torchtitan(),
              AllOf(HasSubstr("pipeline_parallel_schedule = \"ZBVZeroBubble\""), HasSubstr("pipeline_parallel_degree = 2\n")));
  Shape other = v;
  other.schedule = plan::Schedule::dualpipe_v;
  EXPECT_THAT(Case(other).torchtitan(), HasSubstr("\"DualPipeV\""));
  other.schedule = plan::Schedule::interleaved;
  EXPECT_THAT(Case(other).torchtitan(), HasSubstr("\"Interleaved1F1B\""));
  Case zb_h1({.strategy = {.dp = 2, .zero = 1}, .layers = {4, 4}, .schedule = plan::Schedule::zb_h1});
  EXPECT_THAT(zb_h1.torchtitan_error().what(), HasSubstr("its schedule is zb-h1"));
  Case few({.strategy = {.dp = 2, .zero = 1}, .layers = {4, 4}, .micro_batches = 1});
  EXPECT_THAT(few.torchtitan_error().what(), HasSubstr("at least 2 under 1f1b"));
}

TEST(TorchtitanToml, IsRefusedForWhatTorchtitanCannotDo) {
  EXPECT_THAT(Case({.strategy = {.dp = 2, .tp = 2}}).torchtitan_error().what(), HasSubstr("zero 0 with dp 2"));
  EXPECT_THAT(Case({.strategy = {.dp = 2, .zero = 3, .cp = 2, .context = model::ContextKind::ulysses}}).torchtitan_error().what(),
              HasSubstr("by ulysses"));
  EXPECT_THAT(Case({.strategy = {.dp = 2, .zero = 1, .offload_optimizer = true}}).torchtitan_error().what(), HasSubstr("on the host"));
  EXPECT_THAT(Case({.strategy = {.tp = 2}}).torchtitan_error().what(), HasSubstr("bf16 with fp32 master weights"));
  EXPECT_THAT(Case({.strategy = {.recompute = Recompute::selective}}).torchtitan_error().what(), HasSubstr("recompute selective"));
  EXPECT_THAT(Case({.model = "{preset: gpt2}"}).torchtitan_error().what(), HasSubstr("arch gpt"));
  const Shape tied{.strategy = {.dp = 2, .zero = 1},
                   .layers = {4, 4},
                   .model = "{arch: llama, hidden: 64, layers: 8, heads: 4, ffn: 160, seq: 64, vocab: 256, tied: true}"};
  EXPECT_THAT(Case(tied).torchtitan_error().what(), HasSubstr("share their weights"));
}

}  // namespace
}  // namespace tessera::interop
