#include "data/clicks/click_format.hpp"

#include "data/clicks/keys.hpp"
#include "model/forms.hpp"

namespace tessera::data {

ClickShape click_shape(const model::ModelSpec& model) {
  ClickShape shape{.dense = model.dim("dense"),
                   .lookups = model.dim("lookups"),
                   .history = model::history_of(model),
                   .target = 0,
                   .rows = model::table_rows(model)};
  if (shape.history > 0) shape.target = static_cast<std::size_t>(model.dim("target"));
  return shape;
}

std::string beyond_rows(const ClickRoom& room, const ClickShape& shape) {
  for (const auto keys : {room.keys, room.history})
    for (const std::uint64_t key : keys) {
      if (key == kNoKey || id_of(key) == kEmptyId) continue;
      const std::size_t table = table_of(key);
      const std::int64_t rows = shape.rows[table];
      if (rows > 0 && id_of(key) >= static_cast<std::uint64_t>(rows))
        return text("id ", id_of(key), " of table ", table + 1, ", for which model.tables declares ", rows, " rows");
    }
  return {};
}

Error beyond_rows_error(const std::string& problem, const Where& where) {
  return {ErrorCode::invalid_config, problem, where, "ids below the number of rows that model.tables declares",
          "0 for this table in model.tables, or a number of tables in place of the list: any id has a row then"};
}

std::unique_ptr<ClickFormat> make_click_format(model::ClickFormat format, const model::ModelSpec& model, const Where& where) {
  ensure(!model::names_columns(format), "a format without named columns");
  if (format == model::ClickFormat::criteo) return make_criteo(model, where);
  return format == model::ClickFormat::libsvm ? make_libsvm(model) : make_libffm(model);
}

}  // namespace tessera::data
