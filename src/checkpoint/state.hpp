// What a checkpoint holds beside its tensors. No torch here, so that the reader of manifests can be built without it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace tessera::checkpoint {

// What a run must know to go on, beside its tensors.
struct State {
  std::int64_t step = 0;    // steps made
  std::int64_t tokens = 0;  // trained on
  std::string plan_json;    // the plan that saved it; any other may load it
  std::string train_yaml;
  std::string model_fingerprint;
  std::uint64_t seed = 0;
  std::map<std::string, double> extra;
};

// A key of State::extra. Where it is not 0, the checkpoint holds weights alone (an imported model), and an optimizer that
// reads its state from there ("<parameter>.exp_avg", ".exp_avg_sq", ".momentum") finds zeros: it begins anew.
inline constexpr const char* kWeightsOnly = "weights_only";

}  // namespace tessera::checkpoint
