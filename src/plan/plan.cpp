#include "plan/plan.hpp"

namespace tessera::plan {

const char* name_of(Schedule schedule) {
  switch (schedule) {
    case Schedule::one_f_one_b: return "1f1b";
    case Schedule::gpipe: return "gpipe";
    case Schedule::interleaved: return "interleaved";
    case Schedule::zb_h1: return "zb-h1";
    case Schedule::zb_h2: return "zb-h2";
    case Schedule::zb_v: return "zb-v";
    case Schedule::dualpipe_v: return "dualpipe-v";
  }
  return "1f1b";
}

const Strategy& Stage::strategy_of(int block) const {
  for (const StrategyRun& run : runs)
    if (block < run.last) return run.strategy;
  return runs.back().strategy;
}

}  // namespace tessera::plan
