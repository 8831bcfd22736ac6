// tessera_bench_ps_shard [ROWS] [ROUNDS]: a table alone, in one thread and without a network, beside a plain one (plain_table.hpp) that is
// given the same keys in turns. Prints one JSON object: medians of million keys a second, bytes of a row.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "ps/keys.hpp"
#include "ps/plain_table.hpp"
#include "ps/ps.hpp"

namespace tessera::bench {
namespace {

static_assert(kDimension == PlainTable::kDimension);

struct Bench {
  std::uint64_t rows;
  std::map<std::string, std::vector<double>> rates;  // million keys a second

  void time(const std::string& name, const Batches& batches, const std::function<void(std::size_t, std::span<const std::uint64_t>)>& run) {
    const auto start = std::chrono::steady_clock::now();
    std::size_t keys = 0;
    for (std::size_t batch = 0; batch < batches.size(); ++batch) {
      run(batch, batches[batch]);
      keys += batches[batch].size();
    }
    rates[name].push_back(static_cast<double>(keys) / 1e6 /
                          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  double median(const std::string& name) {
    std::vector<double>& values = rates[name];
    std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
    return values[values.size() / 2];
  }
};

ps::TableSpec spec_of(ps::Rule rule, bool row_moment) {
  return {.name = "bench", .dimension = kDimension, .optimizer = {.rule = rule, .row_moment = row_moment}};
}

double bytes_of_a_row(ps::Rule rule, bool row_moment, const Batches& keys, std::vector<float>& values) {
  ps::Table table(spec_of(rule, row_moment));
  for (const auto& batch : keys) table.pull(batch, std::span(values).first(batch.size() * kDimension));
  const ps::TableMemory memory = table.memory();
  return static_cast<double>((memory.index + memory.rows).value) / static_cast<double>(table.size());
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  using namespace tessera::bench;
  Bench bench{argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 5'000'000, {}};
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  std::vector<float> values(kBatch * kDimension), gradients(kBatch * kDimension);
  Random random(7);
  for (float& gradient : gradients) gradient = static_cast<float>(random.uniform() - 0.5);
  std::vector<ps::Ticket> tickets(kBatch);
  const Batches every = all_keys(bench.rows);

  PlainTable plain(bench.rows);
  ps::Table table(spec_of(ps::Rule::adagrad, true));
  bench.time("plain insert", every, [&](std::size_t, auto keys) { plain.pull(keys, values.data()); });
  bench.time("insert", every, [&](std::size_t, auto keys) { table.pull(keys, std::span(values).first(keys.size() * kDimension)); });

  float sum = 0;
  for (int round = 0; round < rounds; ++round)
    for (const auto& [name, draw] : {std::pair("uniform", &uniform), std::pair("zipf", &zipf)}) {
      const auto seed = static_cast<std::uint64_t>(round) + 100;
      const Batches batches = drawn(draw, bench.rows, seed, true);
      const std::string after = std::string(" ") + name;
      bench.time("reads" + after, drawn(draw, bench.rows, seed, false), [&](std::size_t, auto keys) { sum += plain.read(keys); });
      bench.time("plain pull" + after, batches, [&](std::size_t, auto keys) { plain.pull(keys, values.data()); });
      bench.time("pull" + after, batches, [&](std::size_t, auto keys) { table.pull(keys, values); });
      bench.time("plain push" + after, batches, [&](std::size_t, auto keys) { plain.push(keys, gradients.data()); });
      bench.time("push" + after, batches, [&](std::size_t, auto keys) { table.push(keys, gradients); });
      bench.time("plain both" + after, batches, [&](std::size_t, auto keys) {
        plain.pull(keys, values.data());
        plain.push(keys, gradients.data());
      });
      bench.time("both" + after, batches, [&](std::size_t, auto keys) {
        table.pull(keys, values, tickets);
        table.push(keys, gradients, tickets);
      });
    }
  nlohmann::json rates;
  for (const auto& [name, all] : bench.rates) rates[name] = bench.median(name);
  std::cout << nlohmann::json{{"rows", bench.rows},
                              {"dimension", kDimension},
                              {"million_keys_per_s", rates},
                              {"bytes_of_a_row",
                               {{"adagrad, a moment a row", bytes_of_a_row(ps::Rule::adagrad, true, every, values)},
                                {"adagrad", bytes_of_a_row(ps::Rule::adagrad, false, every, values)},
                                {"adam", bytes_of_a_row(ps::Rule::adam, false, every, values)}}},
                              {"checked", std::isfinite(sum)}}
            << "\n";
}
