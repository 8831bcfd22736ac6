#include "model/click_section.hpp"

#include "base/problems.hpp"
#include "model/forms.hpp"
#include "model/yaml_path.hpp"

namespace tessera::model {
namespace {

constexpr const char* kFormats = "format: criteo, libsvm, libffm, multislot, csv or parquet";
constexpr std::int64_t kMostTimes = 1 << 30;

ClickFormat read_format(const ConfigNode& node) {
  const std::string name = node.as_choice({"criteo", "libsvm", "libffm", "multislot", "csv", "parquet"});
  return name == "criteo"      ? ClickFormat::criteo
         : name == "libsvm"    ? ClickFormat::libsvm
         : name == "libffm"    ? ClickFormat::libffm
         : name == "multislot" ? ClickFormat::multislot
         : name == "csv"       ? ClickFormat::csv
                               : ClickFormat::parquet;
}

std::string column_name(const ConfigNode& node) {
  const std::string name = node.as_string();
  if (name.empty()) throw node.error("the name is empty", "the name of a column");
  return name;
}

std::vector<std::string> column_names(const ConfigNode& node) {
  std::vector<std::string> names;
  for (const ConfigNode& item : node.items()) names.push_back(column_name(item));
  return names;
}

char one_character(const ConfigNode& node) {
  const std::string word = node.as_string();
  if (word.size() != 1 || word == "\"" || word == "\n" || word == "\r")
    throw node.error(text("found '", word, "'"), "one character of ASCII, such as ',' or \"\\t\"");
  return word.front();
}

CategoryColumn::Ids read_ids(const ConfigNode& node) {
  const std::string name = node.as_choice({"hash", "number", "vocabulary"});
  return name == "hash" ? CategoryColumn::Ids::hash : name == "number" ? CategoryColumn::Ids::number : CategoryColumn::Ids::vocabulary;
}

// `usual`: what ids are where nothing is said.
CategoryColumn read_category(const ConfigNode& node, CategoryColumn::Ids usual) {
  CategoryColumn column;
  column.ids = usual;
  if (node.is_scalar()) {
    column.name = column_name(node);
    return column;
  }
  Section section(node, {"name", "ids", "file", "least"});
  section.need("name", column.name, column_name);
  section.read("ids", column.ids, read_ids);
  section.read("file", column.file, path_of);
  section.read("least", column.least, [](const ConfigNode& times) { return times.as_int_between(1, kMostTimes); });
  section.finish();
  for (const char* key : {"file", "least"})
    if (const auto said = node.find(key); said && column.ids != CategoryColumn::Ids::vocabulary)
      throw said->error(text(key, " is said of a vocabulary"), "ids: vocabulary beside it");
  if (node.has("file") && node.has("least"))
    throw node.at("least").error("least is said of a vocabulary that is made of the log", "no file, or no least");
  return column;
}

std::vector<CategoryColumn> read_categories(const ConfigNode& node, CategoryColumn::Ids usual) {
  std::vector<CategoryColumn> columns;
  Problems problems;
  for (const ConfigNode& item : node.items()) problems.attempt([&] { columns.push_back(read_category(item, usual)); });
  problems.raise();
  return columns;
}

ClickColumns read_columns(const ConfigNode& node, CategoryColumn::Ids usual) {
  ClickColumns columns;
  columns.where = node.where();
  Section section(node, {"label", "dense", "categories", "history", "names", "separator", "lists"});
  section.need("label", columns.label, column_name);
  section.read("dense", columns.dense, column_names);
  section.need("categories", columns.categories, [&](const ConfigNode& list) { return read_categories(list, usual); });
  section.read("history", columns.history, column_name);
  section.read("names", columns.names, column_names);
  section.read("separator", columns.separator, one_character);
  section.read("lists", columns.lists, one_character);
  section.finish();
  return columns;
}

double share(const ConfigNode& node) {
  const double value = node.as_double();
  if (!(value > 0 && value <= 1)) throw node.error(text("found ", value), "a number above 0 and at most 1");
  return value;
}

// Of the columns that a model has one for each of.
void expect(const ConfigNode& node, const char* key, std::size_t found, std::int64_t expected, const char* dim) {
  if (static_cast<std::int64_t>(found) == expected) return;
  const auto list = node.find(key);
  throw(list ? *list : node).error(text(key, " has ", found, " columns, and model.", dim, " is ", expected), text(expected, " columns"));
}

void check_columns(const ConfigNode& node, const DataSpec& data, const ModelSpec& model) {
  const ConfigNode columns = node.at("columns");
  const bool slots = *data.format == ClickFormat::multislot;
  expect(columns, "categories", data.columns.categories.size(), model.dim("tables"), "tables");
  // A slot of numbers may have several.
  if (!slots) expect(columns, "dense", data.columns.dense.size(), model.dim("dense"), "dense");
  if (slots && data.columns.names.empty()) throw columns.error("slots have no names in the file", "names: [SLOT, ...], in their order");
  if (*data.format == ClickFormat::parquet && columns.has("names"))
    throw columns.at("names").error("a Parquet file names its columns", "no names");
  for (const char* key : {"separator", "lists"})
    if (const auto said = columns.find(key); said && *data.format != ClickFormat::csv)
      throw said->error(text(key, " is said of csv"), text("no ", key));
  if (history_of(model) > 0 && data.columns.history.empty())
    throw columns.error(text(model.arch, " reads a history"), "history: the column of its keys");
  if (history_of(model) == 0 && !data.columns.history.empty())
    throw columns.at("history").error(text(model.arch, " reads no history"), "no history, or arch: din");
}

}  // namespace

void read_clicks(const ConfigNode& node, DataSpec& data) {
  Problems problems;
  problems.attempt([&] {
    if (const auto format = node.find("format")) data.format = read_format(*format);
  });
  problems.attempt([&] {
    const bool slots = data.format == ClickFormat::multislot;
    if (const auto columns = node.find("columns"))
      data.columns = read_columns(*columns, slots ? CategoryColumn::Ids::number : CategoryColumn::Ids::hash);
  });
  problems.attempt([&] {
    if (const auto negatives = node.find("negatives")) data.negatives = share(*negatives);
  });
  problems.raise();
}

void check_clicks(const ConfigNode& node, const DataSpec& data, const ModelSpec& model) {
  if (!data.sources.empty() && !data.format) throw node.error("the source is a click log, and nothing says how its lines read", kFormats);
  if (data.synthetic && data.format) throw node.at("format").error("synthetic data has no lines", "no format");
  if (!data.format) {
    if (const auto columns = node.find("columns")) throw columns->error("nothing says what file has these columns", kFormats);
    return;
  }
  if (names_columns(*data.format)) {
    if (!node.has("columns"))
      throw node.at("format").error("nothing says which columns the model reads",
                                    "columns: {label: NAME, dense: [...], categories: [...]}");
    return check_columns(node, data, model);
  }
  if (const auto columns = node.find("columns"))
    throw columns->error("lines of this format have no named columns", "format: multislot, csv or parquet, or no columns");
  if (history_of(model) > 0)
    throw node.at("format").error(text(model.arch, " reads a history, which lines of this format do not have"),
                                  "format: multislot, csv or parquet");
}

}  // namespace tessera::model
