// tessera-ps: what `tessera ps` becomes. A program of its own, as loading UCX takes longer than most commands of `tessera` do.

#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/secret.hpp"
#include "base/standard_output.hpp"
#include "base/table.hpp"
#include "base/terminal.hpp"
#include "comm/sockets.hpp"
#include "control/report.hpp"
#include "control/stop_signals.hpp"
#include "ps/client.hpp"
#include "ps/messages.hpp"
#include "ps/metrics.hpp"
#include "ps/metrics_page_main.hpp"
#include "ps/server.hpp"
#include "ps/serving_server.hpp"
#include "ps/summary.hpp"

namespace tessera::ps {
namespace {

constexpr std::chrono::milliseconds kLook(50);
constexpr Seconds kPatience(10), kLookAt(2);

// The place of each thread: the given one, then those at the ports behind it.
std::vector<std::string> places_from(const std::string& place, int threads) {
  const comm::HostPort first = comm::parse_host_port(place);
  if (first.port == 0 || first.port + threads - 1 > 65535)
    throw Error(ErrorCode::invalid_config, text(place, " leaves no port for each of ", threads, threads == 1 ? " thread" : " threads"), {},
                text("a port from 1 to ", 65536 - threads));
  const std::string host = first.host.find(':') == std::string::npos ? first.host : "[" + first.host + "]";
  std::vector<std::string> places;
  for (int thread = 0; thread < threads; ++thread) places.push_back(text(host, ":", first.port + thread));
  return places;
}

struct Serving {
  std::string place, backup, backup_of, log, disk, metrics;
  std::int64_t memory = 0;
  int threads = 1;
};

// Each server on a thread of its own, until Ctrl-C or until one of them fails.
template <typename AnyServer>
void serve_all(std::deque<AnyServer>& servers, const std::vector<std::string>& places, const std::atomic<bool>& asked) {
  std::atomic<bool> ended = false;
  std::atomic_flag taken;
  std::exception_ptr failed;  // the first thread's that fails; read once all have joined
  {
    std::vector<std::jthread> running;
    for (AnyServer& server : servers)
      running.emplace_back([&server, &ended, &taken, &failed](const std::stop_token& stop) {
        try {
          server.serve(stop);
        } catch (...) {
          if (!taken.test_and_set()) failed = std::current_exception();
        }
        ended = true;
      });
    std::cout << "serving at";
    for (const std::string& one : places) std::cout << " " << one;
    std::cout << std::endl;
    while (!asked && !ended) std::this_thread::sleep_for(kLook);
    for (std::jthread& thread : running) thread.request_stop();
  }
  if (failed) std::rethrow_exception(failed);
}

// Asked over the network, as the servers' threads answer one message after the other.
std::string observed(const std::vector<std::string>& places, const std::string& secret) {
  std::vector<ObservedServer> all;
  for (const std::string& place : places) {
    ObservedServer& one = all.emplace_back(ObservedServer{.place = place});
    try {
      one.status = Client({place}, secret, {.deadline = kLookAt, .reconnect = Seconds(0)}).status().at(0);
    } catch (const Error&) {
      // One that stands by; its page says that it does not lead.
    }
  }
  return metrics_text(all);
}

void serve(const Serving& options) {
  const std::string secret = servers_secret_from_environment();
  const std::atomic<bool>& asked = control::stop_when_asked();
  const std::vector<std::string> places = places_from(options.place, options.threads);
  const std::string& partner = options.backup.empty() ? options.backup_of : options.backup;
  const std::vector<std::string> partners = partner.empty() ? std::vector<std::string>() : places_from(partner, options.threads);
  std::deque<Server> servers;
  for (std::size_t i = 0; i < places.size(); ++i) {
    ServerOptions one;
    if (!partners.empty()) one.pair = {options.backup.empty() ? Pair::First::stands_by : Pair::First::leads, partners[i]};
    if (!options.disk.empty()) one.storage = {.folder = options.disk, .memory_limit = Bytes(options.memory)};
    if (!options.log.empty())
      one.log = ServerLog{.folder = std::filesystem::path(options.log) / std::to_string(comm::parse_host_port(places[i]).port)};
    servers.emplace_back(places[i], secret, one);
  }
  std::optional<MetricsPage> page;
  if (!options.metrics.empty()) page.emplace(options.metrics, [&] { return observed(places, secret); });
  serve_all(servers, places, asked);
}

void serve_table(const std::string& folder, const std::string& place, int threads, bool check) {
  const std::string secret = servers_secret_from_environment();
  const std::atomic<bool>& asked = control::stop_when_asked();
  std::filesystem::path path = folder;
  if (std::filesystem::is_directory(path)) path /= kServingTableFile;
  const ServingTable table(path);
  if (check) table.verify();
  const std::vector<std::string> places = places_from(place, threads);
  std::deque<ServingServer> servers;
  for (const std::string& one : places) servers.emplace_back(one, secret, table);
  serve_all(servers, places, asked);
}

// Median and 99th percentile.
std::string of_answers(const Latencies& latencies) {
  const std::optional<Seconds> median = latencies.quantile(0.5);
  return median ? text(to_text(*median), " / ", to_text(*latencies.quantile(0.99))) : "-";
}

// `seconds`: between two looks, for what happens meanwhile; 0: one look, at what has since the servers began.
void show_status(const std::vector<std::string>& places, double seconds, bool as_json) {
  Client client(places, servers_secret_from_environment(), {.deadline = kPatience, .reconnect = Seconds(0)});
  const std::vector<ServerStatus> before = seconds > 0 ? client.status() : std::vector<ServerStatus>();
  const auto began = std::chrono::steady_clock::now();
  if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const std::vector<ServerStatus> all = client.status();
  const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const std::vector<ServerStatus> lately = since(before, all);
  using enum tessera::Table::Align;
  std::vector<tessera::Table::Column> columns = {
      {"server", left},  {"table", wrapped},        {"dim", right},     {"rows", right},   {"skew", right},
      {"memory", right}, {"disk", right},           {"hits", right},    {"pulled", right}, {"pull p50 / p99", right},
      {"pushed", right}, {"push p50 / p99", right}, {"refused", right}, {"behind", right}};
  const bool lives = std::ranges::any_of(all, [](const ServerStatus& server) {
    return std::ranges::any_of(server.tables, [](const TableStatus& table) { return table.lifecycle.has_value(); });
  });
  if (lives)
    for (const char* const head : {"period", "admitted", "held back", "evicted"}) columns.push_back({head, right});
  const bool pairs = std::ranges::any_of(all, [](const ServerStatus& server) { return server.backup.has_value(); });
  if (pairs) columns.push_back({"backup", left});
  tessera::Table shown(std::move(columns));
  nlohmann::json out = nlohmann::json::array();
  for (std::size_t server = 0; server < all.size(); ++server) {
    const nlohmann::json told = nlohmann::json::parse(to_json(all[server]));
    const nlohmann::json told_lately = nlohmann::json::parse(to_json(lately[server]));
    for (std::size_t place = 0; place < all[server].tables.size(); ++place) {
      const TableStatus &table = all[server].tables[place], &late = lately[server].tables[place];
      nlohmann::json one = told["tables"][place];
      one["server"] = places[server];
      for (const char* const name : {"backup", "workers", "slowest", "fastest"}) one[name] = told[name];
      const std::optional<double> skew = summarize(all, table.name).skew(), hits = hit_share(table.memory);
      if (skew) one["skew"] = *skew;
      const auto count = [&](std::uint64_t TableStatus::*keys) {
        return seconds > 0 ? text(fixed(static_cast<double>(late.*keys) / passed, 0), "/s") : text(table.*keys);
      };
      if (seconds > 0) {
        one["pulled_per_second"] = static_cast<double>(late.keys_pulled) / passed;
        one["pushed_per_second"] = static_cast<double>(late.keys_pushed) / passed;
        for (const char* const name : {"pulls", "pushes"}) one[name] = told_lately["tables"][place][name];
      }
      out.push_back(std::move(one));
      std::vector<std::string> cells = {places[server],
                                        table.name,
                                        text(table.dimension),
                                        text(table.rows),
                                        skew ? fixed(*skew, 2) : "-",
                                        to_text(table.memory.index + table.memory.rows),
                                        table.memory.disk.value > 0 ? to_text(table.memory.disk) : "-",
                                        hits ? text(fixed(100 * *hits, 1), " %") : "-",
                                        count(&TableStatus::keys_pulled),
                                        of_answers(late.latencies.pulls),
                                        count(&TableStatus::keys_pushed),
                                        of_answers(late.latencies.pushes),
                                        text(table.gradients_refused),
                                        all[server].workers > 1 ? text(all[server].fastest - all[server].slowest) : "-"};
      if (const auto& life = table.lifecycle; life)
        for (const std::uint64_t number :
             {std::uint64_t{life->period}, life->counts.admitted, life->counts.held_back, life->counts.evicted})
          cells.push_back(text(number));
      else if (lives)
        cells.insert(cells.end(), 4, "-");
      if (pairs) {
        const std::optional<std::string>& backup = all[server].backup;
        cells.push_back(!backup ? "-" : backup->empty() ? "none" : *backup);
      }
      shown.add(std::move(cells));
    }
  }
  if (as_json)
    std::cout << out.dump() << "\n";
  else if (out.empty())
    std::cout << "no tables yet\n";
  else
    std::cout << shown.text(columns_of(STDOUT_FILENO));
}

int run(int argc, char** argv) {
  CLI::App app("tessera-ps: parameter servers; started by the tessera command", "tessera-ps");
  app.require_subcommand(1);
  Serving options;
  CLI::App* serving = app.add_subcommand("serve");
  serving->add_option("--listen", options.place)->required();
  serving->add_option("--threads", options.threads);
  CLI::Option* const backup = serving->add_option("--backup", options.backup);
  CLI::Option* const backup_of = serving->add_option("--backup-of", options.backup_of)->excludes(backup);
  serving->add_option("--log", options.log)->excludes(backup)->excludes(backup_of);
  CLI::Option* const disk = serving->add_option("--disk", options.disk);
  disk->needs(serving->add_option("--memory", options.memory)->transform(CLI::AsSizeValue(false))->needs(disk));
  serving->add_option("--metrics", options.metrics);
  serving->callback([&] { serve(options); });
  std::string folder, place;
  int threads = 1;
  bool check = false;
  CLI::App* serving_table = app.add_subcommand("serve-table");
  serving_table->add_option("folder", folder)->required();
  serving_table->add_option("--listen", place)->required();
  serving_table->add_option("--threads", threads);
  serving_table->add_flag("--check", check);
  serving_table->callback([&] { serve_table(folder, place, threads, check); });
  std::vector<std::string> places;
  bool json = false;
  double seconds = 0;
  CLI::App* status = app.add_subcommand("status");
  status->add_option("servers", places)->required();
  status->add_flag("--json", json);
  status->add_option("--seconds", seconds);
  status->callback([&] { show_status(places, seconds, json); });
  try {
    app.parse(argc, argv);
    flush_standard_output();
    return 0;
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    const Error wrapped(ErrorCode::invalid_config, text("tessera-ps: ", error.what()), {}, {}, "`tessera ps --help` shows what it takes");
    control::report_error(wrapped);
    return exit_code(wrapped.code());
  } catch (const Error& error) {
    control::report_error(error);
    return exit_code(error.code());
  } catch (const std::exception& error) {
    const Error wrapped(ErrorCode::internal, error.what());
    control::report_error(wrapped);
    return exit_code(wrapped.code());
  }
}

}  // namespace
}  // namespace tessera::ps

int main(int argc, char** argv) { return tessera::ps::run(argc, argv); }
