#include "comm/shared_messages.hpp"

#include <algorithm>
#include <cstring>

namespace tessera::comm {
namespace {

// Messages in slots that one rank may keep for another before they are received.
constexpr std::uint64_t kUnreceived = 4096;
constexpr std::size_t kLargestBuffer = 8 << 20;
constexpr std::size_t kBuffers = 64 << 20;

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

SharedMessages::SharedMessages(Driver& driver, int peer, Mail& out, Mail& in, Doorbell& doorbell, std::size_t& buffered)
    : driver_(driver), peer_(peer), out_(out), in_(in), doorbell_(doorbell), buffered_(buffered) {}

// Of two counters that only grow, at least one of them the peer's.
std::uint64_t SharedMessages::distance(std::uint64_t ahead, std::uint64_t behind, std::uint64_t most, const char* what) const {
  if (ahead - behind <= most) return ahead - behind;
  throw_corrupt_segment(peer_, text(what, ": ", behind, " of ", ahead, " with room for ", most));
}

std::uint64_t SharedMessages::slots_in_use() const {
  return distance(announced_count_, out_.read.load(std::memory_order_seq_cst), kSlots, "announcements that it has read");
}

std::uint64_t SharedMessages::pieces_in_use() const {
  return distance(filled_, out_.emptied.load(std::memory_order_seq_cst), kPieces, "pieces that it has taken");
}

std::uint64_t SharedMessages::pieces_to_take() const {
  return distance(in_.filled.load(std::memory_order_seq_cst), emptied_, kPieces, "pieces that it has filled");
}

std::uint64_t SharedMessages::unread() const {
  return distance(in_.announced.load(std::memory_order_seq_cst), read_, kSlots, "announcements that it has made");
}

void SharedMessages::submit(OperationPointer operation) {
  const Stream stream{operation->group->key, operation->tag};
  if (operation->kind == Kind::send) {
    Outgoing outgoing;
    outgoing.data = operation->input;
    outgoing.bytes = operation->count;
    outgoing.stream = stream;
    outgoing.since = operation->submitted;
    outgoing.operation = std::move(operation);
    unannounced_.push_back(std::move(outgoing));
    announce();
    return;
  }
  const auto found = arrived_.find(stream);
  if (found == arrived_.end()) {
    receives_[stream].push_back(std::move(operation));
    return;
  }
  const Arrived message = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) arrived_.erase(found);
  meet(operation, message.number, message.bytes, message.in_slot, message.data.data());
}

bool SharedMessages::step() {
  bool moved = announce();
  moved |= serve();
  moved |= read_announcements();
  moved |= pull();
  return moved;
}

bool SharedMessages::can_step() const {
  if (!unannounced_.empty() && slots_in_use() < kSlots) return true;
  if (out_.wanted.load(std::memory_order_seq_cst) != last_wanted_ || may_trust()) return true;
  if (serving_ && served_ < serving_->bytes && pieces_in_use() < kPieces) return true;
  if (unread() > 0) return true;
  if (incoming_.empty()) return false;
  const Incoming& message = incoming_.front();
  if (!message.begun) return !message.asked || in_.serving.load(std::memory_order_seq_cst) == message.number + 1;
  return pieces_to_take() > 0;
}

bool SharedMessages::announce() {
  bool moved = false;
  while (!unannounced_.empty() && slots_in_use() < kSlots) {
    Outgoing& outgoing = unannounced_.front();
    // An empty message always lies in its slot: it takes no room there, and that it was taken could not be seen by any piece.
    const bool in_slot = outgoing.bytes == 0 || (outgoing.bytes <= kInSlot && unreceived() < kUnreceived);
    Slot& slot = out_.slots[announced_count_ % kSlots];
    slot.group = outgoing.stream.first;
    slot.tag = outgoing.stream.second;
    slot.bytes = outgoing.bytes;
    slot.in_slot = in_slot;
    if (in_slot) {
      ++in_slots_;
      copy_bytes(slot.data, outgoing.data, outgoing.bytes);
      finish_send(outgoing);
    } else {
      announced_.emplace(announced_count_, std::move(outgoing));
    }
    unannounced_.pop_front();
    out_.announced.store(++announced_count_, std::memory_order_seq_cst);
    moved = true;
  }
  if (moved) doorbell_.ring_if_asleep();
  return moved;
}

std::uint64_t SharedMessages::unreceived() const {
  return distance(in_slots_, out_.delivered.load(std::memory_order_relaxed), in_slots_, "messages in slots that it has received");
}

// The receiver has taken all pieces, so it knows where those of the next message begin.
bool SharedMessages::may_trust() const { return !serving_ && announced_.size() == 1 && pieces_in_use() == 0; }

void SharedMessages::begin(std::uint64_t number, bool wanted) {
  serving_wanted_ = wanted;
  if (serving_ && serving_number_ == number) return;
  serving_ = &announced_.at(number);
  serving_number_ = number;
  served_ = 0;
  out_.begin = filled_;
  out_.serving.store(number + 1, std::memory_order_seq_cst);
  doorbell_.ring_if_asleep();
}

bool SharedMessages::serve() {
  bool moved = true;
  const std::uint64_t wanted = out_.wanted.load(std::memory_order_acquire);
  if (wanted != last_wanted_) {
    last_wanted_ = wanted;
    // A message that was begun on trust may have been wanted and taken whole since the last look. Then only the next wish is seen, and
    // that pieces were taken, which are taken of nothing but what is wanted.
    if (serving_ && serving_number_ != wanted - 1 && out_.emptied.load(std::memory_order_acquire) != out_.begin) finish_serving();
    if (!announced_.contains(wanted - 1)) throw_corrupt_segment(peer_, text("it wants message ", wanted - 1, ", which is none that waits"));
    begin(wanted - 1, true);
  } else if (may_trust()) {
    begin(announced_.begin()->first, false);
  } else if (serving_) {
    moved = false;
  } else {
    return false;
  }
  while (served_ < serving_->bytes && pieces_in_use() < kPieces) {
    const std::size_t bytes = std::min(kPiece, serving_->bytes - served_);
    copy_bytes(out_.pieces[filled_ % kPieces], serving_->data + served_, bytes);
    served_ += bytes;
    out_.filled.store(++filled_, std::memory_order_seq_cst);
    doorbell_.ring_if_asleep();
    moved = true;
  }
  if (serving_wanted_ && served_ == serving_->bytes) {
    finish_serving();
    moved = true;
  }
  return moved;
}

void SharedMessages::finish_serving() {
  finish_send(*serving_);
  serving_ = nullptr;
  announced_.erase(serving_number_);
}

bool SharedMessages::read_announcements() {
  std::uint64_t count = unread();
  if (count == 0) return false;
  for (; count > 0; --count, ++read_) {
    // Read once, as the other rank may still write over what has been checked.
    const Slot& slot = in_.slots[read_ % kSlots];
    const Stream stream{slot.group, slot.tag};
    const std::uint64_t bytes = slot.bytes;
    const bool in_slot = slot.in_slot != 0;
    if (in_slot && bytes > kInSlot) throw_corrupt_segment(peer_, text("a message of ", bytes, " bytes in a slot of ", kInSlot));
    const auto found = receives_.find(stream);
    if (found == receives_.end()) {
      Arrived message{read_, bytes, {}, in_slot};
      if (in_slot) message.data.assign(slot.data, slot.data + bytes);
      arrived_[stream].push_back(std::move(message));
      continue;
    }
    meet(found->second.front(), read_, bytes, in_slot, slot.data);
    found->second.pop_front();
    if (found->second.empty()) receives_.erase(found);
  }
  in_.read.store(read_, std::memory_order_seq_cst);
  doorbell_.ring_if_asleep();
  return true;
}

// A receive and its message have met; `data` counts only for one that came in its slot, and may be null for an empty one.
void SharedMessages::meet(const OperationPointer& operation, std::uint64_t number, std::size_t bytes, bool in_slot, const std::byte* data) {
  if (bytes != operation->count) {
    const std::vector<int>& ranks = operation->group->ranks;
    throw Error(ErrorCode::internal, text("rank ", ranks[static_cast<std::size_t>(operation->peer)], " sent ", bytes, " bytes where rank ",
                                          ranks[static_cast<std::size_t>(operation->group->rank)], " expected ", operation->count,
                                          " bytes in ", operation->description()));
  }
  if (!in_slot) {
    incoming_.push_back({.number = number, .operation = operation});
    return;
  }
  copy_bytes(operation->output, data, bytes);
  in_.delivered.fetch_add(1, std::memory_order_relaxed);
  driver_.finish(operation, nullptr);
}

bool SharedMessages::pull() {
  bool moved = false;
  while (!incoming_.empty()) {
    Incoming& message = incoming_.front();
    if (!message.asked) {
      message.asked = moved = true;
      in_.wanted.store(message.number + 1, std::memory_order_seq_cst);
      doorbell_.ring_if_asleep();
    }
    if (!message.begun) {
      if (in_.serving.load(std::memory_order_acquire) != message.number + 1) return moved;
      message.begun = moved = true;
      emptied_ += distance(in_.begin, emptied_, kPieces, "pieces before the message that it sends");
      in_.emptied.store(emptied_, std::memory_order_seq_cst);
      // Skipped pieces are room, which the sender may have found none of.
      doorbell_.ring_if_asleep();
    }
    Operation& operation = *message.operation;
    while (message.done < operation.count && pieces_to_take() > 0) {
      const std::size_t bytes = std::min(kPiece, operation.count - message.done);
      copy_bytes(operation.output + message.done, in_.pieces[emptied_ % kPieces], bytes);
      message.done += bytes;
      in_.emptied.store(++emptied_, std::memory_order_seq_cst);
      doorbell_.ring_if_asleep();
      moved = true;
    }
    if (message.done < operation.count) return moved;
    const OperationPointer finished = std::move(message.operation);
    incoming_.pop_front();
    driver_.finish(finished, nullptr);
  }
  return moved;
}

void SharedMessages::finish_send(Outgoing& outgoing) {
  if (outgoing.buffer) {
    buffered_ -= outgoing.bytes;
    driver_.let_go();
  } else {
    driver_.finish(outgoing.operation, nullptr);
  }
}

bool SharedMessages::may_buffer(const Outgoing& outgoing) const {
  return outgoing.operation && (&outgoing != serving_ || !serving_wanted_) && outgoing.bytes < kLargestBuffer &&
         buffered_ + outgoing.bytes <= kBuffers;
}

void SharedMessages::buffer_waiting(SteadyClock::time_point now) {
  const auto buffer = [&](Outgoing& outgoing) {
    if (!may_buffer(outgoing) || now - outgoing.since < kPatience) return;
    outgoing.buffer = std::make_unique_for_overwrite<std::byte[]>(outgoing.bytes);
    copy_bytes(outgoing.buffer.get(), outgoing.data, outgoing.bytes);
    outgoing.data = outgoing.buffer.get();
    buffered_ += outgoing.bytes;
    driver_.hold();
    driver_.finish(std::exchange(outgoing.operation, nullptr), nullptr);
  };
  for (Outgoing& outgoing : unannounced_) buffer(outgoing);
  for (auto& [number, outgoing] : announced_) buffer(outgoing);
}

bool SharedMessages::impatient() const {
  return std::any_of(unannounced_.begin(), unannounced_.end(), [this](const Outgoing& outgoing) { return may_buffer(outgoing); }) ||
         std::any_of(announced_.begin(), announced_.end(), [this](const auto& one) { return may_buffer(one.second); });
}

OperationPointer SharedMessages::overdue(SteadyClock::time_point now) const {
  const auto late = [now](const OperationPointer& operation) { return operation && now >= operation->deadline; };
  for (const auto& [stream, queue] : receives_) {
    if (late(queue.front())) return queue.front();
  }
  for (const Incoming& message : incoming_) {
    if (late(message.operation)) return message.operation;
  }
  for (const Outgoing& outgoing : unannounced_) {
    if (late(outgoing.operation)) return outgoing.operation;
  }
  for (const auto& [number, outgoing] : announced_) {
    if (late(outgoing.operation)) return outgoing.operation;
  }
  return nullptr;
}

void SharedMessages::end(const std::shared_ptr<const Error>& reason) noexcept {
  const auto end_send = [&](Outgoing& outgoing) {
    if (outgoing.operation) {
      driver_.finish(outgoing.operation, reason);
    } else {
      finish_send(outgoing);
    }
  };
  serving_ = nullptr;
  arrived_.clear();
  for (Outgoing& outgoing : unannounced_) end_send(outgoing);
  unannounced_.clear();
  for (auto& [number, outgoing] : announced_) end_send(outgoing);
  announced_.clear();
  for (const auto& [stream, queue] : receives_) {
    for (const OperationPointer& operation : queue) driver_.finish(operation, reason);
  }
  receives_.clear();
  for (const Incoming& message : incoming_) driver_.finish(message.operation, reason);
  incoming_.clear();
}

}  // namespace tessera::comm
