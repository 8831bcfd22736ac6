#include <algorithm>
#include <queue>

#include "base/error.hpp"
#include "data/bpe_model.hpp"
#include "data/byte_alphabet.hpp"
#include "data/flat_map.hpp"
#include "data/hf_tokenizer_file.hpp"
#include "data/pre_tokenizer.hpp"
#include "data/tokenizer.hpp"

namespace tessera::data {
namespace {

using Pair = std::uint64_t;  // left id << 32 | right id
constexpr std::int64_t kSmallestVocab = 257;

Pair pair_of(std::uint32_t left, std::uint32_t right) { return static_cast<Pair>(left) << 32 | right; }

struct Word {
  std::vector<std::uint32_t> ids;
  std::int64_t count = 0;
};

// The most frequent pair first; of equals the one with the smaller ids.
struct Candidate {
  std::int64_t count;
  Pair pair;
  bool operator<(const Candidate& other) const { return count != other.count ? count < other.count : pair > other.pair; }
};

class Merger {
 public:
  explicit Merger(std::vector<Word> words) : words_(std::move(words)) {
    for (std::uint32_t word = 0; word < words_.size(); ++word) {
      const auto& ids = words_[word].ids;
      for (std::size_t index = 0; index + 1 < ids.size(); ++index) change(pair_of(ids[index], ids[index + 1]), words_[word].count, word);
    }
    push_changed();
  }

  // The pair to merge next; false when none is left.
  bool next(Pair& pair) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const std::int64_t count = uses_[top.pair].count;
      if (count == top.count && count > 0) {
        pair = top.pair;
        return true;
      }
      if (count > 0) queue_.push({count, top.pair});
    }
    return false;
  }

  void merge(Pair pair, std::uint32_t id) {
    const std::vector<std::uint32_t> where = std::move(uses_[pair].words);
    for (std::uint32_t word : where) merge_in(word, pair, id);
    uses_[pair] = {};
    push_changed();
  }

 private:
  struct Use {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // where the pair is or was; a word may stand here twice
  };

  void change(Pair pair, std::int64_t by, std::uint32_t word) {
    Use& use = uses_[pair];
    use.count += by;
    if (by <= 0) return;
    if (use.words.empty() || use.words.back() != word) use.words.push_back(word);
    changed_.push_back(pair);
  }

  void merge_in(std::uint32_t word, Pair pair, std::uint32_t id) {
    auto& ids = words_[word].ids;
    const std::int64_t count = words_[word].count;
    std::size_t out = 0;
    for (std::size_t in = 0; in < ids.size(); ++in) {
      if (in + 1 >= ids.size() || pair_of(ids[in], ids[in + 1]) != pair) {
        ids[out++] = ids[in];
        continue;
      }
      if (out > 0) {
        change(pair_of(ids[out - 1], ids[in]), -count, word);
        change(pair_of(ids[out - 1], id), count, word);
      }
      if (in + 2 < ids.size()) {
        change(pair_of(ids[in + 1], ids[in + 2]), -count, word);
        change(pair_of(id, ids[in + 2]), count, word);
      }
      ids[out++] = id;
      ++in;
    }
    ids.resize(out);
  }

  void push_changed() {
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (Pair pair : changed_) {
      if (uses_[pair].count > 0) queue_.push({uses_[pair].count, pair});
    }
    changed_.clear();
  }

  std::vector<Word> words_;
  FlatMap<Use> uses_;
  std::vector<Pair> changed_;
  std::priority_queue<Candidate> queue_;
};

}  // namespace

struct BpeTrainer::Words {
  PreTokenizer pre_tokenizer;
  PreTokenizer::Matchers matchers = pre_tokenizer.make_matchers();
  std::unordered_map<std::string, std::int64_t, StringHash, std::equal_to<>> counts;
};

BpeTrainer::BpeTrainer() : words_(std::make_unique<Words>()) {}
BpeTrainer::~BpeTrainer() = default;

void BpeTrainer::add(std::string_view document) {
  if (const auto offset = first_invalid_utf8(document)) {
    throw Error(ErrorCode::invalid_config, text("the text is not valid UTF-8 at byte ", *offset), {}, "UTF-8", "convert it with iconv");
  }
  words_->pre_tokenizer.split(document, words_->matchers, [&](std::string_view word) {
    const auto found = words_->counts.find(word);
    if (found != words_->counts.end()) {
      ++found->second;
    } else {
      words_->counts.emplace(word, 1);
    }
  });
}

std::unique_ptr<Tokenizer> BpeTrainer::train(std::int64_t vocab, const ProgressCallback& progress) const {
  if (vocab < kSmallestVocab || vocab > 1 << 24) {
    throw Error(ErrorCode::invalid_config, text("a vocabulary of ", vocab, " tokens cannot be trained"), {},
                text("between ", kSmallestVocab, " (the bytes and ", kEndOfText, ") and ", 1 << 24), "set data.tokenizer.vocab or --vocab");
  }
  // Ids as the `tokenizers` package gives them: the special token, then the byte alphabet in order of code points.
  std::vector<std::string> tokens(byte_characters().begin(), byte_characters().end());
  std::sort(tokens.begin(), tokens.end());
  tokens.insert(tokens.begin(), kEndOfText);
  TokenIds ids;
  for (std::uint32_t id = 0; id < tokens.size(); ++id) ids.emplace(tokens[id], id);

  std::vector<Word> words;
  words.reserve(words_->counts.size());
  for (const auto& [text, count] : words_->counts) {
    Word word{.ids = {}, .count = count};
    for (char byte : text) word.ids.push_back(ids.find(byte_characters()[static_cast<unsigned char>(byte)])->second);
    words.push_back(std::move(word));
  }
  Merger merger(std::move(words));
  std::vector<std::pair<std::uint32_t, std::uint32_t>> merges;
  Pair pair = 0;
  while (static_cast<std::int64_t>(tokens.size()) < vocab && merger.next(pair)) {
    const auto left = static_cast<std::uint32_t>(pair >> 32), right = static_cast<std::uint32_t>(pair);
    const std::string token = tokens[left] + tokens[right];
    const auto [place, is_new] = ids.emplace(token, static_cast<std::uint32_t>(tokens.size()));
    if (is_new) tokens.push_back(token);
    merges.emplace_back(left, right);
    merger.merge(pair, place->second);
    if (progress && merges.size() % 256 == 0)
      progress({"training the tokenizer", static_cast<double>(tokens.size()) / static_cast<double>(vocab)});
  }
  return parse_tokenizer_json(write_hf_tokenizer(tokens, merges, 0, true), "the trained tokenizer");
}

std::unique_ptr<Tokenizer> train_bpe(std::span<const std::string> documents, std::int64_t vocab) {
  BpeTrainer trainer;
  for (const std::string& document : documents) trainer.add(document);
  return trainer.train(vocab);
}

}  // namespace tessera::data
