// What two ranks share of a micro-batch, against a list of its elements.
#include "program/parts.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <algorithm>
#include <iterator>
#include <vector>

namespace tessera::program {
namespace {

// The elements of a part, one by one: chunk r and the r-th from the end of each sample.
std::vector<std::int64_t> elements_of(const Part& part, std::int64_t each) {
  std::vector<std::int64_t> held;
  const std::int64_t chunk = each / (2 * part.context_size);
  for (std::int64_t sample = part.samples_before; sample < part.samples_before + part.samples; ++sample)
    for (std::int64_t i = 0; i < each; ++i)
      if (i / chunk == part.context_index || i / chunk == 2 * part.context_size - 1 - part.context_index) held.push_back(sample * each + i);
  return {held.begin() + part.begin, held.begin() + part.end};
}

Part any_part(std::int64_t each) {
  Part out{.samples_before = *rc::gen::inRange(0, 4), .samples = *rc::gen::inRange(1, 5), .context_size = *rc::gen::element(1, 2, 3)};
  out.context_index = *rc::gen::inRange(0, out.context_size);
  const std::int64_t held = out.samples * each / out.context_size;
  out.begin = *rc::gen::inRange<std::int64_t>(0, held + 1);
  out.end = *rc::gen::inRange<std::int64_t>(out.begin, held + 1);
  return out;
}

RC_GTEST_PROP(Parts, SharedRunsAreTheElementsThatBothHave, ()) {
  constexpr std::int64_t kEach = 24;
  const Part first = any_part(kEach);
  const Part second = any_part(kEach);
  const std::vector<std::int64_t> a = elements_of(first, kEach);
  const std::vector<std::int64_t> b = elements_of(second, kEach);
  std::vector<std::int64_t> shared;
  for (const SharedRun& run : shared_runs(first, second, kEach))
    for (std::int64_t i = 0; i < run.count; ++i) {
      RC_ASSERT(a.at(static_cast<std::size_t>(run.first + i)) == b.at(static_cast<std::size_t>(run.second + i)));
      shared.push_back(a[static_cast<std::size_t>(run.first + i)]);
    }
  std::vector<std::int64_t> expected;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(expected));
  RC_ASSERT(shared == expected);
  RC_ASSERT(shared_count(first, second, kEach) == static_cast<std::int64_t>(expected.size()));
}

}  // namespace
}  // namespace tessera::program
