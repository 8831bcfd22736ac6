// Communication of tensors, wherever they lie. `comm` sees memory of the host: tensors of a CPU go to it as they stand, and those of
// another device pass through host memory. All are contiguous, f32, bf16 or i64.
#pragma once

#include <ATen/core/Tensor.h>
#include <memory>

#include "comm/comm.hpp"

namespace tessera::nn {

// An exchange under way. Copyable; one thread uses all copies. Tensors must live until it is done.
class Exchange {
 public:
  Exchange() = default;                                                                           // over
  explicit Exchange(comm::Handle handle) : handle_(std::move(handle)) {}                          // of host memory alone
  Exchange(comm::Handle handle, at::Tensor sent, at::Tensor received, const at::Tensor& target);  // through these, into `target`

  // Whether it has ended; what it brought is then in its tensor. Waits for no other rank.
  bool done() const;
  // Blocks until then; throws comm's Error.
  void wait() const;
  // From its beginning to the end of what `comm` did; valid once done.
  Seconds elapsed() const { return handle_.elapsed(); }

 private:
  struct Staged {
    at::Tensor sent, received;  // in host memory
    at::Tensor target;
  };
  void put_in_place() const;

  comm::Handle handle_;
  std::shared_ptr<Staged> staged_;  // empty in it once put in place
};

comm::DataType data_type_of(const at::Tensor& tensor);

// As comm::Group's operations of these names; counts are the tensors'.
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
