#include "comm/cuda.hpp"

#include <array>
#include <string_view>

#include "base/dynamic_library.hpp"
#include "base/error.hpp"
#include "base/hex.hpp"

namespace tessera::comm {
namespace {

// Of cuda.h.
constexpr int kSuccess = 0;
constexpr int kNoDevice = 100;
constexpr int kNotReady = 600;
constexpr unsigned kBesideTheDefaultStream = 1;
constexpr unsigned kWithoutTimes = 2;
// The smaller the sooner; 0 is the one of other streams.
constexpr int kPriority = -1;

[[noreturn]] void throw_no_device(const std::string& what) {
  throw Error(ErrorCode::not_found, what, {}, {}, "see what nvidia-smi shows and CUDA_VISIBLE_DEVICES hides, or train on the CPU");
}

}  // namespace

struct CudaDevice::Driver {
  int (*init)(unsigned) = nullptr;
  int (*get_error_string)(int, const char**) = nullptr;
  int (*device_count)(int*) = nullptr;
  int (*get_device)(int*, int) = nullptr;
  int (*get_uuid)(char*, int) = nullptr;
  int (*retain_context)(void**, int) = nullptr;
  int (*release_context)(int) = nullptr;
  int (*push_context)(void*) = nullptr;
  int (*pop_context)(void**) = nullptr;
  int (*create_stream)(void**, unsigned, int) = nullptr;
  int (*destroy_stream)(void*) = nullptr;
  int (*create_event)(void**, unsigned) = nullptr;
  int (*destroy_event)(void*) = nullptr;
  int (*record_event)(void*, void*) = nullptr;
  int (*query_event)(void*) = nullptr;
  int (*wait_event)(void*, void*, unsigned) = nullptr;
};

CudaDevice::CudaDevice(int ordinal) : driver_(std::make_unique<Driver>()), ordinal_(ordinal) {
  std::string why;
  const DynamicLibrary library("libcuda.so.1", why);
  if (!library) throw_no_device(text("this host has no CUDA device: NVIDIA's driver is not there (", why, ")"));
  const auto find = [&](const char* name, auto*& function) {
    if (!library.find(name, function)) throw_no_device(text("NVIDIA's driver of this host is too old: it has no ", name));
  };
  find("cuInit", driver_->init);
  find("cuGetErrorString", driver_->get_error_string);
  find("cuDeviceGetCount", driver_->device_count);
  find("cuDeviceGet", driver_->get_device);
  find("cuDeviceGetUuid_v2", driver_->get_uuid);
  find("cuDevicePrimaryCtxRetain", driver_->retain_context);
  find("cuDevicePrimaryCtxRelease_v2", driver_->release_context);
  find("cuCtxPushCurrent_v2", driver_->push_context);
  find("cuCtxPopCurrent_v2", driver_->pop_context);
  find("cuStreamCreateWithPriority", driver_->create_stream);
  find("cuStreamDestroy_v2", driver_->destroy_stream);
  find("cuEventCreate", driver_->create_event);
  find("cuEventDestroy_v2", driver_->destroy_event);
  find("cuEventRecord", driver_->record_event);
  find("cuEventQuery", driver_->query_event);
  find("cuStreamWaitEvent", driver_->wait_event);
  const int begun = driver_->init(0);
  int devices = 0;
  if (begun != kNoDevice) {
    check(begun, "start");
    check(driver_->device_count(&devices), "count its devices");
  }
  if (devices == 0) throw_no_device("this host has no CUDA device: the driver knows none");
  if (ordinal >= devices) throw_no_device(text("this host has no CUDA device ", ordinal, ": the driver knows ", devices));
  check(driver_->get_device(&device_, ordinal), "find the device");
  check(driver_->retain_context(&context_, device_), "open the device");
}

CudaDevice::~CudaDevice() { driver_->release_context(device_); }

void CudaDevice::check(int result, const char* what) const {
  if (result == kSuccess) return;
  const char* why = nullptr;
  driver_->get_error_string(result, &why);
  throw Error(ErrorCode::io, text("CUDA device ", ordinal_, " cannot ", what, ": ", why ? why : "unknown error", " (", result, ")"), {}, {},
              "what the device computed before may have failed: see the rank's log, and the kernel's for NVRM");
}

std::string CudaDevice::identity() const {
  std::array<char, 16> uuid{};
  check(driver_->get_uuid(uuid.data(), device_), "say who it is");
  return to_hex(std::string_view(uuid.data(), uuid.size()));
}

CudaDevice::Current::Current(const CudaDevice& device) : device_(device) {
  device_.check(device_.driver_->push_context(device_.context_), "become the thread's");
}
CudaDevice::Current::~Current() {
  void* context = nullptr;
  device_.driver_->pop_context(&context);
}

CudaStream::CudaStream(std::shared_ptr<const CudaDevice> device) : device_(std::move(device)) {
  device_->check(device_->driver_->create_stream(&stream_, kBesideTheDefaultStream, kPriority), "make a stream");
}
CudaStream::~CudaStream() { device_->driver_->destroy_stream(stream_); }

CudaEvent::CudaEvent(std::shared_ptr<const CudaDevice> device) : device_(std::move(device)) {
  device_->check(device_->driver_->create_event(&event_, kWithoutTimes), "make an event");
}
CudaEvent::~CudaEvent() { device_->driver_->destroy_event(event_); }
void CudaEvent::record(void* stream) { device_->check(device_->driver_->record_event(event_, stream), "record an event"); }
void CudaEvent::hold(void* stream) const { device_->check(device_->driver_->wait_event(stream, event_, 0), "wait for an event"); }
bool CudaEvent::reached() const {
  const int result = device_->driver_->query_event(event_);
  if (result != kNotReady) device_->check(result, "go on");
  return result == kSuccess;
}

}  // namespace tessera::comm
