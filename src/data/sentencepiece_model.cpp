#include "data/sentencepiece_model.hpp"

#include <cmath>

#include "base/error.hpp"
#include "data/byte_alphabet.hpp"
#include "data/in_file.hpp"
#include "data/utf8.hpp"

namespace tessera::data {
namespace {

[[noreturn]] void bad_model(const std::string& file, const std::string& message) {
  throw Error(ErrorCode::corrupt, message, in_file(file), "a SentencePiece model as the `sentencepiece` package writes it",
              "fetch the model again");
}

}  // namespace

std::uint32_t SentencePieceTable::id_of(std::string_view text) const {
  if (const auto found = reserved.find(text); found != reserved.end()) return found->second;
  const auto found = searchable.find(text);
  return found == searchable.end() ? unknown : found->second;
}

std::unique_ptr<SentencePieceTable> make_piece_table(std::vector<SentencePiece> pieces, bool byte_fallback, const std::string& file) {
  auto table = std::make_unique<SentencePieceTable>();
  table->byte_fallback = byte_fallback;
  table->byte_ids.fill(BpeModel::kNoId);
  bool any_unknown = false;
  for (std::uint32_t id = 0; id < pieces.size(); ++id) {
    const SentencePiece& piece = pieces[id];
    if (piece.text.empty()) bad_model(file, text("piece ", id, " is empty"));
    if (!std::isfinite(piece.score)) bad_model(file, text("the score of piece ", id, " is not a number"));
    if (const auto offset = first_invalid_utf8(piece.text)) bad_model(file, text("piece ", id, " is not valid UTF-8"));
    const bool searchable = piece.kind == PieceKind::normal || piece.kind == PieceKind::user_defined || piece.kind == PieceKind::unused;
    if (!(searchable ? table->searchable : table->reserved).emplace(piece.text, id).second) {
      bad_model(file, text("the piece ", piece.text, " stands there twice"));
    }
    if (piece.kind == PieceKind::user_defined) table->user_defined.add(piece.text, static_cast<std::int32_t>(id));
    if (piece.kind == PieceKind::unknown) {
      if (any_unknown) bad_model(file, "there are two unknown pieces");
      any_unknown = true;
      table->unknown = id;
    }
    if (piece.kind == PieceKind::byte) {
      const auto byte = byte_of_name(piece.text);
      if (!byte_fallback || !byte) bad_model(file, text("the byte piece ", piece.text, " is out of place"));
      table->byte_ids[*byte] = id;
    }
  }
  if (!any_unknown) bad_model(file, "there is no unknown piece");
  for (std::uint32_t id : table->byte_ids) {
    if (byte_fallback && id == BpeModel::kNoId) bad_model(file, "there are not 256 byte pieces");
  }
  table->pieces = std::move(pieces);
  return table;
}

}  // namespace tessera::data
