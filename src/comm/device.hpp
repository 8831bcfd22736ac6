// Operations on the memory of accelerators, beside what they compute: NVIDIA's, over NCCL.
//
// A group that has a device for each member (Group::device) offers its operations on device pointers. An operation begins on the device
// once what its `stream` has been given so far is over, and what is to see its result waits for it by DeviceHandle::wait_on, so that the
// host waits for neither. Collectives of a group run one after the other in the order of submission, on a stream of their own; so do the
// messages from one rank to another with one tag. What is of different groups, ranks, directions or tags holds up nothing else.
//
// NCCL says nothing about ranks that submit different collectives, and chooses the order of sums: the same on every rank, and from run to
// run on the same devices and links. Errors are those of Group. After one, no operation touches a buffer any more once wait() has thrown or
// done() is true, unless NCCL did not give them up within five seconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "comm/comm.hpp"

namespace tessera::comm {

struct DeviceOperation;

// An operation under way on a device. Copyable; thread-safe. Buffers must live until done. A `stream` is a cudaStream_t of the rank's
// device.
class DeviceHandle {
 public:
  DeviceHandle() = default;  // already complete
  explicit DeviceHandle(std::shared_ptr<DeviceOperation> operation) : operation_(std::move(operation)) {}
  // True once complete or failed; never blocks.
  bool done() const;
  // Blocks the host until complete; throws the operation's Error.
  void wait() const;
  // What `stream` is given from now on begins once the operation is complete. Blocks the host until the operation is in NCCL's hands: the
  // first one of a group, or of a pair of ranks with a tag, until the others have come to theirs. Throws the operation's Error where it has
  // failed already; one that fails later lets `stream` go on with a buffer that holds anything, and wait() says so.
  void wait_on(void* stream) const;
  // Seconds from submission to completion; valid after done().
  Seconds elapsed() const;

 private:
  std::shared_ptr<DeviceOperation> operation_;
};

// The operations of Group on pointers to memory of this rank's device. Copyable; thread-safe; valid while the Communicator lives.
class DeviceGroup {
 public:
  DeviceGroup() = default;
  explicit DeviceGroup(std::shared_ptr<Group::State> state) : state_(std::move(state)) {}
  explicit operator bool() const { return state_ != nullptr; }

  int rank() const;  // of this process within the group
  int size() const;

  // A send is complete once `data` may be reused. `peer` is another rank than this one.
  DeviceHandle send(const void* data, std::size_t bytes, int peer, std::uint32_t tag, void* stream) const;
  DeviceHandle receive(void* data, std::size_t bytes, int peer, std::uint32_t tag, void* stream) const;

  // In place.
  DeviceHandle all_reduce(void* data, std::size_t count, DataType type, Reduction reduction, void* stream) const;
  // `output` may be this rank's chunk of `input`.
  DeviceHandle reduce_scatter(const void* input, void* output, std::size_t count, DataType type, Reduction reduction, void* stream) const;
  // `input` may be this rank's place in `output`.
  DeviceHandle all_gather(const void* input, void* output, std::size_t count, DataType type, void* stream) const;
  DeviceHandle broadcast(void* data, std::size_t count, DataType type, int root, void* stream) const;
  // Chunk i of `count` goes to rank i. Not in place.
  DeviceHandle all_to_all(const void* input, void* output, std::size_t count, DataType type, void* stream) const;

 private:
  std::shared_ptr<Group::State> state_;
};

}  // namespace tessera::comm
