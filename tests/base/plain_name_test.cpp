#include "base/plain_name.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(PlainName, StandsForOneEntryOfAFolder) {
  for (const char* name : {"a", "my-run_2.1", "_", "rank-00003.safetensors", "a..b", "9"}) EXPECT_TRUE(is_plain_name(name)) << name;
  for (const char* name : {"", ".", "..", "../x", "/x", "a/b", "a/", ".hidden", "-rf", "a b", "a\nb", "a\\b", "caf\xC3\xA9", "~", "a$b"})
    EXPECT_FALSE(is_plain_name(name)) << name;
  EXPECT_FALSE(is_plain_name(std::string_view("a\0b", 3)));
  EXPECT_TRUE(is_plain_name(std::string(200, 'x')));
  EXPECT_FALSE(is_plain_name(std::string(201, 'x')));
}

TEST(PlainName, IsMadeOfAnyWords) {
  EXPECT_EQ(plain_name_of("my-run_2.1"), "my-run_2.1");
  EXPECT_EQ(plain_name_of("my  run"), "my-run");
  EXPECT_EQ(plain_name_of("../my run/"), "my-run");
  EXPECT_EQ(plain_name_of(".hidden"), "hidden");
  EXPECT_EQ(plain_name_of("caf\xC3\xA9 1"), "caf-1");
  EXPECT_EQ(plain_name_of("x-"), "x-");
  for (const char* words : {"", "...", "--", "\xE4\xBD\xA0"}) EXPECT_EQ(plain_name_of(words), "run") << words;
  EXPECT_TRUE(is_plain_name(plain_name_of(std::string(300, 'x') + " y")));
  for (int first = 0; first < 256; ++first)
    for (int second = 0; second < 256; ++second)
      EXPECT_TRUE(is_plain_name(plain_name_of(std::string{static_cast<char>(first), static_cast<char>(second)}))) << first << ' ' << second;
}

}  // namespace
}  // namespace tessera
