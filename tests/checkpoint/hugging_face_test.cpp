#include "checkpoint/hugging_face.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/config.hpp"
#include "base/error.hpp"
#include "checkpoint/checkpoint_helper.hpp"
#include "checkpoint/cut.hpp"
#include "checkpoint/hf_config.hpp"
#include "model/job.hpp"

namespace tessera::checkpoint {
namespace {

constexpr const char* kTokenizer =
    R"({"version":"1.0","added_tokens":[{"id":0,"content":"<|endoftext|>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}],)"
    R"("normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,)"
    R"("decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},)"
    R"("model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,)"
    R"("vocab":{"<|endoftext|>":0,"a":1,"b":2,"ab":3},"merges":["a b"]}})";

model::ModelSpec small_model(bool tied) {
  return model::read_model(
      ConfigNode::parse(text("{arch: llama, hidden: 32, layers: 3, heads: 4, kv_heads: 2, head_dim: 16, ffn: 48, seq: 64, vocab: 40, ",
                             "rope_theta: 500000, norm_eps: 1.0e-6, tied: ", tied ? "true" : "false", "}"),
                        "test.yaml"));
}

Tensors random_weights(const model::ModelSpec& model) {
  Tensors out;
  Random random(11);
  for (const auto& block : model.blocks())
    for (const auto& parameter : block.spec->parameters) {
      if (!parameter.tied_to.empty()) continue;
      at::Tensor tensor = at::empty(parameter.shape, at::TensorOptions().dtype(at::kFloat));
      for (std::int64_t i = 0; i < tensor.numel(); ++i) tensor.data_ptr<float>()[i] = static_cast<float>(random.uniform() - 0.5);
      out[block.parameter_name(parameter)] = tensor;
    }
  return out;
}

// A checkpoint of two ranks, tensor-parallel, with optimizer state, in runs/NAME/checkpoints.
std::filesystem::path save_model(const std::filesystem::path& run, const model::ModelSpec& model, const Tensors& weights) {
  Tensors all = weights;
  for (const auto& [name, tensor] : weights) all[name + ".exp_avg"] = tensor;
  State state;
  state.model_fingerprint = model.fingerprint();
  Random random(1);
  save(real_file_system(), run / "checkpoints", 20, cut(all, {1, 2, false}, random), state);
  return step_folder(run / "checkpoints", 20);
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::string digits_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  std::string out;
  for (std::size_t i = 0; i < flat.nbytes(); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<const unsigned char*>(flat.const_data_ptr())[i]);
    out += digits;
  }
  return out;
}

// One line a tensor, as `list` in kLoad prints them.
std::string listing(const Tensors& tensors) {
  std::string out;
  for (const auto& [name, tensor] : tensors) out += name + " " + digits_of(tensor) + "\n";
  return out;
}

constexpr const char* kLoad = R"(
import logging, sys, torch, transformers
from transformers import LlamaForCausalLM
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
model, info = LlamaForCausalLM.from_pretrained(DIR, output_loading_info=True, dtype=torch.float32)
assert not info['missing_keys'] and not info['unexpected_keys'] and not info['mismatched_keys'], info
assert type(model) is LlamaForCausalLM
c = model.config
assert (c.hidden_size, c.num_hidden_layers, c.num_attention_heads, c.num_key_value_heads, c.head_dim) == (32, 3, 4, 2, 16), c
assert (c.intermediate_size, c.max_position_embeddings, c.vocab_size, c.rms_norm_eps) == (48, 64, 40, 1e-6), c
assert c.rope_parameters['rope_theta'] == 500000, c
assert c.tie_word_embeddings == TIED and (model.lm_head.weight is model.model.embed_tokens.weight) == TIED
for name, t in sorted(model.state_dict().items()):
  if TIED and name == 'lm_head.weight': continue
  print(name, t.contiguous().view(torch.uint8).numpy().tobytes().hex())
)";

std::string load_script(const std::filesystem::path& dir, bool tied) {
  return text("DIR = '", dir.string(), "'\nTIED = ", tied ? "True" : "False", "\n", kLoad);
}

class HuggingFace : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!has_python()) GTEST_SKIP() << "SKIPPED: no .venv/bin/python";
  }
  const TemporaryFolder folder_;
};

TEST_P(HuggingFace, TransformersLoadsAnExport) {
  const auto model = small_model(GetParam());
  const Tensors weights = random_weights(model);
  const auto checkpoint = save_model(folder_.path() / "run", model, weights);
  write_whole(real_file_system(), folder_.path() / "run/tokenizer.json", kTokenizer);
  const auto out = folder_.path() / "hf";
  export_hf(checkpoint, model, folder_.path() / "run/tokenizer.json", out);

  const std::string tokenizer =
      "t = transformers.AutoTokenizer.from_pretrained(DIR)\nprint(t.encode('abab'), t.decode([3, 1]), t.eos_token, t.eos_token_id)\n";
  EXPECT_EQ(python(load_script(out, GetParam()) + tokenizer), listing(weights) + "[3, 3] aba <|endoftext|> 0\n");
}

