#include "data/byte_alphabet.hpp"

#include "data/utf8.hpp"

namespace tessera::data {
namespace {

bool stands_for_itself(int byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE; }

}  // namespace

const std::array<std::string, 256>& byte_characters() {
  static const std::array<std::string, 256> table = [] {
    std::array<std::string, 256> characters;
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      append_utf8(characters[static_cast<std::size_t>(byte)], stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++);
    }
    return characters;
  }();
  return table;
}

std::string to_byte_characters(std::string_view bytes) {
  std::string out;
  for (char byte : bytes) out += byte_characters()[static_cast<unsigned char>(byte)];
  return out;
}

std::optional<std::string> from_byte_characters(std::string_view token) {
  static const std::array<int, 0x144> bytes = [] {
    std::array<int, 0x144> table;
    table.fill(-1);
    for (int byte = 0; byte < 256; ++byte) table[code_point_at(byte_characters()[static_cast<std::size_t>(byte)])] = byte;
    return table;
  }();
  std::string out;
  for (std::size_t position = 0; position < token.size();) {
    if (utf8_step(token.substr(position)) <= 0) return std::nullopt;
    const char32_t code_point = code_point_at(token.substr(position));
    if (code_point >= bytes.size() || bytes[code_point] < 0) return std::nullopt;
    out.push_back(static_cast<char>(bytes[code_point]));
    position += utf8_length(token[position]);
  }
  return out;
}

std::string byte_name(unsigned char byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'};
}

std::optional<unsigned char> byte_of_name(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (name.size() != 6 || !name.starts_with("<0x") || name.back() != '>') return std::nullopt;
  const std::size_t high = kDigits.find(name[3]), low = kDigits.find(name[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
  return static_cast<unsigned char>(high * 16 + low);
}

}  // namespace tessera::data
