// Published models by name. Each line is the `model:` section that describes it; the source stands beside it.
#include <algorithm>
#include <array>
#include <utility>

#include "model/families.hpp"

namespace tessera::model {
namespace {

struct Preset {
  const char* name;
  const char* yaml;
};

// Of Llama 3.1 to 3.3.
#define TESSERA_LLAMA3(factor) \
  "rope_scaling: {rope_type: llama3, factor: " factor ", low_freq_factor: 1, high_freq_factor: 4, original_max_position_embeddings: 8192}"

constexpr Preset kPresets[] = {
    // Touvron et al. 2023 (arXiv 2307.09288); Llama Team 2024 (arXiv 2407.21783); the published config.json files.
    {"llama-2-7b", "{arch: llama, hidden: 4096, layers: 32, heads: 32, ffn: 11008, seq: 4096, vocab: 32000}"},
    {"llama-2-13b", "{arch: llama, hidden: 5120, layers: 40, heads: 40, ffn: 13824, seq: 4096, vocab: 32000}"},
    {"llama-2-70b", "{arch: llama, hidden: 8192, layers: 80, heads: 64, kv_heads: 8, ffn: 28672, seq: 4096, vocab: 32000}"},
    {"llama-3-8b",
     "{arch: llama, hidden: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, seq: 8192, vocab: 128256, rope_theta: 500000}"},
    {"llama-3-70b",
     "{arch: llama, hidden: 8192, layers: 80, heads: 64, kv_heads: 8, ffn: 28672, seq: 8192, vocab: 128256, rope_theta: 500000}"},
    {"llama-3-405b",
     "{arch: llama, hidden: 16384, layers: 126, heads: 128, kv_heads: 8, ffn: 53248, seq: 8192, vocab: 128256, rope_theta: 500000}"},
    {"llama-3.1-8b",
     "{arch: llama, hidden: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, seq: 8192, vocab: 128256, rope_theta: "
     "500000, " TESSERA_LLAMA3("8") "}"},
    {"llama-3.1-70b",
     "{arch: llama, hidden: 8192, layers: 80, heads: 64, kv_heads: 8, ffn: 28672, seq: 8192, vocab: 128256, rope_theta: "
     "500000, " TESSERA_LLAMA3("8") "}"},
    {"llama-3.1-405b",
     "{arch: llama, hidden: 16384, layers: 126, heads: 128, kv_heads: 8, ffn: 53248, seq: 8192, vocab: 128256, rope_theta: "
     "500000, " TESSERA_LLAMA3("8") "}"},
    {"llama-3.2-1b",
     "{arch: llama, hidden: 2048, layers: 16, heads: 32, kv_heads: 8, ffn: 8192, seq: 8192, vocab: 128256, rope_theta: 500000, tied: "
     "true, " TESSERA_LLAMA3("32") "}"},
    {"llama-3.2-3b",
     "{arch: llama, hidden: 3072, layers: 28, heads: 24, kv_heads: 8, head_dim: 128, ffn: 8192, seq: 8192, vocab: 128256, rope_theta: "
     "500000, tied: "
     "true, " TESSERA_LLAMA3("32") "}"},
    {"llama-3.3-70b",
     "{arch: llama, hidden: 8192, layers: 80, heads: 64, kv_heads: 8, ffn: 28672, seq: 8192, vocab: 128256, rope_theta: "
     "500000, " TESSERA_LLAMA3("8") "}"},
    // Jiang et al. 2023 (arXiv 2310.06825).
    {"mistral-7b", "{arch: llama, hidden: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, seq: 8192, vocab: 32000, window: 4096}"},
    // Qwen Team 2024 (arXiv 2407.10671, 2412.15115) and 2025 (arXiv 2505.09388).
    {"qwen2-7b",
     "{arch: llama, hidden: 3584, layers: 28, heads: 28, kv_heads: 4, ffn: 18944, seq: 8192, vocab: 152064, rope_theta: 1000000, norm_eps: "
     "1e-6, qkv_bias: true}"},
    {"qwen2.5-0.5b",
     "{arch: llama, hidden: 896, layers: 24, heads: 14, kv_heads: 2, ffn: 4864, seq: 8192, vocab: 151936, rope_theta: 1000000, norm_eps: "
     "1e-6, qkv_bias: true, tied: true}"},
    {"qwen2.5-72b",
     "{arch: llama, hidden: 8192, layers: 80, heads: 64, kv_heads: 8, ffn: 29568, seq: 8192, vocab: 152064, rope_theta: 1000000, norm_eps: "
     "1e-6, qkv_bias: true}"},
    {"qwen3-0.6b",
     "{arch: llama, hidden: 1024, layers: 28, heads: 16, kv_heads: 8, head_dim: 128, ffn: 3072, seq: 8192, vocab: 151936, rope_theta: "
     "1000000, norm_eps: 1e-6, qk_norm: true, tied: true}"},
    {"qwen3-8b",
     "{arch: llama, hidden: 4096, layers: 36, heads: 32, kv_heads: 8, head_dim: 128, ffn: 12288, seq: 8192, vocab: 151936, rope_theta: "
     "1000000, norm_eps: 1e-6, qk_norm: true}"},
    {"qwen3-32b",
     "{arch: llama, hidden: 5120, layers: 64, heads: 64, kv_heads: 8, head_dim: 128, ffn: 25600, seq: 8192, vocab: 151936, rope_theta: "
     "1000000, norm_eps: 1e-6, qk_norm: true}"},
    {"qwen3-30b-a3b",
     "{arch: qwen_moe, hidden: 2048, layers: 48, heads: 32, kv_heads: 4, head_dim: 128, expert_ffn: 768, experts: 128, experts_per_token: "
     "8, seq: 8192, vocab: 151936, "
     "rope_theta: 1000000, norm_eps: 1e-6, qk_norm: true}"},
    {"qwen3-235b-a22b",
     "{arch: qwen_moe, hidden: 4096, layers: 94, heads: 64, kv_heads: 4, head_dim: 128, expert_ffn: 1536, experts: 128, experts_per_token: "
     "8, seq: 8192, vocab: 151936, "
     "rope_theta: 1000000, norm_eps: 1e-6, qk_norm: true}"},
    {"qwen2-57b-a14b",
     "{arch: qwen_moe, hidden: 3584, layers: 28, heads: 28, kv_heads: 4, expert_ffn: 2560, shared_ffn: 20480, experts: 64, "
     "experts_per_token: 8, seq: 8192, vocab: 151936, "
     "rope_theta: 1000000, norm_eps: 1e-6, qkv_bias: true}"},
    // Jiang et al. 2024 (arXiv 2401.04088).
    {"mixtral-8x7b",
     "{arch: mixtral, hidden: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, experts: 8, experts_per_token: 2, seq: 8192, vocab: "
     "32000, rope_theta: 1000000}"},
    {"mixtral-8x22b",
     "{arch: mixtral, hidden: 6144, layers: 56, heads: 48, kv_heads: 8, ffn: 16384, experts: 8, experts_per_token: 2, seq: 8192, vocab: "
     "32768, rope_theta: 1000000}"},
    // DeepSeek-AI 2024 (arXiv 2405.04434, 2412.19437), without the layers that predict further tokens.
    {"deepseek-v2-lite",
     "{arch: deepseek, hidden: 2048, layers: 27, heads: 16, kv_lora: 512, nope_dim: 128, rope_dim: 64, v_dim: 128, ffn: 10944, "
     "dense_layers: 1, expert_ffn: 1408, "
     "shared_ffn: 2816, experts: 64, experts_per_token: 6, norm_topk: false, seq: 4096, vocab: 102400, norm_eps: 1e-6}"},
    {"deepseek-v2",
     "{arch: deepseek, hidden: 5120, layers: 60, heads: 128, q_lora: 1536, kv_lora: 512, nope_dim: 128, rope_dim: 64, v_dim: 128, ffn: "
     "12288, dense_layers: 1, expert_ffn: 1536, "
     "shared_ffn: 3072, experts: 160, experts_per_token: 6, norm_topk: false, routed_scale: 16, expert_groups: 8, top_groups: 3, seq: "
     "4096, vocab: 102400, norm_eps: 1e-6}"},
    {"deepseek-v3",
     "{arch: deepseek, hidden: 7168, layers: 61, heads: 128, q_lora: 1536, kv_lora: 512, nope_dim: 128, rope_dim: 64, v_dim: 128, ffn: "
     "18432, dense_layers: 3, expert_ffn: 2048, "
     "shared_ffn: 2048, experts: 256, experts_per_token: 8, scoring: sigmoid, score_bias: true, routed_scale: 2.5, expert_groups: 8, "
     "top_groups: 4, seq: 4096, vocab: 129280, norm_eps: 1e-6}"},
    // Yin et al. 2025 (arXiv 2504.07866).
    {"pangu-ultra", "{arch: pangu, hidden: 12288, layers: 94, heads: 96, kv_heads: 8, ffn: 28672, seq: 8192, vocab: 153376}"},
    // Radford et al. 2019; Brown et al. 2020, table 2.1 (arXiv 2005.14165); Scao et al. 2022 (arXiv 2211.05100).
    {"gpt2", "{arch: gpt, hidden: 768, layers: 12, heads: 12, seq: 1024, vocab: 50257}"},
    {"gpt2-medium", "{arch: gpt, hidden: 1024, layers: 24, heads: 16, seq: 1024, vocab: 50257}"},
    {"gpt2-large", "{arch: gpt, hidden: 1280, layers: 36, heads: 20, seq: 1024, vocab: 50257}"},
    {"gpt2-xl", "{arch: gpt, hidden: 1600, layers: 48, heads: 25, seq: 1024, vocab: 50257}"},
    {"gpt3-6.7b", "{arch: gpt, hidden: 4096, layers: 32, heads: 32, seq: 2048, vocab: 50257}"},
    {"gpt3-13b", "{arch: gpt, hidden: 5120, layers: 40, heads: 40, seq: 2048, vocab: 50257}"},
    {"gpt3-175b", "{arch: gpt, hidden: 12288, layers: 96, heads: 96, seq: 2048, vocab: 50257}"},
    {"bloom-176b", "{arch: gpt, hidden: 14336, layers: 70, heads: 112, seq: 2048, vocab: 250880, positions: alibi, embedding_norm: true}"},
    // Narayanan et al. 2021 (arXiv 2104.04473) and Korthikanti et al. 2022 (arXiv 2205.05198): attention was not fused yet.
    {"megatron-22b", "{arch: gpt, hidden: 6144, layers: 48, heads: 64, seq: 2048, vocab: 51200, attention: unfused}"},
    {"megatron-175b", "{arch: gpt, hidden: 12288, layers: 96, heads: 96, seq: 2048, vocab: 51200, attention: unfused}"},
    {"megatron-530b", "{arch: gpt, hidden: 20480, layers: 105, heads: 128, seq: 2048, vocab: 51200, attention: unfused}"},
    {"megatron-1t", "{arch: gpt, hidden: 25600, layers: 128, heads: 160, seq: 2048, vocab: 51200, attention: unfused}"},
    // Devlin et al. 2019 (arXiv 1810.04805).
    {"bert-base", "{arch: bert, hidden: 768, layers: 12, heads: 12, seq: 512, vocab: 30522}"},
    {"bert-large", "{arch: bert, hidden: 1024, layers: 24, heads: 16, seq: 512, vocab: 30522}"},
    // Raffel et al. 2020 (arXiv 1910.10683).
    {"t5-base", "{arch: t5, hidden: 768, layers: 12, heads: 12, head_dim: 64, ffn: 3072, seq: 512, vocab: 32128}"},
    {"t5-large", "{arch: t5, hidden: 1024, layers: 24, heads: 16, head_dim: 64, ffn: 4096, seq: 512, vocab: 32128}"},
    {"t5-3b", "{arch: t5, hidden: 1024, layers: 24, heads: 32, head_dim: 128, ffn: 16384, seq: 512, vocab: 32128}"},
    {"t5-11b", "{arch: t5, hidden: 1024, layers: 24, heads: 128, head_dim: 128, ffn: 65536, seq: 512, vocab: 32128}"},
    // Dosovitskiy et al. 2021 (arXiv 2010.11929).
    {"vit-b-16", "{arch: vit, hidden: 768, layers: 12, heads: 12}"},
    {"vit-l-16", "{arch: vit, hidden: 1024, layers: 24, heads: 16}"},
    {"vit-h-14", "{arch: vit, hidden: 1280, layers: 32, heads: 16, patch: 14}"},
    // He et al. 2016 (arXiv 1512.03385); Simonyan and Zisserman 2015 (arXiv 1409.1556).
    {"resnet18", "{arch: resnet18}"},
    {"resnet34", "{arch: resnet34}"},
    {"resnet50", "{arch: resnet50}"},
    {"resnet101", "{arch: resnet101}"},
    {"resnet152", "{arch: resnet152}"},
    {"vgg11", "{arch: vgg11}"},
    {"vgg13", "{arch: vgg13}"},
    {"vgg16", "{arch: vgg16}"},
    {"vgg19", "{arch: vgg19}"},
    // Naumov et al. 2019 (arXiv 1906.00091) on the categories of Criteo's one-day sample that the MLPerf benchmark caps at 40 million rows.
    {"dlrm-mlperf",
     "{arch: dlrm, dense: 13, dim: 128, bottom: [512, 256, 128], top: [1024, 1024, 512, 256, 1], "
     "tables: [40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209, 11938, 155, 4, 976, 14, "
     "40000000, 40000000, 40000000, 590152, 12973, 108, 36]}"},
    // Guo et al. 2017 (arXiv 1703.04247, section 3.1.4) on the categories of Criteo's display advertising data.
    {"deepfm-criteo",
     "{arch: deepfm, dense: 13, dim: 10, hidden: [400, 400, 400], "
     "tables: [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652, 2173, 4, "
     "7046547, 18, 15, 286181, 105, 142572]}"},
    // Wide & Deep (Cheng et al. 2016) with the deep part that DeepFM was compared with (Guo et al. 2017, section 3.1.4).
    {"wide-deep-criteo",
     "{arch: wide_deep, dense: 13, dim: 10, hidden: [400, 400, 400], "
     "tables: [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652, 2173, 4, "
     "7046547, 18, 15, 286181, 105, 142572]}"},
};
#undef TESSERA_LLAMA3

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string preset_yaml(const ConfigNode& name) {
  const std::string wanted = name.as_string();
  for (const Preset& preset : kPresets)
    if (wanted == preset.name) return preset.yaml;
  const std::vector<std::string> names = preset_names();
  std::string list;
  for (const std::string& known : names) list += (list.empty() ? "" : ", ") + known;
  const auto guess = nearest(wanted, names);
  throw name.error("there is no preset '" + wanted + "'", "one of: " + list, guess ? "did you mean '" + *guess + "'?" : "");
}

}  // namespace tessera::model
