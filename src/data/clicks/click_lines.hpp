// internal: the lines of a click log as samples, by their number.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/clicks/click_format.hpp"

namespace tessera::data {

// Immutable; safe to use from several threads.
class ClickLines {
 public:
  virtual ~ClickLines() = default;
  virtual std::int64_t size() const = 0;
  virtual void read(std::int64_t index, const ClickRoom& room) const = 0;
  // Whether the label is 1; reads nothing.
  virtual bool clicked(std::int64_t index) const = 0;
  virtual std::uint64_t content_hash() const = 0;
  virtual std::uint64_t source_hash() const = 0;
  // What was left out; empty: nothing.
  virtual std::string note() const { return {}; }
};

// Opens a file of text, which is mapped, or held if it is compressed, or a folder of such files. Reads everything once in several threads,
// or twice if it makes a vocabulary. Throws not_found (with the nearest name), io, corrupt, invalid_config.
std::unique_ptr<ClickLines> open_text_lines(const model::DataSpec& spec, const model::ModelSpec& model, const ClickShape& shape);
// Opens a Parquet file or a folder of them, whose samples are held. Throws as read_parquet does, too.
std::unique_ptr<ClickLines> open_parquet_lines(const model::DataSpec& spec, const ClickShape& shape);
// The lines of several files as those of one; `files` is not empty.
std::unique_ptr<ClickLines> joined_lines(std::vector<std::unique_ptr<ClickLines>> files);
// Random ones, of which one label in four is 1, whatever stands beside it.
std::unique_ptr<ClickLines> make_synthetic_lines(const ClickShape& shape, std::uint64_t seed);

}  // namespace tessera::data
