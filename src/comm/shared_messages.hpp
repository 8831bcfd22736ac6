// Internal. Messages between this rank and another one of its host, through the mail areas of their segments. Used by the
// thread that drives the shared engine alone.
//
// A send announces itself in the receiver's order of arrival; the receiver matches announcements with receives by group and
// tag. A small message lies in its announcement. A larger one goes in pieces, one message at a time; the sender begins on
// trust where no other message waits, and begins another one as soon as the receiver wants that. A message is sent when it is
// wanted and its last piece lies in shared memory.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "comm/operation.hpp"
#include "comm/shared_memory.hpp"

namespace tessera::comm {

class SharedMessages {
 public:
  // Who drives these messages; told from within the calls below.
  class Driver {
   public:
    // An operation has ended.
    virtual void finish(const OperationPointer& operation, std::shared_ptr<const Error> error) = 0;
    // Something is left to do although its operation has ended; until let_go().
    virtual void hold() = 0;
    virtual void let_go() = 0;

   protected:
    ~Driver() = default;
  };

  // `peer` is a world rank; `out` is the mail from this rank to it, `in` the mail from there; `doorbell` is the peer's; `buffered` counts
  // the bytes that all of a rank's sends keep in buffers.
  SharedMessages(Driver& driver, int peer, Mail& out, Mail& in, Doorbell& doorbell, std::size_t& buffered);

  // These three throw corrupt, naming the peer, for what it cannot have written in order, and internal for a message of another size than
  // its receive's. Then everything has to end.
  void submit(OperationPointer operation);
  // Does what can be done now; true when anything was.
  bool step();
  bool can_step() const;
  // A send that waits for its receiver for long is copied and ends, so that ranks that first send and then receive get on;
  // never a very large one, and no more than kBuffers altogether.
  void buffer_waiting(SteadyClock::time_point now);
  // True when buffer_waiting() should be called again soon.
  bool impatient() const;
  // The operation that is overdue, or none.
  OperationPointer overdue(SteadyClock::time_point now) const;
  // Everything ends with this error. Takes no memory.
  void end(const std::shared_ptr<const Error>& reason) noexcept;

  static constexpr std::chrono::milliseconds kPatience{1};

 private:
  using Stream = std::pair<std::uint64_t, std::uint32_t>;  // group key, tag
  struct Outgoing {
    OperationPointer operation;  // none once the send has ended
    std::unique_ptr<std::byte[]> buffer;
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    Stream stream;
    SteadyClock::time_point since;
  };
  struct Arrived {
    std::uint64_t number = 0;
    std::size_t bytes = 0;
    std::vector<std::byte> data;  // when it came in its slot
    bool in_slot = false;
  };
  struct Incoming {
    std::uint64_t number = 0;
    OperationPointer operation;
    std::size_t done = 0;
    bool asked = false;
    bool begun = false;
  };

  std::uint64_t distance(std::uint64_t ahead, std::uint64_t behind, std::uint64_t most, const char* what) const;
  std::uint64_t slots_in_use() const;
  std::uint64_t pieces_in_use() const;
  std::uint64_t unreceived() const;
  std::uint64_t unread() const;
  std::uint64_t pieces_to_take() const;
  bool announce();
  bool serve();
  bool may_trust() const;
  void begin(std::uint64_t number, bool wanted);
  void finish_serving();
  bool read_announcements();
  bool pull();
  void meet(const OperationPointer& operation, std::uint64_t number, std::size_t bytes, bool in_slot, const std::byte* data);
  void finish_send(Outgoing& outgoing);
  bool may_buffer(const Outgoing& outgoing) const;

  Driver& driver_;
  const int peer_;
  Mail& out_;
  Mail& in_;
  Doorbell& doorbell_;
  std::size_t& buffered_;

  std::deque<Outgoing> unannounced_;
  std::map<std::uint64_t, Outgoing> announced_;  // without those in slots
  std::uint64_t announced_count_ = 0;
  std::uint64_t in_slots_ = 0;
  std::uint64_t last_wanted_ = 0;
  std::uint64_t filled_ = 0;
  Outgoing* serving_ = nullptr;
  std::uint64_t serving_number_ = 0;
  bool serving_wanted_ = false;
  std::size_t served_ = 0;  // bytes

  std::map<Stream, std::deque<OperationPointer>> receives_;
  std::map<Stream, std::deque<Arrived>> arrived_;
  std::deque<Incoming> incoming_;  // matched; the first one comes in pieces
  std::uint64_t read_ = 0;
  std::uint64_t emptied_ = 0;
};

}  // namespace tessera::comm
