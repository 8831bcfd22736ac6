#include "checkpoint/weights.hpp"

#include <ATen/core/Tensor.h>
#include <vector>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/whole_tensors.hpp"

namespace tessera::checkpoint {

void copy_weights(const std::filesystem::path& checkpoint, const model::ModelSpec& model, const std::filesystem::path& folder) {
  const Reader reader(checkpoint);
  if (reader.state().model_fingerprint != model.fingerprint())
    throw Error(ErrorCode::invalid_config, "the checkpoint is of another model", {checkpoint.string(), 0, 0, -1, {}},
                "model " + model.fingerprint());
  std::vector<WholeTensor> tensors;
  for (const model::BlockInstance& block : model.blocks())
    for (const model::ParameterSpec& parameter : block.spec->parameters) {
      if (!parameter.tied_to.empty() || parameter.sparse) continue;
      const std::string name = block.parameter_name(parameter);
      tensors.push_back({name, reader.tensor(name).shape, [&reader, name] { return reader.read(name); }});
    }
  State state;
  state.model_fingerprint = model.fingerprint();
  state.train_yaml = reader.state().train_yaml;
  state.seed = reader.state().seed;
  write_weights(real_file_system(), folder, tensors, state);
}

}  // namespace tessera::checkpoint
