#include "data/hf_tokenizer_file.hpp"

#include <algorithm>
#include <optional>

#include "data/byte_alphabet.hpp"
#include "data/in_file.hpp"
#include "data/json_fields.hpp"
#include "data/tokenizer.hpp"

namespace tessera::data {
namespace {

using nlohmann::json;

json parse_json(const std::string& content, const std::string& name) {
  try {
    return json::parse(content);
  } catch (const json::exception& error) {
    std::size_t line = 0;
    if (const auto* syntax = dynamic_cast<const json::parse_error*>(&error)) {
      const auto end = content.begin() + static_cast<std::ptrdiff_t>(std::min(syntax->byte, content.size()));
      line = 1 + static_cast<std::size_t>(std::count(content.begin(), end, '\n'));
    }
    throw Error(ErrorCode::corrupt, "this is not valid JSON", in_file(name, static_cast<int>(line)), "a tokenizer.json",
                "fetch or save the file again");
  }
}

const json& member(const json& object, const char* key, const std::string& name) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (!object.is_object() || found == object.end()) bad_tokenizer(name, text("the field ", key, " is missing"));
  return *found;
}

std::uint32_t id_of(const json& value, const std::string& name) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > 0x7FFFFFFF)
    bad_tokenizer(name, "a token's id is not a whole number below 2^31");
  return value.get<std::uint32_t>();
}

TokenIds read_vocabulary(const json& model, const std::string& name) {
  const json& entries = member(model, "vocab", name);
  if (!entries.is_object()) bad_tokenizer(name, "the field vocab is not an object");
  TokenIds vocabulary;
  vocabulary.reserve(entries.size());
  for (const auto& [token, id] : entries.items()) vocabulary.emplace(token, id_of(id, name));
  if (vocabulary.empty()) bad_tokenizer(name, "the vocabulary is empty");
  return vocabulary;
}

std::vector<AddedToken> read_added(const json& root, const std::string& name) {
  std::vector<AddedToken> added;
  const auto list = root.find("added_tokens");
  if (list == root.end() || list->is_null()) return added;
  if (!list->is_array()) bad_tokenizer(name, "the field added_tokens is not a list");
  for (const json& entry : *list) {
    AddedToken token;
    token.id = id_of(member(entry, "id", name), name);
    token.content = json_field<std::string>(entry, "content", "", name);
    token.single_word = json_field(entry, "single_word", false, name);
    token.strip_left = json_field(entry, "lstrip", false, name);
    token.strip_right = json_field(entry, "rstrip", false, name);
    token.special = json_field(entry, "special", false, name);
    token.normalized = json_field(entry, "normalized", !token.special, name);
    added.push_back(std::move(token));
  }
  return added;
}

std::pair<std::string, std::string> merge_parts(const json& entry, const std::string& name) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
    return {entry[0].get<std::string>(), entry[1].get<std::string>()};
  }
  if (entry.is_string()) {
    const auto line = entry.get<std::string>();
    const std::size_t space = line.find(' ');
    if (space != std::string::npos && line.find(' ', space + 1) == std::string::npos)
      return {line.substr(0, space), line.substr(space + 1)};
  }
  bad_tokenizer(name, "a merge is neither \"a b\" nor [\"a\", \"b\"]");
}

void read_merges(const json& model, const TokenIds& vocabulary, const std::string& name, BpeModel& out) {
  const json& merges = member(model, "merges", name);
  if (!merges.is_array()) bad_tokenizer(name, "the field merges is not a list");
  const auto find = [&](const std::string& token) {
    const auto found = vocabulary.find(token);
    if (found == vocabulary.end()) bad_tokenizer(name, text("the merges name the token \"", token, "\", which is not in the vocabulary"));
    return found->second;
  };
  for (const json& entry : merges) {
    const auto [left, right] = merge_parts(entry, name);
    out.add_merge(find(left), find(right), find(left + right));
  }
}

