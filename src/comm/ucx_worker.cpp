#include "comm/ucx_worker.hpp"

#include <ucs/debug/log_def.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/units.hpp"

namespace tessera::comm {
namespace {

// A broken connection is an Error of ours; UCX's own lines about it would only confuse.
ucs_log_func_rc_t quiet(const char*, unsigned, const char*, ucs_log_level_t level, const ucs_log_component_config_t*, const char* format,
                        va_list arguments) {
  if (level > UCS_LOG_LEVEL_WARN) return UCS_LOG_FUNC_RC_CONTINUE;
  char line[1024];
  std::vsnprintf(line, sizeof line, format, arguments);
  log::debug(text("ucx: ", line));
  return UCS_LOG_FUNC_RC_STOP;
}

void check(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return;
  throw Error(ErrorCode::io, text("UCX cannot ", what, ": ", ucs_status_string(status)), {}, {},
              "see `ucx_info -d` for the transports of this host, and the variables UCX_TLS and UCX_NET_DEVICES");
}

constexpr std::int64_t kSendBuffer = 4 << 20;

// That a process may ask for; 0 where the kernel does not say.
std::int64_t largest_send_buffer() {
  std::int64_t bytes = 0;
  std::ifstream("/proc/sys/net/core/wmem_max") >> bytes;
  return bytes;
}

}  // namespace

UcxWorker::UcxWorker(const std::string& interface, bool shared_memory) {
  static std::once_flag once;
  std::call_once(once, [] { ucs_log_push_handler(quiet); });
  ucp_config_t* config = nullptr;
  check(ucp_config_read(nullptr, nullptr, &config), "read its configuration");
  const auto prefer = [config](const char* name, const char* value) {
    if (!std::getenv(text("UCX_", name).c_str())) ucp_config_modify(config, name, value);
  };
  // UCX 1.13 knows a transport's settings here without its name, later ones with it, and each passes over the other's.
  const auto prefer_tcp = [config](const std::string& name, const char* value) {
    if (std::getenv(("UCX_TCP_" + name).c_str())) return;
    ucp_config_modify(config, name.c_str(), value);
    ucp_config_modify(config, ("TCP_" + name).c_str(), value);
  };
  if (!interface.empty()) prefer("NET_DEVICES", interface.c_str());
  if (!shared_memory) prefer("TLS", "^shm");
  // A rendezvous costs two more wake-ups per message. At 1 Gbit/s, all-reduce of 4 MiB by two ranks on busy cores: 60 % of
  // the link with UCX's own settings, 88 % without rendezvous. Larger segments are fewer system calls.
  prefer("RNDV_THRESH", "8m");
  prefer_tcp("TX_SEG_SIZE", "64k");
  prefer_tcp("RX_SEG_SIZE", "128k");
  // What the kernel holds leaves while this process waits for a core. A size that the host does not allow would be cut to less than the
  // kernel grows to by itself.
  if (largest_send_buffer() >= kSendBuffer) prefer_tcp("SNDBUF", std::to_string(kSendBuffer).c_str());
  // A blocking connect to a rank that ends at that moment may succeed and the first words on it fail: UCX 1.13 marks such an
  // endpoint for destruction before it has become a sender, and then ends the process over the contradiction (an assertion in
  // uct_tcp_ep_destroy_progress). Connected from progress, the same is a broken connection.
  prefer_tcp("CONN_NB", "y");
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  parameters.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  parameters.name = "tessera";
  const ucs_status_t status = ucp_init(&parameters, config, &context);
  ucp_config_release(config);
  check(status, "start");
  ucp_worker_params_t wanted{};
  wanted.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  wanted.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  wanted.events = UCP_WAKEUP_TAG_RECV | UCP_WAKEUP_TAG_SEND | UCP_WAKEUP_RX | UCP_WAKEUP_TX;
  check(ucp_worker_create(context, &wanted, &handle), "create a worker");
  check(ucp_worker_get_efd(handle, &event_descriptor), "wake up on events");
}

UcxWorker::~UcxWorker() {
  if (left_behind) return;
  if (handle) ucp_worker_destroy(handle);
  if (context) ucp_cleanup(context);
}

std::string UcxWorker::address() const {
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  check(ucp_worker_get_address(handle, &address, &length), "tell its address");
  std::string bytes(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(handle, address);
  return bytes;
}

}  // namespace tessera::comm
