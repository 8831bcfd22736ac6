#include "ps/serving_table.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.hpp"
#include "ps/row_values.hpp"
#include "ps/serving_format.hpp"

namespace tessera::ps {

struct ServingTable::Line : ServingLine {};

ServingTable::ServingTable(const std::filesystem::path& path) : path_(path), file_(path) {
  const std::span<const std::byte> all = file_.bytes();
  ServingEnd end;
  if (all.size() < sizeof end) refuse("it is too short to be one");
  std::memcpy(&end, all.data() + all.size() - sizeof end, sizeof end);
  if (end.magic != kServingMagic) refuse("it is no serving table, or its end is missing");
  if (end.version != kServingVersion) refuse(text("it has version ", end.version, ", and this program reads ", kServingVersion));
  const std::uint64_t before_end = all.size() - sizeof end;
  if (end.name_bytes > before_end || end.name_at != before_end - end.name_bytes) refuse("its name lies elsewhere");
  const std::span<const std::byte> name = all.subspan(end.name_at, end.name_bytes);
  if (serving_checksum(end, name) != end.checksum) refuse("the checksum of its end does not hold");
  if (end.dimension < 1 || end.dimension > 65536 || end.type > static_cast<std::uint32_t>(RowType::int8)) refuse("its rows are none");
  name_.assign(reinterpret_cast<const char*>(name.data()), name.size());
  dimension_ = static_cast<int>(end.dimension);
  type_ = static_cast<RowType>(end.type);
  rows_ = end.rows;
  stride_ = ps::row_bytes(type_, dimension_);
  if (end.index_at > end.name_at || end.index_at % kServingLine != 0 || end.rows > end.index_at / stride_ || end.lines < 1 ||
      end.lines != (end.name_at - end.index_at) / kServingLine || (end.name_at - end.index_at) % kServingLine != 0)
    refuse("its parts do not fit into it");
  values_ = all.first(end.rows * stride_);
  index_ = {reinterpret_cast<const Line*>(all.data() + end.index_at), end.lines};
  values_checksum_ = end.rows_checksum;
  index_checksum_ = end.index_checksum;
}

Bytes ServingTable::index_bytes() const { return Bytes(static_cast<std::int64_t>(index_.size_bytes())); }

std::uint64_t ServingTable::row_of(Key key) const {
  std::uint64_t line = serving_line_of(key, index_.size());
  for (std::size_t looked = 0; looked < index_.size(); ++looked, line = line + 1 == index_.size() ? 0 : line + 1)
    for (const ServingSlot& slot : index_[line].slots) {
      if (slot.row == kNoRow) return kNoRow;
      if (slot.key != key) continue;
      if (slot.row >= rows_) refuse("its index leads to a row that it does not have");
      return slot.row;
    }
  refuse("its index has no end");
}

std::size_t ServingTable::find(std::span<const Key> keys, std::span<float> values) const {
  const auto dimension = static_cast<std::size_t>(dimension_);
  ensure(values.size() == keys.size() * dimension, "a look-up has room for each key's values");
  // Lines are asked for together, then rows: each key alone would wait for memory twice.
  constexpr std::size_t kTogether = 256;
  std::array<std::uint64_t, kTogether> rows;
  std::size_t found = 0;
  for (std::size_t begin = 0; begin < keys.size(); begin += kTogether) {
    const std::size_t count = std::min(kTogether, keys.size() - begin);
    for (std::size_t i = 0; i < count; ++i) __builtin_prefetch(&index_[serving_line_of(keys[begin + i], index_.size())]);
    for (std::size_t i = 0; i < count; ++i) {
      rows[i] = row_of(keys[begin + i]);
      if (rows[i] != kNoRow) __builtin_prefetch(values_.data() + rows[i] * stride_);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::span<float> out = values.subspan((begin + i) * dimension, dimension);
      if (rows[i] == kNoRow) {
        std::ranges::fill(out, 0.0f);
        continue;
      }
      load_row(type_, values_.data() + rows[i] * stride_, out);
      ++found;
    }
  }
  return found;
}

void ServingTable::verify() const {
  if (serving_checksum(values_) != values_checksum_) refuse("the checksum of its rows does not hold");
  if (serving_checksum(std::as_bytes(index_)) != index_checksum_) refuse("the checksum of its index does not hold");
}

void ServingTable::refuse(const std::string& what) const {
  throw Error(ErrorCode::corrupt, text("a serving table cannot be read: ", what), {.file = path_.string(), .block = {}},
              "what `tessera export RUN --to serving FOLDER` has written", "export the run again");
}

}  // namespace tessera::ps
