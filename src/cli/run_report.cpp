#include "cli/run_report.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "base/file_system.hpp"
#include "cli/measured_profile.hpp"
#include "cli/plan_report_parts.hpp"
#include "cli/report_page.hpp"
#include "cli/run_report_page.hpp"
#include "cli/run_report_timeline.hpp"
#include "cost/cost.hpp"
#include "observe/run.hpp"
#include "observe/runs.hpp"
#include "program/timeline.hpp"
#include "sim/sim.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

// What a curve has at most; of longer ones the lowest and the highest point of each stretch.
constexpr std::size_t kMostPoints = 600;
// A larger plan's ranks are not all simulated.
constexpr int kMostSimulated = 64;

// The run's files, as far as they can be read.
struct Run {
  observe::RunSummary summary;
  std::vector<observe::StepMetrics> metrics;
  std::vector<observe::EvaluationMetrics> evaluations;
  std::map<std::int64_t, program::TracedStep> trace;
  std::optional<plan::Plan> plan;
  std::optional<cluster::ClusterSpec> cluster;
  std::map<int, std::int64_t> memory;  // by rank, the peak
  Json tables;                         // servers.json, where tables lie on parameter servers
  std::vector<std::string> notes;
};

struct Predicted {
  program::TracedStep step;
  program::StepFigures figures;
  std::vector<Bytes> memory;  // by rank
};

// `file` may be missing for the reason `why_missing`; what is wrong in it becomes a note, too.
template <typename Read>
void attempt(Run& run, const std::filesystem::path& file, const std::string& why_missing, const Read& read) {
  if (!std::filesystem::exists(file)) {
    run.notes.push_back(text(file.filename().string(), " is missing: ", why_missing));
    return;
  }
  try {
    read();
  } catch (const Error& problem) {
    run.notes.push_back(text(file.filename().string(), " is left out: ", problem.what()));
  }
}

void read_memory(Run& run, const std::filesystem::path& folder) {
  for (int rank = 0;; ++rank) {
    const std::filesystem::path file = folder / text("rank-", rank, ".json");
    if (!std::filesystem::exists(file)) return;
    const Json json = Json::parse(read_whole(file), nullptr, false);
    if (json.is_object() && json.contains("peak_resident") && json["peak_resident"].is_number_integer())
      run.memory[rank] = json["peak_resident"].get<std::int64_t>();
    else
      run.notes.push_back(text("memory/", file.filename().string(), " is left out: it does not say {\"peak_resident\": BYTES}"));
  }
}

// What the page's script will look for; so another file is refused here, with a note.
void check_answers(const Json& answers) {
  answers.at("messages").get<std::uint64_t>();
  for (const char* const key : {"median", "p99"})
    if (answers.contains(key)) answers.at(key).get<double>();
}
void check_part(const Json& part) {
  for (const char* const key : {"rows", "memory_bytes", "disk_bytes", "keys_pulled", "keys_pushed"}) part.at(key).get<std::int64_t>();
  for (const char* const key : {"hits", "skew"})
    if (part.contains(key)) part.at(key).get<double>();
  check_answers(part.at("pulls"));
  check_answers(part.at("pushes"));
}

Json read_tables(const std::filesystem::path& file) {
  try {
    Json json = Json::parse(read_whole(file));
    json.at("seconds").get<double>();
    json.at("steps").get<std::int64_t>();
    json.at("consistency").get<std::string>();
    for (const char* const key : {"pulls", "mean", "most"}) json.at("seen").at(key).get<double>();
    for (const char* const key : {"staleness", "exchange_every"})
      if (json.contains(key)) json.at(key).get<std::int64_t>();
    for (const Json& table : json.at("tables")) {
      table.at("name").get<std::string>();
      check_part(table);
      for (const Json& server : table.at("servers")) {
        server.at("place").get<std::string>();
        check_part(server);
      }
    }
    return json;
  } catch (const Json::exception& problem) {
    throw Error(ErrorCode::corrupt, text("it does not say what the servers have done: ", problem.what()),
                {.file = file.string(), .block = {}}, "what a run writes when it ends");
  }
}

