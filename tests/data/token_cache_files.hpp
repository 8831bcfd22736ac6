// Token caches whose checksums fit whatever their bytes say: what someone made up, not what a disk damaged.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/hash.hpp"

namespace tessera::data {

// `file` with all checksums computed anew; its layout stands at the head of data/token_cache.hpp.
inline std::string resealed(std::string file) {
  constexpr std::size_t kHeader = 64, kFooter = 72, kNumber = 8, kBlock = 1 << 20;
  if (file.size() < kHeader + kFooter) return file;
  const auto get = [&](std::size_t at, std::size_t size = 8) {
    std::uint64_t value = 0;
    std::memcpy(&value, file.data() + at, size);
    return value;
  };
  const auto put = [&](std::size_t at, std::uint64_t value) { std::memcpy(file.data() + at, &value, kNumber); };
  const auto hash = [&](std::size_t from, std::size_t to) { return hash64(std::string_view(file).substr(from, to - from)); };
  const std::size_t footer = file.size() - kFooter, most = file.size();
  put(kHeader - kNumber, hash(0, kHeader - kNumber));
  const std::uint64_t tokens = get(footer + 8), documents = get(footer + 16), blocks = get(footer + 24), width = get(12, 4);
  if (tokens < most && documents < most && blocks < most && width <= 4) {
    const std::size_t tokens_end = kHeader + tokens * width, index = kHeader + (tokens * width + 7) / 8 * 8;
    if (index + (2 * documents + blocks) * kNumber == footer) {
      for (std::uint64_t block = 0; block < blocks; ++block)
        put(index + (2 * documents + block) * kNumber,
            hash(std::min(kHeader + block * kBlock, tokens_end), std::min(kHeader + (block + 1) * kBlock, tokens_end)));
      put(footer + 40, hash(index, footer));
    }
  }
  put(footer + 48, file.size());
  put(footer + 56, get(kHeader - kNumber));
  put(footer + 64, hash(footer, footer + kFooter - kNumber));
  return file;
}

}  // namespace tessera::data
