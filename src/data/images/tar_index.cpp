#include "data/images/tar_index.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <string_view>

#include "base/error.hpp"
#include "data/in_file.hpp"

namespace tessera::data {
namespace {

constexpr std::uint64_t kBlock = 512;
// Of a long name, or of a pax header.
constexpr std::uint64_t kMostText = 1 << 20;

class Reader {
 public:
  explicit Reader(const std::filesystem::path& file) : file_(file), stream_(file, std::ios::binary) {
    if (!stream_) throw_errno("cannot read", file.string(), errno);
    size_ = std::filesystem::file_size(file);
  }

  std::string read(std::uint64_t begin, std::uint64_t size) {
    if (begin > size_ || size > size_ - begin) fail("it is cut off");
    std::string out(size, '\0');
    stream_.seekg(static_cast<std::streamoff>(begin));
    stream_.read(out.data(), static_cast<std::streamsize>(size));
    if (!stream_) throw_errno("cannot read", file_.string(), errno);
    return out;
  }
  std::uint64_t size() const { return size_; }
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorCode::corrupt, "this file is no whole tar archive: " + problem, in_file(file_), "an archive that is not compressed",
                "fetch it again, or decompress it");
  }

 private:
  std::filesystem::path file_;
  std::ifstream stream_;
  std::uint64_t size_ = 0;
};

std::string field(const std::string& header, std::size_t begin, std::size_t size) {
  const std::string_view whole = std::string_view(header).substr(begin, size);
  return std::string(whole.substr(0, whole.find('\0')));
}

// Octal digits, or, where the first bit is set, GNU's big-endian bytes.
std::optional<std::uint64_t> number(const std::string& header, std::size_t begin, std::size_t size) {
  std::uint64_t value = 0;
  if ((static_cast<std::uint8_t>(header[begin]) & 0x80) != 0) {
    for (std::size_t i = begin + 1; i < begin + size; ++i) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | static_cast<std::uint8_t>(header[i]);
    }
    return value;
  }
  const std::string digits = field(header, begin, size);
  const std::size_t first = digits.find_first_not_of(' ');
  if (first == std::string::npos) return 0;
  const auto [end, problem] = std::from_chars(digits.data() + first, digits.data() + digits.size(), value, 8);
  if (problem != std::errc() || std::string_view(end).find_first_not_of(' ') != std::string_view::npos) return std::nullopt;
  return value;
}

void check_sum(const Reader& archive, const std::string& header) {
  constexpr std::size_t kBegin = 148, kSize = 8;
  std::uint64_t sum = kSize * ' ';
  for (std::size_t i = 0; i < header.size(); ++i)
    if (i < kBegin || i >= kBegin + kSize) sum += static_cast<std::uint8_t>(header[i]);
  if (number(header, kBegin, kSize) != sum) archive.fail("the checksum of a header is wrong");
}

struct Extended {
  std::optional<std::string> path;
  std::optional<std::uint64_t> size;
};

// Records "LENGTH KEY=VALUE\n".
Extended read_pax(const Reader& archive, std::string_view records) {
  Extended out;
  while (!records.empty()) {
    std::uint64_t length = 0;
    const auto [end, problem] = std::from_chars(records.data(), records.data() + records.size(), length);
    const std::size_t digits = static_cast<std::size_t>(end - records.data());
    if (problem != std::errc() || length <= digits + 1 || length > records.size()) archive.fail("an extended header is damaged");
    const std::string_view record = records.substr(digits + 1, length - digits - 2);
    const std::size_t equals = std::min(record.find('='), record.size());
    const std::string_view key = record.substr(0, equals), value = record.substr(std::min(equals + 1, record.size()));
    if (key == "path") out.path = std::string(value);
    if (key == "size") {
      std::uint64_t size = 0;
      if (std::from_chars(value.data(), value.data() + value.size(), size).ec != std::errc()) archive.fail("an extended header is damaged");
      out.size = size;
    }
    records.remove_prefix(length);
  }
  return out;
}

}  // namespace

std::vector<TarMember> index_tar(const std::filesystem::path& file) {
  Reader archive(file);
  std::vector<TarMember> members;
  Extended next;  // what stands before a member and is said of it
  for (std::uint64_t at = 0; at < archive.size();) {
    const std::string header = archive.read(at, kBlock);
    if (header.find_first_not_of('\0') == std::string::npos) break;
    check_sum(archive, header);
    const auto own_size = number(header, 124, 12);
    if (!own_size) archive.fail("the size of a member is no number");
    const char type = header[156];
    const bool text_of_next = type == 'L' || type == 'x';
    const std::uint64_t size = text_of_next ? *own_size : next.size.value_or(*own_size);
    const std::uint64_t begin = at + kBlock;
    if (size > archive.size() - begin) archive.fail("it is cut off");
    if (text_of_next) {
      if (size > kMostText) archive.fail("a name is too long");
      const std::string content = archive.read(begin, size);
      if (type == 'x') {
        next = read_pax(archive, content);
      } else {
        next.path = content.substr(0, content.find('\0'));
      }
    } else {
      if (type == '0' || type == '\0') {
        const std::string prefix = header.compare(257, 5, "ustar") == 0 && header[262] == '\0' ? field(header, 345, 155) : std::string();
        members.push_back({next.path.value_or(prefix.empty() ? field(header, 0, 100) : prefix + "/" + field(header, 0, 100)), begin, size});
      }
      next = {};
    }
    at = begin + (size + kBlock - 1) / kBlock * kBlock;
  }
  return members;
}

std::string read_part(const std::filesystem::path& file, std::uint64_t begin, std::uint64_t size) { return Reader(file).read(begin, size); }

}  // namespace tessera::data