Run read_run(const std::filesystem::path& folder) {
  Run run;
  run.summary = observe::summarize(folder);
  run.metrics = observe::read_metrics(folder / "metrics.jsonl");
  run.evaluations = observe::read_evaluations(folder / "evaluations.jsonl");
  attempt(run, folder / "trace.json", "it is written when a run ends",
          [&] { run.trace = program::read_trace(read_whole(folder / "trace.json"), (folder / "trace.json").string()); });
  attempt(run, folder / "plan.json", "what was predicted is not known", [&] { run.plan = plan::load_plan(folder / "plan.json"); });
  attempt(run, folder / "cluster.yaml", "what was predicted is not known",
          [&] { run.cluster = cluster::load_cluster(folder / "cluster.yaml"); });
  read_memory(run, folder / "memory");
  // Other models have none.
  if (const auto file = folder / "servers.json"; std::filesystem::exists(file))
    attempt(run, file, "", [&] { run.tables = read_tables(file); });
  // A run that was stopped by force leaves that of its rank 0 in its metrics alone.
  if (!run.memory.contains(0) && run.summary.memory) run.memory[0] = *run.summary.memory;
  return run;
}

struct Prices {
  std::optional<profile::Profile> profile;
  std::string said;  // whose prices; without a profile, why there is none
};

Prices prices_of(const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  const std::string none =
      "no predicted timeline: the cache of this host has no profile of this run as it was measured by this version; --profile FILE names "
      "another";
  std::filesystem::path path;
  try {
    path = cached_profile_path(job, cluster, Workers({}));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    return {{}, none};
  }
  CachedProfile cached = load_cached_profile(path);
  if (cached.damaged)
    return {{}, "no predicted timeline: the profile of this run in the cache of this host is damaged; --profile FILE names another"};
  if (!cached.profile || cached.profile->blocks.empty()) return {{}, none};
  return {std::move(cached.profile), "the profile of this host in its cache"};
}

// By these prices, or by those of the cache.
std::optional<Predicted> predict(Run& run, const std::filesystem::path& folder, std::optional<Prices> prices, std::string& said) {
  if (!run.plan || !run.cluster) return {};
  try {
    const model::JobSpec job = model::read_job(folder / "train.yaml", {});
    plan::check(*run.plan, job, *run.cluster);
    if (!prices) prices = prices_of(job, *run.cluster);
    said = prices->said;
    if (!prices->profile) {
      run.notes.push_back(said);
      return {};
    }
    const auto which = run.plan->world_size() <= kMostSimulated ? sim::Simulated::every_rank : sim::Simulated::one_of_alike;
    const auto [programs, result] = sim::simulate(*run.plan, job.model, job.train, *run.cluster, *prices->profile, which);
    Predicted out;
    // By the same way as what was measured: through a trace.
    out.step = program::read_trace(sim::to_chrome_trace(result, programs), "the simulated trace").at(0);
    out.figures = program::figures_of(out.step);
    for (const sim::RankResult& rank : result.ranks) out.memory.push_back(rank.peak_memory);
    return out;
  } catch (const Error& problem) {
    run.notes.push_back(text("no predicted timeline: ", problem.what()));
    return {};
  }
}

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(); }
Json optional_number(const std::optional<double>& value) { return value ? finite(*value) : Json(); }

// [[step, value], ...]
Json thinned(const std::vector<std::pair<std::int64_t, double>>& points) {
  const std::size_t stretch = points.size() <= kMostPoints ? 1 : 2 * ((points.size() + kMostPoints - 1) / kMostPoints);
  Json out = Json::array();
  for (std::size_t begin = 0; begin < points.size(); begin += stretch) {
    const std::size_t end = std::min(points.size(), begin + stretch);
    std::optional<std::size_t> low, high;
    for (std::size_t i = begin; i < end; ++i) {
      if (!std::isfinite(points[i].second)) continue;
      if (!low || points[i].second < points[*low].second) low = i;
      if (!high || points[i].second > points[*high].second) high = i;
    }
    const auto add = [&](std::size_t i) { out.push_back({points[i].first, finite(points[i].second)}); };
    if (!low) {
      add(begin);
      continue;
    }
    add(std::min(*low, *high));
    if (*low != *high) add(std::max(*low, *high));
  }
  return out;
}

