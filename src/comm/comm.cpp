#include "comm/comm.hpp"

#include "comm/device.hpp"
#include "comm/engine.hpp"
#include "comm/operation.hpp"

namespace tessera::comm {

std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::f32: return 4;
    case DataType::f64: return 8;
    case DataType::bf16: return 2;
    case DataType::i32: return 4;
    case DataType::i64: return 8;
    case DataType::u8: return 1;
  }
  throw Error(ErrorCode::internal, text("there is no data type ", static_cast<int>(type)));
}

bool Handle::done() const { return !state_ || state_->done(); }
void Handle::wait() const {
  if (state_) state_->wait();
}
Seconds Handle::elapsed() const { return state_ ? state_->elapsed() : Seconds(0); }

namespace {

OperationPointer operation(const std::shared_ptr<Group::State>& group, Kind kind, const void* input, void* output, std::size_t count,
                           DataType type) {
  check_formed(group);
  auto result = std::make_shared<Operation>();
  describe(*result, group, kind, input, output, count, type);
  return result;
}

Handle submit(OperationPointer operation) {
  Engine& engine = *operation->group->engine;
  return engine.submit(std::move(operation));
}

}  // namespace

int Group::rank() const { return check_formed(state_).rank; }
int Group::size() const { return static_cast<int>(check_formed(state_).ranks.size()); }
DeviceGroup Group::device() const { return DeviceGroup(check_formed(state_).devices); }
const std::vector<int>& Group::ranks() const { return check_formed(state_).ranks; }

Handle Group::send(std::span<const std::byte> data, int peer, std::uint32_t tag) const {
  auto started = operation(state_, Kind::send, data.data(), nullptr, data.size(), DataType::u8);
  set_peer(*started, peer, "the receiver");
  started->tag = tag;
  return submit(std::move(started));
}

Handle Group::receive(std::span<std::byte> data, int peer, std::uint32_t tag) const {
  auto started = operation(state_, Kind::receive, nullptr, data.data(), data.size(), DataType::u8);
  set_peer(*started, peer, "the sender");
  started->tag = tag;
  return submit(std::move(started));
}

Handle Group::all_reduce(void* data, std::size_t count, DataType type, Reduction reduction) const {
  auto started = operation(state_, Kind::all_reduce, data, data, count, type);
  started->reduction = reduction;
  return submit(std::move(started));
}

Handle Group::reduce_scatter(const void* input, void* output, std::size_t count, DataType type, Reduction reduction) const {
  auto started = operation(state_, Kind::reduce_scatter, input, output, count, type);
  started->reduction = reduction;
  return submit(std::move(started));
}

Handle Group::all_gather(const void* input, void* output, std::size_t count, DataType type) const {
  return submit(operation(state_, Kind::all_gather, input, output, count, type));
}

Handle Group::broadcast(void* data, std::size_t count, DataType type, int root) const {
  auto started = operation(state_, Kind::broadcast, data, data, count, type);
  set_peer(*started, root, "the root");
  return submit(std::move(started));
}

Handle Group::all_to_all(const void* input, void* output, std::size_t count, DataType type) const {
  return submit(operation(state_, Kind::all_to_all, input, output, count, type));
}

Handle Group::barrier() const { return submit(operation(state_, Kind::barrier, nullptr, nullptr, 0, DataType::u8)); }

}  // namespace tessera::comm
