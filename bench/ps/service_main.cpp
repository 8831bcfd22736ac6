// tessera_bench_ps_service PLACE,... ROWS ROUNDS PID: one client of running parameter servers. Prints one JSON object: medians over the
// rounds of million keys a second, and of milliseconds and CPU milliseconds of a batch, the latter of this process and of the servers'
// (PID) together.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "base/secret.hpp"
#include "ps/client.hpp"
#include "ps/keys.hpp"

namespace tessera::bench {
namespace {

constexpr std::size_t kSmallBatch = 64 * 26;
constexpr int kSmallBatches = 200;

double cpu_seconds_of(pid_t process) {
  clockid_t clock{};
  timespec used{};
  if (clock_getcpuclockid(process, &clock) != 0 || clock_gettime(clock, &used) != 0)
    throw std::runtime_error("there is no process " + std::to_string(process));
  return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
}

struct Medians {
  std::map<std::string, std::vector<double>> values;
  nlohmann::json json() {
    nlohmann::json out;
    for (auto& [name, all] : values) {
      std::ranges::nth_element(all, all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2));
      out[name] = all[all.size() / 2];
    }
    return out;
  }
};

struct Bench {
  ps::Client client;
  ps::Client::TableId table;
  pid_t servers;
  std::vector<float> values = std::vector<float>(kBatch * kDimension), gradients = values;
  Medians rates = {}, cpu = {}, latency = {};

  void pull(std::span<const std::uint64_t> keys) { client.pull(table, keys, std::span(values).first(keys.size() * kDimension)); }
  void push(std::span<const std::uint64_t> keys) { client.push(table, keys, std::span(gradients).first(keys.size() * kDimension)); }
  double cpu_seconds() const { return cpu_seconds_of(getpid()) + cpu_seconds_of(servers); }
  void time(const std::string& name, const Batches& batches, const std::function<void(std::span<const std::uint64_t>)>& run) {
    const double cpu_before = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    std::size_t keys = 0;
    for (const auto& batch : batches) {
      run(batch);
      keys += batch.size();
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    rates.values[name].push_back(static_cast<double>(keys) / 1e6 / seconds);
    latency.values[name].push_back(1e3 * seconds / static_cast<double>(batches.size()));
    cpu.values[name].push_back(1e3 * (cpu_seconds() - cpu_before) / static_cast<double>(batches.size()));
  }
};

std::vector<std::string> split(const std::string& places) {
  std::vector<std::string> all(1);
  for (const char letter : places) {
    if (letter == ',')
      all.emplace_back();
    else
      all.back() += letter;
  }
  return all;
}

Batches small_batches(std::uint64_t rows, std::uint64_t seed) {
  Random random(seed);
  Batches batches(kSmallBatches, std::vector<std::uint64_t>(kSmallBatch));
  for (auto& batch : batches)
    for (std::uint64_t& key : batch) key = key_of(uniform(random, rows));
  return batches;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  using namespace tessera::bench;
  if (argc != 5) {
    std::cerr << "usage: tessera_bench_ps_service PLACE,... ROWS ROUNDS PID\n";
    return 2;
  }
  try {
    ps::Client client(split(argv[1]), secret_from_environment().value_or(""));
    const std::uint64_t rows = std::strtoull(argv[2], nullptr, 10);
    const ps::Client::TableId table =
        client.open({.name = "bench", .dimension = kDimension, .optimizer = {.rule = ps::Rule::adagrad, .row_moment = true}});
    Bench bench{std::move(client), table, static_cast<pid_t>(std::atoi(argv[4]))};
    Random random(7);
    for (float& gradient : bench.gradients) gradient = static_cast<float>(random.uniform() - 0.5);
    const auto pull = [&bench](auto keys) { bench.pull(keys); };
    const auto both = [&bench](auto keys) {
      bench.pull(keys);
      bench.push(keys);
    };
    bench.time("insert", all_keys(rows), pull);
    for (int round = 0; round < std::atoi(argv[3]); ++round) {
      const auto seed = static_cast<std::uint64_t>(round) + 100;
      for (const auto& [name, draw] : {std::pair("uniform", &uniform), std::pair("zipf", &zipf)}) {
        const Batches batches = drawn(draw, rows, seed, true);
        bench.time(std::string("pull ") + name, batches, pull);
        bench.time(std::string("pull + push ") + name, batches, both);
      }
      const Batches small = small_batches(rows, seed);
      bench.time("small pull", small, pull);
      bench.time("small pull + push", small, both);
    }
    std::uint64_t there = 0;
    std::int64_t bytes = 0;
    for (const auto& server : bench.client.status())
      for (const ps::TableStatus& one : server.tables) {
        there += one.rows;
        bytes += (one.memory.index + one.memory.rows).value;
      }
    std::cout << nlohmann::json{{"rows", there},
                                {"bytes_of_a_row", static_cast<double>(bytes) / static_cast<double>(there)},
                                {"million_keys_per_s", bench.rates.json()},
                                {"milliseconds_of_a_batch", bench.latency.json()},
                                {"cpu_milliseconds_of_a_batch", bench.cpu.json()}}
              << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
