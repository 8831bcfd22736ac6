// Strict reading of YAML and JSON (JSON is read as YAML): every value knows its file and line, unknown keys are errors
// that name the nearest valid key.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace tessera {

// A view of one value in a parsed file. Copies share the document. Safe to read from several threads.
class ConfigNode {
 public:
  // Throws not_found, io or invalid_config (bytes that are not UTF-8, or a syntax error, with the line; aliases that stand for themselves,
  // or for more than a million values).
  static ConfigNode load(const std::filesystem::path& path);
  // `name` stands for the file in messages.
  static ConfigNode parse(std::string_view text, const std::string& name);

  bool is_map() const;
  bool is_sequence() const;
  bool is_scalar() const;
  bool is_null() const;
  // Of a value that an override set: "--set KEY=VALUE" in place of file and line.
  Where where() const;
  // The name of the file (or what `parse` was given), of overridden values too.
  const std::string& file() const;
  // "train.optimizer.lr"; empty for the root.
  const std::string& path() const { return path_; }

  // Maps. `at` throws when the key is missing; `find` does not.
  bool has(std::string_view key) const;
  ConfigNode at(std::string_view key) const;
  std::optional<ConfigNode> find(std::string_view key) const;
  std::vector<std::string> keys() const;
  // Throws for all keys that are not in `valid`, naming the nearest valid one of each. Also throws when this is no map.
  void allow_only(std::initializer_list<std::string_view> valid) const;
  void allow_only(const std::vector<std::string>& valid) const;

  // Sequences.
  std::size_t size() const;
  ConfigNode operator[](std::size_t index) const;
  std::vector<ConfigNode> items() const;

  // Scalars; throw with the expected type, the value and the line. as_bytes reads "512 MiB", "16GB", "1024".
  std::string as_string() const;
  std::int64_t as_int() const;
  double as_double() const;
  bool as_bool() const;
  std::int64_t as_bytes() const;
  // One of `valid`; otherwise an error that names the nearest.
  std::string as_choice(std::initializer_list<std::string_view> valid) const;
  std::string as_choice(const std::vector<std::string>& valid) const;
  // An integer >= least.
  std::int64_t as_int_at_least(std::int64_t least) const;
  // An integer >= least and <= most.
  std::int64_t as_int_between(std::int64_t least, std::int64_t most) const;

  // Shorthands for optional scalars of a map.
  std::string get(std::string_view key, const std::string& fallback) const;
  std::int64_t get(std::string_view key, std::int64_t fallback) const;
  double get(std::string_view key, double fallback) const;
  bool get(std::string_view key, bool fallback) const;

  // A new document in which the value at "a.b.c" is `value` (read as YAML); missing maps on the way are made. An
  // entry of a list is named by its index or by its `name`: "groups.0.nodes", "groups.cpu.nodes".
  ConfigNode with_override(std::string_view dotted_key, std::string_view value) const;
  // The whole value as YAML text, and as compact JSON text.
  std::string to_yaml() const;
  std::string to_json() const;

  // An invalid_config Error at this value.
  Error error(const std::string& message, const std::string& expected = {}, const std::string& hint = {}) const;

 private:
  struct Document;
  struct Value;
  ConfigNode(std::shared_ptr<const Document> document, std::shared_ptr<const Value> value, std::string path);

  std::shared_ptr<const Document> document_;
  std::shared_ptr<const Value> value_;
  std::string path_;
};

// The candidate with the smallest edit distance, if that is small enough to be a likely typo.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace tessera
