#include "model/servers_section.hpp"

#include <algorithm>

#include "base/problems.hpp"

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

void read_optimizer(const ConfigNode& node, TableOptimizerSpec& optimizer) {
  constexpr double kLargestMoment = 1 - 1e-9;
  Section section(node, {"kind", "lr", "epsilon", "initial_moment", "row_moment", "beta1", "beta2", "l1", "l2", "beta", "clip_norm"});
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
  section.finish();
}

void read_initializer(const ConfigNode& node, ParameterServerSpec& servers) {
  Section section(node, {"kind", "scale"});
  section.read("kind", servers.initializer, [](const ConfigNode& kind) { return kind.as_choice({"uniform", "normal", "zero"}); });
  section.read("scale", servers.initial_scale, number(0, kMost));
  section.finish();
}

std::vector<std::string> read_places(const ConfigNode& node) {
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
  if (places.empty())
    throw node.error("the list is empty", "HOST:PORT of at least one server", "without servers: `tessera train` starts one");
  return places;
}

}  // namespace

ParameterServerSpec read_parameter_servers(const ConfigNode& node) {
  constexpr std::int64_t kMostThreads = 1024, kMostStaleness = 1000;
  ParameterServerSpec servers;
  servers.where = node.where();
  Section section(node, {"servers", "threads", "optimizer", "initializer", "rows", "consistency", "staleness", "lifecycle"});
  section.read("servers", servers.places, read_places);
  section.read("threads", servers.threads, [](const ConfigNode& threads) { return threads.as_int_between(1, kMostThreads); });
  section.attempt([&] {
    if (const auto optimizer = node.find("optimizer")) read_optimizer(*optimizer, servers.optimizer);
  });
  section.attempt([&] {
    if (const auto initializer = node.find("initializer")) read_initializer(*initializer, servers);
  });
  section.read("rows", servers.rows, [](const ConfigNode& rows) { return rows.as_choice({"fp32", "bf16", "int8"}); });
  section.read("consistency", servers.consistency, [](const ConfigNode& consistency) {
    return consistency.as_choice({"synchronous", "asynchronous"});
  });
  section.read("staleness", servers.staleness, [](const ConfigNode& staleness) { return staleness.as_int_between(0, kMostStaleness); });
  section.read("lifecycle", servers.lifecycle, read_lifecycle);
  section.finish();
  if (node.has("staleness") && servers.consistency == "synchronous")
    throw node.at("staleness")
        .error("no pull of a synchronous table misses a step of another rank", "consistency: asynchronous, or no staleness");
  if (node.has("servers") && node.has("threads"))
    throw node.at("threads").error("threads are of servers beside the ranks, and servers are named", "servers or threads");
  return servers;
}

}  // namespace tessera::model
