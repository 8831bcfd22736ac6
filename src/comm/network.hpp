// Internal. UCX: tagged messages between world ranks, awaited by coroutines. Used by one thread at a time (Engine::driving_).
#pragma once

#include <coroutine>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/operation.hpp"
#include "comm/ucx_worker.hpp"

namespace tessera::comm {

class Network;

// A message under way; co_await gives control back once it is complete. A message that a broken connection holds up never
// completes: the engine then ends the whole operation. Destroying it cancels the wait, not the message.
class [[nodiscard]] Transfer {
 public:
  struct Record {
    Network* network = nullptr;
    Operation* operation = nullptr;
    int peer = 0;  // group rank
    bool receiving = false;
    bool done = false;
    bool called_back = false;
    ucs_status_t status = UCS_OK;
    std::size_t expected = 0;
    void* request = nullptr;
    ucp_tag_recv_info_t info{};
    std::coroutine_handle<> waiter;
  };
  explicit Transfer(std::shared_ptr<Record> record) : record_(std::move(record)) {}
  Transfer(Transfer&&) noexcept = default;
  Transfer& operator=(Transfer&&) noexcept = default;
  ~Transfer() {
    if (record_) record_->waiter = nullptr;
  }
  bool await_ready() const noexcept { return record_->done; }
  void await_suspend(std::coroutine_handle<> waiter) noexcept { record_->waiter = waiter; }
  // Throws when the message does not have the expected size.
  void await_resume() const;

 private:
  std::shared_ptr<Record> record_;
};

class Network {
 public:
  // For the arguments and errors see UcxWorker.
  Network(const std::string& interface, bool shared_memory);
  ~Network();

  std::string address() const { return ucx_.address(); }
  // World addresses, once all are known.
  void set_peers(std::vector<std::string> addresses, int own_rank);

  // `stream` tells messages between the same two ranks apart; equal streams keep their order.
  Transfer send(Operation& operation, std::span<const std::byte> data, int to_group_rank, std::uint64_t stream);
  Transfer receive(Operation& operation, std::span<std::byte> data, int from_group_rank, std::uint64_t stream);

  int event_descriptor() const { return ucx_.event_descriptor; }
  // Moves data; true when anything happened. Throws what a callback has thrown.
  bool progress();
  // True when sleeping on event_descriptor() is safe.
  bool arm();

  struct Ready {
    std::coroutine_handle<> waiter;
    Operation* operation;
  };
  // Coroutines whose messages have completed since the last call.
  std::vector<Ready> take_ready();
  // World ranks whose connection broke since the last call, with UCX's reason.
  std::vector<std::pair<int, std::string>> take_broken();
  // Group ranks that this operation is waiting for.
  std::vector<int> awaited_by(const Operation& operation) const;

  // Drops every message and connection, for at most half a second; no buffer is touched afterwards.
  void abandon();

 private:
  static void on_sent(void* request, ucs_status_t status, void* record);
  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* record);
  static void on_broken(void* self, ucp_ep_h endpoint, ucs_status_t status);
  template <typename Action>
  void guarded(const Action& action) noexcept;
  void complete(Transfer::Record& record, ucs_status_t status);
  // Null, with the reason in `status`, when the peer cannot be reached.
  ucp_ep_h endpoint_to(int world_rank, ucs_status_t& status);
  void launched(const std::shared_ptr<Transfer::Record>& record, ucs_status_ptr_t request);

  UcxWorker ucx_;
  int own_rank_ = 0;
  std::vector<std::string> addresses_;
  std::vector<ucp_ep_h> endpoints_;
  std::unordered_map<ucp_ep_h, int> rank_of_endpoint_;
  std::unordered_map<Transfer::Record*, std::shared_ptr<Transfer::Record>> outstanding_;
  std::exception_ptr thrown_;  // in a callback since the last progress()
  bool abandoned_ = false;
  bool stuck_closing_ = false;
  std::vector<Ready> ready_;
  std::vector<std::pair<int, std::string>> broken_;
};

}  // namespace tessera::comm
