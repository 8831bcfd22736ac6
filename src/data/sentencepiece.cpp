#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "base/error.hpp"
#include "data/byte_alphabet.hpp"
#include "data/in_file.hpp"
#include "data/sentencepiece_model.hpp"
#include "data/sentencepiece_normalizer.hpp"
#include "data/tokenizer.hpp"
#include "sentencepiece_model.pb.h"

namespace tessera::data {
namespace {

namespace format = sentencepiece_format;

constexpr std::size_t kLongestPiece = 16384;

PieceKind kind_of(format::Piece::Kind kind) {
  switch (kind) {
    case format::Piece::UNKNOWN: return PieceKind::unknown;
    case format::Piece::CONTROL: return PieceKind::control;
    case format::Piece::USER_DEFINED: return PieceKind::user_defined;
    case format::Piece::UNUSED: return PieceKind::unused;
    case format::Piece::BYTE: return PieceKind::byte;
    default: return PieceKind::normal;
  }
}

std::string with_spaces(std::string_view piece) {
  std::string out;
  for (std::size_t position = 0;;) {
    const std::size_t found = piece.find(kSpaceMark, position);
    out.append(piece.substr(position, found - position));
    if (found == std::string_view::npos) return out;
    out.push_back(' ');
    position = found + kSpaceMark.size();
  }
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(std::string content, const format::Model& model, std::unique_ptr<SentencePieceTable> table,
                         SentencePieceRules rules, const std::string& name)
      : Tokenizer(std::move(content)),
        table_(std::move(table)),
        normalizer_(model.normalizer().character_map(), rules, table_->user_defined, name),
        cutter_(model.trainer().kind() == format::Trainer::BPE ? make_merge_cutter(*table_) : make_unigram_cutter(*table_)),
        unknown_surface_(model.trainer().unknown_surface()) {
    const std::int32_t id = model.trainer().end_of_text_id();
    if (id >= 0 && id < vocab_size() && table_->pieces[static_cast<std::size_t>(id)].kind == PieceKind::control)
      end_of_text_ = static_cast<std::uint32_t>(id);
  }

  void encode_to(std::string_view text, const TokenSink& sink) const override {
    if (const auto offset = first_invalid_utf8(text)) {
      throw Error(ErrorCode::invalid_config, tessera::text("the text is not valid UTF-8 at byte ", *offset), {}, "UTF-8",
                  "convert it with iconv");
    }
    const std::string normalized = normalizer_.apply(text);
    std::vector<std::uint32_t> ids;
    bool after_unknown = false;
    for (const PieceSpan& span : cutter_->cut(normalized)) {
      const bool unknown = span.id == table_->unknown;
      if (unknown && table_->byte_fallback) {
        for (std::size_t at = span.begin; at < span.end; ++at) ids.push_back(table_->byte_ids[static_cast<unsigned char>(normalized[at])]);
      } else if (!(unknown && after_unknown)) {
        ids.push_back(span.id);
      }
      after_unknown = unknown;
    }
    sink(ids, text.size());
  }

  void append_bytes(std::uint32_t id, bool keep_special, DecodeState& state, std::string& bytes) const override {
    const SentencePiece& piece = table_->pieces[id];
    const std::size_t before = bytes.size();
    if (piece.kind == PieceKind::byte) {
      bytes.push_back(static_cast<char>(*byte_of_name(piece.text)));
    } else if (piece.kind == PieceKind::control) {
      if (keep_special) bytes += piece.text;
    } else if (piece.kind == PieceKind::unknown) {
      bytes += unknown_surface_;
    } else {
      const SentencePieceRules& rules = normalizer_.rules();
      std::string_view rest = piece.text;
      // The first space was put there by the normalizer, or would have been removed by it. Models that mark the end of words have it at
      // the very end of a text, which a stream cannot know; there it stays.
      const bool dropped = !state.any_text && (rules.add_dummy_prefix || rules.remove_extra_whitespaces) && !rules.whitespace_as_suffix &&
                           rest.starts_with(kSpaceMark);
      if (dropped) rest.remove_prefix(kSpaceMark.size());
      bytes += with_spaces(rest);
      // Where normalizing removes extra spaces, all spaces in front of the text go.
      state.any_text = state.any_text || (dropped && !rules.remove_extra_whitespaces);
    }
    state.any_text = state.any_text || bytes.size() > before;
  }

  InvalidBytes invalid_bytes() const override { return InvalidBytes::each_byte; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(table_->pieces.size()); }
  std::optional<std::uint32_t> end_of_text() const override { return end_of_text_; }
  bool is_special(std::uint32_t id) const override { return table_->pieces[id].kind == PieceKind::control; }
  std::optional<std::uint32_t> id_of(std::string_view token) const override {
    const std::uint32_t id = table_->id_of(token);
    if (table_->pieces[id].text != token) return std::nullopt;
    return id;
  }
  std::string file_name() const override { return "tokenizer.model"; }

 private:
  std::unique_ptr<SentencePieceTable> table_;
  SentencePieceNormalizer normalizer_;
  std::unique_ptr<PieceCutter> cutter_;
  std::string unknown_surface_;
  std::optional<std::uint32_t> end_of_text_;
};

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(std::string content, const std::string& name) {
  format::Model model;
  if (content.size() > (1u << 30) || !model.ParseFromArray(content.data(), static_cast<int>(content.size())) || model.pieces().empty()) {
    throw Error(ErrorCode::corrupt, "this is not a SentencePiece model, or it is damaged", in_file(name), "a .model file",
                "fetch the model again");
  }
  const auto kind = model.trainer().kind();
  if (kind != format::Trainer::UNIGRAM && kind != format::Trainer::BPE) {
    throw Error(ErrorCode::invalid_config,
                text("this SentencePiece model has the type ", kind == format::Trainer::WORD ? "word" : "char", ", which is not supported"),
                in_file(name), "the types unigram and bpe", "use another tokenizer, or train one with `tessera data tokenizer`");
  }
  if (!model.denormalizer().character_map().empty()) {
    throw Error(ErrorCode::invalid_config, "this SentencePiece model has a denormalizer, which is not supported", in_file(name),
                "a model without denormalization rules", "use another tokenizer");
  }
  std::vector<SentencePiece> pieces;
  for (const format::Piece& piece : model.pieces()) {
    if (piece.text().size() > kLongestPiece) {
      throw Error(ErrorCode::corrupt, text("piece ", pieces.size(), " has ", piece.text().size(), " bytes"), in_file(name),
                  text("at most ", kLongestPiece), "fetch the model again");
    }
    pieces.push_back({piece.text(), piece.score(), kind_of(piece.kind())});
  }
  const auto& rules = model.normalizer();
  auto table = make_piece_table(std::move(pieces), model.trainer().byte_fallback(), name);
  return std::make_unique<SentencePieceTokenizer>(std::move(content), model, std::move(table),
                                                  SentencePieceRules{rules.add_dummy_prefix(), rules.remove_extra_whitespaces(),
                                                                     rules.escape_whitespaces(), model.trainer().whitespace_as_suffix()},
                                                  name);
}

}  // namespace tessera::data
