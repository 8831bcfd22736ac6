#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <nlohmann/json.hpp>
#include <thread>

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

// Where clients and servers run UCX over the same interfaces, loopback alone is no way to another host.
std::string interface_towards(const std::vector<std::string>& places) {
  std::string common;
  for (const std::string& place : places) {
    const std::string interface = interface_of(local_address_towards(parse_host_port(place)));
    if (!common.empty() && common != interface) return {};
    common = interface;
  }
  return common;
}

}  // namespace

struct RequestClient::Impl {
  struct Slot {
    MessageBuffer request = {}, reply = {};
    bool sent = false, received = false;
    std::size_t reply_bytes = 0;
    void* receiving = nullptr;
  };
  struct Server {
    std::string place;
    FrameSocket socket;
    ucp_ep_h endpoint = nullptr;
    std::uint64_t session = 0, index = 0;
    std::uint64_t asked = 0, taken = 0;
    bool broken = false;
    std::array<Slot, kMostUnderWay> slots = {};
  };

  Impl(const std::vector<std::string>& places, const std::string& secret, Seconds given)
      : deadline(given), worker(interface_towards(places), true) {
    const auto until = after(deadline);
    for (const std::string& place : places) {
      Server& server = servers.emplace_back();
      server.place = place;
      server.index = servers.size() - 1;
      connect(server, secret, until);
    }
  }
  ~Impl() {
    std::vector<ucp_ep_h> endpoints;
    for (const Server& server : servers)
      if (server.endpoint) endpoints.push_back(server.endpoint);
    bool closed = close_endpoints(worker.handle, endpoints);
    for (Server& server : servers)
      for (Slot& slot : server.slots)
        if (slot.receiving) ucp_request_cancel(worker.handle, slot.receiving);
    const auto give_up = after(Seconds(0.5));
    const auto pending = [this] {
      return std::ranges::any_of(servers, [](const Server& server) {
        return std::ranges::any_of(server.slots, [](const Slot& slot) { return slot.receiving != nullptr; });
      });
    };
    while (pending() && SteadyClock::now() < give_up)
      if (ucp_worker_progress(worker.handle) == 0) std::this_thread::sleep_for(microseconds(100));
    closed &= !pending();
    worker.left_behind = !closed;
    if (closed) return;
    for (Server& server : servers)
      for (Slot& slot : server.slots) {
        slot.request.leave_behind();
        slot.reply.leave_behind();
      }
  }

  nlohmann::json receive(FrameSocket& socket, const std::string& place, SteadyClock::time_point until) const {
    for (;;) {
      const bool open = socket.receive();
      if (auto message = socket.next()) return std::move(*message);
      if (!open) throw_stranger(place);
      if (SteadyClock::now() > until) throw_late(place, "has not answered", deadline);
      wait_readable(socket.fd(), std::min(left_until(until), milliseconds(1000)));
    }
  }

