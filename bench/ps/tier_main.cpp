// tessera_bench_ps_tier FOLDER [--limit MiB] [--rounds N] [--known N] [--billion [ROWS]]: a table with AdaGrad that has memory for a
// quarter of its rows, and the rest on disk, beside one that has memory for all, which is given the same keys in turns; and what saving and
// loading it takes. Zipf keys come twice: right after uniform ones, and once N keys a row (8) have shown the table which rows are asked for
// often. Or, with --billion, so many rows that are each pushed once, within the limit. Prints one JSON object: medians of million keys a
// second and of million rows saved and loaded, bytes, and the share of keys whose rows lay on disk.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file_system.hpp"
#include "base/random.hpp"
#include "ps/keys.hpp"
#include "ps/ps.hpp"
#include "ps/table_file.hpp"

namespace tessera::bench {
namespace {

using nlohmann::json;

struct Options {
  std::filesystem::path folder;
  std::int64_t limit = std::int64_t{1} << 30;
  int rounds = 3;
  std::uint64_t known = 8;    // keys a row
  std::uint64_t billion = 0;  // rows
};

Options parse(int argc, char** argv) {
  Options options{.folder = argc > 1 ? argv[1] : "."};
  for (int i = 2; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* const value = i + 1 < argc && argv[i + 1][0] != '-' ? argv[++i] : nullptr;
    if (flag == "--billion") options.billion = value != nullptr ? std::strtoull(value, nullptr, 10) : 1'000'000'000;
    if (flag == "--limit" && value != nullptr) options.limit = std::strtoll(value, nullptr, 10) << 20;
    if (flag == "--rounds" && value != nullptr) options.rounds = std::atoi(value);
    if (flag == "--known" && value != nullptr) options.known = std::strtoull(value, nullptr, 10);
  }
  return options;
}

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Of this thread, which on a machine that others use says more than the time that passes.
double processor_seconds() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

json memory_of(const ps::Table& table) {
  const ps::TableMemory memory = table.memory();
  return {{"rows", table.size()}, {"index_bytes", memory.index.value}, {"row_bytes", memory.rows.value}, {"disk_bytes", memory.disk.value}};
}

// A pull and a push of each batch. The longest counts too: a table that tidies up must not keep a batch waiting for long.
struct Rates {
  std::vector<double> rates, processor_rates;  // of each round
  double longest = 0;                          // seconds

  void run(ps::Table& table, const Batches& batches) {
    std::vector<float> values(kBatch * kDimension), gradients(kBatch * kDimension, 0.01f);
    std::vector<ps::Ticket> tickets(kBatch);
    const Clock clock;
    const double processor_before = processor_seconds();
    std::size_t keys = 0;
    for (const auto& batch : batches) {
      const Clock one;
      const std::size_t floats = batch.size() * kDimension;
      table.pull(batch, std::span(values).first(floats), std::span(tickets).first(batch.size()));
      table.push(batch, std::span(gradients).first(floats), std::span(tickets).first(batch.size()));
      keys += batch.size();
      longest = std::max(longest, one.seconds());
    }
    rates.push_back(static_cast<double>(keys) / 1e6 / clock.seconds());
    processor_rates.push_back(static_cast<double>(keys) / 1e6 / (processor_seconds() - processor_before));
  }
};

// Million rows a second, until they are on the disk.
double save_rate(ps::Table& table, const std::filesystem::path& path) {
  const Clock clock;
  ps::TableSave save(table, real_file_system(), path);
  while (save.save_some()) {}
  return static_cast<double>(table.size()) / 1e6 / clock.seconds();
}

double load_rate(const ps::TableSpec& spec, const std::filesystem::path& path) {
  const Clock clock;
  ps::Table table(spec);
  ps::load_table(table, std::vector{path});
  return static_cast<double>(table.size()) / 1e6 / clock.seconds();
}

json quarter(const Options& options) {
  constexpr std::int64_t kRowBytes = 150;
  const auto rows = static_cast<std::uint64_t>(4 * options.limit / kRowBytes);
  const ps::TableSpec spec{.name = "bench", .dimension = kDimension};
  ps::Table whole(spec);
  ps::Table tiered(spec, ps::TableStorage{options.folder, Bytes(options.limit)});
  const Batches every = all_keys(rows);
  json result{{"rows", rows}, {"limit_bytes", options.limit}};
  Rates create, create_tiered;
  create.run(whole, every);
  create_tiered.run(tiered, every);
  json rates{{"create in memory", median(create.rates)}, {"create", median(create_tiered.rates)}}, processor_rates, longest, missed;
  std::uint64_t seed = 100;
  const auto run = [&](const std::string& of, auto draw, std::uint64_t rounds_before) {
    Rates in_memory, on_disk, before;
    for (std::uint64_t round = 0; round < rounds_before; ++round) before.run(tiered, drawn(draw, rows, ++seed, true));
    const auto [hits, misses] = std::pair(tiered.memory().hits, tiered.memory().misses);
    for (int round = 0; round < options.rounds; ++round) {
      const Batches batches = drawn(draw, rows, ++seed, true);
      in_memory.run(whole, batches);
      on_disk.run(tiered, batches);
    }
    rates[of + " in memory"] = median(in_memory.rates);
    rates[of] = median(on_disk.rates);
    processor_rates[of + " in memory"] = median(in_memory.processor_rates);
    processor_rates[of] = median(on_disk.processor_rates);
    longest[of + " in memory"] = in_memory.longest;
    longest[of] = on_disk.longest;
    const double all = static_cast<double>(tiered.memory().hits - hits) / 2, lay = static_cast<double>(tiered.memory().misses - misses);
    missed[of] = lay / (all + lay / 2);
  };
  run("uniform", uniform, 2);
  run("zipf at first", zipf, 2);
  run("zipf", zipf, options.known * rows / (kBatches * kBatch));
  result["million_keys_per_s"] = rates;
  result["million_keys_per_processor_s"] = processor_rates;
  result["million_rows_per_s"] = {{"save in memory", save_rate(whole, options.folder / "whole")},
                                  {"save", save_rate(tiered, options.folder / "tiered")},
                                  {"load in memory", load_rate(spec, options.folder / "whole")}};
  result["longest_batch_s"] = longest;
  result["on_disk"] = missed;
  result["table"] = memory_of(tiered);
  result["table in memory"] = memory_of(whole);
  return result;
}

json billion(const Options& options) {
  ps::Table table({.name = "bench", .dimension = 8, .type = ps::RowType::bf16, .optimizer = {.row_moment = true}},
                  ps::TableStorage{options.folder, Bytes(options.limit)});
  std::vector<float> gradients(kBatch * 8, 0.01f);
  std::vector<std::uint64_t> keys;
  const Clock clock;
  double longest = 0;
  for (std::uint64_t row = 0; row < options.billion;) {
    keys.clear();
    for (; row < options.billion && keys.size() < kBatch; ++row) keys.push_back(key_of(row));
    const Clock one;
    table.push(keys, std::span(gradients).first(keys.size() * 8));
    longest = std::max(longest, one.seconds());
    if (row / 50'000'000 != (row - keys.size()) / 50'000'000)
      std::cerr << row << " rows, " << clock.seconds() << " s, " << memory_of(table).dump() << "\n";
  }
  return {{"limit_bytes", options.limit}, {"seconds", clock.seconds()}, {"longest_batch_s", longest}, {"table", memory_of(table)}};
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  const Options options = parse(argc, argv);
  std::cout << (options.billion > 0 ? billion(options) : quarter(options)) << "\n";
}
