#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <list>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
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

constexpr std::size_t kPostedReceives = 8, kReplies = 16;
constexpr std::size_t kMostUnknown = 128;  // connections that have proved nothing yet
constexpr milliseconds kProofPatience(10'000), kLookEvery(20);
// How long a server that has nothing to do looks for the next request before it sleeps: waking up takes about as long.
constexpr microseconds kSpin(20);
constexpr int kLongestSleep = 250;  // milliseconds

void check_place(const HostPort& at, const std::string& place, const std::string& secret) {
  if (!secret.empty() || is_loopback(at)) return;
  throw Error(ErrorCode::invalid_config,
              text("a server at ", place, " has no secret, and other hosts can reach it: whoever does could ask"), {},
              text("a secret in ", kSecretVariable, ", or in the file that ", kSecretFileVariable, " names"),
              text("make one for servers and clients: export ", kSecretVariable, "=$(openssl rand -hex 32)"));
}

struct Session {
  std::uint64_t id = 0;
  FrameSocket socket;
  ucp_ep_h endpoint = nullptr;
  std::uint64_t reply_prefix = 0;
  bool broken = false;
  std::size_t replies_under_way = 0;
};

struct Unknown {
  FrameSocket socket;
  Conversation talk;
  SteadyClock::time_point since;
};

}  // namespace

struct RequestServer::Impl {
  Impl(const std::string& place, std::string given)
      : secret(std::move(given)),
        at(parse_host_port(place)),
        listener((check_place(at, place, secret), listen_at(at))),
        worker(interface_of(local_address_towards(at)), true) {
    for (std::size_t i = 0; i < kPostedReceives; ++i) post_another();
    for (Reply& reply : replies) {
      reply.server = this;
      free_replies.push_back(&reply);
    }
  }
  ~Impl() {
    std::vector<ucp_ep_h> endpoints;
    for (auto& [id, session] : sessions)
      if (session.endpoint) endpoints.push_back(session.endpoint);
    bool closed = close_endpoints(worker.handle, endpoints);
    for (Received& buffer : received)
      if (buffer.request) ucp_request_cancel(worker.handle, buffer.request);
    const auto give_up = SteadyClock::now() + milliseconds(500);
    const auto pending = [this] {
      return std::ranges::any_of(received, [](const Received& buffer) { return buffer.request != nullptr; }) ||
             free_replies.size() < kReplies;
    };
    while (pending() && SteadyClock::now() < give_up)
      if (ucp_worker_progress(worker.handle) == 0) std::this_thread::sleep_for(microseconds(100));
    closed &= !pending();
    worker.left_behind = !closed;
    if (closed) return;
    for (Received& buffer : received) buffer.bytes.leave_behind();
    for (Reply& reply : replies) reply.bytes.leave_behind();
  }

