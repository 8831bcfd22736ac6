#include "ps/write_ahead_log.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "ps/messages.hpp"

namespace tessera::ps {
namespace {

constexpr const char *kRecords = ".log", *kLock = "lock";
constexpr std::int64_t kBases = 2;  // as many bytes of records as a base has, times this, before there is a new one

struct RecordHead {
  std::uint32_t bytes;
  std::uint32_t checksum;
};

std::uint32_t checksum_of(std::span<const std::byte> message) { return static_cast<std::uint32_t>(hash64(message)); }

// Of files and folders named by numbers, in their order; `ending`: behind the number.
std::vector<std::int64_t> numbers_in(const std::filesystem::path& folder, std::string_view ending) {
  std::vector<std::int64_t> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    std::int64_t number = 0;
    const auto [end, problem] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (problem == std::errc() && std::string_view(end) == ending) out.push_back(number);
  }
  std::ranges::sort(out);
  return out;
}

std::int64_t bytes_in(const std::filesystem::path& folder) {
  std::int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) bytes += static_cast<std::int64_t>(entry.file_size());
  return bytes;
}

Ask ask_of(std::span<const std::byte> message) { return MessageReader(message).take<AskHeader>(1).front().ask; }

}  // namespace

RecordFile::RecordFile(const std::filesystem::path& path, const Visit& visit) : path_(path) {
  if (std::filesystem::exists(path)) {
    const MappedFile file(path);
    std::vector<std::byte> message;  // where numbers may lie
    for (std::span<const std::byte> rest = file.bytes(); rest.size() >= sizeof(RecordHead);) {
      RecordHead head{};
      std::copy_n(rest.begin(), sizeof head, std::as_writable_bytes(std::span(&head, 1)).begin());
      rest = rest.subspan(sizeof head);
      if (head.bytes < sizeof(AskHeader) || head.bytes > rest.size() || checksum_of(rest.first(head.bytes)) != head.checksum) break;
      message.assign(rest.begin(), rest.begin() + head.bytes);
      visit(message);
      rest = rest.subspan(head.bytes);
      bytes_ = static_cast<std::int64_t>(file.bytes().size() - rest.size());
    }
    was_cut_ = bytes_ < static_cast<std::int64_t>(file.bytes().size());
  }
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (descriptor_ < 0) throw_errno("write", path, errno);
  if (::ftruncate(descriptor_, bytes_) != 0) {
    const int problem = errno;
    ::close(descriptor_);
    throw_errno("write", path, problem);
  }
}

RecordFile::~RecordFile() { ::close(descriptor_); }

void RecordFile::append(std::span<const std::byte> message) {
  RecordHead head{.bytes = static_cast<std::uint32_t>(message.size()), .checksum = checksum_of(message)};
  std::array<iovec, 2> parts = {iovec{&head, sizeof head}, iovec{const_cast<std::byte*>(message.data()), message.size()}};
  const std::size_t all = sizeof head + message.size();
  for (std::size_t done = 0; done < all;) {
    const ssize_t written = ::writev(descriptor_, parts.data(), static_cast<int>(parts.size()));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int problem = errno;
      // Nothing may follow half of a record.
      if (::ftruncate(descriptor_, bytes_) != 0) ::close(std::exchange(descriptor_, -1));
      throw_errno("write", path_, problem);
    }
    done += static_cast<std::size_t>(written);
    auto left = static_cast<std::size_t>(written);
    for (iovec& part : parts) {
      const std::size_t some = std::min(left, part.iov_len);
      part.iov_base = static_cast<std::byte*>(part.iov_base) + some;
      part.iov_len -= some;
      left -= some;
    }
  }
  bytes_ += static_cast<std::int64_t>(all);
}

WriteAheadLog::WriteAheadLog(const ServerLog& options) : folder_(options.folder), least_bytes_(options.base_after.value) {
  real_file_system().create_directories(folder_);
  lock_ = ::open((folder_ / kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0) throw_errno("write", folder_ / kLock, errno);
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(lock_);
    throw Error(ErrorCode::invalid_config, text("another server writes its log to ", folder_.string()), {}, "a folder of its own");
  }
}

WriteAheadLog::~WriteAheadLog() { ::close(lock_); }

