// internal: the printable character that stands for each byte in byte-level vocabularies (GPT-2's table): printable Latin-1
// bytes stand for themselves, the others for U+0100, U+0101, ... in order.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::data {

// UTF-8 of the character of each byte.
const std::array<std::string, 256>& byte_characters();
std::string to_byte_characters(std::string_view bytes);
// Unset when a character of `token` is not in the table.
std::optional<std::string> from_byte_characters(std::string_view token);

// "<0x0A>" and back: how vocabularies of characters name single bytes. Nothing for any other text.
std::string byte_name(unsigned char byte);
std::optional<unsigned char> byte_of_name(std::string_view name);

}  // namespace tessera::data
