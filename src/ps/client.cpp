#include "ps/client.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/hash.hpp"
#include "base/random.hpp"
#include "base/secret.hpp"
#include "ps/batch.hpp"
#include "ps/messages.hpp"
#include "ps/row_values.hpp"
#include "ps/saves.hpp"

namespace tessera::ps {
namespace {

// Rows would else be read or written beyond what the caller has.
void check_size(const char* what, std::size_t found, std::size_t keys, std::size_t each) {
  if (found != keys * each)
    throw Error(ErrorCode::invalid_config, text(keys, " keys, and ", found, " ", what), {}, text(each, " for each key"));
}

void copy_row(const float* from, float* to, std::size_t dimension) { std::memcpy(to, from, dimension * sizeof(float)); }

// What the next server has written.
void add_servers(std::vector<SavedTable>& all, std::vector<SavedTable> written) {
  for (SavedTable& table : written) {
    const auto known = std::ranges::find(all, table.name, &SavedTable::name);
    if (known == all.end())
      all.push_back(std::move(table));
    else
      known->servers.push_back(std::move(table.servers.front()));
  }
}

}  // namespace

struct Client::Impl {
  struct OpenTable {
    TableSpec spec;
    std::size_t dimension;
    int staleness;  // steps of other workers that a pull may miss
    bool has_lifecycle;
    std::size_t wire_bytes;             // of a row on the network
    std::vector<std::uint32_t> ids;     // at each server
    std::array<Batch, 2> batches = {};  // the last two that were pulled
    std::size_t last = 0;
    std::vector<std::size_t> moving = {};  // of each server the next batch of rows that move; 0: there is none
    Batch& next() { return batches[last = 1 - last]; }
  };

  Impl(std::unique_ptr<comm::Requester> requester, const ClientOptions& given)
      : options(given),
        requests(std::move(requester)),
        numbered(requests->servers(), 0),
        step(given.worker ? given.worker->first_step : 0) {
    std::memcpy(&number, random_bytes(sizeof number).data(), sizeof number);
  }
  // Before it asks for anything that servers have to know it for. One that only looks they need not remember.
  void join() {
    if (std::exchange(joined, true)) return;
    const std::string json = to_json(Joining{.worker = options.worker, .patience = kWaiting * options.deadline});
    ask_each([&](std::size_t server, MessageWriter& out) { add_text(server, out, Ask::join, json); },
             [](std::size_t, const MessageReader&) {});
  }

  // Sends every server what `write` lays into each message for the items [begin, end) of the server's, several messages at a time, and
  // hands each reply to `read`. `count` is how many items a server has; while `more` returns true, calling it makes some more. Where a
  // server refuses a message, the others are still answered.
  template <typename More, typename Count, typename Write, typename Read>
  void exchange(std::size_t step, const More& more, const Count& count, const Write& write, const Read& read) {
    const std::size_t servers = requests->servers();
    std::vector<std::size_t> sent(servers, 0), taken(servers, 0);
    std::optional<Error> refused;
    const auto send = [&](std::size_t server) {
      const std::size_t end = std::min(sent[server] + step, count(server));
      MessageWriter out(requests->next_request(server));
      write(server, sent[server], end, out);
      requests->send(server, out.written());
      sent[server] = end;
    };
    const auto take = [&](std::size_t server) {
      const std::size_t begin = taken[server];
      taken[server] = std::min(begin + step, count(server));
      try {
        read(server, begin, taken[server], MessageReader(requests->take_reply(server)));
      } catch (const Error& error) {
        if (error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::deadline_exceeded) throw;
        if (!refused) refused = error;
      }
    };
    for (bool growing = true, left = true; growing || left;) {
      growing = growing && more();
      left = false;
      for (std::size_t server = 0; server < servers; ++server) {
        while (requests->under_way(server) < kMost && sent[server] + (growing ? step - 1 : 0) < count(server)) send(server);
        if (requests->under_way(server) > (growing ? kMost - 1 : 0)) take(server);
        left |= taken[server] < count(server);
      }
    }
    if (refused) throw *refused;
  }
  // What is asked of every server once.
  template <typename Write, typename Read>
  void ask_each(const Write& write, const Read& read) {
    exchange(
        1, [] { return false; }, [](std::size_t) { return std::size_t{1}; },
        [&](std::size_t server, std::size_t, std::size_t, MessageWriter& out) { write(server, out); },
        [&](std::size_t server, std::size_t, std::size_t, MessageReader in) { read(server, in); });
  }