BpeModel::Options read_options(const json& model, const TokenIds& vocabulary, bool byte_level, const std::string& name) {
  const auto type = json_field<std::string>(model, "type", "BPE", name);
  if (type != "BPE") unsupported_component(name, "model", type);
  if (model.contains("dropout") && model["dropout"].is_number() && model["dropout"].get<double>() != 0)
    unsupported_component(name, "model", "dropout");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!json_field<std::string>(model, affix, "", name).empty()) unsupported_component(name, "model", affix);
  }
  BpeModel::Options options;
  options.byte_level = byte_level;
  options.ignore_merges = json_field(model, "ignore_merges", false, name);
  options.byte_fallback = json_field(model, "byte_fallback", false, name);
  options.fuse_unknown = json_field(model, "fuse_unk", false, name);
  const auto unknown = json_field<std::string>(model, "unk_token", "", name);
  if (!unknown.empty()) {
    const auto found = vocabulary.find(unknown);
    if (found == vocabulary.end()) bad_tokenizer(name, text("the unk_token ", unknown, " is not in the vocabulary"));
    options.unknown = found->second;
  }
  return options;
}

WordPieceModel::Options read_word_piece(const json& model, const TokenIds& vocabulary, const std::string& name) {
  WordPieceModel::Options options;
  options.prefix = json_field<std::string>(model, "continuing_subword_prefix", "##", name);
  options.longest = json_field<std::int64_t>(model, "max_input_chars_per_word", 100, name);
  const auto unknown = json_field<std::string>(model, "unk_token", "[UNK]", name);
  const auto found = vocabulary.find(unknown);
  if (found == vocabulary.end()) bad_tokenizer(name, text("the unk_token ", unknown, " is not in the vocabulary"));
  options.unknown = found->second;
  return options;
}

// What a decoder of characters does beside joining the tokens, in the combination that Llama-2's file has, or BERT's: spaces between words,
// but for those that written English has not.
struct CharacterDecoder {
  std::vector<std::pair<std::string, std::string>> replace;
  bool byte_fallback = false;
  bool strip_first_space = false;
  std::optional<std::string> word_prefix;  // of tokens that go on with a word
  bool cleans_up = false;
};

void read_decoder(const json& description, const std::string& name, CharacterDecoder& out) {
  if (description.is_null()) return;
  const auto type = json_field<std::string>(description, "type", "", name);
  if (type == "Sequence") {
    for (const json& part : member(description, "decoders", name)) read_decoder(part, name, out);
  } else if (type == "Replace") {
    const json& pattern = member(description, "pattern", name);
    const auto from = json_field<std::string>(pattern, "String", "", name);
    if (from.empty()) unsupported_component(name, "decoder", "Replace of a Regex");
    out.replace.emplace_back(from, json_field<std::string>(description, "content", "", name));
  } else if (type == "ByteFallback") {
    out.byte_fallback = true;
  } else if (type == "Strip") {
    out.strip_first_space =
        json_field<std::string>(description, "content", "", name) == " " && json_field<std::int64_t>(description, "start", 0, name) == 1;
  } else if (type == "WordPiece") {
    out.word_prefix = json_field<std::string>(description, "prefix", "##", name);
    out.cleans_up = json_field(description, "cleanup", true, name);
    out.strip_first_space = true;
  } else if (type != "Fuse" && type != "ByteLevel") {
    unsupported_component(name, "decoder", type);
  }
}

std::string decoded_word(const std::string& token, const CharacterDecoder& decoder) {
  if (token.starts_with(*decoder.word_prefix)) return token.substr(decoder.word_prefix->size());
  std::string word = " " + token;
  if (!decoder.cleans_up) return word;
  for (const auto& [from, to] : {std::pair{" .", "."},
                                 {" ?", "?"},
                                 {" !", "!"},
                                 {" ,", ","},
                                 {" n't", "n't"},
                                 {" 'm", "'m"},
                                 {" do not", " don't"},
                                 {" 's", "'s"},
                                 {" 've", "'ve"},
                                 {" 're", "'re"}})
    if (word.starts_with(from)) word.replace(0, std::string_view(from).size(), to);
  return word;
}

std::string decoded_characters(std::string token, const CharacterDecoder& decoder) {
  if (decoder.word_prefix) return decoded_word(token, decoder);
  if (decoder.byte_fallback) {
    if (const auto byte = byte_of_name(token)) return std::string(1, static_cast<char>(*byte));
  }
  for (const auto& [from, to] : decoder.replace) {
    for (std::size_t at = token.find(from); at != std::string::npos; at = token.find(from, at + to.size()))
      token.replace(at, from.size(), to);
  }
  return token;
}

}  // namespace

