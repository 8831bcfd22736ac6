// A network and hosts with a clock of their own, all of it a function of a seed: connections are lost, messages late, hosts stand still or
// cannot reach each other. What runs on a host are fibers of one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/random.hpp"
#include "comm/requests.hpp"
#include "ps/fiber_helper.hpp"
#include "ps/planted_bugs.hpp"

namespace tessera::ps::simulation {

using Micros = std::int64_t;
using Host = std::size_t;
using Wants = comm::RequestClient::Options::Wants;

constexpr Micros kMilli = 1000, kSecond = 1'000'000;

struct Packet {
  enum class Kind { hello, welcome, request, reply, end } kind = Kind::request;
  std::uint64_t number = 0;
  Wants wants = Wants::leader;           // of a hello
  bool taken = false;                    // of a welcome
  std::optional<ErrorCode> failed = {};  // of a reply, whose bytes are what the error says
  std::vector<std::byte> bytes = {};
};

class World;
struct Task;

// As TCP does it: each direction keeps its order, and an end hears late, if at all, that the other one is gone. End 0 has connected.
struct Connection {
  struct End {
    Host host = 0;
    std::shared_ptr<Task> task = {};  // woken when something comes
    std::deque<Packet> inbox = {};
    std::deque<std::pair<Micros, Packet>> coming = {};  // when each arrives
    bool lost = false;                                  // it has heard that the other end is gone
    bool closed = false;                                // by itself
  };
  End ends[2];
  bool broken = false;       // nothing arrives any more
  Micros stalled_until = 0;  // what is under way is sent again and again, though other connections are well
};
using ConnectionPointer = std::shared_ptr<Connection>;

// A fiber on a host.
struct Task {
  Task(Host where, std::function<void()> body) : host(where), fiber(std::move(body)) {}
  Host host;
  Fiber fiber;
  std::uint64_t sleeps = 0;
  bool asleep = true, woken = false;
  bool due = false;  // it would have gone on, had its host not stood still
};

class World {
 public:
  World(std::uint64_t seed, std::size_t hosts, Bug bug);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Random random;
  const Bug bug;
  Micros now() const { return now_; }
  std::uint64_t events() const { return events_; }
  bool chance(std::uint64_t one_in) { return random.below(one_in) == 0; }
  Micros between(Micros least, Micros most) {
    return least + static_cast<Micros>(random.below(static_cast<std::uint64_t>(most - least + 1)));
  }

  void after(Micros delay, std::function<void()> event);
  // Lets the next event happen. False: there is none.
  bool step();
  // What the simulation is about has gone wrong; the first time counts.
  void fail(const std::string& why);
  const std::optional<std::string>& failure() const { return failure_; }
  // Of everything that was sent so far, and when.
  std::uint64_t trace() const { return trace_; }

  // A body that throws an exception fails the simulation.
  std::shared_ptr<Task> spawn(Host host, const std::string& name, std::function<void()> body);
  // Not from within a task.
  static void kill(const std::shared_ptr<Task>& task) { task->fiber.kill(); }
  // Of the task that runs. It may go on earlier.
  void sleep_until(Micros until);
  void wake(const std::shared_ptr<Task>& task);
  const std::shared_ptr<Task>& current() const { return current_; }

  // Its tasks go on when it goes on; messages to it arrive meanwhile.
  void pause(Host host, bool paused);
  bool paused(Host host) const { return paused_[host]; }
  void partition(Host one, Host other, bool apart);
  bool reaches(Host one, Host other) const { return !apart_.contains(std::minmax(one, other)); }
  // Many messages are late; connections stall.
  void set_storm(bool storm) { storm_ = storm; }
  void set_stalling(bool stalling) { stalling_ = stalling; }

  // What is told of connections to a host, as long as a process listens there.
  using Accept = std::function<void(const ConnectionPointer&)>;
  void listen(Host host, Accept accept) { listeners_[host] = std::move(accept); }
  bool listens(Host host) const { return static_cast<bool>(listeners_[host]); }
  // From the host of the task that runs. Nothing: nobody has answered within the patience, or at once that no process listens.
  ConnectionPointer connect(Host to, Micros patience);
  // What connecting would find.
  enum class Found { listens, ended, unknown };
  Found probe(Host to, Micros patience);
  void send(const ConnectionPointer& connection, int from, Packet packet);
  // What was sent before still arrives, in its own time, or is gone with the process.
  enum class Sent { arrives, may_be_lost };
  void close(const ConnectionPointer& connection, int end, Sent sent = Sent::may_be_lost);
  // One of those that are there between the first so many hosts; nothing where none is.
  ConnectionPointer any_connection(std::size_t hosts);
  void lose(const ConnectionPointer& connection);

 private:
  void resume(const std::shared_ptr<Task>& task, std::uint64_t sleep);
  void arrive(const ConnectionPointer& connection, int end);
  void tell_lost(const ConnectionPointer& connection, int end, Micros delay);
  Micros delay();
  void note(std::uint64_t what) { trace_ = (trace_ ^ what) * 0x9E3779B97F4A7C15ull + (trace_ >> 29); }

  struct Event {
    Micros when;
    std::uint64_t number;
    std::function<void()> happens;
  };
  Micros now_ = 0;
  std::uint64_t numbered_ = 0, events_ = 0, trace_ = 0;
  std::vector<Event> queue_;  // a heap
  std::list<std::shared_ptr<Task>> tasks_;
  std::shared_ptr<Task> current_;
  std::vector<bool> paused_;
  std::set<std::pair<Host, Host>> apart_;
  bool storm_ = false, stalling_ = false;
  std::vector<Accept> listeners_;
  std::vector<std::weak_ptr<Connection>> connections_;
  std::optional<std::string> failure_;
};

// As comm::RequestClient, over a simulated network.
class SimulatedRequester final : public comm::Requester {
 public:
  // `servers`: of each, the hosts of which one leads. Connects, as comm::RequestClient does, from the host of the task that runs.
  SimulatedRequester(World& world, std::vector<std::vector<Host>> servers, const comm::RequestClient::Options& options);
  ~SimulatedRequester() override;

  std::size_t servers() const override { return servers_.size(); }
  std::span<std::byte> next_request(std::size_t server) override;
  void send(std::size_t server, std::size_t bytes) override;
  std::size_t under_way(std::size_t server) const override;
  std::span<const std::byte> take_reply(std::size_t server) override;
  std::int64_t reconnections() const override { return reconnections_; }

 private:
  struct Slot {
    std::vector<std::byte> request;
    bool received = true;
    Packet reply;
  };
  struct Server {
    std::vector<Host> hosts;
    std::size_t at = 0;
    ConnectionPointer connection = {};
    std::uint64_t asked = 0, taken = 0;
    std::uint64_t numbered_too_far = 0;  // by a planted bug
    Slot slots[kMostUnderWay] = {};
    Slot& slot_of(std::uint64_t number) { return slots[number % kMostUnderWay]; }
  };
  enum class Strangers { refused, tried_again };
  bool connect(Server& server, Micros until, Strangers strangers);
  bool introduce(Server& server, Micros until, Strangers strangers);
  void close(Server& server);
  void begin(Server& server, std::uint64_t number);
  void recover(Server& server);
  static void take_in(Server& server);

  World& world_;
  comm::RequestClient::Options options_;
  std::vector<Server> servers_;
  std::unique_ptr<std::byte[]> buffer_;
  std::int64_t reconnections_ = 0;
};

}  // namespace tessera::ps::simulation
