#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"
#include "data/dataset.hpp"
#include "data/mixture.hpp"
#include "data/permutation.hpp"
#include "data/text_dataset.hpp"

namespace tessera::data {
namespace {

// Which texts validate is the same for all seeds: evaluations of different runs compare.
constexpr std::uint64_t kTextSplitSeed = 0x6C61626C;
constexpr std::int64_t kSyntheticTexts = 1 << 16, kSyntheticValidation = 256;

std::optional<std::int64_t> whole_number(const std::string& word) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size() ? std::optional(value) : std::nullopt;
}

// What stands before and behind a text, and behind both up to the sample's end.
struct Markers {
  std::int32_t begin, end, padding;
};

Markers markers_of(const Tokenizer& tokenizer) {
  const auto first_of = [&](std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (const auto id = tokenizer.id_of(name)) return static_cast<std::int32_t>(*id);
    return static_cast<std::int32_t>(tokenizer.end_of_text().value());  // which a token cache needs
  };
  return {first_of({"[CLS]", "<s>"}), first_of({"[SEP]", "</s>"}), first_of({"[PAD]", "<pad>"})};
}

// The texts of a source, each with its class.
class LabelledTexts {
 public:
  LabelledTexts(const model::DataSpec& spec, std::int64_t seq, std::int64_t classes, const std::filesystem::path& cache_dir,
                const ProgressCallback& progress)
      : seq_(seq), tokenizer_(make_tokenizer(spec, cache_dir, progress)) {
    const model::SourceSpec& one = spec.sources.front();
    const Source source = open_source(one.path, spec.records, one.where);
    if (!source.left_out.empty()) notes_.push_back(left_out_text(source));
    const TokenCache& tokens = cache_.emplace(open_token_cache(source, *tokenizer_, one.where, cache_dir, progress));
    markers_ = markers_of(*tokenizer_);
    if (tokens.skipped() > 0)
      notes_.push_back(
          text(tokens.skipped(), " records of ", source.root.string(), " cannot be read and were skipped (data.on_error: skip)"));
    read_labels(one.where, classes);
    std::int64_t cut = 0;
    for (std::int64_t index = 0; index < size(); ++index) cut += tokens_of(index) > seq_ - kMarkers ? 1 : 0;
    if (cut > 0) notes_.push_back(text(cut, " texts are longer than model.seq ", seq, " less ", kMarkers, ", and lose their ends"));
  }

  std::int64_t size() const { return std::ssize(labels_); }
  std::int32_t label(std::int64_t index) const { return labels_[static_cast<std::size_t>(index)]; }
  std::uint64_t content_hash() const { return cache_->content_hash(); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::vector<std::string>& notes() const { return notes_; }

  // How many of the tokens are of the text and its markers.
  std::int64_t read(std::int64_t index, std::span<std::int32_t> tokens) const {
    const std::int64_t count = std::min(tokens_of(index), seq_ - kMarkers);
    tokens[0] = markers_.begin;
    cache_->read(cache_->text_begin(index), tokens.subspan(1, static_cast<std::size_t>(count)));
    tokens[static_cast<std::size_t>(count) + 1] = markers_.end;
    std::fill(tokens.begin() + count + kMarkers, tokens.end(), markers_.padding);
    return count + kMarkers;
  }

 private:
  static constexpr std::int64_t kMarkers = 2;

  // Without the token that ends the document.
  std::int64_t tokens_of(std::int64_t index) const { return cache_->document_begin(index + 1) - cache_->text_begin(index) - 1; }

  // As pack.cpp writes it: two tokens a byte.
  std::string word(std::int64_t index) const {
    std::vector<std::int32_t> halves(static_cast<std::size_t>(cache_->text_begin(index) - cache_->document_begin(index)));
    cache_->read(cache_->document_begin(index), halves);
    std::string out;
    for (std::size_t i = 0; i + 1 < halves.size(); i += 2) out += static_cast<char>(halves[i] << 4 | halves[i + 1]);
    return out;
  }

  // Whole numbers below `classes` are the classes themselves; other numbers and words are counted in their order.
  void read_labels(const Where& where, std::int64_t classes) {
    std::vector<std::string> words;
    for (std::int64_t index = 0; index < cache_->document_count(); ++index) words.push_back(word(index));
    std::map<std::string, std::int64_t> counts;
    for (const std::string& one : words) ++counts[one];
    const bool numbers = std::ranges::all_of(counts, [](const auto& one) { return whole_number(one.first).has_value(); });
    const bool themselves = numbers && std::ranges::all_of(counts, [&](const auto& one) {
                              const std::int64_t number = *whole_number(one.first);
                              return number >= 0 && number < classes;
                            });
    std::vector<std::string> names;
    for (const auto& [name, count] : counts) names.push_back(name);
    if (numbers) std::ranges::sort(names, {}, [](const std::string& name) { return *whole_number(name); });
    std::string list;
    constexpr std::size_t kShown = 8;
    for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i)
      list += text(i == 0 ? "" : ", ", names[i], " (", counts[names[i]], ")");
    if (names.size() > kShown) list += ", ...";
    if (std::ssize(names) > classes)
      throw Error(ErrorCode::invalid_config, text("the texts have ", names.size(), " classes, and model.classes is ", classes, ": ", list),
                  where, text("model.classes of at least ", names.size()),
                  text("set model.classes to ", names.size(), ", or data.label to another key"));
    std::map<std::string, std::int32_t> numbered;
    for (std::size_t i = 0; i < names.size(); ++i)
      numbered[names[i]] = static_cast<std::int32_t>(themselves ? *whole_number(names[i]) : static_cast<std::int64_t>(i));
    for (const std::string& one : words) labels_.push_back(numbered[one]);
    notes_.push_back(text(words.size(), " texts of ", names.size(), names.size() == 1 ? " class: " : " classes: ", list));
  }

