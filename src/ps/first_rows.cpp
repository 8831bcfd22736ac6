#include "ps/first_rows.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.hpp"
#include "ps/batch.hpp"
#include "ps/row_values.hpp"
#include "ps/saves.hpp"
#include "ps/table_file.hpp"
#include "ps/update.hpp"

namespace tessera::ps {
namespace {

// Of rows that are sent at once.
constexpr std::size_t kSentBytes = std::size_t{16} << 20;

bool rows_grow(const TableSpec& table) { return table.lifecycle && grows(*table.lifecycle); }

std::string misfit(const TableSpec& file, const TableSpec& table) {
  const nlohmann::json of_file = nlohmann::json::parse(to_json(file)), of_table = nlohmann::json::parse(to_json(table));
  for (const char* const member : {"dimension", "type"})
    if (of_file.at(member) != of_table.at(member))
      return text("the ", member, " of its rows is ", of_file.at(member).dump(), ", and ", of_table.at(member).dump(), " in table ",
                  table.name);
  if (rows_grow(file) != rows_grow(table))
    return text("its rows ", rows_grow(file) ? "grow" : "do not grow", ", and those of table ", table.name,
                rows_grow(table) ? " do" : " do not");
  return {};
}

// Of each server that has saved it, its files.
std::vector<std::vector<std::filesystem::path>> chains_of(const SavedRows& from) {
  const SavedFolder saved = read_saved_folder(from.folder);
  const auto table = std::ranges::find(saved.tables, from.table, &SavedTable::name);
  if (table == saved.tables.end() || table->servers.empty())
    throw Error(ErrorCode::not_found, text("there is no table ", from.table, " in ", from.folder.string()),
                {.file = from.folder.string(), .block = {}}, "a folder that tables were saved to");
  std::vector<std::vector<std::filesystem::path>> chains;
  for (const SavedTable::Chain& chain : table->servers) {
    std::vector<std::filesystem::path>& files = chains.emplace_back();
    for (const std::string& file : chain.files) files.push_back(from.folder / file);
  }
  return chains;
}

// What a stored row of one table is in another one that it fits.
class Conversion {
 public:
  Conversion(const TableSpec& from, const TableSpec& to)
      : to_(to),
        value_bytes_(row_bytes(to.type, to.dimension)),
        from_bytes_(Table(from).stored_row_bytes()),
        to_bytes_(Table(to).stored_row_bytes()),
        values_(static_cast<std::size_t>(to.dimension)),
        state_(state_floats(to.optimizer, to.dimension)),
        counts_(from.lifecycle && to.lifecycle) {}

  std::size_t from_bytes() const { return from_bytes_; }
  std::size_t to_bytes() const { return to_bytes_; }
  // Whether the rows keep their Statistics, and so go on in the period in which these are counted.
  bool counts() const { return counts_; }

  // `to`: zeros.
  void convert(Key key, std::span<const std::byte> from, std::span<std::byte> to) {
    std::memcpy(to.data(), from.data(), value_bytes_);
    load_row(to_.type, from.data(), values_);
    start_state_of(to_.optimizer, learning_rate_of(key), values_, state_);
    if (!state_.empty()) std::memcpy(to.data() + value_bytes_, state_.data(), state_.size() * sizeof(float));
    // What stands behind the state is the same of both, then.
    if (!counts_) return;
    const std::size_t rest = to_bytes_ - value_bytes_ - state_.size() * sizeof(float);
    std::memcpy(to.last(rest).data(), from.last(rest).data(), rest);
  }

 private:
  float learning_rate_of(Key key) const {
    const float rate = to_.optimizer.learning_rate;
    if (!to_.lifecycle || to_.lifecycle->slot_bits == 0) return rate;
    const auto& slots = to_.lifecycle->slots;
    const auto slot = std::ranges::find(slots, key >> (64 - to_.lifecycle->slot_bits), &SlotLifecycle::slot);
    return slot == slots.end() ? rate : rate * slot->learning_rate_scale;
  }

  const TableSpec to_;
  const std::size_t value_bytes_, from_bytes_, to_bytes_;  // `value_bytes_`: equal for both
  std::vector<float> values_, state_;
  const bool counts_;
};

}  // namespace

void check_first_rows(const SavedRows& from, const TableSpec& table) {
  for (const std::vector<std::filesystem::path>& files : chains_of(from))
    for (const std::filesystem::path& file : files)
      if (const std::string words = misfit(table_file_head(file).spec, table); !words.empty())
        throw Error(ErrorCode::invalid_config, text("table ", from.table, " was saved otherwise: ", words),
                    {.file = file.string(), .block = {}}, "rows of the same dimension and type");
}

std::uint64_t put_first_rows(Client& client, Client::TableId id, const SavedRows& from) {
  const TableSpec table = client.opened().at(id);
  check_first_rows(from, table);
  const std::vector<std::vector<std::filesystem::path>> chains = chains_of(from);
  std::vector<TableFile> last;
  for (const std::vector<std::filesystem::path>& files : chains)
    last.push_back(check_chain(files, [&](const TableSpec& file) { return misfit(file, table); }));
  std::uint64_t sent = 0;
  std::uint32_t period = 0;
  for (std::size_t server = 0; server < chains.size(); ++server) {
    Conversion conversion(last[server].spec, table);
    if (conversion.counts()) period = std::max(period, last[server].period);
    MovedRows moved;
    const auto send = [&] {
      client.put(id, moved);
      sent += moved.keys.size();
      moved = {};
    };
    // A server may have had rows of others, which it has not given away or was to be given.
    const auto is_its = [&](Key key) { return server_of(key, chains.size()) == server; };
    read_chain(chains[server], [&](std::span<const Key> erased, std::span<const Key> keys, std::span<const std::byte> stored) {
      // What has come before is to go.
      if (!erased.empty()) send();
      std::ranges::copy_if(erased, std::back_inserter(moved.erased), is_its);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (!is_its(keys[i])) continue;
        moved.keys.push_back(keys[i]);
        moved.rows.resize(moved.rows.size() + conversion.to_bytes());
        conversion.convert(keys[i], stored.subspan(i * conversion.from_bytes(), conversion.from_bytes()),
                           std::span(moved.rows).last(conversion.to_bytes()));
      }
      if (moved.rows.size() >= kSentBytes) send();
    });
    send();
  }
  client.put_counts(id, {.pushes = 0, .period = period});
  return sent;
}

}  // namespace tessera::ps
