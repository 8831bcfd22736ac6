#include "comm/device_engine.hpp"

#include <algorithm>
#include <future>

#include "comm/engine.hpp"

namespace tessera::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How often what is under way is looked at. Streams wait for each other on the device; this is what the host sees late.
constexpr microseconds kLook(100);
// An error of NCCL's is a symptom of a lost rank; within this time the control channel usually says who is lost and why.
constexpr milliseconds kSuspicion(500);
constexpr milliseconds kAbort(5000);

}  // namespace

void DeviceOperation::give() {
  given.store(true);
  given.notify_all();
}

// Operations that follow each other: a communicator of NCCL's and a stream.
struct DeviceEngine::Lane {
  std::shared_ptr<Group::State> group;
  int rank = 0;
  int size = 1;
  int peer = -1;  // group rank, of a lane of messages
  std::uint32_t tag = 0;
  CudaStream stream;

  enum class Stage { strange, acquainted, connecting, connected } stage = Stage::strange;
  Nccl::UniqueId id{};
  Handle id_under_way;
  Nccl::Communicator* communicator = nullptr;
  int error = Nccl::kSuccess;  // of NCCL's, since `broken`
  SteadyClock::time_point broken;

  std::deque<DeviceOperationPointer> waiting;  // to be given
  std::deque<DeviceOperationPointer> given;

  Lane(const Operation& first, const std::shared_ptr<const CudaDevice>& device) : group(first.group), stream(device) {
    const bool collective = first.collective();
    rank = collective ? group->rank : first.kind == Kind::send ? 0 : 1;
    size = collective ? static_cast<int>(group->ranks.size()) : 2;
    if (!collective) peer = first.peer;
    tag = first.tag;
  }
};

DeviceEngine::DeviceEngine(Engine& engine, int cuda_device)
    : engine_(engine), device_(std::make_shared<CudaDevice>(cuda_device)), nccl_(load_nccl()) {
  thread_ = std::thread([this] { run(); });
}

DeviceEngine::~DeviceEngine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DeviceEngine::wake() {
  // A thread that is about to sleep has looked at the engine under this mutex.
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

void DeviceEngine::submit(DeviceOperationPointer operation) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(operation));
  }
  changed_.notify_all();
}

void DeviceEngine::run() {
  bool stop = false;
  while (!stop) {
    bool moved = false;
    if (engine_.has_failed()) end_all();
    try {
      const CudaDevice::Current current(*device_);
      moved = step();
    } catch (...) {
      engine_.fail_with_current_exception();
    }
    std::unique_lock lock(mutex_);
    const auto news = [this] { return stop_ || !inbox_.empty(); };
    if (!moved && !idle()) changed_.wait_for(lock, kLook, news);
    if (idle()) changed_.wait(lock, [&] { return news() || (engine_.has_failed() && !lanes_.empty()); });
    stop = stop_;
  }
  end_all();
}

bool DeviceEngine::idle() {
  return inbox_.empty() && std::all_of(lanes_.begin(), lanes_.end(),
                                       [](const auto& lane) { return lane.second->waiting.empty() && lane.second->given.empty(); });
}

bool DeviceEngine::step() {
  take_inbox();
  bool moved = false;
  for (auto& [key, lane] : lanes_) moved |= step(*lane);
  return moved;
}

// An operation stays until it is in its lane, so that it is ended with the others when that throws.
void DeviceEngine::take_inbox() {
  const std::lock_guard lock(mutex_);
  while (!inbox_.empty()) {
    const DeviceOperationPointer& operation = inbox_.front();
    const Group::State* const group = operation->group.get();
    LaneKey key{group, -1, -1, 0};
    if (operation->kind == Kind::send) key = {group, group->rank, operation->peer, operation->tag};
    if (operation->kind == Kind::receive) key = {group, operation->peer, group->rank, operation->tag};
    auto lane = lanes_.find(key);
    if (lane == lanes_.end()) lane = lanes_.emplace(key, std::make_unique<Lane>(*operation, device_)).first;
    lane->second->waiting.push_back(operation);
    inbox_.erase(inbox_.begin());
  }
}

// True when an operation has gone on.
bool DeviceEngine::step(Lane& lane) {
  bool moved = false;
  while (!lane.given.empty() && lane.given.front()->over.reached()) {
    finish(lane.given.front(), nullptr);
    lane.given.pop_front();
    moved = true;
  }
  if (!lane.given.empty() && busy(lane, *lane.given.front())) return moved;
  while (!lane.waiting.empty() && connected(lane)) {
    const DeviceOperationPointer& operation = lane.waiting.front();
    if (!operation->begun) {
      operation->begun = true;
      operation->ready.hold(lane.stream.get());
      lane.error = start(lane, *operation);
      lane.broken = SteadyClock::now();
    }
    if (busy(lane, *operation)) return moved;
    operation->over.record(lane.stream.get());
    lane.given.push_back(operation);
    operation->give();
    lane.waiting.pop_front();
    moved = true;
  }
  return moved;
}

bool DeviceEngine::connected(Lane& lane) {
  if (lane.stage == Lane::Stage::strange) exchange_id(lane);
  if (lane.stage == Lane::Stage::acquainted && lane.id_under_way.done()) {
    lane.id_under_way.wait();
    Nccl::Config config;
    lane.error = nccl_->init_rank(&lane.communicator, lane.size, lane.id, lane.rank, &config);
    lane.broken = SteadyClock::now();
    lane.stage = Lane::Stage::connecting;
  }
  if (lane.stage == Lane::Stage::connecting && !busy(lane, *lane.waiting.front())) lane.stage = Lane::Stage::connected;
  return lane.stage == Lane::Stage::connected;
}

