#include "ps/protocol_simulation_helper.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"
#include "ps/client.hpp"
#include "ps/expected_rows_helper.hpp"
#include "ps/messages.hpp"
#include "ps/simulated_server_helper.hpp"

namespace tessera::ps::simulation {
namespace {

// Far more than a run takes: about four thousand, its faults among them.
constexpr std::uint64_t kMostEvents = 40'000;
constexpr Seconds kForever(1e9);

class Simulation {
 public:
  Simulation(std::uint64_t seed, Bug bug, Outcome& outcome)
      : seed_(seed),
        random_(seed ^ 0x5DEECE66Dull),
        outcome_(outcome),
        worker_count_(1 + static_cast<int>(random_.below(3))),
        steps_(4 + static_cast<int>(random_.below(5))),
        staleness_(static_cast<int>(random_.below(3))),
        pair_count_(1 + random_.below(2)),
        expected_(seed, worker_count_, staleness_),
        world_(seed, 2 * pair_count_ + static_cast<std::size_t>(worker_count_) + 1, bug) {
    for (std::size_t i = 0; i < pair_count_; ++i) {
      pairs_.push_back({.hosts = {2 * i, 2 * i + 1}});
      for (const std::size_t which : {0, 1}) start(pairs_.back(), which);
    }
    for (int worker = 0; worker < worker_count_; ++worker)
      tasks_.push_back(world_.spawn(host_of(worker), text("worker ", worker), [this, worker] { work(worker); }));
    tasks_.push_back(world_.spawn(host_of(worker_count_), "one that looks", [this] { look(); }));
    for (bool& enabled : enabled_) enabled = random_.below(3) != 0;
    faults_left_ = 4 + static_cast<int>(random_.below(25));
    next_fault();
    next_comparison();
  }
  ~Simulation() {
    for (const std::shared_ptr<Task>& task : tasks_) World::kill(task);
  }
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  void run() {
    const auto tasks_done = [this] { return std::ranges::all_of(tasks_, [](const auto& task) { return task->fiber.ended(); }); };
    const auto whole = [this] {
      return std::ranges::all_of(pairs_, [](const SimulatedPair& pair) { return pair.whole_backup() != nullptr; });
    };
    go_on_until([this] { return healed_; }, "the faults are over");
    go_on_until(tasks_done, "all workers have done their work");
    go_on_until(whole, "each leader has a backup");
    for (SimulatedPair& pair : pairs_) compare(pair);
    look_at_the_end();
    // What the backups hold is what is left then.
    for (SimulatedPair& pair : pairs_)
      if (SimulatedServer* const leader = pair.leader(); leader && !world_.failure()) pair.servers[leader->which()].reset();
    look_at_the_end();
    outcome_.failure = world_.failure();
    outcome_.events = world_.events();
    outcome_.trace = world_.trace();
    outcome_.seconds = static_cast<double>(world_.now()) / 1e6;
  }

 private:
  Host host_of(int client) const { return 2 * pair_count_ + static_cast<std::size_t>(client); }
  std::size_t host_count() const { return host_of(worker_count_) + 1; }
  void start(SimulatedPair& pair, std::size_t which) {
    if (!pair.servers[which]) pair.servers[which] = std::make_unique<SimulatedServer>(world_, pair, which);
  }
  void go_on_until(const std::function<bool()>& done, const char* what) {
    const std::uint64_t begun = world_.events();
    while (!world_.failure() && !done()) {
      if (world_.events() - begun > kMostEvents || !world_.step()) world_.fail(text("waits in vain until ", what));
    }
  }
  void sleep(Micros least, Micros most) {
    const Micros until = world_.now() + world_.between(least, most);
    while (world_.now() < until) world_.sleep_until(until);
  }

  Client connect(const ClientOptions& options) {
    std::vector<std::vector<Host>> hosts;
    for (const SimulatedPair& pair : pairs_) hosts.emplace_back(pair.hosts.begin(), pair.hosts.end());
    for (;;) try {
        return Client(
            std::make_unique<SimulatedRequester>(world_, hosts, comm::RequestClient::Options{.deadline = kForever, .reconnect = kForever}),
            options);
      } catch (const Error& error) {
        // A server that ends at this very moment is taken for one with another secret.
        if (error.code() != ErrorCode::invalid_config) throw;
      }
  }
  std::array<Client::TableId, kKinds> open(Client& client) const {
    std::array<Client::TableId, kKinds> tables{};
    for (const Kind kind : {kCounts, kSums, kAdagrad, kLives}) tables[kind] = client.open(expected_.spec(kind));
    return tables;
  }

