#include "ps/server.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>
#include <thread>

#include "base/log.hpp"
#include "comm/sockets.hpp"
#include "ps/saves.hpp"
#include "ps/shards.hpp"

namespace tessera::ps {
namespace {

using comm::RequestClient;
using comm::SteadyClock;
using std::chrono::milliseconds;
using Wants = RequestClient::Options::Wants;

constexpr milliseconds kConnecting(500), kBetween(50);
constexpr Seconds kLongestWait(5);  // for a save, before the client has to ask again

// The partner leads, and this server must not acknowledge anything any more.
struct Superseded : std::exception {};

enum class Process { listens, ended, unknown };
Process process_at(const std::string& place) {
  if (comm::connect_once(comm::parse_host_port(place), kConnecting)) return Process::listens;
  return errno == ECONNREFUSED ? Process::ended : Process::unknown;
}

AskHeader header_of(std::span<const std::byte> request) { return MessageReader(request).take<AskHeader>(1).front(); }

}  // namespace

struct Server::Impl {
  Impl(const std::string& given_place, const std::string& given_secret, const ServerOptions& options)
      : place(given_place), secret(given_secret), pair(options.pair), requests(given_place, given_secret), shards(options.storage) {
    requests.stand_by(pair.has_value());
    leads = !pair;
  }

  std::optional<std::size_t> answer(const comm::RequestServer::Request& request, std::span<std::byte> reply) {
    const Ask ask = header_of(request.bytes).ask;
    if (ask == Ask::who_leads) return say_who_leads(request.bytes, reply);
    if (ask == Ask::status) return say_status(reply);
    if (ask == Ask::save || ask == Ask::saved || ask == Ask::load) return save_or_load(request, reply);
    if (leads && is_copy(ask))
      throw Error(ErrorCode::invalid_config, text("the server at ", place, " leads, and takes no other's rows"), {},
                  "a server that stands by");
    if (!leads) leader = request.client;
    if (!backup || !changes(ask)) return shards.answer(request.bytes, reply, request.waited);
    // The backup works at it meanwhile, and comes to the same.
    std::ranges::copy(request.bytes, backup->next_request(0).begin());
    backup->send(0, request.bytes.size());
    std::optional<Error> refused;
    std::optional<std::size_t> bytes;
    try {
      bytes = shards.answer(request.bytes, reply, request.waited);
    } catch (const Error& error) {
      refused = error;
    }
    wait_for_backup();
    if (refused) throw *refused;
    return bytes;
  }

  void wait_for_backup() {
    try {
      backup->take_reply(0);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::deadline_exceeded) go_on_without_backup();
    }
  }

  // Nothing is acknowledged until it is clear that the partner has ended, or has a whole copy.
  void go_on_without_backup() {
    backup.reset();
    while (!stop.stop_requested()) {
      const Process process = process_at(pair->partner);
      if (process == Process::ended) {
        log::warning(text("the backup at ", pair->partner, " has ended; ", place, " goes on alone"));
        return;
      }
      if (process == Process::listens && take_backup()) return;
      std::this_thread::sleep_for(kBetween);
    }
    throw Superseded();  // it ends without saying how far it came
  }

