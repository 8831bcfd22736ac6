#include "ps/server.hpp"

#include "ps/shards.hpp"

namespace tessera::ps {

struct Server::Impl {
  Impl(const std::string& place, const std::string& secret) : requests(place, secret) {}

  comm::RequestServer requests;
  Shards shards;
};

Server::Server(const std::string& place, const std::string& secret) : impl_(std::make_unique<Impl>(place, secret)) {}
Server::~Server() = default;
void Server::serve(const std::stop_token& stop) {
  impl_->requests.serve(
      [this](const comm::RequestServer::Request& request, std::span<std::byte> reply) {
        return impl_->shards.answer(request.bytes, reply, request.waited);
      },
      stop);
}

}  // namespace tessera::ps
