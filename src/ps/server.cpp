#include "ps/server.hpp"

#include <deque>

#include "ps/client.hpp"
#include "ps/messages.hpp"

namespace tessera::ps {

struct Server::Impl {
  Impl(const std::string& place, const std::string& secret) : requests(place, secret) {}

  std::size_t answer(std::span<const std::byte> request, std::span<std::byte> reply) {
    MessageReader in(request);
    MessageWriter out(reply);
    const AskHeader header = in.take<AskHeader>(1).front();
    switch (header.ask) {
      case Ask::open: out.add<Opened>(1).front() = open(in.take<char>(header.count)); return out.written();
      case Ask::pull:
      case Ask::pull_or_zeros: pull(header, in, out); return out.written();
      case Ask::push:
      case Ask::push_tickets: out.add<PushResult>(1).front() = push(header, in); return out.written();
      case Ask::status: out.add(std::span<const char>(status())); return out.written();
    }
    throw Error(ErrorCode::corrupt, text("a client asks for ", static_cast<std::uint32_t>(header.ask), ", which this server does not know"),
                {}, "", "run the same version on both");
  }

  struct Shard {
    explicit Shard(const TableSpec& spec) : table(spec) {}
    Table table;
    std::uint64_t pulled = 0, pushed = 0, refused = 0;  // keys
  };

  Shard& shard_of(const AskHeader& header) {
    if (header.table >= shards.size())
      throw Error(ErrorCode::not_found, text("this server has no table ", header.table), {}, "",
                  "open the table at the start: the server may have begun anew");
    return shards[header.table];
  }

  Opened open(std::span<const char> json) {
    const TableSpec spec = spec_from_json({json.begin(), json.end()});
    for (std::uint32_t table = 0; table < shards.size(); ++table) {
      const TableSpec& there = shards[table].table.spec();
      if (there.name != spec.name) continue;
      const std::string has = to_json(there), asked = to_json(spec);
      if (has != asked)
        throw Error(ErrorCode::invalid_config, text("table ", spec.name, " is there already, and is another one: ", has), {}, asked,
                    "give the table another name");
      return {table};
    }
    shards.emplace_back(spec);
    return {static_cast<std::uint32_t>(shards.size() - 1)};
  }

  static std::span<const Key> keys_of(const Table& table, const AskHeader& header, MessageReader& in) {
    const std::size_t most = keys_of_a_message(table.spec().dimension);
    if (header.count > most)
      throw Error(ErrorCode::corrupt, text("a client asks for ", header.count, " keys at once"), {}, text(most, " at most"));
    return in.take<Key>(header.count);
  }

  void pull(const AskHeader& header, MessageReader& in, MessageWriter& out) {
    Shard& shard = shard_of(header);
    Table& table = shard.table;
    const std::span<const Key> keys = keys_of(table, header, in);
    const std::span<Ticket> tickets = out.add<Ticket>(keys.size());
    const std::span<float> values = out.add<float>(keys.size() * static_cast<std::size_t>(table.spec().dimension));
    table.pull(keys, values, tickets, header.ask == Ask::pull ? Absent::create : Absent::zeros);
    shard.pulled += keys.size();
  }

  PushResult push(const AskHeader& header, MessageReader& in) {
    Shard& shard = shard_of(header);
    Table& table = shard.table;
    const std::span<const Key> keys = keys_of(table, header, in);
    const std::span<const Ticket> tickets = in.take<Ticket>(header.ask == Ask::push_tickets ? keys.size() : 0);
    const PushResult result = table.push(keys, in.take<float>(keys.size() * static_cast<std::size_t>(table.spec().dimension)), tickets);
    shard.pushed += keys.size();
    shard.refused += static_cast<std::uint64_t>(result.refused);
    return result;
  }

  std::string status() const {
    std::vector<TableStatus> all;
    for (const Shard& shard : shards)
      all.push_back({.name = shard.table.spec().name,
                     .dimension = shard.table.spec().dimension,
                     .rows = shard.table.size(),
                     .memory = shard.table.memory(),
                     .keys_pulled = shard.pulled,
                     .keys_pushed = shard.pushed,
                     .gradients_refused = shard.refused});
    return to_json(all);
  }

  comm::RequestServer requests;
  std::deque<Shard> shards;
};

Server::Server(const std::string& place, const std::string& secret) : impl_(std::make_unique<Impl>(place, secret)) {}
Server::~Server() = default;
void Server::serve(const std::stop_token& stop) {
  impl_->requests.serve(
      [this](std::uint64_t, std::span<const std::byte> request, std::span<std::byte> reply) { return impl_->answer(request, reply); },
      stop);
}

}  // namespace tessera::ps
