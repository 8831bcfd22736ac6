// What `data inspect` reads: tokenizers of others, token caches, documents.
#include <algorithm>
#include <memory>

#include "base/file_system.hpp"
#include "base/log.hpp"
#include "base/temporary_folder.hpp"
#include "data/data.hpp"
#include "data/sentencepiece_files.hpp"
#include "data/token_cache_files.hpp"
#include "fuzz/checks.hpp"

namespace tessera::fuzz {
namespace {

// Ids within the vocabulary, and text that is text.
void use(const data::Tokenizer& tokenizer) {
  const std::int64_t vocab = tokenizer.vocab_size();
  if (const auto end = tokenizer.end_of_text(); end && *end >= vocab) throw Defect(text("token ", *end, " of ", vocab, " ends a text"));
  for (const char* words : {"", "The king's crown, 1606!", "  a\tb\r\n\n c  ", "\xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80",
                            "<|endoftext|><s></s><unk>\xE2\x96\x81"}) {
    const std::vector<std::uint32_t> ids = tokenizer.encode(words);
    for (const std::uint32_t id : ids)
      if (id >= vocab) throw Defect(text("token ", id, " of ", vocab));
    const std::string decoded = tokenizer.decode(ids, true);
    data::StreamingDecoder decoder(tokenizer, true);
    std::string streamed;
    for (const std::uint32_t id : ids) streamed += decoder.push(id);
    must_be_equal(decoded, streamed + decoder.finish(), "a text token by token");
  }
}

template <typename Parse>
Target tokenizer_reader(std::vector<std::string> seeds, const Parse& parse) {
  Target target;
  target.refusals = {ErrorCode::corrupt, ErrorCode::invalid_config};
  target.seeds = std::move(seeds);
  target.read = [parse](const std::string& input) {
    const log::Silence silence;
    const auto tokenizer = parse(input, "tokenizer");
    must_pass("a tokenizer that was read cannot be used", [&] { use(*tokenizer); });
    must_pass("what was read is refused",
              [&] { must_be_equal(tokenizer->fingerprint(), parse(tokenizer->content(), "again")->fingerprint(), "the tokenizer"); });
  };
  return target;
}

constexpr const char* kWithUnknown =
    R"({"version": "1.0", "added_tokens": [{"id": 4, "content": "<s>", "special": true, "single_word": false, "lstrip": true, "rstrip": true, "normalized": false}],)"
    R"("normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},)"
    R"("pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+"}, "behavior": "Isolated", "invert": false},)"
    R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},)"
    R"("post_processor": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},)"
    R"("decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},)"
    R"("model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": false,)"
    R"("byte_fallback": false, "ignore_merges": true, "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3}, "merges": [["a", "b"]]}})";

}  // namespace

Target tokenizer_target() {
  const std::string documents[] = {"the king and the crown and the king, 1606; the the and king \xE4\xBD\xA0\xE5\xA5\xBD"};
  return tokenizer_reader({data::train_bpe(documents, 280)->content(), kWithUnknown},
                          [](const std::string& content, const char* name) { return data::parse_tokenizer_json(content, name); });
}

Target sentencepiece_target() {
  return tokenizer_reader({data::sentencepiece_model(1), data::sentencepiece_model(2)},
                          [](const std::string& content, const char* name) { return data::parse_sentencepiece(content, name); });
}

// Checksums are computed anew: with the old ones nearly everything is refused at the door.
Target token_cache_target() {
  const auto folder = std::make_shared<TemporaryFolder>();
  Target target;
  target.refusals = {ErrorCode::corrupt};
  for (const std::int64_t vocab : {std::int64_t{300}, std::int64_t{128256}}) {
    data::TokenCacheWriter writer(real_file_system(), *folder / "tokens.bin", vocab, std::string(32, 'a'));
    for (std::uint32_t document = 1; document < 5; ++document) {
      const std::vector<std::uint32_t> tokens(document, document * 50);
      writer.append(tokens);
      writer.end_document();
    }
    writer.finish();
    target.seeds.push_back(read_whole(*folder / "tokens.bin"));
  }
  target.inner = [](const std::string& file) { return file; };
  target.outer = data::resealed;
  target.read = [folder](const std::string& input) {
    const data::TokenCache cache(folder->write("tokens.bin", input));
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(cache.size()));
    cache.read(0, tokens);
    for (const std::int32_t token : tokens)
      if (token < 0 || token >= cache.vocab()) throw Defect(text("token ", token, " of ", cache.vocab()));
    must_pass("a cache that was read cannot be used", [&] {
      cache.verify();
      for (std::int64_t i = 0; i < cache.document_count(); ++i) {
        const std::int64_t begin = cache.document_begin(i), end = cache.document_begin(i + 1);
        if (begin < 0 || end < begin || end > cache.size()) throw Defect(text("a document from ", begin, " to ", end));
      }
    });
  };
  return target;
}

// As text and as JSON lines; the verdict is of the latter.
Target documents_target() {
  Target target;
  target.seeds = {"{\"text\": \"To be, or not to be\"}\n{\"id\": 1, \"text\": \"caf\\u00e9 \\ud83d\\ude00\"}\n\n{\"text\": \"\"}\n",
                  "\xEF\xBB\xBF{\"text\": \"a\\nb\", \"more\": {\"text\": [1, {}]}}\r\n"};
  target.read = [folder = std::make_shared<TemporaryFolder>()](const std::string& input) {
    const auto visit = [&](const std::string& name) {
      const data::Source source = data::open_source(folder->write(name, input));
      std::uint64_t begin = 0;
      data::read_documents(source, [&](const data::Document& document) {
        if (document.text.empty() || document.begin < begin || document.end < document.begin || document.end > source.bytes)
          throw Defect(text("a document of ", document.text.size(), " bytes at ", document.begin, " to ", document.end));
        begin = document.end;
        must_pass("a document is no text", [&] { data::make_byte_tokenizer()->encode(document.text); });
      });
    };
    try {
      visit("any.txt");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_config) throw;
    }
    visit("any.jsonl");
  };
  return target;
}

}  // namespace tessera::fuzz
