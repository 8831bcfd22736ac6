#include "base/secret.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.hpp"
#include "base/hex.hpp"

namespace tessera {
namespace {

constexpr const char* kHowToMake = "make one with: export TESSERA_SECRET=$(openssl rand -hex 32)";

std::string stripped(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string::npos ? std::string() : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string checked(const std::string& written, const std::string& where) {
  std::string secret = stripped(written);
  if (secret.size() >= kShortestSecret && secret.size() <= kLongestSecret) return secret;
  throw Error(
      ErrorCode::invalid_config,
      text("the secret in ", where, " has ", secret.size() > kLongestSecret ? "too many" : std::to_string(secret.size()), " characters"),
      {}, text(kShortestSecret, " to ", kLongestSecret, " random characters"), kHowToMake);
}

std::string read_private(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    const int problem = errno;
    throw Error(problem == ENOENT ? ErrorCode::not_found : ErrorCode::io,
                text("cannot read the secret of the run in ", path, ": ", std::strerror(problem)), {}, {},
                text("let ", kSecretFileVariable, " name a file that holds it on every host"));
  }
  struct stat status {};
  std::array<char, 2 * kLongestSecret> buffer{};
  const bool known = ::fstat(file, &status) == 0;
  const ssize_t count = known && S_ISREG(status.st_mode) ? ::read(file, buffer.data(), buffer.size()) : -1;
  ::close(file);
  if (count < 0) throw Error(ErrorCode::io, text("cannot read the secret of the run in ", path), {}, "a regular file");
  if (status.st_uid != ::geteuid() || (status.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    throw Error(ErrorCode::invalid_config, text("other users may read or write the secret of the run in ", path), {},
                "a file of this user's that nobody else can open", text("chown it to this user and chmod 600 ", path));
  return {buffer.data(), static_cast<std::size_t>(count)};
}

}  // namespace

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t done = 0; done < count;) {
    const ssize_t got = ::getrandom(bytes.data() + done, count - done, 0);
    if (got < 0 && errno != EINTR) throw_errno("read", "the system's random source", errno);
    if (got > 0) done += static_cast<std::size_t>(got);
  }
  return bytes;
}

std::string make_secret() { return to_hex(random_bytes(32)); }

std::optional<std::string> secret_from_environment() {
  if (const char* secret = std::getenv(kSecretVariable)) return checked(secret, kSecretVariable);
  if (const char* path = std::getenv(kSecretFileVariable)) return checked(read_private(path), path);
  return std::nullopt;
}

std::string servers_secret_from_environment() {
  const char* const own = std::getenv(kServersSecretVariable);
  return own != nullptr ? own : secret_from_environment().value_or("");
}

}  // namespace tessera
