// Requests and replies between servers and clients that are no ranks of one task, and that come and go: over TCP, and over Unix's sockets
// where both are on one host and of one user (docs/rooms/comm.md says why). Client and server prove to each other that they know the secret
// before anything else is said.
//
// A message has at most kMostMessageBytes. What is longer goes in several, which also lets both sides work at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/units.hpp"

namespace tessera::comm {

inline constexpr std::size_t kMostMessageBytes = std::size_t{1} << 20;

// One thread listens and answers, in the order in which requests come. Not thread-safe.
class RequestServer {
 public:
  // `place`: "host:port", where clients come. Without a secret it must be on the loopback, and every user of this host may ask. Throws io
  // when the port is in use, invalid_config for a place that will not do.
  RequestServer(const std::string& place, const std::string& secret);
  ~RequestServer();

  // A connected client: a larger number than those of all connections before.
  using ClientId = std::uint64_t;
  struct Request {
    ClientId client = 0;
    std::span<const std::byte> bytes;
    Seconds waited = {};  // since its Answer has said for the first time that it has to
  };
  // Writes the reply into `reply`, of kMostMessageBytes, and returns its bytes. Request and reply begin at multiples of 16. Nothing: the
  // request has to wait; it is answered anew once others were, and from time to time. What it throws as an Error is thrown at the client.
  using Answer = std::function<std::optional<std::size_t>(const Request& request, std::span<std::byte> reply)>;
  // What the thread does when no request is there to be answered, a little at a time, and from time to time in any case. True: there is
  // more to do.
  using Meanwhile = std::function<bool()>;
  // Answers until it is asked to stop; sleeps while nobody asks.
  void serve(const Answer& answer, const std::stop_token& stop, const Meanwhile& meanwhile = {});

  // A server that stands by takes only clients that want one that does; one that does not, only those that want one that leads. It tells
  // the others to look elsewhere. At first it does not.
  void stand_by(bool standby);
  bool is_connected(ClientId client) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Asks several servers, whatever carries requests and replies. Not thread-safe. Every call throws Error(peer_lost) for a server that is
// gone and Error(deadline_exceeded) for one that does not answer in time, both naming its place; it is then of no more use.
class Requester {
 public:
  // Requests that may be under way to a server at once.
  static constexpr std::size_t kMostUnderWay = 4;

  virtual ~Requester() = default;
  virtual std::size_t servers() const = 0;
  // Where the next request to this server is written, of kMostMessageBytes, at a multiple of 16. Precondition: fewer than kMostUnderWay.
  virtual std::span<std::byte> next_request(std::size_t server) = 0;
  virtual void send(std::size_t server, std::size_t bytes) = 0;
  // Whose replies were not taken yet.
  virtual std::size_t under_way(std::size_t server) const = 0;
  // Waits for the reply to the oldest request, at a multiple of 16; valid until the next send to this server. Throws what the server's
  // answer has thrown.
  virtual std::span<const std::byte> take_reply(std::size_t server) = 0;
  // Connections that were lost and made anew.
  virtual std::int64_t reconnections() const = 0;
};

// Over connections.
class RequestClient final : public Requester {
 public:
  struct Options {
    Seconds deadline = Seconds(60);  // of an answer; also of connecting, which takes a minute at most
    // For how long a lost connection is tried anew. What had no reply is then asked again, in order: the server may see a request twice.
    Seconds reconnect = Seconds(0);
    enum class Wants { leader, standby, any } wants = Wants::leader;
    // Where another thread sets it, a wait ends within a second, in Error(interrupted). It outlives the client.
    const std::atomic<bool>* interrupted = nullptr;
  };

  // A place is "host:port", or "host:port/host:port" of a pair of servers, of which the one is asked that leads. Connects to all servers.
  // Throws deadline_exceeded for one that is not there in time, invalid_config for one with another secret.
  RequestClient(std::vector<std::string> places, const std::string& secret, const Options& options);
  ~RequestClient() override;

  std::size_t servers() const override;
  std::span<std::byte> next_request(std::size_t server) override;
  void send(std::size_t server, std::size_t bytes) override;
  std::size_t under_way(std::size_t server) const override;
  std::span<const std::byte> take_reply(std::size_t server) override;
  std::int64_t reconnections() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::comm
