#include "data/pre_tokenizer.hpp"

#include <cstdint>
#include <sstream>

#include "data/json_fields.hpp"
#include "data/normalizer.hpp"
#include "data/utf8.hpp"

namespace tessera::data {
namespace {

struct Part {
  std::size_t begin;
  std::size_t end;
  bool is_match;
};

// What BERT's tokenizers cut words at, and every other sign of ASCII.
std::string punctuation_pattern() {
  const icu::UnicodeSet& set = characters_of(BertCategory::punctuation);
  std::ostringstream pattern;
  pattern << R"([!-/:-@\[-`{-~)" << std::hex;
  for (std::int32_t range = 0; range < set.getRangeCount(); ++range)
    pattern << R"(\x{)" << set.getRangeStart(range) << R"(}-\x{)" << set.getRangeEnd(range) << "}";
  return pattern.str() + "]";
}

}  // namespace

PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;

PreTokenizer::PreTokenizer() {
  add_regex(kGpt2Pattern, Behavior::isolated, false);
  byte_level_ = true;
}

PreTokenizer::PreTokenizer(const nlohmann::json& description, const std::string& file) {
  if (!description.is_null()) add(description, file);
}

void PreTokenizer::add_regex(const std::string& pattern, Behavior behavior, bool inverted) {
  Step step;
  step.regex = std::make_unique<Regex>(pattern);
  step.behavior = behavior;
  step.inverted = inverted;
  step.matcher = matcher_count_++;
  steps_.push_back(std::move(step));
}

void PreTokenizer::add(const nlohmann::json& description, const std::string& file) {
  const auto type = json_field<std::string>(description, "type", "", file);
  if (byte_level_) unsupported_component(file, "pre_tokenizer", type + " behind ByteLevel");
  if (type == "Sequence") {
    const auto parts = description.find("pretokenizers");
    if (parts == description.end() || !parts->is_array()) bad_tokenizer(file, "the pre_tokenizer Sequence has no list of pretokenizers");
    for (const auto& part : *parts) add(part, file);
  } else if (type == "ByteLevel") {
    if (json_field(description, "add_prefix_space", true, file)) {
      steps_.emplace_back();
      steps_.back().prefix_space = true;
    }
    if (json_field(description, "use_regex", true, file)) add_regex(kGpt2Pattern, Behavior::isolated, false);
    byte_level_ = true;
  } else if (type == "Digits") {
    add_regex(R"(\p{N})", json_field(description, "individual_digits", false, file) ? Behavior::isolated : Behavior::contiguous, false);
  } else if (type == "BertPreTokenizer") {
    add_regex(R"(\s)", Behavior::removed, false);
    add_regex(punctuation_pattern(), Behavior::isolated, false);
  } else if (type == "Split") {
    const auto name = json_field<std::string>(description, "behavior", "Isolated", file);
    const Behavior behavior = name == "Isolated"             ? Behavior::isolated
                              : name == "Removed"            ? Behavior::removed
                              : name == "Contiguous"         ? Behavior::contiguous
                              : name == "MergedWithPrevious" ? Behavior::merged_with_previous
                              : name == "MergedWithNext"
                                  ? Behavior::merged_with_next
                                  : (unsupported_component(file, "pre_tokenizer", "Split with behavior " + name), Behavior::isolated);
    const bool inverted = json_field(description, "invert", false, file);
    const auto pattern = description.find("pattern");
    if (pattern == description.end() || !pattern->is_object()) bad_tokenizer(file, "the pre_tokenizer Split has no pattern");
    if (pattern->contains("Regex")) {
      add_regex(json_field<std::string>(*pattern, "Regex", "", file), behavior, inverted);
    } else {
      Step step;
      step.literal = json_field<std::string>(*pattern, "String", "", file);
      if (step.literal.empty()) bad_tokenizer(file, "the pre_tokenizer Split has an empty pattern");
      step.behavior = behavior;
      step.inverted = inverted;
      steps_.push_back(std::move(step));
    }
  } else {
    unsupported_component(file, "pre_tokenizer", type.empty() ? "without a type" : type);
  }
}

PreTokenizer::Matchers PreTokenizer::make_matchers() const {
  Matchers matchers;
  for (const Step& step : steps_) {
    if (step.regex) matchers.emplace_back(*step.regex);
  }
  return matchers;
}

void PreTokenizer::split(std::string_view segment, Matchers& matchers, const WordSink& word) const {
  if (!segment.empty()) run(0, segment, matchers, word);
}

void PreTokenizer::run(std::size_t index, std::string_view segment, Matchers& matchers, const WordSink& word) const {
  if (segment.empty()) return;
  if (index == steps_.size()) return word(segment);
  if (!steps_[index].prefix_space) return cut(index, segment, matchers, word);
  if (segment.front() == ' ') return run(index + 1, segment, matchers, word);
  std::string spaced(" ");
  spaced.append(segment);
  run(index + 1, spaced, matchers, word);
}

void PreTokenizer::cut(std::size_t index, std::string_view segment, Matchers& matchers, const WordSink& word) const {
  const Step& step = steps_[index];
  const auto next = [&](std::size_t begin, std::size_t end) { run(index + 1, segment.substr(begin, end - begin), matchers, word); };
  // Calls visit(begin, end, is_match) for matches and what lies between them, in order. An empty match cuts, but not at the
  // end of the match before it.
  const auto for_each_part = [&](auto&& visit) {
    std::size_t previous = 0, from = 0;
    bool any = false;
    while (from <= segment.size()) {
      std::size_t begin = 0, end = 0;
      if (step.regex) {
        if (!matchers[static_cast<std::size_t>(step.matcher)].find(segment, from, begin, end)) break;
      } else {
        begin = segment.find(step.literal, from);
        if (begin == std::string_view::npos) break;
        end = begin + step.literal.size();
      }
      from = end;
      if (begin == end) {
        from += begin < segment.size() ? utf8_length(segment[begin]) : 1;
        if (any && end == previous) continue;
      }
      any = true;
      if (begin != previous) visit(previous, begin, step.inverted);
      visit(begin, end, !step.inverted);
      previous = end;
    }
    if (previous != segment.size()) visit(previous, segment.size(), step.inverted);
  };

  if (step.behavior == Behavior::isolated) {
    return for_each_part([&](std::size_t begin, std::size_t end, bool) { next(begin, end); });
  }
  if (step.behavior == Behavior::removed) {
    return for_each_part([&](std::size_t begin, std::size_t end, bool is_match) {
      if (!is_match) next(begin, end);
    });
  }
  std::vector<Part> parts;
  for_each_part([&](std::size_t begin, std::size_t end, bool is_match) { parts.push_back({begin, end, is_match}); });
  std::vector<Part> joined;
  bool previous_match = false;
  if (step.behavior == Behavior::merged_with_next) {
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (part->is_match && !previous_match && !joined.empty()) {
        joined.back().begin = part->begin;
      } else {
        joined.push_back(*part);
      }
      previous_match = part->is_match;
    }
    for (auto part = joined.rbegin(); part != joined.rend(); ++part) next(part->begin, part->end);
    return;
  }
  for (const Part& part : parts) {
    const bool join = step.behavior == Behavior::contiguous ? part.is_match == previous_match : part.is_match && !previous_match;
    if (join && !joined.empty()) {
      joined.back().end = part.end;
    } else {
      joined.push_back(part);
    }
    previous_match = part.is_match;
  }
  for (const Part& part : joined) next(part.begin, part.end);
}

}  // namespace tessera::data
