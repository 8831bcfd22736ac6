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

json json_of(const Admission& admission) {
  json out{{"after", admission.after}};
  if (admission.probability) out["probability"] = *admission.probability;
  return out;
}
json json_of(const Eviction& eviction) {
  json out = json::object();
  if (eviction.unseen) out["unseen"] = *eviction.unseen;
  if (eviction.below) out["below"] = *eviction.below;
  return out;
}
json json_of(const std::vector<GrowthStep>& growth) {
  json out = json::array();
  for (const GrowthStep& step : growth) out.push_back({{"seen", step.seen}, {"dimension", step.dimension}});
  return out;
}
json json_of(const Lifecycle& lifecycle) {
  json slots = json::array();
  for (const SlotLifecycle& slot : lifecycle.slots) {
    json& out = slots.emplace_back(json{{"slot", slot.slot}, {"learning_rate_scale", slot.learning_rate_scale}});
    if (slot.admission) out["admission"] = json_of(*slot.admission);
    if (slot.eviction) out["eviction"] = json_of(*slot.eviction);
    if (!slot.growth.empty()) out["growth"] = json_of(slot.growth);
  }
  json out{{"decay", lifecycle.decay},
           {"click_weight", lifecycle.click_weight},
           {"unclicked_weight", lifecycle.unclicked_weight},
           {"admission", json_of(lifecycle.admission)},
           {"waiting_keys", lifecycle.waiting_keys},
           {"forget_after", lifecycle.forget_after},
           {"eviction", json_of(lifecycle.eviction)},
           {"slot_bits", lifecycle.slot_bits},
           {"slots", std::move(slots)}};
  if (!lifecycle.growth.empty()) out["growth"] = json_of(lifecycle.growth);
  return out;
}

Admission admission_from(const json& in) {
  Admission admission{.after = in.at("after"), .probability = {}};
  if (in.contains("probability")) admission.probability = in.at("probability").get<float>();
  return admission;
}
Eviction eviction_from(const json& in) {
  Eviction eviction;
  if (in.contains("unseen")) eviction.unseen = in.at("unseen").get<int>();
  if (in.contains("below")) eviction.below = in.at("below").get<float>();
  return eviction;
}
std::vector<GrowthStep> growth_from(const json& in) {
  std::vector<GrowthStep> growth;
  if (const auto steps = in.find("growth"); steps != in.end())
    for (const json& step : *steps) growth.push_back({.seen = step.at("seen"), .dimension = step.at("dimension")});
  return growth;
}
Lifecycle lifecycle_from(const json& in) {
  Lifecycle lifecycle{.decay = in.at("decay"),
                      .click_weight = in.at("click_weight"),
                      .unclicked_weight = in.at("unclicked_weight"),
                      .admission = admission_from(in.at("admission")),
                      .waiting_keys = in.at("waiting_keys"),
                      .forget_after = in.at("forget_after"),
                      .eviction = eviction_from(in.at("eviction")),
                      .growth = growth_from(in),
                      .slot_bits = in.at("slot_bits"),
                      .slots = {}};
  for (const json& slot : in.at("slots")) {
    SlotLifecycle& one = lifecycle.slots.emplace_back(SlotLifecycle{.slot = slot.at("slot"),
                                                                    .learning_rate_scale = slot.at("learning_rate_scale"),
                                                                    .admission = {},
                                                                    .eviction = {},
                                                                    .growth = growth_from(slot)});
    if (slot.contains("admission")) one.admission = admission_from(slot.at("admission"));
    if (slot.contains("eviction")) one.eviction = eviction_from(slot.at("eviction"));
  }
  return lifecycle;
}

// Only the classes that are not empty, each with its upper end; none of the last one.
json json_of(const Latencies& latencies) {
  json classes = json::array();
  for (std::size_t place = 0; place < latencies.counts.size(); ++place)
    if (latencies.counts[place] > 0)
      classes.push_back({place < Latencies::kEnds ? json(Latencies::end(place)) : json(), latencies.counts[place]});
  json out{{"seconds", latencies.sum.value}, {"classes", std::move(classes)}};
  if (const std::optional<Seconds> median = latencies.quantile(0.5)) {
    out["median"] = median->value;
    out["p99"] = latencies.quantile(0.99)->value;
  }
  return out;
}

