#include "checkpoint/state_dict.hpp"

#include <ATen/ops/empty.h>
#include <caffe2/serialize/inline_container.h>
#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "checkpoint/cut.hpp"
#include "checkpoint/element.hpp"
#include "checkpoint/pickle.hpp"
#include "checkpoint/safetensors.hpp"

namespace tessera::checkpoint {
namespace {

using Kind = PickledValue::Kind;
using StateDict = std::map<std::string, at::Tensor>;

// Elements that tensors are views of, as a pickle refers to them.
struct Storage {
  std::string type_name;
  std::optional<ElementType> type;
  std::string key;
  std::int64_t count = 0;
};
// A 1-d tensor of one's elements.
using Storages = std::function<at::Tensor(const Storage&)>;

[[noreturn]] void refuse_state_dict(const std::filesystem::path& file, const std::string& problem) {
  throw Error(ErrorCode::corrupt, "not a state dict that can be read: " + problem, {file.string(), 0, 0, -1, {}},
              "a file that torch.save(model.state_dict(), FILE) wrote", "the file is damaged, or holds something else");
}

std::optional<ElementType> type_of_storage(const std::string& global) {
  for (const auto& [type, name] : {std::pair(ElementType::f32, "torch FloatStorage"),
                                   {ElementType::f16, "torch HalfStorage"},
                                   {ElementType::bf16, "torch BFloat16Storage"},
                                   {ElementType::f64, "torch DoubleStorage"},
                                   {ElementType::i64, "torch LongStorage"}})
    if (global == name) return type;
  return std::nullopt;
}

std::int64_t integer_of(const PickledValue& value, const std::filesystem::path& file) {
  if (value.kind != Kind::integer) refuse_state_dict(file, "a number is missing");
  return value.integer;
}

const std::vector<const PickledValue*>& items_of(const PickledValue& value, Kind kind, std::size_t least,
                                                 const std::filesystem::path& file) {
  if (value.kind != kind || value.items.size() < least) refuse_state_dict(file, "a tensor is not described as PyTorch does it");
  return value.items;
}

std::vector<std::int64_t> integers_of(const PickledValue& value, const std::filesystem::path& file) {
  std::vector<std::int64_t> out;
  for (const PickledValue* item : items_of(value, Kind::sequence, 0, file)) out.push_back(integer_of(*item, file));
  return out;
}

// ("storage", its type, its key, the device, how many elements)
Storage storage_of(const PickledValue& value, const std::filesystem::path& file) {
  const auto& said = items_of(*items_of(value, Kind::persistent, 1, file)[0], Kind::sequence, 5, file);
  Storage out{said[1]->text, type_of_storage(said[1]->text), said[2]->text, integer_of(*said[4], file)};
  if (out.count < 0) refuse_state_dict(file, "storage " + out.key + " has less than no elements");
  return out;
}

bool is_tensor(const PickledValue& value) {
  return value.is_call_of("torch._utils _rebuild_tensor_v2") || value.is_call_of("torch._utils _rebuild_parameter");
}

at::Tensor tensor_of(const std::string& name, const PickledValue& value, const Storages& storages, const std::filesystem::path& file) {
  const auto& arguments = items_of(*value.items[1], Kind::sequence, 1, file);
  if (value.is_call_of("torch._utils _rebuild_parameter")) {
    if (!arguments[0]->is_call_of("torch._utils _rebuild_tensor_v2"))
      refuse_state_dict(file, "'" + name + "' is a parameter without a tensor");
    return tensor_of(name, *arguments[0], storages, file);
  }
  if (arguments.size() < 4) refuse_state_dict(file, "'" + name + "' has no shape");
  const Storage storage = storage_of(*arguments[0], file);
  if (!storage.type)
    throw Error(ErrorCode::invalid_config, "tensor '" + name + "' is a " + storage.type_name, {file.string(), 0, 0, -1, {}},
                "float32, float16, bfloat16, float64 or int64");
  const std::int64_t offset = integer_of(*arguments[1], file);
  const auto shape = integers_of(*arguments[2], file);
  const auto strides = integers_of(*arguments[3], file);
  if (offset < 0 || shape.size() != strides.size()) refuse_state_dict(file, "'" + name + "' has no place");
  std::int64_t last = offset;  // its last element's place
  bool overflows = element_count(shape) < 0;
  for (std::size_t i = 0; i < shape.size() && !overflows; ++i) {
    std::int64_t reach = 0;
    overflows = strides[i] < 0 || __builtin_mul_overflow(strides[i], std::max<std::int64_t>(0, shape[i] - 1), &reach) ||
                __builtin_add_overflow(last, reach, &last);
  }
  if (overflows || (element_count(shape) > 0 && last >= storage.count))
    refuse_state_dict(file, "'" + name + "' reaches beyond its elements");
  // Elements that stand for several places would make much of a small file.
  if (element_count(shape) > storage.count) refuse_state_dict(file, "'" + name + "' has more elements than are stored");
  return storages(storage).as_strided(shape, strides, offset).contiguous();
}

bool holds_tensors(const PickledValue& value) {
  if (value.kind != Kind::map) return false;
  for (std::size_t i = 1; i < value.items.size(); i += 2)
    if (is_tensor(*value.items[i])) return true;
  return false;
}

StateDict state_dict_of(const PickledValue& root, const Storages& storages, const std::filesystem::path& file) {
  const PickledValue* found = nullptr;
  // Scripts keep other tensors beside it.
  for (const PickledValue* candidate : {root.find("state_dict"), root.find("model"), &root})
    if (found == nullptr && candidate != nullptr && holds_tensors(*candidate)) found = candidate;
  if (found == nullptr) refuse_state_dict(file, "it is no map of tensors, and has none as 'state_dict' or 'model'");
  StateDict out;
  for (std::size_t i = 0; i < found->items.size(); i += 2)
    if (is_tensor(*found->items[i + 1]))
      out[found->items[i]->text] = tensor_of(found->items[i]->text, *found->items[i + 1], storages, file);
  return out;
}

at::Tensor elements(const void* bytes, ElementType type, std::int64_t count) {
  at::Tensor out = at::empty({count}, at::TensorOptions().dtype(scalar_type(type)));
  if (count > 0) std::memcpy(out.mutable_data_ptr(), bytes, out.nbytes());
  return out;
}

std::int64_t bytes_of(ElementType type, std::int64_t count, const std::filesystem::path& file) {
  std::int64_t out = 0;
  if (__builtin_mul_overflow(count, size_of(type), &out)) refuse_state_dict(file, "it says that it has more elements than any file");
  return out;
}

StateDict read_zip(const std::filesystem::path& path) {
  try {
    caffe2::serialize::PyTorchStreamReader archive(path.string());
    if (!archive.hasRecord("data.pkl")) refuse_state_dict(path, "the archive has no data.pkl");
    const auto [bytes, size] = archive.getRecord("data.pkl");
    const Pickle pickle({static_cast<const std::byte*>(bytes.get()), size}, path);
    if (archive.hasRecord("byteorder")) {
      const auto [order, length] = archive.getRecord("byteorder");
      if (std::string_view(static_cast<const char*>(order.get()), length) != "little")
        refuse_state_dict(path, "it was written by a big-endian host");
    }
    return state_dict_of(
        pickle.root(),
        [&](const Storage& storage) {
          const auto [data, length] = archive.getRecord("data/" + storage.key);
          if (static_cast<std::int64_t>(length) != bytes_of(*storage.type, storage.count, path))
            refuse_state_dict(path, "storage " + storage.key + " has another size");
          return elements(data.get(), *storage.type, storage.count);
        },
        path);
  } catch (const c10::Error& error) {
    refuse_state_dict(path, error.what_without_backtrace());
  }
}

// What torch.save wrote before PyTorch 1.6, and still does with _use_new_zipfile_serialization=False: pickles of a mark, of a version, of
// what kind of host it was and of the object; then one of the storages' keys, and behind it of each how many elements it has, and they.
StateDict read_row_of_pickles(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  const auto take = [&](std::size_t count) {
    if (count > bytes.size()) refuse_state_dict(path, "it ends early");
    const auto out = bytes.first(count);
    bytes = bytes.subspan(count);
    return out;
  };
  const auto skip_pickle = [&] { take(Pickle(bytes, path).size()); };
  for (int i = 0; i < 3; ++i) skip_pickle();
  const Pickle object(bytes, path);
  take(object.size());
  const Pickle keys(bytes, path);
  take(keys.size());

  // An element's size stands with the tensors alone.
  std::map<std::string, std::span<const std::byte>> places;
  std::map<std::string, ElementType> types;
  for (const PickledValue& value : object.values())
    if (value.kind == Kind::persistent) {
      const Storage storage = storage_of(value, path);
      if (!storage.type) refuse_state_dict(path, text("storage ", storage.key, " is a ", storage.type_name));
      types[storage.key] = *storage.type;
    }
  for (const PickledValue* key : items_of(keys.root(), Kind::sequence, 0, path)) {
    const auto type = types.find(key->text);
    if (type == types.end()) refuse_state_dict(path, "nothing says what storage " + key->text + " is");
    std::int64_t count = 0;
    std::memcpy(&count, take(sizeof count).data(), sizeof count);
    if (count < 0) refuse_state_dict(path, "storage " + key->text + " has another size");
    places[key->text] = take(static_cast<std::size_t>(bytes_of(type->second, count, path)));
  }
  return state_dict_of(
      object.root(),
      [&](const Storage& storage) {
        const auto place = places.find(storage.key);
        if (place == places.end() || static_cast<std::int64_t>(place->second.size()) != bytes_of(*storage.type, storage.count, path))
          refuse_state_dict(path, "storage " + storage.key + " has another size");
        return elements(place->second.data(), *storage.type, storage.count);
      },
      path);
}

StateDict read_safetensors(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  const SafetensorsHeader header = read_safetensors_header(bytes, path);
  StateDict out;
  for (const StoredTensor& tensor : header.tensors)
    out[tensor.name] = elements(bytes.data() + header.size + tensor.begin, tensor.type, element_count(tensor.shape)).view(tensor.shape);
  return out;
}

StateDict without_prefix(StateDict tensors, const std::string& prefix) {
  if (!std::all_of(tensors.begin(), tensors.end(), [&](const auto& entry) { return entry.first.starts_with(prefix); })) return tensors;
  StateDict out;
  for (const auto& [name, tensor] : tensors) out[name.substr(prefix.size())] = tensor;
  return out;
}

}  // namespace

StateDict read_state_dict(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  const auto bytes = mapped.bytes();
  const auto begins = [&](std::string_view mark, std::size_t place = 0) {
    return bytes.size() >= place + mark.size() && std::memcmp(bytes.data() + place, mark.data(), mark.size()) == 0;
  };
  constexpr std::size_t kMarkOfTar = 257;
  if (begins("ustar", kMarkOfTar))
    throw Error(ErrorCode::invalid_config, "the file is a tar archive, as PyTorch wrote them before 0.1.10", {file.string(), 0, 0, -1, {}},
                "what torch.save writes today, or .safetensors",
                "load it with PyTorch and save it again: torch.save(torch.load(FILE), NEW)");
  if (begins("PK")) return without_prefix(read_zip(file), "module.");
  if (begins("\x80\x02\x8a")) return without_prefix(read_row_of_pickles(bytes, file), "module.");
  if (file.extension() == ".safetensors") return read_safetensors(bytes, file);
  refuse_state_dict(file, "it is neither an archive of torch.save's nor .safetensors");
}

}  // namespace tessera::checkpoint
