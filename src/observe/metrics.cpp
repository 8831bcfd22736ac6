#include "observe/metrics.hpp"

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/file_system.hpp"

namespace tessera::observe {
namespace {

using Json = nlohmann::ordered_json;

double number(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found == line.end() || found->is_null() ? std::numeric_limits<double>::quiet_NaN() : found->get<double>();
}

// Calls `take` for each whole line.
void for_lines(const std::filesystem::path& path, const std::function<void(const Json&)>& take) {
  if (!std::filesystem::exists(path)) return;
  const std::string content = read_whole(path);
  int line = 0;
  for (std::size_t begin = 0; begin < content.size();) {
    const std::size_t end = content.find('\n', begin);
    if (end == std::string::npos) return;
    ++line;
    try {
      take(Json::parse(content.begin() + static_cast<std::ptrdiff_t>(begin), content.begin() + static_cast<std::ptrdiff_t>(end)));
    } catch (const nlohmann::json::exception& problem) {
      throw Error(ErrorCode::corrupt, text("the line cannot be read: ", problem.what()), {path.string(), line, 0, -1, {}},
                  "one JSON object a line", "remove the line to go on without it");
    }
    begin = end + 1;
  }
}

template <typename Line>
void add(std::vector<Line>& lines, Line line) {
  while (!lines.empty() && lines.back().step >= line.step) lines.pop_back();
  lines.push_back(line);
}

}  // namespace

std::string to_json(const StepMetrics& m) {
  return Json{{"step", m.step}, {"loss", m.loss},           {"tokens", m.tokens}, {"seconds", m.seconds}, {"tokens_per_s", m.tokens_per_s},
              {"mfu", m.mfu},   {"grad_norm", m.grad_norm}, {"lr", m.lr},         {"tflops", m.tflops},   {"memory", m.memory}}
      .dump();
}

std::string to_json(const EvaluationMetrics& m) {
  Json json{{"step", m.step}, {"validation_loss", m.loss}};
  if (m.accuracy) json["accuracy"] = *m.accuracy;
  if (m.auc) json["auc"] = *m.auc;
  if (m.stops_early) json["stops_early"] = true;
  return json.dump();
}

std::string json_object(std::initializer_list<std::pair<std::string_view, std::string>> members) {
  Json json = Json::object();
  for (const auto& [key, value] : members) json[std::string(key)] = value;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<StepMetrics> read_metrics(const std::filesystem::path& path) {
  std::vector<StepMetrics> out;
  for_lines(path, [&](const Json& line) {
    StepMetrics m;
    m.step = line.at("step");
    m.loss = number(line, "loss");
    m.tokens = line.at("tokens");
    m.seconds = number(line, "seconds");
    m.tokens_per_s = number(line, "tokens_per_s");
    m.mfu = number(line, "mfu");
    m.grad_norm = number(line, "grad_norm");
    m.lr = number(line, "lr");
    m.tflops = number(line, "tflops");
    m.memory = line.value("memory", std::int64_t{0});
    add(out, m);
  });
  return out;
}

std::vector<EvaluationMetrics> read_evaluations(const std::filesystem::path& path) {
  std::vector<EvaluationMetrics> out;
  for_lines(path, [&](const Json& line) {
    EvaluationMetrics m{line.at("step"), number(line, "validation_loss"), line.value("stops_early", false)};
    if (line.contains("accuracy")) m.accuracy = number(line, "accuracy");
    if (line.contains("auc")) m.auc = number(line, "auc");
    add(out, m);
  });
  return out;
}

}  // namespace tessera::observe
