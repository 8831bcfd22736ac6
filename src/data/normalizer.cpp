#include "data/normalizer.hpp"

#include <unicode/bytestream.h>
#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/error.hpp"
#include "data/json_fields.hpp"

namespace tessera::data {
namespace {

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(const std::string& form) {
    UErrorCode status = U_ZERO_ERROR;
    const icu::Normalizer2* all = form == "NFC"    ? icu::Normalizer2::getNFCInstance(status)
                                  : form == "NFD"  ? icu::Normalizer2::getNFDInstance(status)
                                  : form == "NFKC" ? icu::Normalizer2::getNFKCInstance(status)
                                                   : icu::Normalizer2::getNFKDInstance(status);
    // The `tokenizers` package normalizes by Unicode 9; what came later passes as it is.
    known_ = std::make_unique<icu::UnicodeSet>(u"[:age=9.0:]", status);
    ensure(U_SUCCESS(status), "ICU has no data for " + form);
    known_->freeze();
    form_ = std::make_unique<icu::FilteredNormalizer2>(*all, *known_);
  }
  std::string apply(std::string_view text) const override {
    // ICU counts in 32-bit integers.
    constexpr std::size_t kMost = 1u << 30;
    if (text.size() > kMost)
      throw Error(ErrorCode::invalid_config, "a document of more than 1 GiB cannot be normalized", {}, "documents up to 1 GiB",
                  "split the file");
    std::string out;
    UErrorCode status = U_ZERO_ERROR;
    icu::StringByteSink<std::string> sink(&out, static_cast<std::int32_t>(text.size()));
    form_->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())), sink, nullptr, status);
    ensure(U_SUCCESS(status), "ICU cannot normalize a text");
    return out;
  }

 private:
  std::unique_ptr<icu::UnicodeSet> known_;
  std::unique_ptr<icu::FilteredNormalizer2> form_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string apply(std::string_view text) const override { return text.empty() ? std::string() : prefix_ + std::string(text); }

 private:
  std::string prefix_;
};

class Replace final : public Normalizer {
 public:
  Replace(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  std::string apply(std::string_view text) const override {
    std::string out;
    for (std::size_t position = 0;;) {
      const std::size_t found = text.find(from_, position);
      out.append(text.substr(position, found - position));
      if (found == std::string_view::npos) return out;
      out.append(to_);
      position = found + from_.size();
    }
  }

 private:
  std::string from_;
  std::string to_;
};

// BERT's: no control characters, every white space a space, spaces around ideographs, no accents, lower case, each where it is asked for.
class BertNormalizer final : public Normalizer {
 public:
  BertNormalizer(const nlohmann::json& description, const std::string& file)
      : cleans_(json_field(description, "clean_text", true, file)),
        spaces_ideographs_(json_field(description, "handle_chinese_chars", true, file)),
        lower_(json_field(description, "lowercase", true, file)) {
    const auto said = description.find("strip_accents");
    if (said == description.end() || said->is_null() ? lower_ : json_field(description, "strip_accents", false, file))
      decomposed_ = std::make_unique<UnicodeForm>("NFD");
  }

  std::string apply(std::string_view text) const override {
    std::string out =
        cleans_ || spaces_ideographs_ ? mapped(text, [this](UChar32 one, icu::UnicodeString& to) { clean(one, to); }) : std::string(text);
    if (decomposed_)
      out = mapped(decomposed_->apply(out), [](UChar32 one, icu::UnicodeString& to) {
        if (!characters_of(BertCategory::mark).contains(one)) to.append(one);
      });
    if (lower_) out = mapped(out, [](UChar32 one, icu::UnicodeString& to) { to.append(lower(one)); });
    return out;
  }

 private:
  // Of a character by itself.
  static icu::UnicodeString lower(UChar32 one) { return icu::UnicodeString(one).toLower(icu::Locale::getRoot()); }
  template <typename Map>
  static std::string mapped(std::string_view text, const Map& map) {
    icu::UnicodeString to;
    const icu::UnicodeString from = icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())));
    for (std::int32_t at = 0; at < from.length(); at = from.moveIndex32(at, 1)) map(from.char32At(at), to);
    std::string out;
    return to.toUTF8String(out);
  }
  void clean(UChar32 one, icu::UnicodeString& to) const {
    if (cleans_) {
      if (one == 0 || one == 0xFFFD || (characters_of(BertCategory::control).contains(one) && one != '\t' && one != '\n' && one != '\r'))
        return;
      if (u_isUWhiteSpace(one)) one = ' ';
    }
    const bool ideograph = spaces_ideographs_ && is_ideograph(one);
    if (ideograph) to.append(u' ');
    to.append(one);
    if (ideograph) to.append(u' ');
  }
  static bool is_ideograph(UChar32 one) {
    constexpr std::pair<UChar32, UChar32> kBlocks[] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
                                                       {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
    return std::any_of(std::begin(kBlocks), std::end(kBlocks),
                       [one](const auto& block) { return one >= block.first && one <= block.second; });
  }

  bool cleans_, spaces_ideographs_, lower_;
  std::unique_ptr<UnicodeForm> decomposed_;  // null: accents stay
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  std::string apply(std::string_view text) const override {
    std::string out(text);
    for (const auto& step : steps_) out = step->apply(out);
    return out;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

const icu::UnicodeSet& characters_of(BertCategory category) {
  const auto made = [](const icu::UnicodeString& pattern) {
    UErrorCode status = U_ZERO_ERROR;
    auto set = std::make_unique<icu::UnicodeSet>(pattern, status);
    ensure(U_SUCCESS(status), "ICU has no data for categories");
    set->freeze();
    return set;
  };
  // The single ones have another category since.
  static const auto controls = made(u"[[:Cc:][:Cf:][:Co:]&[:age=8.0:]]"),
                    marks = made(u"[[[:Mn:]&[:age=8.0:]][\\u1734]-[\\u1885\\u1886\\uA9BD\\U000111C9]]"),
                    punctuation = made(u"[[[:P:]&[:age=8.0:]][\\u166D\\U000111C9]]");
  return category == BertCategory::control ? *controls : category == BertCategory::mark ? *marks : *punctuation;
}

std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json& description, const std::string& file) {
  if (description.is_null()) return nullptr;
  const auto type = json_field<std::string>(description, "type", "", file);
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") return std::make_unique<UnicodeForm>(type);
  if (type == "BertNormalizer") return std::make_unique<BertNormalizer>(description, file);
  if (type == "Prepend") return std::make_unique<Prepend>(json_field<std::string>(description, "prepend", "", file));
  if (type == "Replace") {
    const auto pattern = description.find("pattern");
    if (pattern == description.end() || !pattern->is_object() || !pattern->contains("String"))
      unsupported_component(file, "normalizer", "Replace of a Regex");
    const auto from = json_field<std::string>(*pattern, "String", "", file);
    if (from.empty()) bad_tokenizer(file, "the normalizer Replace has an empty pattern");
    return std::make_unique<Replace>(from, json_field<std::string>(description, "content", "", file));
  }
  if (type == "Sequence") {
    const auto parts = description.find("normalizers");
    if (parts == description.end() || !parts->is_array()) bad_tokenizer(file, "the normalizer Sequence has no list of normalizers");
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (const auto& part : *parts) {
      if (auto step = make_normalizer(part, file)) steps.push_back(std::move(step));
    }
    return std::make_unique<NormalizerSequence>(std::move(steps));
  }
  unsupported_component(file, "normalizer", type);
}

}  // namespace tessera::data
