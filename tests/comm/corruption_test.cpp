// What other processes wrote is checked before it is used, and whatever is thrown in a thread of comm ends the task with an error that
// names the rank.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include "base/expect_error.hpp"
#include "comm/card.hpp"
#include "comm/processes.hpp"
#include "comm/rendezvous.hpp"
#include "comm/shared_messages.hpp"

namespace tessera::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Ranks;
using ::testing::StartsWith;

// Rank 0's end of the messages with rank 1, whose side of both mails a test writes.
class OneEnd final : public SharedMessages::Driver {
 public:
  OneEnd() : out(std::make_unique<Mail>()), in(std::make_unique<Mail>()), messages(*this, 1, *out, *in, doorbell_, buffered_) {
    group_->ranks = {0, 1};
    group_->key = 1;
  }
  void submit(Kind kind, std::vector<std::byte>& data) {
    auto operation = std::make_shared<Operation>();
    operation->group = group_;
    operation->kind = kind;
    operation->input = operation->output = data.data();
    operation->count = data.size();
    operation->peer = 1;
    messages.submit(std::move(operation));
  }
  void announce(std::uint64_t bytes, bool in_slot) {
    Slot& slot = in->slots[0];
    slot.group = 1;
    slot.tag = 0;
    slot.bytes = bytes;
    slot.in_slot = in_slot;
    in->announced = 1;
  }
  void finish(const OperationPointer& operation, std::shared_ptr<const Error> error) override { operation->finish(std::move(error)); }
  void hold() override {}
  void let_go() override {}

 private:
  Doorbell doorbell_{};
  std::size_t buffered_ = 0;
  std::shared_ptr<Group::State> group_ = std::make_shared<Group::State>();

 public:
  const std::unique_ptr<Mail> out;
  const std::unique_ptr<Mail> in;
  SharedMessages messages;
};

struct Scribble {
  const char* what;
  Kind kind;
  std::size_t bytes;
  std::function<void(OneEnd&)> write;
};

TEST(Corruption, OfTheCountersOfMessagesIsNamed) {
  const std::size_t large = (kPieces + 4) * kPiece;  // more than there is room for at once
  const std::vector<Scribble> scribbles = {
      {"more read than announced", Kind::send, large, [](OneEnd& end) { end.out->read = 5; }},
      {"less read than there are slots", Kind::send, large, [](OneEnd& end) { end.out->read = ~std::uint64_t{0} - 100; }},
      {"more taken than filled", Kind::send, large, [](OneEnd& end) { end.out->emptied = kPieces + 1; }},
      {"a message wanted that is none", Kind::send, large, [](OneEnd& end) { end.out->wanted = 9; }},
      {"more received than sent", Kind::send, 8, [](OneEnd& end) { end.out->delivered = 7; }},
      {"more announced than there are slots", Kind::receive, 8, [](OneEnd& end) { end.in->announced = kSlots + 1; }},
      {"a slot that holds too much, wanted", Kind::receive, kInSlot + 1, [](OneEnd& end) { end.announce(kInSlot + 1, true); }},
      {"a slot that holds too much, not wanted", Kind::send, 8, [](OneEnd& end) { end.announce(std::uint64_t{1} << 60, true); }},
      {"pieces from nowhere", Kind::receive, large,
       [large](OneEnd& end) {
         end.announce(large, false);
         end.in->begin = 1000;
         end.in->serving = 1;
       }},
      {"more pieces than there is room for", Kind::receive, large,
       [large](OneEnd& end) {
         end.announce(large, false);
         end.in->filled = kPieces + 1;
         end.in->serving = 1;
       }},
  };
  for (const Scribble& scribble : scribbles) {
    OneEnd end;
    std::vector<std::byte> data(scribble.bytes);
    const Error error = tessera::testing::error_of([&] {
      if (scribble.kind == Kind::send && scribble.bytes > kInSlot) {
        end.submit(scribble.kind, data);
        end.messages.step();
        scribble.write(end);
        end.messages.step();
        end.submit(scribble.kind, data);
      } else {
        scribble.write(end);
        end.submit(scribble.kind, data);
      }
      end.messages.step();
    });
    EXPECT_EQ(error.code(), ErrorCode::corrupt) << scribble.what;
    EXPECT_EQ(error.where().rank, 1) << scribble.what;
    EXPECT_THAT(error.what(), HasSubstr("the shared memory of rank 1 is corrupt")) << scribble.what;
    end.messages.end(std::make_shared<const Error>(error));
  }
}

