// A server's state as requests to its backup: workers and tables, then rows, then the sums of steps that are not over.
#include <cstring>

#include "ps/parsed.hpp"
#include "ps/shards.hpp"

namespace tessera::ps {
namespace {

// Of keys with so many bytes each that go into one message.
std::size_t items_of_a_message(std::size_t bytes) {
  return (comm::kMostMessageBytes - sizeof(AskHeader) - sizeof(SumsHeader)) / (sizeof(Key) + bytes);
}

std::size_t row_floats(const Table& table) { return static_cast<std::size_t>(table.spec().dimension); }

}  // namespace

void Shards::copy(std::uint64_t process, const Next& next, const Send& send) const {
  const auto put = [&](Ask ask, std::uint32_t table, std::size_t count, const auto& write) {
    MessageWriter out(next());
    out.add<AskHeader>(1).front() = {.ask = ask, .table = table, .count = count, .client = process, .number = 0};
    write(out);
    send(out.written());
  };
  nlohmann::json tables = nlohmann::json::array();
  for (const Shard& shard : shards_)
    tables.push_back({{"spec", to_json(shard.spec)},
                      {"learning_rate", shard.table.spec().optimizer.learning_rate},
                      {"push_count", shard.table.push_count()},
                      {"counted", {shard.pulled, shard.pushed, shard.refused}}});
  const std::string words = nlohmann::json{{"workers", workers_.json()}, {"tables", std::move(tables)}}.dump();
  if (words.size() > comm::kMostMessageBytes / 2)
    throw Error(ErrorCode::resource_exhausted, text("more clients or tables than a backup can be told of: ", words.size(), " bytes"));
  put(Ask::copy_begin, 0, words.size(), [&](MessageWriter& out) { out.add(std::span<const char>(words)); });

  for (std::uint32_t number = 0; number < shards_.size(); ++number) {
    const Shard& shard = shards_[number];
    const std::size_t most = items_of_a_message(shard.table.stored_row_bytes());
    std::vector<Key> keys;
    std::vector<std::byte> rows;
    const auto put_rows = [&] {
      put(Ask::copy_rows, number, keys.size(), [&](MessageWriter& out) {
        out.add(std::span<const Key>(keys));
        out.add(std::span<const std::byte>(rows));
      });
      keys.clear();
      rows.clear();
    };
    shard.table.for_each([&](Key key, std::span<const std::byte> stored) {
      keys.push_back(key);
      rows.insert(rows.end(), stored.begin(), stored.end());
      if (keys.size() == most) put_rows();
    });
    if (!keys.empty()) put_rows();
    const std::size_t dimension = row_floats(shard.table), most_sums = items_of_a_message(dimension * sizeof(float));
    for (const auto& [at, pushed] : shard.sums.pushed())
      for (std::size_t begin = 0; begin < pushed.keys.size(); begin += most_sums) {
        const std::size_t count = std::min(most_sums, pushed.keys.size() - begin);
        put(Ask::copy_sums, number, count, [&](MessageWriter& out) {
          out.add<SumsHeader>(1).front() = {.step = at.first, .worker = at.second};
          out.add(std::span<const Key>(pushed.keys).subspan(begin, count));
          out.add(std::span<const float>(pushed.gradients).subspan(begin * dimension, count * dimension));
        });
      }
  }
  put(Ask::copy_end, 0, 0, [](MessageWriter&) {});
}

void Shards::take_copy(const AskHeader& header, MessageReader& in) {
  if (header.ask == Ask::copy_begin) {
    const std::span<const char> words = in.take<char>(header.count);
    shards_.clear();
    incomplete_ = true;
    parsed({words.begin(), words.end()}, "what a server says of its state", [this](const nlohmann::json& told) {
      workers_ = Workers::from_json(told.at("workers"));
      for (const nlohmann::json& table : told.at("tables")) {
        Shard& shard = shards_.emplace_back(spec_from_json(table.at("spec")), storage_);
        shard.table.set_learning_rate(table.at("learning_rate"));
        shard.table.set_push_count(table.at("push_count"));
        shard.pulled = table.at("counted").at(0);
        shard.pushed = table.at("counted").at(1);
        shard.refused = table.at("counted").at(2);
      }
      return true;
    });
    return;
  }
  if (header.ask == Ask::copy_end) {
    incomplete_ = false;
    return;
  }
  Shard& shard = shard_of(header);
  if (header.ask == Ask::copy_rows) {
    const std::span<const Key> keys = in.take<Key>(header.count);
    shard.table.restore(keys, in.take<std::byte>(keys.size() * shard.table.stored_row_bytes()));
    return;
  }
  const SumsHeader sums = in.take<SumsHeader>(1).front();
  const std::span<const Key> keys = in.take<Key>(header.count);
  shard.sums.add(sums.step, static_cast<int>(sums.worker), keys, in.take<float>(keys.size() * row_floats(shard.table)));
}

}  // namespace tessera::ps
