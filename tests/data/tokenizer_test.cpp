#include "data/tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.hpp"
#include "base/temporary_folder.hpp"
#include "data/byte_alphabet.hpp"
#include "data/regex.hpp"
#include "data/sentencepiece_files.hpp"

namespace tessera::data {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// A tokenizer.json with the byte alphabet, a few merges and changes as a JSON merge patch.
std::string tokenizer_json(const json& patch = json::object()) {
  json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[byte_characters()[static_cast<std::size_t>(byte)]] = byte;
  vocab["th"] = 256;
  vocab["the"] = 257;
  json root = {{"version", "1.0"},
               {"added_tokens", {{{"id", 258}, {"content", "<|endoftext|>"}, {"special", true}, {"normalized", false}}}},
               {"normalizer", nullptr},
               {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
               {"decoder", {{"type", "ByteLevel"}}},
               {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"t h", "th e"}}}}};
  root.merge_patch(patch);
  return root.dump();
}

Error failure_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::internal, "nothing was thrown");
}
Error failure_of_json(const json& patch) {
  return failure_of([&] { parse_tokenizer_json(tokenizer_json(patch), "tokenizer.json"); });
}

TEST(Tokenizer, ReadsMergesAsStringsAndAsPairs) {
  EXPECT_THAT(parse_tokenizer_json(tokenizer_json(), "a")->encode("then"), ElementsAre(257, 'n'));
  const json pairs = {{"model", {{"merges", json::array({json::array({"t", "h"}), json::array({"th", "e"})})}}}};
  EXPECT_THAT(parse_tokenizer_json(tokenizer_json(pairs), "a")->encode("then"), ElementsAre(257, 'n'));
}

TEST(Tokenizer, NamesTheComponentThatIsNotSupported) {
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"model", {{"type", "WordLevel"}}}}, "model of this tokenizer has the component WordLevel"},
      {{{"model", {{"type", "WordPiece"}, {"unk_token", "t"}}}}, "WordPiece behind ByteLevel"},
      {{{"model", {{"type", "Unigram"}, {"merges", nullptr}}}}, "model of this tokenizer has the component Unigram"},
      {{{"model", {{"dropout", 0.1}}}}, "dropout"},
      {{{"model", {{"continuing_subword_prefix", "##"}}}}, "continuing_subword_prefix"},
      {{{"pre_tokenizer", {{"type", "Metaspace"}}}}, "pre_tokenizer of this tokenizer has the component Metaspace"},
      {{{"normalizer", {{"type", "Nmt"}}}}, "normalizer of this tokenizer has the component Nmt"},
      {{{"decoder", {{"type", "BPEDecoder"}}}}, "decoder of this tokenizer has the component BPEDecoder"},
  };
  for (const auto& [patch, expected] : cases) {
    const Error error = failure_of_json(patch);
    EXPECT_EQ(error.code(), ErrorCode::invalid_config) << patch;
    EXPECT_THAT(error.what(), HasSubstr(expected));
  }
}

TEST(Tokenizer, RefusesDamagedFiles) {
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"model", {{"merges", {"t h", "th q!"}}}}}, "q!"},
      {{{"model", {{"merges", {"t"}}}}}, "neither"},
      {{{"model", {{"vocab", {{"a", -1}}}}}}, "whole number"},
      {{{"model", {{"vocab", {{"a", 2000000000}}}}}}, "the largest id is 2000000000"},
      {{{"model", {{"vocab", "a"}}}}, "vocab is not an object"},
      {{{"model", {{"unk_token", "nope"}}}}, "nope"},
      {{{"added_tokens", {{{"content", "x"}}}}}, "id"},
      {{{"added_tokens", {{{"id", "x"}}}}}, "id"},
  };
  for (const auto& [patch, expected] : cases) {
    const Error error = failure_of_json(patch);
    EXPECT_EQ(error.code(), ErrorCode::corrupt) << patch;
    EXPECT_THAT(error.what(), HasSubstr(expected));
  }
  const Error syntax = failure_of([] { parse_tokenizer_json("{\n\"a\":\n 1,,}", "t.json"); });
  EXPECT_THAT(syntax.what(), HasSubstr("t.json:3"));
}