  void pull(Client& client, Client::TableId table, Kind kind, std::optional<int> step, int ahead = 0) {
    const std::vector<Key> keys = ExpectedRows::all_keys();
    std::vector<float> values(keys.size() * static_cast<std::size_t>(expected_.spec(kind).dimension));
    const ExpectedRows::Marks least = expected_.least(kind, step);
    client.pull(table, keys, values, step ? Absent::create : Absent::zeros, ahead);
    ++outcome_.pulls;
    if (const auto wrong = expected_.wrong(kind, values, least, step ? *step + ahead : step)) world_.fail(*wrong);
  }

  void work(int worker) {
    sleep(0, 100 * kMilli);
    Client client =
        connect({.deadline = kForever, .worker = Worker{.index = worker, .count = worker_count_, .run = seed_ + 1, .first_step = 0}});
    const std::array<Client::TableId, kKinds> tables = open(client);
    std::vector<float> rows(kKeys * 2);
    for (int step = 0; step < steps_; ++step) {
      pull(client, tables[kCounts], kCounts, step);
      if (staleness_ > 0 && world_.chance(2)) pull(client, tables[kCounts], kCounts, step, 1);
      pull(client, tables[kSums], kSums, step);
      if (world_.chance(2)) client.pull(tables[kAdagrad], ExpectedRows::all_keys(), rows);
      sleep(0, 60 * kMilli);
      for (int number = 0; number < kPushes; ++number)
        for (const Kind kind : {kCounts, kSums, kAdagrad, kLives}) {
          const Pushed pushed = expected_.push_of(kind, worker, step, number);
          expected_.begins(kind, worker, step, number);
          client.push(tables[kind], pushed.keys, pushed.values);
          expected_.ends(kind, worker, step, number);
        }
      if (world_.chance(3)) client.end_period(tables[kLives]);
      expected_.begins_end_of_step(worker);
      client.end_step();
    }
    client.wait_for_workers();
  }
  // It sees what is acknowledged, and waits for nobody.
  void look() {
    Client client = connect({.deadline = kForever});
    const std::array<Client::TableId, kKinds> tables = open(client);
    for (int turn = 0; turn < 8; ++turn) {
      sleep(0, 400 * kMilli);
      for (const Kind kind : {kCounts, kSums}) pull(client, tables[kind], kind, {});
    }
  }
  void look_at_the_end() {
    if (world_.failure()) return;
    bool done = false;
    tasks_.push_back(world_.spawn(host_of(worker_count_), "one that looks at the end", [this, &done] {
      Client client = connect({.deadline = kForever});
      const std::array<Client::TableId, kKinds> tables = open(client);
      // All have ended this step.
      for (const Kind kind : {kCounts, kSums}) pull(client, tables[kind], kind, steps_);
      std::vector<float> rows(kKeys * 2);
      client.pull(tables[kAdagrad], ExpectedRows::all_keys(), rows);
      if (rows != expected_.one_process(steps_)) world_.fail("rows of AdaGrad are not those of one process");
      done = true;
    }));
    go_on_until([&done] { return done; }, "the rows are pulled at the end");
  }

  // While a leader does nothing, its backup holds the same, to the bit.
  void compare(const SimulatedPair& pair) {
    const SimulatedServer *const leader = pair.leader(), *const backup = pair.whole_backup();
    if (leader && leader->replica().has_backup() && leader->idle())
      if (const auto& other = pair.servers[1 - leader->which()]; other && other->replica().shards().incomplete())
        world_.fail(text("server ", pair.hosts[leader->which()], " counts on a backup that has a part of a copy"));
    if (!backup || !leader->idle() || !backup->idle() || world_.failure()) return;
    ++outcome_.comparisons;
    const auto first_values = [this](std::uint32_t table, Key key) {
      Table fresh(expected_.spec(static_cast<Kind>(table)));
      std::vector<float> values(static_cast<std::size_t>(fresh.spec().dimension));
      fresh.pull(std::vector{key}, values);
      std::vector<std::byte> stored;
      fresh.for_each([&stored](Key, std::span<const std::byte> row) { stored.assign(row.begin(), row.end()); });
      return stored;
    };
    if (const auto what = difference(held_by(leader->replica().shards()), held_by(backup->replica().shards()), first_values))
      world_.fail(text("server ", pair.hosts[leader->which()], " and its backup do not hold the same: ", *what));
  }
  void next_comparison() {
    world_.after(world_.between(50 * kMilli, 400 * kMilli), [this] {
      for (const SimulatedPair& pair : pairs_) compare(pair);
      next_comparison();
    });
  }

