#include <nlohmann/json.hpp>

#include "base/config.hpp"
#include "base/file_system.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "data/file_lock.hpp"
#include "data/in_file.hpp"
#include "data/source.hpp"
#include "data/tokenizer.hpp"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr Seconds kPatience{600};
// Changes whenever the same text would give another tokenizer.
constexpr const char* kTrainerVersion = "bpe 2";

// What tokenizer_config.json beside a tokenizer.json names as eos_token; empty when it names none.
std::string eos_token_beside(const fs::path& file) {
  const fs::path config = file.parent_path() / "tokenizer_config.json";
  std::error_code ignored;
  if (!fs::exists(config, ignored)) return {};
  const auto root = nlohmann::json::parse(read_whole(config), nullptr, false);
  if (!root.is_object() || !root.contains("eos_token")) return {};
  const auto& token = root["eos_token"];
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) return token["content"].get<std::string>();
  return {};
}

[[noreturn]] void missing(const fs::path& file, const Where& where) {
  std::vector<std::string> names;
  std::error_code ignored;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(folder, ignored)) names.push_back(entry.path().filename());
  const auto guess = nearest(file.filename().string(), names);
  throw Error(ErrorCode::not_found, text("the tokenizer ", file.string(), " does not exist"), where,
              "a tokenizer.json or a SentencePiece .model",
              guess ? text("did you mean ", (folder / *guess).lexically_normal().string(), "?") : "check data.tokenizer.file");
}

std::unique_ptr<Tokenizer> trained_tokenizer(const model::DataSpec& spec, const fs::path& cache_dir, const ProgressCallback& progress) {
  const model::RecordSpec& records = spec.records;
  std::string content = text(kTrainerVersion, '\n', records.field, '\n', records.prompt, '\n', records.answer, '\n',
                             static_cast<int>(records.on_error), '\n', spec.tokenizer.vocab);
  std::vector<Source> sources;
  std::uint64_t bytes = 0;
  for (const model::SourceSpec& one : spec.sources) {
    sources.push_back(open_source(one.path, records, one.where));
    content += "\n" + fingerprint_of(sources.back(), cache_dir, progress);
    bytes += sources.back().bytes;
  }
  const std::string fingerprint = hash128_hex(content);
  const fs::path file = cache_dir / ("tokenizer-" + fingerprint + ".json");
  std::error_code ignored;
  const auto cached = [&]() -> std::unique_ptr<Tokenizer> {
    if (!fs::exists(file, ignored)) return nullptr;
    try {
      return load_tokenizer(file);
    } catch (const Error& error) {
      log::warning(text("training the tokenizer again: ", error.what()));
      return nullptr;
    }
  };
  if (auto tokenizer = cached()) return tokenizer;
  real_file_system().create_directories(cache_dir);
  const FileLock lock(cache_dir / ("tokenizer-" + fingerprint + ".lock"), kPatience, progress);
  if (auto tokenizer = cached()) return tokenizer;
  if (lock.held()) remove_abandoned(file);
  BpeTrainer trainer;
  ProgressMeter meter(progress, "counting words");
  std::uint64_t before = 0;
  for (const Source& source : sources) {
    read_documents(source, [&](const Document& document) {
      if (!document.prompt.empty()) trainer.add(document.prompt);
      trainer.add(document.text);
      meter.update(static_cast<double>(before + document.end), static_cast<double>(bytes));
    });
    before += source.bytes;
  }
  auto tokenizer = trainer.train(spec.tokenizer.vocab, progress);
  tokenizer->save(file);
  return tokenizer;
}

}  // namespace

bool is_tokenizer(const fs::path& file) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return false;
  if (file.extension() == ".model") return true;
  if (file.extension() != ".json") return false;
  const MappedFile map(file);
  const auto* content = reinterpret_cast<const char*>(map.bytes().data());
  // Of JSON lines the parser sees the first, and gives up at the second.
  const auto root = nlohmann::json::parse(content, content + map.bytes().size(), nullptr, false);
  return root.is_object() && root.contains("model") && root["model"].is_object() && root["model"].contains("vocab");
}

std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& file) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) missing(file, {});
  std::string content = read_whole(file);
  const std::size_t first = content.find_first_not_of(" \t\r\n\xEF\xBB\xBF");
  // A SentencePiece model begins with the tag of its first piece, 0x0A, which is white space too.
  if (first != std::string::npos && content[first] == '{' && file.extension() != ".model") {
    return parse_tokenizer_json(std::move(content), file.string(), eos_token_beside(file));
  }
  if (file.extension() == ".json") {
    throw Error(ErrorCode::corrupt, "this is not a JSON object", in_file(file), "a tokenizer.json", "fetch or save the file again");
  }
  return parse_sentencepiece(std::move(content), file.string());
}

std::unique_ptr<Tokenizer> make_tokenizer(const model::DataSpec& spec, const fs::path& cache_dir, const ProgressCallback& progress) {
  need_source(spec);
  const auto& wanted = spec.tokenizer;
  if (wanted.kind == "bytes") return make_byte_tokenizer();
  if (wanted.kind == "bpe") return trained_tokenizer(spec, cache_dir, progress);
  if (wanted.kind == "hf" || wanted.kind == "sentencepiece") {
    std::error_code ignored;
    if (!fs::exists(wanted.file, ignored)) missing(wanted.file, spec.where);
    return load_tokenizer(wanted.file);
  }
  const auto guess = nearest(wanted.kind, {"bpe", "hf", "sentencepiece", "bytes"});
  throw Error(ErrorCode::invalid_config, text("there is no tokenizer kind \"", wanted.kind, "\""), spec.where,
              "bpe, hf, sentencepiece or bytes", guess ? text("did you mean ", *guess, "?") : "set data.tokenizer.kind");
}

}  // namespace tessera::data
