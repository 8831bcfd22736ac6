#include <cstdlib>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "data/file_lock.hpp"
#include "data/source.hpp"
#include "data/text_dataset.hpp"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr Seconds kPatience{1800};
// Changes whenever the same source and tokenizer would give another file.
constexpr const char* kPackVersion = "tokens 2";

void build(const fs::path& file, const Source& source, const Tokenizer& tokenizer, const std::string& fingerprint, const Where& where,
           const ProgressCallback& progress) {
  const auto end_of_text = tokenizer.end_of_text();
  if (!end_of_text) {
    throw Error(ErrorCode::invalid_config, "the tokenizer names no token that ends a document", where, "an end-of-text token",
                "put a tokenizer_config.json with eos_token beside tokenizer.json");
  }
  TokenCacheWriter writer(real_file_system(), file, tokenizer.vocab_size(), fingerprint);
  ProgressMeter meter(progress, "tokenizing");
  std::int64_t with_returns = 0;
  const std::uint64_t skipped = read_documents(source, [&](const Document& document) {
    if (document.text.find('\r') != std::string_view::npos) ++with_returns;
    if (!document.label.empty()) {  // in halves of bytes, which every vocabulary has room for
      std::vector<std::uint32_t> halves;
      for (const char letter : document.label)
        for (const int half : {static_cast<unsigned char>(letter) >> 4, static_cast<unsigned char>(letter) & 15})
          halves.push_back(static_cast<std::uint32_t>(half));
      writer.append(halves);
      writer.end_prompt();
    }
    if (!document.prompt.empty()) {
      writer.append(tokenizer.encode(document.prompt));
      writer.end_prompt();
    }
    tokenizer.encode_to(document.text, [&](std::span<const std::uint32_t> ids, std::size_t done) {
      writer.append(ids);
      const double part = static_cast<double>(done) / static_cast<double>(document.text.size());
      meter.update(static_cast<double>(document.begin) + part * static_cast<double>(document.end - document.begin),
                   static_cast<double>(source.bytes));
    });
    writer.append(std::span(&*end_of_text, 1));
    writer.end_document();
  });
  writer.finish(skipped);
  meter.finish();
  if (with_returns > 0)
    log::warning(text(
        where.file.empty() ? "" : where.file + ": ", with_returns, " document", with_returns == 1 ? " has" : "s have",
        " carriage returns (\\r, the line ends of Windows), and the model learns to write them; `sed -i 's/\\r$//' FILE` takes them out"));
}

}  // namespace

fs::path default_cache_dir() {
  const char* chosen = std::getenv("TESSERA_CACHE");
  return chosen != nullptr && *chosen != '\0' ? fs::path(chosen) : fs::path(".cache/tessera");
}

TokenCache open_token_cache(const Source& source, const Tokenizer& tokenizer, const Where& where, const fs::path& cache_dir,
                            const ProgressCallback& progress) {
  const model::RecordSpec& records = source.records;
  const std::string fingerprint =
      hash128_hex(text(kPackVersion, '\n', fingerprint_of(source, cache_dir, progress), '\n', records.field, '\n', records.prompt, '\n',
                       records.answer, '\n', static_cast<int>(records.on_error), '\n', tokenizer.fingerprint(), ' ',
                       tokenizer.end_of_text().value_or(~0u), records.label.empty() ? "" : "\n" + records.label));
  const fs::path file = cache_dir / ("tokens-" + fingerprint + ".bin");
  std::error_code ignored;
  if (fs::exists(file, ignored)) {
    try {
      return TokenCache(file, fingerprint);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::corrupt) throw;
      log::warning(text("building the token cache again: ", error.what()));
    }
  }
  real_file_system().create_directories(cache_dir);
  const FileLock lock(cache_dir / ("tokens-" + fingerprint + ".lock"), kPatience, progress);
  if (fs::exists(file, ignored)) {
    try {
      return TokenCache(file, fingerprint);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::corrupt) throw;
    }
  }
  if (lock.held()) remove_abandoned(file);
  build(file, source, tokenizer, fingerprint, where, progress);
  return TokenCache(file, fingerprint);
}

}  // namespace tessera::data
