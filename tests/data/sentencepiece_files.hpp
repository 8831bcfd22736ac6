// SentencePiece models for tests, written by hand: the fields of sentencepiece_model.proto.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace tessera::data {

inline void append_varint(std::string& out, std::uint64_t value) {
  for (; value > 127; value >>= 7) out.push_back(static_cast<char>(value | 128));
  out.push_back(static_cast<char>(value));
}
inline std::string field(int number, const std::string& content) {
  std::string out;
  append_varint(out, static_cast<std::uint64_t>(number) << 3 | 2);
  append_varint(out, content.size());
  return out + content;
}
inline std::string field(int number, std::uint64_t value) {
  std::string out;
  append_varint(out, static_cast<std::uint64_t>(number) << 3);
  append_varint(out, value);
  return out;
}
inline std::string piece(const std::string& text, float score, int kind) {
  std::string number(sizeof score, '\0');
  std::memcpy(number.data(), &score, sizeof score);
  return field(1, field(1, text) + std::string(1, 2 << 3 | 5) + number + field(3, static_cast<std::uint64_t>(kind)));
}

// A double array that maps "a" to "A" and nothing else: the root at 0 leads to unit 1 ^ 'a', whose leaf lies beside it.
inline std::string character_map() {
  std::vector<std::uint32_t> units(256, 0);
  units[0] = 1u << 10;                        // the root's children start at 1
  units[1 ^ 'a'] = 1u << 10 | 1u << 8 | 'a';  // a leaf follows at (1 ^ 'a') ^ 1
  units[static_cast<std::size_t>(1 ^ 'a') ^ 1] = 1u << 31 | 0;
  std::string out(4, '\0');
  const auto bytes = static_cast<std::uint32_t>(units.size() * 4);
  std::memcpy(out.data(), &bytes, 4);
  out.append(reinterpret_cast<const char*>(units.data()), bytes);
  return out + std::string("A\0", 2);
}

// With a word of each kind and a byte for each value. `type`: 1 unigram, 2 BPE.
inline std::string sentencepiece_model(int type) {
  std::string model = piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("</s>", 0, 3);
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(byte));
    model += piece(name, 0, 6);
  }
  for (const char* text :
       {"\xE2\x96\x81", "A", "T", "h", "e", "k", "i", "n", "g", "\xE2\x96\x81T", "he", "\xE2\x96\x81The", "ing", "king", "\xE4\xBD\xA0"}) {
    model += piece(text, -static_cast<float>(model.size() % 97), 1);
  }
  model += piece("crown", 0, 4) + piece("in", -3, 5);
  return model + field(2, field(3, static_cast<std::uint64_t>(type)) + field(35, 1)) + field(3, field(2, character_map()));
}

}  // namespace tessera::data