HfTokenizerFile read_hf_tokenizer(const std::string& content, const std::string& name) {
  const json root = parse_json(content, name);
  if (!root.is_object()) bad_tokenizer(name, "this is not a JSON object");
  HfTokenizerFile file;
  file.added = read_added(root, name);
  file.normalizer = make_normalizer(root.value("normalizer", json()), name);
  file.pre_tokenizer = std::make_unique<PreTokenizer>(root.value("pre_tokenizer", json()), name);
  const bool byte_level = file.pre_tokenizer->byte_level();

  const json& model = member(root, "model", name);
  const bool word_piece = model.is_object() && json_field<std::string>(model, "type", "", name) == "WordPiece";
  if (model.is_object() && !model.contains("merges") && !word_piece)
    unsupported_component(name, "model", json_field<std::string>(model, "type", "without merges", name));
  const TokenIds vocabulary = read_vocabulary(model, name);
  CharacterDecoder decoder;
  read_decoder(root.value("decoder", json()), name, decoder);
  file.strip_first_space = decoder.strip_first_space;

  std::uint64_t size = 0;
  for (const auto& [token, id] : vocabulary) size = std::max<std::uint64_t>(size, id + 1ull);
  for (const AddedToken& token : file.added) size = std::max<std::uint64_t>(size, token.id + 1ull);
  if (size > 4 * (vocabulary.size() + file.added.size()) + 65536) {
    bad_tokenizer(name, text("the largest id is ", size - 1, " but there are only ", vocabulary.size() + file.added.size(), " tokens"));
  }
  file.tokens.resize(size);
  TokenIds words;
  words.reserve(vocabulary.size());
  for (const auto& [token, id] : vocabulary) {
    if (byte_level) {
      auto bytes = from_byte_characters(token);
      if (bytes) words.emplace(*bytes, id);
      file.tokens[id].bytes = bytes ? std::move(*bytes) : token;
    } else {
      words.emplace(token, id);
      file.tokens[id].bytes = decoded_characters(token, decoder);
    }
  }
  for (const AddedToken& token : file.added) {
    file.tokens[token.id] = {
        byte_level ? from_byte_characters(token.content).value_or(token.content) : decoded_characters(token.content, decoder),
        token.special};
  }
  if (word_piece) {
    if (byte_level) unsupported_component(name, "model", "WordPiece behind ByteLevel");
    file.word_piece = std::make_unique<WordPieceModel>(std::move(words), read_word_piece(model, vocabulary, name));
    return file;
  }
  file.model = std::make_unique<BpeModel>(std::move(words), read_options(model, vocabulary, byte_level, name));
  read_merges(model, vocabulary, name, *file.model);
  return file;
}

std::string write_hf_tokenizer(const std::vector<std::string>& tokens, const std::vector<std::pair<std::uint32_t, std::uint32_t>>& merges,
                               std::uint32_t end_of_text, bool cut_words) {
  using ordered = nlohmann::ordered_json;
  const auto byte_level = [&](bool use_regex) {
    return ordered{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
  };
  ordered vocab = ordered::object();
  // push_back on the underlying list: looking for equal keys would take quadratic time.
  auto& entries = vocab.get_ref<ordered::object_t&>();
  for (std::size_t id = 0; id < tokens.size(); ++id) entries.push_back({tokens[id], id});
  ordered pairs = ordered::array();
  for (const auto& [left, right] : merges) pairs.push_back({tokens[left], tokens[right]});
  const ordered root{{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", ordered::array({ordered{{"id", end_of_text},
                                                              {"content", kEndOfText},
                                                              {"single_word", false},
                                                              {"lstrip", false},
                                                              {"rstrip", false},
                                                              {"normalized", false},
                                                              {"special", true}}})},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level(cut_words)},
                     {"post_processor", nullptr},
                     {"decoder", byte_level(true)},
                     {"model", ordered{{"type", "BPE"},
                                       {"dropout", nullptr},
                                       {"unk_token", nullptr},
                                       {"continuing_subword_prefix", nullptr},
                                       {"end_of_word_suffix", nullptr},
                                       {"fuse_unk", false},
                                       {"byte_fallback", false},
                                       {"ignore_merges", false},
                                       {"vocab", std::move(vocab)},
                                       {"merges", std::move(pairs)}}}};
  return root.dump(1) + "\n";
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  const std::vector<std::string> tokens(byte_characters().begin(), byte_characters().end());
  return parse_tokenizer_json(write_hf_tokenizer(tokens, {}, 256, false), "the byte tokenizer");
}

}  // namespace tessera::data
