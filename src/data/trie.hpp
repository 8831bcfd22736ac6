// internal: strings to numbers, searched by prefix.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "data/flat_map.hpp"

namespace tessera::data {

class Trie {
 public:
  using Node = std::uint32_t;
  static constexpr Node kNone = ~0u;
  static constexpr std::int32_t kNoValue = -1;

  Trie() : values_(1, kNoValue), first_(256, kNone) {}
  // A later value for the same key replaces the earlier one. `key` is not empty, `value` not negative.
  void add(std::string_view key, std::int32_t value) {
    Node node = 0;
    for (char byte : key) {
      Node next = child(node, byte);
      if (next == kNone) {
        next = static_cast<Node>(values_.size());
        values_.push_back(kNoValue);
        if (node == 0) {
          first_[static_cast<unsigned char>(byte)] = next;
        } else {
          children_[edge(node, byte)] = next;
        }
      }
      node = next;
    }
    values_[node] = value;
  }
  bool empty() const { return values_.size() == 1; }
  bool starts(char byte) const { return first_[static_cast<unsigned char>(byte)] != kNone; }
  Node child(Node node, char byte) const {
    if (node == 0) return first_[static_cast<unsigned char>(byte)];
    const Node* next = children_.find(edge(node, byte));
    return next == nullptr ? kNone : *next;
  }
  std::int32_t value(Node node) const { return values_[node]; }

  struct Match {
    std::size_t length;
    std::int32_t value;
  };
  // The longest key that `text` starts with.
  std::optional<Match> longest(std::string_view text) const {
    std::optional<Match> best;
    Node node = 0;
    for (std::size_t index = 0; index < text.size(); ++index) {
      node = child(node, text[index]);
      if (node == kNone) break;
      if (values_[node] != kNoValue) best = Match{index + 1, values_[node]};
    }
    return best;
  }

 private:
  static std::uint64_t edge(Node node, char byte) { return static_cast<std::uint64_t>(node) << 8 | static_cast<unsigned char>(byte); }

  std::vector<std::int32_t> values_;
  std::vector<Node> first_;
  FlatMap<Node> children_;
};

}  // namespace tessera::data
