// Requests and replies between servers and clients that are no ranks of one task, and that come and go: over UCX, so over RDMA
// where there is some. Client and server prove to each other that they know the secret before anything else is
// said.
//
// A message has at most kMostMessageBytes. What is longer goes in several, which also lets both sides work at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/units.hpp"

namespace tessera::comm {

inline constexpr std::size_t kMostMessageBytes = std::size_t{1} << 20;

// One thread listens and answers, in the order in which requests come.
class RequestServer {
 public:
  // `place`: "host:port", where clients come. Without a secret it must be on the loopback, and every user of this host may ask. Throws io
  // when the port is in use, invalid_config for a place that will not do.
  RequestServer(const std::string& place, const std::string& secret);
  ~RequestServer();

  // Writes the reply to `request` into `reply`, of kMostMessageBytes, and returns its bytes. Both begin at multiples of 16. What it throws
  // as an Error is thrown at the client. `client` is another number for each client that ever was.
  using Answer = std::function<std::size_t(std::uint64_t client, std::span<const std::byte> request, std::span<std::byte> reply)>;
  // Answers until it is asked to stop; sleeps while nobody asks.
  void serve(const Answer& answer, const std::stop_token& stop);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Asks several servers. Not thread-safe. Every call but the constructor throws Error(peer_lost) for a server that is gone and
// Error(deadline_exceeded) for one that does not answer in time, both naming its place; the client is then of no more use.
class RequestClient {
 public:
  // Requests that may be under way to a server at once.
  static constexpr std::size_t kMostUnderWay = 4;

  // Connects to all of them. Throws deadline_exceeded for a server that is not there in time, invalid_config for one with another secret.
  RequestClient(std::vector<std::string> places, const std::string& secret, Seconds deadline = Seconds(60));
  ~RequestClient();

  std::size_t servers() const;
  // Where the next request to this server is written, of kMostMessageBytes, at a multiple of 16. Precondition: fewer than kMostUnderWay.
  std::span<std::byte> next_request(std::size_t server);
  void send(std::size_t server, std::size_t bytes);
  // Whose replies were not taken yet.
  std::size_t under_way(std::size_t server) const;
  // Waits for the reply to the oldest request, at a multiple of 16; valid until the next send to this server. Throws what the server's
  // answer has thrown.
  std::span<const std::byte> take_reply(std::size_t server);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::comm
