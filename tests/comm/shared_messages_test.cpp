// Both ends of the messages through shared memory in one process: driven by one thread, where a test chooses who looks when, and by
// two, where the thread sanitizer sees both.
#include "comm/shared_messages.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "comm/control.hpp"

namespace tessera::comm {
namespace {

using Bytes = std::vector<std::byte>;

// What fits into all pieces at once: a sender that is not asked yet gets no further.
constexpr std::size_t kRing = kPieces * kPiece;

// Different for every name.
Bytes message(std::size_t name, std::size_t size) {
  static const Bytes noise = [] {
    Bytes bytes(4 << 20);
    std::mt19937_64 random(1);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
  }();
  const auto begin = noise.begin() + static_cast<std::ptrdiff_t>(name * 1009 % (noise.size() - size));
  return Bytes(begin, begin + static_cast<std::ptrdiff_t>(size));
}

bool same(const Bytes& a, const Bytes& b) { return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0); }

// One end and who drives it. It sleeps when there is nothing to do, and then does nothing until the other end rings.
class End final : public SharedMessages::Driver {
 public:
  End(int rank, Mail& out, Mail& in, Doorbell& own, Doorbell& theirs)
      : messages_(*this, 1 - rank, out, in, theirs, buffered_), doorbell_(own) {
    group_->ranks = {0, 1};
    group_->rank = rank;
    group_->key = 1;
  }

  OperationPointer send(const Bytes& data, std::uint32_t tag) { return submit(Kind::send, tag, data.data(), nullptr, data.size()); }
  OperationPointer receive(Bytes& data, std::uint32_t tag) { return submit(Kind::receive, tag, nullptr, data.data(), data.size()); }
  // One look; false while it sleeps.
  bool look() {
    const std::uint32_t rings = doorbell_.rings.load();
    if (doorbell_.asleep.load() != 0 && rings == seen_) return false;
    seen_ = rings;
    doorbell_.asleep.store(0);
    if (messages_.step()) return true;
    doorbell_.asleep.store(1);
    if (!messages_.can_step()) return false;
    doorbell_.asleep.store(0);
    return true;
  }
  void look_until_asleep() {
    while (look()) continue;
  }
  // As when all sends had waited for long.
  void buffer_waiting() { messages_.buffer_waiting(SteadyClock::now() + std::chrono::hours(1)); }
  // Nothing is left of any send.
  bool rests() const { return held_ == 0 && buffered_ == 0; }

  void finish(const OperationPointer& operation, std::shared_ptr<const Error> error) override { operation->finish(std::move(error)); }
  void hold() override { ++held_; }
  void let_go() override { --held_; }

 private:
  OperationPointer submit(Kind kind, std::uint32_t tag, const std::byte* input, std::byte* output, std::size_t bytes) {
    const auto operation = std::make_shared<Operation>();
    operation->group = group_;
    operation->kind = kind;
    operation->input = input;
    operation->output = output;
    operation->count = bytes;
    operation->peer = 1 - group_->rank;
    operation->tag = tag;
    operation->submitted = SteadyClock::now();
    doorbell_.asleep.store(0);
    messages_.submit(operation);
    return operation;
  }

