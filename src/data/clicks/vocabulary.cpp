#include "data/clicks/vocabulary.hpp"

#include <algorithm>

#include "base/file_system.hpp"
#include "base/hash.hpp"
#include "data/clicks/line_fields.hpp"
#include "data/in_file.hpp"

namespace tessera::data {

Vocabulary::Vocabulary(const std::vector<std::string>& values) {
  for (const std::string& value : values) {
    ids_.emplace(value, ids_.size() + 1);
    hash_ = hash64(value, hash_ + 1);
  }
}

Vocabulary Vocabulary::load(const std::filesystem::path& file) {
  const std::string content = read_whole(file);
  std::vector<std::string> values;
  std::unordered_map<std::string_view, std::size_t> seen;
  for (std::string_view rest = content; !rest.empty();) {
    std::string_view value = take_field(rest, '\n');
    if (value.ends_with('\r')) value.remove_suffix(1);
    values.emplace_back(value);
    if (const auto [first, fresh] = seen.emplace(value, values.size()); !fresh)
      throw Error(ErrorCode::corrupt, text("'", value, "' stands in line ", first->second, " already"),
                  in_file(file, static_cast<int>(values.size())), "a vocabulary of different values, one a line");
  }
  return Vocabulary(values);
}

std::uint64_t Vocabulary::id_of(std::string_view value) const {
  const auto found = ids_.find(value);
  return found == ids_.end() ? 0 : found->second;
}

void VocabularyBuilder::add(std::string_view value) {
  const auto found = counts_.find(value);
  if (found != counts_.end())
    ++found->second;
  else
    counts_.emplace(value, 1);
}

void VocabularyBuilder::add(const VocabularyBuilder& other) {
  for (const auto& [value, count] : other.counts_) counts_[value] += count;
}

Vocabulary VocabularyBuilder::build(std::int64_t least) const {
  std::vector<std::pair<std::int64_t, std::string>> kept;
  for (const auto& [value, count] : counts_)
    if (count >= least) kept.emplace_back(-count, value);
  std::sort(kept.begin(), kept.end());
  std::vector<std::string> values;
  for (auto& [count, value] : kept) values.push_back(std::move(value));
  return Vocabulary(values);
}

}  // namespace tessera::data
