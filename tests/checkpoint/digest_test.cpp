#include "checkpoint/digest.hpp"

#include <gtest/gtest.h>

#include "base/hash.hpp"
#include "base/random.hpp"

namespace tessera::checkpoint {
namespace {

TEST(Digest, IsThatOfBaseHoweverTheBytesCome) {
  Random random(3);
  for (const std::size_t size : {0, 1, 16, 200, 240, 241, 1000, 70000, 600000}) {
    std::string data(size, '\0');
    for (char& byte : data) byte = static_cast<char>(random.next());
    const auto bytes = std::as_bytes(std::span(data));
    EXPECT_EQ(digest_of(bytes), hash128_hex(data)) << size;
    Digest digest;
    for (auto rest = bytes; !rest.empty();) {
      const auto chunk = rest.first(1 + random.below(rest.size()));
      digest.add(chunk);
      rest = rest.subspan(chunk.size());
    }
    EXPECT_EQ(digest.hex(), hash128_hex(data)) << size;
  }
}

}  // namespace
}  // namespace tessera::checkpoint
