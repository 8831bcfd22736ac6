// tessera calibrate: a stack's calibration from steps that its user measured.
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "base/table.hpp"
#include "base/terminal.hpp"
#include "calibrate/calibrate.hpp"
#include "calibrate/extent.hpp"
#include "cli/checks.hpp"
#include "cli/commands.hpp"

namespace tessera::cli {
namespace {

using calibrate::Row;

struct CalibrateOptions {
  std::string table;
  std::string output;
  std::string name;
  std::string attention = "fused";
  std::vector<int> rows;  // to fit on; empty: all
  bool json = false;
};

struct Judged {
  const Row* row;
  bool fitted;
  double seconds;   // under the calibration
  double left_out;  // of fitted rows: under one fitted without it; otherwise the same
  double error() const { return 100 * (left_out / row->measured - 1); }
};

std::vector<Row> read_rows(const CalibrateOptions& options) {
  std::vector<Row> out;
  int line = 0;
  for (const calibrate::Cells& cells : calibrate::read_table(options.table)) {
    out.push_back(calibrate::read_row(std::filesystem::path(options.table).stem().string(), cells, ++line));
    calibrate::complete(out.back(), cells);
  }
  for (const int number : options.rows) {
    if (number < 1 || number > line)
      throw Error(ErrorCode::invalid_config, text("--rows ", number, ": ", options.table, " has ", line, " rows"), {},
                  text("a number from 1 to ", line));
    const Row& row = out[static_cast<std::size_t>(number) - 1];
    if (!row.skipped.empty())
      throw Error(ErrorCode::invalid_config, text("--rows ", number, ": the row cannot be priced, ", row.skipped), {}, "another row");
  }
  return out;
}

void print(const std::vector<Row>& rows, const std::vector<Judged>& judged, const profile::Calibration& calibration) {
  using Align = Table::Align;
  Table table({{"row", Align::right},
               {"", Align::wrapped},
               {"measured", Align::right},
               {"predicted", Align::right},
               {"error", Align::right},
               {""}});
  for (const Judged& one : judged)
    table.add({text(one.row->number), calibrate::label(*one.row), fmt::format("{:.3f} s", one.row->measured),
               fmt::format("{:.3f} s", one.left_out), fmt::format("{:+.1f}%", one.error()), one.fitted ? "*" : ""});
  std::printf("%s", table.text(columns_of(STDOUT_FILENO)).c_str());
  for (const Row& row : rows)
    if (!row.skipped.empty()) std::printf("%4d %s: not priced, %s\n", row.number, row.name.c_str(), row.skipped.c_str());
  double sum = 0;
  for (const Judged& one : judged) sum += std::abs(one.error());
  std::printf("\n* fitted on; predicted as if it had been left out. Mean error %.1f %%\n", sum / static_cast<double>(judged.size()));
  std::vector<std::string> guesses;
  for (const Judged& one : judged)
    for (const std::string& guess : one.row->guesses)
      if (std::find(guesses.begin(), guesses.end(), guess) == guesses.end()) guesses.push_back(guess);
  for (const std::string& guess : guesses) std::printf("the table leaves open, and was taken for granted: %s\n", guess.c_str());
  std::printf("\n%s", to_yaml(calibration).c_str());
}

void run(const CalibrateOptions& options) {
  const std::vector<Row> rows = read_rows(options);
  std::vector<const Row*> fit;
  std::vector<const Row*> all;
  for (const Row& row : rows) {
    if (!row.skipped.empty()) continue;
    all.push_back(&row);
    if (options.rows.empty() || std::find(options.rows.begin(), options.rows.end(), row.number) != options.rows.end()) fit.push_back(&row);
  }
  const auto attention = options.attention == "fused" ? profile::AttentionKernel::fused : profile::AttentionKernel::unfused;
  const std::string name = !options.name.empty()     ? options.name
                           : !options.output.empty() ? std::filesystem::path(options.output).stem().string()
                                                     : std::filesystem::path(options.table).stem().string();
  profile::Calibration calibration = calibrate::calibrated(name, attention, fit);
  // The rows that it was not fitted on are compared with it.
  std::vector<const Row*> same = all;
  std::erase_if(same, [&](const Row* row) { return profile::family_of(row->group.device.name) != calibration.accelerator; });
  calibration.measured = std::make_shared<const profile::Extent>(calibrate::extent_of(same));
  std::vector<Judged> judged;
  for (const Row* row : all) {
    const bool fitted = std::find(fit.begin(), fit.end(), row) != fit.end();
    const double seconds = calibrate::predicted(*row, calibration);
    double left_out = seconds;
    if (fitted) {
      std::vector<const Row*> others = fit;
      std::erase(others, row);
      left_out = calibrate::predicted(
          *row, others.empty() ? calibrate::start_of(calibration.accelerator, attention) : calibrate::calibrated(name, attention, others));
    }
    judged.push_back({row, fitted, seconds, left_out});
  }
  if (!options.output.empty()) write_named(options.output, to_yaml(calibration));
  if (options.json) {
    nlohmann::ordered_json each = nlohmann::ordered_json::array();
    for (const Judged& one : judged)
      each.push_back({{"row", one.row->number},
                      {"measured_s", one.row->measured},
                      {"predicted_s", one.seconds},
                      {"left_out_s", one.left_out},
                      {"fitted", one.fitted}});
    std::printf("%s\n", nlohmann::ordered_json({{"stack", name}, {"rows", each}}).dump().c_str());
    return;
  }
  print(rows, judged, calibration);
  if (!options.output.empty())
    std::printf("\nwritten to %s; `stack: %s` in a group of a cluster file prices by it\n", options.output.c_str(), options.output.c_str());
}

}  // namespace

void add_calibrate_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("calibrate", "Fit the prices of accelerators to steps that you measured with any trainer")->group(kPlanGroup);
  auto options = std::make_shared<CalibrateOptions>();
  command->add_option("rows_csv", options->table, "Measured steps, one a line; docs/file-formats.md has the columns")->required();
  command->add_option("-o,--output", options->output, "Write the calibration here, for `stack:` in a cluster file");
  command->add_option("--rows", options->rows, "Fit on these rows (from 1) and show the error of the others; all without")
      ->delimiter(',')
      ->check(whole_number(1));
  command->add_option("--name", options->name, "What to call the stack; the output file's name without");
  command->add_option("--attention", options->attention, "How the software computes attention: fused or unfused")
      ->check(CLI::IsMember({"fused", "unfused"}))
      ->capture_default_str();
  command->add_flag("--json", options->json, "The errors as one JSON object");
  command->callback([options] { run(*options); });
}

}  // namespace tessera::cli
