#include "checkpoint/hf_names.hpp"

#include "base/error.hpp"

namespace tessera::checkpoint {
namespace {

// As transformers' Mixtral and Qwen MoE store them.
struct ExpertNames {
  const char* layer;  // of the feed-forward network, in place of "mlp"
  std::vector<std::string> gate_up;
  std::string down;
};

ExpertNames expert_names(const std::string& arch) {
  if (arch == "mixtral") return {"block_sparse_moe", {"w1", "w3"}, "w2"};
  return {"mlp", {"gate_proj", "up_proj"}, "down_proj"};
}

}  // namespace

std::vector<HfTensor> hf_tensors(const model::ModelSpec& model, const model::BlockInstance& block, const model::ParameterSpec& parameter) {
  std::string name = block.parameter_name(parameter);
  const std::size_t mlp = name.find(".mlp.");
  if (!block.spec->dims.contains("experts") || mlp == std::string::npos) return {{name, parameter.shape}};
  const ExpertNames names = expert_names(model.arch);
  name.replace(mlp + 1, 3, names.layer);
  if (parameter.expert_dim < 0) return {{name, parameter.shape}};
  ensure(parameter.expert_dim == 0 && parameter.shape.size() == 3, name + " is no stack of matrices");
  const std::string prefix = name.substr(0, name.rfind('.') + 1);
  std::vector<HfTensor> out;
  const std::int64_t rows = parameter.shape[1] / parameter.stacked;
  for (std::int64_t expert = 0; expert < parameter.shape[0]; ++expert)
    for (const std::string& matrix : parameter.stacked == 2 ? names.gate_up : std::vector<std::string>{names.down})
      out.push_back({text(prefix, expert, ".", matrix, ".weight"), {rows, parameter.shape[2]}});
  return out;
}

}  // namespace tessera::checkpoint
