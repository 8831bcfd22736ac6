// Files of checkpoints and of Hugging Face folders, as far as they are read without torch.
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "base/hash.hpp"
#include "base/plain_name.hpp"
#include "base/temporary_folder.hpp"
#include "checkpoint/best.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/hf_weights.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/pickle.hpp"
#include "checkpoint/safetensors.hpp"
#include "fuzz/checks.hpp"

namespace tessera::fuzz {

using checkpoint::ElementType;

Target safetensors_target() {
  const std::vector<checkpoint::StoredTensor> tensors = {{"a", ElementType::f32, {2, 3}, 0, 24},
                                                         {"b", ElementType::bf16, {4}, 24, 32},
                                                         {"c", ElementType::i64, {}, 32, 40},
                                                         {"d", ElementType::f8_e4m3, {3}, 40, 43}};
  const std::size_t bytes = 43;
  Target target;
  target.refusals = {ErrorCode::corrupt};
  target.seeds = {checkpoint::safetensors_header(tensors, {{"format", "pt"}}) + std::string(bytes, 'x'),
                  checkpoint::safetensors_header({}, {})};
  target.inner = [](const std::string& file) { return file.size() < 8 ? file : file.substr(8, file.find_last_not_of('x') - 7); };
  target.outer = [](const std::string& json) {
    std::string length(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
    return length + json + std::string(bytes, 'x');
  };
  target.read = [](const std::string& input) {
    const checkpoint::SafetensorsHeader header = checkpoint::read_safetensors_header(std::as_bytes(std::span(input)), "any.safetensors");
    const std::string data = input.substr(static_cast<std::size_t>(header.size));
    must_pass("what safetensors_header wrote is refused", [&] {
      const std::string again = checkpoint::safetensors_header(header.tensors, header.metadata) + data;
      const auto read = checkpoint::read_safetensors_header(std::as_bytes(std::span(again)), "again.safetensors");
      must_be_equal(again, checkpoint::safetensors_header(read.tensors, read.metadata) + data, "the header");
    });
  };
  return target;
}

// The pickle of a state dict, as torch.save writes it with protocol 2, and a map with protocol 4.
Target pickle_target() {
  using namespace std::string_literals;
  Target target;
  target.refusals = {ErrorCode::corrupt};
  target.seeds = {
      "\x80\x02}q\x00X\x01\x00\x00\x00wq\x01"
      "ctorch._utils\n_rebuild_tensor_v2\nq\x02((X\x07\x00\x00\x00storageq\x03"
      "ctorch\nFloatStorage\n"
      "q\x04X\x01\x00\x00\x00"
      "0q\x05X\x03\x00\x00\x00"
      "cpuq\x06K\x06tq\x07QK\x00K\x02K\x03\x86q\x08K\x03K\x01\x86q\t\x89"
      "ccollections\nOrderedDict\n"
      "q\n)Rq\x0btq\x0cRq\rsX\x02\x00\x00\x00lr"
      "G?\xe0\x00\x00\x00\x00\x00\x00s."s,
      "\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01"
      "a\x94K\x01\x8c\x01"
      "b\x94]\x94(J\xff\xff\xff\xffM\x00\x01\x8a\x01\x80"
      "eu."s};
  target.read = [](const std::string& input) {
    const auto bytes = std::as_bytes(std::span(input));
    const checkpoint::Pickle pickle(bytes, "data.pkl");
    if (pickle.size() > input.size()) throw Defect("a pickle is longer than its file");
    for (const checkpoint::PickledValue& value : pickle.values())
      if (value.kind == checkpoint::PickledValue::Kind::map && value.items.size() % 2 != 0) throw Defect("a key has no value");
    must_pass("a pickle by itself is refused", [&] {
      const checkpoint::Pickle again(bytes.first(pickle.size()), "again.pkl");
      if (again.values().size() != pickle.values().size()) throw Defect("a pickle by itself is another one");
    });
  };
  return target;
}

namespace {

// Two ranks, a tensor cut by tensor parallelism, one cut into ranges, one without elements.
checkpoint::Manifest some_manifest() {
  checkpoint::Manifest manifest;
  manifest.state.plan_json = "{\"version\": 1}";
  manifest.state.train_yaml = "name: x\n";
  manifest.state.extra = {{"loss", 1.25}, {"worst", std::numeric_limits<double>::infinity()}};
  manifest.files = {{checkpoint::shard_name(0, "safetensors"), 200, 80, "d0"}, {checkpoint::shard_name(1, "safetensors"), 160, 80, "d1"}};
  manifest.tensors["split"] = {{2, 4}, ElementType::f32, {{{1, 0, 2, 0, 4}, 0, 80, 16, "d2"}, {{1, 1, 2, 0, 4}, 1, 80, 16, "d3"}}};
  manifest.tensors["ranges"] = {{5}, ElementType::bf16, {{{-1, 0, 1, 0, 3}, 0, 96, 6, "d4"}, {{-1, 0, 1, 3, 5}, 1, 96, 4, "d5"}}};
  manifest.tensors["none"] = {{0, 3}, ElementType::i64, {}};
  return manifest;
}

constexpr const char* kDigest = "\"xxh3_128\": \"";

}  // namespace

Target manifest_target() {
  Target target;
  target.refusals = {ErrorCode::corrupt};
  target.seeds = {checkpoint::to_text(some_manifest()), checkpoint::to_text({})};
  // The JSON without the digest at its end: what a writer of such files puts the right digest behind.
  target.inner = [](const std::string& file) {
    const std::string body = file.substr(0, file.rfind(kDigest));
    return body.substr(0, body.find_last_not_of(",\n ") + 1) + "}";
  };
  target.outer = [](const std::string& json) {
    const std::string body = json.substr(0, json.find_last_not_of("}\n ") + 1) + "},\n";
    return body + kDigest + hash128_hex(body) + "\"\n}\n";
  };
  target.read = [](const std::string& input) {
    const checkpoint::Manifest manifest = checkpoint::parse_manifest(input, "manifest.json");
    for (const checkpoint::ShardFile& file : manifest.files)
      if (!is_plain_name(file.name)) throw Defect("a file outside of the folder: " + file.name);
    must_pass("what to_text wrote is refused", [&] {
      const std::string again = checkpoint::to_text(manifest);
      must_be_equal(again, checkpoint::to_text(checkpoint::parse_manifest(again, "again.json")), "the manifest");
    });
    checkpoint::require_whole(manifest, "manifest.json");
    std::int64_t bytes = 0;
    for (const checkpoint::ShardFile& file : manifest.files) bytes += file.bytes - file.header_bytes;
    for (const auto& [name, tensor] : manifest.tensors) bytes -= checkpoint::element_count(tensor.shape) * size_of(tensor.type);
    if (bytes < 0) throw Defect("tensors that are larger than their files");
  };
  return target;
}

Target best_target() {
  Target target;
  target.refusals = {ErrorCode::corrupt};
  target.seeds = {checkpoint::text_of({50, 3.25})};
  target.read = [](const std::string& input) {
    const checkpoint::Best best = checkpoint::parse_best(input, "best.json");
    if (best.step < 0) throw Defect("a step before the first");
    const std::string again = checkpoint::text_of(best);
    must_pass("what text_of wrote is refused",
              [&] { must_be_equal(again, checkpoint::text_of(checkpoint::parse_best(again, "again.json")), "the best checkpoint"); });
  };
  return target;
}

Target weight_map_target() {
  Target target;
  target.refusals = {ErrorCode::corrupt};
  target.seeds = {
      R"({"metadata": {"total_size": 16}, "weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors", "model.norm.weight": "model-00002-of-00002.safetensors"}})",
      R"({"weight_map": {}})"};
  target.read = [](const std::string& input) {
    for (const auto& [tensor, file] : checkpoint::parse_weight_map(input, "model.safetensors.index.json"))
      if (!is_plain_name(file)) throw Defect("a file outside of the folder: " + file);
  };
  return target;
}

// A tokenizer's two files as one map.
Target special_tokens_target() {
  Target target;
  target.refusals = {ErrorCode::corrupt};
  target.seeds = {
      R"({"tokenizer_config.json": {"eos_token": "</s>", "bos_token": {"content": "<s>"}}, "tokenizer.json": {"added_tokens": [{"content": "</s>", "id": 2}, {"content": "<s>", "id": 1}]}})",
      R"({"tokenizer_config.json": {}, "tokenizer.json": {"added_tokens": [{"content": "<|endoftext|>", "id": 0}]}})"};
  target.read = [folder = std::make_shared<TemporaryFolder>()](const std::string& input) {
    const auto files = nlohmann::ordered_json::parse(input, nullptr, false);
    for (const char* name : {"tokenizer_config.json", "tokenizer.json"}) {
      const bool there = files.is_object() && files.contains(name);
      folder->write(name, there ? files.at(name).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) : input);
    }
    checkpoint::special_tokens(*folder / "tokenizer.json");
  };
  return target;
}

}  // namespace tessera::fuzz
