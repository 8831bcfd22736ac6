#include "ps/simulated_server_helper.hpp"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "ps/messages.hpp"
#include "ps/planted_bugs_helper.hpp"

namespace tessera::ps::simulation {
namespace {

constexpr Micros kLookEvery = 50 * kMilli;
constexpr Micros kConnecting = 500 * kMilli;

nlohmann::json told_by_copy(std::span<const std::byte> request) {
  MessageReader in(request);
  const AskHeader header = in.take<AskHeader>(1).front();
  const std::span<const char> words = in.take<char>(header.count);
  return nlohmann::json::parse(words.begin(), words.end());
}

std::string client_words(std::span<const std::byte> copy_begin) {
  nlohmann::json all = told_by_copy(copy_begin), workers = nlohmann::json::parse(all.at("workers").get<std::string>());
  auto& clients = workers.at("clients").get_ref<nlohmann::json::array_t&>();
  std::ranges::sort(clients, {}, [](const nlohmann::json& client) { return client.at("number").get<std::uint64_t>(); });
  // Pulls are the leader's affair.
  for (nlohmann::json& table : all.at("tables")) table.at("counted").at(0) = 0;
  all.at("workers") = std::move(workers);
  return all.dump();
}

}  // namespace

HeldState held_by(const Shards& shards) {
  HeldState held;
  std::vector<std::byte> message(comm::kMostMessageBytes);
  shards.copy(
      0, [&] { return std::span(message); },
      [&](std::size_t bytes) {
        const std::span<const std::byte> request = std::span(message).first(bytes);
        MessageReader in(request);
        const AskHeader header = in.take<AskHeader>(1).front();
        if (header.ask == Ask::copy_begin) held.clients = client_words(request);
        if (header.ask == Ask::copy_rows) {
          const std::span<const Key> keys = in.take<Key>(header.count);
          const std::span<const char> rows = in.take_rest();
          const std::size_t row = rows.size() / keys.size();
          for (std::size_t i = 0; i < keys.size(); ++i) {
            const auto stored = std::as_bytes(rows.subspan(i * row, row));
            held.rows[{header.table, keys[i]}].assign(stored.begin(), stored.end());
          }
        }
        if (header.ask == Ask::copy_waiting) {
          const auto waiting = std::as_bytes(in.take_rest());
          held.waiting[header.table].assign(waiting.begin(), waiting.end());
        }
        if (header.ask == Ask::copy_sums) {
          const SumsHeader sums = in.take<SumsHeader>(1).front();
          const auto rest = std::as_bytes(in.take_rest());
          std::vector<std::byte>& all = held.sums[{header.table, text("step ", sums.step, " of worker ", sums.worker)}];
          all.insert(all.end(), rest.begin(), rest.end());
        }
      });
  return held;
}

std::optional<std::string> difference(const HeldState& leader, const HeldState& backup, const FirstValues& first_values) {
  if (leader.clients != backup.clients) return text("the leader knows of clients ", leader.clients, ", and its backup ", backup.clients);
  if (leader.waiting != backup.waiting) return "the keys that wait to be admitted differ";
  if (leader.sums != backup.sums) return "the sums of a step that is not over differ";
  for (const auto& [at, stored] : backup.rows)
    if (const auto other = leader.rows.find(at); other == leader.rows.end() || other->second != stored)
      return text("row ", at.second, " of table ", at.first, " differs");
  for (const auto& [at, stored] : leader.rows)
    if (!backup.rows.contains(at) && stored != first_values(at.first, at.second))
      return text("the backup has no row ", at.second, " of table ", at.first, ", which has been pushed to");
  return {};
}

SimulatedServer* SimulatedPair::leader() const {
  for (const auto& server : servers)
    if (server && server->replica().leads()) return server.get();
  return nullptr;
}

SimulatedServer* SimulatedPair::whole_backup() const {
  const SimulatedServer* const leads = leader();
  if (!leads || !leads->replica().has_backup()) return nullptr;
  SimulatedServer* const other = servers[1 - leads->which()].get();
  return other && other->was_given_everything() ? other : nullptr;
}

SimulatedServer::SimulatedServer(World& world, SimulatedPair& pair, std::size_t which)
    : world_(world),
      pair_(pair),
      which_(which),
      host_(pair.hosts[which]),
      partner_(pair.hosts[1 - which]),
      replica_(text("server ", host_),
               {.pair = Pair{.first = which == 0 ? Pair::First::leads : Pair::First::stands_by, .partner = text("server ", partner_)}},
               *this),
      reply_(std::make_unique_for_overwrite<std::byte[]>(comm::kMostMessageBytes)) {
  task_ = world.spawn(host_, text("server ", host_), [this] { serve(); });
  world.listen(host_, [this](const ConnectionPointer& connection) {
    connection->ends[1].task = task_;
    strangers_.push_back(connection);
  });
}

SimulatedServer::~SimulatedServer() {
  world_.listen(host_, {});
  World::kill(task_);
  if (asking_) World::kill(asking_);
  for (const ConnectionPointer& connection : strangers_) world_.close(connection, 1);
  for (const auto& [id, connection] : sessions_) world_.close(connection, 1);
}

Process SimulatedServer::partner_process() const {
  if (world_.bug == Bug::one_that_begins_asks_nobody && replica_.undecided()) return Process::ended;
  switch (world_.probe(partner_, kConnecting)) {
    case World::Found::listens: return Process::listens;
    case World::Found::ended: return Process::ended;
    case World::Found::unknown: break;
  }
  const Bug credulous = replica_.leads() ? Bug::leader_takes_silence_for_an_end : Bug::standby_takes_silence_for_an_end;
  return world_.bug == credulous ? Process::ended : Process::unknown;
}

std::unique_ptr<comm::Requester> SimulatedServer::connect_to_partner(const comm::RequestClient::Options& options) const {
  comm::RequestClient::Options given = options;
  if (world_.bug == Bug::link_to_backup_asks_again && given.wants == Wants::standby) given.reconnect = Seconds(0.5);
  auto link = std::make_unique<SimulatedRequester>(world_, std::vector<std::vector<Host>>{{partner_}}, given);
  if (world_.bug == Bug::none) return link;
  return tampered(std::move(link), world_);
}

bool SimulatedServer::sleep() {
  const Micros until = world_.now() + kLookEvery;
  while (world_.now() < until) world_.sleep_until(until);
  return true;
}

void SimulatedServer::serve() {
  for (;;) {
    drop_lost();
    const bool moved = take_packet();
    if (!moved || world_.chance(8)) {
      answer_waiting();
      look_at_partner();
    }
    if (!moved) world_.sleep_until(world_.now() + world_.between(10 * kMilli, kLookEvery));
  }
}

void SimulatedServer::drop_lost() {
  const auto gone = [this](const ConnectionPointer& connection) {
    if (connection->ends[1].lost) world_.close(connection, 1);
    return connection->ends[1].closed;
  };
  std::erase_if(strangers_, gone);
  std::erase_if(sessions_, [&](const auto& session) { return gone(session.second); });
}

// Of connections that have something to read, any may be first.
bool SimulatedServer::take_packet() {
  std::vector<comm::RequestServer::ClientId> ready;
  for (const auto& [id, connection] : sessions_)
    if (!connection->ends[1].inbox.empty()) ready.push_back(id);
  for (const ConnectionPointer& connection : strangers_)
    if (!connection->ends[1].inbox.empty()) {
      welcome(ConnectionPointer(connection));
      return true;
    }
  if (ready.empty()) return false;
  const comm::RequestServer::ClientId id = ready[world_.random.below(ready.size())];
  Packet packet = std::move(sessions_.at(id)->ends[1].inbox.front());
  sessions_.at(id)->ends[1].inbox.pop_front();
  if (!answer(id, packet, 0)) waiting_.push_back({id, std::move(packet), world_.now()});
  return true;
}

void SimulatedServer::welcome(const ConnectionPointer& connection) {
  std::erase(strangers_, connection);
  const Wants wants = connection->ends[1].inbox.front().wants;
  connection->ends[1].inbox.pop_front();
  const bool taken =
      wants == Wants::any || (wants == Wants::standby) == standby_ || (world_.bug == Bug::standby_takes_clients && wants == Wants::leader);
  world_.send(connection, 1, {.kind = Packet::Kind::welcome, .taken = taken});
  if (taken)
    sessions_.emplace(next_session_++, connection);
  else
    world_.close(connection, 1, World::Sent::arrives);
}

bool SimulatedServer::answer(comm::RequestServer::ClientId session, const Packet& packet, Micros waited) {
  std::vector<std::byte> request = packet.bytes;
  const AskHeader header = MessageReader(request).take<AskHeader>(1).front();
  if (replica_.leads()) tamper_with_request(request, world_);
  const std::span<std::byte> reply(reply_.get(), comm::kMostMessageBytes);
  Packet answered{.kind = Packet::Kind::reply, .number = packet.number};
  std::optional<std::size_t> bytes;
  answering_ = true;
  try {
    bytes = replica_.answer({.client = session, .bytes = request, .waited = Seconds(static_cast<double>(waited) / 1e6)}, reply);
  } catch (const Error& error) {
    answered.failed = error.code();
    const auto words = std::as_bytes(std::span(error.message()));
    answered.bytes.assign(words.begin(), words.end());
  }
  answering_ = false;
  if (!bytes && !answered.failed) return false;
  if (bytes) {
    tamper_with_reply(request, reply, header.number, world_);
    answered.bytes.assign(reply.begin(), reply.begin() + static_cast<std::ptrdiff_t>(*bytes));
    check_done(header, request);
  }
  if (const auto found = sessions_.find(session); found != sessions_.end()) world_.send(found->second, 1, std::move(answered));
  return true;
}

void SimulatedServer::check_done(const AskHeader& header, std::span<const std::byte> request) {
  const SimulatedServer* const other = pair_.servers[1 - which_].get();
  if (replica_.leads()) {
    if (other && other->replica().leads()) world_.fail(text("servers ", host_, " and ", partner_, " lead at once"));
    const bool would_take_over = other && !other->replica().undecided() && !other->replica().shards().incomplete();
    if (is_numbered(header.ask) && (replica_.has_backup() || would_take_over) && pair_.done[1 - which_][header.client] < header.number)
      world_.fail(text("server ", host_, " answers message ", header.number, " of a client, which its backup has not done"));
    return;
  }
  const auto note = [this](std::uint64_t client, std::uint64_t number) {
    std::uint64_t& done = pair_.done[which_][client];
    done = std::max(done, number);
  };
  if (is_numbered(header.ask)) note(header.client, header.number);
  if (header.ask == Ask::copy_begin) {
    copied_ = false;
    being_copied_.clear();
    const nlohmann::json workers = nlohmann::json::parse(told_by_copy(request).at("workers").get<std::string>());
    for (const nlohmann::json& client : workers.at("clients")) being_copied_[client.at("number")] = client.at("applied");
  }
  if (header.ask == Ask::copy_end) {
    copied_ = true;
    for (const auto& [client, number] : being_copied_) note(client, number);
  }
}

// Whose connection is lost is forgotten.
void SimulatedServer::answer_waiting() {
  for (std::size_t left = waiting_.size(); left > 0; --left) {
    Waiting one = std::move(waiting_.front());
    waiting_.pop_front();
    if (sessions_.contains(one.session) && !answer(one.session, one.packet, world_.now() - one.since)) waiting_.push_back(std::move(one));
  }
}

void SimulatedServer::look_at_partner() {
  if (world_.now() - looked_ < kLookEvery) return;
  looked_ = world_.now();
  replica_.look_at_partner();
  if (!replica_.undecided()) return;
  if (!asking_) {
    asking_ = world_.spawn(host_, text("server ", host_, " at its start"), [this] {
      // A thread may begin late.
      if (const Micros until = world_.now() + world_.between(0, kSecond); world_.chance(4))
        while (world_.now() < until) world_.sleep_until(until);
      start_ = replica_.ask_at_start();
    });
  } else if (start_) {
    asking_.reset();
    replica_.decide(*std::exchange(start_, std::nullopt));
  }
}

}  // namespace tessera::ps::simulation
