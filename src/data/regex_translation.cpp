#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <vector>

#include "base/error.hpp"
#include "data/regex.hpp"
#include "data/unicode_additions.hpp"

namespace tessera::data {
namespace {

constexpr const char* kSpace = R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr const char* kNotSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}!-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";

constexpr std::array kLongCategories = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"Letter", "L"},
    {"Uppercase_Letter", "Lu"},
    {"Lowercase_Letter", "Ll"},
    {"Titlecase_Letter", "Lt"},
    {"Modifier_Letter", "Lm"},
    {"Other_Letter", "Lo"},
    {"Mark", "M"},
    {"Nonspacing_Mark", "Mn"},
    {"Spacing_Mark", "Mc"},
    {"Enclosing_Mark", "Me"},
    {"Number", "N"},
    {"Decimal_Number", "Nd"},
    {"Letter_Number", "Nl"},
    {"Other_Number", "No"},
    {"Punctuation", "P"},
    {"Symbol", "S"},
    {"Separator", "Z"},
    {"Other", "C"},
    {"Math_Symbol", "Sm"},
    {"Currency_Symbol", "Sc"},
    {"Control", "Cc"},
    {"Format", "Cf"},
});
// Scripts to which versions 15 to 16 added nothing beyond the ranges named with Han below.
constexpr std::array kScripts = std::to_array<std::string_view>({"Han", "Hiragana", "Katakana", "Hangul", "Latin", "Greek", "Cyrillic",
                                                                 "Arabic", "Hebrew", "Thai", "Devanagari", "Bengali", "Tamil", "Bopomofo"});
constexpr const char* kHanAdditions = R"(\x{2FFC}-\x{2FFF}\x{31EF}\x{2EBF0}-\x{2EE5D}\x{31350}-\x{323AF})";

[[noreturn]] void refuse(std::string_view pattern, const std::string& what) {
  throw Error(ErrorCode::invalid_config, text("the pattern ", pattern, " uses ", what, ", which is not supported"), {},
              "the patterns of GPT-2, Llama-3, Qwen2 and their like",
              "train a tokenizer with `tessera data tokenizer`, or use another one");
}