Json curves_of(const Run& run) {
  const auto of = [&](double observe::StepMetrics::*value) {
    std::vector<std::pair<std::int64_t, double>> points;
    for (const observe::StepMetrics& step : run.metrics) points.emplace_back(step.step + 1, step.*value);
    return thinned(points);
  };
  std::vector<std::pair<std::int64_t, double>> validation;
  for (const observe::EvaluationMetrics& one : run.evaluations) validation.emplace_back(one.step, one.loss);
  return {{"steps", run.metrics.size()},
          {"thinned", std::max(run.metrics.size(), validation.size()) > kMostPoints},
          {"loss", of(&observe::StepMetrics::loss)},
          {"validation", thinned(validation)},
          {"throughput", of(&observe::StepMetrics::tokens_per_s)},
          {"grad_norm", of(&observe::StepMetrics::grad_norm)}};
}

Json shares_of(const program::StepFigures& step) {
  return {{"step", step.length.value},
          {"computing", step.mean.computing / step.length},
          {"exposed", step.mean.exposed / step.length},
          {"reading", step.mean.reading / step.length},
          {"idle", step.mean.idle / step.length}};
}

Json facts_of(const Run& run, const std::optional<program::StepFigures>& measured, const std::optional<Predicted>& predicted,
              const std::string& prices) {
  const observe::RunSummary& summary = run.summary;
  Json out = {{"state", observe::name_of(summary.state)},
              {"steps", summary.steps},
              {"planned_steps", summary.planned_steps ? Json(*summary.planned_steps) : Json()},
              {"plan", summary.plan},
              {"cluster", run.cluster ? run.cluster->name : ""},
              {"workers", run.plan ? Json(run.plan->world_size()) : Json()},
              {"tokens_of_step", run.metrics.empty() ? Json() : Json(run.metrics.back().tokens)},
              {"counted", summary.counted},
              {"tokens", summary.tokens},
              {"step_seconds", optional_number(summary.step_seconds)},
              {"tokens_per_s", optional_number(summary.tokens_per_s)},
              {"mfu", optional_number(summary.mfu)},
              {"final_loss", optional_number(summary.final_loss)},
              {"best_validation_loss", optional_number(summary.best_validation_loss)},
              {"last_error", summary.last_error},
              {"prices", prices},
              {"measured", measured ? shares_of(*measured) : Json()},
              {"predicted", predicted ? shares_of(predicted->figures) : Json()}};
  out["planned_step"] = run.plan && run.plan->predicted ? Json(run.plan->predicted->step.value) : Json();
  return out;
}

Json kinds_table(const std::optional<program::StepFigures>& measured, const std::optional<Predicted>& predicted) {
  std::map<program::Op, Json> rows;
  const auto add = [&](const program::StepFigures& step, const char* which) {
    for (const program::KindFigures& kind : program::kinds_of(step)) {
      Json& row =
          rows.try_emplace(kind.op, Json{{"kind", program::name_of(kind.op)}, {"measured", Json()}, {"predicted", Json()}}).first->second;
      row[which] = {{"count", kind.count}, {"median", kind.median.value}, {"total", kind.total.value}};
    }
  };
  if (measured) add(*measured, "measured");
  if (predicted) add(predicted->figures, "predicted");
  Json out = Json::array();
  for (auto& [op, row] : rows) out.push_back(std::move(row));
  return out;
}

