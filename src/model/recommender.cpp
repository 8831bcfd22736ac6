// Recommendation models: DLRM (Naumov et al. 2019), DeepFM (Guo et al. 2017), Wide & Deep (Cheng et al. 2016), DCN-v2 (Wang et al. 2021)
// and DIN (Zhou et al. 2018). Nearly all parameters are tables of which a step touches few rows; these are marked sparse.
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

std::map<std::string, double> clicks_dims(std::int64_t dim, std::int64_t dense, const std::vector<std::int64_t>& rows,
                                          const Settings& settings) {
  std::map<std::string, double> dims = {{"hidden", static_cast<double>(dim)},
                                        {"dense", static_cast<double>(dense)},
                                        {"tables", static_cast<double>(rows.size())},
                                        {"lookups", static_cast<double>(settings.count("lookups", 1))}};
  fill_dims(dims);
  return dims;
}

// x0 * (W x + b) + x, where x0 are the features and x what the layer before has made, of the first one x0. With a rank, W is U V.
BlockSpec cross_layer(std::int64_t width, std::int64_t rank) {
  BlockSpec block{"cross", "cross.{}", {}, {}, {{"features", {width}}}, {{"crossed", {width}}}};
  block.dims = {{"width", static_cast<double>(width)}, {"rank", static_cast<double>(rank)}};
  if (rank > 0) add_linear(block.parameters, "cross.{}.v", rank, width, -1, false, glorot(width, rank));
  const std::int64_t in = rank > 0 ? rank : width;
  add_linear(block.parameters, rank > 0 ? "cross.{}.u" : "cross.{}", width, in, -1, true, glorot(in, width));
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
  model.dims = clicks_dims(dim, dense, rows, settings);

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

namespace {

// DeepFM, and Wide & Deep, which is the same without the products of pairs.
ModelSpec read_first_order(const Settings& settings, const std::string& arch) {
  settings.allow_only({"dense", "dim", "tables", "lookups", "hidden"});
  ModelSpec model;
  model.arch = arch;
  const std::vector<std::int64_t> rows = read_tables(settings);
  const std::int64_t dim = settings.count("dim");
  const std::int64_t dense = settings.count_or_zero("dense");
  const std::int64_t fields = static_cast<std::int64_t>(rows.size());
  std::vector<std::int64_t> widths = read_list(settings, "hidden");
  widths.insert(widths.begin(), fields * dim + dense);
  widths.push_back(1);
  model.dims = clicks_dims(dim, dense, rows, settings);

  // A row is a weight, its term of first order, and its vector.
  BlockSpec tables = tables_block(rows, dim + 1, model.dim("lookups"));
  add_tables(tables, "first_order", rows, 1);
  add_tables(tables, "embedding", rows, dim);
  BlockSpec machine = interaction(fields, dim, dense, true, widths.front());
  if (arch == "wide_deep") machine.dims["wide"] = 1;
  machine.inputs = tables.outputs;
  machine.outputs.push_back({"machine", {1}});  // what the logit has of it
  if (dense > 0) add_linear(machine.parameters, "first_order_dense", 1, dense, -1, false);
  BlockSpec deep = mlp("deep", "deep", widths, false, true);
  deep.inputs.push_back(machine.outputs.back());
  model.repeats = {{std::move(tables), 1}, {std::move(machine), 1}, {std::move(deep), 1}};
  return model;
}

}  // namespace

ModelSpec read_deepfm(const Settings& settings) { return read_first_order(settings, "deepfm"); }
ModelSpec read_wide_deep(const Settings& settings) { return read_first_order(settings, "wide_deep"); }

ModelSpec read_dcn_v2(const Settings& settings) {
  settings.allow_only({"dense", "dim", "tables", "lookups", "cross", "rank", "hidden", "structure"});
  ModelSpec model;
  model.arch = "dcn_v2";
  const std::vector<std::int64_t> rows = read_tables(settings);
  const std::int64_t dim = settings.count("dim");
  const std::int64_t dense = settings.count_or_zero("dense");
  const std::int64_t width = static_cast<std::int64_t>(rows.size()) * dim + dense;
  constexpr std::int64_t kUsualLayers = 3;
  const std::int64_t layers = settings.count("cross", kUsualLayers);
  const std::int64_t rank = settings.count_or_zero("rank");
  if (rank >= width)
    throw settings.at("rank").error(text("found ", rank, ", and the maps of cross layers are ", width, " wide"),
                                    text("less than ", width, ", or 0 for whole maps"));
  const bool parallel = settings.choice("structure", {"stacked", "parallel"}, "stacked") == "parallel";
  std::vector<std::int64_t> widths = read_list(settings, "hidden");
  widths.insert(widths.begin(), width);
  model.dims = clicks_dims(dim, dense, rows, settings);

  BlockSpec tables = tables_block(rows, dim, model.dim("lookups"));
  add_tables(tables, "embedding", rows, dim);
  BlockSpec features{"features", "features", {}, {}, tables.outputs, {{"features", {width}}}};
  features.dims = {{"width", static_cast<double>(width)}, {"dense", static_cast<double>(dense)}};
  BlockSpec first = cross_layer(width, rank);
  BlockSpec cross = first;
  cross.inputs.push_back(first.outputs.front());
  model.repeats = {{std::move(tables), 1}, {std::move(features), 1}, {first, 1}};
  if (layers > 1) model.repeats.push_back({cross, static_cast<int>(layers - 1), 1});
  if (parallel) {
    BlockSpec deep = mlp("deep", "deep", widths, false, false);
    BlockSpec logit = mlp("logit", "logit", {width + widths.back(), 1}, false, true);
    logit.inputs = {first.outputs.front(), deep.outputs.front()};
    logit.dims["joined"] = 1;
    model.repeats.push_back({std::move(deep), 1});
    model.repeats.push_back({std::move(logit), 1});
  } else {
    widths.push_back(1);
    BlockSpec deep = mlp("deep", "deep", widths, false, true);
    deep.inputs = first.outputs;
    model.repeats.push_back({std::move(deep), 1});
  }
  return model;
}

ModelSpec read_din(const Settings& settings) {
  settings.allow_only({"dense", "dim", "tables", "lookups", "hidden", "history", "target", "attention", "softmax"});
  ModelSpec model;
  model.arch = "din";
  const std::vector<std::int64_t> rows = read_tables(settings);
  const std::int64_t count = static_cast<std::int64_t>(rows.size());
  const std::int64_t dim = settings.count("dim");
  const std::int64_t dense = settings.count_or_zero("dense");
  const std::int64_t history = settings.count("history");
  const std::int64_t target = settings.count_or_zero("target");
  if (target >= count)
    throw settings.at("target").error(text("found ", target, ", and the model has ", count, " tables"), text("0 to ", count - 1));
  std::vector<std::int64_t> widths = read_list(settings, "hidden");
  widths.insert(widths.begin(), (count + 1) * dim + dense);
  widths.push_back(1);
  model.dims = clicks_dims(dim, dense, rows, settings);
  model.dims["history"] = static_cast<double>(history);
  model.dims["target"] = static_cast<double>(target);

  BlockSpec tables = tables_block(rows, dim, model.dim("lookups"));
  add_tables(tables, "embedding", rows, dim);
  tables.dims["history"] = static_cast<double>(history);
  tables.outputs.push_back({"history", {history, dim}});
  // The key, the target, their difference and their product make a key's weight.
  std::vector<std::int64_t> weights = settings.has("attention") ? read_list(settings, "attention") : std::vector<std::int64_t>{36};
  weights.insert(weights.begin(), 4 * dim);
  weights.push_back(1);
  BlockSpec attention{"target_attention", "attention", {}, {}, tables.outputs, {{"features", {widths.front()}}}};
  attention.dims = {{"tables", static_cast<double>(count)},
                    {"dim", static_cast<double>(dim)},
                    {"history", static_cast<double>(history)},
                    {"target", static_cast<double>(target)},
                    {"dense", static_cast<double>(dense)},
                    {"softmax", settings.flag("softmax", false) ? 1.0 : 0.0},
                    {"maps", static_cast<double>(weights.size() - 1)}};
  for (std::size_t i = 0; i < weights.size(); ++i) attention.dims[text("width", i)] = static_cast<double>(weights[i]);
  for (std::size_t i = 0; i + 1 < weights.size(); ++i)
    add_linear(attention.parameters, text("attention.", 2 * i), weights[i + 1], weights[i], -1, true, glorot(weights[i], weights[i + 1]));
  model.repeats = {{std::move(tables), 1}, {std::move(attention), 1}, {mlp("deep", "deep", widths, false, true), 1}};
  return model;
}

}  // namespace tessera::model