  void connect(Server& server, const std::string& secret, SteadyClock::time_point until) {
    Descriptor socket;
    while (!(socket = connect_once(parse_host_port(server.place), std::min(left_until(until), milliseconds(2000))))) {
      if (SteadyClock::now() > until) throw_late(server.place, "was not there", deadline);
      std::this_thread::sleep_for(kRetry);
    }
    server.socket = FrameSocket(std::move(socket));
    Conversation talk{secret, random_bytes(kNonceBytes), {}};
    server.socket.send(to_json(Greeting{talk.rank_nonce}));
    const Challenge challenge = challenge_from(receive(server.socket, server.place, until));
    talk.host_nonce = challenge.nonce;
    if (!is_proof(challenge.proof, talk, Statement::server_knows_the_secret)) throw_stranger(server.place);
    server.socket.trust();
    const std::string body = to_body(ClientWords{worker.address(), server.index});
    server.socket.send(to_json(Sealed{body, proof_of(talk, Statement::asks_to_be_a_client, body)}));
    const Sealed sealed = sealed_from(receive(server.socket, server.place, until));
    if (!is_proof(sealed.proof, talk, Statement::takes_the_client, sealed.body)) throw_stranger(server.place);
    const ServerWords words = server_words_from(sealed.body);
    server.session = words.session;
    server.endpoint = connect_endpoint(worker.handle, words.network_address, &Impl::on_broken, this);
    if (!server.endpoint) throw_gone(server.place);
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
    Slot& slot = server.slots[server.asked % kMostUnderWay];
    slot.sent = slot.received = false;
    slot.request.header<RequestHeader>() = {server.session, server.asked};
    slot.receiving =
        begin_receive(worker.handle, slot.reply, reply_tag(server.index, server.asked), ~std::uint64_t{0}, &Impl::on_received, &slot);
    const ucs_status_ptr_t sending = begin_send(server.endpoint, slot.request, bytes, kRequestTag, &Impl::on_sent, &slot);
    if (!UCS_PTR_IS_PTR(sending)) {
      slot.sent = true;
      server.broken |= UCS_PTR_STATUS(sending) != UCS_OK;
    }
    ++server.asked;
  }

  std::span<const std::byte> take(Server& server) {
    Slot& slot = server.slots[server.taken % kMostUnderWay];
    wait_for(server, slot);
    ++server.taken;
    const std::span<const std::byte> body = slot.reply.body().first(slot.reply_bytes);
    if (slot.reply.header<ReplyHeader>().failed != 0) throw_told(server, body);
    return body;
  }

  [[noreturn]] static void throw_told(const Server& server, std::span<const std::byte> body) {
    const nlohmann::json told = parse_object({reinterpret_cast<const char*>(body.data()), body.size()});
    throw Error(static_cast<ErrorCode>(told.value("code", static_cast<int>(ErrorCode::internal))),
                text("server ", server.place, ": ", told.value("message", "")), {}, told.value("expected", ""), told.value("hint", ""));
  }

  void wait_for(Server& server, const Slot& slot) {
    const auto begun = SteadyClock::now(), until = after(deadline);
    while (!slot.sent || !slot.received) {
      if (ucp_worker_progress(worker.handle) != 0) continue;
      const auto now = SteadyClock::now();
      if (now - begun < kSpin) continue;
      if (server.broken) throw_gone(server.place);
      if (now > until) throw_late(server.place, "has not answered", deadline);
      if (ucp_worker_arm(worker.handle) != UCS_OK) continue;
      std::vector<pollfd> watched{{worker.event_descriptor, POLLIN, 0}};
      for (const Server& one : servers) watched.push_back({one.socket.fd(), POLLIN, 0});
      poll(watched.data(), watched.size(), static_cast<int>(std::min(left_until(until), milliseconds(1000)).count()));
      for (Server& one : servers)
        if (!one.socket.receive()) throw_gone(one.place);
    }
  }

  Seconds deadline;
  UcxWorker worker;
  std::deque<Server> servers;
};

RequestClient::RequestClient(std::vector<std::string> places, const std::string& secret, Seconds deadline)
    : impl_(std::make_unique<Impl>(places, secret, deadline)) {}
RequestClient::~RequestClient() = default;
std::size_t RequestClient::servers() const { return impl_->servers.size(); }
std::span<std::byte> RequestClient::next_request(std::size_t server) {
  Impl::Server& asked = impl_->servers[server];
  return asked.slots[asked.asked % kMostUnderWay].request.body();
}
void RequestClient::send(std::size_t server, std::size_t bytes) { impl_->send(impl_->servers[server], bytes); }
std::size_t RequestClient::under_way(std::size_t server) const {
  return static_cast<std::size_t>(impl_->servers[server].asked - impl_->servers[server].taken);
}
std::span<const std::byte> RequestClient::take_reply(std::size_t server) { return impl_->take(impl_->servers[server]); }

}  // namespace tessera::comm
