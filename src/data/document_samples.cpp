#include <algorithm>
#include <numeric>

#include "base/error.hpp"
#include "data/samples.hpp"

namespace tessera::data {
namespace {

// A document of n tokens takes n - 1 places: its last token, the end of text, is a target alone.
class DocumentSamples final : public Samples {
 public:
  DocumentSamples(const TokenCache& cache, std::int64_t seq, const model::DataSpec& spec, const Where& where) : cache_(cache), seq_(seq) {
    std::int64_t cut = 0, left_out = 0, filled = 0;
    std::int64_t room = 0;  // in the last sample
    for (std::int64_t document = 0; document < cache.document_count(); ++document) {
      const Extent extent = extent_of(document);
      if (extent.counted == 0) ++left_out;
      if (extent.counted == 0) continue;
      if (extent.whole > extent.places) ++cut;
      if (spec.lengths || extent.places > room) {
        firsts_.push_back(document);
        room = seq;
      }
      room -= extent.places;
      filled += extent.places;
    }
    split(spec, where, left_out);
    const char* const what = spec.records.has_prompts() ? "answers" : "documents";
    if (spec.lengths) {
      notes_.push_back(text(firsts_.size(), " ", what, ", a sample each, of ", filled / std::ssize(firsts_), " tokens on average"));
      if (cut > 0) notes_.push_back(text(cut, " of them are longer than model.seq ", seq, ", and lose their ends"));
      if (left_out > 0) notes_.push_back(text(left_out, " are left out: nothing of them is a target"));
      return;
    }
    const double share = static_cast<double>(filled) / static_cast<double>(std::ssize(firsts_) * seq);
    notes_.push_back(text(cache.document_count() - left_out, " ", what, " in ", firsts_.size(), " sequences of ", seq,
                          ", of which they fill ", static_cast<int>(100 * share), " %"));
    if (cut > 0) notes_.push_back(text(cut, " of them are longer than model.seq ", seq, " with their prompts, and lose their ends"));
    if (left_out > 0) notes_.push_back(text(left_out, " are left out: their prompts alone are longer than model.seq ", seq));
  }

  void fill(std::int64_t index, const SampleRoom& room) const override {
    std::int64_t place = 0;
    std::int32_t last_token = 0;
    for_each_document(index, [&](std::int64_t document, const Extent& extent) {
      const auto part = [&](std::span<std::int32_t> all) {
        return all.subspan(static_cast<std::size_t>(place), static_cast<std::size_t>(extent.places));
      };
      const std::int64_t begin = cache_.document_begin(document);
      cache_.read(begin, part(room.tokens));
      cache_.read(begin + 1, part(room.targets));
      last_token = part(room.targets).back();
      std::fill_n(part(room.targets).begin(), extent.places - extent.counted, -1);
      if (!room.positions.empty()) std::iota(part(room.positions).begin(), part(room.positions).end(), 0);
      place += extent.places;
    });
    std::fill(room.tokens.begin() + place, room.tokens.end(), last_token);
    std::fill(room.targets.begin() + place, room.targets.end(), -1);
    if (!room.positions.empty()) std::iota(room.positions.begin() + place, room.positions.end(), 0);
  }

  std::int64_t counted(std::int64_t index) const override {
    std::int64_t sum = 0;
    for_each_document(index, [&](std::int64_t, const Extent& extent) { sum += extent.counted; });
    return sum;
  }

  std::int64_t length(std::int64_t index) const override {
    std::int64_t sum = 0;
    for_each_document(index, [&](std::int64_t, const Extent& extent) { sum += extent.places; });
    return sum;
  }

 private:
  struct Extent {
    std::int64_t whole;    // places that all of the document would take
    std::int64_t places;   // that it takes
    std::int64_t counted;  // of these, the last so many: their targets are of the text. 0: the document is left out
  };

  Extent extent_of(std::int64_t document) const {
    const std::int64_t begin = cache_.document_begin(document);
    const std::int64_t whole = cache_.document_begin(document + 1) - begin - 1;
    const std::int64_t places = std::min(whole, seq_);
    const std::int64_t prompt = std::max<std::int64_t>(0, cache_.text_begin(document) - begin - 1);
    return {whole, places, std::max<std::int64_t>(0, places - prompt)};
  }

  template <typename Visit>
  void for_each_document(std::int64_t index, const Visit& visit) const {
    const auto at = static_cast<std::size_t>(index);
    const std::int64_t behind = at + 1 < firsts_.size() ? firsts_[at + 1] : cache_.document_count();
    for (std::int64_t document = firsts_[at]; document < behind; ++document)
      if (const Extent extent = extent_of(document); extent.counted > 0) visit(document, extent);
  }

  void split(const model::DataSpec& spec, const Where& where, std::int64_t left_out) {
    const auto size = std::ssize(firsts_);
    if (size == 0)
      throw Error(ErrorCode::invalid_config, text("no answer is left: the prompts of all ", left_out, " are longer than model.seq ", seq_),
                  where, "prompts that leave room for an answer", "use a longer model.seq");
    train_ = std::min<std::int64_t>(size, static_cast<std::int64_t>(static_cast<double>(size) * spec.train_fraction));
    validation_ = spec.train_fraction < 1 ? size - train_ : 0;
    if ((train_ < 1 && spec.train_fraction > 0) || (validation_ < 1 && spec.train_fraction < 1))
      throw Error(ErrorCode::invalid_config,
                  text("the answers fill ", size, " sequence", size == 1 ? "" : "s", " of ", seq_, ": too few to train and to validate on"),
                  where, "at least one sequence for each",
                  "use more answers, a shorter model.seq, or data.split.train: 1.0 to go without validation");
  }

  const TokenCache& cache_;
  std::int64_t seq_;
  std::vector<std::int64_t> firsts_;  // the first document of each sample
};

}  // namespace

std::unique_ptr<Samples> make_document_samples(const TokenCache& cache, std::int64_t seq, const model::DataSpec& spec, const Where& where) {
  return std::make_unique<DocumentSamples>(cache, seq, spec, where);
}

}  // namespace tessera::data
