#include "ps/server.hpp"

#include <cerrno>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "comm/sockets.hpp"
#include "ps/replica.hpp"

namespace tessera::ps {
namespace {

using comm::SteadyClock;
using std::chrono::milliseconds;

constexpr milliseconds kConnecting(500), kBetween(50);

}  // namespace

struct Server::Impl final : Surroundings {
  Impl(std::string given_place, std::string given_secret, const ServerOptions& options)
      : place(std::move(given_place)),
        secret(std::move(given_secret)),
        partner(options.pair ? options.pair->partner : ""),
        requests(place, secret),
        replica(place, options, *this) {}

  Process partner_process() const override {
    if (comm::connect_once(comm::parse_host_port(partner), kConnecting)) return Process::listens;
    return errno == ECONNREFUSED ? Process::ended : Process::unknown;
  }
  std::unique_ptr<comm::Requester> connect_to_partner(const comm::RequestClient::Options& options) const override {
    return std::make_unique<comm::RequestClient>(std::vector{partner}, secret, options);
  }
  void stand_by(bool standby) override { requests.stand_by(standby); }
  bool is_connected(comm::RequestServer::ClientId client) const override { return requests.is_connected(client); }
  bool sleep() override {
    std::this_thread::sleep_for(kBetween);
    return !stop.stop_requested();
  }

  std::optional<std::size_t> answer(const comm::RequestServer::Request& request, std::span<std::byte> reply) {
    const auto begin = SteadyClock::now();
    const std::optional<std::size_t> answered = replica.answer(request, reply);
    if (answered) replica.took(request.bytes, request.waited + Seconds(std::chrono::duration<double>(SteadyClock::now() - begin).count()));
    return answered;
  }

  void look_at_partner() {
    const auto now = SteadyClock::now();
    if (now - looked < kBetween) return;
    looked = now;
    replica.look_at_partner();
    if (!replica.undecided()) return;
    if (!asking.valid())
      asking = std::async(std::launch::async, [this] { return replica.ask_at_start(); });
    else if (asking.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
      replica.decide(asking.get());
  }

  std::string place, secret, partner;
  comm::RequestServer requests;
  Replica replica;
  std::future<Replica::Start> asking;
  SteadyClock::time_point looked;
  std::stop_token stop;
};

Server::Server(const std::string& place, const std::string& secret, const ServerOptions& options)
    : impl_(std::make_unique<Impl>(place, secret, options)) {}
Server::~Server() = default;

void Server::serve(const std::stop_token& stop) {
  impl_->stop = stop;
  impl_->replica.restore();
  try {
    impl_->requests.serve(
        [this](const comm::RequestServer::Request& request, std::span<std::byte> reply) { return impl_->answer(request, reply); }, stop,
        [this] {
          impl_->look_at_partner();
          return impl_->replica.go_on_saving();
        });
  } catch (const Superseded&) {
    if (stop.stop_requested()) return;
    throw Error(ErrorCode::peer_lost, text("the server at ", impl_->partner, " leads now, and ", impl_->place, " ends"), {}, "",
                "start it again: it will stand by");
  }
}

}  // namespace tessera::ps
