// A server's state as requests to its backup: workers and tables, then rows, keys that wait to be admitted, and the sums of steps that are
// not over.
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

constexpr std::size_t kWaitingBytes = comm::kMostMessageBytes / 2;  // that go into one message

nlohmann::json lifecycle_json(const Table& table) {
  const LifecycleCounts counts = table.lifecycle_counts();
  return {table.period(), counts.admitted, counts.held_back, counts.evicted};
}

}  // namespace

void Shards::copy(std::uint64_t process, const Next& next, const Send& send, Rows which) const {
  const auto put = [&](Ask ask, std::uint32_t table, std::size_t count, const auto& write, std::uint64_t place = 0) {
    MessageWriter out(next());
    out.add<AskHeader>(1).front() = {.ask = ask, .table = table, .count = count, .client = process, .number = place};
    write(out);
    send(out.written());
  };
  nlohmann::json tables = nlohmann::json::array();
  for (const Shard& shard : shards_)
    tables.push_back({{"spec", to_json(shard.spec)},
                      {"learning_rate", shard.table.spec().optimizer.learning_rate},
                      {"push_count", shard.table.push_count()},
                      {"counted", {shard.pulled, shard.pushed, shard.refused}},
                      {"lifecycle", lifecycle_json(shard.table)}});
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
    if (which == Rows::all)
      shard.table.for_each([&](Key key, std::span<const std::byte> stored) {
        keys.push_back(key);
        rows.insert(rows.end(), stored.begin(), stored.end());
        if (keys.size() == most) put_rows();
      });
    if (!keys.empty()) put_rows();
    const std::span<const std::byte> waiting = which == Rows::all ? shard.table.waiting() : std::span<const std::byte>();
    for (std::size_t begin = 0; begin < waiting.size(); begin += kWaitingBytes) {
      const std::span<const std::byte> some = waiting.subspan(begin, std::min(kWaitingBytes, waiting.size() - begin));
      put(
          Ask::copy_waiting, number, some.size(), [&](MessageWriter& out) { out.add(some); }, begin);
    }
    const std::size_t dimension = row_floats(shard.table);
    const std::size_t most_sums = items_of_a_message(dimension * sizeof(float) + sizeof(Impressions));
    for (const auto& [at, pushed] : shard.sums.pushed())
      for (std::size_t begin = 0; begin < pushed.keys.size(); begin += most_sums) {
        const std::size_t count = std::min(most_sums, pushed.keys.size() - begin);
        put(Ask::copy_sums, number, count, [&](MessageWriter& out) {
          out.add<SumsHeader>(1).front() = {.step = at.first, .worker = at.second};
          out.add(std::span<const Key>(pushed.keys).subspan(begin, count));
          out.add(std::span<const float>(pushed.gradients).subspan(begin * dimension, count * dimension));
          if (!pushed.impressions.empty()) out.add(std::span<const Impressions>(pushed.impressions).subspan(begin, count));
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
        const nlohmann::json& life = table.at("lifecycle");
        shard.table.set_lifecycle(life.at(0), {.admitted = life.at(1), .held_back = life.at(2), .evicted = life.at(3)});
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
  if (header.ask == Ask::copy_waiting) {
    shard.table.add_waiting(header.number, in.take<std::byte>(header.count));
    return;
  }
  const SumsHeader sums = in.take<SumsHeader>(1).front();
  const std::span<const Key> keys = in.take<Key>(header.count);
  const std::span<const float> gradients = in.take<float>(keys.size() * row_floats(shard.table));
  shard.sums.add(sums.step, static_cast<int>(sums.worker), keys, gradients,
                 in.take<Impressions>(shard.table.spec().lifecycle ? keys.size() : 0));
}

}  // namespace tessera::ps
