#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <list>
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

namespace tessera::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::size_t kMostUnknown = 128;  // connections that have proved nothing yet
constexpr milliseconds kProofPatience(10'000), kLookEvery(20);
// How long a server that has nothing to do looks for the next request before it sleeps: waking up takes about as long.
constexpr microseconds kSpin(20);
constexpr int kLongestSleep = 100;  // milliseconds
constexpr std::uint32_t kComing = EPOLLIN | EPOLLRDHUP;

void check_place(const HostPort& at, const std::string& place, const std::string& secret) {
  if (!secret.empty() || is_loopback(at)) return;
  throw Error(ErrorCode::invalid_config,
              text("a server at ", place, " has no secret, and other hosts can reach it: whoever does could ask"), {},
              text("a secret in ", kSecretVariable, ", or in the file that ", kSecretFileVariable, " names"),
              text("make one for servers and clients: export ", kSecretVariable, "=$(openssl rand -hex 32)"));
}

struct Unknown {
  FrameSocket socket;
  Conversation talk;
  SteadyClock::time_point since;
};

// A request from when it begins to come until its reply is sent.
struct Exchange {
  MessageBuffer request = {}, reply = {};
  MessageHeader header = {};
  std::uint64_t session = 0;
  std::optional<SteadyClock::time_point> waits_since = {};
};

struct Session {
  std::uint64_t id = 0;
  MessageStream stream;
  Exchange* coming = nullptr;
  std::deque<Exchange*> leaving = {};  // whose replies are on their way
  std::uint64_t left = 0;              // replies that were sent
  std::size_t waiting = 0;             // requests that have come and have no reply yet
  bool watched_for_room = false;
};

}  // namespace

struct RequestServer::Impl {
  Impl(const std::string& place, std::string given)
      : secret(std::move(given)),
        at(parse_host_port(place)),
        listener((check_place(at, place, secret), listen_at(at))),
        beside(listen_beside(listener)),
        events(epoll_create1(EPOLL_CLOEXEC)) {
    if (!events) throw Error(ErrorCode::io, "this process can watch no connections: epoll_create1 fails");
    watch(listener.get(), 0, EPOLLIN, EPOLL_CTL_ADD);
    if (beside) watch(beside.get(), 0, EPOLLIN, EPOLL_CTL_ADD);
  }

  void watch(int descriptor, std::uint64_t session, std::uint32_t what, int operation) const {
    epoll_event event{};
    event.events = what;
    event.data.u64 = session;
    epoll_ctl(events.get(), operation, descriptor, &event);
  }

  Exchange& free_exchange() {
    if (unused.empty()) unused.push_back(&exchanges.emplace_back());
    Exchange& exchange = *unused.back();
    unused.pop_back();
    exchange.waits_since.reset();
    return exchange;
  }

  // Takes what has come from a client and answers it. True: something has.
  bool hear(Session& session, const Answer& answer) {
    bool moved = false;
    for (;;) {
      if (session.waiting + session.leaving.size() >= RequestClient::kMostUnderWay) return moved;
      if (!session.coming) session.coming = &free_exchange();
      const MessageStream::Came came =
          session.stream.receive([&session](const MessageHeader&) { return session.coming->request.all().data(); });
      if (came == MessageStream::Came::nothing) return moved;
      if (came == MessageStream::Came::end) {
        session.stream.close();
        return true;
      }
      moved = true;
      Exchange& exchange = *std::exchange(session.coming, nullptr);
      exchange.header = session.stream.header();
      exchange.session = session.id;
      if (reply_to(session, exchange, answer)) {
        waiting_may_go_on = !waiting.empty();
      } else {
        exchange.waits_since = SteadyClock::now();
        ++session.waiting;
        waiting.push_back(&exchange);
      }
    }
  }

  // Requests that had to wait, once more.
  void answer_waiting(const Answer& answer) {
    waiting_may_go_on = false;
    for (std::size_t left = waiting.size(); left > 0; --left) {
      Exchange& exchange = *waiting.front();
      waiting.pop_front();
      const auto found = sessions.find(exchange.session);
      if (found == sessions.end())
        unused.push_back(&exchange);
      else if (reply_to(found->second, exchange, answer))
        --found->second.waiting;
      else
        waiting.push_back(&exchange);
    }
  }

