#include "data/normalizer.hpp"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

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

std::unique_ptr<Normalizer> make_normalizer(const nlohmann::json& description, const std::string& file) {
  if (description.is_null()) return nullptr;
  const auto type = json_field<std::string>(description, "type", "", file);
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") return std::make_unique<UnicodeForm>(type);
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
