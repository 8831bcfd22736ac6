// Recommendation models: DLRM (Naumov et al. 2019) and DeepFM (Guo et al. 2017). Nearly all parameters are tables of which a step
// touches few rows; these are marked sparse.
#include <cmath>

#include "model/families.hpp"

namespace tessera::model {
namespace {

// The key's upper 16 bits are its table (data/clicks/keys.hpp).
constexpr std::int64_t kMostTables = 1 << 15;

std::vector<std::int64_t> read_list(const Settings& settings, const std::string& key, std::int64_t least = 1) {
  const ConfigNode list = settings.at(key);
  std::vector<std::int64_t> values;
  for (const ConfigNode& item : list.items()) values.push_back(bounded(item, least));
  if (values.empty()) throw list.error("is empty", "at least one number");
  return values;
}

// Rows of each table; 0 where any id has a row. A number instead of a list: so many tables of these.
std::vector<std::int64_t> read_tables(const Settings& settings) {
  const ConfigNode tables = settings.at("tables");
  if (tables.is_scalar()) return std::vector<std::int64_t>(static_cast<std::size_t>(bounded(tables, 1, kMostTables)), 0);
  std::vector<std::int64_t> rows = read_list(settings, "tables", 0);
  if (std::ssize(rows) > kMostTables) throw tables.error(text("has ", rows.size(), " tables"), text("at most ", kMostTables));
  return rows;
}

// Of maps with ReLU between them (Glorot, Bengio 2010).
Initializer glorot(std::int64_t in, std::int64_t out) { return normal(std::sqrt(2.0 / static_cast<double>(in + out))); }

// `names`: of each map, "bot_l.{}" with "{}" for 0, 2, 4, ... as torch's Sequential counts.
BlockSpec mlp(const std::string& kind_of_name, const std::string& name, const std::vector<std::int64_t>& widths, bool data, bool loss) {
  BlockSpec block{"mlp",
                  name,
                  {},
                  {},
                  {{"features", {widths.front()}}},
                  {{loss ? "loss" : name, loss ? std::vector<std::int64_t>{} : std::vector{widths.back()}}}};
  if (data) block.inputs.clear();
  block.dims = {{"maps", static_cast<double>(widths.size() - 1)},
                {"last_relu", loss ? 0.0 : 1.0},
                {"data", data ? 1.0 : 0.0},
                {"loss", loss ? 1.0 : 0.0}};
  for (std::size_t i = 0; i < widths.size(); ++i) block.dims[text("width", i)] = static_cast<double>(widths[i]);
  for (std::size_t i = 0; i + 1 < widths.size(); ++i)
    add_linear(block.parameters, text(kind_of_name, ".", 2 * i), widths[i + 1], widths[i], -1, true, glorot(widths[i], widths[i + 1]));
  return block;
}

void add_tables(BlockSpec& block, const std::string& name, const std::vector<std::int64_t>& rows, std::int64_t dim) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    block.parameters.push_back({text(name, ".", i, ".weight"), {rows[i], dim}, -1, normal(), false, {}, -1, true});
}

BlockSpec tables_block(const std::vector<std::int64_t>& rows, std::int64_t dim, std::int64_t lookups) {
  const std::int64_t count = static_cast<std::int64_t>(rows.size());
  BlockSpec block{"embedding_tables", "tables", {}, {}, {}, {{"rows", {count, dim}}}};
  block.dims = {{"tables", static_cast<double>(count)}, {"dim", static_cast<double>(dim)}, {"lookups", static_cast<double>(lookups)}};
  return block;
}

BlockSpec interaction(std::int64_t features, std::int64_t dim, std::int64_t dense, bool machine, std::int64_t output) {
  BlockSpec block{"interaction", "interaction", {}, {}, {{"rows", {features, dim}}}, {{"features", {output}}}};
  block.dims = {{"features", static_cast<double>(features)},
                {"dim", static_cast<double>(dim)},
                {"dense", static_cast<double>(dense)},
                {"machine", machine ? 1.0 : 0.0}};
  return block;
}

}  // namespace

