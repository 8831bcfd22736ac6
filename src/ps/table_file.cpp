#include "ps/table_file.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/hex.hpp"
#include "ps/messages.hpp"
#include "ps/table_blocks.hpp"

namespace tessera::ps {
namespace {

using nlohmann::json;

constexpr std::size_t kBlockRows = 4096;

std::string id_of(std::uint64_t checksum) { return to_hex({reinterpret_cast<const char*>(&checksum), sizeof checksum}); }

std::string head_of(const TableFile& file) {
  json head{{"format", 1},
            {"table", json::parse(to_json(file.spec))},
            {"rows", file.rows == SnapshotRows::all ? "all" : "changed"},
            {"pushes", file.push_count},
            {"after", file.after}};
  if (file.spec.lifecycle) head["period"] = file.period;
  return head.dump();
}

TableFile file_from(BlockReader& blocks) {
  const BlockReader::Block block = blocks.next();
  if (block.kind != BlockKind::head) blocks.refuse("it does not say what it is");
  try {
    const json head = json::parse(reinterpret_cast<const char*>(block.content.data()),
                                  reinterpret_cast<const char*>(block.content.data()) + block.content.size());
    if (head.at("format") != 1) blocks.refuse("it has another format");
    return {.spec = spec_from_json(head.at("table").dump()),
            .rows = head.at("rows") == "all" ? SnapshotRows::all : SnapshotRows::changed,
            .push_count = head.at("pushes"),
            .period = head.value("period", std::uint32_t{0}),
            .after = head.at("after")};
  } catch (const json::exception& problem) {
    blocks.refuse(problem.what());
  }
}

// Calls with each block's keys and rows, or with the keys of erased rows and no rows; and with what waits to be admitted.
template <typename Visit, typename VisitWaiting>
TableFile read_blocks(const std::filesystem::path& path, const Visit& visit, const VisitWaiting& visit_waiting) {
  BlockReader blocks(path);
  TableFile file = file_from(blocks);
  const std::size_t row_bytes = Table(file.spec).stored_row_bytes();
  std::vector<Key> keys;
  for (BlockReader::Block block = blocks.next(); block.kind != BlockKind::end; block = blocks.next()) {
    if (block.kind == BlockKind::waiting && block.content.size() == block.count) {
      visit_waiting(block.content);
      continue;
    }
    const bool rows = block.kind == BlockKind::rows;
    if ((!rows && block.kind != BlockKind::erased) || block.content.size() != block.count * (sizeof(Key) + (rows ? row_bytes : 0)))
      blocks.refuse("a block is none that it can have");
    keys.resize(block.count);
    std::memcpy(keys.data(), block.content.data(), keys.size() * sizeof(Key));
    (rows ? file.row_count : file.erased_count) += block.count;
    visit(std::span<const Key>(keys), block.content.subspan(keys.size() * sizeof(Key)), rows);
  }
  file.id = id_of(blocks.checksum());
  return file;
}

// What of it keeps its rows from being the table's.
std::string difference(const TableSpec& file, const TableSpec& table) {
  const json of_file = json::parse(to_json(file)), of_table = json::parse(to_json(table));
  for (const char* const place : {"/name", "/dimension", "/type", "/optimizer/rule", "/optimizer/row_moment"}) {
    const json::json_pointer member(place);
    if (of_file.at(member) != of_table.at(member))
      return text(member.back(), " is ", of_file.at(member).dump(), " in the file and ", of_table.at(member).dump(), " in the table");
  }
  if (file.lifecycle.has_value() != table.lifecycle.has_value())
    return text("the ", file.lifecycle ? "file" : "table", " has a lifecycle, and the ", file.lifecycle ? "table" : "file", " has none");
  const bool file_grows = file.lifecycle && grows(*file.lifecycle), table_grows = table.lifecycle && grows(*table.lifecycle);
  if (file_grows != table_grows)
    return text("rows of the ", file_grows ? "file" : "table", " grow, and those of the ", file_grows ? "table" : "file", " do not");
  return {};
}

}  // namespace

struct TableSave::Writer {
  Writer(Table& given, FileSystem& system, std::filesystem::path to)
      : table(given), files(system), path(std::move(to)), temporary(path.string() + ".tmp"), blocks(files, temporary) {}
  ~Writer() { abandon(); }
  void abandon() {
    if (over) return;
    over = true;
    table.abandon_snapshot();
    try {
      files.remove_all(temporary);
    } catch (const std::exception&) {
      // What is left is never read, and the next save of this name writes over it.
    }
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // Called by the table, also in the midst of a push, which need not know if this fails.
  void take(Key key, std::span<const std::byte> stored) noexcept {
    if (problem) return;
    keys.push_back(key);
    rows.insert(rows.end(), stored.begin(), stored.end());
    if (keys.size() < kBlockRows) return;
    try {
      write_rows();
    } catch (...) {
      problem = std::current_exception();
    }
  }
  void write_rows() {
    if (keys.empty()) return;
    const auto bytes = std::as_bytes(std::span(keys));
    rows.insert(rows.begin(), bytes.begin(), bytes.end());
    blocks.add(BlockKind::rows, keys.size(), rows);
    file.row_count += keys.size();
    keys.clear();
    rows.clear();
  }
  void finish() {
    write_rows();
    blocks.finish();
    files.rename(temporary, path);
    files.sync_directory(path.parent_path());
    file.id = id_of(blocks.checksum());
    table.name_snapshot(file.id);
    over = true;
  }

  Table& table;
  FileSystem& files;
  std::filesystem::path path, temporary;
  BlockWriter blocks;
  TableFile file = {};
  std::vector<Key> keys;
  std::vector<std::byte> rows;
  std::exception_ptr problem;
  bool over = false;
};

TableSave::TableSave(Table& table, FileSystem& files, std::filesystem::path path, const std::string& last)
    : writer_(std::make_unique<Writer>(table, files, std::move(path))) {
  Writer& writer = *writer_;
  const bool follows = !last.empty() && table.snapshot_name() == last;
  const SnapshotBegun begun = table.begin_snapshot(follows ? SnapshotRows::changed : SnapshotRows::all,
                                                   [&writer](Key key, std::span<const std::byte> stored) { writer.take(key, stored); });
  writer.file = {.spec = table.spec(),
                 .rows = begun.rows,
                 .push_count = table.push_count(),
                 .period = table.period(),
                 .erased_count = begun.erased.size(),
                 .after = begun.rows == SnapshotRows::changed ? last : ""};
  const std::string head = head_of(writer.file);
  writer.blocks.add(BlockKind::head, 1, std::as_bytes(std::span(head)));
  if (!begun.erased.empty()) writer.blocks.add(BlockKind::erased, begun.erased.size(), std::as_bytes(std::span(begun.erased)));
  if (const std::span<const std::byte> waiting = table.waiting(); !waiting.empty())
    writer.blocks.add(BlockKind::waiting, waiting.size(), waiting);
}
TableSave::~TableSave() = default;
TableSave::TableSave(TableSave&&) noexcept = default;

bool TableSave::save_some(std::size_t rows) {
  Writer& writer = *writer_;
  if (writer.over) return false;
  try {
    const bool more = writer.table.continue_snapshot(rows);
    if (writer.problem) std::rethrow_exception(writer.problem);
    if (more) return true;
    writer.finish();
  } catch (...) {
    writer.abandon();
    throw;
  }
  return false;
}

const TableFile& TableSave::file() const { return writer_->file; }

TableFile check_table_file(const std::filesystem::path& path) {
  return read_blocks(
      path, [](std::span<const Key>, std::span<const std::byte>, bool) {}, [](std::span<const std::byte>) {});
}

TableFile table_file_head(const std::filesystem::path& path) {
  BlockReader blocks(path);
  return file_from(blocks);
}

TableFile read_table_file(const std::filesystem::path& path, const TakeRow& take) {
  const auto visit = [&](std::span<const Key> keys, std::span<const std::byte> stored, bool rows) {
    if (!rows || keys.empty()) return;
    const std::size_t row_bytes = stored.size() / keys.size();
    for (std::size_t i = 0; i < keys.size(); ++i) take(keys[i], stored.subspan(i * row_bytes, row_bytes));
  };
  return read_blocks(path, visit, [](std::span<const std::byte>) {});
}

TableFile check_chain(std::span<const std::filesystem::path> files, const Difference& differs) {
  TableFile last = {};
  for (const std::filesystem::path& path : files) {
    TableFile file = check_table_file(path);
    if (const std::string difference = differs(file.spec); !difference.empty())
      throw Error(ErrorCode::invalid_config, text("the rows of ", path.string(), " are another table's: ", difference),
                  {.file = path.string(), .block = {}});
    if (file.after != last.id)
      throw Error(ErrorCode::invalid_config,
                  text("the rows of ", path.string(), last.id.empty() ? " follow another file" : " do not follow the file before"),
                  {.file = path.string(), .block = {}}, "a base, and its deltas in the order in which they were saved");
    last = std::move(file);
  }
  return last;
}

void read_chain(std::span<const std::filesystem::path> files, const TakeRows& take, const TakeWaiting& take_waiting) {
  for (const std::filesystem::path& path : files)
    read_blocks(
        path,
        [&](std::span<const Key> keys, std::span<const std::byte> stored, bool rows) {
          if (rows)
            take({}, keys, stored);
          else
            take(keys, {}, {});
        },
        [&](std::span<const std::byte> waiting) {
          if (path == files.back() && take_waiting) take_waiting(waiting);
        });
}

void load_table(Table& table, std::span<const std::filesystem::path> files, const std::function<bool(Key)>& keeps) {
  const TableFile last = check_chain(files, [&](const TableSpec& file) { return difference(file, table.spec()); });
  const std::size_t row_bytes = table.stored_row_bytes();
  std::vector<Key> kept;
  std::vector<std::byte> kept_rows;
  const auto keep = [&](std::span<const Key> keys, std::span<const std::byte> stored) {
    kept.clear();
    kept_rows.clear();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (!keeps(keys[i])) continue;
      kept.push_back(keys[i]);
      const std::span<const std::byte> row = stored.subspan(i * row_bytes, row_bytes);
      kept_rows.insert(kept_rows.end(), row.begin(), row.end());
    }
    table.restore(kept, kept_rows);
  };
  read_chain(
      files,
      [&](std::span<const Key> erased, std::span<const Key> keys, std::span<const std::byte> stored) {
        if (!erased.empty())
          table.erase(erased);
        else if (keeps)
          keep(keys, stored);
        else
          table.restore(keys, stored);
      },
      // Whatever a server knew of the keys of others is forgotten in time.
      [&](std::span<const std::byte> waiting) { table.add_waiting(0, waiting); });
  table.set_push_count(std::max(table.push_count(), last.push_count));
  table.set_lifecycle(std::max(table.period(), last.period), table.lifecycle_counts());
}

}  // namespace tessera::ps