  std::int64_t seq_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<TokenCache> cache_;
  Markers markers_{};
  std::vector<std::int32_t> labels_;
  std::vector<std::string> notes_;
};

class LabelledTextDataset final : public Dataset {
 public:
  // Without texts: random tokens and classes.
  LabelledTextDataset(const model::DataSpec& spec, const model::ModelSpec& model, std::uint64_t seed, std::optional<LabelledTexts> texts)
      : where_(spec.where),
        seq_(model.dim("seq")),
        vocab_(model.dim("vocab")),
        classes_(model.dim("classes")),
        seed_(seed),
        texts_(std::move(texts)),
        train_(kSyntheticTexts),
        validation_(kSyntheticValidation) {
    if (texts_) {
      notes_ = texts_->notes();
      train_ = static_cast<std::int64_t>(static_cast<double>(texts_->size()) * spec.train_fraction);
      validation_ = texts_->size() - train_;
      if (train_ < 1 || (validation_ < 1 && spec.train_fraction < 1))
        throw Error(ErrorCode::invalid_config, text("the source has ", texts_->size(), " texts: too few to train and to validate on"),
                    where_, "at least one for each", "use more texts, or data.split.train: 1.0 to go without validation");
      split_.emplace(static_cast<std::uint64_t>(texts_->size()), kTextSplitSeed);
    }
    order_.emplace(std::vector<std::int64_t>{train_}, std::vector<double>(), seed);
  }

  std::int64_t train_samples() const override { return train_; }
  std::int64_t validation_samples() const override { return validation_; }
  std::int64_t targets_per_sample() const override { return 1; }
  std::int64_t counted_targets(std::int64_t) const override { return 1; }
  const Tokenizer* tokenizer() const override { return texts_ ? &texts_->tokenizer() : nullptr; }

  std::uint64_t content_hash() const override {
    return seed_of(texts_ ? texts_->content_hash() : seed_, static_cast<std::uint64_t>(seq_), static_cast<std::uint64_t>(train_),
                   static_cast<std::uint64_t>(validation_));
  }
  std::uint64_t source_hash() const override { return texts_ ? texts_->content_hash() : 0; }

  std::vector<Draw> draws(std::int64_t step, std::int64_t global_batch) const override {
    if (global_batch > train_)
      throw Error(ErrorCode::invalid_config, text("a batch has ", global_batch, " texts but the training split has only ", train_), where_,
                  text("train.global_batch of at most ", train_), "use more texts, or a smaller train.global_batch");
    return draws_of(*order_, step, global_batch);
  }

  std::vector<Field> fields() const override {
    return {{"tokens", {seq_}, FieldType::whole, 0}, {"positions", {seq_}, FieldType::whole, 0}, {"labels", {}, FieldType::whole, -1}};
  }
  void fill(const Draw& draw, const std::vector<Row>& rows) const override {
    ensure(draw.sample >= 0 && draw.sample < train_, text("sample ", draw.sample, " of ", train_));
    fill_from(draw.sample, rows);
  }
  void fill_validation(std::int64_t index, const std::vector<Row>& rows) const override {
    ensure(index >= 0 && index < validation_, text("sample ", index, " of ", validation_));
    fill_from(train_ + index, rows);
  }

 private:
  // Sample `index` of the training set, then of what is split off it. Padding is a document of its own, which the text does not see.
  void fill_from(std::int64_t index, const std::vector<Row>& rows) const {
    const auto row = [&](std::size_t field) { return std::get<std::span<std::int32_t>>(rows.at(field)); };
    const std::span<std::int32_t> tokens = row(0), positions = row(1);
    std::int64_t length = seq_;
    if (texts_) {
      const auto place = static_cast<std::int64_t>(split_->at(static_cast<std::uint64_t>(index)));
      length = texts_->read(place, tokens);
      row(2)[0] = texts_->label(place);
    } else {
      Random random(seed_of(seed_, static_cast<std::uint64_t>(index)));
      for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocab_)));
      row(2)[0] = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(classes_)));
    }
    std::iota(positions.begin(), positions.begin() + length, 0);
    std::iota(positions.begin() + length, positions.end(), 0);
  }

  Where where_;
  std::int64_t seq_, vocab_, classes_;
  std::uint64_t seed_;
  std::optional<LabelledTexts> texts_;
  std::int64_t train_, validation_;
  std::optional<Permutation> split_;
  std::optional<Mixture> order_;
};

}  // namespace

std::unique_ptr<Dataset> open_labelled_text(const model::DataSpec& spec, const model::ModelSpec& model, std::uint64_t seed,
                                            const std::filesystem::path& cache_dir, const ProgressCallback& progress) {
  need_source(spec);
  const std::int64_t seq = model.dim("seq"), vocab = model.dim("vocab");
  if (seq < 3)
    throw Error(ErrorCode::invalid_config, text("model.seq is ", seq, ", and a text stands between two tokens that mark its ends"),
                spec.where, "model.seq of at least 3");
  std::optional<LabelledTexts> texts;
  if (!spec.synthetic) {
    texts.emplace(spec, seq, model.dim("classes"), cache_dir.empty() ? default_cache_dir() : cache_dir, progress);
    check_vocabulary(spec, texts->tokenizer(), vocab);
  }
  return std::make_unique<LabelledTextDataset>(spec, model, seed, std::move(texts));
}

}  // namespace tessera::data
