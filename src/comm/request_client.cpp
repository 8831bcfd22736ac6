#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/secret.hpp"
#include "base/units.hpp"
#include "comm/frames.hpp"
#include "comm/proof.hpp"
#include "comm/rendezvous_messages.hpp"
#include "comm/request_wire.hpp"
#include "comm/requests.hpp"
#include "comm/ucx_worker.hpp"

namespace tessera::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr milliseconds kRetry(20);
constexpr microseconds kSpin(20);  // as the server's

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

// Where clients and servers run UCX over the same interfaces, loopback alone is no way to another host.
std::string interface_towards(const std::vector<std::string>& places) {
  std::string common;
  for (const std::string& place : places)
    for (const std::string& one : alternatives_of(place)) {
      const std::string interface = interface_of(local_address_towards(parse_host_port(one)));
      if (!common.empty() && common != interface) return {};
      common = interface;
    }
  return common;
}

}  // namespace

struct RequestClient::Impl {
  struct Slot {
    MessageBuffer request = {}, reply = {};
    std::size_t request_bytes = 0, reply_bytes = 0;
    bool sent = true, received = false;
    void* receiving = nullptr;
    bool busy() const { return receiving != nullptr || !sent; }
  };
  struct Server {
    std::vector<std::string> places;  // of which the one at `at` is asked
    std::size_t at = 0;
    FrameSocket socket;
    ucp_ep_h endpoint = nullptr;
    std::uint64_t session = 0, connection = 0;
    std::uint64_t asked = 0, taken = 0;
    bool broken = false;
    std::array<std::unique_ptr<Slot>, kMostUnderWay> slots = {};
    const std::string& place() const { return places[at]; }
    Slot& slot_of(std::uint64_t number) { return *slots[number % kMostUnderWay]; }
  };

  Impl(const std::vector<std::string>& places, const std::string& given_secret, const Options& given)
      : options(given), secret(given_secret), worker(interface_towards(places), true) {
    const auto until = after(options.deadline);
    for (const std::string& place : places) {
      Server& server = servers.emplace_back();
      server.places = alternatives_of(place);
      for (auto& slot : server.slots) slot = std::make_unique<Slot>();
      while (!connect(server, until, Strangers::refused)) {
        if (SteadyClock::now() > until) throw_late(place, "was not there", options.deadline);
        std::this_thread::sleep_for(kRetry);
      }
    }
  }
  ~Impl() {
    for (Server& server : servers) drop(server);
  }

  // No message: it has closed the connection.
  std::optional<nlohmann::json> receive(FrameSocket& socket, const std::string& place, SteadyClock::time_point until) const {
    for (;;) {
      const bool open = socket.receive();
      if (auto message = socket.next()) return message;
      if (!open) return {};
      if (SteadyClock::now() > until) throw_late(place, "has not answered", options.deadline);
      wait_readable(socket.fd(), std::min(left_until(until), milliseconds(1000)));
    }
  }

  // Of servers that do not know the secret. One that ends while it is asked looks like one.
  enum class Strangers { refused, tried_again };

  // Tries each of its places once, from the current one on. False: none of them takes clients.
  bool connect(Server& server, SteadyClock::time_point until, Strangers strangers) {
    for (std::size_t i = 0; i < server.places.size(); ++i, server.at = (server.at + 1) % server.places.size()) {
      Descriptor socket = connect_once(parse_host_port(server.place()), std::min(left_until(until), milliseconds(2000)));
      if (!socket) continue;
      server.socket = FrameSocket(std::move(socket));
      if (introduce(server, until, strangers)) return true;
    }
    return false;
  }

  bool introduce(Server& server, SteadyClock::time_point until, Strangers strangers) {
    const auto stranger = [&] {
      if (strangers == Strangers::refused) throw_stranger(server.place());
      return false;
    };
    Conversation talk{secret, random_bytes(kNonceBytes), {}};
    server.socket.send(to_json(Greeting{talk.rank_nonce}));
    const auto first = receive(server.socket, server.place(), until);
    if (!first) return false;
    const Challenge challenge = challenge_from(*first);
    talk.host_nonce = challenge.nonce;
    if (!is_proof(challenge.proof, talk, Statement::server_knows_the_secret)) return stranger();
    server.socket.trust();
    server.connection = ++connections;
    const std::string body = to_body(ClientWords{worker.address(), server.connection, options.to_standby});
    server.socket.send(to_json(Sealed{body, proof_of(talk, Statement::asks_to_be_a_client, body)}));
    const auto second = receive(server.socket, server.place(), until);
    if (!second) return stranger();
    const Sealed sealed = sealed_from(*second);
    if (!is_proof(sealed.proof, talk, Statement::takes_the_client, sealed.body)) return stranger();
    const ServerWords words = server_words_from(sealed.body);
    if (words.standby) return false;
    server.session = words.session;
    server.endpoint = connect_endpoint(worker.handle, words.network_address, &Impl::on_broken, this);
    return server.endpoint != nullptr;
  }

  // Connects anew and asks again what has no reply yet. Throws peer_lost where that is not wanted or does not succeed in time.
  void recover(Server& server) {
    const auto until = after(options.reconnect);
    do {
      drop(server);
      if (options.reconnect.value == 0) throw_gone(server.place());
      while (!connect(server, until, Strangers::tried_again)) {
        if (SteadyClock::now() > until) throw_gone(server.place());
        std::this_thread::sleep_for(kRetry);
      }
      server.broken = false;
      ++reconnections;
      for (std::uint64_t number = server.taken; number < server.asked; ++number)
        if (!server.slot_of(number).received) begin(server, number);
    } while (server.broken);
  }

