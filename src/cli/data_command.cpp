#include "cli/data_command.hpp"

#include <unistd.h>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/file_system.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/data_inspect.hpp"
#include "data/data.hpp"

namespace tessera::cli {
namespace {

using nlohmann::ordered_json;

// One line on a terminal, overwritten as the work goes on; nothing elsewhere.
data::ProgressCallback show_progress() {
  if (isatty(STDERR_FILENO) == 0) return {};
  return [](const data::Progress& progress) {
    std::fprintf(stderr, "\r\033[K%s %3.0f %%", progress.stage.c_str(), 100 * progress.fraction);
    if (progress.fraction >= 1) std::fprintf(stderr, "\r\033[K");
    std::fflush(stderr);
  };
}

void print_json(const ordered_json& out) { std::printf("%s\n", out.dump(-1, ' ', false, ordered_json::error_handler_t::replace).c_str()); }

struct JobOptions {
  std::string yaml;
  std::vector<std::string> overrides;
  bool json = false;

  void add_to(CLI::App& command) {
    command.add_option("train_yaml", yaml, "The job")->required();
    command.add_option("--set", overrides, "Override a key")->type_name("KEY=VALUE");
    command.add_flag("--json", json, "One JSON object");
  }
};

void refuse_synthetic(const model::DataSpec& spec) {
  if (spec.source == "synthetic")
    throw Error(ErrorCode::invalid_config, "synthetic data is made while training", spec.where, "a text source", "set data.source");
}

void train_tokenizer(const std::string& source_path, const std::string& field, std::int64_t vocab, const std::string& output, bool json) {
  const data::Source source = data::open_source(source_path, field);
  const auto progress = show_progress();
  data::BpeTrainer trainer;
  data::ProgressMeter meter(progress, "counting words");
  std::int64_t documents = 0;
  data::read_documents(source, [&](const data::Document& document) {
    trainer.add(document.text);
    ++documents;
    meter.update(static_cast<double>(document.end), static_cast<double>(source.bytes));
  });
  const auto tokenizer = trainer.train(vocab, progress);
  if (progress) progress({"training the tokenizer", 1.0});
  const std::filesystem::path path(output);
  if (path.has_parent_path()) real_file_system().create_directories(path.parent_path());
  tokenizer->save(path);
  if (json) {
    return print_json({{"tokenizer", output},
                       {"vocab", tokenizer->vocab_size()},
                       {"documents", documents},
                       {"bytes", source.bytes},
                       {"fingerprint", tokenizer->fingerprint()}});
  }
  std::printf("%s: %lld tokens, trained on %s in %lld documents\n", output.c_str(), static_cast<long long>(tokenizer->vocab_size()),
              to_text(Bytes(static_cast<std::int64_t>(source.bytes))).c_str(), static_cast<long long>(documents));
  if (tokenizer->vocab_size() < vocab)
    std::printf("the text has no pairs left for more; set model.vocab and data.tokenizer.vocab to %lld\n",
                static_cast<long long>(tokenizer->vocab_size()));
  std::printf("use it with data: {tokenizer: {kind: hf, file: %s}}\n", output.c_str());
}

void pack(const JobOptions& options) {
  const model::JobSpec job = model::read_job(options.yaml, options.overrides);
  refuse_synthetic(job.data);
  const auto progress = show_progress();
  const auto folder = data::default_cache_dir();
  const auto tokenizer = data::make_tokenizer(job.data, folder, progress);
  const data::TokenCache cache = data::open_token_cache(job.data, *tokenizer, folder, progress);
  cache.verify();
  const std::uint64_t bytes = data::open_source(job.data.source, job.data.field, job.data.where).bytes;
  const double bytes_per_token = static_cast<double>(bytes) / static_cast<double>(cache.size());
  if (options.json) {
    return print_json({{"cache", cache.path().string()},
                       {"documents", cache.document_count()},
                       {"tokens", cache.size()},
                       {"vocab", cache.vocab()},
                       {"bytes_per_token", bytes_per_token},
                       {"fingerprint", cache.fingerprint()}});
  }
  std::printf("%s: %s tokens in %lld documents, %.2f bytes of text a token\n", cache.path().c_str(),
              count_text(static_cast<double>(cache.size())).c_str(), static_cast<long long>(cache.document_count()), bytes_per_token);
}

void split(const JobOptions& options) {
  const model::JobSpec job = model::read_job(options.yaml, options.overrides);
  refuse_synthetic(job.data);
  const std::int64_t seq = job.model.dim("seq"), batch = job.train.global_batch;
  const auto dataset =
      data::Dataset::open(job.data, seq, job.model.dim("vocab"), job.train.seed, data::default_cache_dir(), show_progress());
  dataset->sample_ids(0, batch);
  const double epochs = static_cast<double>(job.train.steps) * static_cast<double>(batch) / static_cast<double>(dataset->train_samples());
  const bool validates = dataset->validation_samples() > 0;
  const double entropy = validates ? dataset->unigram_entropy_of_validation() : 0;
  if (options.json) {
    ordered_json out{{"tokens", dataset->token_count()},
                     {"sequence", seq},
                     {"train_sequences", dataset->train_samples()},
                     {"validation_sequences", dataset->validation_samples()},
                     {"steps", job.train.steps},
                     {"epochs", epochs}};
    if (validates) out["unigram_entropy_nats"] = entropy;
    return print_json(out);
  }
  std::printf("tokens       %lld\n", static_cast<long long>(dataset->token_count()));
  std::printf("training     %lld sequences of %lld\n", static_cast<long long>(dataset->train_samples()), static_cast<long long>(seq));
  std::printf("validation   %lld sequences\n", static_cast<long long>(dataset->validation_samples()));
  std::printf("the job      %lld steps of %lld sequences: %.2f epochs\n", static_cast<long long>(job.train.steps),
              static_cast<long long>(batch), epochs);
  if (validates)
    std::printf("unigram      %.4f nats a validation token (perplexity %.1f): the loss of knowing only how often tokens occur\n", entropy,
                std::exp(entropy));
}

void encode_lines(const std::string& tokenizer_file, bool json) {
  const auto tokenizer = data::load_tokenizer(tokenizer_file);
  for (std::string line; std::getline(std::cin, line);) {
    const auto ids = tokenizer->encode(line);
    if (json) {
      print_json({{"ids", ids}});
      continue;
    }
    for (std::size_t index = 0; index < ids.size(); ++index) std::printf(index == 0 ? "%u" : " %u", ids[index]);
    std::printf("\n");
  }
}

void decode_lines(const std::string& tokenizer_file, bool json) {
  const auto tokenizer = data::load_tokenizer(tokenizer_file);
  int number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    std::vector<std::uint32_t> ids;
    std::istringstream words(line);
    for (std::uint32_t id = 0; words >> id;) ids.push_back(id);
    if (!words.eof()) {
      Where where;
      where.file = "standard input";
      where.line = number;
      throw Error(ErrorCode::invalid_config, "this line holds something that is not a token id", where,
                  "whole numbers with spaces between them", "give what `tessera data encode` prints");
    }
    const std::string decoded = tokenizer->decode(ids, true);
    if (json) {
      print_json({{"text", decoded}});
    } else {
      std::printf("%s\n", decoded.c_str());
    }
  }
}

void add_job_command(CLI::App& data, const std::string& name, const std::string& help, void (*run)(const JobOptions&)) {
  CLI::App* command = data.add_subcommand(name, help);
  auto options = std::make_shared<JobOptions>();
  options->add_to(*command);
  command->callback([options, run] { run(*options); });
}

void add_line_command(CLI::App& data, const std::string& name, const std::string& help, void (*run)(const std::string&, bool)) {
  CLI::App* command = data.add_subcommand(name, help);
  auto file = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  command->add_option("tokenizer", *file, "A tokenizer.json or a SentencePiece .model")->required();
  command->add_flag("--json", *json, "A JSON object a line");
  command->callback([file, json, run] { run(*file, *json); });
}

}  // namespace

