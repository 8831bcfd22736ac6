// Internal. Runs the operations on memory of this rank's GPU, over NCCL. A thread of its own hands them over and looks after them, so that
// no caller waits for another rank, whatever NCCL waits for. Whatever is thrown in it ends the task, and the end of a task ends it: what
// NCCL has under way is aborted.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/cuda.hpp"
#include "comm/nccl.hpp"
#include "comm/operation.hpp"

namespace tessera::comm {

struct DeviceOperation final : Operation {
  explicit DeviceOperation(std::shared_ptr<const CudaDevice> where) : device(std::move(where)), ready(device), over(device) {}
  const std::shared_ptr<const CudaDevice> device;
  CudaEvent ready;  // what the caller's stream had been given at submission
  CudaEvent over;   // recorded once `given`
  bool begun = false;
  // In NCCL's hands, or failed.
  std::atomic<bool> given{false};
  void give();
};
using DeviceOperationPointer = std::shared_ptr<DeviceOperation>;

class DeviceEngine {
 public:
  // Throws not_found where this host has no such device or no NCCL, invalid_config for an NCCL that will not do.
  DeviceEngine(Engine& engine, int cuda_device);
  ~DeviceEngine();

  const std::shared_ptr<const CudaDevice>& device() const { return device_; }
  void submit(DeviceOperationPointer operation);
  // The task has failed: everything ends.
  void wake();

 private:
  struct Lane;
  // Group, sender, receiver, tag; for the collectives of a group -1, -1, 0.
  using LaneKey = std::tuple<const Group::State*, int, int, std::uint32_t>;

  void run();
  bool idle();
  bool step();
  void take_inbox();
  bool step(Lane& lane);
  bool connected(Lane& lane);
  void exchange_id(Lane& lane);
  bool busy(Lane& lane, const Operation& operation);
  int start(Lane& lane, const DeviceOperation& operation);
  int exchange_all(Lane& lane, const DeviceOperation& operation);
  void abort_all();
  void end_all() noexcept;
  void finish(const DeviceOperationPointer& operation, std::shared_ptr<const Error> error);

  Engine& engine_;
  const std::shared_ptr<const CudaDevice> device_;
  const std::shared_ptr<const Nccl> nccl_;
  std::map<LaneKey, std::unique_ptr<Lane>> lanes_;  // of the thread alone

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<DeviceOperationPointer> inbox_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tessera::comm
