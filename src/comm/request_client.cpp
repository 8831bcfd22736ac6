#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "base/secret.hpp"
#include "base/units.hpp"
#include "comm/frames.hpp"
#include "comm/proof.hpp"
#include "comm/rendezvous_messages.hpp"
#include "comm/request_wire.hpp"
#include "comm/requests.hpp"

namespace tessera::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kConnectAgain(20);
constexpr Seconds kConnecting(60);
constexpr microseconds kAnswerSpin(20);  // as the server's

SteadyClock::time_point after(Seconds seconds) {
  return SteadyClock::now() +
         std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(std::min(seconds.value, 1e8)));
}

[[noreturn]] void throw_gone(const std::string& place) {
  throw Error(ErrorCode::peer_lost, text("the server at ", place, " is gone: it has ended or has closed the connection"), {}, "",
              "its log says why");
}

[[noreturn]] void throw_late(const std::string& place, const char* what, Seconds deadline) {
  throw Error(ErrorCode::deadline_exceeded, text("the server at ", place, " ", what, " within ", to_text(deadline)), {}, "",
              "see that it runs and that this host reaches it");
}

[[noreturn]] void throw_stranger(const std::string& place) {
  throw Error(ErrorCode::invalid_config, text("the server at ", place, " and this client do not have the same secret"), {},
              text("the same ", kSecretVariable, " on both, or ", kSecretFileVariable));
}

// The places of a server and its backup.
std::vector<std::string> alternatives_of(const std::string& place) {
  const std::size_t slash = place.find('/');
  if (slash == std::string::npos) return {place};
  return {place.substr(0, slash), place.substr(slash + 1)};
}

}  // namespace

struct RequestClient::Impl {
  struct Slot {
    MessageBuffer request = {}, reply = {};
    std::size_t request_bytes = 0;
    bool received = true;
    MessageHeader told = {};  // of the reply
  };
  struct Server {
    std::vector<std::string> places;  // of which the one at `at` is asked
    std::size_t at = 0;
    MessageStream stream = {};
    std::uint64_t asked = 0, taken = 0;
    std::array<Slot, kMostUnderWay> slots = {};
    const std::string& place() const { return places[at]; }
    Slot& slot_of(std::uint64_t number) { return slots[number % kMostUnderWay]; }
  };

  Impl(const std::vector<std::string>& places, const std::string& given_secret, const Options& given)
      : options(given), secret(given_secret) {
    const Seconds connecting = std::min(options.deadline, kConnecting);
    const auto until = after(connecting);
    for (const std::string& place : places) {
      Server& server = servers.emplace_back();
      server.places = alternatives_of(place);
      while (!connect(server, until, Strangers::refused)) {
        if (SteadyClock::now() > until) throw_late(place, "was not there", connecting);
        check_wanted(place);
        std::this_thread::sleep_for(kConnectAgain);
      }
    }
  }

  // Servers that do not know the secret.
  enum class Strangers { refused, tried_again };

  // Tries each of its places once, from the current one on. False: none of them takes clients.
  bool connect(Server& server, SteadyClock::time_point until, Strangers strangers) {
    for (std::size_t i = 0; i < server.places.size(); ++i, server.at = (server.at + 1) % server.places.size()) {
      Descriptor socket = connect_once(parse_host_port(server.place()), std::min(left_until(until), milliseconds(2000)));
      if (!socket) continue;
      if (Descriptor nearer = connect_beside(socket)) socket = std::move(nearer);
      FrameSocket introducing(std::move(socket));
      if (!introduce(introducing, server.place(), until, strangers)) continue;
      server.stream = MessageStream(introducing.release());
      return true;
    }
    return false;
  }

  bool introduce(FrameSocket& socket, const std::string& place, SteadyClock::time_point until, Strangers strangers) const {
    const auto stranger = [&] {
      if (strangers == Strangers::refused) throw_stranger(place);
      return false;
    };
    Conversation talk{secret, random_bytes(kNonceBytes), {}};
    socket.send(to_json(Greeting{talk.rank_nonce}));
    const auto first = receive(socket, place, until);
    if (!first) return false;
    const Challenge challenge = challenge_from(*first);
    talk.host_nonce = challenge.nonce;
    if (!is_proof(challenge.proof, talk, Statement::server_knows_the_secret)) return stranger();
    const std::string body = to_body(ClientWords{options.wants});
    socket.send(to_json(Sealed{body, proof_of(talk, Statement::asks_to_be_a_client, body)}));
    const auto second = receive(socket, place, until);
    if (!second) return false;  // it knows the secret, and so this one: the connection was lost
    const Sealed sealed = sealed_from(*second);
    if (!is_proof(sealed.proof, talk, Statement::takes_the_client, sealed.body)) return stranger();
    return server_words_from(sealed.body).taken;
  }
  void check_wanted(const std::string& place) const {
    if (options.interrupted != nullptr && *options.interrupted)
      throw Error(ErrorCode::interrupted, text("the answer of the server at ", place, " is not waited for any more"));
  }

