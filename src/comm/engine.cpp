#include "comm/engine.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "comm/network_collectives.hpp"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kOwnOperations(1000);
constexpr milliseconds kOthersClosing(5000);

bool has_rdma() {
  std::error_code ignored;
  return std::filesystem::exists("/sys/class/infiniband", ignored) && !std::filesystem::is_empty("/sys/class/infiniband", ignored);
}

// The device that UCX is held to. With RDMA adapters and no wish of the user's, UCX chooses best by itself.
std::string interface_for(const Options& options) {
  if (!options.address.empty()) {
    const std::string interface = interface_of(options.address);
    if (interface.empty()) {
      throw Error(ErrorCode::invalid_config, text("no network interface of this host has the address ", options.address),
                  {.file = {}, .rank = options.rank, .block = {}}, "an address of this host, in numbers", "see `ip -brief address`");
    }
    return interface;
  }
  if (has_rdma()) return {};
  return interface_of(local_address_towards(parse_host_port(options.rendezvous)));
}

void check(const Options& options) {
  if (options.world_size >= 1 && options.world_size < 65536 && options.rank >= 0 && options.rank < options.world_size &&
      options.deadline.value > 0 && options.epoch >= 0)
    return;
  throw Error(ErrorCode::invalid_config,
              text("rank ", options.rank, " of ", options.world_size, " with a deadline of ", options.deadline.value, " s cannot be"), {},
              "0 <= rank < world size < 65536 and a deadline above zero");
}

}  // namespace

std::unique_ptr<Communicator> Communicator::connect(const Options& options) { return std::make_unique<Engine>(options); }

Engine::Engine(const Options& options)
    : options_(options),
      last_words_(std::make_shared<const Failure>(out_of_memory(options.rank))),
      last_error_(std::make_shared<const Error>(to_error(*last_words_))) {
  check(options);
  if (options.cuda_device >= 0) device_ = std::make_unique<DeviceEngine>(*this, options.cuda_device);
  const std::string gpu = device_ ? device()->identity() : std::string();
  if (options.world_size == 1) {
    gpu_of_ = {gpu};
    return;
  }
  parse_host_port(options.rendezvous);
  network_ = std::make_unique<Network>(interface_for(options), options.shared_memory);
  Introduction own;
  own.network_address = network_->address();
  own.process = getpid();
  own.gpu = gpu;
  Segment segment;
  if (options.shared_memory) {
    segment = Segment::create(options.world_size);
    own.host = text(host_identity(), "/", options.host);
    own.segment = segment.descriptor();
    own.nonce = segment.header().nonce;
  }
  Meeting meeting = meet(options, own);
  std::vector<Segment> segments = share_memory(meeting, std::move(segment));
  std::vector<std::string> addresses;
  for (const Introduction& peer : meeting.ranks) {
    addresses.push_back(peer.network_address);
    gpu_of_.push_back(peer.gpu);
  }
  network_->set_peers(std::move(addresses), options.rank);
  control_ = std::make_unique<Control>(
      options, std::move(meeting.sockets),
      Control::Events{[this](const Failure& failure) { on_failed(failure); }, [this](const Closing& closing) { on_closing(closing); },
                      [this] {
                        const std::lock_guard lock(mutex_);
                        all_closed_ = true;
                        changed_.notify_all();
                      },
                      [this] { return place(); }});
  wake_descriptor_ = Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  std::vector<int> watched = control_->descriptors();
  watched.push_back(wake_descriptor_.get());
  watched.push_back(network_->event_descriptor());
  for (const int descriptor : watched) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (descriptor >= 0 && epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) throw_errno("cannot watch", "a socket", errno);
  }
  if (!segments.empty()) shared_ = std::make_unique<SharedEngine>(*this, options.rank, std::move(segments));
  thread_ = std::thread([this] { progress_loop(); });
}