std::filesystem::path WriteAheadLog::records_path(std::int64_t number) const { return folder_ / (std::to_string(number) + kRecords); }
std::filesystem::path WriteAheadLog::base_path(std::int64_t number) const { return folder_ / std::to_string(number); }

void WriteAheadLog::restore(Shards& shards, const RecordFile::Visit& take) {
  std::int64_t base = 0;  // none: the first records begin with nothing
  std::vector<SavedTable> tables;
  for (const std::int64_t number : numbers_in(folder_, "")) {
    SavedFolder saved = read_saved_folder(base_path(number));
    if (saved.saves == 0) {
      real_file_system().remove_all(base_path(number));  // it was not whole
      continue;
    }
    base = number;
    tables = std::move(saved.tables);
  }
  std::int64_t expected = base;
  for (const std::int64_t number : numbers_in(folder_, kRecords)) {
    if (number < base) continue;
    if (number != expected++)
      throw Error(ErrorCode::corrupt, text(records_path(expected - 1).string(), " is missing"), {}, "all files that the server has written",
                  "with another --log the server begins with nothing; go on from the run's last checkpoint");
    if (records_ != nullptr && records_->was_cut())
      throw Error(ErrorCode::corrupt, text(records_path(number_).string(), " is damaged"), {}, "whole records before another file of them");
    behind_base_ += records_ != nullptr ? records_->bytes() : 0;
    number_ = number;
    records_ = std::make_unique<RecordFile>(records_path(number), [&](std::span<const std::byte> message) {
      const Ask ask = ask_of(message);
      // Other files of records than the base's begin with what is known by then.
      if (is_copy(ask) && (number != base || base == 0)) return;
      take(message);
      if (ask == Ask::copy_begin) load_tables({.folder = base_path(base), .before = tables}, shards.tables());
    });
  }
  if (base > 0 && expected == base)
    throw Error(ErrorCode::corrupt, text(records_path(base).string(), " is missing"), {}, "all files that the server has written");
  if (records_ == nullptr) records_ = std::make_unique<RecordFile>(records_path(number_), [](auto) {});
  if (base > 0) base_bytes_ = bytes_in(base_path(base));
}

void WriteAheadLog::add(std::span<const std::byte> message) { records_->append(message); }

bool WriteAheadLog::go_on(Shards& shards, bool other_snapshots) {
  if (!going_on_) {
    const bool due = wanted_ || behind_base_ + records_->bytes() > std::max(least_bytes_, kBases * base_bytes_);
    if (!due || other_snapshots) return false;
  }
  try {
    if (!going_on_)
      begin_base(shards);
    else if (!base_.go_on())
      end_base();
  } catch (const Error& error) {
    log::warning(text("the log goes on behind its last base: ", error.what()));
    abandon_base();
    wanted_ = false;
    least_bytes_ *= 2;
  }
  return true;
}

void WriteAheadLog::begin_base(Shards& shards) {
  wanted_ = false;
  auto next = std::make_unique<RecordFile>(records_path(number_ + 1), [](auto) {});
  behind_base_ += records_->bytes();
  records_ = std::move(next);
  ++number_;
  going_on_ = true;
  std::vector<std::byte> message(comm::kMostMessageBytes);
  shards.copy(
      0, [&] { return std::span(message); }, [&](std::size_t bytes) { add(std::span(message).first(bytes)); }, Shards::Rows::left_out);
  base_.begin({.folder = base_path(number_), .number = 1}, shards.tables());
}

void WriteAheadLog::end_base() {
  write_saved_folder(base_path(number_), {.saves = 1, .tables = base_.written().value()});
  going_on_ = false;
  base_.abandon();
  behind_base_ = 0;
  base_bytes_ = bytes_in(base_path(number_));
  for (const std::int64_t number : numbers_in(folder_, kRecords))
    if (number < number_) real_file_system().remove_all(records_path(number));
  for (const std::int64_t number : numbers_in(folder_, ""))
    if (number < number_) real_file_system().remove_all(base_path(number));
}

void WriteAheadLog::abandon_base() {
  if (!going_on_) return;
  going_on_ = false;
  wanted_ = true;
  base_.abandon();
  real_file_system().remove_all(base_path(number_));
}

}  // namespace tessera::ps
