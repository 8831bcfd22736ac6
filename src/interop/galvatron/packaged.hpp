// Internal: the cost model and the space of Galvatron 2.4.0, as the package index has it. It differs from the later release in
// how samples are counted (against the least degree in use), in the overlap of tensor-parallel backward passes, in placing
// groups of ranks side by side or apart, and in the terms of the embedding.
#pragma once

#include "interop/galvatron/space.hpp"

namespace tessera::interop::galvatron::packaged {

Space enumerate(const Inputs& inputs, int usable_mb);
PlanCost cost_of(const Inputs& inputs, const Plan& plan);

}  // namespace tessera::interop::galvatron::packaged