  const std::shared_ptr<Group::State> group_ = std::make_shared<Group::State>();
  std::size_t buffered_ = 0;
  int held_ = 0;
  SharedMessages messages_;
  Doorbell& doorbell_;
  std::uint32_t seen_ = 0;
};

struct Memory {
  Mail mail[2]{};
  Doorbell doorbells[2]{};
};

struct TwoEnds : ::testing::Test {
  void look_until_asleep() {
    while (static_cast<int>(ends[0].look()) + static_cast<int>(ends[1].look()) > 0) continue;
  }
  const std::unique_ptr<Memory> memory = std::make_unique<Memory>();
  End ends[2] = {{0, memory->mail[0], memory->mail[1], memory->doorbells[0], memory->doorbells[1]},
                 {1, memory->mail[1], memory->mail[0], memory->doorbells[1], memory->doorbells[0]}};
  End& sender = ends[0];
  End& receiver = ends[1];
};

TEST_F(TwoEnds, EndASendWhoseMessageIsTakenWholeBetweenTwoLooks) {
  const Bytes data[] = {message(0, kRing), message(1, kRing)};
  Bytes got[] = {Bytes(kRing), Bytes(kRing)};
  const OperationPointer first = sender.send(data[0], 0);
  sender.look();
  const OperationPointer second = sender.send(data[1], 1);
  const OperationPointer receives[] = {receiver.receive(got[0], 0), receiver.receive(got[1], 1)};
  // All that the sender sees after this is that the second one is wanted.
  receiver.look();
  ASSERT_TRUE(receives[0]->done());
  look_until_asleep();
  EXPECT_TRUE(first->done());
  EXPECT_TRUE(second->done());
  EXPECT_TRUE(receives[1]->done());
  EXPECT_TRUE(same(got[0], data[0]));
  EXPECT_TRUE(same(got[1], data[1]));
}

TEST_F(TwoEnds, KeepAMessageThatGivesWayToAnotherOne) {
  const Bytes data[] = {message(0, kRing), message(1, kRing)};
  Bytes got[] = {Bytes(kRing), Bytes(kRing)};
  const OperationPointer first = sender.send(data[0], 0);
  sender.look();
  const OperationPointer second = sender.send(data[1], 1);
  const OperationPointer later = receiver.receive(got[1], 1);
  receiver.look();
  // Finds no room, and sleeps, before the receiver skips what it does not want.
  sender.look_until_asleep();
  look_until_asleep();
  EXPECT_FALSE(first->done());
  EXPECT_TRUE(second->done());
  EXPECT_TRUE(later->done());
  const OperationPointer earlier = receiver.receive(got[0], 0);
  look_until_asleep();
  EXPECT_TRUE(first->done());
  EXPECT_TRUE(earlier->done());
  EXPECT_TRUE(same(got[0], data[0]));
  EXPECT_TRUE(same(got[1], data[1]));
}

TEST_F(TwoEnds, PassAnEmptyMessageWhereNoOtherSmallOneIsKeptAnyMore) {
  const Bytes small(1);
  Bytes empty;
  while (sender.send(small, 0)->done()) look_until_asleep();
  const OperationPointer send = sender.send(empty, 1);
  const OperationPointer receive = receiver.receive(empty, 1);
  receiver.look();
  sender.look_until_asleep();
  look_until_asleep();
  EXPECT_TRUE(send->done());
  EXPECT_TRUE(receive->done());
}

// What one end sends to the other: messages of equal tags keep their order.
struct Flow {
  static constexpr std::size_t kTags = 4;
  static constexpr std::size_t kEach = 3;
  static constexpr std::size_t kAll = kTags * kEach;
  Flow(std::mt19937_64& random, std::size_t name) {
    static constexpr std::size_t sizes[] = {0, 1, kInSlot, kInSlot + 1, kPiece, kPiece + 1, 100000, kRing, kRing + 1, 2 * kRing + 1};
    for (std::size_t i = 0; i < kAll; ++i) {
      data.push_back(message(name + i, sizes[random() % std::size(sizes)]));
      got.emplace_back(data.back().size());
    }
  }
  // The next send or receive of a tag, if there is one.
  bool submit(End& end, bool sending, std::size_t tag) {
    std::vector<OperationPointer>& mine = (sending ? sends : receives)[tag];
    if (mine.size() == kEach) return false;
    const std::size_t index = tag * kEach + mine.size();
    mine.push_back(sending ? end.send(data[index], static_cast<std::uint32_t>(tag))
                           : end.receive(got[index], static_cast<std::uint32_t>(tag)));
    return true;
  }
  static bool done(const std::vector<OperationPointer> (&operations)[kTags]) {
    return std::all_of(std::begin(operations), std::end(operations), [](const auto& of_tag) {
      return of_tag.size() == kEach && std::all_of(of_tag.begin(), of_tag.end(), [](const OperationPointer& one) { return one->done(); });
    });
  }
  bool whole() const { return done(sends) && done(receives) && std::equal(got.begin(), got.end(), data.begin(), same); }
  std::vector<Bytes> data;
  std::vector<Bytes> got;
  std::vector<OperationPointer> sends[kTags];
  std::vector<OperationPointer> receives[kTags];
};

TEST_F(TwoEnds, BringEveryMessageInAnyOrderOfLooks) {
  for (std::uint64_t round = 0; round < 100; ++round) {
    std::mt19937_64 random(round);
    Flow flows[] = {{random, round * 100}, {random, round * 100 + 50}};
    for (std::size_t left = 4 * Flow::kAll; left > 0;) {
      const std::size_t me = random() % 2;
      const std::size_t what = random() % 16;
      if (what == 0) ends[me].buffer_waiting();
      if (what > 8) ends[me].look();
      if (what >= 1 && what <= 8) left -= flows[what % 2 == 0 ? me : 1 - me].submit(ends[me], what % 2 == 0, random() % Flow::kTags);
    }
    look_until_asleep();
    for (std::size_t me = 0; me < 2; ++me) {
      ASSERT_TRUE(flows[me].whole()) << "round " << round;
      ASSERT_TRUE(ends[me].rests()) << "round " << round;
    }
  }
}

TEST_F(TwoEnds, BringEveryMessageWhileBothLook) {
  for (std::uint64_t round = 0; round < 50; ++round) {
    const auto give_up = SteadyClock::now() + std::chrono::seconds(60);
    std::mt19937_64 random(round);
    Flow flows[] = {{random, round * 100}, {random, round * 100 + 50}};
    const auto drive = [&](std::size_t me) {
      std::mt19937_64 choices(round * 2 + me);
      for (std::size_t left = 2 * Flow::kAll; left > 0;) {
        const bool sending = choices() % 2 == 0;
        left -= flows[sending ? me : 1 - me].submit(ends[me], sending, choices() % Flow::kTags);
        if (choices() % 2 == 0) ends[me].look();
        if (choices() % 16 == 0) ends[me].buffer_waiting();
      }
      while (!Flow::done(flows[me].sends) || !Flow::done(flows[1 - me].receives) || !ends[me].rests()) {
        if (!ends[me].look()) sched_yield();
        if (SteadyClock::now() > give_up) return;
      }
    };
    std::thread other(drive, 1);
    drive(0);
    other.join();
    for (std::size_t me = 0; me < 2; ++me) {
      ASSERT_TRUE(flows[me].whole()) << "round " << round;
      ASSERT_TRUE(ends[me].rests()) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace tessera::comm
