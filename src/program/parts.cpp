#include "program/parts.hpp"

#include <algorithm>

namespace tessera::program {
namespace {

// Consecutive elements of a micro-batch, and where they begin in a part.
struct Run {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t place = 0;
};

std::vector<Run> runs_of(const Part& part, std::int64_t each) {
  std::vector<Run> out;
  std::int64_t held = 0;  // by the part's rank and its tensor-parallel peers, before the run
  const auto add = [&](std::int64_t begin, std::int64_t count) {
    const std::int64_t from = std::max(part.begin, held);
    const std::int64_t to = std::min(part.end, held + count);
    if (from < to) out.push_back({begin + from - held, begin + to - held, from - part.begin});
    held += count;
  };
  if (part.context_size == 1) {
    add(part.samples_before * each, part.samples * each);
    return out;
  }
  const std::int64_t chunk = each / (2 * part.context_size);
  for (std::int64_t sample = part.samples_before; sample < part.samples_before + part.samples; ++sample)
    for (const int index : {part.context_index, 2 * part.context_size - 1 - part.context_index}) add(sample * each + index * chunk, chunk);
  return out;
}

}  // namespace

std::vector<SharedRun> shared_runs(const Part& first, const Part& second, std::int64_t each) {
  const std::vector<Run> a = runs_of(first, each);
  const std::vector<Run> b = runs_of(second, each);
  std::vector<SharedRun> out;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size(); (a[i].end < b[j].end ? i : j) += 1) {
    const std::int64_t begin = std::max(a[i].begin, b[j].begin);
    const std::int64_t end = std::min(a[i].end, b[j].end);
    if (begin < end) out.push_back({a[i].place + begin - a[i].begin, b[j].place + begin - b[j].begin, end - begin});
  }
  return out;
}

std::int64_t shared_count(const Part& first, const Part& second, std::int64_t each) {
  std::int64_t out = 0;
  for (const SharedRun& run : shared_runs(first, second, each)) out += run.count;
  return out;
}

}  // namespace tessera::program
