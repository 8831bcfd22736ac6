// All that is wrong in a file is said at once, so that its user mends it at once.
#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config.hpp"

namespace tessera {

// Gathers invalid_config Errors. Each is kept once, and at most kMost of them: who wrote that many has taken the wrong file.
class Problems {
 public:
  static constexpr std::size_t kMost = 20;

  // Runs `read` and keeps the invalid_config Error that it throws, with those behind it; anything else passes through.
  template <typename Read>
  void attempt(const Read& read) {
    try {
      read();
    } catch (const Error& problem) {
      if (problem.code() != ErrorCode::invalid_config) throw;
      keep(problem);
    }
  }
  void keep(const Error& problem);
  bool empty() const { return kept_.empty(); }
  // Throws, when there are any: the first in the file, with the others behind it.
  void raise() const;

 private:
  std::vector<Error> kept_;
};

// Reads a map value by value, and gathers what is wrong in it.
class Section {
 public:
  // Throws when `node` is no map; a key that is not in `keys` is gathered. `node` must outlive the section.
  Section(const ConfigNode& node, std::initializer_list<std::string_view> keys);

  // Where the key is there: value = read(its node).
  template <typename Value, typename Read>
  void read(std::string_view key, Value& value, const Read& read) {
    problems_.attempt([&] {
      if (const auto found = node_.find(key)) value = static_cast<Value>(read(*found));
    });
  }
  // The same for a required key.
  template <typename Value, typename Read>
  void need(std::string_view key, Value& value, const Read& read) {
    problems_.attempt([&] { value = static_cast<Value>(read(node_.at(key))); });
  }
  template <typename Read>
  void attempt(const Read& read) {
    problems_.attempt(read);
  }
  // Throws what was gathered. What needs several values to be right comes after it.
  void finish() const { problems_.raise(); }

 private:
  const ConfigNode& node_;
  Problems problems_;
};

}  // namespace tessera
