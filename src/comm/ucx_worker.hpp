// Internal. A UCX context with one worker, with the settings that measured best. Not thread-safe.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

namespace tessera::comm {

struct UcxWorker {
  // `interface` limits the network devices ("eth0"); empty: all. Without `shared_memory` same-host messages use the network. Throws io.
  UcxWorker(const std::string& interface, bool shared_memory);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // Opaque bytes that another worker reaches this one by.
  std::string address() const;

  ucp_context_h context = nullptr;
  ucp_worker_h handle = nullptr;
  int event_descriptor = -1;
  bool left_behind = false;  // not destroyed with this
};

}  // namespace tessera::comm
