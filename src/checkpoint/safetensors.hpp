// The safetensors file format, without tensors: eight bytes of header length (little endian), a JSON header padded with
// blanks, then the data of all tensors back to back. https://huggingface.co/docs/safetensors
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace tessera::checkpoint {

// The element types that we read; the first three are the ones that we write. f8_e4m3 is torch's float8_e4m3fn.
enum class ElementType { f32, bf16, i64, f16, f64, f8_e4m3 };
const char* name_of(ElementType type);  // as in the header: "F32", "BF16", ...
std::int64_t size_of(ElementType type);
// Throws corrupt when it is none of the above.
ElementType element_type_of(const std::string& name, const std::filesystem::path& file);

struct StoredTensor {
  std::string name;
  ElementType type = ElementType::f32;
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;  // bytes, from the start of the data
  std::int64_t end = 0;
};

// The bytes before the data, including the length. Tensors must lie back to back from 0 in the order given.
std::string safetensors_header(const std::vector<StoredTensor>& tensors, const std::map<std::string, std::string>& metadata);

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // by offset
  std::map<std::string, std::string> metadata;
  std::int64_t size = 0;  // bytes before the data
};

// Reads with suspicion: throws corrupt, naming the file, for anything that is not exactly as the format says (lengths, types, holes,
// overlaps, a file that is longer or shorter than its tensors).
SafetensorsHeader read_safetensors_header(std::span<const std::byte> file, const std::filesystem::path& path);

}  // namespace tessera::checkpoint
