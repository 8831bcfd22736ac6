#include "ps/messages.hpp"

#include <nlohmann/json.hpp>

namespace tessera::ps {

using nlohmann::json;

NLOHMANN_JSON_SERIALIZE_ENUM(RowType, {{RowType::fp32, "fp32"}, {RowType::bf16, "bf16"}, {RowType::int8, "int8"}})
NLOHMANN_JSON_SERIALIZE_ENUM(
    Rule, {{Rule::add, "add"}, {Rule::sgd, "sgd"}, {Rule::adagrad, "adagrad"}, {Rule::adam, "adam"}, {Rule::ftrl, "ftrl"}})
NLOHMANN_JSON_SERIALIZE_ENUM(InitialValues,
                             {{InitialValues::zero, "zero"}, {InitialValues::uniform, "uniform"}, {InitialValues::normal, "normal"}})

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
           {"initializer", {{"kind", spec.initializer.kind}, {"scale", spec.initializer.scale}, {"seed", spec.initializer.seed}}}};
  if (optimizer.clip_norm) out["optimizer"]["clip_norm"] = *optimizer.clip_norm;
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string to_json(const std::vector<TableStatus>& tables) {
  json out = json::array();
  for (const TableStatus& table : tables)
    out.push_back({{"name", table.name},
                   {"dimension", table.dimension},
                   {"rows", table.rows},
                   {"index_bytes", table.memory.index.value},
                   {"row_bytes", table.memory.rows.value},
                   {"keys_pulled", table.keys_pulled},
                   {"keys_pushed", table.keys_pushed},
                   {"gradients_refused", table.gradients_refused}});
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::vector<TableStatus> status_from_json(const std::string& text_of_status) {
  try {
    std::vector<TableStatus> tables;
    for (const json& table : json::parse(text_of_status))
      tables.push_back({.name = table.at("name"),
                        .dimension = table.at("dimension"),
                        .rows = table.at("rows"),
                        .memory = {.index = Bytes(table.at("index_bytes")), .rows = Bytes(table.at("row_bytes"))},
                        .keys_pulled = table.at("keys_pulled"),
                        .keys_pushed = table.at("keys_pushed"),
                        .gradients_refused = table.at("gradients_refused")});
    return tables;
  } catch (const json::exception& problem) {
    throw Error(ErrorCode::corrupt, text("what a server says of its tables cannot be read: ", problem.what()));
  }
}

TableSpec spec_from_json(const std::string& text_of_spec) {
  try {
    const json in = json::parse(text_of_spec);
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
                   .initializer = {.kind = initializer.at("kind"), .scale = initializer.at("scale"), .seed = initializer.at("seed")}};
    if (optimizer.contains("clip_norm")) spec.optimizer.clip_norm = optimizer.at("clip_norm").get<float>();
    return spec;
  } catch (const json::exception& problem) {
    throw Error(ErrorCode::corrupt, text("a client's description of a table cannot be read: ", problem.what()));
  }
}

}  // namespace tessera::ps
