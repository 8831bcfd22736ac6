#include "program/state_exchanges.hpp"

namespace tessera::program {

HeldParameters held_parameters(const model::BlockSpec& block, const plan::Strategy& strategy) {
  HeldParameters out;
  for (const model::ParameterSpec& parameter : block.parameters) {
    const int degree = parameter.expert_dim >= 0 ? strategy.expert_tp() : strategy.tp;
    const double count = static_cast<double>(parameter.shard_count(degree));
    if (parameter.sparse) {
      out.table_values += count;
      out.table_rows += static_cast<double>(parameter.shape.front());
    } else if (!parameter.tied_to.empty())
      out.tied += count;
    else if (parameter.expert_dim >= 0)
      out.experts += count / strategy.ep;
    else
      out.plain += count;
  }
  return out;
}

std::vector<StateExchange> state_exchanges(const HeldParameters& held, const plan::Strategy& strategy, const StateBytes& bytes) {
  struct Holders {
    double parameters;
    int sharing;  // ranks that shard the state among them, `stride` apart
    int stride;
    int groups;  // of such ranks
  };
  const Holders all[] = {
      {held.plain, strategy.sharded_over(), strategy.tp, strategy.copies() / strategy.sharded_over()},
      {held.experts, strategy.experts_sharded_over(), strategy.expert_tp() * strategy.ep,
       strategy.expert_copies() / strategy.experts_sharded_over()},
  };
  std::vector<StateExchange> out;
  const auto add = [&](StateMoment moment, const char* operation, double each, int ranks, int stride) {
    if (each > 0 && ranks > 1) out.push_back({moment, operation, each, ranks, stride});
  };
  for (const Holders& of : all) {
    const double weights = bytes.weight * of.parameters;
    const double gradients = bytes.gradient * bytes.trained * of.parameters;
    if (strategy.zero == 3) {
      add(StateMoment::before_forward, "all_gather", weights, of.sharing, of.stride);
      add(StateMoment::before_backward, "all_gather", weights, of.sharing, of.stride);
    } else if (strategy.zero > 0) {
      add(StateMoment::before_first_forward, "all_gather", bytes.trained * weights, of.sharing, of.stride);
    }
    add(strategy.zero >= 2 ? StateMoment::after_backward : StateMoment::after_last_backward, "reduce_scatter", gradients, of.sharing,
        of.stride);
    add(StateMoment::after_last_backward, "all_reduce", gradients / of.sharing, of.groups, of.stride * of.sharing);
  }
  return out;
}

}  // namespace tessera::program
