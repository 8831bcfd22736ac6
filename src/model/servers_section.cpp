#include "model/servers_section.hpp"

#include <algorithm>

#include "base/problems.hpp"
#include "model/learning_rate.hpp"
#include "model/yaml_path.hpp"

namespace tessera::model {
namespace {

auto number(double least, double most) {
  return [least, most](const ConfigNode& node) {
    const double value = node.as_double();
    if (!(value >= least && value <= most)) throw node.error(text("found ", value), text("a number from ", least, " to ", most));
    return value;
  };
}

constexpr double kMost = 1e6;

void read_optimizer(const ConfigNode& node, std::int64_t steps, TableOptimizerSpec& optimizer) {
  constexpr double kLargestMoment = 1 - 1e-9;
  Section section(node,
                  {"kind", "lr", "epsilon", "initial_moment", "row_moment", "beta1", "beta2", "l1", "l2", "beta", "clip_norm", "schedule"});
  section.read("kind", optimizer.kind, [](const ConfigNode& kind) { return kind.as_choice({"adagrad", "adam", "sgd", "ftrl"}); });
  if (optimizer.kind == "adam") optimizer.lr = 1e-3;
  section.read("lr", optimizer.lr, number(0, kMost));
  section.read("epsilon", optimizer.epsilon, number(0, kMost));
  section.read("initial_moment", optimizer.initial_moment, number(0, kMost));
  section.read("row_moment", optimizer.row_moment, [](const ConfigNode& flag) { return flag.as_bool(); });
  section.read("beta1", optimizer.beta1, number(0, kLargestMoment));
  section.read("beta2", optimizer.beta2, number(0, kLargestMoment));
  section.read("l1", optimizer.l1, number(0, kMost));
  section.read("l2", optimizer.l2, number(0, kMost));
  section.read("beta", optimizer.beta, number(0, kMost));
  section.read("clip_norm", optimizer.clip_norm, number(1e-12, 1e12));
  section.read("schedule", optimizer.schedule,
               [&](const ConfigNode& schedule) { return read_schedule(schedule, steps, LrScheduleKind::constant); });
  const std::vector<std::pair<std::string, std::vector<std::string>>> readers = {{"epsilon", {"adagrad", "adam"}},
                                                                                 {"initial_moment", {"adagrad"}},
                                                                                 {"row_moment", {"adagrad", "adam"}},
                                                                                 {"beta1", {"adam"}},
                                                                                 {"beta2", {"adam"}},
                                                                                 {"l1", {"ftrl"}},
                                                                                 {"l2", {"ftrl"}},
                                                                                 {"beta", {"ftrl"}}};
  for (const auto& [key, kinds] : readers)
    section.attempt([&] {
      const auto said = node.find(key);
      if (!said || std::find(kinds.begin(), kinds.end(), optimizer.kind) != kinds.end()) return;
      throw said->error(text(key, " means nothing to ", optimizer.kind), "no " + key, text("kind: ", kinds.front(), " reads it"));
    });
  section.attempt([&] {
    // Its rows are a function of the sum of all gradients and of the rate: a smaller rate would make the rows themselves smaller.
    const auto said = node.find("schedule");
    if (said && optimizer.kind == "ftrl")
      throw said->error("ftrl works out rows from all of their gradients and the last learning rate, which therefore stays the same",
                        "no schedule", "kind: adagrad, adam and sgd read it");
  });
  section.finish();
}

void read_initializer(const ConfigNode& node, ParameterServerSpec& servers) {
  Section section(node, {"kind", "scale"});
  section.read("kind", servers.initializer, [](const ConfigNode& kind) { return kind.as_choice({"uniform", "normal", "zero"}); });
  section.read("scale", servers.initial_scale, number(0, kMost));
  section.finish();
}

}  // namespace

std::vector<std::string> read_server_places(const ConfigNode& node) {
  std::vector<std::string> places;
  for (const ConfigNode& item : node.items()) {
    const std::string place = item.as_string();
    const std::size_t colon = place.rfind(':');
    if (colon == std::string::npos || colon == 0 || colon + 1 == place.size() ||
        place.find_first_not_of("0123456789", colon + 1) != std::string::npos)
      throw item.error("found '" + place + "'", "HOST:PORT, as `tessera ps serve` says it");
    if (std::find(places.begin(), places.end(), place) != places.end()) throw item.error(place + " stands twice", "each server once");
    places.push_back(place);
  }
  if (places.empty()) throw node.error("the list is empty", "HOST:PORT of at least one server", "without servers: the run has its own");
  return places;
}

ParameterServerSpec read_parameter_servers(const ConfigNode& node, std::int64_t steps) {
  constexpr std::int64_t kMostThreads = 1024, kMostStaleness = 1000, kMostBetween = 1'000'000, kMostSeconds = 86400;
  ParameterServerSpec servers;
  servers.where = node.where();
  Section section(node, {"servers", "threads", "disk", "memory", "optimizer", "initializer", "rows", "wire", "consistency", "staleness",
                         "exchange_every", "reconnect", "lifecycle"});
  section.read("servers", servers.places, read_server_places);
  section.read("threads", servers.threads, [](const ConfigNode& threads) { return threads.as_int_between(1, kMostThreads); });
  section.read("disk", servers.disk, path_of);
  section.read("memory", servers.memory, [](const ConfigNode& memory) { return Bytes(memory.as_bytes()); });
  section.attempt([&] {
    if (const auto optimizer = node.find("optimizer")) read_optimizer(*optimizer, steps, servers.optimizer);
  });
  section.attempt([&] {
    if (const auto initializer = node.find("initializer")) read_initializer(*initializer, servers);
  });
  const auto read_type = [](const ConfigNode& type) { return type.as_choice({"fp32", "bf16", "int8"}); };
  section.read("rows", servers.rows, read_type);
  section.read("wire", servers.wire, read_type);
  section.read("consistency", servers.consistency, [](const ConfigNode& consistency) {
    return consistency.as_choice({"synchronous", "asynchronous", "geo"});
  });
  section.read("staleness", servers.staleness, [](const ConfigNode& staleness) { return staleness.as_int_between(0, kMostStaleness); });
  section.read("lifecycle", servers.lifecycle, read_lifecycle);
  section.read("exchange_every", servers.exchange_every, [](const ConfigNode& every) { return every.as_int_between(1, kMostBetween); });
  section.read("reconnect", servers.reconnect,
               [](const ConfigNode& seconds) { return Seconds(static_cast<double>(seconds.as_int_between(1, kMostSeconds))); });
  section.finish();
  if (node.has("staleness") && servers.consistency == "synchronous")
    throw node.at("staleness")
        .error("no pull of a synchronous table misses a step of another rank", "consistency: asynchronous, or no staleness");
  if (node.has("staleness") && servers.consistency == "geo")
    throw node.at("staleness")
        .error("ranks with geo tables see each other's steps when they exchange them",
               "exchange_every: STEPS, or consistency: asynchronous");
  if (node.has("exchange_every") && servers.consistency != "geo")
    throw node.at("exchange_every")
        .error(text("ranks with ", servers.consistency, " tables push their gradients in every step"),
               "consistency: geo, or no exchange_every");
  if (servers.consistency == "geo" && servers.wire != "fp32")
    throw node.at("wire").error("ranks with geo tables exchange differences of rows that each goes on training, as they are",
                                "wire: fp32, or consistency: synchronous or asynchronous");
  if (servers.consistency == "geo" && servers.lifecycle)
    throw node.at("lifecycle")
        .error("rows of geo tables are stepped in copies of them, of which servers see no pushes",
               "consistency: synchronous or asynchronous");
  if (servers.consistency == "geo" && servers.optimizer.kind == "ftrl")
    throw node.at("consistency")
        .error("ftrl works out rows from sums that each rank would have of its own gradients, and so undo what others have changed",
               "consistency: synchronous or asynchronous", "or another optimizer: adagrad, adam, sgd");
  if (node.has("servers") && node.has("threads"))
    throw node.at("threads").error("threads are of servers beside the ranks, and servers are named", "servers or threads");
  for (const char* const key : {"disk", "memory"})
    if (node.has("servers") && node.has(key))
      throw node.at(key).error("servers are named, and each has been told its own",
                               text("`tessera ps serve --disk FOLDER --memory SIZE`, or no servers"));
  if (node.has("disk") != node.has("memory"))
    throw node.at(node.has("disk") ? "disk" : "memory").error("rows go to the disk where memory has no room for them", "disk and memory");
  return servers;
}

}  // namespace tessera::model
