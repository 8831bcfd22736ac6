#include "train/own_servers.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include "base/error.hpp"
#include "base/free_port.hpp"
#include "ps/server.hpp"

namespace tessera::train {
namespace {

// Another process may take a free port before a server does.
constexpr int kTries = 5;

using Address = std::array<char, 64>;  // ends with zeros

struct Listening {
  std::unique_ptr<ps::Server> server;
  std::string place;
};

Listening listen(const std::string& address, const std::string& secret, const ps::ServerOptions& options) {
  const bool six = address.find(':') != std::string::npos;
  for (int left = kTries;; --left) {
    const std::string place = six ? text("[", address, "]:", free_port()) : text(address, ":", free_port());
    try {
      return {std::make_unique<ps::Server>(place, secret, options), place};
    } catch (const Error& error) {
      if (error.code() != ErrorCode::io || left == 1) throw;
    }
  }
}

}  // namespace

OwnServers::OwnServers(const plan::Plan& plan, const model::ParameterServerSpec& spec, comm::Communicator& comm, const std::string& address,
                       const std::string& secret) {
  ps::ServerOptions options;
  if (!spec.disk.empty()) options.storage = {.folder = spec.disk, .memory_limit = spec.memory};
  std::size_t all = 0;
  for (const plan::Server& server : plan.servers) all += static_cast<std::size_t>(server.threads);
  std::vector<Address> own(all, Address{}), of_ranks(all * static_cast<std::size_t>(comm.world_size()));
  std::size_t next = 0;
  for (const plan::Server& server : plan.servers)
    for (int thread = 0; thread < server.threads; ++thread, ++next) {
      if (server.rank != comm.rank()) continue;
      Listening listening = listen(address, secret, options);
      ensure(listening.place.size() < own[next].size(), "an address is longer than any that there is");
      std::ranges::copy(listening.place, own[next].begin());
      running_.emplace_back([&comm, server = std::move(listening.server)](const std::stop_token& stop) {
        try {
          server->serve(stop);
        } catch (const std::exception& error) {  // the ranks would wait for answers
          comm.abort(text("a parameter server of rank ", comm.rank(), " has ended: ", error.what()));
        }
      });
    }
  comm.world().all_gather(own.data(), of_ranks.data(), own.size() * sizeof(Address), comm::DataType::u8).wait();
  next = 0;
  for (const plan::Server& server : plan.servers)
    for (int thread = 0; thread < server.threads; ++thread, ++next)
      places_.emplace_back(of_ranks[static_cast<std::size_t>(server.rank) * all + next].data());
}

OwnServers::~OwnServers() = default;

}  // namespace tessera::train
