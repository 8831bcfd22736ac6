#include "fuzz/tree.hpp"

#include <yaml-cpp/yaml.h>

#include <nlohmann/json.hpp>

namespace tessera::fuzz {
namespace {

constexpr int kDeepest = 200;
constexpr int kMostValues = 4000;

// False when there is too much.
bool convert(const YAML::Node& node, Tree& tree, int depth, int& budget) {
  if (depth > kDeepest || --budget < 0) return false;
  if (node.IsMap()) {
    tree.kind = Tree::Kind::map;
    for (const auto& entry : node) {
      tree.keys.push_back(entry.first.IsScalar() ? entry.first.Scalar() : std::string("?"));
      if (!convert(entry.second, tree.children.emplace_back(), depth + 1, budget)) return false;
    }
  } else if (node.IsSequence()) {
    tree.kind = Tree::Kind::list;
    for (const auto& entry : node)
      if (!convert(entry, tree.children.emplace_back(), depth + 1, budget)) return false;
  } else {
    tree.text = node.IsScalar() ? node.Scalar() : std::string("null");
    tree.quoted = node.IsScalar() && node.Tag() == "!";
  }
  return true;
}

std::string quote(const std::string& word) { return nlohmann::json(word).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

void append(const Tree& tree, bool quoted_keys, std::string& out) {
  if (tree.kind == Tree::Kind::scalar) {
    out += tree.quoted ? quote(tree.text) : tree.text;
    return;
  }
  const bool map = tree.kind == Tree::Kind::map;
  out += map ? '{' : '[';
  for (std::size_t i = 0; i < tree.children.size(); ++i) {
    if (i > 0) out += i % 4 == 0 ? ",\n " : ", ";
    if (map) out += (quoted_keys ? quote(tree.keys[i]) : tree.keys[i]) + ": ";
    append(tree.children[i], quoted_keys, out);
  }
  out += map ? '}' : ']';
}

void collect(Tree& tree, std::vector<Tree*>& out) {
  out.push_back(&tree);
  for (Tree& child : tree.children) collect(child, out);
}

}  // namespace

std::optional<Tree> read_tree(std::string_view text) {
  try {
    Tree tree;
    int budget = kMostValues;
    if (convert(YAML::Load(std::string(text)), tree, 0, budget)) return tree;
  } catch (const YAML::Exception&) {
    // No YAML: bytes can be changed all the same.
  }
  return std::nullopt;
}

std::string write_tree(const Tree& tree, bool quoted_keys) {
  std::string out;
  append(tree, quoted_keys, out);
  return out + "\n";
}

std::vector<Tree*> values_of(Tree& tree) {
  std::vector<Tree*> out;
  collect(tree, out);
  return out;
}

}  // namespace tessera::fuzz
