#include "comm/network.hpp"

#include <thread>

namespace tessera::comm {
namespace {

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

Network::Network(const std::string& interface, bool shared_memory) : ucx_(interface, shared_memory) {}

Network::~Network() {
  abandon();
  // UCX 1.13 ends the process when a worker is destroyed while a message to a stopped or dead peer cannot be called back.
  // Nothing runs on a worker that nobody progresses, so this one stays behind.
  ucx_.left_behind = !outstanding_.empty() || stuck_closing_;
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
  status = ucp_ep_create(ucx_.handle, &parameters, &endpoint);
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
  launched(record, ucp_tag_recv_nbx(ucx_.handle, data.data(), data.size(), tag_of(stream, sender), ~std::uint64_t{0}, &parameters));
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
  for (int round = 0; round < 64 && ucp_worker_progress(ucx_.handle) != 0; ++round) any = true;
  if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  return any || !ready_.empty();
}

bool Network::arm() { return ucp_worker_arm(ucx_.handle) == UCS_OK; }

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
  for (void* request : requests) ucp_request_cancel(ucx_.handle, request);
  const auto give_up = SteadyClock::now() + std::chrono::milliseconds(500);
  const auto still_closing = [&closing] {
    return std::any_of(closing.begin(), closing.end(),
                       [](ucs_status_ptr_t request) { return ucp_request_check_status(request) == UCS_INPROGRESS; });
  };
  while ((!outstanding_.empty() || still_closing()) && SteadyClock::now() < give_up) {
    if (ucp_worker_progress(ucx_.handle) == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  stuck_closing_ = still_closing();
  for (ucs_status_ptr_t request : closing) ucp_request_free(request);
  ready_.clear();
  broken_.clear();
}

}  // namespace tessera::comm
