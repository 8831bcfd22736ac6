// Communication of tensors, wherever they lie. Those of a CPU go to comm::Group as they stand, those of a GPU to the group's devices where
// it has them, and those of any other device pass through memory of the host. All are contiguous, f32, bf16 or i64.
#pragma once

#include <ATen/core/Tensor.h>
#include <future>
#include <memory>
#include <optional>

#include "comm/comm.hpp"
#include "comm/device.hpp"

namespace tessera::nn {

// An exchange under way. Copyable; one thread uses all copies. Tensors must live until it is done.
class Exchange {
 public:
  Exchange() = default;                                                                           // over
  explicit Exchange(comm::Handle handle) : handle_(std::move(handle)) {}                          // of host memory alone
  Exchange(comm::Handle handle, at::Tensor sent, at::Tensor received, const at::Tensor& target);  // through these, into `target`
  Exchange(comm::DeviceHandle handle, at::Device device) : on_devices_(std::move(handle)), device_(device) {}
  // What another thread does, which says how long it took.
  explicit Exchange(std::shared_future<Seconds> work) : work_(std::move(work)) {}

  // Whether it has ended; what it brought is then in its tensor. Waits for no other rank.
  bool done() const;
  // What this thread computes with the tensor from now on sees what it brought: the host blocks until then, or where devices exchange
  // directly the device's current stream waits. Throws comm's Error, and what the other thread's work threw.
  void wait() const;
  // From its beginning to the end of what `comm` or the other thread did, for which it blocks.
  Seconds elapsed() const;

 private:
  struct Staged {
    at::Tensor sent, received;  // in host memory
    at::Tensor target;
  };
  void put_in_place() const;

  comm::Handle handle_;
  comm::DeviceHandle on_devices_;
  std::shared_future<Seconds> work_;
  std::optional<at::Device> device_;  // of on_devices_, where devices exchange directly
  std::shared_ptr<Staged> staged_;    // empty in it once put in place
};

comm::DataType data_type_of(const at::Tensor& tensor);

// Like comm::Group's operations of these names, on tensors.
Exchange send(const comm::Group& group, const at::Tensor& tensor, int peer, std::uint32_t tag);
Exchange receive(const comm::Group& group, const at::Tensor& tensor, int peer, std::uint32_t tag);
// In place.
Exchange all_reduce(const comm::Group& group, const at::Tensor& tensor, comm::Reduction reduction = comm::Reduction::sum);
// `output` is this rank's part of the sum, and may be its place in `input`.
Exchange reduce_scatter(const comm::Group& group, const at::Tensor& input, const at::Tensor& output);
// `input` may be this rank's place in `output`.
Exchange all_gather(const comm::Group& group, const at::Tensor& input, const at::Tensor& output);
// Equal parts, one for each rank.
Exchange all_to_all(const comm::Group& group, const at::Tensor& input, const at::Tensor& output);

}  // namespace tessera::nn