  // False: it has to wait.
  bool reply_to(Session& session, Exchange& exchange, const Answer& answer) {
    Request request{.client = session.id, .bytes = exchange.request.all().first(exchange.header.bytes)};
    if (exchange.waits_since) request.waited = Seconds(std::chrono::duration<double>(SteadyClock::now() - *exchange.waits_since).count());
    MessageHeader header{.number = exchange.header.number};
    std::optional<std::size_t> bytes;
    try {
      bytes = answer(request, exchange.reply.all());
      if (!bytes) return false;
    } catch (const Error& error) {
      header.failed = 1;
      const std::string words = nlohmann::json{
          {"code", static_cast<int>(error.code())},
          {"message", error.message()},
          {"expected", error.expected()},
          {"hint", error.hint()}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      bytes = std::min(words.size(), kMostMessageBytes);
      std::memcpy(exchange.reply.all().data(), words.data(), *bytes);
    }
    session.leaving.push_back(&exchange);
    session.stream.send(header, exchange.reply.all().first(*bytes));
    take_back(session);
    return true;
  }
  // Exchanges whose replies are sent.
  void take_back(Session& session) {
    for (; session.left < session.stream.sent(); ++session.left) {
      unused.push_back(session.leaving.front());
      session.leaving.pop_front();
    }
    const bool wants_room = session.stream.has_unsent();
    if (wants_room == std::exchange(session.watched_for_room, wants_room)) return;
    watch(session.stream.fd(), session.id, wants_room ? kComing | EPOLLOUT : kComing, EPOLL_CTL_MOD);
  }

  void end(Session& session) {
    session.stream.close();
    if (session.coming) unused.push_back(session.coming);
    for (Exchange* const exchange : session.leaving) unused.push_back(exchange);
    sessions.erase(session.id);
  }

  // Connections that come, and those that prove themselves.
  void look() {
    while (unknown.size() < kMostUnknown) {
      Descriptor socket = accept_from(listener);
      if (!socket && beside) socket = accept_from(beside);
      if (!socket) break;
      unknown.push_back({FrameSocket(std::move(socket)), {secret, {}, {}}, SteadyClock::now()});
      watch(unknown.back().socket.fd(), 0, EPOLLIN, EPOLL_CTL_ADD);
    }
    for (Unknown& one : unknown) hear(one);
    std::erase_if(unknown, [](const Unknown& one) { return !one.socket.open(); });
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
    using Wants = RequestClient::Options::Wants;
    const Wants wants = client_words_from(sealed.body).wants;
    const bool taken = wants == Wants::any || (wants == Wants::standby) == standby;
    const std::string body = to_body(ServerWords{.taken = taken});
    one.socket.send(to_json(Sealed{body, proof_of(one.talk, Statement::takes_the_client, body)}));
    Descriptor socket = one.socket.release();
    if (!taken) return true;
    Session session;
    session.id = ++last_session;
    watch(socket.get(), session.id, kComing, EPOLL_CTL_MOD);
    session.stream = MessageStream(std::move(socket));
    sessions.emplace(session.id, std::move(session));
    return true;
  }

  // What has happened at one of the sessions. True: a request has come.
  bool attend(const epoll_event& event, const Answer& answer) {
    const auto found = sessions.find(event.data.u64);
    if (found == sessions.end()) return false;
    Session& session = found->second;
    const bool gone = (event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
    if (gone || ((event.events & EPOLLOUT) != 0 && !session.stream.flush())) session.stream.close();
    if (session.stream.open()) take_back(session);
    const bool moved = session.stream.open() && hear(session, answer);
    if (!session.stream.open()) end(session);
    return moved;
  }

  void serve(const Answer& answer, const std::stop_token& stop, const Meanwhile& meanwhile) {
    const Descriptor woken(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    watch(woken.get(), 0, EPOLLIN, EPOLL_CTL_ADD);
    const std::stop_callback wake(stop, [&woken] {
      const std::uint64_t one = 1;
      [[maybe_unused]] const auto written = write(woken.get(), &one, sizeof one);
    });
    auto looked = SteadyClock::time_point(), busy = SteadyClock::now();
    bool sleeps = false;
    while (!stop.stop_requested()) {
      std::array<epoll_event, 64> happened;
      const int count = epoll_wait(events.get(), happened.data(), static_cast<int>(happened.size()), sleeps ? kLongestSleep : 0);
      bool moved = false, strangers = false;
      for (int i = 0; i < count; ++i) {
        const epoll_event& event = happened[static_cast<std::size_t>(i)];
        strangers |= event.data.u64 == 0;
        moved |= attend(event, answer);
      }
      if (waiting_may_go_on) answer_waiting(answer);
      const auto now = SteadyClock::now();
      if (strangers || now - looked > kLookEvery) {
        looked = now;
        look();
        answer_waiting(answer);
        if (meanwhile) moved |= meanwhile();
      } else if (!moved && meanwhile) {
        moved = meanwhile();
      }
      if (moved || sleeps) busy = now;
      sleeps = now - busy > kSpin;
    }
  }

  std::string secret;
  HostPort at;
  Descriptor listener, beside, events;
  std::deque<Exchange> exchanges;  // as many as were ever needed at once
  std::vector<Exchange*> unused;
  std::deque<Exchange*> waiting;
  bool waiting_may_go_on = false;
  bool standby = false;
  std::list<Unknown> unknown;
  std::unordered_map<std::uint64_t, Session> sessions;
  std::uint64_t last_session = 0;  // and 0 is none
};

RequestServer::RequestServer(const std::string& place, const std::string& secret) : impl_(std::make_unique<Impl>(place, secret)) {}
RequestServer::~RequestServer() = default;
void RequestServer::serve(const Answer& answer, const std::stop_token& stop, const Meanwhile& meanwhile) {
  impl_->serve(answer, stop, meanwhile);
}
void RequestServer::stand_by(bool standby) { impl_->standby = standby; }
bool RequestServer::is_connected(ClientId client) const { return impl_->sessions.contains(client); }

}  // namespace tessera::comm