  void add_header(std::size_t server, MessageWriter& out, Ask ask, std::uint32_t table, std::size_t count, int ahead = 0) {
    const std::uint64_t told = is_numbered(ask) ? ++numbered[server] : static_cast<std::uint64_t>(step + ahead);
    out.add<AskHeader>(1).front() = {.ask = ask, .table = table, .count = count, .client = number, .number = told};
  }
  void add_text(std::size_t server, MessageWriter& out, Ask ask, const std::string& words) {
    add_header(server, out, ask, 0, words.size());
    out.add(std::span<const char>(words));
  }
  void order(Ask ask, SaveOrder order) {
    ask_each(
        [&](std::size_t server, MessageWriter& out) {
          order.server = server;
          add_text(server, out, ask, to_json(order));
        },
        [](std::size_t, const MessageReader&) {});
  }
  // How a push rounds: a run that goes on rounds as one that was not interrupted.
  Random random_of_push(std::size_t table) {
    const auto worker = static_cast<std::uint64_t>(options.worker ? options.worker->index : 0);
    const auto count = static_cast<std::uint64_t>(options.worker ? step : pushes++);
    return Random(seed_of(seed_of(table, worker), count));
  }
  void note(const Seen& seen, int allowed, int ahead) {
    const std::int64_t behind = std::max<std::int64_t>(0, step + ahead - seen.slowest);
    ensure(behind <= allowed, "a pull has seen less of other workers than its table's staleness allows");
    Staleness& all = staleness_seen;
    all.most = std::max(all.most, behind);
    all.mean += (static_cast<double>(behind) - all.mean) / static_cast<double>(++all.pulls);
  }

  static constexpr std::size_t kMost = comm::Requester::kMostUnderWay;
  // Of keys that are dealt before servers are asked for them: more than go into a message, so that there is one to send each time.
  static constexpr std::size_t kDealt = 16384;

  static constexpr double kWaiting = 0.8;  // of the deadline: then the server says whom it waits for

