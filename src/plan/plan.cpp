#include "plan/plan.hpp"

namespace tessera::plan {

const char* name_of(Schedule schedule) { return schedule == Schedule::one_f_one_b ? "1f1b" : "gpipe"; }

}  // namespace tessera::plan