Latencies latencies_from(const json& in) {
  Latencies latencies;
  latencies.sum = Seconds(in.at("seconds"));
  for (const json& one : in.at("classes")) {
    std::size_t place = Latencies::kEnds;
    if (const json& end = one.at(0); !end.is_null())
      for (place = 0; place < Latencies::kEnds && Latencies::end(place) < end.get<double>();) ++place;
    latencies.counts[place] = one.at(1);
  }
  return latencies;
}

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
           {"staleness", spec.staleness},
           {"wire", spec.wire}};
  if (optimizer.clip_norm) out["optimizer"]["clip_norm"] = *optimizer.clip_norm;
  if (spec.lifecycle) out["lifecycle"] = json_of(*spec.lifecycle);
  return dumped(out);
}

std::string to_json(const Joining& joining) {
  json out{{"patience", joining.patience.value}};
  if (const std::optional<Worker>& worker = joining.worker)
    out["worker"] = {{"index", worker->index},
                     {"count", worker->count},
                     {"run", worker->run},
                     {"first_step", worker->first_step},
                     {"name", worker->name}};
  return out.dump();
}

Joining joining_from_json(const std::string& words) {
  return parsed(words, "what a client says of itself", [](const json& in) {
    Joining joining{.worker = {}, .patience = Seconds(in.at("patience"))};
    if (const auto worker = in.find("worker"); worker != in.end())
      joining.worker = Worker{.index = worker->at("index"),
                              .count = worker->at("count"),
                              .run = worker->at("run"),
                              .first_step = worker->at("first_step"),
                              .name = worker->value("name", "")};
    return joining;
  });
}

std::string to_json(const ServerStatus& status) {
  json tables = json::array();
  for (const TableStatus& table : status.tables) {
    json& out = tables.emplace_back(json{{"name", table.name},
                                         {"dimension", table.dimension},
                                         {"rows", table.rows},
                                         {"index_bytes", table.memory.index.value},
                                         {"row_bytes", table.memory.rows.value},
                                         {"disk_bytes", table.memory.disk.value},
                                         {"hits", table.memory.hits},
                                         {"misses", table.memory.misses},
                                         {"keys_pulled", table.keys_pulled},
                                         {"keys_pushed", table.keys_pushed},
                                         {"gradients_refused", table.gradients_refused},
                                         {"pulls", json_of(table.latencies.pulls)},
                                         {"pushes", json_of(table.latencies.pushes)}});
    if (table.lifecycle)
      out["lifecycle"] = {{"period", table.lifecycle->period},
                          {"admitted", table.lifecycle->counts.admitted},
                          {"held_back", table.lifecycle->counts.held_back},
                          {"evicted", table.lifecycle->counts.evicted}};
  }
  return dumped({{"backup", status.backup ? json(*status.backup) : json()},
                 {"workers", status.workers},
                 {"slowest", status.slowest},
                 {"fastest", status.fastest},
                 {"tables", std::move(tables)}});
}

ServerStatus status_from_json(const std::string& words) {
  return parsed(words, "what a server says of its tables", [](const json& in) {
    ServerStatus status{.backup = {}, .workers = in.at("workers"), .slowest = in.at("slowest"), .fastest = in.at("fastest"), .tables = {}};
    if (const json& backup = in.at("backup"); !backup.is_null()) status.backup = backup.get<std::string>();
    for (const json& table : in.at("tables")) {
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
                               .gradients_refused = table.at("gradients_refused"),
                               .lifecycle = {},
                               .latencies = {.pulls = latencies_from(table.at("pulls")), .pushes = latencies_from(table.at("pushes"))}});
      if (const auto life = table.find("lifecycle"); life != table.end())
        status.tables.back().lifecycle = {
            .period = life->at("period"),
            .counts = {.admitted = life->at("admitted"), .held_back = life->at("held_back"), .evicted = life->at("evicted")}};
    }
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
                   .staleness = in.at("staleness"),
                   .lifecycle = {},
                   .wire = in.value("wire", RowType::fp32)};
    if (optimizer.contains("clip_norm")) spec.optimizer.clip_norm = optimizer.at("clip_norm").get<float>();
    if (in.contains("lifecycle")) spec.lifecycle = lifecycle_from(in.at("lifecycle"));
    return spec;
  });
}

}  // namespace tessera::ps
