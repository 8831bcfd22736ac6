#include "ps/simulated_network_helper.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/units.hpp"
#include "ps/messages.hpp"

namespace tessera::ps::simulation {
namespace {

constexpr Micros kForever = std::int64_t{1} << 60;

Micros micros_of(Seconds seconds) { return static_cast<Micros>(std::min(seconds.value, 1e9) * 1e6); }

}  // namespace

World::World(std::uint64_t seed, std::size_t hosts, Bug planted) : random(seed), bug(planted), paused_(hosts, false), listeners_(hosts) {}

World::~World() {
  for (const std::shared_ptr<Task>& task : tasks_) kill(task);
}

void World::after(Micros delay, std::function<void()> event) {
  queue_.push_back({now_ + delay, numbered_++, std::move(event)});
  std::ranges::push_heap(queue_, std::greater(), [](const Event& one) { return std::pair(one.when, one.number); });
}

bool World::step() {
  if (queue_.empty()) return false;
  std::ranges::pop_heap(queue_, std::greater(), [](const Event& one) { return std::pair(one.when, one.number); });
  const Event event = std::move(queue_.back());
  queue_.pop_back();
  now_ = event.when;
  ++events_;
  event.happens();
  if (events_ % 1024 == 0) std::erase_if(connections_, [](const auto& one) { return one.expired(); });
  return true;
}

void World::fail(const std::string& why) {
  if (!failure_) failure_ = text("after ", to_text(Seconds(static_cast<double>(now_) / 1e6)), ": ", why);
}

std::shared_ptr<Task> World::spawn(Host host, const std::string& name, std::function<void()> body) {
  std::erase_if(tasks_, [](const std::shared_ptr<Task>& task) { return task->fiber.ended(); });
  tasks_.push_back(std::make_shared<Task>(host, [this, name, body = std::move(body)] {
    try {
      body();
    } catch (const std::exception& error) {
      fail(text(name, " ends: ", error.what()));
    }
  }));
  wake(tasks_.back());
  return tasks_.back();
}

void World::sleep_until(Micros until) {
  const std::shared_ptr<Task> self = current_;
  self->asleep = true;
  if (until < kForever) after(std::max<Micros>(0, until - now_), [this, self, sleep = self->sleeps] { resume(self, sleep); });
  Fiber::yield();
}

void World::wake(const std::shared_ptr<Task>& task) {
  if (!task || !task->asleep || task->woken) return;
  task->woken = true;
  after(between(0, 20), [this, task, sleep = task->sleeps] { resume(task, sleep); });
}

void World::resume(const std::shared_ptr<Task>& task, std::uint64_t sleep) {
  if (task->fiber.ended() || task->sleeps != sleep) return;
  if (paused_[task->host]) {
    task->due = true;
    return;
  }
  ++task->sleeps;
  task->asleep = task->woken = task->due = false;
  current_ = task;
  task->fiber.resume();
  current_.reset();
}

void World::pause(Host host, bool paused) {
  paused_[host] = paused;
  if (paused) return;
  for (const std::shared_ptr<Task>& task : tasks_)
    if (task->host == host && task->due) after(0, [this, task, sleep = task->sleeps] { resume(task, sleep); });
}

void World::partition(Host one, Host other, bool apart) {
  if (apart)
    apart_.insert(std::minmax(one, other));
  else
    apart_.erase(std::minmax(one, other));
}

Micros World::delay() {
  const Micros usual = between(30, 600);
  return chance(storm_ ? 4 : 60) ? usual + between(kMilli, storm_ ? 400 * kMilli : 20 * kMilli) : usual;
}

World::Found World::probe(Host to, Micros patience) {
  const Host from = current_->host;
  const Micros until = now_ + patience, way = delay();
  if (way < patience) sleep_until(now_ + way);
  const bool reached = way < patience && reaches(from, to), there = listens(to);
  const Micros back = reached ? now_ + delay() : until;
  while (now_ < back) sleep_until(back);
  return !reached || back > until ? Found::unknown : there ? Found::listens : Found::ended;
}

ConnectionPointer World::connect(Host to, Micros patience) {
  const std::shared_ptr<Task> self = current_;
  if (probe(to, patience) != Found::listens || !listens(to) || !reaches(self->host, to)) return {};
  auto connection = std::make_shared<Connection>();
  connection->ends[0].host = self->host;
  connection->ends[0].task = self;
  connection->ends[1].host = to;
  connections_.push_back(connection);
  listeners_[to](connection);
  return connection;
}

void World::send(const ConnectionPointer& connection, int from, Packet packet) {
  note(static_cast<std::uint64_t>(now_) * 8 + static_cast<std::uint64_t>(packet.kind));
  note(connection->ends[from].host * 64 + connection->ends[1 - from].host + packet.number * 4096);
  if (connection->ends[from].closed || connection->broken) return;
  if (stalling_ && chance(12))
    connection->stalled_until = now_ + (chance(2) ? between(100 * kMilli, kSecond) : between(9 * kSecond, 13 * kSecond));
  Connection::End& to = connection->ends[1 - from];
  const Micros last = to.coming.empty() ? 0 : to.coming.back().first, arrives = std::max(last, now_ + delay());
  to.coming.emplace_back(arrives, std::move(packet));
  after(arrives - now_, [this, connection, end = 1 - from] { arrive(connection, end); });
}

void World::arrive(const ConnectionPointer& connection, int end) {
  Connection::End& to = connection->ends[end];
  bool moved = false;
  while (!to.coming.empty() && to.coming.front().first <= now_) {
    if (!reaches(to.host, connection->ends[1 - end].host) || now_ < connection->stalled_until) {
      // Sent again as TCP does: one after the other, from the first on.
      Micros arrives = now_ + between(100 * kMilli, kSecond);
      for (auto& [when, late] : to.coming) {
        when = std::max(when, arrives);
        arrives = when + between(50, 800);
        after(when - now_, [this, connection, end] { arrive(connection, end); });
      }
      break;
    }
    Packet packet = std::move(to.coming.front().second);
    to.coming.pop_front();
    if (to.closed) {
      tell_lost(connection, 1 - end, delay());
      continue;
    }
    moved = true;
    if (packet.kind == Packet::Kind::end)
      to.lost = true;
    else
      to.inbox.push_back(std::move(packet));
  }
  if (moved) wake(to.task);
}

void World::tell_lost(const ConnectionPointer& connection, int end, Micros delay) {
  after(delay, [this, connection, end] {
    connection->ends[end].lost = true;
    wake(connection->ends[end].task);
  });
}

void World::close(const ConnectionPointer& connection, int end, Sent sent) {
  Connection::End& own = connection->ends[end];
  if (own.closed) return;
  if (sent == Sent::may_be_lost && chance(2)) connection->ends[1 - end].coming.clear();
  send(connection, end, {.kind = Packet::Kind::end});
  own.closed = true;
  own.inbox.clear();
  own.task.reset();
}

ConnectionPointer World::any_connection(std::size_t hosts) {
  std::vector<ConnectionPointer> there;
  for (const std::weak_ptr<Connection>& one : connections_)
    if (const ConnectionPointer connection = one.lock(); connection && !connection->broken && !connection->ends[0].closed &&
                                                         !connection->ends[1].closed &&
                                                         std::max(connection->ends[0].host, connection->ends[1].host) < hosts)
      there.push_back(connection);
  return there.empty() ? nullptr : there[random.below(there.size())];
}

void World::lose(const ConnectionPointer& connection) {
  connection->broken = true;
  for (const int end : {0, 1}) {
    connection->ends[end].coming.clear();
    tell_lost(connection, end, chance(6) ? between(0, 3 * kSecond) : between(0, 5 * kMilli));
  }
}

SimulatedRequester::SimulatedRequester(World& world, std::vector<std::vector<Host>> servers, const comm::RequestClient::Options& options)
    : world_(world), options_(options), buffer_(std::make_unique_for_overwrite<std::byte[]>(comm::kMostMessageBytes)) {
  const Micros until = world.now() + micros_of(options.deadline);
  for (std::vector<Host>& hosts : servers) {
    Server& server = servers_.emplace_back();
    server.hosts = std::move(hosts);
    while (!connect(server, until, Strangers::refused)) {
      if (world.now() > until) throw Error(ErrorCode::deadline_exceeded, text("server ", server.hosts.front(), " was not there"));
      const Micros retry = world.now() + 20 * kMilli;
      while (world.now() < retry) world.sleep_until(retry);
    }
  }
}

SimulatedRequester::~SimulatedRequester() {
  for (Server& server : servers_) close(server);
}

void SimulatedRequester::close(Server& server) {
  if (server.connection) world_.close(server.connection, 0);
  server.connection.reset();
}

bool SimulatedRequester::connect(Server& server, Micros until, Strangers strangers) {
  for (std::size_t i = 0; i < server.hosts.size(); ++i, server.at = (server.at + 1) % server.hosts.size()) {
    server.connection = world_.connect(server.hosts[server.at], std::clamp<Micros>(until - world_.now(), 0, 2 * kSecond));
    if (!server.connection) continue;
    if (introduce(server, until, strangers)) return true;
    close(server);
  }
  return false;
}

bool SimulatedRequester::introduce(Server& server, Micros until, Strangers strangers) {
  Connection::End& end = server.connection->ends[0];
  world_.send(server.connection, 0, {.kind = Packet::Kind::hello, .wants = options_.wants});
  while (end.inbox.empty()) {
    if (end.lost) {
      if (strangers == Strangers::refused) {
        close(server);
        throw Error(ErrorCode::invalid_config, "a server that ends while it is asked looks like one with another secret");
      }
      return false;
    }
    if (world_.now() > until) {
      close(server);
      throw Error(ErrorCode::deadline_exceeded, text("server ", server.hosts[server.at], " has not answered"));
    }
    world_.sleep_until(until + 1);
  }
  const bool taken = end.inbox.front().taken;
  end.inbox.pop_front();
  return taken;
}

std::span<std::byte> SimulatedRequester::next_request(std::size_t) { return {buffer_.get(), comm::kMostMessageBytes}; }

void SimulatedRequester::send(std::size_t number, std::size_t bytes) {
  Server& server = servers_[number];
  Slot& slot = server.slot_of(server.asked);
  slot.request.assign(buffer_.get(), buffer_.get() + bytes);
  slot.received = false;
  begin(server, server.asked++);
}

void SimulatedRequester::begin(Server& server, std::uint64_t number) {
  Packet packet{.kind = Packet::Kind::request, .number = number, .bytes = server.slot_of(number).request};
  if (server.numbered_too_far > 0) {
    AskHeader header;
    std::memcpy(&header, packet.bytes.data(), sizeof header);
    if (is_numbered(header.ask)) header.number += server.numbered_too_far;
    std::memcpy(packet.bytes.data(), &header, sizeof header);
  }
  if (server.connection) world_.send(server.connection, 0, std::move(packet));
}

std::size_t SimulatedRequester::under_way(std::size_t server) const {
  return static_cast<std::size_t>(servers_[server].asked - servers_[server].taken);
}

void SimulatedRequester::take_in(Server& server) {
  if (!server.connection) return;
  Connection::End& end = server.connection->ends[0];
  for (; !end.inbox.empty(); end.inbox.pop_front()) {
    const std::uint64_t number = end.inbox.front().number;
    if (number < server.taken || number >= server.asked || server.slot_of(number).received) continue;
    server.slot_of(number).reply = std::move(end.inbox.front());
    server.slot_of(number).received = true;
  }
}

void SimulatedRequester::recover(Server& server) {
  close(server);
  if (options_.reconnect.value == 0) throw Error(ErrorCode::peer_lost, text("server ", server.hosts[server.at], " is gone"));
  const Micros until = world_.now() + micros_of(options_.reconnect);
  while (!connect(server, until, Strangers::tried_again)) {
    if (world_.now() > until) throw Error(ErrorCode::peer_lost, text("server ", server.hosts[server.at], " is gone"));
    const Micros retry = world_.now() + 20 * kMilli;
    while (world_.now() < retry) world_.sleep_until(retry);
  }
  ++reconnections_;
  for (std::uint64_t number = server.taken; number < server.asked; ++number) {
    Slot& slot = server.slot_of(number);
    if (slot.received) continue;
    if (world_.bug == Bug::client_numbers_again && options_.wants == Wants::leader &&
        is_numbered(MessageReader(slot.request).take<AskHeader>(1).front().ask))
      ++server.numbered_too_far;
    begin(server, number);
  }
}

std::span<const std::byte> SimulatedRequester::take_reply(std::size_t number) {
  Server& server = servers_[number];
  Slot& slot = server.slot_of(server.taken);
  const Micros until = world_.now() + micros_of(options_.deadline);
  for (;;) {
    for (Server& one : servers_) take_in(one);
    if (slot.received) break;
    if (!server.connection || server.connection->ends[0].lost) recover(server);
    if (world_.now() > until) throw Error(ErrorCode::deadline_exceeded, text("server ", server.hosts[server.at], " has not answered"));
    take_in(server);
    if (!slot.received) world_.sleep_until(until + 1);
  }
  ++server.taken;
  const Packet& reply = slot.reply;
  if (reply.failed)
    throw Error(*reply.failed, text("server ", server.hosts[server.at], ": ",
                                    std::string(reinterpret_cast<const char*>(reply.bytes.data()), reply.bytes.size())));
  return reply.bytes;
}

}  // namespace tessera::ps::simulation