  ClientOptions options;
  std::unique_ptr<comm::Requester> requests;
  std::uint64_t number = 0;             // this client's, by which servers know it again
  std::vector<std::uint64_t> numbered;  // messages to each server
  bool joined = false;
  std::int64_t step = 0;     // steps that this worker has ended
  std::uint64_t pushes = 0;  // of a client that is no worker
  Staleness staleness_seen;
  std::filesystem::path saves_to;
  std::int64_t save_number = 0;
  std::vector<OpenTable> tables;
};

namespace {

std::unique_ptr<comm::Requester> requester(std::vector<std::string> places, const std::string& secret, const ClientOptions& options) {
  return std::make_unique<comm::RequestClient>(
      std::move(places), secret,
      comm::RequestClient::Options{.deadline = options.deadline, .reconnect = options.reconnect, .interrupted = options.interrupted});
}

}  // namespace

Client::Client(std::vector<std::string> places, const std::string& secret, const ClientOptions& options)
    : Client(requester(std::move(places), secret, options), options) {}
Client::Client(std::unique_ptr<comm::Requester> requests, const ClientOptions& options)
    : impl_(std::make_unique<Impl>(std::move(requests), options)) {}
Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

Client::TableId Client::open(const TableSpec& spec) {
  check(spec);
  impl_->join();
  const std::string json = to_json(spec);
  Impl::OpenTable table{.spec = spec,
                        .dimension = static_cast<std::size_t>(spec.dimension),
                        .staleness = spec.consistency == Consistency::synchronous ? 0 : spec.staleness,
                        .has_lifecycle = spec.lifecycle.has_value(),
                        .wire_bytes = row_bytes(spec.wire, spec.dimension),
                        .ids = std::vector<std::uint32_t>(impl_->requests->servers())};
  impl_->ask_each([&](std::size_t server, MessageWriter& out) { impl_->add_text(server, out, Ask::open, json); },
                  [&](std::size_t server, MessageReader in) { table.ids[server] = in.take<Opened>(1).front().table; });
  impl_->tables.push_back(std::move(table));
  return impl_->tables.size() - 1;
}

void Client::pull(TableId id, std::span<const Key> keys, std::span<float> values, Absent absent, int ahead) {
  Impl::OpenTable& table = impl_->tables.at(id);
  const std::size_t dimension = table.dimension;
  check_size("values", values.size(), keys.size(), dimension);
  ensure(!impl_->options.worker || ahead <= table.staleness, "rows are pulled further ahead than their table's staleness");
  Batch& batch = table.next();
  batch.start(keys, impl_->requests->servers());
  std::vector<Batch::Part>& parts = batch.parts();
  impl_->exchange(
      keys_of_a_message(static_cast<int>(dimension)), [&] { return batch.deal(Impl::kDealt); },
      [&](std::size_t server) { return parts[server].keys.size(); },
      [&](std::size_t server, std::size_t begin, std::size_t end, MessageWriter& out) {
        impl_->add_header(server, out, absent == Absent::create ? Ask::pull : Ask::pull_or_zeros, table.ids[server], end - begin, ahead);
        out.add(std::span<const Key>(parts[server].keys).subspan(begin, end - begin));
      },
      [&](std::size_t server, std::size_t begin, std::size_t end, MessageReader in) {
        const Seen seen = in.take<Seen>(1).front();
        impl_->note(seen, table.staleness, ahead);
        Batch::Part& part = parts[server];
        const std::span<const Ticket> tickets = in.take<Ticket>(end - begin);
        // A backup that takes over in the midst of a pull knows nothing of the tickets so far.
        if (begin > 0 && part.instance != seen.instance) part.tickets.clear();
        part.instance = seen.instance;
        part.tickets.insert(part.tickets.end(), tickets.begin(), tickets.end());
        const std::span<const std::byte> rows = in.take<std::byte>((end - begin) * table.wire_bytes);
        for (std::size_t i = begin; i < end; ++i)
          load_row(table.spec.wire, rows.data() + (i - begin) * table.wire_bytes,
                   values.subspan(parts[server].positions[i] * dimension, dimension));
      });
  for (const Batch::Repeat& repeat : batch.repeats())
    copy_row(values.data() + repeat.first * dimension, values.data() + repeat.position * dimension, dimension);
}

PushResult Client::push(TableId id, std::span<const Key> keys, std::span<const float> gradients, std::span<const Impressions> impressions) {
  Impl::OpenTable& table = impl_->tables.at(id);
  check_size("gradients", gradients.size(), keys.size(), table.dimension);
  if (!impressions.empty()) check_size("impressions", impressions.size(), keys.size(), 1);
  ensure(impressions.empty() || table.has_lifecycle, "impressions are of tables with a lifecycle");
  const std::vector<Impressions> each(table.has_lifecycle && impressions.empty() ? keys.size() : 0);
  const std::span<const float> shown = floats_of(each.empty() ? impressions : each);
  const std::size_t dimension = table.dimension;
  const auto known = std::ranges::find_if(table.batches, [&](const Batch& one) { return one.is_of(keys); });
  Batch& batch = known == table.batches.end() ? table.next() : *known;
  if (known == table.batches.end()) {
    batch.start(keys, impl_->requests->servers());
    batch.deal(keys.size());
  }
  std::vector<Batch::Part>& parts = batch.parts();
  std::vector<float> sums;
  Random random = impl_->random_of_push(id);
  PushResult result;
  impl_->exchange(
      keys_of_a_message(static_cast<int>(dimension)), [] { return false; }, [&](std::size_t server) { return parts[server].keys.size(); },
      [&](std::size_t server, std::size_t begin, std::size_t end, MessageWriter& out) {
        const Batch::Part& part = parts[server];
        impl_->add_header(server, out, part.tickets.size() < part.keys.size() ? Ask::push : Ask::push_tickets, table.ids[server],
                          end - begin);
        if (part.tickets.size() == part.keys.size()) out.add<std::uint64_t>(1).front() = part.instance;
        out.add(std::span<const Key>(part.keys).subspan(begin, end - begin));
        if (part.tickets.size() == part.keys.size()) out.add(std::span<const Ticket>(part.tickets).subspan(begin, end - begin));
        if (table.spec.wire == RowType::fp32) {
          batch.add_up(part, begin, end, gradients, out.add<float>((end - begin) * dimension));
        } else {
          sums.resize((end - begin) * dimension);
          batch.add_up(part, begin, end, gradients, sums);
          for (std::size_t i = 0; i < end - begin; ++i)
            store_gradient(table.spec.wire, std::span<const float>(sums).subspan(i * dimension, dimension), random,
                           out.add<std::byte>(table.wire_bytes).data());
        }
        if (table.has_lifecycle) batch.add_up(part, begin, end, shown, out.add<float>((end - begin) * kImpressionFloats));
      },
      [&](std::size_t, std::size_t, std::size_t, MessageReader in) {
        const PushResult part = in.take<PushResult>(1).front();
        result.applied += part.applied;
        result.refused += part.refused;
      });
  return result;
}

void Client::set_learning_rate(TableId table, float learning_rate) {
  impl_->ask_each(
      [&](std::size_t server, MessageWriter& out) {
        impl_->add_header(server, out, Ask::learning_rate, impl_->tables.at(table).ids[server], 1);
        out.add<float>(1).front() = learning_rate;
      },
      [](std::size_t, const MessageReader&) {});
}

std::uint64_t Client::end_period(TableId id) {
  constexpr std::uint64_t kRowsOfAPart = 1 << 14;
  const Impl::OpenTable& table = impl_->tables.at(id);
  ensure(table.has_lifecycle, "periods are of tables with a lifecycle");
  std::vector<std::size_t> parts(impl_->requests->servers());
  impl_->ask_each([&](std::size_t server, MessageWriter& out) { impl_->add_header(server, out, Ask::end_period, table.ids[server], 0); },
                  [&](std::size_t server, MessageReader in) {
                    const auto rows = static_cast<std::uint64_t>(in.take<PushResult>(1).front().applied);
                    parts[server] = static_cast<std::size_t>((rows + kRowsOfAPart - 1) / kRowsOfAPart);
                  });
  std::uint64_t evicted = 0;
  impl_->exchange(
      1, [] { return false; }, [&](std::size_t server) { return parts[server]; },
      [&](std::size_t server, std::size_t begin, std::size_t, MessageWriter& out) {
        impl_->add_header(server, out, Ask::evict, table.ids[server], 1);
        out.add<EvictPart>(1).front() = {.part = static_cast<std::uint32_t>(begin), .parts = static_cast<std::uint32_t>(parts[server])};
      },
      [&](std::size_t, std::size_t, std::size_t, MessageReader in) {
        evicted += static_cast<std::uint64_t>(in.take<PushResult>(1).front().applied);
      });
  return evicted;
}

void Client::end_step() {
  impl_->ask_each([&](std::size_t server, MessageWriter& out) { impl_->add_header(server, out, Ask::end_step, 0, 0); },
                  [](std::size_t, const MessageReader&) {});
  ++impl_->step;
}

void Client::wait_for_workers() {
  impl_->ask_each([&](std::size_t server, MessageWriter& out) { impl_->add_header(server, out, Ask::wait, 0, 0); },
                  [](std::size_t, const MessageReader&) {});
}

void Client::begin_save(const std::filesystem::path& folder, SnapshotRows rows) {
  impl_->saves_to = std::filesystem::absolute(folder);
  SavedFolder there = read_saved_folder(impl_->saves_to);
  impl_->save_number = there.saves + 1;
  SaveOrder order{.folder = impl_->saves_to, .servers = impl_->requests->servers(), .number = impl_->save_number};
  if (rows == SnapshotRows::changed) order.before = std::move(there.tables);
  impl_->order(Ask::save, std::move(order));
}

void Client::finish_save() {
  SavedFolder saved{.saves = impl_->save_number, .tables = {}};
  for (bool still = true; still;) {
    still = false;
    saved.tables.clear();
    impl_->ask_each([&](std::size_t server, MessageWriter& out) { impl_->add_header(server, out, Ask::saved, 0, 0); },
                    [&](std::size_t, MessageReader in) {
                      const std::span<const char> json = in.take_rest();
                      still |= json.empty();
                      if (!still) add_servers(saved.tables, saved_tables_from_json({json.begin(), json.end()}));
                    });
  }
  write_saved_folder(impl_->saves_to, saved);
}

void Client::load(const std::filesystem::path& folder) {
  const std::filesystem::path whole = std::filesystem::absolute(folder);
  std::vector<SavedTable> saved = read_saved_folder(whole).tables;
  for (const Impl::OpenTable& table : impl_->tables)
    if (std::ranges::find(saved, table.spec.name, &SavedTable::name) == saved.end())
      throw Error(ErrorCode::not_found, text("there is no table ", table.spec.name, " in ", whole.string()), {},
                  "a folder that tables were saved to");
  impl_->order(Ask::load, {.folder = whole, .servers = impl_->requests->servers(), .before = std::move(saved)});
}

TableCounts Client::begin_move(TableId id, std::span<const Share> after, SnapshotRows rows) {
  Impl::OpenTable& table = impl_->tables.at(id);
  const std::size_t servers = impl_->requests->servers();
  ensure(after.size() == servers, "a share of each server");
  table.moving.assign(servers, 0);
  TableCounts counts;
  // A server that is at a save takes longer.
  while (std::ranges::count(table.moving, 0u) > 0)
    impl_->exchange(
        1, [] { return false; }, [begun = table.moving](std::size_t server) { return 1 - begun[server]; },
        [&](std::size_t server, std::size_t, std::size_t, MessageWriter& out) {
          impl_->add_header(server, out, Ask::move_begin, table.ids[server], 1);
          out.add<MoveOrder>(1).front() = {.before = {static_cast<std::uint32_t>(server), static_cast<std::uint32_t>(servers)},
                                           .after = after[server],
                                           .changed = rows == SnapshotRows::changed ? 1u : 0u};
        },
        [&](std::size_t server, std::size_t, std::size_t, MessageReader in) {
          const std::span<const char> told = in.take_rest();
          if (told.empty()) return;
          MoveBegun begun;
          ensure(told.size() == sizeof begun, "a server says how far its table has come");
          std::memcpy(&begun, told.data(), sizeof begun);
          counts = {.pushes = std::max(counts.pushes, begun.push_count), .period = std::max(counts.period, begun.period)};
          table.moving[server] = 1;
        });
  return counts;
}

std::optional<MovedRows> Client::moved_rows(TableId id) {
  Impl::OpenTable& table = impl_->tables.at(id);
  const std::vector<std::size_t> batches = table.moving;
  if (std::ranges::all_of(batches, [](std::size_t batch) { return batch == 0; })) return {};
  MovedRows moved;
  impl_->exchange(
      1, [] { return false; }, [&](std::size_t server) { return std::size_t{batches[server] > 0 ? 1u : 0u}; },
      [&](std::size_t server, std::size_t, std::size_t, MessageWriter& out) {
        impl_->add_header(server, out, Ask::move_rows, table.ids[server], batches[server]);
      },
      [&](std::size_t server, std::size_t, std::size_t, MessageReader in) {
        const MoveRows told = in.take<MoveRows>(1).front();
        table.moving[server] = told.more != 0 ? batches[server] + 1 : 0;
        const auto append = [](auto& to, const auto& items) { to.insert(to.end(), items.begin(), items.end()); };
        append(moved.erased, in.take<Key>(told.erased));
        append(moved.keys, in.take<Key>(told.rows));
        const std::span<const char> rows = in.take_rest();
        append(moved.rows, std::as_bytes(rows));
      });
  return moved;
}

std::vector<std::byte> Client::waiting(TableId id, std::size_t of) {
  std::vector<std::byte> all;
  for (std::size_t before = 1; all.size() != before;) {
    before = all.size();
    impl_->exchange(
        1, [] { return false; }, [&](std::size_t server) { return std::size_t{server == of ? 1u : 0u}; },
        [&](std::size_t server, std::size_t, std::size_t, MessageWriter& out) {
          impl_->add_header(server, out, Ask::move_waiting, impl_->tables.at(id).ids[server], 1);
          out.add<std::uint64_t>(1).front() = all.size();
        },
        [&](std::size_t, std::size_t, std::size_t, MessageReader in) {
          const std::span<const std::byte> some = std::as_bytes(in.take_rest());
          all.insert(all.end(), some.begin(), some.end());
        });
  }
  return all;
}

void Client::put(TableId id, const MovedRows& moved) {
  const Impl::OpenTable& table = impl_->tables.at(id);
  const std::size_t servers = impl_->requests->servers();
  std::vector<std::vector<Key>> erased(servers);
  std::vector<std::vector<std::size_t>> places(servers);  // of rows, among those that are moved
  for (const Key key : moved.erased) erased[server_of(key, servers)].push_back(key);
  for (std::size_t i = 0; i < moved.keys.size(); ++i) places[server_of(moved.keys[i], servers)].push_back(i);
  const std::size_t row_bytes = moved.keys.empty() ? 0 : moved.rows.size() / moved.keys.size();
  const std::size_t step = (comm::kMostMessageBytes - sizeof(AskHeader) - sizeof(PutHeader)) / (sizeof(Key) + row_bytes);
  // What has gone may have come back since.
  impl_->exchange(
      step, [] { return false; }, [&](std::size_t server) { return erased[server].size(); },
      [&](std::size_t server, std::size_t begin, std::size_t end, MessageWriter& out) {
        impl_->add_header(server, out, Ask::put, table.ids[server], 0);
        out.add<PutHeader>(1).front() = {.erased = end - begin};
        out.add(std::span<const Key>(erased[server]).subspan(begin, end - begin));
      },
      [](std::size_t, std::size_t, std::size_t, const MessageReader&) {});
  impl_->exchange(
      step, [] { return false; }, [&](std::size_t server) { return places[server].size(); },
      [&](std::size_t server, std::size_t begin, std::size_t end, MessageWriter& out) {
        impl_->add_header(server, out, Ask::put, table.ids[server], end - begin);
        out.add<PutHeader>(1).front() = {.erased = 0};
        const std::span<const std::size_t> some = std::span<const std::size_t>(places[server]).subspan(begin, end - begin);
        std::ranges::transform(some, out.add<Key>(some.size()).begin(), [&](std::size_t place) { return moved.keys[place]; });
        for (const std::size_t place : some) out.add(std::span<const std::byte>(moved.rows).subspan(place * row_bytes, row_bytes));
      },
      [](std::size_t, std::size_t, std::size_t, const MessageReader&) {});
}

void Client::put_waiting(TableId id, std::size_t of, std::span<const std::byte> waiting) {
  constexpr std::size_t kBytes = comm::kMostMessageBytes / 2;
  impl_->exchange(
      kBytes, [] { return false; }, [&](std::size_t server) { return server == of ? waiting.size() : 0; },
      [&](std::size_t server, std::size_t begin, std::size_t end, MessageWriter& out) {
        impl_->add_header(server, out, Ask::put_waiting, impl_->tables.at(id).ids[server], end - begin);
        out.add<std::uint64_t>(1).front() = begin;
        out.add(waiting.subspan(begin, end - begin));
      },
      [](std::size_t, std::size_t, std::size_t, const MessageReader&) {});
}

void Client::put_counts(TableId id, const TableCounts& counts) {
  impl_->ask_each(
      [&](std::size_t server, MessageWriter& out) {
        impl_->add_header(server, out, Ask::put_counts, impl_->tables.at(id).ids[server], 1);
        out.add<MoveBegun>(1).front() = {.push_count = counts.pushes, .period = counts.period, .padding = 0};
      },
      [](std::size_t, const MessageReader&) {});
}

std::uint64_t Client::keep(TableId id, std::span<const Share> shares) {
  constexpr std::size_t kParts = 4096;  // so that each is soon done
  ensure(shares.size() == impl_->requests->servers(), "a share of each server");
  std::uint64_t erased = 0;
  impl_->exchange(
      1, [] { return false; }, [](std::size_t) { return kParts; },
      [&](std::size_t server, std::size_t begin, std::size_t, MessageWriter& out) {
        impl_->add_header(server, out, Ask::keep, impl_->tables.at(id).ids[server], 1);
        out.add<KeepPart>(1).front() = {.part = static_cast<std::uint32_t>(begin), .parts = kParts, .share = shares[server]};
      },
      [&](std::size_t, std::size_t, std::size_t, MessageReader in) {
        erased += static_cast<std::uint64_t>(in.take<PushResult>(1).front().applied);
      });
  return erased;
}

void Client::go_on_at(std::vector<std::string> places, const std::string& secret, std::uint64_t run) {
  ClientOptions options = impl_->options;
  if (options.worker) {
    options.worker->run = run;
    options.worker->first_step = impl_->step;
  }
  Client other(requester(std::move(places), secret, options), options);
  for (const Impl::OpenTable& table : impl_->tables) other.open(table.spec);
  other.impl_->staleness_seen = impl_->staleness_seen;
  impl_ = std::move(other.impl_);
}

std::vector<TableSpec> Client::opened() const {
  std::vector<TableSpec> specs;
  for (const Impl::OpenTable& table : impl_->tables) specs.push_back(table.spec);
  return specs;
}

Staleness Client::staleness() const { return impl_->staleness_seen; }
std::int64_t Client::reconnections() const { return impl_->requests->reconnections(); }

std::vector<ServerStatus> Client::status() {
  std::vector<ServerStatus> all(impl_->requests->servers());
  impl_->ask_each([&](std::size_t server, MessageWriter& out) { impl_->add_header(server, out, Ask::status, 0, 0); },
                  [&](std::size_t server, MessageReader in) {
                    const std::span<const char> json = in.take_rest();
                    all[server] = status_from_json({json.begin(), json.end()});
                  });
  return all;
}

}  // namespace tessera::ps
