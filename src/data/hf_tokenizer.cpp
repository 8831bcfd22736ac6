#include <algorithm>

#include "base/file_system.hpp"
#include "data/added_tokens.hpp"
#include "data/bpe_model.hpp"
#include "data/byte_alphabet.hpp"
#include "data/hf_tokenizer_file.hpp"
#include "data/scratch_pool.hpp"
#include "data/tokenizer.hpp"

namespace tessera::data {
namespace {

constexpr std::size_t kBlock = 8192;  // ids handed on at a time

class HfTokenizer final : public Tokenizer {
 public:
  HfTokenizer(std::string content, HfTokenizerFile file, const std::string& end_of_text)
      : Tokenizer(std::move(content)), file_(std::move(file)), end_of_text_(find_end_of_text(end_of_text)) {
    for (AddedToken token : file_.added) {
      const bool later = token.normalized && file_.normalizer;
      if (later) token.content = file_.normalizer->apply(token.content);
      // Without a normalizer both kinds are looked for in the same text, but one after the other.
      (token.normalized ? in_normalized_ : in_raw_).add(token);
    }
  }

  void encode_to(std::string_view text, const TokenSink& sink) const override {
    if (const auto offset = first_invalid_utf8(text)) {
      throw Error(ErrorCode::invalid_config, tessera::text("the text is not valid UTF-8 at byte ", *offset), {}, "UTF-8",
                  "convert it with iconv");
    }
    const auto lease = scratch_.take([&] {
      auto made = std::make_unique<Scratch>();
      made->matchers = file_.pre_tokenizer->make_matchers();
      return made;
    });
    Scratch& scratch = *lease;
    auto& ids = scratch.ids;
    ids.clear();
    std::size_t done = 0;
    const auto add_word = [&](std::string_view word) {
      if (file_.word_piece)
        file_.word_piece->encode(word, ids);
      else
        file_.model->encode(word, scratch.bpe, ids);
      done += word.size();
      if (ids.size() < kBlock) return;
      sink(ids, std::min(done, text.size()));
      ids.clear();
    };
    const WordSink word_sink = add_word;
    const auto add_part = [&](std::string_view part, std::optional<std::uint32_t> id) {
      if (!id) return file_.pre_tokenizer->split(part, scratch.matchers, word_sink);
      ids.push_back(*id);
      done += part.size();
    };
    in_raw_.split(text, [&](std::string_view part, std::optional<std::uint32_t> id) {
      if (id || (!file_.normalizer && in_normalized_.empty())) return add_part(part, id);
      if (!file_.normalizer) return in_normalized_.split(part, add_part);
      in_normalized_.split(file_.normalizer->apply(part), add_part);
    });
    sink(ids, text.size());
  }

  void append_bytes(std::uint32_t id, bool keep_special, DecodeState& state, std::string& bytes) const override {
    const HfTokenizerFile::Token& token = file_.tokens[id];
    if (token.special && !keep_special) return;
    std::string_view piece = token.bytes;
    if (file_.strip_first_space && !state.any_text && piece.starts_with(' ')) piece.remove_prefix(1);
    state.any_text = true;
    bytes.append(piece);
  }

  InvalidBytes invalid_bytes() const override { return InvalidBytes::each_part; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(file_.tokens.size()); }
  std::optional<std::uint32_t> end_of_text() const override { return end_of_text_; }
  bool is_special(std::uint32_t id) const override { return file_.tokens[id].special; }
  std::optional<std::uint32_t> id_of(std::string_view token) const override {
    if (const auto id = added_id_of(token)) return id;
    const auto found =
        std::find_if(file_.tokens.begin(), file_.tokens.end(), [&](const HfTokenizerFile::Token& one) { return one.bytes == token; });
    if (found == file_.tokens.end()) return std::nullopt;
    return static_cast<std::uint32_t>(found - file_.tokens.begin());
  }
  std::string file_name() const override { return "tokenizer.json"; }

 private:
  struct Scratch {
    BpeModel::Scratch bpe;
    PreTokenizer::Matchers matchers;
    std::vector<std::uint32_t> ids;
  };
  std::optional<std::uint32_t> added_id_of(std::string_view content) const {
    for (const AddedToken& token : file_.added) {
      if (token.content == content) return token.id;
    }
    return std::nullopt;
  }
  std::optional<std::uint32_t> find_end_of_text(const std::string& named) const {
    if (!named.empty()) return added_id_of(named);
    for (const char* known : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "[SEP]"}) {
      if (const auto id = added_id_of(known)) return id;
    }
    return std::nullopt;
  }

  HfTokenizerFile file_;
  AddedTokenFinder in_raw_;
  AddedTokenFinder in_normalized_;
  std::optional<std::uint32_t> end_of_text_;
  mutable ScratchPool<Scratch> scratch_;  // its cache of words is what makes encoding fast
};

}  // namespace

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string content, const std::string& name, const std::string& end_of_text) {
  HfTokenizerFile file = read_hf_tokenizer(content, name);
  return std::make_unique<HfTokenizer>(std::move(content), std::move(file), end_of_text);
}

}  // namespace tessera::data
