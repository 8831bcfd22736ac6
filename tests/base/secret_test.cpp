#include "base/secret.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/expect_error.hpp"
#include "base/hex.hpp"
#include "base/temporary_folder.hpp"

namespace tessera {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

// The variables of this process, as they were before, when it ends.
class SecretOfTheEnvironment : public ::testing::Test {
 protected:
  SecretOfTheEnvironment() {
    ::unsetenv(kSecretVariable);
    ::unsetenv(kSecretFileVariable);
  }
  ~SecretOfTheEnvironment() override {
    ::unsetenv(kSecretVariable);
    ::unsetenv(kSecretFileVariable);
  }
  std::filesystem::path file(const std::string& content, std::filesystem::perms permissions) {
    const auto path = folder_.write("secret", content);
    std::filesystem::permissions(path, permissions);
    ::setenv(kSecretFileVariable, path.c_str(), 1);
    return path;
  }
  const TemporaryFolder folder_;
};

constexpr auto kOwnerOnly = std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;

TEST(Secret, IsNewEachTime) {
  const std::string one = make_secret();
  EXPECT_EQ(one.size(), 64U);
  EXPECT_TRUE(from_hex(one));
  EXPECT_NE(one, make_secret());
}

TEST(Hex, IsReadAsItIsWritten) {
  const std::string bytes("\x00\x7f\xff a", 5);
  EXPECT_EQ(to_hex(bytes), "007fff2061");
  EXPECT_EQ(from_hex(to_hex(bytes)), bytes);
  for (const char* wrong : {"0", "0g", "FF", " 0", "0x"}) EXPECT_FALSE(from_hex(wrong)) << wrong;
}

TEST_F(SecretOfTheEnvironment, IsNoneWhereNoVariableIsSet) { EXPECT_FALSE(secret_from_environment()); }

TEST_F(SecretOfTheEnvironment, ComesFromTheVariableBeforeTheFile) {
  const std::string secret = make_secret();
  file(make_secret(), kOwnerOnly);
  ::setenv(kSecretVariable, (secret + "\n").c_str(), 1);
  EXPECT_EQ(secret_from_environment(), secret);
}

TEST_F(SecretOfTheEnvironment, ComesFromAFileOfItsOwners) {
  const std::string secret = make_secret();
  file(secret + "\n", kOwnerOnly);
  EXPECT_EQ(secret_from_environment(), secret);
}

TEST_F(SecretOfTheEnvironment, AFileThatOthersCanReadIsRefused) {
  const std::string secret = make_secret();
  const auto path = file(secret, kOwnerOnly | std::filesystem::perms::group_read);
  const Error error = error_of([] { secret_from_environment(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_config);
  EXPECT_THAT(error.what(), HasSubstr("other users may read"));
  EXPECT_THAT(error.what(), HasSubstr("chmod 600 " + path.string()));
  EXPECT_THAT(error.what(), Not(HasSubstr(secret)));
}

TEST_F(SecretOfTheEnvironment, AShortOneIsRefusedAndNotShown) {
  ::setenv(kSecretVariable, "password", 1);
  const Error error = error_of([] { secret_from_environment(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_config);
  EXPECT_THAT(error.what(), HasSubstr("TESSERA_SECRET has 8 characters"));
  EXPECT_THAT(error.what(), HasSubstr("openssl rand -hex 32"));
  EXPECT_THAT(error.what(), Not(HasSubstr("password")));
}

TEST_F(SecretOfTheEnvironment, AFileThatIsNotThereIsNamed) {
  ::setenv(kSecretFileVariable, "/nowhere/secret", 1);
  const Error error = error_of([] { secret_from_environment(); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.what(), HasSubstr("/nowhere/secret"));
}

TEST_F(SecretOfTheEnvironment, AFolderIsNoSecret) {
  ::setenv(kSecretFileVariable, folder_.path().c_str(), 1);
  EXPECT_EQ(error_of([] { secret_from_environment(); }).code(), ErrorCode::io);
}

}  // namespace
}  // namespace tessera