TEST_P(HuggingFace, TransformersLoadsAnExportInSeveralFiles) {
  const auto model = small_model(GetParam());
  const Tensors weights = random_weights(model);
  const auto out = folder_.path() / "hf";
  export_hf(save_model(folder_.path() / "run", model, weights), model, std::nullopt, out, 20000);
  EXPECT_TRUE(std::filesystem::exists(out / "model.safetensors.index.json"));
  EXPECT_FALSE(std::filesystem::exists(out / "model.safetensors"));
  EXPECT_EQ(python(load_script(out, GetParam())), listing(weights));
  // And back again.
  import_hf(out, folder_.path() / "back");
  EXPECT_EQ(difference(Reader(folder_.path() / "back/checkpoints/step-000000"), weights), "");
}

TEST_P(HuggingFace, ImportsWhatTransformersSaves) {
  const std::vector<std::string> types = {"float32", "bfloat16", "float16"};
  const std::string listed = python(text("DIR = '", folder_.path().string(), "/'\nTIED = ", GetParam() ? "True" : "False", R"(
import torch, transformers
from transformers import LlamaConfig, LlamaForCausalLM
transformers.utils.logging.disable_progress_bar()
config = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, vocab_size=40,
                     max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=TIED, head_dim=16, rope_parameters={'rope_type': 'default', 'rope_theta': 500000.0})
for dtype in (torch.float32, torch.bfloat16, torch.float16):
  torch.manual_seed(1)
  model = LlamaForCausalLM(config).to(dtype)
  model.save_pretrained(DIR + str(dtype)[6:], max_shard_size='20KB')
  for name, t in sorted(model.state_dict().items()):
    if TIED and name == 'lm_head.weight': continue
    print(name, t.float().contiguous().view(torch.uint8).numpy().tobytes().hex())
)"));
  std::string imported;
  for (const std::string& type : types) {
    const auto hf = folder_.path() / type;
    write_whole(real_file_system(), hf / "tokenizer.json", kTokenizer);
    const auto run = folder_.path() / ("run-" + type);
    import_hf(hf, run);

    const model::JobSpec job = model::read_job(run / "train.yaml");
    EXPECT_EQ(job.model.fingerprint(), small_model(GetParam()).fingerprint());
    EXPECT_EQ(job.data.tokenizer.kind, "hf");
    EXPECT_EQ(job.data.tokenizer.file, run / "tokenizer.json");
    EXPECT_EQ(job.name, run.filename());
    const auto path = latest(run / "checkpoints");
    ASSERT_TRUE(path.has_value());
    const Reader reader(*path);
    EXPECT_EQ(reader.state().model_fingerprint, job.model.fingerprint());
    EXPECT_EQ(reader.state().step, 0);
    Tensors read;
    for (const TensorInfo& tensor : reader.tensors()) read[tensor.name] = reader.read(tensor.name);
    imported += listing(read);
  }
  EXPECT_EQ(imported, listed);
}

INSTANTIATE_TEST_SUITE_P(Embeddings, HuggingFace, testing::Bool(), [](const auto& info) { return info.param ? "Tied" : "Untied"; });

