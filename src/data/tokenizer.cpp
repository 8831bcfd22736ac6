#include "data/tokenizer.hpp"

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "base/hash.hpp"

namespace tessera::data {

Tokenizer::Tokenizer(std::string content) : content_(std::move(content)), fingerprint_(hash128_hex(content_)) {}

std::vector<std::uint32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<std::uint32_t> all;
  encode_to(text, [&](std::span<const std::uint32_t> ids, std::size_t) { all.insert(all.end(), ids.begin(), ids.end()); });
  return all;
}

std::string Tokenizer::decode(std::span<const std::uint32_t> ids, bool keep_special) const {
  StreamingDecoder decoder(*this, keep_special);
  std::string text;
  for (std::uint32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

void Tokenizer::save(const std::filesystem::path& path) const { write_whole(real_file_system(), path, content_); }

StreamingDecoder::StreamingDecoder(const Tokenizer& tokenizer, bool keep_special)
    : tokenizer_(tokenizer), keep_special_(keep_special), assembler_(tokenizer.invalid_bytes()) {}

std::string StreamingDecoder::push(std::uint32_t id) {
  if (static_cast<std::int64_t>(id) >= tokenizer_.vocab_size()) {
    throw Error(ErrorCode::invalid_config, text("token ", id, " is not in the vocabulary"), {},
                text("ids from 0 to ", tokenizer_.vocab_size() - 1), "use the tokenizer that the model was trained with");
  }
  std::string bytes, out;
  tokenizer_.append_bytes(id, keep_special_, state_, bytes);
  assembler_.push(bytes, out);
  return out;
}

std::string StreamingDecoder::finish() {
  std::string out;
  assembler_.finish(out);
  return out;
}

}  // namespace tessera::data
