#include "train/tables_report.hpp"

#include <nlohmann/json.hpp>

#include "ps/summary.hpp"

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const ps::Latencies& latencies) {
  Json out{{"messages", latencies.count()}};
  if (const std::optional<Seconds> median = latencies.quantile(0.5)) {
    out["median"] = median->value;
    out["p99"] = latencies.quantile(0.99)->value;
  }
  return out;
}

Json json_of(const ps::TableSummary& table) {
  Json out{{"rows", table.rows},
           {"memory_bytes", (table.memory.index + table.memory.rows).value},
           {"disk_bytes", table.memory.disk.value},
           {"keys_pulled", table.keys_pulled},
           {"keys_pushed", table.keys_pushed},
           {"gradients_refused", table.gradients_refused},
           {"pulls", json_of(table.latencies.pulls)},
           {"pushes", json_of(table.latencies.pushes)}};
  if (const std::optional<double> hits = ps::hit_share(table.memory)) out["hits"] = *hits;
  return out;
}

}  // namespace

std::string to_json(const TablesReport& report, const model::JobSpec& job) {
  const model::ParameterServerSpec& asked = job.parameter_servers;
  Json out{{"seconds", report.passed.value}, {"steps", report.steps}, {"consistency", asked.consistency}};
  if (asked.consistency == "asynchronous") out["staleness"] = asked.staleness;
  if (asked.consistency == "geo") out["exchange_every"] = asked.exchange_every;
  out["seen"] = {{"pulls", report.seen.pulls}, {"mean", report.seen.mean}, {"most", report.seen.most}};
  const ps::TableSummary all = ps::summarize(report.servers, job.name);
  Json table = json_of(all);
  table["name"] = job.name;
  if (const std::optional<double> skew = all.skew()) table["skew"] = *skew;
  table["servers"] = Json::array();
  for (std::size_t server = 0; server < report.servers.size(); ++server) {
    Json one = json_of(ps::summarize(std::span(report.servers).subspan(server, 1), job.name));
    one["place"] = asked.places.at(server);
    table["servers"].push_back(std::move(one));
  }
  out["tables"] = Json::array({std::move(table)});
  return out.dump() + "\n";
}

}  // namespace tessera::train
