// UTF-8: finding what is wrong with a text, and turning bytes that arrive in any cut into valid text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::data {

// One step of decoding at the start of `bytes` (not empty): > 0 is the length of a valid character, 0 is a valid beginning
// of one that needs more bytes, < 0 is minus the length of the longest part that belongs to no character (Unicode 15, table 3-7).
int utf8_step(std::string_view bytes);
// Bytes of the character that starts with this lead byte; 1 for a byte that starts none.
inline std::size_t utf8_length(char lead) { return "\1\1\1\1\1\1\1\1\1\1\1\1\2\2\3\4"[static_cast<unsigned char>(lead) >> 4]; }
// Offset of the first byte that is no valid UTF-8; nothing if all is valid.
std::optional<std::size_t> first_invalid_utf8(std::string_view bytes);
void append_utf8(std::string& out, char32_t code_point);
// The code point of the valid character at the start of `text`.
char32_t code_point_at(std::string_view text);

// How many U+FFFD stand for invalid bytes: one for each maximal part (as `tokenizers` does) or one for each byte (as
// `sentencepiece` does).
enum class InvalidBytes { each_part, each_byte };

// Accepts bytes in any cut and gives out complete characters only.
class Utf8Assembler {
 public:
  explicit Utf8Assembler(InvalidBytes policy) : policy_(policy) {}
  // Appends to `out` all that is certain now. At most three bytes stay behind.
  void push(std::string_view bytes, std::string& out);
  // What stayed behind becomes U+FFFD.
  void finish(std::string& out);

 private:
  InvalidBytes policy_;
  std::string pending_;
};

}  // namespace tessera::data