  enum Fault : std::size_t { kLose, kCrash, kPause, kPartition, kStorm, kStall, kFaults };
  void next_fault() {
    world_.after(random_.below(4) == 0 ? between(0, 5 * kMilli) : between(5 * kMilli, 300 * kMilli), [this] {
      if (faults_left_-- == 0) return heal();
      const auto fault = static_cast<Fault>(random_.below(kFaults));
      if (enabled_[fault]) begin(fault);
      next_fault();
    });
  }
  Micros between(Micros least, Micros most) {
    return least + static_cast<Micros>(random_.below(static_cast<std::uint64_t>(most - least + 1)));
  }
  // Mostly shorter than the shortest deadline of a pair, sometimes longer than the longest.
  Micros duration() { return random_.below(6) == 0 ? between(kSecond, 13 * kSecond) : between(10 * kMilli, kSecond); }

  void begin(Fault fault) {
    SimulatedPair& pair = pairs_[random_.below(pair_count_)];
    switch (fault) {
      case kLose: return random_.below(3) == 0 ? lose(80, random_.below(2) == 0 ? 2 * pair_count_ : host_count()) : lose(1, host_count());
      case kCrash: return crash(pair);
      case kPause: {
        const Host host = pair.hosts[random_.below(2)];
        if (world_.paused(host)) return;
        ++outcome_.pauses;
        world_.pause(host, true);
        return world_.after(duration(), [this, host] { world_.pause(host, false); });
      }
      case kPartition: {
        const Host one = pair.hosts[random_.below(2)];
        const Host other = random_.below(2) == 0 ? pair.hosts[0] + pair.hosts[1] - one
                                                 : host_of(static_cast<int>(random_.below(static_cast<std::uint64_t>(worker_count_))));
        if (!world_.reaches(one, other)) return;
        ++outcome_.partitions;
        world_.partition(one, other, true);
        return world_.after(duration(), [this, one, other] { world_.partition(one, other, false); });
      }
      case kStorm: world_.set_storm(true); return world_.after(duration(), [this] { world_.set_storm(false); });
      case kStall: world_.set_stalling(true); return world_.after(between(10 * kMilli, kSecond), [this] { world_.set_stalling(false); });
      case kFaults: return;
    }
  }
  // Several: one soon after the other, so that some are lost while a server is given a copy. `hosts`: between the first so many.
  void lose(int times, std::size_t hosts) {
    if (const ConnectionPointer connection = world_.any_connection(hosts)) {
      world_.lose(connection);
      ++outcome_.lost_connections;
    }
    if (times > 1 && !healed_) world_.after(between(0, 6 * kMilli), [this, times, hosts] { lose(times - 1, hosts); });
  }
  // Of a pair one server may be lost at a time: the leader only when it has a backup.
  void crash(SimulatedPair& pair) {
    SimulatedServer* const leader = pair.leader();
    if (!leader || !pair.servers[1 - leader->which()]) return;
    const bool of_leader = pair.whole_backup() && random_.below(3) != 0;
    if (of_leader) compare(pair);
    ++(of_leader ? outcome_.crashes_of_leaders : outcome_.crashes_of_backups);
    const std::size_t which = of_leader ? leader->which() : 1 - leader->which();
    pair.servers[which].reset();
    world_.after(random_.below(3) == 0 ? between(0, 3 * kMilli) : between(20 * kMilli, 2 * kSecond),
                 [this, &pair, which] { start(pair, which); });
  }
  void heal() {
    healed_ = true;
    for (Host one = 0; one < host_count(); ++one) {
      world_.pause(one, false);
      for (Host other = 0; other < one; ++other) world_.partition(one, other, false);
    }
    world_.set_storm(false);
    world_.set_stalling(false);
    for (SimulatedPair& pair : pairs_)
      for (const std::size_t which : {0, 1}) start(pair, which);
  }

  std::uint64_t seed_;
  Random random_;  // of what fails when, whatever the network draws
  Outcome& outcome_;
  int worker_count_, steps_, staleness_;
  std::size_t pair_count_;
  ExpectedRows expected_;
  World world_;
  std::deque<SimulatedPair> pairs_;
  std::vector<std::shared_ptr<Task>> tasks_;
  std::array<bool, kFaults> enabled_{};
  int faults_left_ = 0;
  bool healed_ = false;
};

}  // namespace

Outcome simulate(std::uint64_t seed, Bug bug) {
  Outcome outcome;
  Simulation(seed, bug, outcome).run();
  return outcome;
}

}  // namespace tessera::ps::simulation
