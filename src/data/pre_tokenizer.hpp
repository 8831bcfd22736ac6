// internal: the `pre_tokenizer` of a tokenizer.json: how a text is cut into words before BPE.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "data/regex.hpp"

namespace tessera::data {

// GPT-2's pattern (Radford et al. 2019, in the form that the `tokenizers` package uses for ByteLevel).
inline constexpr const char* kGpt2Pattern = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The words of one segment go to `word` in order; `word` may be a view into a temporary.
using WordSink = std::function<void(std::string_view word)>;

// Immutable; each thread brings its own Matchers.
class PreTokenizer {
 public:
  using Matchers = std::vector<RegexMatcher>;

  // Throws invalid_config for a component that is not supported.
  PreTokenizer(const nlohmann::json& description, const std::string& file);
  // ByteLevel with GPT-2's pattern and no prefix space.
  PreTokenizer();
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;

  Matchers make_matchers() const;
  void split(std::string_view segment, Matchers& matchers, const WordSink& word) const;
  // Whether words reach the model as characters of the byte alphabet.
  bool byte_level() const { return byte_level_; }

 private:
  enum class Behavior { isolated, removed, contiguous, merged_with_previous, merged_with_next };
  struct Step {
    bool prefix_space = false;
    std::unique_ptr<Regex> regex;  // either, or neither: no cut in this step
    std::string literal;
    Behavior behavior = Behavior::isolated;
    bool inverted = false;
    int matcher = -1;  // index into Matchers when there is a regex
  };
  void add(const nlohmann::json& description, const std::string& file);
  void add_regex(const std::string& pattern, Behavior behavior, bool inverted);
  void run(std::size_t index, std::string_view segment, Matchers& matchers, const WordSink& word) const;
  void cut(std::size_t index, std::string_view segment, Matchers& matchers, const WordSink& word) const;

  std::vector<Step> steps_;
  int matcher_count_ = 0;
  bool byte_level_ = false;
};

}  // namespace tessera::data
