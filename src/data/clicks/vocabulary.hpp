// internal: values of a category that have ids of their own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.hpp"

namespace tessera::data {

// So that maps of strings are searched by views.
struct HashOfText {
  using is_transparent = void;
  std::size_t operator()(std::string_view value) const { return std::hash<std::string_view>()(value); }
};

// Ids count from 1, in the order of the list; 0 is that of all other values. Immutable once it is built.
class Vocabulary {
 public:
  // `values`: different from one another.
  explicit Vocabulary(const std::vector<std::string>& values);
  // A value a line. Throws not_found, io; corrupt, which names the line, for a value that stands in it twice.
  static Vocabulary load(const std::filesystem::path& file);

  std::uint64_t id_of(std::string_view value) const;
  std::uint64_t size() const { return ids_.size(); }
  std::uint64_t hash() const { return hash_; }

 private:
  std::unordered_map<std::string, std::uint64_t, HashOfText, std::equal_to<>> ids_;
  std::uint64_t hash_ = 0;
};

// Counts values. Not thread-safe.
class VocabularyBuilder {
 public:
  void add(std::string_view value);
  void add(const VocabularyBuilder& other);
  // The values that were added at least so often, the most frequent first, equal ones by their bytes.
  Vocabulary build(std::int64_t least) const;

 private:
  std::unordered_map<std::string, std::int64_t, HashOfText, std::equal_to<>> counts_;
};

}  // namespace tessera::data
