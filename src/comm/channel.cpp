#include "comm/channel.hpp"

#include "comm/shared_engine.hpp"

namespace tessera::comm {

Channel::Channel(SharedEngine& engine, std::shared_ptr<Group::State> group)
    : engine_(engine), group_(std::move(group)), members_(group_->ranks.size()) {
  engine_.own_segment().claim(group_->key);
  locate(rank());
  for (Member& member : members_) {
    const std::size_t index = static_cast<std::size_t>(&member - members_.data());
    member.doorbell = &engine_.segment(group_->ranks[index]).header().doorbell;
  }
}

bool Channel::locate(std::size_t index) {
  Member& member = members_[index];
  if (member.header) return true;
  const Segment& segment = engine_.segment(group_->ranks[index]);
  const std::size_t place = segment.find(group_->key);
  if (place == kChannels) return false;
  member.header = &segment.header().channels[place];
  member.staging = segment.staging(place);
  return true;
}

std::uint64_t Channel::progress_of(std::size_t index) {
  Member& member = members_[index];
  const std::uint64_t now = member.header->progress.load(std::memory_order_seq_cst);
  if (index == rank()) return now;
  // It begins no block before all members have finished the one before the last.
  const std::uint64_t furthest = 4 * (next_block + 2);
  if (now < member.seen || now > furthest)
    throw_corrupt_segment(group_->ranks[index], text("in group ", group_->name(), " it stands at ", now, " after ", member.seen,
                                                     ", and can have come to ", furthest, " at most"));
  return member.seen = now;
}

bool Channel::reached(int rank, std::uint64_t progress) {
  if (progress == 0) return true;
  const std::size_t first = rank < 0 ? 0 : static_cast<std::size_t>(rank);
  const std::size_t last = rank < 0 ? members_.size() : first + 1;
  for (std::size_t index = first; index < last; ++index) {
    if (!locate(index) || progress_of(index) < progress) {
      if (rank < 0 && index == this->rank()) continue;
      return false;
    }
  }
  return true;
}

void Channel::Wait::await_suspend(std::coroutine_handle<> waiting) {
  channel.waiter = waiting;
  channel.awaited_rank = rank;
  channel.awaited_progress = progress;
}

bool Channel::can_continue() { return waiter && reached(awaited_rank, awaited_progress); }

std::vector<int> Channel::missing() {
  std::vector<int> ranks;
  for (std::size_t index = 0; index < members_.size(); ++index) {
    const bool awaited = index != rank() && (awaited_rank < 0 || static_cast<std::size_t>(awaited_rank) == index);
    if (awaited && !reached(static_cast<int>(index), awaited_progress)) ranks.push_back(static_cast<int>(index));
  }
  return ranks;
}

void Channel::publish(std::uint64_t progress) {
  // Sequentially consistent with the sleeper's asleep flag and its last look: either it sees this, or it is rung.
  members_[rank()].header->progress.store(progress, std::memory_order_seq_cst);
  for (std::size_t index = 0; index < members_.size(); ++index) {
    if (index != rank()) members_[index].doorbell->ring_if_asleep();
  }
}

void Channel::show_card(const Operation& operation) { members_[rank()].header->cards[operation.sequence % 2] = card_of(operation); }

bool Channel::compare_cards(const Operation& operation, int rank) {
  for (std::size_t index = 0; index < members_.size(); ++index) {
    if (index == this->rank() || (rank >= 0 && static_cast<std::size_t>(rank) != index)) continue;
    const Card theirs = members_[index].header->cards[operation.sequence % 2];
    if (!check_card(operation, theirs, static_cast<int>(index))) return false;
  }
  return true;
}

}  // namespace tessera::comm
