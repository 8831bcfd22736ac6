#include "comm/operation.hpp"

#include "comm/card.hpp"
#include "comm/shared_engine.hpp"

namespace tessera::comm {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::send: return "send";
    case Kind::receive: return "receive";
    case Kind::all_reduce: return "all_reduce";
    case Kind::reduce_scatter: return "reduce_scatter";
    case Kind::all_gather: return "all_gather";
    case Kind::broadcast: return "broadcast";
    case Kind::all_to_all: return "all_to_all";
    case Kind::barrier: return "barrier";
  }
  return "unknown";
}

const char* name_of(DataType type) {
  static constexpr const char* names[] = {"f32", "f64", "bf16", "i32", "i64", "u8"};
  return static_cast<std::size_t>(type) < std::size(names) ? names[static_cast<std::size_t>(type)] : "unknown";
}

const char* name_of(Reduction reduction) {
  static constexpr const char* names[] = {"sum", "max", "min"};
  return static_cast<std::size_t>(reduction) < std::size(names) ? names[static_cast<std::size_t>(reduction)] : "unknown";
}

std::string name_of(const std::vector<int>& ranks, std::string_view label) {
  std::string list;
  for (std::size_t i = 0; i < ranks.size(); ++i) list += text(i ? " " : "", ranks[i]);
  return text("'", label, "' [", list, "]");
}

std::string Group::State::name() const { return name_of(ranks, label) + (on_device ? " on devices" : ""); }

void Group::State::count_sent(std::size_t bytes, int to) {
  const int here = hosts[static_cast<std::size_t>(rank)];
  if (here < 0 || hosts[static_cast<std::size_t>(to)] != here) bytes_sent += static_cast<std::int64_t>(bytes);
}

Group::State& check_formed(const std::shared_ptr<Group::State>& group) {
  ensure(group != nullptr, "a communication group is used that was never formed");
  return *group;
}

void describe(Operation& operation, const std::shared_ptr<Group::State>& group, Kind kind, const void* input, void* output,
              std::size_t count, DataType type) {
  operation.group = group;
  operation.kind = kind;
  operation.input = static_cast<const std::byte*>(input);
  operation.output = static_cast<std::byte*>(output);
  operation.count = count;
  operation.type = type;
}

void set_peer(Operation& operation, int peer, const char* what) {
  const Group::State& group = *operation.group;
  ensure(peer >= 0 && peer < static_cast<int>(group.ranks.size()), text(what, " ", peer, " is not in group ", group.name()));
  operation.peer = peer;
}

std::string Handle::State::description() const {
  if (collective()) return text(to_text(card_of(*this), *group), " in group ", group->name());
  return text(name_of(kind), " of ", count, " bytes ", kind == Kind::send ? "to" : "from", " rank ",
              group->ranks[static_cast<std::size_t>(peer)], " with tag ", tag, " in group ", group->name());
}

void Handle::State::finish(std::shared_ptr<const Error> error) {
  // A waiter may let go of the operation as soon as it is done.
  const auto keep = weak_from_this().lock();
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    finished_ = SteadyClock::now();
    done_.store(true, std::memory_order_release);
  }
  finished_signal_.notify_all();
}

void Handle::State::wait() {
  if (!done() && helper) helper->help(*this);
  if (!done()) {
    std::unique_lock lock(mutex_);
    finished_signal_.wait(lock, [this] { return done(); });
  }
  if (error_) throw Error(*error_);
}

bool Handle::State::wait_for(std::chrono::microseconds patience) {
  std::unique_lock lock(mutex_);
  return finished_signal_.wait_for(lock, patience, [this] { return done(); });
}

Seconds Handle::State::elapsed() const { return Seconds(done() ? std::chrono::duration<double>(finished_ - submitted).count() : 0.0); }

}  // namespace tessera::comm