Json ranks_table(const Run& run, const std::optional<program::StepFigures>& measured, const std::optional<Predicted>& predicted) {
  constexpr int kMostRows = 64;
  int world = run.plan ? run.plan->world_size() : 0;
  if (measured) world = std::max(world, measured->ranks.rbegin()->first + 1);
  const std::vector<Bytes> limits = run.plan && run.cluster ? cost::memory_limits(*run.plan, *run.cluster) : std::vector<Bytes>();
  const auto times = [](const std::map<int, program::RankTime>& ranks, int rank) {
    const auto found = ranks.find(rank);
    if (found == ranks.end()) return Json();
    const program::RankTime& time = found->second;
    return Json(
        {{"computing", time.computing.value}, {"exposed", time.exposed.value}, {"reading", time.reading.value}, {"idle", time.idle.value}});
  };
  Json out = Json::array();
  for (int rank = 0; rank < std::min(world, kMostRows); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    Json memory;  // simulated now, or else as the plan has it
    if (predicted && at < predicted->memory.size())
      memory = predicted->memory[at].value;
    else if (run.plan && run.plan->predicted && at < run.plan->predicted->memory.size())
      memory = run.plan->predicted->memory[at].value;
    const auto resident = run.memory.find(rank);
    out.push_back({{"rank", rank},
                   {"measured", measured ? times(measured->ranks, rank) : Json()},
                   {"predicted", predicted ? times(predicted->figures.ranks, rank) : Json()},
                   {"memory", resident == run.memory.end() ? Json() : Json(resident->second)},
                   {"memory_predicted", memory},
                   {"limit", at < limits.size() ? Json(limits[at].value) : Json()}});
  }
  return out;
}

// The step whose length is nearest the median, as an example of it.
std::int64_t typical(const std::map<std::int64_t, program::StepFigures>& steps, Seconds median) {
  const auto off = [&](const auto& step) { return std::abs((step.second.length - median).value); };
  return std::min_element(steps.begin(), steps.end(), [&](const auto& a, const auto& b) { return off(a) < off(b); })->first;
}

bool same_instructions(const program::TracedStep& a, const program::TracedStep& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    const auto& first = one.second.instructions;
    const auto& second = other.second.instructions;
    return one.first == other.first &&
           std::equal(first.begin(), first.end(), second.begin(), second.end(),
                      [](const auto& x, const auto& y) { return x.first == y.first && x.second.op == y.second.op; });
  });
}

}  // namespace

RunReport run_report(const std::filesystem::path& folder, const std::filesystem::path& profile) {
  std::optional<Prices> named;
  if (!profile.empty()) named = {profile::load_profile(profile), text("the profile ", profile.filename().string())};
  Run run = read_run(folder);
  std::map<std::int64_t, program::StepFigures> steps;
  for (const auto& [step, ranks] : run.trace) steps[step] = program::figures_of(ranks);
  std::optional<program::StepFigures> measured;
  std::int64_t shown = 0;
  if (!steps.empty()) {
    std::vector<program::StepFigures> all;
    for (const auto& [step, figures] : steps) all.push_back(figures);
    measured = program::median_of(all);
    shown = typical(steps, measured->length);
  }
  std::string prices;
  const std::optional<Predicted> predicted = predict(run, folder, std::move(named), prices);
  const program::TracedStep* of_run = measured ? &run.trace.at(shown) : nullptr;
  const bool alike = of_run != nullptr && predicted && same_instructions(*of_run, predicted->step);
  if (of_run != nullptr && predicted && !alike && run.plan->world_size() <= kMostSimulated)
    run.notes.push_back(
        "trace.json and plan.json do not hold the same instructions: the run went on under another plan after its trace was written");
  const Json data = {{"facts", facts_of(run, measured, predicted, prices)},
                     {"notes", run.notes},
                     {"timelines", timelines_of(of_run, shown, run.trace.size(), predicted ? &predicted->step : nullptr,
                                                run.plan ? &*run.plan : nullptr, run.cluster ? &*run.cluster : nullptr, alike)},
                     {"kinds", kinds_table(measured, predicted)},
                     {"ranks", ranks_table(run, measured, predicted)},
                     {"tables", run.tables},
                     {"curves", curves_of(run)}};
  return {run_report_page("Run " + run.summary.name, data), run.notes};
}

}  // namespace tessera::cli