  // No message: it has closed the connection.
  std::optional<nlohmann::json> receive(FrameSocket& socket, const std::string& place, SteadyClock::time_point until) const {
    const auto begun = SteadyClock::now();
    for (;;) {
      const std::chrono::duration<double> waited = SteadyClock::now() - begun;
      const bool open = socket.receive();
      if (auto message = socket.next()) return message;
      if (!open) return {};
      if (SteadyClock::now() > until) throw_late(place, "is there, and has not taken this client", Seconds(waited.count()));
      check_wanted(place);
      wait_readable(socket.fd(), std::min(left_until(until), milliseconds(1000)));
    }
  }

  // Connects anew and asks again what has no reply yet. Throws peer_lost where that is not wanted or does not succeed in time.
  void recover(Server& server) {
    if (options.reconnect.value == 0) throw_gone(server.place());
    const auto until = after(options.reconnect);
    server.stream.close();
    while (!connect(server, until, Strangers::tried_again)) {
      if (SteadyClock::now() > until) throw_gone(server.place());
      check_wanted(server.place());
      std::this_thread::sleep_for(kConnectAgain);
    }
    ++reconnections;
    for (std::uint64_t number = server.taken; number < server.asked; ++number)
      if (!server.slot_of(number).received) begin(server, number);
  }

  void send(Server& server, std::size_t bytes) {
    Slot& slot = server.slot_of(server.asked);
    slot.request_bytes = bytes;
    slot.received = false;
    begin(server, server.asked++);
  }
  static void begin(Server& server, std::uint64_t number) {
    const Slot& slot = server.slot_of(number);
    server.stream.send({.number = number}, slot.request.all().first(slot.request_bytes));
  }

  std::span<const std::byte> take(Server& server) {
    Slot& slot = server.slot_of(server.taken);
    wait_for(server, slot);
    ++server.taken;
    const std::span<const std::byte> body = slot.reply.all().first(slot.told.bytes);
    if (slot.told.failed != 0) throw_told(server, body);
    return body;
  }

  [[noreturn]] static void throw_told(const Server& server, std::span<const std::byte> body) {
    const nlohmann::json told = parse_object({reinterpret_cast<const char*>(body.data()), body.size()});
    throw Error(static_cast<ErrorCode>(told.value("code", static_cast<int>(ErrorCode::internal))),
                text("server ", server.place(), ": ", told.value("message", "")), {}, told.value("expected", ""), told.value("hint", ""));
  }

  void wait_for(Server& server, const Slot& slot) {
    const auto begun = SteadyClock::now();
    auto until = after(options.deadline);
    for (;;) {
      bool moved = false;
      for (Server& one : servers) moved |= advance(one);
      if (slot.received) return;
      if (!server.stream.open()) {
        const auto lost = SteadyClock::now();
        recover(server);
        until += SteadyClock::now() - lost;
      }
      const auto now = SteadyClock::now();
      if (moved || now - begun < kAnswerSpin) continue;
      check_wanted(server.place());
      if (now > until) throw_late(server.place(), "has not answered", options.deadline);
      std::vector<pollfd> watched;
      for (const Server& one : servers)
        if (one.stream.open()) {
          const int events = one.stream.has_unsent() ? POLLIN | POLLOUT : POLLIN;
          watched.push_back({one.stream.fd(), static_cast<short>(events), 0});
        }
      poll(watched.data(), watched.size(), static_cast<int>(std::min(left_until(until), milliseconds(1000)).count()));
    }
  }

  // Sends and receives what goes now. A connection that is lost is closed.
  static bool advance(Server& server) {
    if (!server.stream.open()) return false;
    bool moved = false, open = server.stream.flush();
    while (open) {
      const MessageStream::Came came = server.stream.receive([&server](const MessageHeader& header) {
        const bool asked = header.number >= server.taken && header.number < server.asked && !server.slot_of(header.number).received;
        return asked ? server.slot_of(header.number).reply.all().data() : nullptr;
      });
      open = came != MessageStream::Came::end;
      if (came != MessageStream::Came::message) break;
      Slot& slot = server.slot_of(server.stream.header().number);
      slot.told = server.stream.header();
      slot.received = moved = true;
    }
    if (!open) server.stream.close();
    return moved;
  }

  Options options;
  std::string secret;
  std::deque<Server> servers;
  std::int64_t reconnections = 0;
};

RequestClient::RequestClient(std::vector<std::string> places, const std::string& secret, const Options& options)
    : impl_(std::make_unique<Impl>(places, secret, options)) {}
RequestClient::~RequestClient() = default;
std::size_t RequestClient::servers() const { return impl_->servers.size(); }
std::span<std::byte> RequestClient::next_request(std::size_t server) {
  Impl::Server& asked = impl_->servers[server];
  return asked.slot_of(asked.asked).request.all();
}
void RequestClient::send(std::size_t server, std::size_t bytes) { impl_->send(impl_->servers[server], bytes); }
std::size_t RequestClient::under_way(std::size_t server) const {
  return static_cast<std::size_t>(impl_->servers[server].asked - impl_->servers[server].taken);
}
std::span<const std::byte> RequestClient::take_reply(std::size_t server) { return impl_->take(impl_->servers[server]); }
std::int64_t RequestClient::reconnections() const { return impl_->reconnections; }

}  // namespace tessera::comm
