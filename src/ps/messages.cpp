#include "ps/messages.hpp"

#include <nlohmann/json.hpp>

#include "ps/parsed.hpp"

namespace tessera::ps {

using nlohmann::json;

NLOHMANN_JSON_SERIALIZE_ENUM(RowType, {{RowType::fp32, "fp32"}, {RowType::bf16, "bf16"}, {RowType::int8, "int8"}})
NLOHMANN_JSON_SERIALIZE_ENUM(
    Rule, {{Rule::add, "add"}, {Rule::sgd, "sgd"}, {Rule::adagrad, "adagrad"}, {Rule::adam, "adam"}, {Rule::ftrl, "ftrl"}})
NLOHMANN_JSON_SERIALIZE_ENUM(InitialValues,
                             {{InitialValues::zero, "zero"}, {InitialValues::uniform, "uniform"}, {InitialValues::normal, "normal"}})

NLOHMANN_JSON_SERIALIZE_ENUM(Consistency, {{Consistency::synchronous, "synchronous"}, {Consistency::asynchronous, "asynchronous"}})

namespace {

std::string dumped(const json& out) { return out.dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace

std::string to_json(const TableSpec& spec) {
  const OptimizerSpec& optimizer = spec.optimizer;
  json out{{"name", spec.name},
           {"dimension", spec.dimension},
           {"type", spec.type},
           {"optimizer",
            {{"rule", optimizer.rule},
             {"row_moment", optimizer.row_moment},
             {"learning_rate", optimizer.learning_rate},
             {"epsilon", optimizer.epsilon},
             {"initial_moment", optimizer.initial_moment},
             {"beta1", optimizer.beta1},
             {"beta2", optimizer.beta2},
             {"l1", optimizer.l1},
             {"l2", optimizer.l2},
             {"beta", optimizer.beta}}},
           {"initializer", {{"kind", spec.initializer.kind}, {"scale", spec.initializer.scale}, {"seed", spec.initializer.seed}}},
           {"consistency", spec.consistency},
           {"staleness", spec.staleness}};
  if (optimizer.clip_norm) out["optimizer"]["clip_norm"] = *optimizer.clip_norm;
  return dumped(out);
}

std::string to_json(const Joining& joining) {
  json out{{"patience", joining.patience.value}};
  if (const std::optional<Worker>& worker = joining.worker)
    out["worker"] = {{"index", worker->index}, {"count", worker->count}, {"run", worker->run}, {"first_step", worker->first_step}};
  return out.dump();
}

Joining joining_from_json(const std::string& words) {
  return parsed(words, "what a client says of itself", [](const json& in) {
    Joining joining{.worker = {}, .patience = Seconds(in.at("patience"))};
    if (const auto worker = in.find("worker"); worker != in.end())
      joining.worker = {
          .index = worker->at("index"), .count = worker->at("count"), .run = worker->at("run"), .first_step = worker->at("first_step")};
    return joining;
  });
}

std::string to_json(const ServerStatus& status) {
  json tables = json::array();
  for (const TableStatus& table : status.tables)
    tables.push_back({{"name", table.name},
                      {"dimension", table.dimension},
                      {"rows", table.rows},
                      {"index_bytes", table.memory.index.value},
                      {"row_bytes", table.memory.rows.value},
                      {"disk_bytes", table.memory.disk.value},
                      {"hits", table.memory.hits},
                      {"misses", table.memory.misses},
                      {"keys_pulled", table.keys_pulled},
                      {"keys_pushed", table.keys_pushed},
                      {"gradients_refused", table.gradients_refused}});
  return dumped({{"backup", status.backup},
                 {"workers", status.workers},
                 {"slowest", status.slowest},
                 {"fastest", status.fastest},
                 {"tables", std::move(tables)}});
}

ServerStatus status_from_json(const std::string& words) {
  return parsed(words, "what a server says of its tables", [](const json& in) {
    ServerStatus status{
        .backup = in.at("backup"), .workers = in.at("workers"), .slowest = in.at("slowest"), .fastest = in.at("fastest"), .tables = {}};
    for (const json& table : in.at("tables"))
      status.tables.push_back({.name = table.at("name"),
                               .dimension = table.at("dimension"),
                               .rows = table.at("rows"),
                               .memory = {.index = Bytes(table.at("index_bytes")),
                                          .rows = Bytes(table.at("row_bytes")),
                                          .disk = Bytes(table.at("disk_bytes")),
                                          .hits = table.at("hits"),
                                          .misses = table.at("misses")},
                               .keys_pulled = table.at("keys_pulled"),
                               .keys_pushed = table.at("keys_pushed"),
                               .gradients_refused = table.at("gradients_refused")});
    return status;
  });
}

TableSpec spec_from_json(const std::string& words) {
  return parsed(words, "a client's description of a table", [](const json& in) {
    const json &optimizer = in.at("optimizer"), &initializer = in.at("initializer");
    TableSpec spec{.name = in.at("name"),
                   .dimension = in.at("dimension"),
                   .type = in.at("type"),
                   .optimizer = {.rule = optimizer.at("rule"),
                                 .row_moment = optimizer.at("row_moment"),
                                 .learning_rate = optimizer.at("learning_rate"),
                                 .epsilon = optimizer.at("epsilon"),
                                 .initial_moment = optimizer.at("initial_moment"),
                                 .beta1 = optimizer.at("beta1"),
                                 .beta2 = optimizer.at("beta2"),
                                 .l1 = optimizer.at("l1"),
                                 .l2 = optimizer.at("l2"),
                                 .beta = optimizer.at("beta")},
                   .initializer = {.kind = initializer.at("kind"), .scale = initializer.at("scale"), .seed = initializer.at("seed")},
                   .consistency = in.at("consistency"),
                   .staleness = in.at("staleness")};
    if (optimizer.contains("clip_norm")) spec.optimizer.clip_norm = optimizer.at("clip_norm").get<float>();
    return spec;
  });
}

}  // namespace tessera::ps
