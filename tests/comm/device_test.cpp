// Device groups: what a rank says where there is no GPU or no NCCL, the real NCCL where its wheel is, and exchanges on the GPUs that are
// here.
#include "comm/device.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unwind.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/dynamic_library.hpp"
#include "base/folders.hpp"
#include "base/temporary_folder.hpp"
#include "comm/cuda.hpp"
#include "comm/nccl.hpp"
#include "comm/processes.hpp"

namespace tessera::comm {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Ranks;
using ::testing::StartsWith;

// In a process of its own, since libraries stay loaded.
std::string in_a_process(const std::function<std::string()>& body) {
  return Ranks(1, [&](int) { return body(); }).wait().at(0).text;
}

// A library of this process that is not NCCL.
fs::path other_library() {
  Dl_info info{};
  ensure(::dladdr(reinterpret_cast<void*>(&_Unwind_Backtrace), &info) != 0, "the unwinder lies in no library");
  return info.dli_fname;
}

std::string loaded_from(const fs::path& library) {
  return in_a_process([&]() -> std::string {
    ::setenv(kNcclVariable, library.c_str(), 1);
    return load_nccl()->path;
  });
}

TEST(Nccl, AFileThatIsNotThereIsNamed) {
  EXPECT_THAT(
      loaded_from("/nowhere/libnccl.so.2"),
      AllOf(StartsWith("error not_found"), HasSubstr("what TESSERA_NCCL names: /nowhere/libnccl.so.2: cannot open shared object file"),
            HasSubstr("NCCL 2.18 or later"), HasSubstr("pip install nvidia-nccl-cu12")));
}

TEST(Nccl, AFileThatIsNoLibraryIsRefused) {
  const TemporaryFolder folder;
  const fs::path file = folder.path() / "libnccl.so.2";
  std::ofstream(file) << "This is text.\n";
  EXPECT_THAT(loaded_from(file), AllOf(StartsWith("error not_found"), HasSubstr(file.string())));
}

TEST(Nccl, AnotherLibraryIsRefused) {
  EXPECT_THAT(loaded_from(other_library()),
              AllOf(StartsWith("error invalid_config"),
                    HasSubstr(text(other_library().string(), " is not NCCL, or too old: it has no ncclGetVersion"))));
}

// What lies where the wheels of torch and NCCL do goes before what the loader finds.
TEST(Nccl, TheOneBesideTorchIsTaken) {
  const TemporaryFolder folder;
  const fs::path torch = folder.path() / "torch" / "lib" / "libtorch_cpu.so";
  const fs::path nccl = folder.path() / "nvidia" / "nccl" / "lib" / "libnccl.so.2";
  for (const fs::path& file : {torch, nccl}) {
    fs::create_directories(file.parent_path());
    fs::copy_file(other_library(), file);
  }
  const std::string said = in_a_process([&]() -> std::string {
    ::unsetenv(kNcclVariable);
    std::string why;
    const DynamicLibrary loaded(torch.string(), why);
    return loaded ? load_nccl()->path : why;
  });
  EXPECT_THAT(said, AllOf(StartsWith("error invalid_config"), HasSubstr(nccl.string() + " is not NCCL")));
}

// NCCL's own wheel is 350 MB and no part of the development requirements.
fs::path real_nccl() {
  if (const char* const named = std::getenv(kNcclVariable)) return named;
  std::error_code ignored;
  for (const auto& python : fs::directory_iterator(fs::path(kSourceFolder) / ".venv" / "lib", ignored)) {
    const fs::path file = python.path() / "site-packages" / "nvidia" / "nccl" / "lib" / "libnccl.so.2";
    if (fs::exists(file)) return file;
  }
  return "libnccl.so.2";
}

TEST(Nccl, TheRealOneIsLoadedAndAnswers) {
  const std::string said = in_a_process([]() -> std::string {
    ::setenv(kNcclVariable, real_nccl().c_str(), 1);
    const auto nccl = load_nccl();
    std::array<Nccl::UniqueId, 2> ids{};
    for (Nccl::UniqueId& id : ids)
      if (nccl->get_unique_id(&id) != Nccl::kSuccess) return "no id";
    return text(ids[0].bytes != ids[1].bytes ? "NCCL" : "NCCL with equal ids", " of ", nccl->version / 10000, ": ",
                nccl->get_error_string(Nccl::kSuccess), ", ", nccl->get_error_string(Nccl::kSystemError), ", ",
                nccl->get_error_string(Nccl::kRemoteError), ", ", nccl->get_error_string(Nccl::kInProgress));
  });
  if (said.starts_with("error not_found")) GTEST_SKIP() << "NCCL is not installed: " << said;
  EXPECT_THAT(said,
              AllOf(StartsWith("NCCL of 2: no error, unhandled system error"), HasSubstr("remote process"), HasSubstr("in progress")));
}

// In a process of its own: one that has opened a device must not be forked.
int count_devices() {
  const std::string count = in_a_process([]() -> std::string {
    for (int ordinal = 0;; ++ordinal) try {
        const CudaDevice device(ordinal);
      } catch (const Error&) {
        return text(ordinal);
      }
  });
  return std::stoi(count);
}

TEST(Devices, AHostWithoutOneSaysSo) {
  if (count_devices() > 0) GTEST_SKIP() << "this host has a CUDA device";
  Options options;
  options.cuda_device = 0;
  try {
    Communicator::connect(options);
    FAIL() << "connected";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("this host has no CUDA device"), HasSubstr("nvidia-smi")));
  }
}

