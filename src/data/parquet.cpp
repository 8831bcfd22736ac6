#include "data/parquet.hpp"

#include "base/config.hpp"
#include "base/dynamic_library.hpp"
#include "data/in_file.hpp"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

// Stays loaded until the process ends.
ParquetFunction load_module(const fs::path& file) {
  const fs::path module = fs::read_symlink("/proc/self/exe").parent_path() / "libtessera_parquet.so";
  const auto refuse = [&](const std::string& why, const std::string& hint) {
    throw Error(ErrorCode::not_found, "Parquet cannot be read here: " + why, in_file(file),
                "Arrow's libraries, from the Python wheel pyarrow", hint);
  };
  constexpr const char* kInstall = "./dev setup brings in pyarrow; or convert the file to JSONL";
  if (!fs::exists(module)) refuse("this tessera was built without it", text(kInstall, ". Then build again: ./dev build"));
  std::string why;
  const DynamicLibrary library(module, why);
  if (!library) refuse(why, kInstall);
  ParquetFunction function = nullptr;
  ensure(library.find(kParquetFunction, function), text(module.string(), " has no ", kParquetFunction));
  return function;
}

}  // namespace

void read_parquet(const fs::path& file, const std::vector<std::string>& columns, const ParquetVisitor& visit, ParquetValues values) {
  ParquetProblem problem;
  const bool any = values == ParquetValues::any;
  const char* const hint = any ? "data.columns names what the model reads" : "set data.field, or data.prompt and data.answer";
  load_module(file)(file, columns, values, visit, problem);
  switch (problem.kind) {
    case ParquetProblem::Kind::none: return;
    case ParquetProblem::Kind::unreadable:
      throw Error(ErrorCode::corrupt, "this Parquet file cannot be read: " + problem.text, in_file(file), "a whole Parquet file",
                  "fetch or write the file again");
    case ParquetProblem::Kind::no_column: {
      const auto guess = nearest(problem.column, problem.known);
      std::string names;
      for (const std::string& name : problem.known) names += (names.empty() ? "" : ", ") + name;
      throw Error(ErrorCode::invalid_config, text("this file has no column \"", problem.column, "\""), in_file(file), "one of: " + names,
                  guess ? text("did you mean \"", *guess, "\"?") : hint);
    }
    case ParquetProblem::Kind::no_text:
      throw Error(ErrorCode::invalid_config, text("the column \"", problem.column, "\" holds ", problem.text), in_file(file),
                  any ? "text, numbers, or lists of these" : "text",
                  any ? hint : "set data.field, or data.prompt and data.answer, to columns of text");
  }
}

}  // namespace tessera::data