// The segments that this process has mapped: its own and those of the others.
std::vector<std::pair<std::byte*, std::byte*>> mapped_segments() {
  std::vector<std::pair<std::byte*, std::byte*>> segments;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("tessera-comm") == std::string::npos) continue;
    std::size_t dash = 0;
    const std::uintptr_t begin = std::stoull(line, &dash, 16);
    segments.emplace_back(reinterpret_cast<std::byte*>(begin),
                          reinterpret_cast<std::byte*>(std::stoull(line.substr(dash + 1), nullptr, 16)));
  }
  return segments;
}

enum class Then { go_on, wait };

// Two ranks exchange until one of them writes something into all segments; then it goes on, or waits for what never comes.
std::vector<testing::Outcome> outcomes_after(double deadline, Then then,
                                             const std::function<void(std::byte* begin, std::byte* end)>& write) {
  const std::string place = free_loopback_place();
  Ranks ranks(2, [&](int rank) -> std::string {
    const auto communicator = Communicator::connect(testing::options(rank, 2, place, deadline));
    const Group world = communicator->world();
    std::vector<float> data(100'000);
    std::vector<std::byte> out(200'000);
    std::vector<std::byte> in(200'000);
    for (int round = 0; round < 200; ++round) {
      if (round == 100 && rank == 1) {
        for (const auto& [begin, end] : mapped_segments()) write(begin, end);
        if (then == Then::wait) world.receive(in, 0, 99).wait();
      }
      const Handle received = world.receive(in, 1 - rank, 7);
      const Handle sent = world.send(out, 1 - rank, 7);
      world.all_reduce(data.data(), data.size(), DataType::f32).wait();
      sent.wait();
      received.wait();
    }
    return "ok";
  });
  return ranks.wait();
}

TEST(Corruption, OfTheProgressOfARankIsNamedByAll) {
  const auto outcomes = outcomes_after(60, Then::wait, [](std::byte* begin, std::byte*) {
    for (ChannelHeader& channel : reinterpret_cast<SegmentHeader*>(begin)->channels) {
      if (channel.key != 0) channel.progress = std::uint64_t{1} << 40;
    }
  });
  for (const auto& outcome : outcomes) {
    EXPECT_TRUE(outcome.exited) << outcome.signal;
    EXPECT_THAT(outcome.text, AllOf(StartsWith("error corrupt"), HasSubstr("the shared memory of rank "), HasSubstr("group 'world'")));
  }
}

TEST(Corruption, OfACardIsNamed) {
  Group::State group;
  group.ranks = {4, 7};
  Card card{.sequence = 3, .count = 9, .kind = static_cast<std::int32_t>(Kind::broadcast), .type = 99, .peer = 1};
  EXPECT_EQ(to_text(card, group), "broadcast #3 of 9 unknown from rank 7");
  for (const std::int32_t peer : {-1, 2, 1 << 30}) {
    card.peer = peer;
    EXPECT_EQ(to_text(card, group), "broadcast #3 of 9 unknown from no rank of the group");
  }
  card.kind = -5;
  EXPECT_EQ(to_text(card, group), "unknown #3 of 9 unknown");
}

#if !defined(__SANITIZE_THREAD__)  // it reports the scribbling, which is a race
// Whatever stands there, no rank touches what is not its own: it goes on, or ends with an error.
TEST(Corruption, OfAnythingInASegmentEndsNoRankByASignal) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    const auto outcomes = outcomes_after(2, Then::go_on, [seed](std::byte* begin, std::byte* end) {
      std::mt19937_64 random(seed);
      const auto scribble = [&](std::byte* from, std::size_t bytes) {
        auto* words = reinterpret_cast<std::uint64_t*>(from);
        for (int i = 0; i < 200; ++i) words[random() % (bytes / sizeof *words)] = random() >> random() % 64;
      };
      // The nonce and size at the very beginning have been read by all.
      scribble(begin, sizeof(SegmentHeader));
      for (std::byte* mail = end - 2 * sizeof(Mail); mail < end; mail += sizeof(Mail)) {
        scribble(mail, 256);  // the counters
        scribble(mail, sizeof(Mail));
      }
    });
    for (const auto& outcome : outcomes) {
      EXPECT_TRUE(outcome.exited) << "seed " << seed << ", signal " << outcome.signal;
      EXPECT_TRUE(outcome.text == "ok" || outcome.text.starts_with("error ")) << "seed " << seed << ": " << outcome.text;
    }
  }
}
#endif

TEST(Corruption, ASegmentStaysAsLargeAsItIs) {
  const Segment segment = Segment::create(2);
  EXPECT_NE(::ftruncate(segment.descriptor(), 0), 0);
}

// The raw rank 1 of three belongs to the run, and then says this over the control channel.
std::vector<testing::Outcome> outcomes_of_saying(const std::function<void(FrameSocket&)>& say) {
  const std::string place = free_loopback_place();
  Ranks ranks(2, [&](int process) -> std::string {
    const int rank = 2 * process;
    Options options = testing::options(rank, 3, place, 30);
    options.shared_memory = false;
    const auto communicator = Communicator::connect(options);
    std::byte byte{};
    communicator->group({0, 2}, "pair").receive({&byte, 1}, 1 - process, 1).wait();
    return "no error";
  });
  const Options options = testing::options(1, 3, place, 30);
  Meeting meeting = join_rendezvous(options, {"no address", "", 1, -1, 0});
  exchange_reached(options, meeting, {});
  say(meeting.sockets[0]);
  return ranks.wait();
}

TEST(Corruption, OfTheControlChannelIsNamedByAll) {
  const std::vector<nlohmann::json> wrong = {
      {{"kind", 5}},
      {{"kind", "failed"}, {"code", 99}, {"rank", 0}, {"message", ""}},
      {{"kind", "failed"}, {"code", 1}, {"rank", 1}, {"message", {1}}},
      {{"kind", "closing"}, {"rank", 2}, {"joined", nlohmann::json::array()}},
      {{"kind", "closing"}, {"rank", 1}, {"joined", {{"1", 1}}}},
      {{"kind", "heartbeat"}, {"without", {7}}},
      {{"kind", "heartbeat"}, {"without", nlohmann::json::array()}, {"place", 3}, {"places", nlohmann::json::array()}},
      {{"kind", "heartbeat"}, {"without", nlohmann::json::array()}, {"place", ""}, {"places", {{{"rank", 9}, {"place", ""}}}}}};
  for (nlohmann::json message : wrong) {
    message["epoch"] = 0;
    for (const auto& outcome : outcomes_of_saying([&](FrameSocket& socket) { socket.send(message); }))
      EXPECT_THAT(outcome.text, AllOf(StartsWith("error corrupt"), HasSubstr("rank 1 is lost"), HasSubstr("over the control channel")))
          << message;
  }
  for (const nlohmann::json& epoch : {nlohmann::json(1), nlohmann::json(-1), nlohmann::json("0")}) {
    const nlohmann::json message = {{"kind", "end"}, {"epoch", epoch}};
    for (const auto& outcome : outcomes_of_saying([&](FrameSocket& socket) { socket.send(message); }))
      EXPECT_THAT(outcome.text, AllOf(StartsWith("error corrupt"), HasSubstr("'epoch'"))) << message;
  }
  for (const std::string& bytes : {std::string("\xff\xff\xff\xff"), std::string("\x02\0\0\0[]", 6), std::string("\x03\0\0\0???", 7)}) {
    for (const auto& outcome :
         outcomes_of_saying([&](FrameSocket& socket) { ASSERT_GT(::write(socket.fd(), bytes.data(), bytes.size()), 0); }))
      EXPECT_THAT(outcome.text, AllOf(StartsWith("error corrupt"), HasSubstr("rank 1 is lost")));
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they end a process that asks for too much
// A reduction over the network needs memory on the progress thread, which has none left: a process without it says so, and the others
// say which it is.
TEST(Exceptions, OutOfMemoryOnTheProgressThreadIsNamedByAll) {
  const std::string place = free_loopback_place();
  Ranks ranks(3, [&](int rank) -> std::string {
    Options options = testing::options(rank, 3, place, 60);
    options.shared_memory = false;
    const auto communicator = Communicator::connect(options);
    communicator->world().barrier().wait();
    // Never touched where it fails.
    constexpr std::size_t kBytes = std::size_t{1} << 30;
    void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return "no address space for the test";
    if (rank == 1) {
      std::ifstream status("/proc/self/statm");
      rlim_t pages = 0;
      status >> pages;
      const rlim_t now = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
      const rlimit limit{now + (rlim_t{1} << 20), now + (rlim_t{1} << 20)};
      if (setrlimit(RLIMIT_AS, &limit) != 0) return "no limit";
    } else {
      // The others wait for a message, and have no need of memory.
      std::byte byte{};
      communicator->world().receive({&byte, 1}, 1, 3).wait();
    }
    communicator->world().all_reduce(data, kBytes / sizeof(float), DataType::f32).wait();
    return "no error";
  });
  for (const auto& outcome : ranks.wait()) {
    EXPECT_TRUE(outcome.exited) << outcome.signal;
    EXPECT_THAT(outcome.text, AllOf(StartsWith("error resource_exhausted"), HasSubstr("rank 1 ran out of memory while it exchanged data")));
  }
}
#endif

}  // namespace
}  // namespace tessera::comm
