// A YAML or JSON text as a tree that can be changed and written again, right or wrong.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::fuzz {

struct Tree {
  enum class Kind { scalar, list, map } kind = Kind::scalar;
  std::string text;               // of a scalar
  bool quoted = false;            // a scalar that is written between quotes; others are written as they are
  std::vector<std::string> keys;  // of a map, one for each child
  std::vector<Tree> children;     // of a list or map
};

// Nothing for texts that are no YAML, and for those of more than some thousand values or of absurd depth.
std::optional<Tree> read_tree(std::string_view text);
// On one line or many, in YAML's flow style, which is JSON where keys are quoted.
std::string write_tree(const Tree& tree, bool quoted_keys);
// Every value, the root first. Valid until the tree changes.
std::vector<Tree*> values_of(Tree& tree);

}  // namespace tessera::fuzz
