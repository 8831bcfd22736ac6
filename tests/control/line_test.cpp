#include "control/line.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

namespace tessera::control {
namespace {

class SteeredClock final : public Clock {
 public:
  Seconds now() const override { return now_; }
  void sleep(Seconds duration) override { now_ = now_ + duration; }

 private:
  Seconds now_{1000};
};

// Whatever a rank writes reaches the launcher as it is.
TEST(Line, CarriesAnyBytes) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  Line here(comm::Descriptor{ends[0]}, {});
  Line there(comm::Descriptor{ends[1]}, {});
  std::string bytes = "\xff\xfe \r\033[K";
  bytes.push_back('\0');
  here.trust();
  there.send(Wrote{.rank = 3, .stream = Stream::output, .bytes = bytes});
  ASSERT_TRUE(here.pump());
  const auto message = here.next();
  ASSERT_TRUE(message && std::holds_alternative<Wrote>(*message));
  EXPECT_EQ(std::get<Wrote>(*message).bytes, bytes);
  EXPECT_EQ(std::get<Wrote>(*message).rank, 3);
  there.close();
  EXPECT_FALSE(here.pump());
}

// A launcher whose other end takes nothing goes on, and what waits goes when it can.
TEST(Line, NeverBlocks) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  Line here(comm::Descriptor{ends[0]}, {});
  Line there(comm::Descriptor{ends[1]}, {});
  here.trust();
  const std::string much(1 << 20, 'x');
  for (int i = 0; i < 4; ++i) there.send(Wrote{.rank = 0, .stream = Stream::errors, .bytes = much});
  EXPECT_GT(there.unsent(), 0U);
  int arrived = 0;
  for (int i = 0; i < 10'000 && arrived < 4; ++i) {
    ASSERT_TRUE(there.pump());
    ASSERT_TRUE(here.pump());
    while (here.next()) ++arrived;
  }
  EXPECT_EQ(arrived, 4);
}

// A host that is switched off closes no connection.
TEST(Line, IsAtItsEndAfterAMinuteWithoutAWord) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  SteeredClock clock;
  Line here(comm::Descriptor{ends[0]}, {}, clock);
  Line there(comm::Descriptor{ends[1]}, {}, clock);
  here.trust();
  // Both say that they are there, whatever else they have to say.
  for (int i = 0; i < 20; ++i) {
    clock.sleep(Seconds(10));
    ASSERT_TRUE(there.pump() && here.pump());
    const auto message = here.next();
    ASSERT_TRUE(message && std::holds_alternative<Beat>(*message));
  }
  clock.sleep(kSilence * 0.9);
  EXPECT_TRUE(here.pump());
  clock.sleep(kSilence * 0.2);
  EXPECT_FALSE(here.pump());
}

}  // namespace
}  // namespace tessera::control
