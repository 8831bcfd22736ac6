// Part of tessera-ps alone: whoever else uses the room needs no HTTP.
#include "ps/metrics_page_main.hpp"

#include <httplib.h>

#include <thread>
#include <utility>

#include "base/error.hpp"
#include "comm/sockets.hpp"

namespace tessera::ps {

struct MetricsPage::Impl {
  httplib::Server server;
  std::thread thread;
};

MetricsPage::MetricsPage(const std::string& place, std::function<std::string()> text) : impl_(std::make_unique<Impl>()) {
  const comm::HostPort at = comm::parse_host_port(place);
  impl_->server.Get("/metrics", [text = std::move(text)](const httplib::Request&, httplib::Response& response) {
    response.set_content(text(), "text/plain; version=0.0.4");
  });
  if (!impl_->server.bind_to_port(at.host.c_str(), at.port))
    throw Error(ErrorCode::io, tessera::text("nobody can listen at ", place, " for /metrics"), {}, "a free port of this host");
  impl_->thread = std::thread([this] { impl_->server.listen_after_bind(); });
  while (!impl_->server.is_running()) std::this_thread::yield();
}

MetricsPage::~MetricsPage() {
  impl_->server.stop();
  impl_->thread.join();
}

}  // namespace tessera::ps
