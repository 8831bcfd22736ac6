// Internal. The memory that ranks of one host exchange through: each rank owns one segment and maps the others'. A segment
// is an anonymous file, so it vanishes with the last process that has it, however that process ends.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "comm/card.hpp"
#include "comm/frames.hpp"

namespace tessera::comm {

inline constexpr std::size_t kChannels = 1024;             // groups per rank
inline constexpr std::size_t kBlock = 1 << 20;             // bytes that a rank shows to the others at once
inline constexpr std::size_t kHalf = kBlock + kBlock / 2;  // a block and the reduced part of it
inline constexpr std::size_t kStaging = 2 * kHalf;         // even and odd blocks

// Messages between two ranks. A small one lies in its slot; a larger one is announced there and goes in pieces, one message
// at a time, the one that the receiver wants; so a message that nobody receives holds up no other.
inline constexpr std::size_t kSlots = 64;
inline constexpr std::size_t kInSlot = 4 << 10;
inline constexpr std::size_t kPieces = 16;
inline constexpr std::size_t kPiece = 32 << 10;

// Where a rank sleeps. `rings` counts up at each wake-up; `asleep` says that one is wanted.
struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> asleep;

  void ring();
  // Wakes the owner if it sleeps. What was published before this call is visible to it.
  void ring_if_asleep();
  // Sleeps until rung, at most that long; `seen` was read from rings before the last look at the world.
  void sleep(std::uint32_t seen, std::chrono::microseconds patience);
};

// A rank's place in one group.
struct alignas(64) ChannelHeader {
  std::atomic<std::uint64_t> key;                   // of the group; 0: free
  alignas(64) std::atomic<std::uint64_t> progress;  // 4 x block + phase; only grows
  alignas(64) Card cards[2];                        // of even and odd collectives
};

struct Slot {
  std::uint64_t group;  // key
  std::uint64_t bytes;
  std::uint32_t tag;
  std::uint32_t in_slot;
  alignas(64) std::byte data[kInSlot];
};

// What one rank sends to another; lies in the sender's segment. Message i is announced in slot i; all counters only grow.
struct alignas(4096) Mail {
  alignas(64) std::atomic<std::uint64_t> announced;  // messages; by the sender
  std::atomic<std::uint64_t> filled;                 // pieces; by the sender
  std::atomic<std::uint64_t> serving;                // 1 + the message that comes in pieces; by the sender
  std::uint64_t begin;                               // its first piece
  alignas(64) std::atomic<std::uint64_t> read;       // announcements; by the receiver
  std::atomic<std::uint64_t> wanted;                 // 1 + the message that shall come; by the receiver
  std::atomic<std::uint64_t> emptied;                // pieces; by the receiver
  std::atomic<std::uint64_t> delivered;              // messages that came in their slots and met their receives; by the receiver
  Slot slots[kSlots];
  alignas(64) std::byte pieces[kPieces][kPiece];
};

struct SegmentHeader {
  std::uint64_t nonce;
  std::uint64_t size;
  Doorbell doorbell;
  ChannelHeader channels[kChannels];
};

class Segment {
 public:
  // This rank's own; pages take memory only once they are used, and its size stays as it is. Throws resource_exhausted.
  static Segment create(int world_size);
  // Another process's, or an empty one when it cannot be reached or is not what was announced.
  static Segment open(int process, int descriptor, std::uint64_t nonce, int world_size);
  Segment() = default;
  Segment(Segment&& other) noexcept { *this = std::move(other); }
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  explicit operator bool() const { return header_ != nullptr; }
  SegmentHeader& header() const { return *header_; }
  int descriptor() const { return file_.get(); }
  // Two halves of kHalf bytes.
  std::byte* staging(std::size_t channel) const;
  // From the segment's owner.
  Mail& mail_to(int world_rank) const;
  // This group's channel; claims a free one. Throws resource_exhausted. Only by the owner.
  std::size_t claim(std::uint64_t key);
  // This group's channel, or kChannels while its owner has not come to the group yet.
  std::size_t find(std::uint64_t key) const;

 private:
  void map();
  Descriptor file_;
  std::size_t bytes_ = 0;
  SegmentHeader* header_ = nullptr;
};

// For what a rank can only have written in an error, or another process over it. Throws corrupt.
[[noreturn]] void throw_corrupt_segment(int world_rank, const std::string& what);

// Equal for processes that may share memory; different network namespaces count as different hosts.
std::string host_identity();

}  // namespace tessera::comm
