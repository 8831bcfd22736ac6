#include "ps/replica.hpp"

#include <algorithm>
#include <cstring>

#include "base/log.hpp"
#include "base/secret.hpp"

namespace tessera::ps {
namespace {

using Wants = comm::RequestClient::Options::Wants;

constexpr Seconds kLongestWait(5);  // for a save, before the client has to ask again
// For the workers of another run: a process that was killed takes some time until its connections are closed.
constexpr Seconds kTakesToEnd(5);

bool moves_all_rows(std::span<const std::byte> request) {
  MessageReader in(request);
  in.take<AskHeader>(1);
  return in.take<MoveOrder>(1).front().changed == 0;
}

SaveOrder order_in(std::span<const std::byte> request) {
  MessageReader in(request);
  const AskHeader header = in.take<AskHeader>(1).front();
  const std::span<const char> json = in.take<char>(header.count);
  return save_order_from_json({json.begin(), json.end()});
}

// Whether it was this host that could not do what was asked.
bool lacks(const Error& error) {
  return error.code() == ErrorCode::io || error.code() == ErrorCode::resource_exhausted || error.code() == ErrorCode::internal;
}

// A load of nothing, for the log.
std::span<const std::byte> empty_tables() {
  static constexpr AskHeader header{.ask = Ask::load, .table = 0, .count = 0, .client = 0, .number = 0};
  return std::as_bytes(std::span(&header, 1));
}

AskHeader header_of(std::span<const std::byte> request) { return MessageReader(request).take<AskHeader>(1).front(); }

}  // namespace

Replica::Replica(std::string place, const ServerOptions& options, Surroundings& surroundings)
    : place_(std::move(place)), pair_(options.pair), surroundings_(surroundings), shards_(options.storage), leads_(!options.pair) {
  std::memcpy(&process_, random_bytes(sizeof process_).data(), sizeof process_);
  surroundings_.stand_by(pair_.has_value());
  if (!options.log) return;
  ensure(!pair_, "one of a pair has no log");
  log_ = std::make_unique<WriteAheadLog>(*options.log);
}

void Replica::restore() {
  if (log_ == nullptr) return;
  std::vector<std::byte> reply(comm::kMostMessageBytes);
  std::int64_t messages = 0, refused = 0;
  std::optional<Error> problem;  // of the last message
  log_->restore(shards_, [&](std::span<const std::byte> message) {
    const AskHeader header = header_of(message);
    if (header.ask == Ask::log_refused) return problem.reset();
    if (problem) throw *problem;
    ++messages;
    if (header.ask == Ask::load) return load(message);
    try {
      shards_.answer(message, reply);
    } catch (const Error& error) {
      // A client's mistake was one then, too. What this host lacks it may not have lacked then.
      if (lacks(error) || !is_numbered(header.ask)) problem = error;
      ++refused;
    }
  });
  if (problem) throw *problem;
  if (messages > 0)
    log::info(text("the server at ", place_, " goes on after ", messages, " messages of its log",
                   refused > 0 ? text(", of which ", refused, " were refused") : ""));
}

bool Replica::go_on_saving() {
  if (saves_.going_on()) {
    saves_.go_on();
    if (log_ != nullptr && !saves_.going_on()) log_->end_save(saves_to_, saves_.tables_of_whole());
    return true;
  }
  return log_ != nullptr && log_->go_on(shards_, shards_.moving());
}

std::optional<std::size_t> Replica::answer(const comm::RequestServer::Request& request, std::span<std::byte> reply) {
  const AskHeader header = header_of(request.bytes);
  const Ask ask = header.ask;
  if (ask == Ask::status) return say_status(reply);
  // A connection that a leader has given up may still bring what was under way, when another one has brought the copy.
  if (leader_ && request.client < *leader_)
    throw Error(ErrorCode::peer_lost, text(place_, " has heard from its leader over a later connection"));
  if (ask == Ask::who_leads) return say_who_leads(request.bytes, reply);
  if (ask == Ask::save || ask == Ask::saved || ask == Ask::load) return save_or_load(request, reply);
  // A table makes one snapshot at a time; a save has ended the move whose changed rows are asked for.
  if (ask == Ask::move_begin && saves_.going_on() && moves_all_rows(request.bytes))
    return request.waited < kLongestWait ? std::nullopt : std::optional<std::size_t>(0);
  if (leads_ && is_copy(ask))
    throw Error(ErrorCode::invalid_config, text("the server at ", place_, " leads, and takes no other's rows"), {},
                "a server that stands by");
  if (log_ != nullptr && ask == Ask::move_begin) log_->abandon_base();
  if (leads_) {
    connections_[header.client] = request.client;
    // Connections are this server's alone: what is refused reaches neither the backup nor the log.
    if (ask == Ask::join && waits_for_other_run(request)) return {};
  } else {
    leader_ = request.client;
  }
  if (ask == Ask::copy_begin) process_of_leader_ = header.client;
  if (log_ != nullptr && changes(ask)) return answer_logged(request, reply);
  if (!backup_ || !changes(ask)) return shards_.answer(request.bytes, reply, request.waited);
  // The backup works at it meanwhile, and comes to the same.
  std::ranges::copy(request.bytes, backup_->next_request(0).begin());
  backup_->send(0, request.bytes.size());
  std::optional<Error> refused;
  std::optional<std::size_t> bytes;
  try {
    bytes = shards_.answer(request.bytes, reply, request.waited);
  } catch (const Error& error) {
    refused = error;
  }
  wait_for_backup(refused.has_value());
  if (refused) throw *refused;
  return bytes;
}

bool Replica::waits_for_other_run(const comm::RequestServer::Request& request) {
  std::erase_if(connections_, [this](const auto& one) { return !surroundings_.is_connected(one.second); });
  MessageReader in(request.bytes);
  const std::span<const char> json = in.take<char>(in.take<AskHeader>(1).front().count);
  const Joining joining = joining_from_json({json.begin(), json.end()});
  if (!joining.worker) return false;
  const Workers& there = shards_.workers();
  const auto connected =
      std::ranges::count_if(there.in_the_way_of(*joining.worker), [this](auto one) { return connections_.contains(one); });
  if (connected == 0) return false;
  if (request.waited < std::min(kTakesToEnd, joining.patience)) return true;
  throw Error(ErrorCode::invalid_config,
              text("run '", joining.worker->name, "' wants to train at the server at ", place_, ", where ", connected,
                   connected == 1 ? " worker" : " workers", " of run '", there.name(), "' ", connected == 1 ? "trains" : "train"),
              {}, "one run at a time", text("end '", there.name(), "', or give each run servers of its own"));
}

std::optional<std::size_t> Replica::answer_logged(const comm::RequestServer::Request& request, std::span<std::byte> reply) {
  const bool numbered = is_numbered(header_of(request.bytes).ask);
  if (numbered) log_->add(request.bytes);
  try {
    const std::optional<std::size_t> bytes = shards_.answer(request.bytes, reply, request.waited);
    // To join and to open may be refused for good reasons, and may be asked again; what is in the log was not.
    if (!numbered) log_->add(request.bytes);
    return bytes;
  } catch (const Error& error) {
    static constexpr AskHeader refused{.ask = Ask::log_refused, .table = 0, .count = 0, .client = 0, .number = 0};
    if (numbered && lacks(error)) log_->add(std::as_bytes(std::span(&refused, 1)));
    throw;
  }
}

// One that answers otherwise than this server does not hold the same.
void Replica::wait_for_backup(bool refused_here) {
  bool refused_there = false, lost = false;
  try {
    backup_->take_reply(0);
  } catch (const Error& error) {
    lost = error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::deadline_exceeded;
    refused_there = !lost;
  }
  if (lost || refused_here != refused_there) go_on_without_backup();
}

// Nothing is acknowledged until it is clear that the partner has ended, or has a whole copy.
void Replica::go_on_without_backup() {
  backup_.reset();
  do {
    const Process process = surroundings_.partner_process();
    if (process == Process::ended) {
      log::warning(text("the backup at ", pair_->partner, " has ended; ", place_, " goes on alone"));
      return;
    }
    if (process == Process::listens && take_backup() == Copied::whole) return;
  } while (surroundings_.sleep());
  throw Superseded();  // it ends without saying how far it came
}

Replica::Copied Replica::take_backup() {
  Copied copied = Copied::no;
  try {
    const Leads partner = ask_who_leads(true);
    if (partner.leads != 0) throw Superseded();
    // A connection that is lost is not made anew: at its other end there may be another process by then, which holds nothing, and a part of
    // the copy that is sent twice would be taken twice.
    auto client = surroundings_.connect_to_partner({.deadline = Seconds(10), .reconnect = Seconds(0), .wants = Wants::standby});
    const auto take = [&client] { client->take_reply(0); };
    shards_.copy(
        process_,
        [&] {
          if (client->under_way(0) == comm::Requester::kMostUnderWay) take();
          return client->next_request(0);
        },
        [&](std::size_t bytes) { client->send(0, bytes); });
    copied = Copied::perhaps;
    while (client->under_way(0) > 0) take();
    backup_ = std::move(client);
    process_of_backup_ = partner.process;
    log::info(text("the server at ", pair_->partner, " is the backup of ", place_));
    return Copied::whole;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::resource_exhausted)
      log::warning(text(place_, " has no backup: ", error.what()));
    else
      log::debug(text("no backup yet: ", error.what()));
    return copied;
  }
}

