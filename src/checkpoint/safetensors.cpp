#include "checkpoint/safetensors.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "checkpoint/cut.hpp"
#include "checkpoint/json_integer.hpp"

namespace tessera::checkpoint {
namespace {

struct TypeRow {
  ElementType type;
  const char* name;
  std::int64_t size;
};
constexpr TypeRow kTypes[] = {{ElementType::f32, "F32", 4}, {ElementType::bf16, "BF16", 2}, {ElementType::i64, "I64", 8},
                              {ElementType::f16, "F16", 2}, {ElementType::f64, "F64", 8},   {ElementType::f8_e4m3, "F8_E4M3", 1}};
// The same limit as the reference implementation's.
constexpr std::uint64_t kLongestHeader = 100'000'000;

[[noreturn]] void refuse_safetensors(const std::filesystem::path& path, const std::string& problem) {
  throw Error(ErrorCode::corrupt, "not a valid safetensors file: " + problem, {path.string(), 0, 0, -1, {}}, {},
              "the file is damaged or was cut short; take another copy or an earlier checkpoint");
}

StoredTensor tensor_of(const std::string& name, const nlohmann::json& entry, const std::filesystem::path& path) {
  StoredTensor tensor;
  tensor.name = name;
  tensor.type = element_type_of(entry.at("dtype").get<std::string>(), path);
  tensor.shape = integers_of(entry.at("shape"));
  const auto& offsets = entry.at("data_offsets");
  if (offsets.size() != 2) refuse_safetensors(path, "tensor '" + name + "' has no begin and end");
  tensor.begin = integer_of(offsets.at(0));
  tensor.end = integer_of(offsets.at(1));
  std::int64_t bytes = 0;
  const std::int64_t count = element_count(tensor.shape);
  if (count < 0 || __builtin_mul_overflow(count, size_of(tensor.type), &bytes) || tensor.begin < 0 || tensor.end < tensor.begin ||
      tensor.end - tensor.begin != bytes)
    refuse_safetensors(path, "the size of tensor '" + name + "' does not fit its shape");
  return tensor;
}

}  // namespace

const char* name_of(ElementType type) {
  return std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeRow& row) { return row.type == type; })->name;
}

std::int64_t size_of(ElementType type) {
  return std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeRow& row) { return row.type == type; })->size;
}

ElementType element_type_of(const std::string& name, const std::filesystem::path& file) {
  for (const TypeRow& row : kTypes)
    if (name == row.name) return row.type;
  throw Error(ErrorCode::corrupt, "tensors of type '" + name + "' cannot be read", {file.string(), 0, 0, -1, {}},
              "F32, BF16, F16, F64, F8_E4M3 or I64");
}

std::string safetensors_header(const std::vector<StoredTensor>& tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t expected = 0;
  for (const StoredTensor& tensor : tensors) {
    ensure(tensor.begin == expected && !header.contains(tensor.name),
           "tensors of a file must lie back to back and have names of their own");
    header[tensor.name] = {{"dtype", name_of(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
    expected = tensor.end;
  }
  std::string json = tensors.empty() && metadata.empty() ? "{}" : header.dump();
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[static_cast<std::size_t>(i)] = static_cast<char>(json.size() >> (8 * i) & 0xff);
  return out + json;
}

SafetensorsHeader read_safetensors_header(std::span<const std::byte> file, const std::filesystem::path& path) {
  if (file.size() < 8) refuse_safetensors(path, text("it has ", file.size(), " bytes"));
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= static_cast<std::uint64_t>(file[i]) << (8 * i);
  if (length > kLongestHeader || length > file.size() - 8) refuse_safetensors(path, text("its header of ", length, " bytes does not fit"));

  SafetensorsHeader header;
  header.size = static_cast<std::int64_t>(8 + length);
  try {
    const auto* begin = reinterpret_cast<const char*>(file.data()) + 8;
    const auto json = nlohmann::json::parse(begin, begin + length);
    if (!json.is_object()) refuse_safetensors(path, "its header is not a map");
    for (const auto& [name, entry] : json.items()) {
      if (name == "__metadata__") {
        header.metadata = entry.get<std::map<std::string, std::string>>();
      } else {
        header.tensors.push_back(tensor_of(name, entry, path));
      }
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& problem) {
    refuse_safetensors(path, problem.what());
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  std::int64_t expected = 0;
  for (const StoredTensor& tensor : header.tensors) {
    if (tensor.begin != expected) refuse_safetensors(path, "tensor '" + tensor.name + "' does not begin where the one before it ends");
    expected = tensor.end;
  }
  const std::int64_t data = static_cast<std::int64_t>(file.size()) - header.size;
  if (expected != data) refuse_safetensors(path, text("it has ", data, " bytes of data, its tensors take ", expected));
  return header;
}

}  // namespace tessera::checkpoint