TEST(HuggingFaceExport, OverwritesNothingButItsOwn) {
  const TemporaryFolder folder;
  const auto model = small_model(false);
  const auto checkpoint = save_model(folder.path() / "run", model, random_weights(model));
  const auto out = folder.path() / "hf";
  std::filesystem::create_directories(out);
  export_hf(checkpoint, model, std::nullopt, out);
  export_hf(checkpoint, model, std::nullopt, out / "");
  write_whole(real_file_system(), out / "notes.txt", std::string("mine"));
  EXPECT_THAT(error_of([&] { export_hf(checkpoint, model, std::nullopt, out); }), testing::HasSubstr("it holds notes.txt"));
  std::filesystem::remove(out / "notes.txt");
  write_whole(real_file_system(), out / "config.json", std::string("{\"model_type\": \"llama\"}"));
  EXPECT_THAT(error_of([&] { export_hf(checkpoint, model, std::nullopt, out); }), testing::HasSubstr("not exported from here"));
  EXPECT_TRUE(std::filesystem::exists(out / "model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "hf.tmp"));
}

TEST(HuggingFaceExport, ADamagedCheckpointLeavesNoFolder) {
  const TemporaryFolder folder;
  const auto model = small_model(false);
  const auto checkpoint = save_model(folder.path() / "run", model, random_weights(model));
  const auto shard = checkpoint / "rank-00000.safetensors";
  std::string content = read_whole(shard);
  content[content.size() / 2] = static_cast<char>(content[content.size() / 2] ^ 4);
  write_whole(real_file_system(), shard, content);
  EXPECT_THAT(error_of([&] { export_hf(checkpoint, model, std::nullopt, folder.path() / "hf"); }),
              testing::HasSubstr("rank-00000.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "hf"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "hf.tmp"));
}

// Changes of a good folder, and what the import says to each.
class HuggingFaceImport : public testing::Test {
 protected:
  HuggingFaceImport() {
    const auto model = small_model(false);
    export_hf(save_model(folder_.path() / "run", model, random_weights(model)), model, std::nullopt, dir_);
    config_ = read_whole(dir_ / "config.json");
  }
  std::string import_with(const std::string& from, const std::string& to) {
    std::string changed = config_;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    write_whole(real_file_system(), dir_ / "config.json", changed.replace(at, from.size(), to));
    const std::string message = error_of([&] { import_hf(dir_, folder_.path() / "imported"); });
    EXPECT_FALSE(std::filesystem::exists(folder_.path() / "imported.tmp"));
    EXPECT_EQ(std::filesystem::exists(folder_.path() / "imported"), message.empty());
    std::filesystem::remove_all(folder_.path() / "imported");
    return message;
  }

  const TemporaryFolder folder_;
  const std::filesystem::path dir_ = folder_.path() / "hf";
  std::string config_;
};

TEST_F(HuggingFaceImport, RefusesWhatItWouldComputeOtherwise) {
  using testing::AllOf, testing::HasSubstr;
  EXPECT_EQ(import_with("\"llama\"", "\"llama\""), "");
  EXPECT_EQ(import_with("\"llama\"", "\"mistral\""), "");
  EXPECT_EQ(import_with("\"use_cache\": true", "\"rope_scaling\": null"), "");
  EXPECT_THAT(import_with("\"llama\"", "\"gpt_neox\""),
              AllOf(HasSubstr("models of type 'gpt_neox'"), HasSubstr("llama, mistral, qwen2, qwen3")));
  EXPECT_THAT(import_with("\"llama\"", "\"qwen2\""), HasSubstr("tensor 'model.layers.0.self_attn.q_proj.bias' is missing"));
  EXPECT_THAT(import_with("\"llama\"", "\"qwen3\""), HasSubstr("tensor 'model.layers.0.self_attn.q_norm.weight' is missing"));
  EXPECT_THAT(import_with("\"attention_bias\": false", "\"attention_bias\": true"), HasSubstr("attention_bias"));
  EXPECT_THAT(import_with("\"mlp_bias\": false", "\"mlp_bias\": true"), HasSubstr("mlp_bias"));
  EXPECT_THAT(import_with("\"silu\"", "\"gelu\""), HasSubstr("hidden_act is gelu"));
  EXPECT_THAT(import_with("\"rope_type\": \"default\"", "\"rope_type\": \"longrope\""), HasSubstr("scaled by 'longrope'"));
  EXPECT_THAT(import_with("\"rope_type\": \"default\"", "\"rope_type\": \"llama3\""), HasSubstr("'factor' is missing"));
  EXPECT_THAT(import_with("\"use_cache\": true", "\"quantization_config\": {}"), HasSubstr("quantized"));
  EXPECT_THAT(import_with("\"hidden_size\": 32", "\"hidden_size\": \"wide\""), HasSubstr("hidden_size"));
  EXPECT_THAT(import_with("\"hidden_size\"", "\"hidden_sise\""),
              AllOf(HasSubstr("no hidden_size"), HasSubstr("did you mean 'hidden_sise'?")));
  EXPECT_THAT(import_with("\"hidden_size\": 32", "\"hidden_size\": 64"), HasSubstr("has the shape"));
  EXPECT_THAT(import_with("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4"), HasSubstr("model.layers.3"));
  EXPECT_THAT(import_with("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2"), HasSubstr("it has a tensor 'model.layers.2"));
  EXPECT_THAT(import_with("{", ""), HasSubstr("config.json:"));
}

TEST_F(HuggingFaceImport, NamesWhatIsMissing) {
  EXPECT_THAT(error_of([&] { import_hf(folder_.path() / "nowhere", folder_.path() / "r"); }), testing::HasSubstr("no such folder"));
  std::filesystem::rename(dir_ / "model.safetensors", dir_ / "pytorch_model.bin");
  EXPECT_THAT(error_of([&] { import_hf(dir_, folder_.path() / "r"); }), testing::HasSubstr("pickle"));
  std::filesystem::remove(dir_ / "config.json");
  EXPECT_THAT(error_of([&] { import_hf(dir_, folder_.path() / "r"); }), testing::HasSubstr("no config.json"));
}

TEST_F(HuggingFaceImport, FollowsAnIndexToFilesOfItsFolderOnly) {
  using testing::HasSubstr;
  const auto import_from = [&](const std::string& file) {
    write_whole(real_file_system(), dir_ / "model.safetensors.index.json", "{\"weight_map\": {\"lm_head.weight\": \"" + file + "\"}}");
    return error_of([&] { import_hf(dir_, folder_.path() / "r"); });
  };
  for (const char* file : {"../run/checkpoints/step-000020/rank-00000.safetensors", "/etc/passwd", "..", ".", "", "a/b", ".hidden"})
    EXPECT_THAT(import_from(file), testing::AllOf(HasSubstr(text("tensor 'lm_head.weight' cannot lie in '", file, "'")),
                                                  HasSubstr("model.safetensors.index.json"), HasSubstr("in the folder of the index")));
  EXPECT_THAT(import_from("absent.safetensors"), HasSubstr("a file of the index is missing: absent.safetensors"));
  std::filesystem::create_directory(dir_ / "folder.safetensors");
  EXPECT_THAT(import_from("folder.safetensors"), HasSubstr("a file of the index is none: folder.safetensors"));
  EXPECT_EQ(import_from("model.safetensors"), "");
}

// huggingface_hub keeps a model's files elsewhere and its folder full of links.
TEST_F(HuggingFaceImport, ReadsAFolderOfLinks) {
  const auto links = folder_.path() / "links";
  std::filesystem::create_directory(links);
  for (const char* name : {"config.json", "model.safetensors"}) std::filesystem::create_symlink(dir_ / name, links / name);
  import_hf(links, folder_.path() / "r");
  EXPECT_TRUE(latest(folder_.path() / "r/checkpoints").has_value());
}

TEST_F(HuggingFaceImport, PassesOverSpecialTokensThatAreNone) {
  const auto tokens_of = [&](const std::string& tokenizer, const std::string& config) {
    folder_.write("t/tokenizer_config.json", config);
    return special_tokens(folder_.write("t/tokenizer.json", tokenizer));
  };
  EXPECT_EQ(tokens_of(R"({"added_tokens": [{"content": "</s>", "id": 2}]})", R"({"eos_token": {"content": "</s>"}})").eos, 2);
  EXPECT_EQ(tokens_of(R"({"added_tokens": [7, {"content": 1, "id": 1}, {"content": "</s>", "id": "2"}]})", R"({"eos_token": "</s>"})").eos,
            -1);
  EXPECT_EQ(tokens_of(R"({"added_tokens": [{"content": "</s>", "id": 2}]})", R"({"eos_token": {"content": [1]}})").eos, 2);
  EXPECT_THAT(error_of([&] { tokens_of(std::string(200, '['), "{}"); }), testing::HasSubstr("nested more than 100 deep"));
}

TEST_F(HuggingFaceImport, TheOptimizerBeginsAnew) {
  import_hf(dir_, folder_.path() / "r");
  const Reader imported(step_folder(folder_.path() / "r/checkpoints", 0));
  const Reader trained(step_folder(folder_.path() / "run/checkpoints", 20));
  for (const char* suffix : {".exp_avg", ".exp_avg_sq", ".momentum"}) {
    Piece target{std::string("model.norm.weight") + suffix, {32}, -1, 0, 1, 4, 9, at::full({5}, 7.0f)};
    imported.read_piece(target);
    EXPECT_TRUE(same(target.data, at::zeros({5}, at::TensorOptions().dtype(at::kFloat))));
    if (std::string_view(suffix) != ".exp_avg") {
      EXPECT_THROW(trained.read_piece(target), Error);
    }
  }
  Piece unknown{"model.nrom.weight.exp_avg", {32}, -1, 0, 1, 0, 32, {}};
  EXPECT_THROW(imported.read_piece(unknown), Error);
}

TEST_F(HuggingFaceImport, TouchesNoRunThatExists) {
  const auto run = folder_.path() / "taken";
  std::filesystem::create_directories(run);
  import_hf(dir_, run);
  EXPECT_THAT(error_of([&] { import_hf(dir_, run); }), testing::HasSubstr("exists"));
  EXPECT_TRUE(latest(run / "checkpoints").has_value());
}

}  // namespace
}  // namespace tessera::checkpoint
