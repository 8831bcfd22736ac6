#include "checkpoint/torchvision.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <algorithm>
#include <set>

#include "base/config.hpp"
#include "base/error.hpp"
#include "base/file_system.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/cut.hpp"
#include "checkpoint/element.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/state_dict.hpp"
#include "checkpoint/whole_tensors.hpp"
#include "nn/block.hpp"

namespace tessera::checkpoint {
namespace {

constexpr const char* kCounter = "num_batches_tracked";

struct Named {
  std::string name;
  const model::ParameterSpec* spec;
};

std::vector<Named> parameters_of(const model::ModelSpec& model) {
  std::vector<Named> out;
  for (const model::BlockInstance& block : model.blocks())
    for (const model::ParameterSpec& parameter : block.spec->parameters)
      if (parameter.tied_to.empty()) out.push_back({block.parameter_name(parameter), &parameter});
  return out;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return text(c10::IntArrayRef(shape)); }

// Whether the map to the classes, whose weight and bias these are, is not in the file, or one to another number of classes.
bool has_no_head(const std::map<std::string, at::Tensor>& tensors, std::span<const Named> head) {
  const auto weight = tensors.find(head[0].name);
  const auto bias = tensors.find(head[1].name);
  if (weight == tensors.end() && bias == tensors.end()) return true;
  if (weight == tensors.end() || bias == tensors.end() || weight->second.dim() != 2 || bias->second.dim() != 1) return false;
  const auto& shape = head[0].spec->shape;
  return weight->second.size(1) == shape[1] && weight->second.size(0) == bias->second.size(0) && weight->second.size(0) != shape[0];
}

const at::Tensor& find(const std::map<std::string, at::Tensor>& tensors, const Named& wanted, const std::string& arch, const Where& where) {
  const auto found = tensors.find(wanted.name);
  if (found == tensors.end()) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors) names.push_back(name);
    const auto guess = nearest(wanted.name, names);
    throw Error(ErrorCode::invalid_config, "tensor '" + wanted.name + "' is missing", where, "the tensors of " + arch,
                guess ? "there is '" + *guess + "'" : std::string());
  }
  if (found->second.sizes() != c10::IntArrayRef(wanted.spec->shape))
    throw Error(ErrorCode::invalid_config, text("tensor '", wanted.name, "' has the shape ", text(found->second.sizes())), where,
                text(shape_text(wanted.spec->shape), ", as ", arch, " of the train.yaml has it"),
                "set the model section to the model that the file is of; a last map for other classes may differ or be missing");
  if (!found->second.is_floating_point())
    throw Error(ErrorCode::invalid_config, text("tensor '", wanted.name, "' holds whole numbers"), where, "floating-point weights");
  return found->second;
}

// Only what an export wrote may be replaced.
void check_target(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return;
  bool ours = false;
  if (std::filesystem::is_regular_file(file)) try {
      const MappedFile mapped(file);
      ours = read_safetensors_header(mapped.bytes(), file).metadata.contains(kExportMark);
    } catch (const Error&) {}
  if (!ours)
    throw Error(ErrorCode::invalid_config, "the file will not be overwritten: it was not exported from here", {file.string(), 0, 0, -1, {}},
                "a new file, or an earlier export");
}

}  // namespace

std::vector<std::string> import_state_dict(const std::filesystem::path& file, const model::ModelSpec& model, std::uint64_t seed,
                                           const std::filesystem::path& checkpoints) {
  const Where where{file.string(), 0, 0, -1, {}};
  const auto tensors = read_state_dict(file);
  const std::vector<Named> parameters = parameters_of(model);
  std::vector<std::string> anew;
  if (model.dims.contains("classes")) {
    const std::span<const Named> head = std::span(parameters).last(2);
    if (has_no_head(tensors, head)) anew = {head[0].name, head[1].name};
  }
  std::vector<WholeTensor> out;
  std::set<std::string> known(anew.begin(), anew.end());
  for (const Named& parameter : parameters) {
    if (known.contains(parameter.name)) {
      out.push_back(begun_anew(parameter.name, *parameter.spec, seed));
      continue;
    }
    known.insert(parameter.name);
    const at::Tensor& tensor = find(tensors, parameter, model.arch, where);
    out.push_back({parameter.name, parameter.spec->shape, [&tensor] { return tensor.to(at::kFloat); }});
  }
  for (const auto& [name, tensor] : tensors)
    if (!known.contains(name) && !name.ends_with(kCounter))
      throw Error(ErrorCode::invalid_config, "the file has a tensor '" + name + "', which the model has not", where,
                  "the tensors of " + model.arch, "set the model section to the model that the file is of");
  State state;
  state.model_fingerprint = model.fingerprint();
  write_weights(real_file_system(), checkpoints, out, state);
  return anew;
}

void export_torchvision(const std::filesystem::path& checkpoint, const model::ModelSpec& model, const std::filesystem::path& file) {
  if (!model.arch.starts_with("resnet") && !model.arch.starts_with("vgg"))
    throw Error(ErrorCode::invalid_config, "a model of kind " + model.arch + " cannot be exported for torchvision", {},
                "a ResNet or a VGG");
  const Reader reader(checkpoint);
  if (reader.state().model_fingerprint != model.fingerprint())
    throw Error(ErrorCode::invalid_config, "the checkpoint is of another model", {checkpoint.string(), 0, 0, -1, {}},
                "model " + model.fingerprint());
  check_target(file);
  std::vector<StoredTensor> stored;
  const auto add = [&](const std::string& name, ElementType type, const std::vector<std::int64_t>& shape) {
    const std::int64_t begin = stored.empty() ? 0 : stored.back().end;
    stored.push_back({name, type, shape, begin, begin + element_count(shape) * size_of(type)});
  };
  // Numbers of eight bytes first, so that all lie as readers like them.
  const std::vector<Named> parameters = parameters_of(model);
  constexpr std::string_view kLastStatistic = "running_var";
  for (const auto& [name, spec] : parameters)
    if (name.ends_with(kLastStatistic)) add(name.substr(0, name.size() - kLastStatistic.size()) + kCounter, ElementType::i64, {});
  for (const auto& [name, spec] : parameters) add(name, ElementType::f32, spec->shape);

  FileSystem& disk = real_file_system();
  auto temporary = file;
  temporary += ".tmp";
  try {
    const auto out = disk.create(temporary);
    const std::string header = safetensors_header(stored, {{"format", "pt"}, {kExportMark, model.fingerprint()}});
    out->append(std::as_bytes(std::span(header)));
    const at::Tensor steps = at::full({}, reader.state().step, at::kLong);
    for (const StoredTensor& tensor : stored) {
      const at::Tensor values = tensor.type == ElementType::i64 ? steps : reader.read(tensor.name);
      if (values.sizes() != c10::IntArrayRef(tensor.shape))
        throw Error(ErrorCode::invalid_config, "tensor '" + tensor.name + "' of the checkpoint has another shape than the model's", {}, {},
                    "use the train.yaml that the run was started with");
      out->append(bytes_of(values));
    }
    out->sync();
    out->close();
    disk.rename(temporary, file);
    disk.sync_directory(std::filesystem::absolute(file).parent_path());
  } catch (const Error&) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
}

}  // namespace tessera::checkpoint