  // False: it cannot be reached now.
  bool take_backup() {
    try {
      if (ask_who_leads(true)) throw Superseded();
      RequestClient::Options options{.deadline = Seconds(10), .reconnect = Seconds(0.5), .wants = Wants::standby};
      auto client = std::make_unique<RequestClient>(std::vector{pair->partner}, secret, options);
      const auto take = [&client] { client->take_reply(0); };
      shards.copy(
          [&] {
            if (client->under_way(0) == RequestClient::kMostUnderWay) take();
            return client->next_request(0);
          },
          [&](std::size_t bytes) { client->send(0, bytes); });
      while (client->under_way(0) > 0) take();
      backup = std::move(client);
      log::info(text("the server at ", pair->partner, " is the backup of ", place));
      return true;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::resource_exhausted)
        log::warning(text(place, " has no backup: ", error.what()));
      else
        log::debug(text("no backup yet: ", error.what()));
      return false;
    }
  }

  // Whether the partner does; where this server does not and so holds nothing, a partner that has everything does from now on. Throws as
  // RequestClient does.
  bool ask_who_leads(bool self_leads) const {
    RequestClient client({pair->partner}, secret, {.deadline = Seconds(0.5), .reconnect = Seconds(0), .wants = Wants::any});
    MessageWriter out(client.next_request(0));
    out.add<AskHeader>(1).front() = {
        .ask = Ask::who_leads, .table = self_leads ? 1u : 0u, .count = 0, .client = 0, .number = static_cast<std::uint64_t>(pair->first)};
    client.send(0, out.written());
    return MessageReader(client.take_reply(0)).take<Leads>(1).front().leads != 0;
  }

  // A backup has no part in files: what was loaded it is given as a copy.
  std::optional<std::size_t> save_or_load(const comm::RequestServer::Request& request, std::span<std::byte> reply) {
    MessageReader in(request.bytes);
    const AskHeader header = in.take<AskHeader>(1).front();
    MessageWriter out(reply);
    if (header.ask == Ask::saved) {
      const auto written = saves.written();
      if (!written && request.waited < kLongestWait) return {};
      if (written) out.add(std::span<const char>(to_json(*written)));
      return out.written();
    }
    const std::span<const char> json = in.take<char>(header.count);
    const SaveOrder order = save_order_from_json({json.begin(), json.end()});
    if (header.ask == Ask::save) {
      saves.begin(order, shards.tables());
    } else {
      saves.abandon();
      shards.empty_tables();
      load_tables(order, shards.tables());
      if (backup) go_on_without_backup();
    }
    return out.written();
  }

  std::size_t say_status(std::span<std::byte> reply) const {
    ServerStatus status = shards.status();
    if (backup) status.backup = pair->partner;
    MessageWriter out(reply);
    out.add(std::span<const char>(to_json(status)));
    return out.written();
  }

  std::size_t say_who_leads(std::span<const std::byte> request, std::span<std::byte> reply) {
    const AskHeader header = header_of(request);
    if (!pair || static_cast<Pair::First>(header.number) == pair->first)
      throw Error(ErrorCode::invalid_config, text("both servers of a pair are told the same, or ", place, " knows of no pair"), {},
                  "one with --backup, and the other with --backup-of");
    // A partner that begins has lost what this one may have.
    const bool partner_leads = header.table != 0;
    if (!leads && !partner_leads && !shards.empty() && !shards.incomplete()) lead("its partner has begun anew");
    MessageWriter out(reply);
    out.add<Leads>(1).front() = {leads ? 1u : 0u, 0};
    return out.written();
  }

  void lead(const char* why) {
    leads = true;
    leader.reset();
    requests.stand_by(false);
    log::info(text("the server at ", place, " leads: ", why));
  }

  // What a pair's server does beside answering.
  void look_at_partner() {
    const auto now = SteadyClock::now();
    if (!pair || backup || now - looked < kBetween) return;
    looked = now;
    if (leads) {
      if (process_at(pair->partner) == Process::listens) take_backup();
    } else if (leader) {
      if (!requests.is_connected(*leader) && process_at(pair->partner) == Process::ended) {
        if (shards.incomplete())
          log::warning(text("the leader at ", pair->partner, " has ended before ", place, " had a whole copy"));
        else
          lead("its leader has ended");
      }
    } else if (!asking.valid()) {
      asking = std::async(std::launch::async, [this] { return begin(); });
    } else if (asking.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
      if (asking.get() == Begin::leads && !leads) lead("no other does");
    }
  }

  // Of a server that holds nothing, on a thread of its own: the partner may be asking, too.
  enum class Begin { leads, waits };
  Begin begin() const {
    const Begin alone = pair->first == Pair::First::leads ? Begin::leads : Begin::waits;
    if (process_at(pair->partner) == Process::ended) return alone;
    try {
      return ask_who_leads(false) ? Begin::waits : alone;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::invalid_config) log::warning(error.what());
      return Begin::waits;
    }
  }

  std::string place, secret;
  std::optional<Pair> pair;
  comm::RequestServer requests;
  Shards shards;
  Saves saves{real_file_system()};  // of the shards' tables
  bool leads = false;
  std::unique_ptr<RequestClient> backup;                     // of a leader whose standby has everything
  std::optional<comm::RequestServer::ClientId> leader = {};  // of a standby: who has asked it last
  std::future<Begin> asking;
  SteadyClock::time_point looked;
  std::stop_token stop;
};

Server::Server(const std::string& place, const std::string& secret, const ServerOptions& options)
    : impl_(std::make_unique<Impl>(place, secret, options)) {}
Server::~Server() = default;

void Server::serve(const std::stop_token& stop) {
  impl_->stop = stop;
  try {
    impl_->requests.serve(
        [this](const comm::RequestServer::Request& request, std::span<std::byte> reply) { return impl_->answer(request, reply); }, stop,
        [this] {
          impl_->look_at_partner();
          return impl_->saves.go_on();
        });
  } catch (const Superseded&) {
    if (stop.stop_requested()) return;
    throw Error(ErrorCode::peer_lost, text("the server at ", impl_->pair->partner, " leads now, and ", impl_->place, " ends"), {}, "",
                "start it again: it will stand by");
  }
}

}  // namespace tessera::ps
