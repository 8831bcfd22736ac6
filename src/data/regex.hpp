// internal: the regular expressions of tokenizers, which are written for Oniguruma (Ruby syntax), on PCRE2.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::data {

// A compiled pattern; immutable, shared by matchers.
class Regex {
 public:
  // Throws invalid_config for what PCRE2 refuses or what has another meaning there and cannot be translated.
  explicit Regex(const std::string& pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  struct Code;
  const Code& code() const { return *code_; }

 private:
  std::unique_ptr<Code> code_;
};

// Searches with one pattern; one for each thread. Keeps a reference to the pattern.
class RegexMatcher {
 public:
  explicit RegexMatcher(const Regex& regex);
  ~RegexMatcher();
  RegexMatcher(RegexMatcher&&) noexcept;

  // The first match that starts at or after `from`, as [begin, end). `text` is valid UTF-8 and `from` the start of a character.
  // Throws invalid_config when the pattern backtracks beyond any measure.
  bool find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The pattern in PCRE2's syntax with the same meaning: \s and \w as Unicode defines them, properties as of Unicode 16 (PCRE2
// 10.42 knows version 14), scripts by their own property and {n,m}+ as a repetition. Throws invalid_config.
std::string translate_pattern(std::string_view pattern);

}  // namespace tessera::data