// Maps the segments of this host's ranks. A host's ranks share memory when all of them can reach all others' segments.
std::vector<Segment> Engine::share_memory(Meeting& meeting, Segment own) {
  const auto world = static_cast<std::size_t>(options_.world_size);
  const auto me = static_cast<std::size_t>(options_.rank);
  std::vector<Segment> segments(world);
  std::vector<int> reached;
  const std::string host = meeting.ranks[me].host;
  for (std::size_t rank = 0; rank < world; ++rank) {
    const Introduction& peer = meeting.ranks[rank];
    if (rank == me || host.empty() || peer.host != host) continue;
    segments[rank] = Segment::open(peer.process, peer.segment, peer.nonce, options_.world_size);
    if (segments[rank]) reached.push_back(static_cast<int>(rank));
  }
  const std::vector<std::vector<int>> all = exchange_reached(options_, meeting, reached);
  host_of_.assign(world, -1);
  for (std::size_t rank = 0; rank < world; ++rank) {
    std::size_t on_this_host = 0;
    for (const Introduction& peer : meeting.ranks) on_this_host += !peer.host.empty() && peer.host == meeting.ranks[rank].host;
    for (std::size_t leader = 0; leader < world && host_of_[rank] < 0; ++leader) {
      if (leader == rank || meeting.ranks[leader].host == meeting.ranks[rank].host) host_of_[rank] = static_cast<int>(leader);
    }
    if (on_this_host == 0 || all[rank].size() + 1 < on_this_host) host_of_[rank] = -1;
  }
  // One rank that cannot reach another keeps its whole host on the network.
  for (std::size_t rank = 0; rank < world; ++rank) {
    if (host_of_[rank] >= 0) continue;
    for (std::size_t other = 0; other < world; ++other) {
      if (meeting.ranks[other].host == meeting.ranks[rank].host) host_of_[other] = -1;
    }
  }
  if (host_of_[me] < 0 || reached.empty()) return {};
  segments[me] = std::move(own);
  return segments;
}

Engine::~Engine() {
  if (thread_.joinable() || device_) {
    std::unique_lock lock(mutex_);
    closing_ = true;
    if (std::uncaught_exceptions() == 0) changed_.wait_for(lock, kOwnOperations, [this] { return failure_ || pending_.empty(); });
  }
  if (thread_.joinable()) {
    const milliseconds others =
        std::min(kOthersClosing, milliseconds(static_cast<std::int64_t>(std::min(options_.deadline.value, 1e6) * 1000)));
    std::unique_lock lock(mutex_);
    announce_closing_ = true;
    wake();
    changed_.wait_for(lock, others, [this] { return failure_ || all_closed_; });
    stop_ = true;
    lock.unlock();
    wake();
    thread_.join();
  }
  // What is left after the second of patience above ends here, so that nobody waits for ever on a closed communicator.
  try {
    if (shared_ || device_) fail({ErrorCode::interrupted, -1, "the communicator was closed while the operation was under way"});
  } catch (...) {
    fail_with_current_exception();
  }
  device_.reset();
  shared_.reset();
  while (const OperationPointer operation = self_messages_.take_one()) complete(operation, closed_error_);
}

Group Engine::world() {
  std::vector<int> ranks(static_cast<std::size_t>(options_.world_size));
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
  return group(ranks, "world");
}

Group Engine::group(const std::vector<int>& ranks, std::string_view label) {
  const std::lock_guard lock(mutex_);
  auto& state = groups_[{ranks, std::string(label)}];
  if (state) return Group(state);
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  const bool member = std::binary_search(sorted.begin(), sorted.end(), options_.rank);
  if (!member || twice || sorted.front() < 0 || sorted.back() >= options_.world_size) {
    groups_.erase({ranks, std::string(label)});
    throw Error(ErrorCode::internal, text("rank ", options_.rank, " cannot form group ", name_of(ranks, label)), {},
                text("different ranks of 0 to ", options_.world_size - 1, ", this one among them"));
  }
  auto fresh = fresh_state(ranks, std::string(label), false);
  if (have_devices(ranks)) {
    fresh->devices = fresh_state(ranks, fresh->label, true);
    fresh->devices->ids = fresh_state(ranks, text("NCCL of ", label), false);
  }
  state = fresh;
  return Group(fresh);
}

std::shared_ptr<Group::State> Engine::fresh_state(const std::vector<int>& ranks, std::string label, bool on_device) {
  auto fresh = std::make_shared<Group::State>();
  fresh->engine = this;
  fresh->ranks = ranks;
  fresh->label = std::move(label);
  fresh->on_device = on_device;
  fresh->rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), options_.rank) - ranks.begin());
  for (const int rank : ranks) fresh->hosts.push_back(host_of_.empty() ? -1 : host_of_[static_cast<std::size_t>(rank)]);
  const int host = fresh->hosts[static_cast<std::size_t>(fresh->rank)];
  fresh->shared = shared_ && !on_device && ranks.size() > 1 &&
                  std::all_of(fresh->hosts.begin(), fresh->hosts.end(), [&](int other) { return other == host; });
  if (options_.two_levels && !on_device) fresh->levels = levels_of(fresh->hosts, fresh->rank);
  // A message of an earlier epoch meets no receive of this one.
  fresh->key = hash64(text(fresh->name(), " ", options_.epoch)) | 1;
  return fresh;
}

