#include "base/error.hpp"
#include "cost/cost.hpp"

namespace tessera::cost {

void check_fits(const plan::Plan& plan, const std::vector<Bytes>& memory, const cluster::ClusterSpec& cluster) {
  const std::vector<Bytes> limits = memory_limits(plan, cluster);
  int worst = -1;
  double most = 1;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    const double share = memory[static_cast<std::size_t>(rank)] / limits[static_cast<std::size_t>(rank)];
    if (share <= most) continue;
    most = share;
    worst = rank;
  }
  if (worst < 0) return;
  throw Error(ErrorCode::resource_exhausted,
              text("the plan does not fit: rank ", worst, " would hold ", to_text(memory[static_cast<std::size_t>(worst)]),
                   " at its peak, and may use ", to_text(limits[static_cast<std::size_t>(worst)])),
              {.file = plan.where.file, .rank = worst, .block = {}}, {},
              "more recomputation, a higher zero, more stages or smaller micro-batches need less; `tessera plan` finds a plan that fits");
}

}  // namespace tessera::cost
