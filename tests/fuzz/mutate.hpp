// Changes that people, editors and broken disks make to a configuration file, and those that only an enemy makes.
#pragma once

#include <string>
#include <vector>

#include "base/random.hpp"
#include "fuzz/tree.hpp"

namespace tessera::fuzz {

// Deterministic: the same seed and the same calls give the same texts. Not thread-safe.
class Mutator {
 public:
  // Keys and scalars of `seeds` become the words that are put in other places.
  Mutator(std::uint64_t seed, const std::vector<std::string>& seeds);

  // One to some changes: of the tree that the text is (values left out, doubled, retyped, renamed, moved, nested, repeated,
  // made huge) or of its bytes (flipped, cut off, spliced with `other`).
  std::string changed(const std::string& text, const std::string& other);

  // Uniform in [0, bound); 0 for a bound of 0.
  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : static_cast<std::size_t>(random_.below(bound)); }
  bool once_in(std::size_t times) { return below(times) == 0; }

 private:
  std::string word();
  void change_tree(Tree& tree);
  void change_value(Tree& value, const std::vector<Tree*>& all);
  void change_children(Tree& parent);
  void change_bytes(std::string& text, const std::string& other);

  Random random_;
  std::vector<std::string> keys_;
  std::vector<std::string> words_;
};

}  // namespace tessera::fuzz
