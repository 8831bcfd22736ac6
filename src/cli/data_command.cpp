#include <unistd.h>
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/file_system.hpp"
#include "base/table.hpp"
#include "base/terminal.hpp"
#include "base/units.hpp"
#include "cli/checks.hpp"
#include "cli/commands.hpp"
#include "cli/data_inspect.hpp"
#include "data/data.hpp"
#include "model/forms.hpp"

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
  if (spec.synthetic)
    throw Error(ErrorCode::invalid_config, "synthetic data is made while training", spec.where, "a text source", "set data.source");
}

// How the records of JSONL and Parquet are read.
void add_record_options(CLI::App& command, model::RecordSpec& records) {
  auto* field = command.add_option("--field", records.field, "The text's key in JSONL, or its column in Parquet")->capture_default_str();
  auto* prompt = command.add_option("--prompt", records.prompt, "The key of prompts, with --answer in place of --field")->excludes(field);
  auto* answer = command.add_option("--answer", records.answer, "The key of answers")->needs(prompt);
  prompt->needs(answer);
  command
      .add_option_function<std::string>(
          "--on-error",
          [&records](const std::string& word) { records.on_error = word == "skip" ? model::OnError::skip : model::OnError::stop; },
          "skip leaves out and counts records that cannot be read (default: stop)")
      ->check(CLI::IsMember({"stop", "skip"}));
}

void train_tokenizer(const std::string& source_path, const model::RecordSpec& records, std::int64_t vocab, const std::string& output,
                     bool json) {
  const data::Source source = data::open_source(source_path, records);
  if (!source.left_out.empty()) std::fprintf(stderr, "%s\n", data::left_out_text(source).c_str());
  const auto progress = show_progress();
  data::BpeTrainer trainer;
  data::ProgressMeter meter(progress, "counting words");
  std::int64_t documents = 0;
  const std::uint64_t skipped = data::read_documents(source, [&](const data::Document& document) {
    if (!document.prompt.empty()) trainer.add(document.prompt);
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
                       {"skipped", skipped},
                       {"bytes", source.bytes},
                       {"fingerprint", tokenizer->fingerprint()}});
  }
  std::printf("%s: %lld tokens, trained on %s in %lld documents\n", output.c_str(), static_cast<long long>(tokenizer->vocab_size()),
              to_text(Bytes(static_cast<std::int64_t>(source.bytes))).c_str(), static_cast<long long>(documents));
  if (skipped > 0) std::printf("%llu records cannot be read and were skipped\n", static_cast<unsigned long long>(skipped));
  if (tokenizer->vocab_size() < vocab)
    std::printf("the text has no pairs left for more; set model.vocab and data.tokenizer.vocab to %lld\n",
                static_cast<long long>(tokenizer->vocab_size()));
  std::printf("use it with data: {tokenizer: {kind: hf, file: %s}}\n", output.c_str());
}

void refuse_images(const model::JobSpec& job) {
  if (model::reads_images(job.model))
    throw Error(ErrorCode::invalid_config, "the job's model reads images, which are neither tokenized nor packed", job.data.where,
                "a job on text", "`tessera data inspect TRAIN.yaml` says how many images there are");
  if (model::reads_clicks(job.model))
    throw Error(ErrorCode::invalid_config, "the job's model reads click logs, which are neither tokenized nor packed", job.data.where,
                "a job on text");
}

// Of sequences of a text.
void refuse_labels(const model::JobSpec& job) {
  if (model::classifies_text(job.model))
    throw Error(ErrorCode::invalid_config, "the job's model tells classes of texts, each of which is a sample", job.data.where,
                "a job whose model predicts tokens", "`tessera data inspect TRAIN.yaml` says how many texts of each class there are");
}

void pack(const JobOptions& options) {
  const model::JobSpec job = model::read_job(options.yaml, options.overrides);
  refuse_synthetic(job.data);
  refuse_images(job);
  const auto progress = show_progress();
  const auto folder = data::default_cache_dir();
  const auto tokenizer = data::make_tokenizer(job.data, folder, progress);
  ordered_json packed = ordered_json::array();
  for (const model::SourceSpec& one : job.data.sources) {
    const data::Source source = data::open_source(one.path, job.data.records, one.where);
    const data::TokenCache cache = data::open_token_cache(source, *tokenizer, one.where, folder, progress);
    cache.verify();
    if (!source.left_out.empty()) std::fprintf(stderr, "%s\n", data::left_out_text(source).c_str());
    packed.push_back({{"source", source.root.string()},
                      {"cache", cache.path().string()},
                      {"documents", cache.document_count()},
                      {"skipped", cache.skipped()},
                      {"tokens", cache.size()},
                      {"vocab", cache.vocab()},
                      {"bytes_per_token", static_cast<double>(source.bytes) / static_cast<double>(cache.size())},
                      {"fingerprint", cache.fingerprint()}});
    if (options.json) continue;
    std::printf("%s: %s tokens in %lld documents, %.2f bytes of files a token%s\n", cache.path().c_str(),
                count_text(static_cast<double>(cache.size())).c_str(), static_cast<long long>(cache.document_count()),
                packed.back()["bytes_per_token"].get<double>(),
                cache.skipped() > 0 ? text("; ", cache.skipped(), " records cannot be read and were skipped").c_str() : "");
  }
  if (options.json) print_json(packed.size() == 1 ? packed.front() : ordered_json{{"sources", packed}});
}

