#include "cluster/processors.hpp"

#include <hwloc.h>
#include <memory>

namespace tessera::cluster {

std::vector<int> usable_processors() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return {};
  const std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)> owner(topology, hwloc_topology_destroy);
  if (hwloc_topology_load(topology) != 0) return {};
  const std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_t)> bound(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  if (hwloc_get_cpubind(topology, bound.get(), HWLOC_CPUBIND_PROCESS) == 0 && !hwloc_bitmap_iszero(bound.get()))
    hwloc_topology_restrict(topology, bound.get(), 0);
  std::vector<int> out;
  for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;)
    out.push_back(hwloc_bitmap_first(core->cpuset));
  return out;
}

}  // namespace tessera::cluster