// Whether the partner does; where this server does not and so holds nothing, a partner that has everything does from now on. Throws as
// RequestClient does.
Leads Replica::ask_who_leads(bool self_leads) const {
  const auto client = surroundings_.connect_to_partner({.deadline = Seconds(0.5), .reconnect = Seconds(0), .wants = Wants::any});
  MessageWriter out(client->next_request(0));
  out.add<AskHeader>(1).front() = {.ask = Ask::who_leads,
                                   .table = self_leads ? 1u : 0u,
                                   .count = 0,
                                   .client = process_,
                                   .number = static_cast<std::uint64_t>(pair_->first)};
  client->send(0, out.written());
  return MessageReader(client->take_reply(0)).take<Leads>(1).front();
}

// A backup has no part in files: what was loaded it is given as a copy.
std::optional<std::size_t> Replica::save_or_load(const comm::RequestServer::Request& request, std::span<std::byte> reply) {
  MessageReader in(request.bytes);
  const AskHeader header = in.take<AskHeader>(1).front();
  MessageWriter out(reply);
  if (header.ask == Ask::saved) {
    const auto written = saves_.written();
    if (!written && request.waited < kLongestWait) return {};
    if (written) out.add(std::span<const char>(to_json(*written)));
    return out.written();
  }
  // One that is none, or another run's, changes nothing.
  if (header.ask == Ask::load) tables_to_load(order_in(request.bytes), shards_.tables(), place_);
  shards_.stop_moves();
  if (log_ != nullptr) log_->abandon_base();
  if (header.ask == Ask::save) {
    const SaveOrder order = order_in(request.bytes);
    if (log_ != nullptr) log_->end_save({}, {});
    saves_.begin(order, shards_.tables());
    saves_to_ = order.folder;
    if (log_ != nullptr && saves_.going_on()) log_->begin_save(shards_);
    return out.written();
  }
  saves_.abandon();
  if (log_ != nullptr) {
    log_->end_save({}, {});
    log_->add(empty_tables());
  }
  load(empty_tables());
  try {
    load(request.bytes);
    if (log_ != nullptr) log_->add(request.bytes);
  } catch (...) {
    load(empty_tables());
    throw;
  }
  if (backup_) go_on_without_backup();
  return out.written();
}

