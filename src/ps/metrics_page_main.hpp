// Internal to tessera-ps: figures of its servers over HTTP.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace tessera::ps {

// Answers GET /metrics with what `text` returns, which it calls on threads of its own, until it ends. Whoever reaches the place can look.
class MetricsPage {
 public:
  // `place`: "host:port". Throws io where nobody can listen there.
  MetricsPage(const std::string& place, std::function<std::string()> text);
  ~MetricsPage();
  MetricsPage(const MetricsPage&) = delete;
  MetricsPage& operator=(const MetricsPage&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::ps
