// Communication between the ranks of one task: rendezvous, groups, point-to-point and collectives on plain buffers.
//
// A Communicator owns one progress thread that sleeps until there is something to do; operations are started from any
// thread, return a Handle at once, and run beside computation. Operations of one group start in the order in which they
// were submitted, and every rank of the group must submit the same collectives in the same order; each carries a sequence
// number, so a rank that joins a different collective (kind, size) is reported instead of corrupting data. Reductions add
// in a fixed order, so the same call gives the same bits every time on every rank.
//
// Errors: every wait has a deadline. When a peer dies or hangs up, every pending and future operation of every rank that
// can hear of it throws Error(peer_lost), the lost rank in where().rank, within 2 s; a deadline throws Error(deadline_exceeded)
// naming the operation, its sequence number and the ranks that were waited for. Both say what such a rank was last at, where it has said
// so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "comm/traffic.hpp"

namespace tessera::comm {

enum class DataType { f32, f64, bf16, i32, i64, u8 };
enum class Reduction { sum, max, min };
std::size_t size_of(DataType type);

struct Options {
  int rank = 0;
  int world_size = 1;
  // Rank 0 listens here ("127.0.0.1:29500"); the others connect. Port 0 is not allowed across processes.
  std::string rendezvous;
  // What all ranks of the run know and nobody else does (base/secret.hpp): each proves at the rendezvous that it does, and rank 0 to it.
  // Without one the rendezvous must be on the loopback, and every user of this host may join.
  std::string secret = {};
  // Ranks of different tasks that meet by mistake at one port refuse each other.
  std::string task = "tessera";
  // Counts how often the ranks of a task have been formed anew, with other members: ranks of another epoch are refused at the rendezvous,
  // and what they still send is dropped.
  std::int64_t epoch = 0;
  // The local address that peers reach this rank at; empty: the one that reaches the rendezvous.
  std::string address;
  // How long one operation, or the rendezvous, may take before it is given up.
  Seconds deadline = Seconds(300);
  // A rank that sends no heartbeat for this long (its process is stopped, or its host is frozen) counts as lost. Every rank sends four
  // a second, whatever it computes.
  Seconds heartbeat_timeout = Seconds(30);
  // The ordinal of this rank's GPU, as CUDA counts those that the process may use; -1: none, and Group::device is empty.
  int cuda_device = -1;
  // Same-host ranks (one network and process namespace) exchange through shared memory; off forces the network.
  bool shared_memory = true;
  // Ranks with different names count as ranks of different hosts wherever they are; empty names: as the hosts are. For trying out on one
  // host what runs on several.
  std::string host = {};
  // Groups of several hosts with equally many ranks, two or more, on each run large all-reduces, reduce-scatters and all-gathers first
  // within the hosts and then between them; off: in one ring. The same on all ranks.
  bool two_levels = true;
};

// An operation under way. Copyable; thread-safe. Buffers must live until done.
class Handle {
 public:
  struct State;
  Handle() = default;  // already complete
  explicit Handle(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // True once complete or failed; never blocks.
  bool done() const;
  // Blocks until complete; throws the operation's Error.
  void wait() const;
  // Seconds from submission to completion; valid after done().
  Seconds elapsed() const;

 private:
  std::shared_ptr<State> state_;
};

class Communicator;
class DeviceGroup;  // comm/device.hpp

// An ordered set of ranks; forming one costs nothing and needs no communication, but every member must form it with the
// same ranks and the same label. Copyable; valid while the Communicator lives. Counts are in elements. Thread-safe.
class Group {
 public:
  struct State;
  Group() = default;
  explicit Group(std::shared_ptr<State> state) : state_(std::move(state)) {}
  explicit operator bool() const { return state_ != nullptr; }

  int rank() const;  // of this process within the group
  int size() const;
  const std::vector<int>& ranks() const;  // world ranks

  // Point to point; `peer` is a rank within the group. Messages with equal (peer, tag) arrive in order; one that is not received
  // yet holds up no other. A send is complete once `data` may be reused, which may be before the message is received; one of
  // 8 MiB or more waits for its receive.
  Handle send(std::span<const std::byte> data, int peer, std::uint32_t tag) const;
  Handle receive(std::span<std::byte> data, int peer, std::uint32_t tag) const;

  // In place.
  Handle all_reduce(void* data, std::size_t count, DataType type, Reduction reduction = Reduction::sum) const;
  // `input` holds size() chunks of `count`; chunk i, reduced, goes to rank i's `output` (may be a chunk of input).
  Handle reduce_scatter(const void* input, void* output, std::size_t count, DataType type, Reduction reduction = Reduction::sum) const;
  // Every rank's `count` elements, in rank order, into every rank's `output`; `input` may be this rank's place in output.
  Handle all_gather(const void* input, void* output, std::size_t count, DataType type) const;
  Handle broadcast(void* data, std::size_t count, DataType type, int root) const;
  // Chunk i of `count` goes to rank i.
  Handle all_to_all(const void* input, void* output, std::size_t count, DataType type) const;
  Handle barrier() const;

  // The same ranks' group for operations on device memory. Empty if a member has no device or two members have the same one; tensors on a
  // device then go through the host.
  DeviceGroup device() const;

 private:
  std::shared_ptr<State> state_;
};

// One at a time per process and task: a process whose communicator has failed or was closed may connect again, as another rank of another
// number of ranks, in a later epoch. The destructor closes in order: peers that are still waiting get Error(peer_lost) unless all
// closed. Thread-safe.
class Communicator {
 public:
  // Meets the other ranks. Throws deadline_exceeded naming the ranks that did not come, invalid_config when the ranks do not have the same
  // secret, task and world size, or no secret at a rendezvous that other hosts can reach, io when the port is in use. With a cuda_device,
  // first not_found where this host has no such device or no NCCL, and invalid_config for an NCCL that will not do.
  static std::unique_ptr<Communicator> connect(const Options& options);
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // All ranks.
  virtual Group world() = 0;
  // `ranks` are world ranks in group order and include this one. The label tells apart groups with equal ranks.
  virtual Group group(const std::vector<int>& ranks, std::string_view label) = 0;
  // What this rank is at, in words, for the others should it be lost: asked for four times a second, by a thread of the communicator's,
  // until another one is set. An empty function says nothing. Returns once nobody is in the one before.
  virtual void set_place(std::function<std::string()> place) = 0;
  // Called with what pending and future operations throw, once there is such an error, at least once, by whichever thread hears of it: for
  // what waits for something else meanwhile. It must not wait or use the communicator. An empty function: nobody is told. Returns once
  // nobody is in the one before.
  virtual void on_failure(std::function<void(const Error&)> call) = 0;
  // What this rank has sent so far, by the labels of its groups.
  virtual std::map<std::string, Traffic> traffic() const = 0;
  // Tells every rank that this task is over; their pending operations throw Error(peer_lost) with `reason`.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace tessera::comm