void Replica::load(std::span<const std::byte> request) {
  shards_.empty_tables();
  if (header_of(request).count > 0) {
    const SaveOrder order = order_in(request);
    load_tables(order, tables_to_load(order, shards_.tables(), place_));
  }
  // The files are a checkpoint's, which may go.
  if (log_ != nullptr) log_->want_base();
}

std::size_t Replica::say_status(std::span<std::byte> reply) const {
  ServerStatus status = shards_.status();
  if (pair_) status.backup = backup_ ? pair_->partner : "";
  MessageWriter out(reply);
  out.add(std::span<const char>(to_json(status)));
  return out.written();
}

std::size_t Replica::say_who_leads(std::span<const std::byte> request, std::span<std::byte> reply) {
  const AskHeader header = header_of(request);
  if (!pair_ || static_cast<Pair::First>(header.number) == pair_->first)
    throw Error(ErrorCode::invalid_config, text("both servers of a pair are told the same, or ", place_, " knows of no pair"), {},
                "one with --backup, and the other with --backup-of");
  // A partner that begins has lost what this one may have: all that the partner had, even where that was nothing.
  // One that leads by now may have asked when it did not.
  const bool partner_begins = header.table == 0;
  if (partner_begins && leader_ && !shards_.incomplete() && header.client != process_of_leader_) lead("its partner has begun anew");
  // So has this one's backup, which is given everything again before anything is acknowledged; unless it has asked before it was given it.
  if (partner_begins && backup_ && header.client != process_of_backup_) go_on_without_backup();
  MessageWriter out(reply);
  out.add<Leads>(1).front() = {.leads = leads_ ? 1u : 0u, .padding = 0, .process = process_};
  return out.written();
}

void Replica::lead(const char* why) {
  leads_ = true;
  leader_.reset();
  surroundings_.stand_by(false);
  log::info(text("the server at ", place_, " leads: ", why));
}

void Replica::look_at_partner() {
  if (!pair_ || backup_) return;
  if (leads_) {
    // One that may have a whole copy would take over, and must miss nothing that is acknowledged from now on.
    if (surroundings_.partner_process() == Process::listens && take_backup() == Copied::perhaps) go_on_without_backup();
  } else if (leader_) {
    if (surroundings_.is_connected(*leader_) || surroundings_.partner_process() != Process::ended) return;
    if (shards_.incomplete())
      log::warning(text("the leader at ", pair_->partner, " has ended before ", place_, " had a whole copy"));
    else
      lead("its leader has ended");
  }
}

Replica::Start Replica::ask_at_start() const {
  const Start alone = pair_->first == Pair::First::leads ? Start::leads : Start::waits;
  if (surroundings_.partner_process() == Process::ended) return alone;
  try {
    return ask_who_leads(false).leads != 0 ? Start::waits : alone;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_config) log::warning(error.what());
    return Start::waits;
  }
}

void Replica::decide(Start start) {
  if (start == Start::leads && undecided()) lead("no other does");
}

}  // namespace tessera::ps
