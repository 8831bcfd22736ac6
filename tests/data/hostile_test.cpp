// Files that someone damaged or made up: an Error or a working tokenizer, never a crash. Meant to run under the address and
// undefined-behaviour sanitizers as well.
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/random.hpp"
#include "data/sentencepiece_files.hpp"
#include "data/tokenizer.hpp"

namespace tessera::data {
namespace {

const char* const kTexts[] = {"", "The king's crown, 1606!", "  a\tb\r\n\n c  ", "\xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80",
                              "<|endoftext|><s></s><unk>\xE2\x96\x81"};

// Reads a damaged file. False when it is refused; a tokenizer that was read must work.
bool is_read(const std::string& content, bool is_json) {
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = is_json ? parse_tokenizer_json(content, "damaged") : parse_sentencepiece(content, "damaged");
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::corrupt || error.code() == ErrorCode::invalid_config) << error.what();
    EXPECT_EQ(error.where().file, "damaged") << error.what();
    return false;
  }
  for (const char* text : kTexts) {
    const auto ids = tokenizer->encode(text);
    for (const std::uint32_t id : ids) EXPECT_LT(id, tokenizer->vocab_size());
    tokenizer->decode(ids, true);
  }
  return true;
}

// Damaged in `rounds` places, most files must be refused, and some are whole enough to be read.
void damage_and_use(const std::string& whole, bool is_json, int rounds) {
  ASSERT_TRUE(is_read(whole, is_json));
  Random random(17);
  int read = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string damaged = whole;
    for (std::uint64_t flips = 1 + random.below(4); flips > 0; --flips) {
      char& byte = damaged[random.below(damaged.size())];
      byte = random.below(2) == 0 ? static_cast<char>(byte ^ (1 << random.below(8))) : static_cast<char>(random.below(256));
    }
    if (random.below(4) == 0) damaged.erase(random.below(damaged.size()), random.below(20));
    read += is_read(damaged, is_json) ? 1 : 0;
  }
  EXPECT_GT(read, rounds / 100);
  EXPECT_GT(rounds - read, rounds / 4);
}

TEST(Hostile, TheModelsAreWholeBeforeTheyAreDamaged) {
  for (int type : {1, 2}) {
    const auto tokenizer = parse_sentencepiece(sentencepiece_model(type), "whole");
    const auto ids = tokenizer->encode("The king a crown");
    EXPECT_EQ(tokenizer->decode(ids), "The king A crown") << "the character map makes a of A";
  }
}

TEST(Hostile, DamagedTokenizerFilesAreRefusedOrWork) {
  const std::string documents[] = {"the king and the crown and the king, 1606; the the and king \xE4\xBD\xA0\xE5\xA5\xBD"};
  const std::string content = train_bpe(documents, 290)->content();
  damage_and_use(content, true, 3000);
}

TEST(Hostile, DamagedSentencePieceModelsAreRefusedOrWork) {
  for (int type : {1, 2}) damage_and_use(sentencepiece_model(type), false, 3000);
}

TEST(Hostile, ATokenizerFileThatWasCutOffIsRefused) {
  const std::string documents[] = {"the king and the crown"};
  const std::string whole = train_bpe(documents, 262)->content();
  const std::size_t last = whole.find_last_of('}');
  for (std::size_t size = 0; size <= last; size += 1 + whole.size() / 300) EXPECT_FALSE(is_read(whole.substr(0, size), true)) << size;
  EXPECT_FALSE(is_read(whole.substr(0, last), true));
}

TEST(Hostile, DamageToTheCharacterMapAloneIsSurvived) {
  const std::string whole = sentencepiece_model(1);
  const std::size_t begin = whole.size() - character_map().size();
  Random random(23);
  int read = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string damaged = whole;
    for (int flips = 0; flips < 8; ++flips) damaged[begin + random.below(whole.size() - begin)] = static_cast<char>(random.below(256));
    read += is_read(damaged, false) ? 1 : 0;
  }
  EXPECT_GT(read, 1000) << "most maps must be used for what they say";
}

TEST(Hostile, AnythingAtAllIsAnError) {
  Random random(29);
  for (int round = 0; round < 2000; ++round) {
    std::string noise(random.below(300), '\0');
    for (char& byte : noise) byte = static_cast<char>(random.below(256));
    EXPECT_FALSE(is_read(noise, true)) << round;
    EXPECT_FALSE(is_read(noise, false)) << round;
  }
  EXPECT_FALSE(is_read(std::string(1 << 20, '['), true));
  EXPECT_FALSE(is_read("{\"model\": " + std::string(1 << 20, '{'), true));
}

}  // namespace
}  // namespace tessera::data