TEST(Devices, AGroupWithoutDevicesOffersNone) {
  const std::string place = free_loopback_place();
  Ranks ranks(2, [&](int rank) -> std::string {
    const auto communicator = Communicator::connect(testing::options(rank, 2, place));
    const Group world = communicator->world();
    const DeviceGroup none = world.device();
    float one = 1;
    world.all_reduce(&one, 1, DataType::f32).wait();
    return none ? "a device" : text("none, ", one);
  });
  for (const auto& outcome : ranks.wait()) EXPECT_EQ(outcome.text, "none, 2");
}

// Memory of a device, and copies to and from it that the host waits for.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t count) : count_(count) {
    std::string why;
    const DynamicLibrary driver("libcuda.so.1", why);
    ensure(driver.find("cuMemAlloc_v2", allocate_) && driver.find("cuMemcpyHtoD_v2", to_device_) &&
               driver.find("cuMemcpyDtoH_v2", to_host_) && driver.find("cuMemFree_v2", free_),
           "the driver has no memory");
    ensure(allocate_(&address_, count * sizeof(float)) == 0, "no memory of the device");
  }
  ~DeviceMemory() { free_(address_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  float* at(std::size_t element = 0) const { return reinterpret_cast<float*>(address_) + element; }
  void set(const std::vector<float>& values) { ensure(to_device_(address_, values.data(), values.size() * sizeof(float)) == 0, "no copy"); }
  std::vector<float> get() const {
    std::vector<float> values(count_);
    ensure(to_host_(values.data(), address_, count_ * sizeof(float)) == 0, "no copy");
    return values;
  }

 private:
  std::size_t count_;
  std::uintptr_t address_ = 0;
  int (*allocate_)(std::uintptr_t*, std::size_t) = nullptr;
  int (*to_device_)(std::uintptr_t, const void*, std::size_t) = nullptr;
  int (*to_host_)(void*, std::uintptr_t, std::size_t) = nullptr;
  int (*free_)(std::uintptr_t) = nullptr;
};

// Every operation of a rank on memory in which element i of rank r is 10 r + i; "ok", or what came out.
std::string exchange_on_devices(Communicator& communicator, const std::shared_ptr<const CudaDevice>& device) {
  const Group world = communicator.world();
  const DeviceGroup devices = world.device();
  if (!devices) return "no device group";
  const int size = devices.size();
  const int rank = devices.rank();
  const auto count = static_cast<std::size_t>(size);
  const CudaDevice::Current current(*device);
  CudaStream stream(device);
  DeviceMemory input(count);
  DeviceMemory output(count);
  std::string wrong;
  const auto expect = [&](const char* what, const DeviceHandle& handle, const DeviceMemory& memory,
                          const std::function<float(int)>& element) {
    handle.wait_on(stream.get());
    handle.wait();
    for (int i = 0; i < size; ++i)
      if (const float got = memory.get()[static_cast<std::size_t>(i)]; got != element(i))
        wrong += text(what, "[", i, "] is ", got, " and not ", element(i), "; ");
  };
  std::vector<float> own(count);
  for (std::size_t i = 0; i < count; ++i) own[i] = static_cast<float>(10 * rank + static_cast<int>(i));
  const auto reset = [&] {
    input.set(own);
    output.set(std::vector<float>(count, -1));
  };
  const float sum_of_ranks = static_cast<float>(10 * size * (size - 1) / 2);
  reset();
  expect("all_reduce", devices.all_reduce(input.at(), count, DataType::f32, Reduction::sum, stream.get()), input,
         [&](int i) { return sum_of_ranks + static_cast<float>(i * size); });
  reset();
  expect("reduce_scatter", devices.reduce_scatter(input.at(), output.at(), 1, DataType::f32, Reduction::max, stream.get()), output,
         [&](int i) { return i == 0 ? static_cast<float>(10 * (size - 1) + rank) : -1.0F; });
  reset();
  expect("all_gather", devices.all_gather(input.at(), output.at(), 1, DataType::f32, stream.get()), output,
         [](int i) { return static_cast<float>(10 * i); });
  reset();
  expect("broadcast", devices.broadcast(input.at(), count, DataType::f32, size - 1, stream.get()), input,
         [&](int i) { return static_cast<float>(10 * (size - 1) + i); });
  reset();
  expect("all_to_all", devices.all_to_all(input.at(), output.at(), 1, DataType::f32, stream.get()), output,
         [&](int i) { return static_cast<float>(10 * i + rank); });
  if (size > 1) {
    // Both first send, with one tag and another; the receives come in the other order.
    reset();
    const int next = (rank + 1) % size;
    const int before = (rank + size - 1) % size;
    const DeviceHandle first = devices.send(input.at(0), sizeof(float), next, 1, stream.get());
    const DeviceHandle second = devices.send(input.at(1), sizeof(float), next, 2, stream.get());
    const DeviceHandle of_second = devices.receive(output.at(1), sizeof(float), before, 2, stream.get());
    devices.receive(output.at(0), sizeof(float), before, 1, stream.get()).wait();
    of_second.wait();
    first.wait();
    expect("messages", second, output, [&](int i) { return i < 2 ? static_cast<float>(10 * before + i) : -1.0F; });
  }
  const Traffic traffic = communicator.traffic().at("world");
  if (traffic.collectives != (size > 1 ? 5 : 0) || traffic.messages != (size > 1 ? 2 : 0))
    wrong += text(traffic.collectives, " collectives and ", traffic.messages, " messages were counted");
  return wrong.empty() ? "ok" : wrong;
}

void expect_exchanges(int count) {
  const std::string place = free_loopback_place();
  Ranks ranks(count, [&](int rank) {
    Options options = testing::options(rank, count, place);
    options.cuda_device = rank;
    ::setenv(kNcclVariable, real_nccl().c_str(), 1);
    const auto communicator = Communicator::connect(options);
    return exchange_on_devices(*communicator, std::make_shared<CudaDevice>(rank));
  });
  for (const auto& outcome : ranks.wait()) EXPECT_EQ(outcome.text, "ok") << "signal " << outcome.signal;
}

TEST(Devices, OneRankExchangesWithItself) {
  if (count_devices() < 1) GTEST_SKIP() << "this host has no CUDA device";
  expect_exchanges(1);
}

TEST(Devices, RanksExchange) {
  const int count = count_devices();
  if (count < 2) GTEST_SKIP() << "this host has not two CUDA devices, but " << count;
  expect_exchanges(count);
}

// NCCL itself would wait for ever.
TEST(Devices, AKilledRankIsNamedByTheOthers) {
  if (count_devices() < 2) GTEST_SKIP() << "this host has not two CUDA devices";
  const std::string place = free_loopback_place();
  Ranks ranks(2, [&](int rank) -> std::string {
    Options options = testing::options(rank, 2, place, 600);
    options.cuda_device = rank;
    ::setenv(kNcclVariable, real_nccl().c_str(), 1);
    const auto communicator = Communicator::connect(options);
    const auto device = std::make_shared<CudaDevice>(rank);
    const CudaDevice::Current current(*device);
    DeviceMemory memory(1 << 20);
    const DeviceGroup devices = communicator->world().device();
    devices.all_reduce(memory.at(), 1 << 20, DataType::f32, Reduction::sum, nullptr).wait();
    testing::report("running");
    while (true) devices.all_reduce(memory.at(), 1 << 20, DataType::f32, Reduction::sum, nullptr).wait();
  });
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(ranks.wait_for_line(rank, "running"));
  ranks.signal(1, SIGKILL);
  EXPECT_THAT(ranks.wait()[0].text, AllOf(StartsWith("error peer_lost"), HasSubstr("rank 1 is lost")));
}

}  // namespace
}  // namespace tessera::comm