  struct Received {
    Impl* server = nullptr;
    MessageBuffer bytes = {};
    void* request = nullptr;
    std::size_t length = 0;
    std::optional<SteadyClock::time_point> waits_since = {};
  };
  struct Reply {
    Impl* server = nullptr;
    MessageBuffer bytes = {};
    std::uint64_t session = 0;
  };

  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* user) {
    auto& buffer = *static_cast<Received*>(user);
    buffer.request = nullptr;
    ucp_request_free(request);
    if (status == UCS_ERR_CANCELED) return;
    buffer.length = status == UCS_OK ? info->length : 0;
    buffer.server->arrived.push_back(&buffer);
  }
  static void on_sent(void* request, ucs_status_t, void* user) {
    auto& reply = *static_cast<Reply*>(user);
    ucp_request_free(request);
    reply.server->sent(reply);
  }
  static void on_broken(void* user, ucp_ep_h endpoint, ucs_status_t) {
    for (auto& [id, session] : static_cast<Impl*>(user)->sessions)
      if (session.endpoint == endpoint) session.broken = true;
  }

  void sent(Reply& reply) {
    free_replies.push_back(&reply);
    if (const auto found = sessions.find(reply.session); found != sessions.end()) --found->second.replies_under_way;
  }

  void post(Received& buffer) {
    buffer.request = begin_receive(worker.handle, buffer.bytes, kRequestTag, kRequestTag, &Impl::on_received, &buffer);
  }

  void post_another() {
    received.emplace_back().server = this;
    post(received.back());
  }

  // One request that has come, if there is room for its reply.
  bool answer_next(const Answer& answer) {
    if (arrived.empty() || free_replies.empty()) return false;
    Received& buffer = *arrived.front();
    arrived.pop_front();
    if (answer_one(buffer, answer)) {
      waiting_may_go_on = !waiting.empty();
    } else {
      buffer.waits_since = SteadyClock::now();
      waiting.push_back(&buffer);
      post_another();
    }
    return true;
  }
  // Those that had to wait, once more.
  void answer_waiting(const Answer& answer) {
    waiting_may_go_on = false;
    for (std::size_t left = waiting.size(); left > 0 && !free_replies.empty(); --left) {
      Received& buffer = *waiting.front();
      waiting.pop_front();
      if (!answer_one(buffer, answer)) waiting.push_back(&buffer);
    }
  }

  // False: it has to wait. Otherwise the buffer is used for another one.
  bool answer_one(Received& buffer, const Answer& answer) {
    const RequestHeader header = buffer.bytes.header<RequestHeader>();
    const auto found = buffer.length < kHeaderBytes ? sessions.end() : sessions.find(header.session);
    if (found != sessions.end() && !found->second.broken) {
      Reply& reply = *free_replies.back();
      const std::optional<std::size_t> bytes = fill(reply, header.number, request_in(buffer), answer);
      if (!bytes) return false;
      free_replies.pop_back();
      send(found->second, reply, header.number, *bytes);
    }
    buffer.waits_since.reset();
    post(buffer);
    return true;
  }

  static Request request_in(const Received& buffer) {
    Request request{.client = buffer.bytes.header<RequestHeader>().session, .bytes = buffer.bytes.body().first(buffer.length - kHeaderBytes)};
    if (buffer.waits_since)
      request.waited = Seconds(std::chrono::duration<double>(SteadyClock::now() - *buffer.waits_since).count());
    return request;
  }

  std::optional<std::size_t> fill(Reply& reply, std::uint64_t number, const Request& request, const Answer& answer) {
    ReplyHeader& head = reply.bytes.header<ReplyHeader>();
    head = {number, 0};
    try {
      return answer(request, reply.bytes.body());
    } catch (const Error& error) {
      head.failed = 1;
      const std::string words = nlohmann::json{
          {"code", static_cast<int>(error.code())},
          {"message", error.message()},
          {"expected", error.expected()},
          {"hint", error.hint()}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      const std::size_t bytes = std::min(words.size(), kMostMessageBytes);
      std::memcpy(reply.bytes.body().data(), words.data(), bytes);
      return bytes;
    }
  }

  void send(Session& session, Reply& reply, std::uint64_t number, std::size_t bytes) {
    reply.session = session.id;
    ++session.replies_under_way;
    const ucs_status_ptr_t request =
        begin_send(session.endpoint, reply.bytes, bytes, reply_tag(session.reply_prefix, number), &Impl::on_sent, &reply);
    if (UCS_PTR_IS_PTR(request)) return;
    session.broken |= UCS_PTR_STATUS(request) != UCS_OK;
    sent(reply);
  }

  // Connections: those that come, those that are proved, those that end.
  void look() {
    while (unknown.size() < kMostUnknown) {
      Descriptor socket = accept_from(listener);
      if (!socket) break;
      unknown.push_back({FrameSocket(std::move(socket)), {secret, {}, {}}, SteadyClock::now()});
    }
    for (Unknown& one : unknown) hear(one);
    std::erase_if(unknown, [](const Unknown& one) { return !one.socket.open(); });
    for (auto& [id, session] : sessions) session.broken |= !session.socket.receive();
    for (auto one = sessions.begin(); one != sessions.end();) {
      Session& session = one->second;
      if (session.broken && session.endpoint) {
        // What is under way to it is called back meanwhile.
        const ucp_ep_h endpoint = std::exchange(session.endpoint, nullptr);
        worker.left_behind |= !close_endpoints(worker.handle, std::span(&endpoint, 1));
      }
      one = session.broken && session.replies_under_way == 0 ? sessions.erase(one) : std::next(one);
    }
  }

  void hear(Unknown& one) {
    try {
      const bool open = one.socket.receive();
      while (const auto message = one.socket.next())
        if (judge(one, *message)) return;
      if (open && SteadyClock::now() - one.since < kProofPatience) return;
    } catch (const Error& error) {
      log::debug(text("a connection was refused: ", error.what()));
    }
    one.socket.close();
  }

  // True: it is a client now, or was sent away.
  bool judge(Unknown& one, const nlohmann::json& message) {
    if (one.talk.rank_nonce.empty()) {
      one.talk.rank_nonce = greeting_from(message).nonce;
      one.talk.host_nonce = random_bytes(kNonceBytes);
      one.socket.send(to_json(Challenge{one.talk.host_nonce, proof_of(one.talk, Statement::server_knows_the_secret)}));
      return false;
    }
    const Sealed sealed = sealed_from(message);
    if (!is_proof(sealed.proof, one.talk, Statement::asks_to_be_a_client, sealed.body))
      throw Error(ErrorCode::invalid_config, "it does not know the secret");
    const ClientWords words = client_words_from(sealed.body);
    if (standby && !words.to_standby) {
      const std::string body = to_body(ServerWords{.network_address = {}, .session = 0, .standby = true});
      one.socket.send(to_json(Sealed{body, proof_of(one.talk, Statement::takes_the_client, body)}));
      one.socket.close();
      return true;
    }
    Session session;
    std::memcpy(&session.id, random_bytes(sizeof session.id).data(), sizeof session.id);
    session.reply_prefix = words.connection;
    session.endpoint = connect_endpoint(worker.handle, words.network_address, &Impl::on_broken, this);
    if (!session.endpoint) throw Error(ErrorCode::io, "UCX cannot reach it");
    const std::string body = to_body(ServerWords{.network_address = worker.address(), .session = session.id});
    one.socket.send(to_json(Sealed{body, proof_of(one.talk, Statement::takes_the_client, body)}));
    session.socket = std::move(one.socket);
    one.socket = FrameSocket();
    sessions.emplace(session.id, std::move(session));
    return true;
  }

  void sleep(int woken) {
    if (ucp_worker_arm(worker.handle) != UCS_OK) return;
    std::vector<pollfd> watched{{worker.event_descriptor, POLLIN, 0}, {woken, POLLIN, 0}, {listener.get(), POLLIN, 0}};
    for (const Unknown& one : unknown) watched.push_back({one.socket.fd(), POLLIN, 0});
    for (const auto& [id, session] : sessions) watched.push_back({session.socket.fd(), POLLIN, 0});
    poll(watched.data(), watched.size(), kLongestSleep);
  }

  void serve(const Answer& answer, const std::stop_token& stop, const Meanwhile& meanwhile) {
    const Descriptor woken(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const std::stop_callback wake(stop, [&woken] {
      const std::uint64_t one = 1;
      [[maybe_unused]] const auto written = write(woken.get(), &one, sizeof one);
    });
    auto looked = SteadyClock::time_point(), busy = SteadyClock::now();
    while (!stop.stop_requested()) {
      bool moved = ucp_worker_progress(worker.handle) != 0;
      while (answer_next(answer)) moved = true;
      if (waiting_may_go_on) answer_waiting(answer);
      const auto now = SteadyClock::now();
      if (now - looked > kLookEvery) {
        looked = now;
        look();
        answer_waiting(answer);
        if (meanwhile) meanwhile();
      }
      if (!moved && meanwhile) moved = meanwhile();
      if (moved) {
        busy = now;
      } else if (now - busy > kSpin) {
        sleep(woken.get());
        busy = SteadyClock::now();
        look();
      }
    }
  }

  std::string secret;
  HostPort at;
  Descriptor listener;
  UcxWorker worker;
  std::deque<Received> received;  // as many more as requests have had to wait at once
  std::array<Reply, kReplies> replies;
  std::vector<Reply*> free_replies;
  std::deque<Received*> arrived, waiting;
  bool waiting_may_go_on = false;
  bool standby = false;
  std::list<Unknown> unknown;
  std::unordered_map<std::uint64_t, Session> sessions;
};

RequestServer::RequestServer(const std::string& place, const std::string& secret) : impl_(std::make_unique<Impl>(place, secret)) {}
RequestServer::~RequestServer() = default;
void RequestServer::serve(const Answer& answer, const std::stop_token& stop, const Meanwhile& meanwhile) {
  impl_->serve(answer, stop, meanwhile);
}
void RequestServer::stand_by(bool standby) { impl_->standby = standby; }
bool RequestServer::is_connected(ClientId client) const {
  const auto found = impl_->sessions.find(client);
  return found != impl_->sessions.end() && !found->second.broken;
}

}  // namespace tessera::comm
