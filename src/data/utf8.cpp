#include "data/utf8.hpp"

#include <simdjson.h>

namespace tessera::data {
namespace {
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
}

int utf8_step(std::string_view bytes) {
  const auto at = [&](std::size_t index) { return static_cast<unsigned char>(bytes[index]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return -1;
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  for (std::size_t index = 1; index < length; ++index) {
    if (index >= bytes.size()) return 0;
    unsigned char low = 0x80, high = 0xBF;
    if (index == 1) {
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (at(index) < low || at(index) > high) return -static_cast<int>(index);
  }
  return static_cast<int>(length);
}

std::optional<std::size_t> first_invalid_utf8(std::string_view bytes) {
  if (simdjson::validate_utf8(bytes.data(), bytes.size())) return std::nullopt;
  for (std::size_t position = 0; position < bytes.size();) {
    const int step = utf8_step(bytes.substr(position));
    if (step <= 0) return position;
    position += static_cast<std::size_t>(step);
  }
  return std::nullopt;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

char32_t code_point_at(std::string_view text) {
  const std::size_t length = utf8_length(text[0]);
  const auto lead = static_cast<unsigned char>(text[0]);
  if (length == 1) return lead;
  char32_t code_point = lead & (0x7Fu >> length);
  for (std::size_t index = 1; index < length; ++index) code_point = code_point << 6 | (static_cast<unsigned char>(text[index]) & 0x3Fu);
  return code_point;
}

void Utf8Assembler::push(std::string_view bytes, std::string& out) {
  pending_.append(bytes);
  std::size_t position = 0;
  while (position < pending_.size()) {
    const int step = utf8_step(std::string_view(pending_).substr(position));
    if (step == 0) break;
    if (step > 0) {
      out.append(pending_, position, static_cast<std::size_t>(step));
      position += static_cast<std::size_t>(step);
    } else {
      out.append(kReplacement);
      position += policy_ == InvalidBytes::each_byte ? 1 : static_cast<std::size_t>(-step);
    }
  }
  pending_.erase(0, position);
}

void Utf8Assembler::finish(std::string& out) {
  if (!pending_.empty()) out.append(kReplacement);
  if (policy_ == InvalidBytes::each_byte) {
    for (std::size_t index = 1; index < pending_.size(); ++index) out.append(kReplacement);
  }
  pending_.clear();
}

}  // namespace tessera::data
