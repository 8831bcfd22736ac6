#include "ps/move.hpp"

#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "base/log.hpp"
#include "ps/client.hpp"

namespace tessera::ps {
namespace {

// Less than ranks wait for each other while steps stand.
constexpr Seconds kPatience(60), kPatienceToUndo(10);
// Each save of the run has the copy begin anew.
constexpr int kTries = 20;

// Which share of the keys each of `places` has, where `all` have them between them.
std::vector<Share> shares(const std::vector<std::string>& places, const std::vector<std::string>& all) {
  std::vector<Share> out;
  for (const std::string& place : places) {
    const auto found = std::ranges::find(all, place);
    out.push_back(found == all.end() ? Share{}
                                     : Share{static_cast<std::uint32_t>(found - all.begin()), static_cast<std::uint32_t>(all.size())});
  }
  return out;
}

std::uint64_t rows_of(const ServerStatus& server, const std::string& table) {
  const auto found = std::ranges::find(server.tables, table, &TableStatus::name);
  return found == server.tables.end() ? 0 : found->rows;
}

}  // namespace

struct Move::Impl {
  Impl(const std::vector<std::string>& given_from, const std::vector<std::string>& given_to, const std::string& given_secret,
       const std::vector<TableSpec>& specs, const std::atomic<bool>* given_interrupted)
      : from(given_from),
        to(given_to),
        secret(given_secret),
        interrupted(given_interrupted),
        source(from, secret, {.deadline = kPatience, .interrupted = interrupted}),
        target(to, secret, {.deadline = kPatience, .interrupted = interrupted}) {
    const std::vector<ServerStatus> there = target.status();
    for (const TableSpec& spec : specs) {
      // A copy of a table opens it once more.
      if (std::ranges::count(tables, spec.name, [](const Both& table) { return table.spec.name; }) > 0) continue;
      for (std::size_t server = 0; server < to.size(); ++server)
        if (std::ranges::find(from, to[server]) == from.end() && rows_of(there[server], spec.name) > 0)
          throw Error(ErrorCode::invalid_config,
                      text("the server at ", to[server], " holds ", rows_of(there[server], spec.name), " rows of a table '", spec.name,
                           "' already"),
                      {}, "a server that has none of them", "start it anew");
      tables.push_back({source.open(spec), target.open(spec), spec});
    }
  }

  void take(SnapshotRows which) {
    for (const Both& table : tables) {
      const TableCounts counts = source.begin_move(table.source, shares(from, to), which);
      while (const std::optional<MovedRows> moved = source.moved_rows(table.source)) {
        target.put(table.target, *moved);
        rows += moved->keys.size();
      }
      target.put_counts(table.target, counts);
    }
  }

  struct Both {
    Client::TableId source, target;
    TableSpec spec;
  };
  const std::vector<std::string> from, to;
  const std::string secret;
  const std::atomic<bool>* const interrupted;
  Client source, target;
  std::vector<Both> tables;
  std::uint64_t rows = 0;
  bool finished = false;
};

Move::Move(const std::vector<std::string>& from, const std::vector<std::string>& to, const std::string& secret,
           const std::vector<TableSpec>& tables, const std::atomic<bool>* interrupted)
    : impl_(std::make_unique<Impl>(from, to, secret, tables, interrupted)) {}

// By other connections: on those of a move that has failed, answers may be under way.
Move::~Move() {
  const Impl& self = *impl_;
  if (self.finished) return;
  for (const std::vector<std::string>* const places : {&self.from, &self.to}) try {
      Client client(*places, self.secret, {.deadline = kPatienceToUndo, .reconnect = Seconds(0), .interrupted = self.interrupted});
      for (const Impl::Both& table : self.tables) client.keep(client.open(table.spec), shares(*places, self.from));
    } catch (const Error& error) {
      log::warning(text("rows that were copied to other parameter servers are left there: ", error.what()));
    }
}

void Move::copy() {
  for (int left = kTries;; --left) {
    try {
      impl_->take(SnapshotRows::all);
      return impl_->take(SnapshotRows::changed);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::not_found || left == 1) throw;
      // What has gone meanwhile is not among all rows.
      for (const Impl::Both& table : impl_->tables) impl_->target.keep(table.target, shares(impl_->to, impl_->from));
    }
  }
}

void Move::finish() {
  Impl& self = *impl_;
  self.take(SnapshotRows::changed);
  for (const Impl::Both& table : self.tables) {
    if (!table.spec.lifecycle) continue;
    // Whatever a server is told of keys that are none of its own is forgotten in time.
    std::vector<std::vector<std::byte>> waiting;
    for (std::size_t server = 0; server < self.from.size(); ++server) waiting.push_back(self.source.waiting(table.source, server));
    for (std::size_t server = 0; server < self.from.size(); ++server)
      for (std::size_t other = 0; other < self.to.size(); ++other)
        if (self.to[other] != self.from[server]) self.target.put_waiting(table.target, other, waiting[server]);
  }
  self.finished = true;
}

void Move::drop() {
  for (const Impl::Both& table : impl_->tables) impl_->source.keep(table.source, shares(impl_->from, impl_->to));
}

std::uint64_t Move::rows() const { return impl_->rows; }

}  // namespace tessera::ps
