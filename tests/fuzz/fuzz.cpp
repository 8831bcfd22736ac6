#include "fuzz/fuzz.hpp"

#include <algorithm>
#include <chrono>

#include "fuzz/coverage.hpp"
#include "fuzz/mutate.hpp"

namespace tessera::fuzz {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLongest = 64 << 10;
constexpr std::size_t kLargestCorpus = 4000;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The same defect with other numbers is one defect.
std::string kind_of(const std::string& what) {
  std::string out;
  for (const char c : what.substr(0, 160))
    if (c < '0' || c > '9') out += c;
  return out.substr(0, 80);
}

std::string changed(const Target& target, Mutator& mutator, const std::string& input, const std::string& other) {
  std::string out;
  if (target.inner && !mutator.once_in(5))
    out = target.outer(mutator.changed(target.inner(input), target.inner(other)));
  else
    out = mutator.changed(input, other);
  if (out.size() > kLongest) out.resize(kLongest);
  return out;
}

}  // namespace

Report fuzz(const Target& target, const Limits& limits) {
  Report report;
  std::vector<std::string> words;
  for (const std::string& seed : target.seeds) words.push_back(target.inner ? target.inner(seed) : seed);
  Mutator mutator(limits.seed, words);
  const auto start = Clock::now();

  const auto run = [&](const std::string& input) {
    if (limits.before) limits.before(input);
    begin_input();
    const auto begin = Clock::now();
    const Judgement judgement = judge(target, input);
    report.slowest = std::max(report.slowest, seconds_since(begin));
    ++report.executions;
    report.read += judgement.verdict == Verdict::read ? 1 : 0;
    report.refused += judgement.verdict == Verdict::refused ? 1 : 0;
    if (judgement.verdict == Verdict::defect) report.defects.try_emplace(kind_of(judgement.what), input);
    return judgement;
  };

  std::vector<std::string> read;     // inputs that were read: changes of them come furthest
  std::vector<std::string> refused;  // inputs that went a new way before they were refused
  for (const std::string& seed : target.seeds) {
    const Judgement judgement = run(seed);
    if (judgement.verdict == Verdict::refused) report.defects.try_emplace("a seed is refused: " + judgement.what, seed);
    was_new();
    read.push_back(seed);
  }
  const auto over = [&] {
    return (limits.seconds > 0 && seconds_since(start) >= limits.seconds) ||
           (limits.executions > 0 && report.executions >= limits.executions);
  };
  while (!over()) {
    const std::vector<std::string>& pool = refused.empty() || !mutator.once_in(4) ? read : refused;
    std::string input = changed(target, mutator, pool[mutator.below(pool.size())], read[mutator.below(read.size())]);
    const Verdict verdict = run(input).verdict;
    std::vector<std::string>& keep = verdict == Verdict::read ? read : refused;
    if (was_new() && keep.size() < kLargestCorpus) keep.push_back(std::move(input));
  }
  report.corpus = read.size() + refused.size();
  report.edges = edges_seen();
  return report;
}

}  // namespace tessera::fuzz
