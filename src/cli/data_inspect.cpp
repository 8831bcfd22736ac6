#include "cli/data_inspect.hpp"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "data/data.hpp"
#include "model/forms.hpp"

namespace tessera::cli {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kShownBytes = 160;
constexpr std::int64_t kShownTokens = 64;

// The beginning of a text, cut at a character.
std::string beginning(std::string_view text) {
  std::string out;
  data::Utf8Assembler assembler(data::InvalidBytes::each_part);
  assembler.push(text.substr(0, kShownBytes), out);
  return out + (text.size() > kShownBytes ? " …" : "");
}

// On one line: line breaks and other control characters as escapes.
std::string on_one_line(const std::string& text) { return ordered_json(text).dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

void show(const ordered_json& out, bool json) {
  if (json) {
    std::printf("%s\n", out.dump(-1, ' ', false, ordered_json::error_handler_t::replace).c_str());
    return;
  }
  for (const auto& [key, value] : out.items()) {
    if (!value.is_array()) {
      std::printf("%-21s %s\n", key.c_str(), value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
      continue;
    }
    std::printf("%s\n", key.c_str());
    for (const auto& entry : value)
      std::printf("  %s\n", entry.is_string() ? on_one_line(entry.get<std::string>()).c_str() : entry.dump().c_str());
  }
}

std::vector<std::uint32_t> unsigned_ids(const std::vector<std::int32_t>& ids) { return {ids.begin(), ids.end()}; }

ordered_json inspect_cache(const InspectOptions& options) {
  const data::TokenCache cache(options.file);
  cache.verify();
  ordered_json out{{"kind", "token cache"},
                   {"tokens", cache.size()},
                   {"documents", cache.document_count()},
                   {"vocab", cache.vocab()},
                   {"fingerprint", cache.fingerprint()},
                   {"checksums", "all fit"},
                   {"samples", ordered_json::array()}};
  const auto tokenizer = options.tokenizer.empty() ? nullptr : data::load_tokenizer(options.tokenizer);
  if (tokenizer && tokenizer->vocab_size() != cache.vocab()) {
    throw Error(ErrorCode::invalid_config,
                text("the tokenizer has ", tokenizer->vocab_size(), " tokens but the cache was made with one of ", cache.vocab()), {},
                "the cache's own tokenizer", "give the tokenizer that the cache was made with");
  }
  for (std::int64_t index = 0; index < std::min(options.samples, cache.document_count()); ++index) {
    const std::int64_t begin = cache.document_begin(index);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(kShownTokens, cache.document_begin(index + 1) - begin)));
    cache.read(begin, ids);
    if (tokenizer) {
      out["samples"].push_back(tokenizer->decode(unsigned_ids(ids), true));
    } else {
      out["samples"].push_back(ids);
    }
  }
  return out;
}

ordered_json paths_of(const model::DataSpec& data) {
  ordered_json paths = ordered_json::array();
  for (const model::SourceSpec& source : data.sources) paths.push_back(source.path.string());
  return paths;
}

ordered_json inspect_job(const InspectOptions& options) {
  const model::JobSpec job = model::read_job(options.file);
  const auto opened = data::open_dataset(job.data, job.model, job.train.seed);
  const data::TextDataset* dataset = data::as_text(*opened);
  if (dataset == nullptr)
    return {{"kind", "job"},
            {"sources", paths_of(job.data)},
            {text("train_", model::counted_in(job.model)), opened->train_samples()},
            {text("validation_", model::counted_in(job.model)), opened->validation_samples()},
            {"notes", opened->notes()}};
  ordered_json out{{"kind", "job"},
                   {"sources", paths_of(job.data)},
                   {"documents", dataset->document_count()},
                   {"tokens", dataset->token_count()},
                   {"train_sequences", dataset->train_samples()},
                   {"validation_sequences", dataset->validation_samples()},
                   {"notes", dataset->notes()},
                   {"samples", ordered_json::array()}};
  const std::int64_t shown = std::min({options.samples, job.train.global_batch, dataset->train_samples()});
  if (shown <= 0) return out;
  std::vector<std::vector<std::int32_t>> fields;
  for (const data::Field& field : dataset->fields()) fields.emplace_back(static_cast<std::size_t>(field.count()));
  const std::vector<data::Row> rows(fields.begin(), fields.end());
  const std::vector<std::int32_t>& tokens = fields.front();
  for (const data::Draw& draw : dataset->draws(0, shown)) {
    dataset->fill(draw, rows);
    const std::string content = dataset->tokenizer() == nullptr ? ordered_json(tokens).dump() : dataset->decode(tokens, true);
    if (options.json) {
      out["samples"].push_back({{"sample", draw.sample}, {"text", content}});
    } else {
      out["samples"].push_back(beginning(content));
    }
  }
  return out;
}

ordered_json inspect_tokenizer(const InspectOptions& options) {
  const auto tokenizer = data::load_tokenizer(options.file);
  const auto end = tokenizer->end_of_text();
  const std::string example = "To be, or not to be: that is the question.";
  const auto ids = tokenizer->encode(example);
  ordered_json out{{"kind", "tokenizer"},
                   {"vocab", tokenizer->vocab_size()},
                   {"end_of_text", end ? ordered_json(*end) : ordered_json()},
                   {"fingerprint", tokenizer->fingerprint()},
                   {"example", example},
                   {"samples", ordered_json::array()}};
  for (std::uint32_t id : ids) out["samples"].push_back({{"id", id}, {"text", tokenizer->decode(std::span(&id, 1), true)}});
  return out;
}

ordered_json inspect_text(const InspectOptions& options) {
  const data::Source source = data::open_source(options.file, options.records);
  std::int64_t documents = 0;
  ordered_json samples = ordered_json::array();
  const std::uint64_t skipped = data::read_documents(source, [&](const data::Document& document) {
    if (documents++ >= options.samples) return;
    if (options.records.has_prompts())
      samples.push_back({{"prompt", beginning(document.prompt)}, {"answer", beginning(document.text)}});
    else
      samples.push_back(beginning(document.text));
  });
  ordered_json left_out = ordered_json::array();
  for (const data::LeftOut& file : source.left_out) left_out.push_back(text(file.path.string(), " ", file.reason));
  return {{"kind", "text"},     {"files", source.files.size()}, {"bytes", source.bytes}, {"documents", documents},
          {"skipped", skipped}, {"left_out", left_out},         {"samples", samples}};
}

}  // namespace

void inspect_data(const InspectOptions& options) {
  const std::filesystem::path path(options.file);
  const bool is_job = path.extension() == ".yaml" || path.extension() == ".yml";
  show(is_job                             ? inspect_job(options)
       : data::is_tokenizer(path)         ? inspect_tokenizer(options)
       : data::TokenCache::is_cache(path) ? inspect_cache(options)
                                          : inspect_text(options),
       options.json);
}

}  // namespace tessera::cli
