#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "base/error.hpp"
#include "ps/batch.hpp"
#include "ps/row_values.hpp"
#include "ps/saves.hpp"
#include "ps/serving_format.hpp"
#include "ps/serving_table.hpp"
#include "ps/table_file.hpp"

namespace tessera::ps {
namespace {

// Keys of a line, on average: fuller lines send more keys to the next one.
constexpr double kFilled = 2.8;

}  // namespace

struct ServingWriter::State {
  State(FileSystem& system, std::filesystem::path to, std::string table, int values, RowType stored)
      : files(system),
        path(std::move(to)),
        temporary(path.string() + ".tmp"),
        name(std::move(table)),
        dimension(values),
        type(stored),
        row(static_cast<std::size_t>(values)),
        out(files.create(temporary)) {}

  void write(std::span<const std::byte> bytes) {
    out->append(bytes);
    written += bytes.size();
  }
  // Whole chunks, or at the end what is left.
  void write_rows(bool all) {
    std::size_t done = 0;
    for (; rows.size() - done >= kServingChunk || (all && done < rows.size());) {
      const std::span<const std::byte> chunk = std::span(rows).subspan(done, std::min(kServingChunk, rows.size() - done));
      checksum = hash64(chunk, checksum);
      write(chunk);
      done += chunk.size();
    }
    rows.erase(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(done));
  }
  std::vector<ServingLine> index() const {
    ServingLine empty;
    empty.slots.fill({0, ~std::uint64_t{0}});
    std::vector<ServingLine> lines(static_cast<std::size_t>(static_cast<double>(keys.size()) / kFilled) + 1, empty);
    for (std::size_t place = 0; place < keys.size(); ++place) add_to(lines, keys[place], place);
    return lines;
  }
  void add_to(std::vector<ServingLine>& lines, Key key, std::size_t place) const {
    for (std::uint64_t line = serving_line_of(key, lines.size());; line = line + 1 == lines.size() ? 0 : line + 1)
      for (ServingSlot& slot : lines[line].slots) {
        if (slot.row == ~std::uint64_t{0}) {
          slot = {key, place};
          return;
        }
        if (slot.key == key)
          throw Error(ErrorCode::corrupt, text("table ", name, " has two rows of key ", key), {.file = path.string(), .block = {}}, "",
                      "rows that one run's servers have saved have each key once: save them again");
      }
  }

  FileSystem& files;
  std::filesystem::path path, temporary;
  std::string name;
  int dimension;
  RowType type;
  std::vector<float> row;
  std::unique_ptr<WritableFile> out;
  std::vector<Key> keys;
  std::vector<std::byte> rows;  // that are not written yet
  std::uint64_t written = 0, checksum = 0;
  bool over = false;
};

ServingWriter::ServingWriter(FileSystem& files, std::filesystem::path path, std::string name, int dimension, RowType type) {
  check({.name = name, .dimension = dimension, .type = type});
  state_ = std::make_unique<State>(files, std::move(path), std::move(name), dimension, type);
}

ServingWriter::~ServingWriter() {
  if (state_->over) return;
  try {
    state_->files.remove_all(state_->temporary);
  } catch (const std::exception&) {
    // It is never read, and the next one of this name is written over it.
  }
}

void ServingWriter::add(Key key, RowType from, std::span<const std::byte> stored) {
  State& state = *state_;
  const std::size_t bytes = row_bytes(state.type, state.dimension), at = state.rows.size();
  state.keys.push_back(key);
  state.rows.resize(at + bytes);
  std::byte* const to = state.rows.data() + at;
  if (from == state.type) {
    std::memcpy(to, stored.data(), bytes);
  } else {
    load_row(from, stored.data(), state.row);
    store_nearest(state.type, state.row, to);
  }
  if (state.rows.size() >= 4 * kServingChunk) state.write_rows(false);
}

std::uint64_t ServingWriter::finish() {
  State& state = *state_;
  state.write_rows(true);
  ServingEnd end = {};
  end.rows = state.keys.size();
  end.rows_checksum = state.checksum;
  state.write(std::vector<std::byte>((kServingLine - state.written % kServingLine) % kServingLine));
  end.index_at = state.written;
  {
    const std::vector<ServingLine> lines = state.index();
    end.lines = lines.size();
    end.index_checksum = serving_checksum(std::as_bytes(std::span(lines)));
    state.write(std::as_bytes(std::span(lines)));
  }
  const std::span<const std::byte> name = std::as_bytes(std::span(state.name));
  end.name_at = state.written;
  end.name_bytes = static_cast<std::uint32_t>(name.size());
  end.dimension = static_cast<std::uint32_t>(state.dimension);
  end.type = static_cast<std::uint32_t>(state.type);
  end.version = kServingVersion;
  end.magic = kServingMagic;
  end.checksum = serving_checksum(end, name);
  state.write(name);
  state.write(std::as_bytes(std::span(&end, 1)));
  state.out->sync();
  state.out->close();
  state.files.rename(state.temporary, state.path);
  state.files.sync_directory(std::filesystem::absolute(state.path).parent_path());
  state.over = true;
  return end.rows;
}

namespace {
constexpr Bytes kMostMemory{std::int64_t{1} << 30};  // of a table that stands in several files
}

std::uint64_t write_serving_table(FileSystem& files, const std::filesystem::path& folder, const std::string& name,
                                  std::optional<RowType> type, const std::filesystem::path& path) {
  const SavedFolder saved = read_saved_folder(folder);
  const auto table = std::ranges::find(saved.tables, name, &SavedTable::name);
  if (table == saved.tables.end() || table->servers.empty())
    throw Error(ErrorCode::not_found, text("there is no table ", name, " in ", folder.string()), {.file = folder.string(), .block = {}},
                "a folder that tables were saved to");
  std::optional<ServingWriter> writer;
  const std::size_t servers = table->servers.size();
  for (std::size_t server = 0; server < servers; ++server) {
    const SavedTable::Chain& chain = table->servers[server];
    std::vector<std::filesystem::path> parts;
    for (const std::string& file : chain.files) parts.push_back(folder / file);
    const TableSpec spec = table_file_head(parts.at(0)).spec;
    if (!writer) writer.emplace(files, path, name, spec.dimension, type.value_or(spec.type));
    const auto add = [&](Key key, std::span<const std::byte> stored) {
      if (server_of(key, servers) == server) writer->add(key, spec.type, stored);
    };
    if (parts.size() > 1) {
      Table whole(spec, TableStorage{.folder = path.parent_path(), .memory_limit = kMostMemory});
      load_table(whole, parts);
      whole.for_each(add);
      continue;
    }
    const TableFile file = read_table_file(parts[0], add);
    if (file.rows != SnapshotRows::all)
      throw Error(ErrorCode::invalid_config, text("the rows of ", parts[0].string(), " follow another file"),
                  {.file = parts[0].string(), .block = {}}, "a base, and its deltas in the order in which they were saved");
  }
  return writer->finish();
}

}  // namespace tessera::ps
