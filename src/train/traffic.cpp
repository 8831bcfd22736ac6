#include "train/traffic.hpp"

#include <array>
#include <nlohmann/json.hpp>

#include "program/traffic.hpp"

namespace tessera::train {
namespace {

// All ranks must sum the same ones.
constexpr std::array kDimensions = {"data", "sharding", "tensor", "context", "expert", "placement", "pipeline", "tied"};

nlohmann::ordered_json json_of(const PlacementReport& report) {
  return {{"steps", report.steps},
          {"placed_steps", report.placed},
          {"crossed_bytes", report.crossed.value},
          {"crossed_bytes_placed", report.crossed_placed.value},
          {"predicted_bytes", report.predicted.value},
          {"solving_seconds", report.solving.value},
          {"relabellings", report.relabellings},
          {"moved_experts", report.moved_experts},
          {"moved_bytes", report.moved.value}};
}

nlohmann::ordered_json json_of(const comm::Traffic& traffic) {
  return {{"messages", traffic.messages}, {"collectives", traffic.collectives}, {"bytes", traffic.bytes.value}};
}

}  // namespace

TrafficByDimension sent(comm::Communicator& comm) {
  TrafficByDimension out;
  for (const auto& [label, traffic] : comm.traffic()) out[program::dimension_of(label)] += traffic;
  std::array<std::int64_t, 3 * kDimensions.size()> sums{};
  for (std::size_t i = 0; i < kDimensions.size(); ++i) {
    const comm::Traffic& own = out[kDimensions[i]];
    sums[3 * i] = own.messages;
    sums[3 * i + 1] = own.collectives;
    sums[3 * i + 2] = own.bytes.value;
  }
  comm.world().all_reduce(sums.data(), sums.size(), comm::DataType::i64).wait();
  out.clear();
  for (std::size_t i = 0; i < kDimensions.size(); ++i)
    if (const comm::Traffic all{sums[3 * i], sums[3 * i + 1], Bytes(sums[3 * i + 2])}; all != comm::Traffic()) out[kDimensions[i]] = all;
  return out;
}

TrafficByDimension planned(const plan::Plan& plan, const model::ModelSpec& model, std::int64_t steps) {
  TrafficByDimension out;
  for (const auto& [exchanged, times] : program::exchanged_in_step(program::compile(plan, model), model, plan.precision)) {
    const bool message = exchanged.operation == "send";
    const std::int64_t whole = times / exchanged.ranks;
    out[exchanged.dimension] += {message ? steps * times : 0, message ? 0 : steps * times,
                                 steps * whole * comm::bytes_on_network(exchanged.operation, exchanged.ranks, exchanged.bytes)};
  }
  return out;
}

TrafficByDimension difference(TrafficByDimension all, const TrafficByDimension& before) {
  for (const auto& [dimension, traffic] : before) {
    comm::Traffic& of = all[dimension];
    of = {of.messages - traffic.messages, of.collectives - traffic.collectives, of.bytes - traffic.bytes};
  }
  std::erase_if(all, [](const auto& one) { return one.second == comm::Traffic(); });
  return all;
}

std::string to_json(const TrafficByDimension& sent, const std::optional<TrafficByDimension>& planned, std::int64_t steps,
                    const std::optional<PlacementReport>& placement) {
  nlohmann::ordered_json dimensions = nlohmann::ordered_json::object();
  for (const char* const name : kDimensions) {
    if (!sent.contains(name) && !(planned && planned->contains(name))) continue;
    const auto of = [&](const TrafficByDimension& all) { return all.contains(name) ? all.at(name) : comm::Traffic(); };
    dimensions[name] = json_of(of(sent));
    if (planned) dimensions[name]["planned"] = json_of(of(*planned));
  }
  nlohmann::ordered_json out{{"steps", steps}, {"dimensions", dimensions}};
  if (placement) out["placement"] = json_of(*placement);
  return out.dump() + "\n";
}

}  // namespace tessera::train
