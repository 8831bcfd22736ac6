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

// What a model reads of a line.
struct ClickShape {
  std::int64_t dense = 0;
  std::int64_t lookups = 1;
  std::int64_t history = 0;        // keys of a history at most; 0: it reads none
  std::size_t target = 0;          // the table that a history's keys are of
  std::vector<std::int64_t> rows;  // of each table; 0: any id has one

  std::size_t tables() const { return rows.size(); }
};
ClickShape click_shape(const model::ModelSpec& model);

// Where what a line says goes. An empty span: it is checked and goes nowhere.
struct ClickRoom {
  std::int32_t& label;                    // 0 or 1
  std::span<float> dense;                 // [dense]
  std::span<std::uint64_t> keys;          // [tables, lookups], of data/clicks/keys.hpp
  std::span<std::uint64_t> history = {};  // [history], the oldest first, kNoKey behind the last one
};

// Room for what one line says.
class ClickSample {
 public:
  explicit ClickSample(const ClickShape& shape)
      : dense_(static_cast<std::size_t>(shape.dense)),
        keys_(shape.tables() * static_cast<std::size_t>(shape.lookups)),
        history_(static_cast<std::size_t>(shape.history)) {}
  ClickRoom room() { return {label_, dense_, keys_, history_}; }

 private:
  std::int32_t label_ = 0;
  std::vector<float> dense_;
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint64_t> history_;
};

// Immutable; safe to use from several threads.
class ClickFormat {
 public:
  virtual ~ClickFormat() = default;
  // Reads a line without its end. Returns what is wrong with it; empty: nothing.
  virtual std::string read(std::string_view line, const ClickRoom& room) const = 0;
};

// What is wrong with a sample that was read: an id that its table does not have; empty: nothing.
std::string beyond_rows(const ClickRoom& room, const ClickShape& shape);
// The error of it.
Error beyond_rows_error(const std::string& problem, const Where& where);

// Makes the formats criteo, libsvm and libffm. Throws invalid_config, at `where` (the data section), if the model does not read what such
// lines have.
std::unique_ptr<ClickFormat> make_click_format(model::ClickFormat format, const model::ModelSpec& model, const Where& where);

//   criteo  fields between tabs: the label, 13 whole numbers and 26 categories of up to 8 hexadecimal digits; numbers and categories may be
//           empty. A number x becomes log(1 + max(x, 0)), an empty one 0.
std::unique_ptr<ClickFormat> make_criteo(const model::ModelSpec& model, const Where& where);
//   libsvm  a label (0 or 1, or -1 or 1) and pairs INDEX:VALUE between spaces. Indices from 1 to model.dense are numbers, taken as they
//   are;
//           a number that is not there is 0. The others are ids of categories, with value 1: in their order they fill the look-ups of the
//           first table, then those of the next.
std::unique_ptr<ClickFormat> make_libsvm(const model::ModelSpec& model);
//   libffm  a label as libsvm's and triples FIELD:INDEX:VALUE between spaces. Fields from 0 to model.dense - 1 are numbers: their values
//   are
//           taken as they are. The others are the tables in their order: INDEX is an id, and its VALUE is not used.
std::unique_ptr<ClickFormat> make_libffm(const model::ModelSpec& model);

}  // namespace tessera::data
