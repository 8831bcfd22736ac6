#include "data/word_piece.hpp"

#include <algorithm>

namespace tessera::data {
namespace {

// Of a character of UTF-8.
bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

}  // namespace

void WordPieceModel::encode(std::string_view word, std::vector<std::uint32_t>& out) const {
  const std::size_t before = out.size();
  const auto unknown = [&] {
    out.resize(before);
    out.push_back(options_.unknown);
  };
  if (std::ranges::count_if(word, begins_character) > options_.longest) return unknown();
  std::string candidate;
  for (std::size_t begin = 0; begin < word.size();) {
    std::size_t end = word.size();
    for (; end > begin; --end) {
      if (end < word.size() && !begins_character(word[end])) continue;
      candidate.assign(begin > 0 ? options_.prefix : std::string()).append(word.substr(begin, end - begin));
      if (const auto found = vocabulary_.find(candidate); found != vocabulary_.end()) {
        out.push_back(found->second);
        break;
      }
    }
    if (end == begin) return unknown();
    begin = end;
  }
}

}  // namespace tessera::data
