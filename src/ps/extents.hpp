// Internal. Which parts of a file are taken: each request gets the first gap that is large enough, or what is behind the end.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace tessera::ps {

class Extents {
 public:
  std::uint64_t take(std::uint64_t bytes) {
    for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
      const auto [begin, size] = *gap;
      if (size < bytes) continue;
      gaps_.erase(gap);
      if (size > bytes) gaps_[begin + bytes] = size - bytes;
      return begin;
    }
    end_ += bytes;
    return end_ - bytes;
  }

  // Beginning at a multiple of `alignment`.
  std::uint64_t take(std::uint64_t bytes, std::uint64_t alignment) {
    const std::uint64_t begin = take(bytes + alignment), aligned = (begin + alignment - 1) / alignment * alignment;
    give_back(begin, aligned - begin);
    give_back(aligned + bytes, begin + alignment - aligned);
    return aligned;
  }

  void give_back(std::uint64_t begin, std::uint64_t bytes) {
    if (bytes == 0) return;
    auto gap = gaps_.emplace(begin, bytes).first;
    if (const auto next = std::next(gap); next != gaps_.end() && begin + bytes == next->first) {
      gap->second += next->second;
      gaps_.erase(next);
    }
    if (gap != gaps_.begin())
      if (const auto before = std::prev(gap); before->first + before->second == begin) {
        before->second += gap->second;
        gaps_.erase(gap);
        gap = before;
      }
    if (gap->first + gap->second != end_) return;
    end_ = gap->first;
    gaps_.erase(gap);
  }

  // The end of all that is taken.
  std::uint64_t end() const { return end_; }

 private:
  std::map<std::uint64_t, std::uint64_t> gaps_;  // from their begin to their size; no two touch
  std::uint64_t end_ = 0;
};

}  // namespace tessera::ps
