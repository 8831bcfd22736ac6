// tessera_bench_ps_move FROM,... TO,... ROWS: a table of so many rows goes from some running parameter servers to others while a worker
// pulls and pushes Zipf keys in steps. Prints one JSON object: million keys a second before, meanwhile and afterwards, million rows a
// second that are copied, and for how long steps stood.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/secret.hpp"
#include "ps/client.hpp"
#include "ps/keys.hpp"
#include "ps/move.hpp"

namespace tessera::bench {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Training {
  ps::Client client;
  ps::Client::TableId table;
  Batches batches;
  std::vector<float> values = std::vector<float>(kBatch * kDimension), gradients = std::vector<float>(kBatch * kDimension, 0.01f);
  std::size_t next = 0;

  void step() {
    const auto& batch = batches[next++ % batches.size()];
    client.pull(table, batch, values);
    client.push(table, batch, gradients);
    client.end_step();
  }
  // Million keys a second, for at least two seconds and as long as `more` says.
  template <typename More>
  double rate(const More& more) {
    constexpr double kLeast = 2;
    const auto begin = std::chrono::steady_clock::now();
    std::size_t steps = 0;
    for (; seconds_since(begin) < kLeast || more(); ++steps) step();
    return static_cast<double>(steps * kBatch) / 1e6 / seconds_since(begin);
  }
};

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  using namespace tessera::bench;
  if (argc != 4) {
    std::cerr << "usage: tessera_bench_ps_move FROM,... TO,... ROWS\n";
    return 2;
  }
  try {
    const std::vector<std::string> from = split(argv[1]), to = split(argv[2]);
    const std::uint64_t rows = std::strtoull(argv[3], nullptr, 10);
    const std::string secret = servers_secret_from_environment();
    ps::Client client(from, secret, {.worker = ps::Worker{.run = 1}});
    const auto table = client.open({.name = "bench",
                                    .dimension = kDimension,
                                    .optimizer = {.rule = ps::Rule::adagrad, .row_moment = true},
                                    .consistency = ps::Consistency::synchronous});
    Training training{std::move(client), table, drawn(&zipf, rows, 1, true)};
    for (const auto& batch : all_keys(rows))
      training.client.pull(table, batch, std::span(training.values).first(batch.size() * kDimension));
    nlohmann::json out{{"rows", rows}};
    const auto never = [] { return false; };
    out["before"] = training.rate(never);
    std::atomic<bool> copied = false;
    double copying = 0;
    ps::Move move(from, to, secret, training.client.opened());
    std::jthread copier([&] {
      const auto begin = std::chrono::steady_clock::now();
      move.copy();
      copying = seconds_since(begin);
      copied = true;
    });
    out["beside"] = training.rate([&] { return !copied; });
    copier.join();
    out["copied"] = move.rows();
    out["copied_million_rows_per_s"] = static_cast<double>(move.rows()) / 1e6 / copying;
    const auto begin = std::chrono::steady_clock::now();
    training.client.wait_for_workers();
    move.finish();
    training.client.go_on_at(to, secret, 2);
    out["stood_seconds"] = seconds_since(begin);
    out["copied_meanwhile"] = move.rows() - out["copied"].get<std::uint64_t>();
    move.drop();
    out["afterwards"] = training.rate(never);
    std::cout << out.dump() << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
