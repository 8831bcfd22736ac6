// tessera_bench_ps_service PLACE,... ROWS PID [WIRE]: one client of running parameter servers, whose process is PID, with values that cross
// the network in fp32, bf16 or int8. It says "ready", then answers
// each line of its standard input with a line of JSON. "insert" pulls every key once, "load" pulls and pushes it, "save" writes all rows,
// and the names of kWays draw keys. An answer has million keys a second, and milliseconds and CPU milliseconds of a batch, the latter of
// both processes together. Those of "insert" and "load" also have the rows that are there, and the bytes of a row: as the table counts
// them, and as the resident memory grew.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "base/secret.hpp"
#include "base/temporary_folder.hpp"
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

std::int64_t resident_bytes_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/statm");
  std::int64_t size = 0, resident = 0;
  if (!(file >> size >> resident)) throw std::runtime_error("there is no process " + std::to_string(process));
  return resident * sysconf(_SC_PAGESIZE);
}

Batches small_batches(std::uint64_t rows, std::uint64_t seed) {
  Random random(seed);
  Batches batches(kSmallBatches, std::vector<std::uint64_t>(kSmallBatch));
  for (auto& batch : batches)
    for (std::uint64_t& key : batch) key = key_of(uniform(random, rows));
  return batches;
}

struct Way {  // to use the table, in batches of kBatch or of kSmallBatch keys
  std::uint64_t (*draw)(Random&, std::uint64_t) = &uniform;
  bool small = false, push = false;
};
const std::map<std::string, Way> kWays = {
    {"pull uniform", {}},
    {"pull zipf", {.draw = &zipf}},
    {"pull + push uniform", {.push = true}},
    {"pull + push zipf", {.draw = &zipf, .push = true}},
    {"small pull", {.small = true}},
    {"small pull + push", {.small = true, .push = true}},
};

struct Bench {
  ps::Client client;
  ps::Client::TableId table;
  std::uint64_t rows;
  pid_t servers;
  std::uint64_t seed = 100;
  std::vector<float> values = std::vector<float>(kBatch * kDimension), gradients = values;

  double cpu_seconds() const { return cpu_seconds_of(getpid()) + cpu_seconds_of(servers); }
  nlohmann::json time(const Batches& batches, bool push);
  nlohmann::json load(bool push);
  nlohmann::json save();
  nlohmann::json run(const Way& way);
};

nlohmann::json Bench::time(const Batches& batches, bool push) {
  const double cpu_before = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  std::size_t keys = 0;
  for (const auto& batch : batches) {
    client.pull(table, batch, std::span(values).first(batch.size() * kDimension));
    if (push) client.push(table, batch, std::span(gradients).first(batch.size() * kDimension));
    keys += batch.size();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto count = static_cast<double>(batches.size());
  return {{"million_keys_per_s", static_cast<double>(keys) / 1e6 / seconds},
          {"milliseconds_of_a_batch", 1e3 * seconds / count},
          {"cpu_milliseconds_of_a_batch", 1e3 * (cpu_seconds() - cpu_before) / count}};
}

nlohmann::json Bench::load(bool push) {
  const std::int64_t resident_before = resident_bytes_of(servers);
  nlohmann::json told = time(all_keys(rows), push);
  const std::int64_t resident = resident_bytes_of(servers) - resident_before;
  std::uint64_t there = 0;
  std::int64_t bytes = 0;
  for (const auto& server : client.status())
    for (const ps::TableStatus& one : server.tables) {
      there += one.rows;
      bytes += (one.memory.index + one.memory.rows).value;
    }
  told["rows"] = there;
  told["bytes_of_a_row"] = static_cast<double>(bytes) / static_cast<double>(there);
  told["resident_bytes_of_a_row"] = static_cast<double>(resident) / static_cast<double>(there);
  return told;
}

// All rows into files of a folder of its own, which goes again.
nlohmann::json Bench::save() {
  const TemporaryFolder folder;
  const auto start = std::chrono::steady_clock::now();
  client.begin_save(folder.path());
  client.finish_save();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {{"million_rows_per_s", static_cast<double>(rows) / 1e6 / seconds}};
}

nlohmann::json Bench::run(const Way& way) {
  ++seed;
  return time(way.small ? small_batches(rows, seed) : drawn(way.draw, rows, seed, true), way.push);
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  using namespace tessera::bench;
  const std::map<std::string, ps::RowType> types = {{"fp32", ps::RowType::fp32}, {"bf16", ps::RowType::bf16}, {"int8", ps::RowType::int8}};
  const auto wire = types.find(argc == 5 ? argv[4] : "fp32");
  if (argc < 4 || argc > 5 || wire == types.end()) {
    std::cerr << "usage: tessera_bench_ps_service PLACE,... ROWS PID [fp32|bf16|int8]\n";
    return 2;
  }
  try {
    ps::Client client(split(argv[1]), secret_from_environment().value_or(""));
    const std::uint64_t rows = std::strtoull(argv[2], nullptr, 10);
    const ps::Client::TableId table = client.open(
        {.name = "bench", .dimension = kDimension, .optimizer = {.rule = ps::Rule::adagrad, .row_moment = true}, .wire = wire->second});
    Bench bench{std::move(client), table, rows, static_cast<pid_t>(std::atoi(argv[3]))};
    Random random(7);
    for (float& gradient : bench.gradients) gradient = static_cast<float>(random.uniform() - 0.5);
    std::cout << "ready" << std::endl;
    for (std::string word; std::getline(std::cin, word);) {
      const bool loads = word == "insert" || word == "load";
      std::cout << (loads ? bench.load(word == "load") : word == "save" ? bench.save() : bench.run(kWays.at(word))) << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
