#include "comm/shared_memory.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <random>

namespace tessera::comm {
namespace {

constexpr char kName[] = "tessera-comm";
// Whoever maps a file that another process makes smaller is ended by SIGBUS.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr std::size_t kHeaderBytes = (sizeof(SegmentHeader) + 4095) / 4096 * 4096;
constexpr std::size_t kMailAt = kHeaderBytes + kChannels * kStaging;

std::size_t bytes_for(int world_size) { return kMailAt + static_cast<std::size_t>(world_size) * sizeof(Mail); }

std::string read_link(const std::string& path) {
  std::array<char, 256> target{};
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size() - 1);
  return length > 0 ? std::string(target.data(), static_cast<std::size_t>(length)) : std::string();
}

}  // namespace

void Doorbell::ring() {
  rings.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&rings), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Doorbell::ring_if_asleep() {
  if (asleep.load(std::memory_order_seq_cst) != 0) ring();
}

void Doorbell::sleep(std::uint32_t seen, std::chrono::microseconds patience) {
  timespec time{};
  time.tv_sec = patience.count() / 1000000;
  time.tv_nsec = patience.count() % 1000000 * 1000;
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&rings), FUTEX_WAIT, seen, &time, nullptr, 0);
}

Segment Segment::create(int world_size) {
  Segment segment;
  segment.bytes_ = bytes_for(world_size);
  segment.file_ = Descriptor(memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!segment.file_ || ftruncate(segment.file_.get(), static_cast<off_t>(segment.bytes_)) != 0 ||
      fcntl(segment.file_.get(), F_ADD_SEALS, kSeals) != 0) {
    throw Error(ErrorCode::resource_exhausted, text("no shared memory for the ranks of this host: ", std::strerror(errno)), {}, {},
                "set shared_memory to false to use the network");
  }
  segment.map();
  std::random_device random;
  segment.header_->nonce = (static_cast<std::uint64_t>(random()) << 32) | random();
  segment.header_->size = segment.bytes_;
  return segment;
}

Segment Segment::open(int process, int descriptor, std::uint64_t nonce, int world_size) {
  const std::string path = text("/proc/", process, "/fd/", descriptor);
  // Process numbers of another namespace may name anything; only our own kind of file is opened.
  if (read_link(path).find(kName) == std::string::npos) return {};
  Segment segment;
  segment.bytes_ = bytes_for(world_size);
  segment.file_ = Descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status {};
  if (!segment.file_ || fstat(segment.file_.get(), &status) != 0 || status.st_size != static_cast<off_t>(segment.bytes_) ||
      fcntl(segment.file_.get(), F_GET_SEALS) != kSeals)
    return {};
  segment.map();
  if (segment.header_->nonce != nonce || segment.header_->size != segment.bytes_) return {};
  // The mapping keeps the file alive.
  segment.file_ = Descriptor();
  return segment;
}

void Segment::map() {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_.get(), 0);
  if (memory == MAP_FAILED) throw_errno("cannot map", "the shared memory of this host's ranks", errno);
  header_ = static_cast<SegmentHeader*>(memory);
}

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(bytes_, other.bytes_);
  std::swap(header_, other.header_);
  return *this;
}

Segment::~Segment() {
  if (header_) munmap(header_, bytes_);
}

std::byte* Segment::staging(std::size_t channel) const { return reinterpret_cast<std::byte*>(header_) + kHeaderBytes + channel * kStaging; }

Mail& Segment::mail_to(int world_rank) const {
  return reinterpret_cast<Mail*>(reinterpret_cast<std::byte*>(header_) + kMailAt)[world_rank];
}

std::size_t Segment::claim(std::uint64_t key) {
  for (std::size_t probe = 0; probe < kChannels; ++probe) {
    const std::size_t channel = (key + probe) % kChannels;
    std::uint64_t free = 0;
    if (header_->channels[channel].key.compare_exchange_strong(free, key) || free == key) return channel;
  }
  throw Error(ErrorCode::resource_exhausted, text("more than ", kChannels, " groups exchange through shared memory in one task"), {}, {},
              "form groups once and keep them");
}

std::size_t Segment::find(std::uint64_t key) const {
  for (std::size_t probe = 0; probe < kChannels; ++probe) {
    const std::size_t channel = (key + probe) % kChannels;
    const std::uint64_t there = header_->channels[channel].key.load(std::memory_order_acquire);
    if (there == key) return channel;
    if (there == 0) break;
  }
  return kChannels;
}

void throw_corrupt_segment(int world_rank, const std::string& what) {
  throw Error(ErrorCode::corrupt, text("the shared memory of rank ", world_rank, " is corrupt: ", what),
              {.file = {}, .rank = world_rank, .block = {}});
}

std::string host_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  if (boot.empty()) return {};
  return boot + " " + read_link("/proc/self/ns/net") + " " + read_link("/proc/self/ns/pid");
}

}  // namespace tessera::comm
