#include "base/error.hpp"

#include <gmock/gmock.h>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>

#include "base/expect_error.hpp"

namespace tessera {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

constexpr ErrorCode kAll[] = {
    ErrorCode::invalid_config, ErrorCode::not_found,         ErrorCode::corrupt,     ErrorCode::io,      ErrorCode::resource_exhausted,
    ErrorCode::peer_lost,      ErrorCode::deadline_exceeded, ErrorCode::interrupted, ErrorCode::internal};

TEST(Error, SaysWhatWhereExpectedAndWhatToDo) {
  const Error error(ErrorCode::invalid_config, "lr: found 'x'", {"t.yaml", 3, 7, -1, {}}, "a number", "write 0.1");
  EXPECT_STREQ(error.what(), "t.yaml:3:7: lr: found 'x'; expected a number\n  write 0.1");
}

TEST(Error, LeavesOutWhatIsNotKnown) {
  EXPECT_STREQ(Error(ErrorCode::io, "disk full").what(), "disk full");
  EXPECT_STREQ(Error(ErrorCode::peer_lost, "gone", {{}, 0, 0, 3, "layers.2"}).what(), "rank 3, block layers.2: gone");
}

TEST(Error, BecomesJsonOnOneLine) {
  const Error error(ErrorCode::corrupt, "bad \"sum\"\n", {"a.bin", 2, 0, 1, "head"}, "x", "y");
  EXPECT_EQ(
      to_json(error),
      R"({"error":{"block":"head","code":"corrupt","expected":"x","file":"a.bin","hint":"y","line":2,"message":"bad \"sum\"\n","rank":1}})");
}

TEST(Error, BecomesJsonEvenWithBytesThatAreNoText) { EXPECT_THAT(to_json(Error(ErrorCode::io, "\xff\xfe")), HasSubstr("\"code\":\"io\"")); }

TEST(Error, OfSeveralSaysAllOfThem) {
  const Error first(ErrorCode::invalid_config, "lr: found 'x'", {"t.yaml", 3, 7, -1, {}}, "a number");
  const Error second(ErrorCode::invalid_config, "unknown key 'stps'", {"t.yaml", 5, 1, -1, {}}, {}, "did you mean 'steps'?");
  const Error both(std::vector{first, second});
  EXPECT_EQ(both.code(), ErrorCode::invalid_config);
  EXPECT_STREQ(both.what(), "t.yaml:3:7: lr: found 'x'; expected a number\nt.yaml:5:1: unknown key 'stps'\n  did you mean 'steps'?");
  ASSERT_EQ(both.each().size(), 2U);
  EXPECT_STREQ(both.each()[0].what(), first.what());
  EXPECT_STREQ(both.each()[1].what(), second.what());
  const auto json = nlohmann::json::parse(to_json(both));
  EXPECT_EQ(json.at("error").at("line"), 3);
  ASSERT_EQ(json.at("errors").size(), 2U);
  EXPECT_EQ(json.at("errors")[1].at("line"), 5);
  EXPECT_FALSE(nlohmann::json::parse(to_json(first)).contains("errors"));
}

TEST(Error, EachCodeHasItsOwnNameAndFailsTheProcess) {
  std::set<std::string> names;
  for (const ErrorCode code : kAll) {
    EXPECT_NE(exit_code(code), 0);
    EXPECT_TRUE(names.insert(name_of(code)).second) << name_of(code);
  }
}

TEST(Error, ExitCodesAreThoseThatScriptsRelyOn) {
  EXPECT_EQ(exit_code(ErrorCode::invalid_config), 2);
  EXPECT_EQ(exit_code(ErrorCode::not_found), 3);
  EXPECT_EQ(exit_code(ErrorCode::corrupt), 3);
  EXPECT_EQ(exit_code(ErrorCode::io), 4);
  EXPECT_EQ(exit_code(ErrorCode::resource_exhausted), 5);
  EXPECT_EQ(exit_code(ErrorCode::peer_lost), 6);
  EXPECT_EQ(exit_code(ErrorCode::deadline_exceeded), 6);
  EXPECT_EQ(exit_code(ErrorCode::interrupted), 75);
  EXPECT_EQ(exit_code(ErrorCode::internal), 70);
}

TEST(Error, TellsAFullDiskWhatToDo) {
  const Error error = error_of([] { throw_errno("write", "runs/a/log.txt", ENOSPC); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_THAT(error.what(), HasSubstr("cannot write runs/a/log.txt: No space left on device"));
  EXPECT_THAT(error.hint(), HasSubstr("free some space"));
}

TEST(Error, AMissingFileIsNotFound) {
  EXPECT_EQ(error_of([] { throw_errno("read", "x", ENOENT); }).code(), ErrorCode::not_found);
  EXPECT_EQ(error_of([] { throw_errno("read", "x", EACCES); }).code(), ErrorCode::io);
}

TEST(Error, EnsureThrowsOnlyWhenFalse) {
  ensure(true, "fine");
  EXPECT_EQ(error_of([] { ensure(false, "broken"); }).code(), ErrorCode::internal);
}

}  // namespace
}  // namespace tessera
