#include "ps/expected_rows_helper.hpp"

#include <algorithm>
#include <bit>

#include "base/error.hpp"

namespace tessera::ps::simulation {

ExpectedRows::ExpectedRows(std::uint64_t seed, int workers, int staleness)
    : seed_(seed), workers_(workers), staleness_(staleness), steps_begun_to_end_(static_cast<std::size_t>(workers), 0) {
  for (const Kind kind : {kCounts, kSums}) {
    const Marks none(kKeys * static_cast<std::size_t>(workers), 0);
    known_[kind] = {none, none};
  }
}

TableSpec ExpectedRows::spec(Kind kind) const {
  if (kind == kAdagrad) return {.name = "adagrad", .dimension = 2, .consistency = Consistency::synchronous};
  if (kind == kLives)
    return {.name = "lives",
            .dimension = 2,
            .staleness = staleness_,
            .lifecycle = Lifecycle{.decay = 0.3f,
                                   .admission = {.after = 2},
                                   .waiting_keys = 24,
                                   .forget_after = 2,
                                   .eviction = {.below = 0.1f},
                                   .growth = {{.seen = 0, .dimension = 1}, {.seen = 2, .dimension = 2}}}};
  return {.name = kind == kCounts ? "counts" : "sums",
          .dimension = 2 * workers_,
          .optimizer = {.rule = Rule::add},
          .initializer = {.kind = InitialValues::zero},
          .consistency = kind == kCounts ? Consistency::asynchronous : Consistency::synchronous,
          .staleness = staleness_};
}

std::vector<Key> ExpectedRows::all_keys() {
  std::vector<Key> keys(kKeys);
  for (std::size_t i = 0; i < kKeys; ++i) keys[i] = (i + 1) * 0x9E3779B97F4A7C15ull;  // so that each of two servers has some
  return keys;
}

Pushed ExpectedRows::push_of(Kind kind, int worker, int step, int number) const {
  Random random(seed_ * 1'000'003 + static_cast<std::uint64_t>(((step * kPushes + number) * workers_ + worker) * 8) + kind);
  const std::size_t dimension = static_cast<std::size_t>(spec(kind).dimension);
  Pushed pushed;
  for (const Key key : all_keys()) {
    if (random.below(3) == 0) continue;
    pushed.keys.push_back(key);
    std::vector<float> row(dimension, 0.0f);
    if (kind == kAdagrad || kind == kLives) {
      for (float& value : row) value = static_cast<float>(random.uniform() - 0.5);
    } else {
      row[static_cast<std::size_t>(2 * worker)] = static_cast<float>(1u << (step * kPushes + number));
      row[static_cast<std::size_t>(2 * worker) + 1] = 1;
    }
    pushed.values.insert(pushed.values.end(), row.begin(), row.end());
  }
  return pushed;
}

void ExpectedRows::begins(Kind kind, int worker, int step, int number) {
  if (!known_.contains(kind)) return;
  const std::vector<Key> keys = all_keys();
  for (const Key key : push_of(kind, worker, step, number).keys)
    known_.at(kind).begun[at(static_cast<std::size_t>(std::ranges::find(keys, key) - keys.begin()), worker)] |=
        1u << (step * kPushes + number);
}

void ExpectedRows::ends(Kind kind, int worker, int step, int number) {
  if (!known_.contains(kind)) return;
  Known& known = known_.at(kind);
  const std::uint32_t bit = 1u << (step * kPushes + number);
  for (std::size_t key = 0; key < kKeys; ++key) known.acknowledged[at(key, worker)] |= known.begun[at(key, worker)] & bit;
}

ExpectedRows::Marks ExpectedRows::all_of_steps_before(Kind kind, int step) const {
  Marks marks = known_.at(kind).begun;
  for (std::uint32_t& mark : marks) mark &= (1u << (std::max(0, step) * kPushes)) - 1;
  return marks;
}

ExpectedRows::Marks ExpectedRows::least(Kind kind, std::optional<int> step) const {
  if (kind == kCounts) return known_.at(kind).acknowledged;
  // What is acknowledged is applied once all have ended its step; that they have is known from the next one.
  const int whole = std::ranges::min(steps_begun_to_end_) - 1;
  return all_of_steps_before(kind, step ? *step : whole);
}

std::optional<std::string> ExpectedRows::wrong(Kind kind, std::span<const float> values, const Marks& least,
                                               std::optional<int> step) const {
  const int needed = step ? *step - (kind == kCounts ? staleness_ : 0) : 0;
  if (step && std::ranges::min(steps_begun_to_end_) < needed)
    return text("a pull of step ", *step, " was answered when a worker had ended ", std::ranges::min(steps_begun_to_end_));
  const Marks by_staleness = all_of_steps_before(kind, needed), begun = known_.at(kind).begun;
  for (std::size_t key = 0; key < kKeys; ++key)
    for (int worker = 0; worker < workers_; ++worker) {
      const std::size_t lane = at(key, worker);
      const float marks = values[2 * lane], count = values[2 * lane + 1];
      const auto seen = static_cast<std::uint32_t>(marks);
      const std::string what = text("row ", key, " of ", spec(kind).name, " has ", seen, " of worker ", worker, " in ", count, " pushes");
      if (static_cast<float>(seen) != marks || static_cast<float>(std::popcount(seen)) != count || (seen & ~begun[lane]) != 0)
        return text(what, ": some twice, or not as they were pushed");
      if ((seen & least[lane]) != least[lane]) return text(what, ", where acknowledged ones are ", least[lane]);
      if ((seen & by_staleness[lane]) != by_staleness[lane]) return text(what, ", where step ", needed, " needs ", by_staleness[lane]);
      if (kind == kSums && step && seen != by_staleness[lane]) return text(what, ", and some of step ", needed, " or later among them");
    }
  return {};
}

std::vector<float> ExpectedRows::one_process(int steps) const {
  Table table(spec(kAdagrad));
  for (int step = 0; step < steps; ++step) {
    std::map<Key, std::vector<float>> sums;
    for (int worker = 0; worker < workers_; ++worker)
      for (int number = 0; number < kPushes; ++number) {
        const Pushed pushed = push_of(kAdagrad, worker, step, number);
        for (std::size_t i = 0; i < pushed.keys.size(); ++i) {
          const auto gradient = std::span(pushed.values).subspan(2 * i, 2);
          const auto [sum, first] = sums.try_emplace(pushed.keys[i], gradient.begin(), gradient.end());
          for (std::size_t d = 0; !first && d < 2; ++d) sum->second[d] += gradient[d];
        }
      }
    for (const auto& [key, sum] : sums) table.push(std::vector{key}, sum);
  }
  std::vector<float> rows(kKeys * 2);
  table.pull(all_keys(), rows);
  return rows;
}

}  // namespace tessera::ps::simulation
