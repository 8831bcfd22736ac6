// tessera data batch: exactly what training sees at a step, for looking at and for other programs to train on the same.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/checks.hpp"
#include "cli/data_inspect.hpp"
#include "data/data.hpp"
#include "model/job.hpp"

namespace tessera::cli {
namespace {

using nlohmann::ordered_json;

struct BatchOptions {
  std::string yaml;
  std::vector<std::string> overrides;
  std::int64_t step = 0;
  std::int64_t count = 1;
  bool json = false;
};

using Values = std::variant<std::vector<std::int32_t>, std::vector<float>, std::vector<std::uint64_t>>;

Values room_for(const data::Field& field) {
  const auto count = static_cast<std::size_t>(field.count());
  switch (field.type) {
    case data::FieldType::whole: return std::vector<std::int32_t>(count);
    case data::FieldType::real: return std::vector<float>(count);
    case data::FieldType::key: break;
  }
  return std::vector<std::uint64_t>(count);
}

// A sample as people read it.
std::string words_of(const data::Dataset& dataset, const std::vector<data::Field>& fields, const std::vector<Values>& values) {
  const data::TextDataset* sequences = data::as_text(dataset);
  if (sequences == nullptr) {
    const auto labels = std::find_if(fields.begin(), fields.end(), [](const data::Field& field) { return field.name == "labels"; });
    return text("label ", std::get<std::vector<std::int32_t>>(values.at(static_cast<std::size_t>(labels - fields.begin())))[0]);
  }
  if (sequences->tokenizer() == nullptr) return "(random tokens)";
  return sequences->decode(std::get<std::vector<std::int32_t>>(values.front()));
}

void print_batches(const BatchOptions& options) {
  const model::JobSpec job = model::read_job(options.yaml, options.overrides);
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const std::vector<data::Field> fields = dataset->fields();
  std::vector<Values> values;
  std::vector<data::Row> rows;
  for (const data::Field& field : fields) values.push_back(room_for(field));
  for (Values& row : values) std::visit([&](auto& numbers) { rows.emplace_back(std::span(numbers)); }, row);
  for (std::int64_t step = options.step; step < options.step + options.count; ++step) {
    ordered_json out = {{"step", step}};
    for (const data::Draw& draw : dataset->draws(step, job.train.global_batch)) {
      dataset->fill(draw, rows);
      if (!options.json) {
        std::printf("step %lld, sample %lld: %s\n", static_cast<long long>(step), static_cast<long long>(draw.sample),
                    words_of(*dataset, fields, values).c_str());
        continue;
      }
      out["samples"].push_back(draw.sample);
      for (std::size_t i = 0; i < fields.size(); ++i) {
        const bool single = fields[i].shape.empty();
        std::visit([&](const auto& row) { out[fields[i].name].push_back(single ? ordered_json(row[0]) : ordered_json(row)); }, values[i]);
      }
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
                    "One JSON object a step: samples and, of text, tokens, targets (-1: not counted) and, of documents kept apart, "
                    "positions, of masked spans, "
                    "decoder_tokens; of images, "
                    "images (channel by channel, normalized) and labels; of click logs, labels, dense and keys");
  command->callback([options] { print_batches(*options); });
}

}  // namespace tessera::cli