bool Engine::have_devices(const std::vector<int>& ranks) const {
  std::set<std::string> different;
  for (const int rank : ranks) different.insert(gpu_of_[static_cast<std::size_t>(rank)]);
  return different.size() == ranks.size() && !different.contains("");
}

void Engine::set_place(std::function<std::string()> place) {
  const std::lock_guard lock(place_mutex_);
  place_ = std::move(place);
}

std::string Engine::place() {
  const std::lock_guard lock(place_mutex_);
  return place_ ? place_() : std::string();
}

std::map<std::string, Traffic> Engine::traffic() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, Traffic> out;
  for (const auto& [key, group] : groups_)
    for (const Group::State* part : {group.get(), group->devices.get()})
      if (part) out[part->label] += {part->messages_sent, part->collectives_begun, Bytes(part->bytes_sent)};
  return out;
}

void Engine::copy_alone(Operation& operation) {
  const std::size_t bytes = operation.count * size_of(operation.type);
  if (bytes > 0 && operation.input != operation.output) std::memmove(operation.output, operation.input, bytes);
}

// Collectives when all members share this host, messages when the two ranks do.
bool Engine::shares_memory(const Operation& operation) const {
  if (operation.collective() || !shared_) return operation.group->shared;
  const int peer = operation.group->ranks[static_cast<std::size_t>(operation.peer)];
  return host_of_[static_cast<std::size_t>(peer)] == host_of_[static_cast<std::size_t>(options_.rank)];
}

Handle Engine::submit(OperationPointer operation) {
  Group::State& group = *operation->group;
  operation->submitted = SteadyClock::now();
  operation->deadline = operation->submitted + std::chrono::duration_cast<SteadyClock::duration>(
                                                   std::chrono::duration<double>(std::min(options_.deadline.value, 1e8)));
  const bool to_itself = !operation->collective() && operation->peer == group.rank;
  const bool one = operation->collective() && group.ranks.size() == 1;
  const bool alone = one && !group.on_device;
  if (operation->kind == Kind::send && !to_itself) ++group.messages_sent;
  if (operation->collective() && !one) ++group.collectives_begun;
  std::shared_ptr<const Error> failed;
  bool unreachable = false;
  const bool in_shared_memory = !group.on_device && !to_itself && !alone && shares_memory(*operation);
  {
    const std::lock_guard order(group.mutex);
    if (operation->collective()) operation->sequence = group.next_sequence;
    const std::lock_guard lock(mutex_);
    failed = failure_;
    if (!failed) {
      pending_.insert(operation.get());
      try {
        unreachable = !closed_.empty() && out_of_reach(*operation);
        if (group.on_device) {
          device_->submit(std::static_pointer_cast<DeviceOperation>(operation));
        } else if (in_shared_memory) {
          shared_->submit(operation);
        } else if (!to_itself && !alone) {
          inbox_.push_back(operation);
        }
      } catch (...) {
        pending_.erase(operation.get());
        throw;
      }
    }
    if (operation->collective()) ++group.next_sequence;
  }
  if (failed) {
    operation->finish(failed);
  } else if (alone) {
    copy_alone(*operation);
    complete(operation);
  } else if (to_itself) {
    if (const OperationPointer partner = self_messages_.match(operation)) {
      Operation& sender = operation->kind == Kind::send ? *operation : *partner;
      Operation& receiver = operation->kind == Kind::send ? *partner : *operation;
      std::shared_ptr<const Error> error;
      if (sender.count != receiver.count) {
        error = std::make_shared<const Error>(ErrorCode::internal, text(sender.description(), " met ", receiver.description()), Where{},
                                              "the same size on both sides");
      } else if (sender.count > 0) {
        std::memmove(receiver.output, sender.input, sender.count);
      }
      complete(partner, error);
      complete(operation, error);
    }
  } else if ((!in_shared_memory && !group.on_device) || unreachable) {
    if (operation->kind == Kind::send) start_at_once();
    wake();
  }
  return Handle(std::move(operation));
}

void Engine::complete(const OperationPointer& operation, std::shared_ptr<const Error> error) {
  {
    const std::lock_guard lock(mutex_);
    pending_.erase(operation.get());
    if (closing_ && pending_.empty()) changed_.notify_all();
  }
  operation->finish(std::move(error));
}

}  // namespace tessera::comm