ModelSpec read_dlrm(const Settings& settings) {
  settings.allow_only({"dense", "dim", "tables", "lookups", "bottom", "top"});
  ModelSpec model;
  model.arch = "dlrm";
  const std::vector<std::int64_t> rows = read_tables(settings);
  std::vector<std::int64_t> bottom = read_list(settings, "bottom");
  const std::int64_t dim = settings.count("dim", bottom.back());
  if (bottom.back() != dim)
    throw settings.at("bottom").error(text("ends with ", bottom.back(), " values, which cannot be multiplied with rows of ", dim),
                                      text(dim, " as the last width"));
  const std::int64_t dense = settings.count("dense", 13);
  bottom.insert(bottom.begin(), dense);
  const std::int64_t features = static_cast<std::int64_t>(rows.size()) + 1;
  std::vector<std::int64_t> top = read_list(settings, "top");
  top.insert(top.begin(), features * (features - 1) / 2 + dim);
  model.dims = {{"hidden", static_cast<double>(dim)},
                {"dense", static_cast<double>(dense)},
                {"tables", static_cast<double>(rows.size())},
                {"lookups", static_cast<double>(settings.count("lookups", 1))}};
  fill_dims(model.dims);

  BlockSpec tables = tables_block(rows, dim, model.dim("lookups"));
  add_tables(tables, "emb_l", rows, dim);
  BlockSpec dots = interaction(features, dim, 0, false, top.front());
  dots.inputs.front().shape.front() = static_cast<std::int64_t>(rows.size());  // the first feature is what the bottom network makes
  dots.inputs.push_back({"bottom", {dim}});
  model.repeats = {{mlp("bot_l", "bottom", bottom, true, false), 1},
                   {std::move(tables), 1},
                   {std::move(dots), 1},
                   {mlp("top_l", "top", top, false, true), 1}};
  if (top.back() != 1)
    throw settings.at("top").error(text("ends with ", top.back(), " values"), "1 as the last width: the logit of a click");
  return model;
}

ModelSpec read_deepfm(const Settings& settings) {
  settings.allow_only({"dense", "dim", "tables", "lookups", "hidden"});
  ModelSpec model;
  model.arch = "deepfm";
  const std::vector<std::int64_t> rows = read_tables(settings);
  const std::int64_t dim = settings.count("dim");
  const std::int64_t dense = settings.count_or_zero("dense");
  const std::int64_t fields = static_cast<std::int64_t>(rows.size());
  std::vector<std::int64_t> widths = read_list(settings, "hidden");
  widths.insert(widths.begin(), fields * dim + dense);
  widths.push_back(1);
  model.dims = {{"hidden", static_cast<double>(dim)},
                {"dense", static_cast<double>(dense)},
                {"tables", static_cast<double>(fields)},
                {"lookups", static_cast<double>(settings.count("lookups", 1))}};
  fill_dims(model.dims);

  // A row is a weight, its term of first order, and its vector.
  BlockSpec tables = tables_block(rows, dim + 1, model.dim("lookups"));
  add_tables(tables, "first_order", rows, 1);
  add_tables(tables, "embedding", rows, dim);
  BlockSpec machine = interaction(fields, dim, dense, true, widths.front());
  machine.inputs = tables.outputs;
  machine.outputs.push_back({"machine", {1}});  // what the logit has of it
  if (dense > 0) add_linear(machine.parameters, "first_order_dense", 1, dense, -1, false);
  BlockSpec deep = mlp("deep", "deep", widths, false, true);
  deep.inputs.push_back(machine.outputs.back());
  model.repeats = {{std::move(tables), 1}, {std::move(machine), 1}, {std::move(deep), 1}};
  return model;
}

}  // namespace tessera::model
