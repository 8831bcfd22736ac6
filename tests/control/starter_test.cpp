#include "control/starter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "base/clock.hpp"
#include "base/expect_error.hpp"

namespace tessera::control {
namespace {

int exit_code_of(Starter& starter) {
  for (int i = 0; i < 1000 && !starter.status(); ++i) real_clock().sleep(Seconds(0.01));
  return WEXITSTATUS(starter.status().value_or(0));
}

TEST(Starter, RemembersTheLastLineThatAProgramSaid) {
  Starter starter({"sh", "-c", "echo first; printf 'the last\\r\\n' >&2; exit 3"}, Starter::Speaks::words);
  EXPECT_EQ(exit_code_of(starter), 3);
  std::vector<std::string> heard;
  starter.read([&](const std::string& line) { heard.push_back(line); });
  EXPECT_THAT(heard, ::testing::ElementsAre("first", "the last"));
  EXPECT_EQ(starter.last_line(), "the last");
}

TEST(Starter, SpeaksOverInputAndOutput) {
  Starter starter({"cat"}, Starter::Speaks::line);
  Line line = starter.take_line();
  line.send(Beat{});
  std::optional<AgentMessage> message;
  for (int i = 0; i < 500 && !message; ++i) {
    line.pump();
    message = line.next();
    real_clock().sleep(Seconds(0.01));
  }
  EXPECT_TRUE(message && std::holds_alternative<Beat>(*message));
  // It ends when its input does.
  line.close();
  EXPECT_EQ(exit_code_of(starter), 0);
}

TEST(Starter, EndsAProgramThatDoesNotEnd) {
  const Seconds begin = real_clock().now();
  {
    // Its child lives on where it alone is ended.
    Starter starter({"sh", "-c", "trap '' TERM; sleep 60 & wait; wait"}, Starter::Speaks::words);
    starter.ask_to_end();
  }
  EXPECT_LT((real_clock().now() - begin).value, 30);
}

TEST(Starter, SaysWhichProgramThereIsNot) {
  const Error error = tessera::testing::error_of([] { Starter({"no-such-program"}, Starter::Speaks::words); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.message(), ::testing::HasSubstr("no-such-program"));
}

TEST(Starter, TakesACommandApart) {
  EXPECT_THAT(words_of(" ssh  -F file "), ::testing::ElementsAre("ssh", "-F", "file"));
  EXPECT_TRUE(words_of("").empty());
}

}  // namespace
}  // namespace tessera::control
