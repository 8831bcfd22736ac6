#include "train/far_device_helper.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace tessera::train {
namespace {

constexpr c10::DeviceType kKind = c10::DeviceType::PrivateUse1;
const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// No address of a process.
constexpr std::uintptr_t kFar = std::uintptr_t{1} << 62;

void* far(void* memory) { return memory == nullptr ? nullptr : reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory) | kFar); }
void* near(const void* memory) { return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory) & ~kFar); }

class FarMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* const memory = bytes == 0 ? nullptr : std::malloc(bytes);
    return {far(memory), memory, &std::free, c10::Device(kKind, 0)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(near(to), near(from), bytes); }
};

FarMemory memory;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &memory)

// One device with one stream, in whose order everything runs.
class FarGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kKind; }
  c10::Device exchangeDevice(c10::Device) const override { return {kKind, 0}; }
  c10::Device getDevice() const override { return {kKind, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

const c10::impl::DeviceGuardImplRegistrar registered(kKind, new FarGuard);

// Of the same memory; what is on the host stays.
at::Tensor near(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  const auto options = tensor.options().device(at::kCPU);
  return tensor.numel() == 0 ? at::empty(tensor.sizes(), options)
                             : at::from_blob(near(tensor.data_ptr()), tensor.sizes(), tensor.strides(), options);
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>, std::optional<at::Device>,
                 std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, kKeys, c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, kKeys, c10::dtype_or_default(type));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  near(to).copy_(near(from));
  return to;
}

// What was in it is lost.
const at::Tensor& set_size(const at::Tensor& tensor, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  if (storage.nbytes() >= tensor.nbytes()) return tensor;
  storage.set_data_ptr_noswap(memory.allocate(tensor.nbytes()));
  storage.set_nbytes(tensor.nbytes());
  return tensor;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) set_size(to, from.sizes(), {});
  return copy_from(from, to, false);
}

at::Tensor as_strided(const at::Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
}

void on_copies(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("resize_", TORCH_FN(set_size));
  library.impl("as_strided", TORCH_FN(as_strided));
  library.impl("unfold", TORCH_FN(at::native::unfold));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_copies>()); }

}  // namespace

at::Device far_device() { return {kKind, 0}; }

}  // namespace tessera::train
