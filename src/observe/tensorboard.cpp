#include "observe/tensorboard.hpp"

#include <unistd.h>
#include <array>
#include <bit>
#include <chrono>

#include "base/error.hpp"
#include "base/file_system.hpp"

namespace tessera::observe {
namespace {

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? 0x82F63B78u : 0u);
    table[i] = value;
  }
  return table;
}
constexpr auto kTable = make_table();

template <typename Value>
std::string little_endian(Value value) {
  std::string out;
  for (std::size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

std::string masked_crc(std::string_view data) {
  const std::uint32_t crc = crc32c(data);
  return little_endian<std::uint32_t>((crc >> 15 | crc << 17) + 0xa282ead8u);
}

// Protocol buffer fields.
std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
std::string whole_number(int field, std::uint64_t value) { return varint(static_cast<std::uint64_t>(field) << 3) + varint(value); }
std::string bytes(int field, std::string_view data) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(data.size()) + std::string(data);
}
std::string real64(int field, double value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 1) + little_endian(std::bit_cast<std::uint64_t>(value));
}
std::string real32(int field, float value) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 5) + little_endian(std::bit_cast<std::uint32_t>(value));
}

double wall_time() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

std::filesystem::path new_file(const std::filesystem::path& folder) {
  real_file_system().create_directories(folder);
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  const std::string stem = text("events.out.tfevents.", static_cast<std::int64_t>(wall_time()), ".", host, ".", ::getpid());
  std::filesystem::path path = folder / stem;
  for (int i = 1; std::filesystem::exists(path); ++i) path = folder / text(stem, ".", i);
  return path;
}

// Event: wall_time = 1, step = 2, then one of file_version = 3, summary = 5, session_log = 7.
std::string event(std::int64_t step, const std::string& content) {
  return real64(1, wall_time()) + whole_number(2, static_cast<std::uint64_t>(step)) + content;
}

}  // namespace

std::uint32_t crc32c(std::string_view data) {
  std::uint32_t crc = ~0u;
  for (const char byte : data) crc = crc >> 8 ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff];
  return ~crc;
}

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder, std::int64_t next_step) : file_(new_file(folder)) {
  record(event(0, bytes(3, "brain.Event:2")));
  record(event(next_step, bytes(7, whole_number(1, 1))));  // SessionLog: status = START
}

void TensorBoardWriter::scalars(std::int64_t step, const std::vector<std::pair<std::string_view, double>>& values) {
  std::string summary;
  for (const auto& [tag, value] : values) summary += bytes(1, bytes(1, tag) + real32(2, static_cast<float>(value)));
  record(event(step, bytes(5, summary)));
}

void TensorBoardWriter::record(const std::string& event) {
  const std::string length = little_endian<std::uint64_t>(event.size());
  file_.append(length + masked_crc(length) + event + masked_crc(event));
}

}  // namespace tessera::observe
