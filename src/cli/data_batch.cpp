// tessera data batch: exactly what training sees at a step, for looking at and for other programs to train on the same.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/checks.hpp"
#include "cli/data_inspect.hpp"
#include "data/data.hpp"
#include "model/job.hpp"

namespace tessera::cli {
namespace {

struct BatchOptions {
  std::string yaml;
  std::vector<std::string> overrides;
  std::int64_t step = 0;
  std::int64_t count = 1;
  bool json = false;
};

void print_batches(const BatchOptions& options) {
  const model::JobSpec job = model::read_job(options.yaml, options.overrides);
  const std::int64_t seq = job.model.dim("seq");
  const auto dataset = data::Dataset::open(job.data, seq, job.model.dim("vocab"), job.train.seed, data::default_cache_dir());
  const std::vector<data::Field> fields = dataset->fields();
  std::vector<std::vector<std::int32_t>> values;
  for (const data::Field& field : fields) values.emplace_back(static_cast<std::size_t>(field.count));
  for (std::int64_t step = options.step; step < options.step + options.count; ++step) {
    nlohmann::ordered_json out = {{"step", step}};
    for (std::int64_t id : dataset->sample_ids(step, job.train.global_batch)) {
      dataset->fill(id, {values.begin(), values.end()});
      out["samples"].push_back(id);
      for (std::size_t i = 0; i < fields.size(); ++i) out[fields[i].name].push_back(values[i]);
      const std::vector<std::int32_t>& tokens = values.front();
      const data::Tokenizer* tokenizer = dataset->tokenizer();
      if (!options.json)
        std::printf(
            "step %lld, sample %lld: %s\n", static_cast<long long>(step), static_cast<long long>(id),
            tokenizer != nullptr ? tokenizer->decode(std::vector<std::uint32_t>(tokens.begin(), tokens.end())).c_str() : "(random tokens)");
    }
    if (options.json) std::printf("%s\n", out.dump().c_str());
  }
}

}  // namespace

void add_data_batch(CLI::App& data) {
  CLI::App* command = data.add_subcommand("batch", "Show the samples that training sees at a step");
  auto options = std::make_shared<BatchOptions>();
  command->add_option("train_yaml", options->yaml, "The job")->required();
  command->add_option("--step", options->step, "The first step (default: 0)")->check(whole_number(0));
  command->add_option("--count", options->count, "How many steps (default: 1)")->check(whole_number(1));
  command->add_option("--set", options->overrides, "Override a key (repeatable)")->type_name("KEY=VALUE");
  command->add_flag("--json", options->json,
                    "One JSON object a step: samples, tokens, targets (-1: not counted) and, of documents kept apart, positions");
  command->callback([options] { print_batches(*options); });
}

}  // namespace tessera::cli
