#include "comm/network.hpp"

#include <ucs/debug/log_def.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/log.hpp"

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

// Streams are 47 bits of hash beside the sender's rank: a receive must not match another rank's message.
std::uint64_t tag_of(std::uint64_t stream, int sender) { return (stream & ~std::uint64_t{0xffff}) | static_cast<std::uint64_t>(sender); }

}  // namespace

void Transfer::await_resume() const {
  const Record& record = *record_;
  const bool short_message = record.receiving && record.info.length != record.expected;
  if (record.status == UCS_OK && !short_message) return;
  throw Error(ErrorCode::internal,
              text("rank ", record.operation->group->ranks[static_cast<std::size_t>(record.peer)], " sent ",
                   record.status == UCS_ERR_MESSAGE_TRUNCATED ? "more" : text(record.info.length, " bytes"), " where rank ",
                   record.operation->group->ranks[static_cast<std::size_t>(record.operation->group->rank)], " expected ", record.expected,
                   " bytes in ", record.operation->description()),
              {}, "the same size on both sides");
}

Network::Network(const std::string& interface, bool shared_memory) {
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
  // A blocking connect to a rank that ends at that moment may succeed and the first words on it fail: UCX 1.13 marks such an
  // endpoint for destruction before it has become a sender, and then ends the process over the contradiction (an assertion in
  // uct_tcp_ep_destroy_progress). Connected from progress, the same is a broken connection.
  prefer_tcp("CONN_NB", "y");
  ucp_params_t parameters{};
  parameters.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  parameters.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
  parameters.name = "tessera";
  const ucs_status_t status = ucp_init(&parameters, config, &context_);
  ucp_config_release(config);
  check(status, "start");
  ucp_worker_params_t worker{};
  worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  worker.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  worker.events = UCP_WAKEUP_TAG_RECV | UCP_WAKEUP_TAG_SEND | UCP_WAKEUP_RX | UCP_WAKEUP_TX;
  check(ucp_worker_create(context_, &worker, &worker_), "create a worker");
  check(ucp_worker_get_efd(worker_, &event_descriptor_), "wake up on events");
}

Network::~Network() {
  abandon();
  // UCX 1.13 ends the process when a worker is destroyed while a message to a stopped or dead peer cannot be called back.
  // Nothing runs on a worker that nobody progresses, so this one stays behind.
  if (!outstanding_.empty() || stuck_closing_) return;
  if (worker_) ucp_worker_destroy(worker_);
  if (context_) ucp_cleanup(context_);
}

std::string Network::address() const {
  ucp_address_t* address = nullptr;
  std::size_t length = 0;
  check(ucp_worker_get_address(worker_, &address, &length), "tell its address");
  std::string bytes(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_, address);
  return bytes;
}

void Network::set_peers(std::vector<std::string> addresses, int own_rank) {
  addresses_ = std::move(addresses);
  endpoints_.assign(addresses_.size(), nullptr);
  own_rank_ = own_rank;
}

ucp_ep_h Network::endpoint_to(int world_rank, ucs_status_t& status) {
  ucp_ep_h& endpoint = endpoints_[static_cast<std::size_t>(world_rank)];
  if (endpoint) return endpoint;
  // UCX takes over a connection that the other rank has made, and ends the process where that one has just been reset (the same
  // assertion as with TCP_CONN_NB). A reset that has been seen is none.
  progress();
  ucp_ep_params_t parameters{};
  parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  parameters.address = reinterpret_cast<const ucp_address_t*>(addresses_[static_cast<std::size_t>(world_rank)].data());
  parameters.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  parameters.err_handler.cb = &Network::on_broken;
  parameters.err_handler.arg = this;
  status = ucp_ep_create(worker_, &parameters, &endpoint);
  if (status != UCS_OK) return endpoint = nullptr;
  rank_of_endpoint_[endpoint] = world_rank;
  return endpoint;
}

Transfer Network::send(Operation& operation, std::span<const std::byte> data, int to, std::uint64_t stream) {
  auto record = std::make_shared<Transfer::Record>();
  record->network = this;
  record->operation = &operation;
  record->peer = to;
  ucp_request_param_t parameters{};
  parameters.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  parameters.cb.send = &Network::on_sent;
  parameters.user_data = record.get();
  parameters.memory_type = UCS_MEMORY_TYPE_HOST;
  ucs_status_t status = UCS_OK;
  const ucp_ep_h endpoint = endpoint_to(operation.group->ranks[static_cast<std::size_t>(to)], status);
  // A peer that is gone before the first message to it breaks like one that goes later.
  if (!endpoint) {
    launched(record, UCS_STATUS_PTR(status));
    return Transfer(std::move(record));
  }
  outstanding_[record.get()] = record;
  launched(record, ucp_tag_send_nbx(endpoint, data.data(), data.size(), tag_of(stream, own_rank_), &parameters));
  return Transfer(std::move(record));
}

