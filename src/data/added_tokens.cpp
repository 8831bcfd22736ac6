#include "data/added_tokens.hpp"

#include <unicode/uchar.h>
#include <algorithm>

#include "data/utf8.hpp"

namespace tessera::data {
namespace {

bool is_space(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_WHITE_SPACE); }

bool is_word(char32_t c) {
  const auto u = static_cast<UChar32>(c);
  return u_hasBinaryProperty(u, UCHAR_ALPHABETIC) || u_hasBinaryProperty(u, UCHAR_JOIN_CONTROL) ||
         (U_GET_GC_MASK(u) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

// Start of the last character of `text`, which is not empty.
std::size_t last_character(std::string_view text) {
  std::size_t index = text.size() - 1;
  while (index > 0 && (static_cast<unsigned char>(text[index]) & 0xC0) == 0x80) --index;
  return index;
}

}  // namespace

void AddedTokenFinder::add(const AddedToken& token) {
  if (token.content.empty()) return;
  if (tokens_.empty()) {
    only_first_ = token.content[0];
  } else if (only_first_ != token.content[0]) {
    only_first_.reset();
  }
  trie_.add(token.content, static_cast<std::int32_t>(tokens_.size()));
  tokens_.push_back(token);
}

std::size_t AddedTokenFinder::next_candidate(std::string_view text, std::size_t from) const {
  if (only_first_) return std::min(text.find(*only_first_, from), text.size());
  while (from < text.size() && !trie_.starts(text[from])) ++from;
  return from;
}

void AddedTokenFinder::split(std::string_view text,
                             const std::function<void(std::string_view, std::optional<std::uint32_t>)>& visit) const {
  std::size_t done = 0;
  const auto plain_until = [&](std::size_t end) {
    if (done < end) visit(text.substr(done, end - done), std::nullopt);
  };
  for (std::size_t position = tokens_.empty() ? text.size() : next_candidate(text, 0); position < text.size();
       position = next_candidate(text, position)) {
    const auto match = trie_.longest(text.substr(position));
    if (!match) {
      ++position;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(match->value)];
    std::size_t begin = position, end = position + match->length;
    position = end;
    if (token.single_word) {
      const bool touched_left = begin > 0 && is_word(code_point_at(text.substr(last_character(text.substr(0, begin)))));
      const bool touched_right = end < text.size() && is_word(code_point_at(text.substr(end)));
      if (touched_left || touched_right) continue;
    }
    if (token.strip_left) {
      while (begin > done) {
        const std::size_t previous = last_character(text.substr(0, begin));
        if (!is_space(code_point_at(text.substr(previous)))) break;
        begin = previous;
      }
      begin = std::max(begin, done);
    }
    if (token.strip_right) {
      while (end < text.size() && is_space(code_point_at(text.substr(end)))) end += utf8_length(text[end]);
    }
    plain_until(begin);
    visit(text.substr(begin, end - begin), token.id);
    done = end;
  }
  plain_until(text.size());
}

}  // namespace tessera::data