TEST(Tokenizer, EncodesOnlyUtf8AndDecodesAnything) {
  const auto tokenizer = make_byte_tokenizer();
  EXPECT_THAT(failure_of([&] { tokenizer->encode("ab\xFF"); }).what(), HasSubstr("not valid UTF-8 at byte 2"));
  const std::uint32_t ids[] = {'a', 0xE2, 0x82, 'b', 256, 0xFF, 0xE2};
  EXPECT_EQ(tokenizer->decode(ids),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD\xEF\xBF\xBD");
  const std::uint32_t outside[] = {257};
  EXPECT_THAT(failure_of([&] { tokenizer->decode(outside); }).what(), HasSubstr("token 257 is not in the vocabulary"));
}

TEST(Tokenizer, StreamsCompleteCharactersOnly) {
  const auto tokenizer = make_byte_tokenizer();
  StreamingDecoder decoder(*tokenizer);
  std::vector<std::string> parts;
  for (std::uint32_t id : tokenizer->encode("a€\xF0\x9F\x98\x80")) parts.push_back(decoder.push(id));
  EXPECT_THAT(parts, ElementsAre("a", "", "", "€", "", "", "", "\xF0\x9F\x98\x80"));
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(0x9F), "");
  EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
}

TEST(Tokenizer, TakesTheEndOfTextFromTheConfigBesideIt) {
  const TemporaryFolder folder;
  const json added = {
      {"added_tokens",
       {{{"id", 258}, {"content", "<|endoftext|>"}, {"special", true}}, {{"id", 259}, {"content", "<|im_end|>"}, {"special", true}}}}};
  folder.write("tokenizer.json", tokenizer_json(added));
  EXPECT_EQ(load_tokenizer(folder / "tokenizer.json")->end_of_text(), 258u);
  folder.write("tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  EXPECT_EQ(load_tokenizer(folder / "tokenizer.json")->end_of_text(), 259u);
  folder.write("tokenizer_config.json", R"({"eos_token": {"content": "<|endoftext|>"}})");
  EXPECT_EQ(load_tokenizer(folder / "tokenizer.json")->end_of_text(), 258u);
}

TEST(Tokenizer, FindsTokensByWhatTheyAreWritten) {
  const auto tokenizer = parse_tokenizer_json(tokenizer_json(), "a");
  EXPECT_EQ(tokenizer->id_of("<|endoftext|>"), 258u);
  EXPECT_EQ(tokenizer->id_of("the"), 257u);
  EXPECT_EQ(tokenizer->id_of(" "), 32u);
  EXPECT_EQ(tokenizer->id_of("then"), std::nullopt);
  EXPECT_TRUE(tokenizer->is_special(258));
  EXPECT_FALSE(tokenizer->is_special(257));
  const auto pieces = parse_sentencepiece(sentencepiece_model(1), "a");
  EXPECT_EQ(pieces->id_of("<unk>"), 0u);
  EXPECT_EQ(pieces->id_of("</s>"), 2u);
  EXPECT_EQ(pieces->decode(std::vector<std::uint32_t>{*pieces->id_of("king")}), "king");
  EXPECT_EQ(pieces->id_of("kings"), std::nullopt);
  EXPECT_TRUE(pieces->is_special(2));
  EXPECT_FALSE(pieces->is_special(0));
}

TEST(Tokenizer, SavesWhatItWasReadFrom) {
  const TemporaryFolder folder;
  const auto tokenizer = parse_tokenizer_json(tokenizer_json(), "a");
  tokenizer->save(folder / "tokenizer.json");
  EXPECT_EQ(load_tokenizer(folder / "tokenizer.json")->fingerprint(), tokenizer->fingerprint());
}

TEST(Tokenizer, SaysWhatIsWrongWithTheFileAsked) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", "[1]");
  const Error missing = failure_of([&] { load_tokenizer(folder / "tokeniser.json"); });
  EXPECT_EQ(missing.code(), ErrorCode::not_found);
  EXPECT_THAT(missing.what(), HasSubstr("did you mean"));
  EXPECT_EQ(failure_of([&] { load_tokenizer(folder / "tokenizer.json"); }).code(), ErrorCode::corrupt);
  EXPECT_EQ(failure_of([&] { load_tokenizer(folder.write("x.model", "no model")); }).code(), ErrorCode::corrupt);
  EXPECT_EQ(failure_of([&] { load_tokenizer(folder.write("y.model", "")); }).code(), ErrorCode::corrupt);
}

