#include "comm/device.hpp"

#include "comm/engine.hpp"

namespace tessera::comm {
namespace {

DeviceOperationPointer device_operation(const std::shared_ptr<Group::State>& group, Kind kind, const void* input, void* output,
                                        std::size_t count, DataType type) {
  check_formed(group);
  const std::shared_ptr<const CudaDevice>& device = group->engine->device();
  const CudaDevice::Current current(*device);
  auto result = std::make_shared<DeviceOperation>(device);
  describe(*result, group, kind, input, output, count, type);
  return result;
}

DeviceHandle submit(const DeviceOperationPointer& operation, void* stream) {
  {
    const CudaDevice::Current current(*operation->device);
    operation->ready.record(stream);
  }
  operation->group->engine->submit(operation);
  if (operation->done()) operation->give();
  return DeviceHandle(operation);
}

DeviceHandle exchange(const DeviceOperationPointer& message, int peer, std::uint32_t tag, void* stream) {
  set_peer(*message, peer, "the other side");
  ensure(peer != message->group->rank, "a rank exchanges with itself on its device, where it can copy");
  message->tag = tag;
  return submit(message, stream);
}

}  // namespace

bool DeviceHandle::done() const { return !operation_ || operation_->done(); }
void DeviceHandle::wait() const {
  if (operation_) operation_->wait();
}
void DeviceHandle::wait_on(void* stream) const {
  if (!operation_) return;
  operation_->given.wait(false);
  if (operation_->done()) return operation_->wait();
  const CudaDevice::Current current(*operation_->device);
  operation_->over.hold(stream);
}
Seconds DeviceHandle::elapsed() const { return operation_ ? operation_->elapsed() : Seconds(0); }

int DeviceGroup::rank() const { return check_formed(state_).rank; }
int DeviceGroup::size() const { return static_cast<int>(check_formed(state_).ranks.size()); }

DeviceHandle DeviceGroup::send(const void* data, std::size_t bytes, int peer, std::uint32_t tag, void* stream) const {
  return exchange(device_operation(state_, Kind::send, data, nullptr, bytes, DataType::u8), peer, tag, stream);
}

DeviceHandle DeviceGroup::receive(void* data, std::size_t bytes, int peer, std::uint32_t tag, void* stream) const {
  return exchange(device_operation(state_, Kind::receive, nullptr, data, bytes, DataType::u8), peer, tag, stream);
}

DeviceHandle DeviceGroup::all_reduce(void* data, std::size_t count, DataType type, Reduction reduction, void* stream) const {
  const auto started = device_operation(state_, Kind::all_reduce, data, data, count, type);
  started->reduction = reduction;
  return submit(started, stream);
}

DeviceHandle DeviceGroup::reduce_scatter(const void* input, void* output, std::size_t count, DataType type, Reduction reduction,
                                         void* stream) const {
  const auto started = device_operation(state_, Kind::reduce_scatter, input, output, count, type);
  started->reduction = reduction;
  return submit(started, stream);
}

DeviceHandle DeviceGroup::all_gather(const void* input, void* output, std::size_t count, DataType type, void* stream) const {
  return submit(device_operation(state_, Kind::all_gather, input, output, count, type), stream);
}

DeviceHandle DeviceGroup::broadcast(void* data, std::size_t count, DataType type, int root, void* stream) const {
  const auto started = device_operation(state_, Kind::broadcast, data, data, count, type);
  set_peer(*started, root, "the root");
  return submit(started, stream);
}

DeviceHandle DeviceGroup::all_to_all(const void* input, void* output, std::size_t count, DataType type, void* stream) const {
  return submit(device_operation(state_, Kind::all_to_all, input, output, count, type), stream);
}

}  // namespace tessera::comm