  // Ends a connection that is lost, so that nothing of it reads or writes the slots any more.
  void drop(Server& server) {
    server.socket.close();
    if (const ucp_ep_h endpoint = std::exchange(server.endpoint, nullptr))
      worker.left_behind |= !close_endpoints(worker.handle, std::span(&endpoint, 1));
    for (auto& slot : server.slots)
      if (slot->receiving) ucp_request_cancel(worker.handle, slot->receiving);
    const auto give_up = after(Seconds(0.05));
    while (std::ranges::any_of(server.slots, [](const auto& slot) { return slot->busy(); }) && SteadyClock::now() < give_up)
      if (ucp_worker_progress(worker.handle) == 0) std::this_thread::sleep_for(microseconds(100));
    for (auto& slot : server.slots)
      if (slot->busy()) slot = leave_behind(*slot.release());
  }
  // UCX keeps a message of which a part has come, and never ends it: it gets the slot.
  std::unique_ptr<Slot> leave_behind(Slot& slot) {
    worker.left_behind = true;
    auto fresh = std::make_unique<Slot>();
    fresh->request_bytes = slot.request_bytes;
    std::ranges::copy(slot.request.body().first(slot.request_bytes), fresh->request.body().begin());
    return fresh;
  }

  static void on_broken(void* user, ucp_ep_h endpoint, ucs_status_t) {
    for (Server& server : static_cast<Impl*>(user)->servers)
      if (server.endpoint == endpoint) server.broken = true;
  }
  static void on_sent(void* request, ucs_status_t, void* user) {
    ucp_request_free(request);
    static_cast<Slot*>(user)->sent = true;
  }
  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* user) {
    ucp_request_free(request);
    Slot& slot = *static_cast<Slot*>(user);
    slot.receiving = nullptr;
    if (status != UCS_OK || info->length < kHeaderBytes) return;
    slot.received = true;
    slot.reply_bytes = info->length - kHeaderBytes;
  }

  void send(Server& server, std::size_t bytes) {
    server.slot_of(server.asked).request_bytes = bytes;
    begin(server, server.asked++);
  }
  void begin(Server& server, std::uint64_t number) {
    Slot& slot = server.slot_of(number);
    slot.sent = slot.received = false;
    slot.request.header<RequestHeader>() = {server.session, number};
    slot.receiving =
        begin_receive(worker.handle, slot.reply, reply_tag(server.connection, number), ~std::uint64_t{0}, &Impl::on_received, &slot);
    const ucs_status_ptr_t sending = begin_send(server.endpoint, slot.request, slot.request_bytes, kRequestTag, &Impl::on_sent, &slot);
    if (UCS_PTR_IS_PTR(sending)) return;
    slot.sent = true;
    server.broken |= UCS_PTR_STATUS(sending) != UCS_OK;
  }

  std::span<const std::byte> take(Server& server) {
    const std::uint64_t number = server.taken;
    wait_for(server, number);
    ++server.taken;
    Slot& slot = server.slot_of(number);
    const std::span<const std::byte> body = slot.reply.body().first(slot.reply_bytes);
    if (slot.reply.header<ReplyHeader>().failed != 0) throw_told(server, body);
    return body;
  }

  [[noreturn]] static void throw_told(const Server& server, std::span<const std::byte> body) {
    const nlohmann::json told = parse_object({reinterpret_cast<const char*>(body.data()), body.size()});
    throw Error(static_cast<ErrorCode>(told.value("code", static_cast<int>(ErrorCode::internal))),
                text("server ", server.place(), ": ", told.value("message", "")), {}, told.value("expected", ""), told.value("hint", ""));
  }

  void wait_for(Server& server, std::uint64_t number) {
    const auto begun = SteadyClock::now(), until = after(options.deadline);
    while (!server.slot_of(number).received || !server.slot_of(number).sent) {
      if (ucp_worker_progress(worker.handle) != 0) continue;
      const auto now = SteadyClock::now();
      if (now - begun < kSpin) continue;
      if (server.broken) {
        recover(server);
        continue;
      }
      if (now > until) throw_late(server.place(), "has not answered", options.deadline);
      if (ucp_worker_arm(worker.handle) != UCS_OK) continue;
      std::vector<pollfd> watched{{worker.event_descriptor, POLLIN, 0}};
      for (const Server& one : servers)
        if (!one.broken) watched.push_back({one.socket.fd(), POLLIN, 0});
      poll(watched.data(), watched.size(), static_cast<int>(std::min(left_until(until), milliseconds(1000)).count()));
      for (Server& one : servers) one.broken = one.broken || !one.socket.receive();
    }
  }

  Options options;
  std::string secret;
  UcxWorker worker;
  std::deque<Server> servers;
  std::uint64_t connections = 0;
  std::int64_t reconnections = 0;
};

RequestClient::RequestClient(std::vector<std::string> places, const std::string& secret, const Options& options)
    : impl_(std::make_unique<Impl>(places, secret, options)) {}
RequestClient::~RequestClient() = default;
std::size_t RequestClient::servers() const { return impl_->servers.size(); }
std::span<std::byte> RequestClient::next_request(std::size_t server) {
  Impl::Server& asked = impl_->servers[server];
  return asked.slot_of(asked.asked).request.body();
}
void RequestClient::send(std::size_t server, std::size_t bytes) { impl_->send(impl_->servers[server], bytes); }
std::size_t RequestClient::under_way(std::size_t server) const {
  return static_cast<std::size_t>(impl_->servers[server].asked - impl_->servers[server].taken);
}
std::span<const std::byte> RequestClient::take_reply(std::size_t server) { return impl_->take(impl_->servers[server]); }
std::int64_t RequestClient::reconnections() const { return impl_->reconnections; }

}  // namespace tessera::comm
