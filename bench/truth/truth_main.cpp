// The cost model against published measurements; see run.py.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "calibrate/extent.hpp"
#include "calibrate/fit.hpp"
#include "report.hpp"

namespace tessera::truth {
namespace {

using calibrate::label;
using calibrate::predicted;

using Json = nlohmann::ordered_json;

struct Options {
  std::filesystem::path data;
  std::filesystem::path shipped;
  std::filesystem::path tasks;
  std::filesystem::path fit_into;  // write calibrations there instead of reporting
  bool fresh = false;              // fit now instead of using what is compiled in
  bool json = false;
};

std::vector<std::string> sources_of(const std::vector<Priced>& rows) {
  std::vector<std::string> out;
  for (const Priced& priced : rows)
    if (std::find(out.begin(), out.end(), priced.row->source) == out.end()) out.push_back(priced.row->source);
  return out;
}

// Microseconds of one evaluation, over all rows.
double microseconds(const std::vector<Priced>& rows) {
  constexpr int kTurns = 20;
  const auto start = std::chrono::steady_clock::now();
  double sum = 0;
  for (int turn = 0; turn < kTurns; ++turn)
    for (const Priced& one : rows) sum += predicted(*one.row, profile::calibration_for(one.row->group.device.name, one.row->group.stack));
  const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - start;
  return sum > 0 ? spent.count() / (kTurns * static_cast<double>(rows.size())) : 0;
}

template <typename Wanted>
std::vector<Priced> only(const std::vector<Priced>& rows, const Wanted& wanted) {
  std::vector<Priced> out;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(out), wanted);
  return out;
}

std::vector<Priced> of_source(const std::vector<Priced>& rows, const std::string& source) {
  return only(rows, [&](const Priced& priced) { return priced.row->source == source; });
}

// Sources with models of both kinds are shown as two.
std::vector<std::pair<std::string, std::vector<Priced>>> parts(const std::vector<Priced>& rows) {
  std::vector<std::pair<std::string, std::vector<Priced>>> out;
  for (const std::string& source : sources_of(rows)) {
    const std::vector<Priced> all = of_source(rows, source);
    const auto dense = only(all, [](const Priced& priced) { return !priced.row->has_experts(); });
    const auto sparse = only(all, [](const Priced& priced) { return priced.row->has_experts(); });
    if (!dense.empty()) out.emplace_back(source + (sparse.empty() ? "" : " (dense)"), dense);
    if (!sparse.empty()) out.emplace_back(source + (dense.empty() ? "" : " (experts)"), sparse);
  }
  return out;
}

bool is_stated(const Priced& priced) { return priced.row->guesses.empty(); }

void line(const std::string& name, const Score& all) {
  std::printf("%-36s %5d %8.2f %8.2f %7.2f %7.2f", name.c_str(), all.rows, all.mape, all.worst, all.tau, all.tau_token);
}

// Rows, mean and worst error of a part of a source; blanks where it has no row.
void further(const Score& part) {
  if (part.rows > 0)
    std::printf(" %8d %8.2f %8.2f", part.rows, part.mape, part.worst);
  else
    std::printf(" %8d %8s %8s", 0, "-", "-");
}

// What was guessed, source by source.
void print_guesses(const std::vector<Priced>& priced) {
  std::printf("\n%-28s %-64s %5s %8s\n", "guessed", "", "rows", "mean %");
  for (const std::string& source : sources_of(priced))
    for (const auto& [guess, part] : by_guess(of_source(priced, source)))
      std::printf("%-28s %-64s %5zu %8.2f\n", source.c_str(), guess.c_str(), part.size(), score_of(part).mape);
}

void print_memory(const std::vector<Value>& values) {
  if (values.empty()) return;
  double sums[2] = {};
  int counts[2] = {};
  std::printf("\n%-64s %10s %10s %7s\n", "memory", "published", "priced", "error");
  for (const Value& value : values) {
    const double error = 100 * (value.priced / value.published - 1);
    sums[value.state ? 1 : 0] += std::abs(error);
    ++counts[value.state ? 1 : 0];
    std::printf("%-64s %10.2f %10.2f %+6.2f%%\n", value.name.c_str(), value.published, value.priced, error);
  }
  std::printf("activations: mean error %.2f %%; weights, gradients and optimizer: %.2f %%\n", sums[0] / std::max(1, counts[0]),
              sums[1] / std::max(1, counts[1]));
}

void print_layers(const std::vector<Value>& values) {
  if (values.empty()) return;
  double sum = 0;
  std::printf("\n%-64s %10s %10s %7s\n", "one layer of GPT 22B, ms", "published", "priced", "error");
  for (const Value& value : values) {
    const double error = 100 * (value.priced / value.published - 1);
    sum += std::abs(error);
    std::printf("%-64s %10.2f %10.2f %+6.2f%%\n", value.name.c_str(), value.published, value.priced, error);
  }
  std::printf("mean error %.2f %%\n", sum / static_cast<double>(values.size()));
}

void print(const std::vector<Row>& rows, const std::vector<Priced>& priced, const std::vector<Task>& tasks,
           const std::vector<Row>& shipped) {
  for (const Priced& one : priced)
    std::printf("%-28s %3d %c%c %-76s %9.3f s %9.3f s %+6.1f%%\n", one.row->source.c_str(), one.row->number, one.fitted ? '*' : ' ',
                is_stated(one) ? ' ' : '?', label(*one.row).c_str(), one.row->measured, one.seconds,
                100 * (one.seconds / one.row->measured - 1));
  for (const Row& row : rows)
    if (!row.skipped.empty())
      std::printf("%-28s %3d    %s: not priced, %s\n", row.source.c_str(), row.number, row.name.c_str(), row.skipped.c_str());
  std::printf("\nmeasured, priced; * rows that a calibration was fitted on; ? rows whose source leaves open what the reader guessed\n");
  std::printf("\n%-36s %5s %8s %8s %7s %7s %8s %8s %8s %8s %8s %8s\n", "source", "rows", "mean %", "worst %", "tau", "/token", "unfitted",
              "mean %", "worst %", "no guess", "mean %", "worst %");
  const auto whole_line = [](const std::string& name, const std::vector<Priced>& part) {
    line(name, score_of(part));
    further(score_of(only(part, [](const Priced& one) { return !one.fitted; })));
    further(score_of(only(part, is_stated)));
    std::printf("\n");
  };
  for (const auto& [name, part] : parts(priced)) whole_line(name, part);
  whole_line("all", priced);
  print_guesses(priced);
  const auto lone_line = [](const std::string& name, const std::vector<Priced>& part) {
    line(name, score_of(part));
    std::printf("\n");
  };
  std::printf("\nleft out: the accelerator fitted on the other sources alone\n%-36s %5s %8s %8s %7s %7s\n", "source", "rows", "mean %",
              "worst %", "tau", "/token");
  for (const std::string& source : sources_of(priced)) {
    const std::vector<Priced> left = price_left_out(source, shipped, tasks);
    if (left.empty()) {
      std::printf("%-36s no other source has its accelerator\n", source.c_str());
      continue;
    }
    for (const auto& [name, part] : parts(left)) lone_line(name, part);
  }
  std::printf(
      "\nown stack: calibrated on three rows of the source, as `tessera calibrate` does; its other rows\n%-36s %5s %8s %8s %7s %7s\n",
      "source", "rows", "mean %", "worst %", "tau", "/token");
  for (const std::string& source : sources_of(priced)) {
    const std::vector<Priced> others = price_calibrated(source, rows);
    for (const auto& [name, part] : parts(others)) lone_line(name, part);
  }
  std::printf("\nLlama-2-7B sharded over 2,048 H100 instead of 128 loses %.1f %% of its tokens per second; published: 37.2 %%\n",
              lost_at_scale());
}

// What each shipped calibration says it was measured on, and what the rows give.
Json measured(const std::vector<Task>& tasks) {
  Json out = Json::object();
  for (const Task& task : tasks) {
    const auto& known = profile::known_calibrations();
    const auto shipped = std::find_if(known.begin(), known.end(), [&](const auto& one) { return one.name == task.start.name; });
    out[task.start.name] = {{"shipped", shipped == known.end() || !shipped->measured ? "" : to_yaml(*shipped->measured)},
                            {"rows", to_yaml(calibrate::extent_of(task.priced))}};
  }
  return out;
}

void print_json(const std::vector<Row>& rows, const std::vector<Priced>& priced, const std::vector<Task>& tasks,
                const std::vector<Value>& memory) {
  Json sources = Json::object();
  const auto add = [&](const std::string& name, const std::vector<Priced>& part) {
    const Score score = score_of(part);
    const Score stated = score_of(only(part, is_stated));
    sources[name] = {
        {"rows", score.rows}, {"mape", score.mape}, {"worst", score.worst}, {"tau", score.tau}, {"tau_per_token", score.tau_token}};
    sources[name]["without_guesses"] = {{"rows", stated.rows}, {"mape", stated.mape}, {"worst", stated.worst}};
  };
  for (const std::string& source : sources_of(priced)) {
    const std::vector<Priced> all = of_source(priced, source);
    add(source, all);
    const auto sparse = only(all, [](const Priced& one) { return one.row->has_experts(); });
    if (!sparse.empty() && sparse.size() < all.size()) {
      add(source + ":dense", only(all, [](const Priced& one) { return !one.row->has_experts(); }));
      add(source + ":experts", sparse);
    }
  }
  Json each = Json::array();
  for (const Priced& one : priced)
    each.push_back({{"source", one.row->source},
                    {"row", one.row->number},
                    {"model", one.row->name},
                    {"measured_s", one.row->measured},
                    {"priced_s", one.seconds},
                    {"fitted", one.fitted},
                    {"guesses", one.row->guesses}});
  Json skipped = Json::array();
  for (const Row& row : rows)
    if (!row.skipped.empty())
      skipped.push_back({{"source", row.source}, {"row", row.number}, {"model", row.name}, {"reason", row.skipped}});
  Json values = Json::array();
  for (const Value& value : memory) values.push_back({{"name", value.name}, {"published", value.published}, {"priced", value.priced}});
  std::printf("%s\n",
              Json({{"sources", sources}, {"rows", each}, {"not_priced", skipped}, {"memory", values}, {"measured", measured(tasks)}})
                  .dump()
                  .c_str());
}

void write_fits(const std::vector<Task>& tasks, const std::filesystem::path& folder) {
  for (const Task& task : tasks) {
    const profile::Calibration calibration = fitted(task);
    std::string name = calibration.name + ".yaml";
    std::replace(name.begin(), name.end(), '/', '-');
    write_whole(real_file_system(), folder / name, to_yaml(calibration));
    std::vector<Priced> rows;
    for (const Row* row : task.rows) rows.push_back({row, predicted(*row, calibration), true});
    const Score score = score_of(rows);
    std::printf("%-40s %3d rows, %2d parameters: mean %.2f %%, worst %.2f %%\n", calibration.name.c_str(), score.rows,
                static_cast<int>(task.parameters.size()), score.mape, score.worst);
  }
}

int run(const Options& options) {
  const std::vector<Row> shipped = read_rows(options.shipped);
  const std::vector<Task> tasks = read_tasks(options.tasks, shipped);
  if (!options.fit_into.empty()) {
    write_fits(tasks, options.fit_into);
    return 0;
  }
  const bool own = options.data == options.shipped;
  const std::vector<Row> other = own ? std::vector<Row>() : read_rows(options.data);
  const std::vector<Row>& rows = own ? shipped : other;
  const std::vector<Priced> priced = price_all(rows, tasks, options.fresh);
  const std::vector<Value> memory = price_memory(options.data);
  if (options.json) {
    print_json(rows, priced, tasks, memory);
  } else {
    print(rows, priced, tasks, shipped);
    print_memory(memory);
    print_layers(price_layers(options.data));
    std::printf("one plan is priced in %.0f us\n", microseconds(priced));
  }
  return 0;
}

}  // namespace
}  // namespace tessera::truth

int main(int count, char** arguments) {
  tessera::truth::Options options;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    const auto value = [&]() -> std::string { return i + 1 < count ? arguments[++i] : ""; };
    if (name == "--json") options.json = true;
    if (name == "--fresh") options.fresh = true;
    if (name == "--data") options.data = value();
    if (name == "--shipped") options.shipped = value();
    if (name == "--tasks") options.tasks = value();
    if (name == "--fit-into") options.fit_into = value();
  }
  if (options.data.empty()) options.data = options.shipped;
  try {
    return tessera::truth::run(options);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 1;
  }
}
