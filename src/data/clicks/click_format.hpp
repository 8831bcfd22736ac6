// internal: how the lines of a click log read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "model/job.hpp"

namespace tessera::data {

// Where what a line says goes. An empty span: it is checked and goes nowhere.
struct ClickRoom {
  std::int32_t& label;            // 0 or 1
  std::span<float> dense;         // [dense]
  std::span<std::uint64_t> keys;  // [tables, lookups], of data/clicks/keys.hpp
};

// Immutable; safe to use from several threads.
class ClickFormat {
 public:
  virtual ~ClickFormat() = default;
  // Reads a line without its end. Returns what is wrong with it; empty: nothing.
  virtual std::string read(std::string_view line, const ClickRoom& room) const = 0;
};

// Throws invalid_config where the model does not read what such lines have; `where` is that of the data section.
std::unique_ptr<ClickFormat> make_click_format(model::ClickFormat format, const model::ModelSpec& model, const Where& where);

//   criteo  fields between tabs: the label, 13 whole numbers and 26 categories of up to 8 hexadecimal digits; numbers and categories may be
//           empty. A number x becomes log(1 + max(x, 0)), an empty one 0.
std::unique_ptr<ClickFormat> make_criteo(const model::ModelSpec& model, const Where& where);
//   libsvm  a label (0 or 1, or -1 or 1) and pairs INDEX:VALUE between spaces. Indices from 1 to model.dense are numbers, taken as they
//   are;
//           a number that is not there is 0. The others are ids of categories, with value 1: in their order they fill the look-ups of the
//           first table, then those of the next.
std::unique_ptr<ClickFormat> make_libsvm(const model::ModelSpec& model);

}  // namespace tessera::data
