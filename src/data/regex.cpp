#include "data/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.hpp"

namespace tessera::data {

struct Regex::Code {
  std::string pattern;
  pcre2_code* code = nullptr;
  bool jit = false;
  ~Code() { pcre2_code_free(code); }
};

Regex::Regex(const std::string& pattern) : code_(std::make_unique<Code>()) {
  code_->pattern = pattern;
  const std::string translated = translate_pattern(pattern);
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(pcre2_compile_context_create(nullptr),
                                                                                   pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE,
                              &error, &offset, context.get());
  if (code_->code == nullptr) {
    PCRE2_UCHAR message[200];
    pcre2_get_error_message(error, message, sizeof message);
    throw Error(ErrorCode::invalid_config, text("the pattern ", pattern, " does not compile: ", reinterpret_cast<const char*>(message)), {},
                "a regular expression", "check the pre_tokenizer of the tokenizer's file");
  }
  // Where the kernel forbids executable memory, matching is slower but works.
  code_->jit = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;
}

Regex::~Regex() = default;

struct RegexMatcher::State {
  const Regex::Code& code;
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack = nullptr;

  explicit State(const Regex::Code& c)
      : code(c), data(pcre2_match_data_create_from_pattern(c.code, nullptr)), context(pcre2_match_context_create(nullptr)) {
    if (code.jit) {
      stack = pcre2_jit_stack_create(32 * 1024, 8 * 1024 * 1024, nullptr);
      pcre2_jit_stack_assign(context, nullptr, stack);
    }
  }
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    if (stack != nullptr) pcre2_jit_stack_free(stack);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

RegexMatcher::RegexMatcher(const Regex& regex) : state_(std::make_unique<State>(regex.code())) {}
RegexMatcher::~RegexMatcher() = default;
RegexMatcher::RegexMatcher(RegexMatcher&&) noexcept = default;

bool RegexMatcher::find(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const int count = state_->code.jit
                        ? pcre2_jit_match(state_->code.code, subject, text.size(), from, 0, state_->data, state_->context)
                        : pcre2_match(state_->code.code, subject, text.size(), from, PCRE2_NO_UTF_CHECK, state_->data, state_->context);
  if (count == PCRE2_ERROR_NOMATCH) return false;
  if (count < 0) {
    throw Error(ErrorCode::invalid_config, "the pattern " + state_->code.pattern + " backtracks too far on this text", {},
                "a pattern whose cost is linear in the text", "use a tokenizer with a simpler pre_tokenizer");
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(state_->data);
  begin = offsets[0];
  end = offsets[1];
  return true;
}

}  // namespace tessera::data
