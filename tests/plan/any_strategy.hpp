// Random strategies for property tests.
#pragma once

#include <rapidcheck.h>
#include <vector>

#include "plan/plan.hpp"

namespace tessera::plan {

// Any dp, cp and tp that make `width`, with any ZeRO stage, over all replicas or over half of them.
inline Strategy any_strategy(int width) {
  Strategy out;
  std::vector<int> degrees;
  for (int tp = 1; tp <= 4; tp *= 2)
    if (width % tp == 0) degrees.push_back(tp);
  out.tp = *rc::gen::elementOf(degrees);
  out.cp = width / out.tp % 2 == 0 ? *rc::gen::inRange(1, 3) : 1;
  out.dp = width / out.tp / out.cp;
  out.zero = *rc::gen::inRange(0, 4);
  // Sharded over half of the replicas, with a copy.
  if (out.zero > 0 && out.copies() > 1 && out.copies() % 2 == 0 && *rc::gen::arbitrary<bool>()) out.shards = out.copies() / 2;
  return out;
}

}  // namespace tessera::plan