std::string additions_of(std::string_view category) {
  std::string ranges;
  char buffer[40];
  for (const UnicodeRange& range : kUnicodeAdditions) {
    if (!std::string_view(range.category).starts_with(category)) continue;
    std::snprintf(buffer, sizeof buffer, "\\x{%X}-\\x{%X}", range.first, range.last);
    ranges += buffer;
  }
  return ranges;
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (position_ < pattern_.size()) {
      const char c = pattern_[position_];
      if (in_class_) {
        class_character(c);
      } else {
        character(c);
      }
    }
    if (in_class_) refuse(pattern_, "an unclosed [");
    return std::move(out_);
  }

 private:
  // Outside of [...].
  void character(char c) {
    switch (c) {
      case '\\':
        begin_atom();
        escape();
        break;
      case '[':
        begin_atom();
        in_class_ = true;
        take(1);
        if (peek() == '^') take(1);
        if (peek() == ']') refuse(pattern_, "] as the first character of a class");
        break;
      case '(': open_group(); break;
      case ')':
        atom_ = groups_.empty() ? out_.size() : groups_.back();
        if (!groups_.empty()) groups_.pop_back();
        take(1);
        break;
      case '{': interval(); break;
      case '*':
      case '+':
      case '?': take(1); break;
      default: begin_atom(); take(1);
    }
  }

  void class_character(char c) {
    if (c == '\\') return escape();
    if (c == '[') refuse(pattern_, "a class inside a class");
    if (pattern_.substr(position_).starts_with("&&")) refuse(pattern_, "an intersection of classes (&&)");
    if (c == ']') in_class_ = false;
    take(1);
  }

  void open_group() {
    const std::string_view rest = pattern_.substr(position_);
    groups_.push_back(out_.size());
    for (std::string_view known : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:", "(?i)"}) {
      if (rest.starts_with(known)) {
        if (known == "(?i)") {
          // Later in a pattern it reaches over | differently in the two languages.
          if (position_ != 0) refuse(pattern_, "(?i) behind its beginning");
          groups_.pop_back();
        }
        return take(known.size());
      }
    }
    if (rest.starts_with("(?")) refuse(pattern_, text("the group ", rest.substr(0, 4)));
    take(1);
  }

  // {n,m}+ is a repeated interval for Oniguruma and a possessive one for PCRE2.
  void interval() {
    const std::size_t close = pattern_.find('}', position_);
    if (close == std::string_view::npos || peek(1) == ',') refuse(pattern_, "{ without a first number");
    take(close + 1 - position_);
    if (peek() != '+') return;
    out_.insert(atom_, "(?:");
    out_ += ")";
  }

  void escape() {
    if (position_ + 1 >= pattern_.size()) refuse(pattern_, "a \\ at its end");
    const char c = pattern_[position_ + 1];
    switch (c) {
      case 's': return replace(2, in_class_ ? kSpace : text("[", kSpace, "]"));
      case 'S': return replace(2, in_class_ ? kNotSpace : text("[^", kSpace, "]"));
      case 'w': return replace(2, in_class_ ? word() : "[" + word() + "]");
      case 'W':
        if (in_class_) refuse(pattern_, "\\W inside a class");
        return replace(2, "[^" + word() + "]");
      case 'd': return replace(2, property("Nd", false));
      case 'D': return replace(2, property("Nd", true));
      case 'p':
      case 'P': return unicode_property();
      case 'u': {
        const std::string_view digits = pattern_.substr(position_ + 2, 4);
        if (digits.size() != 4 || !std::all_of(digits.begin(), digits.end(), [](unsigned char d) { return std::isxdigit(d); })) {
          refuse(pattern_, "\\u without four digits");
        }
        return replace(6, text("\\x{", digits, "}"));
      }
      case 'x':
        if (position_ + 2 < pattern_.size() && pattern_[position_ + 2] == '{') return take(2);
        return take(2);
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'v': return c == 'v' ? replace(2, "\\x{B}") : take(2);
      default:
        if (std::isalnum(static_cast<unsigned char>(c))) refuse(pattern_, text("\\", c));
        take(2);
    }
  }

  void unicode_property() {
    bool negated = pattern_[position_ + 1] == 'P';
    std::size_t begin = position_ + 2, end = begin + 1;
    std::string_view name = pattern_.substr(begin, 1);
    if (name == "{") {
      end = pattern_.find('}', begin);
      if (end == std::string_view::npos) refuse(pattern_, "an unclosed \\p{");
      name = pattern_.substr(begin + 1, end - begin - 1);
      ++end;
    }
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    replace(end - position_, property(name, negated));
  }

  std::string property(std::string_view name, bool negated) const {
    for (const auto& [long_name, category] : kLongCategories) {
      if (long_name == name) name = category;
    }
    std::string members;
    if (name.size() <= 2) {
      // PCRE2 takes unassigned characters, which the additions are for it, into C.
      if (name == "C" || name == "Cn") refuse(pattern_, text("\\p{", name, "}"));
      members = text("\\p{", name, "}", additions_of(name));
    } else if (std::find(kScripts.begin(), kScripts.end(), name) != kScripts.end()) {
      members = text("\\p{sc:", name, "}", name == "Han" ? kHanAdditions : "");
    } else {
      refuse(pattern_, text("\\p{", name, "}"));
    }
    if (in_class_ && negated) refuse(pattern_, text("a negated \\p{", name, "} inside a class"));
    // The letters and digits of ASCII again: with them the class has a bitmap, which PCRE2 looks at before the properties.
    if (name == "L") members += "a-zA-Z";
    if (name == "N" || name == "Nd") members += "0-9";
    return in_class_ ? members : text(negated ? "[^" : "[", members, "]");
  }

  std::string word() const { return text("\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}", additions_of("L"), additions_of("M"), additions_of("Nd")); }

  void begin_atom() { atom_ = out_.size(); }
  char peek(std::size_t ahead = 0) const { return position_ + ahead < pattern_.size() ? pattern_[position_ + ahead] : '\0'; }
  void take(std::size_t count) {
    out_.append(pattern_.substr(position_, count));
    position_ += std::min(count, pattern_.size() - position_);
  }
  void replace(std::size_t count, const std::string& with) {
    out_ += with;
    position_ += count;
  }

  std::string_view pattern_;
  std::string out_;
  std::size_t position_ = 0;
  std::size_t atom_ = 0;             // where the last atom starts in out_
  std::vector<std::size_t> groups_;  // where the open groups start in out_
  bool in_class_ = false;
};

}  // namespace

std::string translate_pattern(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace tessera::data
