#include "ps/saves.hpp"

#include <algorithm>
#include <set>

#include "ps/batch.hpp"
#include "ps/parsed.hpp"

namespace tessera::ps {
namespace {

using nlohmann::json;

constexpr const char *kTablesFile = "tables.json", *kRowsEnding = ".rows";

json json_of(const std::vector<SavedTable>& tables) {
  json out = json::array();
  for (const SavedTable& table : tables) {
    json servers = json::array();
    for (const SavedTable::Chain& chain : table.servers) servers.push_back({{"files", chain.files}, {"last", chain.last}});
    out.push_back({{"name", table.name}, {"servers", std::move(servers)}});
  }
  return out;
}

std::vector<SavedTable> tables_in(const json& in) {
  std::vector<SavedTable> tables;
  for (const json& told : in) {
    SavedTable& table = tables.emplace_back(SavedTable{.name = told.at("name"), .servers = {}});
    for (const json& chain : told.at("servers"))
      table.servers.push_back({.files = chain.at("files").get<std::vector<std::string>>(), .last = chain.at("last")});
  }
  return tables;
}

std::string joined(const std::vector<std::string>& names) {
  std::string all = names.size() == 1 ? "table " : "tables ";
  for (std::size_t i = 0; i < names.size(); ++i) all += (i > 0 ? ", '" : "'") + names[i] + "'";
  return all;
}

const SavedTable* find(const std::vector<SavedTable>& tables, const std::string& name) {
  const auto found = std::ranges::find(tables, name, &SavedTable::name);
  return found == tables.end() ? nullptr : &*found;
}

}  // namespace

std::string to_json(const std::vector<SavedTable>& tables) { return json_of(tables).dump(); }
std::vector<SavedTable> saved_tables_from_json(const std::string& words) {
  return parsed(words, "what a folder says of saved tables", [](const json& in) { return tables_in(in); });
}

SavedFolder read_saved_folder(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder / kTablesFile)) return {};
  return parsed(read_whole(folder / kTablesFile), "tables.json of saved tables",
                [](const json& in) { return SavedFolder{.saves = in.at("saves"), .tables = tables_in(in.at("tables"))}; });
}

void write_saved_folder(const std::filesystem::path& folder, const SavedFolder& saved) {
  write_whole(real_file_system(), folder / kTablesFile, json{{"saves", saved.saves}, {"tables", json_of(saved.tables)}}.dump());
  std::set<std::string> counted;
  for (const SavedTable& table : saved.tables)
    for (const SavedTable::Chain& chain : table.servers) counted.insert(chain.files.begin(), chain.files.end());
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (const std::string name = entry.path().filename(); name.ends_with(kRowsEnding) && !counted.contains(name))
      std::filesystem::remove(entry.path());
}

std::string to_json(const SaveOrder& order) {
  return json{{"folder", order.folder.string()},
              {"server", order.server},
              {"servers", order.servers},
              {"number", order.number},
              {"before", json_of(order.before)}}
      .dump();
}
SaveOrder save_order_from_json(const std::string& words) {
  return parsed(words, "what a client wants saved or loaded", [](const json& in) {
    return SaveOrder{.folder = in.at("folder").get<std::string>(),
                     .server = in.at("server"),
                     .servers = in.at("servers"),
                     .number = in.at("number"),
                     .before = tables_in(in.at("before"))};
  });
}

void Saves::begin(const SaveOrder& order, const std::vector<Table*>& tables) {
  abandon();
  failed_ = nullptr;
  try {
    begin_all(order, tables);
  } catch (...) {
    abandon();
    throw;
  }
  begun_ = true;
}

void Saves::begin_all(const SaveOrder& order, const std::vector<Table*>& tables) {
  files_.create_directories(order.folder);
  // A save ends the one before it of its table: all of them begin at this moment, and so must not move.
  saves_.reserve(tables.size());
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const std::string& name = tables[i]->spec().name;
    SavedTable::Chain chain;
    if (const SavedTable* const before = find(order.before, name); before && before->servers.size() == order.servers)
      chain = before->servers[order.server];
    // A table's name may be none for a file.
    chain.files.push_back(text("table-", i, ".", order.server, "-of-", order.servers, ".", order.number, kRowsEnding));
    TableSave save(*tables[i], files_, order.folder / chain.files.back(), chain.last);
    if (save.file().rows == SnapshotRows::all && chain.files.size() > 1) chain.files.erase(chain.files.begin(), chain.files.end() - 1);
    saves_.push_back({{.name = name, .servers = {std::move(chain)}}, std::move(save)});
  }
}

bool Saves::go_on() {
  if (!going_on()) return false;
  try {
    One& one = saves_[at_];
    if (one.save.save_some()) return true;
    one.chain.servers.front().last = one.save.file().id;
    ++at_;
  } catch (...) {
    failed_ = std::current_exception();
    saves_.clear();
    at_ = 0;
  }
  return true;
}

std::optional<std::vector<SavedTable>> Saves::written() {
  if (failed_) std::rethrow_exception(failed_);
  if (!begun_) throw Error(ErrorCode::io, "this server has begun no save: it has taken the place of one that did, or has begun anew");
  if (at_ < saves_.size()) return {};
  std::vector<SavedTable> tables;
  for (const One& one : saves_) tables.push_back(one.chain);
  return tables;
}

std::vector<Table*> tables_to_load(const SaveOrder& order, std::vector<Table*> tables, const std::string& place) {
  std::vector<std::string> held, saved;
  for (const SavedTable& table : order.before) saved.push_back(table.name);
  for (const Table* const table : tables)
    if (table->size() > 0) held.push_back(table->spec().name);
  const auto is_saved = [&](const std::string& name) { return std::ranges::find(saved, name) != saved.end(); };
  if (!std::ranges::all_of(held, is_saved))
    throw Error(ErrorCode::invalid_config,
                text("rows of ", joined(saved), " are to be loaded in place of those that the server at ", place, " holds, which are of ",
                     joined(held)),
                {.file = order.folder.string(), .block = {}}, "a server without rows of another run",
                "give each run servers of its own, or start these anew (with another --log, where they have one)");
  std::erase_if(tables, [&](const Table* table) { return !is_saved(table->spec().name); });
  return tables;
}

void load_tables(const SaveOrder& order, const std::vector<Table*>& tables) {
  for (Table* const table : tables) {
    const std::string& name = table->spec().name;
    const SavedTable* const saved = find(order.before, name);
    if (!saved)
      throw Error(ErrorCode::not_found, text("there is no table ", name, " in ", order.folder.string()), {},
                  "a folder that tables were saved to");
    const bool same = saved->servers.size() == order.servers;
    for (std::size_t server = 0; server < saved->servers.size(); ++server) {
      if (same && server != order.server) continue;
      std::vector<std::filesystem::path> files;
      for (const std::string& file : saved->servers[server].files) files.push_back(order.folder / file);
      // A server may have had rows of others, which it has not given away or was to be given.
      load_table(*table, files, [&, of = saved->servers.size()](Key key) {
        return server_of(key, of) == server && server_of(key, order.servers) == order.server;
      });
    }
  }
}

}  // namespace tessera::ps
