#include "cli/plan_galvatron.hpp"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "interop/galvatron/galvatron.hpp"

namespace tessera::cli {
namespace {

namespace galvatron = interop::galvatron;

struct Answer {
  galvatron::SearchResult result;
  Seconds search;
};

Answer answer(const GalvatronOptions& options, const galvatron::Inputs& inputs) {
  if (!options.evaluate.empty()) {
    const galvatron::Plan plan = galvatron::read_config(options.evaluate, inputs.settings.devices());
    return {{plan, galvatron::cost_of(inputs, plan), 1, 1}, {}};
  }
  const auto start = std::chrono::steady_clock::now();
  galvatron::SearchResult result = galvatron::search(inputs);
  return {std::move(result), Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count())};
}

// Runs of layers with the same strategy: "layers 0-15: tp2 dp2 zero2".
struct Run {
  std::size_t first, last;
  galvatron::Strategy strategy;
};

std::vector<Run> runs_of(const galvatron::Plan& plan, std::size_t from, std::size_t to) {
  std::vector<Run> runs;
  for (std::size_t i = from; i < to; ++i) {
    if (!runs.empty() && runs.back().strategy == plan.layers[i])
      runs.back().last = i;
    else
      runs.push_back({i, i, plan.layers[i]});
  }
  return runs;
}

// Galvatron's formulas round samples per rank down, so that a plan can look quicker than it is.
std::vector<std::string> warnings_of(const galvatron::Plan& plan) {
  const int samples = plan.global_batch / plan.chunks;
  for (const galvatron::Strategy& layer : plan.layers)
    if (samples % layer.dp != 0)
      return {text("micro-batches of ", samples, " samples do not divide by dp", layer.dp, ": Galvatron's formulas leave ",
                   samples % layer.dp, " of them out")};
  return {};
}

nlohmann::ordered_json json_of(const galvatron::Inputs& inputs, const Answer& answer) {
  const galvatron::Plan& plan = answer.result.plan;
  nlohmann::ordered_json out = {{"cost_s", answer.result.cost.step.value},
                                {"search_s", answer.search.value},
                                {"samples_per_s", plan.global_batch / answer.result.cost.step.value},
                                {"memory_mb", answer.result.cost.memory_mb},
                                {"relayout_s", galvatron::relayout_time(inputs, plan).value},
                                {"memory_limit_mb", inputs.settings.memory_gb * 1024},
                                {"fits", answer.result.cost.fits},
                                {"choices", answer.result.choices},
                                {"examined", answer.result.examined}};
  out["plan"] = nlohmann::ordered_json::parse(galvatron::to_config(inputs, plan));
  for (const Run& run : runs_of(plan, 0, plan.layers.size()))
    out["layers"].push_back({{"first", run.first}, {"last", run.last}, {"strategy", to_text(run.strategy)}});
  out["embedding"] = to_text(plan.embedding);
  if (plan.counted_split > 0) out["counted_split"] = plan.counted_split;
  if (const auto warnings = warnings_of(plan); !warnings.empty()) out["warnings"] = warnings;
  return out;
}

void print_table(const galvatron::Inputs& inputs, const Answer& answer) {
  const galvatron::Plan& plan = answer.result.plan;
  const galvatron::Settings& settings = inputs.settings;
  std::printf("%s on %d devices of %d GB, sequence length %d, by Galvatron's cost model\n\n", settings.model.c_str(), settings.devices(),
              settings.memory_gb, settings.seq);
  std::printf("step        %.4f s for a batch of %d in %d micro-batches (%.2f samples/s)\n", answer.result.cost.step.value,
              plan.global_batch, plan.chunks, plan.global_batch / answer.result.cost.step.value);
  std::printf("embedding   %s\n\n%5s  %-9s %-32s %12s\n", to_text(plan.embedding).c_str(), "stage", "layers", "strategy", "memory");
  std::size_t from = 0;
  for (std::size_t stage = 0; stage < plan.division.size(); ++stage) {
    const std::size_t to = from + plan.division[stage];
    bool first = true;
    for (const Run& run : runs_of(plan, from, to)) {
      const std::string layers = run.first == run.last ? std::to_string(run.first) : text(run.first, '-', run.last);
      const std::string memory = first ? text(answer.result.cost.memory_mb[stage], " MB") : "";
      std::printf("%5s  %-9s %-32s %12s\n", first ? std::to_string(stage).c_str() : "", layers.c_str(), to_text(run.strategy).c_str(),
                  memory.c_str());
      first = false;
    }
    from = to;
  }
  if (const Seconds relayout = galvatron::relayout_time(inputs, plan); relayout.value > 0)
    std::printf("\nleft out of the step, as Galvatron does: %s for activations between layers of different splits\n",
                to_text(relayout).c_str());
  for (const std::string& warning : warnings_of(plan)) std::printf("\nwarning: %s\n", warning.c_str());
  if (!answer.result.cost.fits) std::printf("\nwarning: does not fit into %d MB\n", settings.memory_gb * 1024);
  if (answer.search.value > 0)
    std::printf("\nfound in %s: %lld choices, of which the bound left %lld\n", to_text(answer.search).c_str(),
                static_cast<long long>(answer.result.choices), static_cast<long long>(answer.result.examined));
}

}  // namespace

std::shared_ptr<GalvatronOptions> add_galvatron_options(CLI::App& command) {
  auto options = std::make_shared<GalvatronOptions>();
  CLI::Option* yaml =
      command.add_option("--galvatron", options->yaml, "Plan Hetu-Galvatron's search problem instead; KEY=VALUE words override its YAML")
          ->type_name("SEARCH_DIST.YAML");
  command.add_option("--evaluate", options->evaluate, "With --galvatron: price this galvatron_config_*.json instead of searching")
      ->needs(yaml);
  command
      .add_option("--galvatron-release", options->release,
                  "With --galvatron: whose formulas, 2.4.1 (the YAML's, default) or 2.4.0 (the package index's)")
      ->check(CLI::IsMember({"2.4.0", "2.4.1"}))
      ->needs(yaml);
  return options;
}

void plan_from_galvatron(const GalvatronOptions& options, const std::vector<std::string>& overrides, const std::string& output, bool json) {
  const galvatron::Inputs inputs =
      galvatron::read_inputs(options.yaml, overrides, options.release == "2.4.0" ? galvatron::Release::v2_4_0 : galvatron::Release::v2_4_1);
  const Answer found = answer(options, inputs);
  std::filesystem::path written = output;
  if (!output.empty()) {
    if (std::filesystem::is_directory(written)) written /= galvatron::config_name(inputs.settings);
    write_named(written, galvatron::to_config(inputs, found.result.plan));
  }
  if (json) {
    std::printf("%s\n", json_of(inputs, found).dump().c_str());
    return;
  }
  print_table(inputs, found);
  if (!output.empty()) std::printf("written to %s\n", written.c_str());
}

}  // namespace tessera::cli
