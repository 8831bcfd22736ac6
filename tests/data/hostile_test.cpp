// Files that someone damaged or made up: an Error or a working tokenizer, never a crash. Meant to run under the address and
// undefined-behaviour sanitizers as well.
#include <gtest/gtest.h>
#include <cstdio>
#include <cstring>

#include "base/error.hpp"
#include "base/random.hpp"
#include "data/tokenizer.hpp"

namespace tessera::data {
namespace {

const char* const kTexts[] = {"", "The king's crown, 1606!", "  a\tb\r\n\n c  ", "\xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80",
                              "<|endoftext|><s></s><unk>\xE2\x96\x81"};

void append_varint(std::string& out, std::uint64_t value) {
  for (; value > 127; value >>= 7) out.push_back(static_cast<char>(value | 128));
  out.push_back(static_cast<char>(value));
}
std::string field(int number, const std::string& content) {
  std::string out;
  append_varint(out, static_cast<std::uint64_t>(number) << 3 | 2);
  append_varint(out, content.size());
  return out + content;
}
std::string field(int number, std::uint64_t value) {
  std::string out;
  append_varint(out, static_cast<std::uint64_t>(number) << 3);
  append_varint(out, value);
  return out;
}
std::string piece(const std::string& text, float score, int kind) {
  std::string number(sizeof score, '\0');
  std::memcpy(number.data(), &score, sizeof score);
  return field(1, field(1, text) + std::string(1, 2 << 3 | 5) + number + field(3, static_cast<std::uint64_t>(kind)));
}

// A double array that maps "a" to "A" and nothing else: the root at 0 leads to unit 1 ^ 'a', whose leaf lies beside it.
std::string character_map() {
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

std::string sentencepiece_model(int type) {
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

// Reads a damaged file and, if it can be read, uses it.
void read_and_use(const std::string& content, bool is_json) {
  try {
    const auto tokenizer = is_json ? parse_tokenizer_json(content, "damaged") : parse_sentencepiece(content, "damaged");
    for (const char* text : kTexts) {
      const auto ids = tokenizer->encode(text);
      tokenizer->decode(ids, true);
    }
  } catch (const Error&) {}
}

void damage_and_use(const std::string& whole, bool is_json, int rounds) {
  for (std::size_t size = 0; size < whole.size(); size += 1 + whole.size() / 300) read_and_use(whole.substr(0, size), is_json);
  Random random(17);
  for (int round = 0; round < rounds; ++round) {
    std::string damaged = whole;
    for (std::uint64_t flips = 1 + random.below(4); flips > 0; --flips) {
      char& byte = damaged[random.below(damaged.size())];
      byte = random.below(2) == 0 ? static_cast<char>(byte ^ (1 << random.below(8))) : static_cast<char>(random.below(256));
    }
    if (random.below(4) == 0) damaged.erase(random.below(damaged.size()), random.below(20));
    read_and_use(damaged, is_json);
  }
}

TEST(Hostile, TheModelsAreWholeBeforeTheyAreDamaged) {
  for (int type : {1, 2}) {
    const auto tokenizer = parse_sentencepiece(sentencepiece_model(type), "whole");
    const auto ids = tokenizer->encode("The king a crown");
    EXPECT_EQ(tokenizer->decode(ids), "The king A crown") << "the character map makes a of A";
  }
}

TEST(Hostile, DamagedTokenizerFilesAreErrors) {
  const std::string documents[] = {"the king and the crown and the king, 1606; the the and king \xE4\xBD\xA0\xE5\xA5\xBD"};
  const std::string content = train_bpe(documents, 290)->content();
  damage_and_use(content, true, 3000);
}

TEST(Hostile, DamagedSentencePieceModelsAreErrors) {
  for (int type : {1, 2}) damage_and_use(sentencepiece_model(type), false, 3000);
}

TEST(Hostile, DamageToTheCharacterMapAloneIsSurvived) {
  const std::string whole = sentencepiece_model(1);
  const std::size_t begin = whole.size() - character_map().size();
  Random random(23);
  for (int round = 0; round < 5000; ++round) {
    std::string damaged = whole;
    for (int flips = 0; flips < 8; ++flips) damaged[begin + random.below(whole.size() - begin)] = static_cast<char>(random.below(256));
    read_and_use(damaged, false);
  }
}

TEST(Hostile, AnythingAtAllIsAnError) {
  Random random(29);
  for (int round = 0; round < 2000; ++round) {
    std::string noise(random.below(300), '\0');
    for (char& byte : noise) byte = static_cast<char>(random.below(256));
    read_and_use(noise, true);
    read_and_use(noise, false);
  }
  read_and_use(std::string(1 << 20, '['), true);
  read_and_use("{\"model\": " + std::string(1 << 20, '{'), true);
}

}  // namespace
}  // namespace tessera::data