void split(const JobOptions& options) {
  const model::JobSpec job = model::read_job(options.yaml, options.overrides);
  refuse_synthetic(job.data);
  refuse_images(job);
  refuse_labels(job);
  const std::int64_t seq = job.model.dim("seq"), batch = job.train.global_batch;
  const auto dataset =
      data::TextDataset::open(job.data, seq, job.model.dim("vocab"), job.train.seed, data::default_cache_dir(), show_progress());
  dataset->draws(0, batch);
  const double drawn = static_cast<double>(job.train.steps) * static_cast<double>(batch);
  double epoch = static_cast<double>(dataset->train_samples());  // what has no weights is seen whole
  const auto sources = dataset->sources();
  if (sources.size() > 1)
    epoch = std::accumulate(sources.begin(), sources.end(), 0.0,
                            [](double sum, const auto& source) { return sum + static_cast<double>(source.per_epoch); });
  const double epochs = drawn / epoch;
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
    out["sources"] = ordered_json::array();
    for (const auto& source : sources)
      out["sources"].push_back({{"path", source.path.string()},
                                {"train_sequences", source.train},
                                {"validation_sequences", source.validation},
                                {"share", static_cast<double>(source.per_epoch) / epoch},
                                {"passes", epochs * static_cast<double>(source.per_epoch) / static_cast<double>(source.train)}});
    out["notes"] = dataset->notes();
    return print_json(out);
  }
  const auto percent = [](double share) { return fixed(100 * share, 1) + " %"; };
  Table table({{""}, {"", Table::Align::wrapped}});
  table.add({"tokens", text(dataset->token_count())});
  table.add({"training", text(dataset->train_samples(), " sequences of ", seq)});
  table.add({"validation", text(dataset->validation_samples(), " sequences")});
  table.add({"the job", text(job.train.steps, " steps of ", batch, " sequences: ", fixed(epochs, 2), " epochs")});
  if (sources.size() > 1)
    for (const auto& source : sources)
      table.add({"source", text(percent(static_cast<double>(source.per_epoch) / epoch), " from ", source.path.string(), ": ", source.train,
                                " sequences, passed over ",
                                fixed(epochs * static_cast<double>(source.per_epoch) / static_cast<double>(source.train), 2), " times")});
  for (const std::string& note : dataset->notes()) table.add({"note", note});
  if (validates)
    table.add({"unigram", text(fixed(entropy, 4), " nats a validation token (perplexity ", fixed(std::exp(entropy), 1),
                               "): the loss of knowing only how often tokens occur")});
  std::printf("%s", table.text(columns_of(STDOUT_FILENO)).c_str());
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
    std::string source, output = "tokenizer.json";
    model::RecordSpec records;
    std::int64_t vocab = 8192;
    bool json = false;
  };
  auto training = std::make_shared<Training>();
  tokenizer->add_option("source", training->source, "A file of text, JSONL or Parquet, or a folder of them")->required();
  tokenizer->add_option("--vocab", training->vocab, "How many tokens")->capture_default_str()->check(whole_number(1, 1 << 30));
  add_record_options(*tokenizer, training->records);
  tokenizer->add_option("-o,--output", training->output, "Where to write it")->capture_default_str();
  tokenizer->add_flag("--json", training->json, "One JSON object");
  tokenizer->callback(
      [training] { train_tokenizer(training->source, training->records, training->vocab, training->output, training->json); });

  add_job_command(*data, "pack", "Tokenize a job's text into its cache", pack);
  add_job_command(*data, "split", "Show a job's training and validation split", split);

  CLI::App* inspect = data->add_subcommand("inspect", "Look into text, a tokenizer, a token cache or a job's data");
  auto inspection = std::make_shared<InspectOptions>();
  inspect->add_option("file", inspection->file, "A train.yaml, text, JSONL, Parquet, a folder, tokenizer.json, .model or tokens-….bin")
      ->required();
  inspect->add_option("--samples", inspection->samples, "How many documents or sequences to show")
      ->capture_default_str()
      ->check(whole_number(0));
  inspect->add_option("--tokenizer", inspection->tokenizer, "Decodes the tokens of a cache");
  add_record_options(*inspect, inspection->records);
  inspect->add_flag("--json", inspection->json, "One JSON object");
  inspect->callback([inspection] { inspect_data(*inspection); });

  add_data_batch(*data);
  add_line_command(*data, "encode", "Token ids of each line of the standard input", encode_lines);
  add_line_command(*data, "decode", "Text of each line of token ids on the standard input", decode_lines);
}

}  // namespace tessera::cli