TEST(Tokenizer, TrainsTheSameWhateverTheOrderOfDocuments) {
  const std::vector<std::string> documents = {"the cat sat on the mat", "a cat, a hat, a bat", "that is that"};
  const std::vector<std::string> reversed(documents.rbegin(), documents.rend());
  EXPECT_EQ(train_bpe(documents, 280)->content(), train_bpe(reversed, 280)->content());
  EXPECT_EQ(train_bpe(documents, 260)->vocab_size(), 260);
  EXPECT_LT(train_bpe(documents, 5000)->vocab_size(), 400) << "there are no more pairs";
  EXPECT_THAT(failure_of([&] { train_bpe(documents, 256); }).what(), HasSubstr("between 257"));
}

TEST(Tokenizer, EncodesTheSameFromManyThreads) {
  const auto tokenizer = train_bpe(std::vector<std::string>{"the quick brown fox jumps over the lazy dog again and again"}, 300);
  std::string text;
  for (int index = 0; index < 2000; ++index) text += "the lazy fox " + std::to_string(index) + " again\n";
  const auto expected = tokenizer->encode(text);
  std::vector<std::vector<std::uint32_t>> results(4);
  {
    std::vector<std::jthread> threads;
    for (auto& result : results) threads.emplace_back([&] { result = tokenizer->encode(text); });
  }
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST(Tokenizer, KeepsPaceOnHostileTexts) {
  // One word of a megabyte, in the forms that make quadratic merging or backtracking slow; the test's time limit is the check.
  const auto tokenizer = train_bpe(std::vector<std::string>{"aaaa aaaa aaaa aa ab ab abab baba    \n\n  x"}, 300);
  for (const char* part : {"a", "ab", " ", "\n", "'", "1", "\xE4\xBD\xA0", "a\xCC\x81"}) {
    std::string text;
    while (text.size() < 1'000'000) text += part;
    const auto ids = tokenizer->encode(text + "\xF0\x9F\x98\x80 \t\n ");
    EXPECT_EQ(tokenizer->decode(ids), text + "\xF0\x9F\x98\x80 \t\n ");
  }
}

TEST(Regex, TranslatesOrRefuses) {
  EXPECT_THAT(translate_pattern(R"(\p{N}{1,3}+)"), HasSubstr("(?:[\\p{N}"));
  EXPECT_THAT(translate_pattern(R"(\u4e00)"), HasSubstr("\\x{4e00}"));
  EXPECT_THAT(translate_pattern(R"(\p{Han})"), HasSubstr("\\p{sc:Han}"));
  for (const char* pattern :
       {R"([a&&b])", R"([a[b]])", R"(a(?i)b)", R"((?m:a))", R"(\h\K)", R"(\p{Emoji_Thing})", R"([\W])", "(", "[a", "a{,2}", "\\"}) {
    const Error error = failure_of([&] { Regex compiled{std::string(pattern)}; });
    EXPECT_EQ(error.code(), ErrorCode::invalid_config) << pattern;
  }
}

}  // namespace
}  // namespace tessera::data