void add_data_command(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Train tokenizers, pack text, look into both")->group(kToolGroup);
  data->require_subcommand(1);

  CLI::App* tokenizer = data->add_subcommand("tokenizer", "Train a byte-level BPE tokenizer on text");
  struct Training {
    std::string source, field = "text", output = "tokenizer.json";
    std::int64_t vocab = 8192;
    bool json = false;
  };
  auto training = std::make_shared<Training>();
  tokenizer->add_option("source", training->source, "A text file, a JSONL file or a folder of them")->required();
  tokenizer->add_option("--vocab", training->vocab, "How many tokens")->capture_default_str();
  tokenizer->add_option("--field", training->field, "The text's key in JSONL lines")->capture_default_str();
  tokenizer->add_option("-o,--output", training->output, "Where to write it")->capture_default_str();
  tokenizer->add_flag("--json", training->json, "One JSON object");
  tokenizer->callback(
      [training] { train_tokenizer(training->source, training->field, training->vocab, training->output, training->json); });

  add_job_command(*data, "pack", "Tokenize a job's text into its cache", pack);
  add_job_command(*data, "split", "Show a job's training and validation split", split);

  CLI::App* inspect = data->add_subcommand("inspect", "Look into text, a tokenizer, a token cache or a job's data");
  auto inspection = std::make_shared<InspectOptions>();
  inspect->add_option("file", inspection->file, "A train.yaml, text, JSONL, a folder, tokenizer.json, .model or tokens-….bin")->required();
  inspect->add_option("--samples", inspection->samples, "How many documents or sequences to show")->capture_default_str();
  inspect->add_option("--tokenizer", inspection->tokenizer, "Decodes the tokens of a cache");
  inspect->add_option("--field", inspection->field, "The text's key in JSONL lines")->capture_default_str();
  inspect->add_flag("--json", inspection->json, "One JSON object");
  inspect->callback([inspection] { inspect_data(*inspection); });

  add_data_batch(*data);
  add_line_command(*data, "encode", "Token ids of each line of the standard input", encode_lines);
  add_line_command(*data, "decode", "Text of each line of token ids on the standard input", decode_lines);
}

}  // namespace tessera::cli
