// Recommendation models: DLRM (Naumov et al. 2019) and DeepFM (Guo et al. 2017). Nearly all parameters are tables of which a step
// touches few rows; these are marked sparse.
#include "model/families.hpp"

namespace tessera::model {
namespace {

std::vector<std::int64_t> read_list(const Settings& settings, const std::string& key) {
  const ConfigNode list = settings.at(key);
  std::vector<std::int64_t> values;
  for (const ConfigNode& item : list.items()) values.push_back(bounded(item, 1));
  if (values.empty()) throw list.error("is empty", "at least one number");
  return values;
}

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
    add_linear(block.parameters, text(kind_of_name, ".", 2 * i), widths[i + 1], widths[i], -1, true);
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
  const std::vector<std::int64_t> rows = read_list(settings, "tables");
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
  dots.inputs.front().shape.front() = static_cast<std::int64_t>(rows.size());  // the last feature is what the bottom network makes
  dots.inputs.push_back({"bottom", {dim}});
  model.repeats = {{mlp("bot_l", "bottom", bottom, true, false), 1},
                   {std::move(tables), 1},
                   {std::move(dots), 1},
                   {mlp("top_l", "top", top, false, true), 1}};
  return model;
}

ModelSpec read_deepfm(const Settings& settings) {
  settings.allow_only({"dense", "dim", "tables", "lookups", "hidden"});
  ModelSpec model;
  model.arch = "deepfm";
  const std::vector<std::int64_t> rows = read_list(settings, "tables");
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

  // A weight for each row beside its vector: the terms of first order.
  BlockSpec tables = tables_block(rows, dim + 1, model.dim("lookups"));
  add_tables(tables, "first_order", rows, 1);
  add_tables(tables, "embedding", rows, dim);
  BlockSpec machine = interaction(fields, dim, dense, true, widths.front());
  machine.inputs = tables.outputs;  // vectors and weights
  if (dense > 0) add_linear(machine.parameters, "first_order_dense", 1, dense, -1, false);
  model.repeats = {{std::move(tables), 1}, {std::move(machine), 1}, {mlp("deep", "deep", widths, false, true), 1}};
  return model;
}

}  // namespace tessera::model