// The first of the ranks draws what they find each other by, and sends it to the others through the host.
void DeviceEngine::exchange_id(Lane& lane) {
  lane.stage = Lane::Stage::acquainted;
  if (lane.rank == 0) {
    if (const int error = nccl_->get_unique_id(&lane.id); error != Nccl::kSuccess)
      throw Error(ErrorCode::io, text("NCCL cannot begin: it says ", nccl_->get_error_string(error), "; NCCL_DEBUG=WARN shows why"));
  }
  const Group ids(lane.group->ids);
  const std::span bytes = std::as_writable_bytes(std::span(lane.id.bytes));
  lane.id_under_way = lane.peer < 0    ? ids.broadcast(bytes.data(), bytes.size(), DataType::u8, 0)
                      : lane.rank == 0 ? ids.send(bytes, lane.peer, lane.tag)
                                       : ids.receive(bytes, lane.peer, lane.tag);
}

// Whether NCCL is still at its last call for this lane. Its errors count when nobody has said within kSuspicion what they come from.
bool DeviceEngine::busy(Lane& lane, const Operation& operation) {
  if (lane.error == Nccl::kSuccess || lane.error == Nccl::kInProgress) {
    if (lane.communicator == nullptr) return false;
    const int call = nccl_->get_async_error(lane.communicator, &lane.error);
    if (call != Nccl::kSuccess) lane.error = call;
    lane.broken = SteadyClock::now();
  }
  if (lane.error == Nccl::kSuccess) return false;
  if (lane.error == Nccl::kInProgress || SteadyClock::now() - lane.broken < kSuspicion) return true;
  const bool lost = lane.error == Nccl::kRemoteError || lane.error == Nccl::kSystemError;
  const int rank = lost && lane.peer >= 0 ? lane.group->ranks[static_cast<std::size_t>(lane.peer)] : -1;
  throw Error(lost ? ErrorCode::peer_lost : ErrorCode::io,
              text(operation.description(), " failed: NCCL says ", nccl_->get_error_string(lane.error), "; NCCL_DEBUG=WARN shows why"),
              {.file = {}, .rank = rank, .block = {}});
}

int DeviceEngine::start(Lane& lane, const DeviceOperation& op) {
  const int type = Nccl::value_of(op.type);
  void* const stream = lane.stream.get();
  const int other = 1 - lane.rank;
  switch (op.kind) {
    case Kind::send: return nccl_->send(op.input, op.count, type, other, lane.communicator, stream);
    case Kind::receive: return nccl_->receive(op.output, op.count, type, other, lane.communicator, stream);
    case Kind::all_reduce:
      return nccl_->all_reduce(op.input, op.output, op.count, type, Nccl::value_of(op.reduction), lane.communicator, stream);
    case Kind::reduce_scatter:
      return nccl_->reduce_scatter(op.input, op.output, op.count, type, Nccl::value_of(op.reduction), lane.communicator, stream);
    case Kind::all_gather: return nccl_->all_gather(op.input, op.output, op.count, type, lane.communicator, stream);
    case Kind::broadcast: return nccl_->broadcast(op.input, op.output, op.count, type, op.peer, lane.communicator, stream);
    case Kind::all_to_all: return exchange_all(lane, op);
    case Kind::barrier: break;
  }
  throw Error(ErrorCode::internal, text(op.description(), " is none of a device"));
}

int DeviceEngine::exchange_all(Lane& lane, const DeviceOperation& op) {
  const std::size_t bytes = op.count * size_of(op.type);
  const int type = Nccl::value_of(DataType::u8);
  int error = nccl_->group_start();
  const auto note = [&](int result) {
    if (error == Nccl::kSuccess || error == Nccl::kInProgress) error = result;
  };
  for (int rank = 0; rank < lane.size; ++rank) {
    const std::size_t begin = static_cast<std::size_t>(rank) * bytes;
    note(nccl_->send(op.input + begin, bytes, type, rank, lane.communicator, lane.stream.get()));
    note(nccl_->receive(op.output + begin, bytes, type, rank, lane.communicator, lane.stream.get()));
  }
  note(nccl_->group_end());
  return error;
}

// Each in a thread of its own, since one that frees memory waits for what all others have on the device.
void DeviceEngine::abort_all() {
  std::vector<std::future<void>> aborted;
  for (auto& [key, lane] : lanes_) {
    Nccl::Communicator* const communicator = std::exchange(lane->communicator, nullptr);
    if (communicator == nullptr) continue;
    std::packaged_task<void()> abort([communicator, device = device_, nccl = nccl_] { nccl->abort(communicator); });
    aborted.push_back(abort.get_future());
    std::thread(std::move(abort)).detach();
  }
  const auto give_up = SteadyClock::now() + kAbort;
  for (const std::future<void>& one : aborted) one.wait_until(give_up);
}

void DeviceEngine::end_all() noexcept {
  try {
    abort_all();
  } catch (...) {
    // No thread to abort it in; it ends with the process.
  }
  const std::shared_ptr<const Error> reason = engine_.failure();
  for (auto& [key, lane] : lanes_) {
    try {
      lane->id_under_way.wait();
    } catch (...) {
      // It was ended for the same reason.
    }
    for (const DeviceOperationPointer& operation : lane->given) finish(operation, reason);
    for (const DeviceOperationPointer& operation : lane->waiting) finish(operation, reason);
  }
  lanes_.clear();
  std::vector<DeviceOperationPointer> never_begun;
  {
    const std::lock_guard lock(mutex_);
    never_begun.swap(inbox_);
  }
  for (const DeviceOperationPointer& operation : never_begun) finish(operation, reason);
}

void DeviceEngine::finish(const DeviceOperationPointer& operation, std::shared_ptr<const Error> error) {
  engine_.complete(operation, std::move(error));
  operation->give();
}

}  // namespace tessera::comm
