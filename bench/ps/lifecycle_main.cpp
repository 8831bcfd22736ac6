// tessera_bench_ps_lifecycle [ROWS] [ROUNDS]: what a lifecycle costs: a table with one beside a table without, given the same keys in
// turns, in one thread and without a network; what rows take that grow with how often they are seen, of Zipf keys. Then keys that are not
// admitted, and the end of a period. Prints one JSON object.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "ps/keys.hpp"
#include "ps/ps.hpp"

namespace tessera::bench {
namespace {

ps::TableSpec spec_of(const std::optional<ps::Lifecycle>& lifecycle) {
  return {.name = "bench", .dimension = kDimension, .optimizer = {.rule = ps::Rule::adagrad, .row_moment = true}, .lifecycle = lifecycle};
}

// Million items a second.
template <typename Work>
double rate(std::size_t items, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return static_cast<double>(items) / 1e6 / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double bytes_of(const ps::Table& table) {
  const ps::TableMemory memory = table.memory();
  return static_cast<double>((memory.index + memory.rows).value);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  using namespace tessera::bench;
  const std::uint64_t rows = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 5'000'000;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  std::vector<float> values(kBatch * kDimension), gradients(kBatch * kDimension, 0.01f);
  std::vector<ps::Ticket> tickets(kBatch);
  const std::vector<ps::Impressions> seen(kBatch);
  const Batches every = all_keys(rows);

  ps::Table without(spec_of({})), with(spec_of(ps::Lifecycle{.eviction = {.unseen = 1}}));
  for (const auto& batch : every)
    for (ps::Table* const table : {&without, &with}) table->push(batch, std::span(gradients).first(batch.size() * kDimension));
  std::map<std::string, std::vector<double>> rates;
  for (int round = 0; round < rounds; ++round)
    for (const auto& [name, draw] : {std::pair("uniform", &uniform), std::pair("zipf", &zipf)}) {
      const Batches batches = drawn(draw, rows, static_cast<std::uint64_t>(round) + 100, true);
      const std::size_t keys = batches.size() * kBatch;
      for (const bool lives : {false, true}) {
        ps::Table& table = lives ? with : without;
        const std::string after = std::string(" ") + name + (lives ? ", with" : ", without");
        rates["pull" + after].push_back(rate(keys, [&] {
          for (const auto& batch : batches) table.pull(batch, values);
        }));
        rates["pull + push" + after].push_back(rate(keys, [&] {
          for (const auto& batch : batches) {
            table.pull(batch, values, tickets);
            table.push(batch, gradients, tickets, lives ? std::span(seen) : std::span<const ps::Impressions>());
          }
        }));
      }
    }
  nlohmann::json out{{"rows", rows}};
  for (const auto& [name, all] : rates) out["million_keys_per_s"][name] = median(all);
  out["bytes_of_a_row"] = {{"with", bytes_of(with) / static_cast<double>(rows)},
                           {"without", bytes_of(without) / static_cast<double>(rows)}};

  // Keys as they come, most of them seldom: rows with all values, and rows that begin with a quarter of them.
  {
    constexpr int kSeen = 10;
    ps::Table whole(spec_of(ps::Lifecycle{.waiting_keys = 1000})),
        growing(spec_of(ps::Lifecycle{.waiting_keys = 1000, .growth = {{0, kDimension / 4}, {kSeen, kDimension}}}));
    std::map<std::string, std::vector<double>> grown_rates;
    for (int round = 0; round < rounds; ++round) {
      const Batches batches = drawn(&zipf, rows, static_cast<std::uint64_t>(round) + 200, true);
      const std::size_t keys = batches.size() * kBatch;
      for (const bool grows : {false, true}) {
        ps::Table& table = grows ? growing : whole;
        const std::string after = grows ? ", growing" : ", whole";
        grown_rates["pull + push" + after].push_back(rate(keys, [&] {
          for (const auto& batch : batches) {
            table.pull(batch, values, tickets);
            table.push(batch, gradients, tickets, seen);
          }
        }));
        grown_rates["pull" + after].push_back(rate(keys, [&] {
          for (const auto& batch : batches) table.pull(batch, values);
        }));
      }
    }
    for (const auto& [name, all] : grown_rates) out["growth"]["million_keys_per_s"][name] = median(all);
    std::uint64_t long_rows = 0;
    growing.for_each([&](ps::Key, std::span<const std::byte> stored) {
      if (growing.statistics(stored).shows >= kSeen) ++long_rows;
    });
    const auto count = static_cast<double>(growing.size());
    out["growth"]["rows"] = growing.size();
    out["growth"]["share_of_long_rows"] = static_cast<double>(long_rows) / count;
    out["growth"]["bytes_of_a_row"] = {{"growing", bytes_of(growing) / count}, {"whole", bytes_of(whole) / count}};
  }

  // Keys that come once, one in ten of them again.
  ps::Table waiting(spec_of(ps::Lifecycle{.admission = {.after = 2}, .waiting_keys = rows}));
  const double before = bytes_of(waiting) - bytes_of(ps::Table(spec_of({})));
  out["million_keys_per_s"]["push of keys that wait"] = rate(rows, [&] {
    for (const auto& batch : every) waiting.push(batch, std::span(gradients).first(batch.size() * kDimension));
  });
  out["of_keys_that_wait"] = {{"bytes_of_a_key", before / static_cast<double>(rows)},
                              {"admitted_early", static_cast<double>(waiting.size()) / static_cast<double>(rows)}};

  // Of the rows two in three are not seen any more: first none is to go, then these.
  constexpr std::uint32_t kParts = 64;
  const auto end_period = [&with] {
    double longest = 0;
    std::uint64_t evicted = 0;
    with.end_period();
    for (std::uint32_t part = 0; part < kParts; ++part) {
      const auto start = std::chrono::steady_clock::now();
      evicted += with.evict(part, kParts);
      longest = std::max(longest, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return std::pair(evicted, longest);
  };
  out["million_rows_per_s"]["looked at"] = rate(rows, end_period);
  for (std::size_t batch = 0; batch < every.size(); batch += 3)
    with.push(every[batch], std::span(gradients).first(every[batch].size() * kDimension));
  std::pair<std::uint64_t, double> ended;
  out["million_rows_per_s"]["two in three evicted"] = rate(rows, [&] { ended = end_period(); });
  out["evicted"] = ended.first;
  out["longest_part_ms"] = 1e3 * ended.second;
  std::cout << out << "\n";
}
