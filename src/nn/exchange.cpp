#include "nn/exchange.hpp"

#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <chrono>
#include <span>

#include "base/error.hpp"

namespace tessera::nn {
namespace {

at::Tensor on_host(const at::Tensor& tensor) { return tensor.is_cpu() ? tensor : tensor.cpu(); }

// Where `comm` may write what comes for `target`.
at::Tensor room_for(const at::Tensor& target) {
  return target.is_cpu() ? target : at::empty_like(target, target.options().device(at::kCPU));
}

std::size_t count_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

// Empty where the tensor goes through the host.
comm::DeviceGroup devices_for(const comm::Group& group, const at::Tensor& tensor) {
  return tensor.is_cuda() ? group.device() : comm::DeviceGroup();
}

void* stream_of(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle(); }

}  // namespace

Exchange::Exchange(comm::Handle handle, at::Tensor sent, at::Tensor received, const at::Tensor& target) : handle_(std::move(handle)) {
  if (!target.is_cpu()) staged_ = std::make_shared<Staged>(std::move(sent), std::move(received), target);
}

bool Exchange::done() const {
  if (device_) return on_devices_.done();
  if (work_.valid()) return work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (!handle_.done()) return false;
  put_in_place();
  return true;
}

void Exchange::wait() const {
  if (device_) return on_devices_.wait_on(stream_of(*device_));
  if (work_.valid()) return static_cast<void>(work_.get());
  handle_.wait();
  put_in_place();
}

Seconds Exchange::elapsed() const {
  if (work_.valid()) return work_.get();
  if (!device_) return handle_.elapsed();
  on_devices_.wait();
  return on_devices_.elapsed();
}

void Exchange::put_in_place() const {
  if (!staged_ || !staged_->target.defined()) return;
  if (staged_->received.defined()) staged_->target.copy_(staged_->received);
  *staged_ = {};
}

comm::DataType data_type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return comm::DataType::f32;
    case at::kBFloat16: return comm::DataType::bf16;
    case at::kLong: return comm::DataType::i64;
    default: throw Error(ErrorCode::internal, text("tensors of ", c10::toString(tensor.scalar_type()), " are not exchanged"));
  }
}

Exchange send(const comm::Group& group, const at::Tensor& tensor, int peer, std::uint32_t tag) {
  if (const auto devices = devices_for(group, tensor))
    return {devices.send(tensor.data_ptr(), tensor.nbytes(), peer, tag, stream_of(tensor.device())), tensor.device()};
  at::Tensor own = on_host(tensor);
  return {group.send(bytes_of(own), peer, tag), own, {}, tensor};
}

Exchange receive(const comm::Group& group, const at::Tensor& tensor, int peer, std::uint32_t tag) {
  if (const auto devices = devices_for(group, tensor))
    return {devices.receive(tensor.data_ptr(), tensor.nbytes(), peer, tag, stream_of(tensor.device())), tensor.device()};
  at::Tensor room = room_for(tensor);
  return {group.receive(bytes_of(room), peer, tag), {}, room, tensor};
}

Exchange all_reduce(const comm::Group& group, const at::Tensor& tensor, comm::Reduction reduction) {
  const comm::DataType type = data_type_of(tensor);
  if (const auto devices = devices_for(group, tensor))
    return {devices.all_reduce(tensor.data_ptr(), count_of(tensor), type, reduction, stream_of(tensor.device())), tensor.device()};
  at::Tensor own = on_host(tensor);
  return {group.all_reduce(own.data_ptr(), count_of(own), type, reduction), {}, own, tensor};
}

Exchange reduce_scatter(const comm::Group& group, const at::Tensor& input, const at::Tensor& output) {
  const comm::DataType type = data_type_of(input);
  if (const auto devices = devices_for(group, input))
    return {devices.reduce_scatter(input.data_ptr(), output.data_ptr(), count_of(output), type, comm::Reduction::sum,
                                   stream_of(input.device())),
            input.device()};
  at::Tensor own = on_host(input);
  at::Tensor room = room_for(output);
  return {group.reduce_scatter(own.data_ptr(), room.data_ptr(), count_of(room), type), own, room, output};
}

Exchange all_gather(const comm::Group& group, const at::Tensor& input, const at::Tensor& output) {
  const comm::DataType type = data_type_of(input);
  if (const auto devices = devices_for(group, input))
    return {devices.all_gather(input.data_ptr(), output.data_ptr(), count_of(input), type, stream_of(input.device())), input.device()};
  at::Tensor own = on_host(input);
  at::Tensor room = room_for(output);
  return {group.all_gather(own.data_ptr(), room.data_ptr(), count_of(own), type), own, room, output};
}

Exchange all_to_all(const comm::Group& group, const at::Tensor& input, const at::Tensor& output) {
  const comm::DataType type = data_type_of(input);
  const std::size_t part = count_of(input) / static_cast<std::size_t>(group.size());
  if (const auto devices = devices_for(group, input))
    return {devices.all_to_all(input.data_ptr(), output.data_ptr(), part, type, stream_of(input.device())), input.device()};
  at::Tensor own = on_host(input);
  at::Tensor room = room_for(output);
  return {group.all_to_all(own.data_ptr(), room.data_ptr(), part, type), own, room, output};
}

}  // namespace tessera::nn