Transfer Network::receive(Operation& operation, std::span<std::byte> data, int from, std::uint64_t stream) {
  auto record = std::make_shared<Transfer::Record>();
  record->network = this;
  record->operation = &operation;
  record->peer = from;
  record->receiving = true;
  record->expected = data.size();
  ucp_request_param_t parameters{};
  parameters.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  parameters.cb.recv = &Network::on_received;
  parameters.user_data = record.get();
  parameters.memory_type = UCS_MEMORY_TYPE_HOST;
  outstanding_[record.get()] = record;
  const int sender = operation.group->ranks[static_cast<std::size_t>(from)];
  launched(record, ucp_tag_recv_nbx(worker_, data.data(), data.size(), tag_of(stream, sender), ~std::uint64_t{0}, &parameters));
  return Transfer(std::move(record));
}

void Network::launched(const std::shared_ptr<Transfer::Record>& record, ucs_status_ptr_t request) {
  if (UCS_PTR_IS_PTR(request)) {
    record->request = request;
    // UCX may have completed it, and called back, before it returned.
    if (record->called_back) {
      ucp_request_free(request);
      outstanding_.erase(record.get());
    }
    return;
  }
  outstanding_.erase(record.get());
  const ucs_status_t status = UCS_PTR_STATUS(request);
  record->status = status;
  record->done = status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED;
  if (!record->done)
    broken_.emplace_back(record->operation->group->ranks[static_cast<std::size_t>(record->peer)], ucs_status_string(status));
}

// UCX is C: an exception waits until it has returned.
template <typename Action>
void Network::guarded(const Action& action) noexcept {
  try {
    action();
  } catch (...) {
    thrown_ = std::current_exception();
  }
}

void Network::on_sent(void*, ucs_status_t status, void* record) {
  auto* self = static_cast<Transfer::Record*>(record);
  Network& network = *self->network;
  network.guarded([&] { network.complete(*self, status); });
}

void Network::on_received(void*, ucs_status_t status, const ucp_tag_recv_info_t* info, void* record) {
  auto* self = static_cast<Transfer::Record*>(record);
  if (info) self->info = *info;
  Network& network = *self->network;
  network.guarded([&] { network.complete(*self, status); });
}

void Network::complete(Transfer::Record& record, ucs_status_t status) {
  std::shared_ptr<Transfer::Record> keep;
  record.called_back = true;
  if (record.request) {
    const auto found = outstanding_.find(&record);
    keep = std::move(found->second);
    outstanding_.erase(found);
    ucp_request_free(record.request);
  }
  record.status = status;
  record.done = status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED;
  if (record.done) {
    if (record.waiter) ready_.push_back({record.waiter, record.operation});
  } else if (status != UCS_ERR_CANCELED) {
    broken_.emplace_back(record.operation->group->ranks[static_cast<std::size_t>(record.peer)], ucs_status_string(status));
  }
}

void Network::on_broken(void* self, ucp_ep_h endpoint, ucs_status_t status) {
  auto* network = static_cast<Network*>(self);
  const auto found = network->rank_of_endpoint_.find(endpoint);
  if (found == network->rank_of_endpoint_.end()) return;
  network->guarded([&] { network->broken_.emplace_back(found->second, ucs_status_string(status)); });
}

bool Network::progress() {
  bool any = false;
  for (int round = 0; round < 64 && ucp_worker_progress(worker_) != 0; ++round) any = true;
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  return any || !ready_.empty();
}

bool Network::arm() { return ucp_worker_arm(worker_) == UCS_OK; }

std::vector<Network::Ready> Network::take_ready() { return std::exchange(ready_, {}); }

std::vector<std::pair<int, std::string>> Network::take_broken() { return std::exchange(broken_, {}); }

std::vector<int> Network::awaited_by(const Operation& operation) const {
  std::vector<int> ranks;
  for (const auto& [record, keep] : outstanding_) {
    if (record->operation == &operation && (record->receiving || !operation.collective())) ranks.push_back(record->peer);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void Network::abandon() {
  if (abandoned_) return;
  abandoned_ = true;
  std::vector<ucs_status_ptr_t> closing;
  for (const auto& [endpoint, rank] : std::exchange(rank_of_endpoint_, {})) {
    ucp_request_param_t parameters{};
    parameters.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    parameters.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint, &parameters);
    if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
  }
  endpoints_.assign(endpoints_.size(), nullptr);
  std::vector<void*> requests;
  for (const auto& [record, keep] : outstanding_) {
    record->waiter = nullptr;
    if (record->receiving) requests.push_back(record->request);
  }
  for (void* request : requests) ucp_request_cancel(worker_, request);
  const auto give_up = SteadyClock::now() + std::chrono::milliseconds(500);
  const auto still_closing = [&closing] {
    return std::any_of(closing.begin(), closing.end(),
                       [](ucs_status_ptr_t request) { return ucp_request_check_status(request) == UCS_INPROGRESS; });
  };
  while ((!outstanding_.empty() || still_closing()) && SteadyClock::now() < give_up) {
    if (ucp_worker_progress(worker_) == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  stuck_closing_ = still_closing();
  for (ucs_status_ptr_t request : closing) ucp_request_free(request);
  ready_.clear();
  broken_.clear();
}

}  // namespace tessera::comm
