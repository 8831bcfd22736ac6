#include "ps/write_ahead_log.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <exception>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "ps/messages.hpp"
#include "ps/table_file.hpp"

namespace tessera::ps {
namespace {

constexpr const char *kRecords = ".log", *kLock = "lock", *kTables = "tables.json";
constexpr std::int64_t kBases = 2;          // as many bytes of records as a base has, times this, before there is a new one
constexpr std::int64_t kPutOff = 64 << 20;  // bytes of records until a base that has failed is tried again
constexpr const char* kBeginAnew = "begin with another --log, and resume the run from its last checkpoint";

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

// Calls with each record, where numbers may lie; returns the bytes of all. The last one may be cut short, as a process was killed in its
// midst.
std::int64_t read_records(const std::filesystem::path& path, bool is_last, const WriteAheadLog::Take& take) {
  const MappedFile file(path);
  const auto all = static_cast<std::int64_t>(file.bytes().size());
  std::vector<std::byte> message;
  std::span<const std::byte> rest = file.bytes();
  const auto read = [&] { return all - static_cast<std::int64_t>(rest.size()); };
  while (rest.size() >= sizeof(RecordHead)) {
    RecordHead head{};
    std::copy_n(rest.begin(), sizeof head, std::as_writable_bytes(std::span(&head, 1)).begin());
    const std::span<const std::byte> behind = rest.subspan(sizeof head);
    const bool sound = head.bytes >= sizeof(AskHeader) && head.bytes <= comm::kMostMessageBytes;
    if (sound && head.bytes > behind.size()) break;
    if (!sound || checksum_of(behind.first(head.bytes)) != head.checksum)
      throw Error(ErrorCode::corrupt, text(path.string(), " is damaged at byte ", read(), ": the disk, or a host that lost power"), {},
                  "records with the right checksums", kBeginAnew);
    message.assign(behind.begin(), behind.begin() + head.bytes);
    take(message);
    rest = behind.subspan(head.bytes);
  }
  if (!rest.empty() && !is_last)
    throw Error(ErrorCode::corrupt, text(path.string(), " is cut short at byte ", read()), {}, "whole records before another file of them",
                kBeginAnew);
  return read();
}

std::vector<std::string> files_of(const std::vector<SavedTable>& tables) {
  std::vector<std::string> files;
  for (const SavedTable& table : tables)
    for (const SavedTable::Chain& chain : table.servers) files.insert(files.end(), chain.files.begin(), chain.files.end());
  return files;
}

void synchronize(const std::filesystem::path& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (file < 0) throw_errno("read", path, errno);
  const bool synchronized = ::fdatasync(file) == 0;
  const int problem = errno;
  ::close(file);
  if (!synchronized) throw_errno("write", path, problem);
}

// Copies the files of a save, whole and on the disk. What has kept it from that; empty: nothing. The trainer may remove them meanwhile, or
// write another save of the same name.
std::string copied(const std::filesystem::path& from, const std::filesystem::path& to, const std::vector<SavedTable>& tables) {
  try {
    for (const std::string& file : files_of(tables)) {
      std::filesystem::copy_file(from / file, to / file, std::filesystem::copy_options::overwrite_existing);
      synchronize(to / file);
    }
    for (const SavedTable& table : tables)
      for (const SavedTable::Chain& chain : table.servers)
        if (check_table_file(to / chain.files.back()).id != chain.last) return text(chain.files.back(), " is another save's by now");
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

}  // namespace

RecordFile::RecordFile(const std::filesystem::path& path, std::int64_t bytes) : path_(path), bytes_(bytes) {
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (descriptor_ < 0) throw_errno("write", path, errno);
  try {
    cut();
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

RecordFile::~RecordFile() { ::close(descriptor_); }

void RecordFile::cut() {
  torn_ = ::ftruncate(descriptor_, bytes_) != 0;
  if (torn_) throw_errno("write", path_, errno);
}

void RecordFile::append(std::span<const std::byte> message) {
  if (torn_) cut();
  RecordHead head{.bytes = static_cast<std::uint32_t>(message.size()), .checksum = checksum_of(message)};
  std::array<iovec, 2> parts = {iovec{&head, sizeof head}, iovec{const_cast<std::byte*>(message.data()), message.size()}};
  const std::size_t all = sizeof head + message.size();
  for (std::size_t done = 0; done < all;) {
    const ssize_t written = ::writev(descriptor_, parts.data(), static_cast<int>(parts.size()));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int problem = errno;
      torn_ = ::ftruncate(descriptor_, bytes_) != 0;
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

WriteAheadLog::Lock::Lock(const std::filesystem::path& folder) {
  real_file_system().create_directories(folder);
  descriptor_ = ::open((folder / kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (descriptor_ < 0) throw_errno("write", folder / kLock, errno);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(descriptor_);
  throw Error(ErrorCode::invalid_config, text("another server writes its log to ", folder.string()), {}, "a folder of its own");
}

WriteAheadLog::Lock::~Lock() { ::close(descriptor_); }

WriteAheadLog::WriteAheadLog(const ServerLog& options)
    : folder_(options.folder), lock_(options.folder), least_bytes_(options.base_after.value) {}

WriteAheadLog::~WriteAheadLog() = default;

std::filesystem::path WriteAheadLog::records_path(std::int64_t number) const { return folder_ / (std::to_string(number) + kRecords); }
std::filesystem::path WriteAheadLog::base_path(std::int64_t number) const { return folder_ / std::to_string(number); }

void WriteAheadLog::restore(Shards& shards, const Take& take) {
  std::int64_t base = 0;  // none: the first records begin with nothing
  std::vector<SavedTable> tables;
  for (const std::int64_t number : numbers_in(folder_, "")) {
    SavedFolder saved = read_saved_folder(base_path(number));
    if (saved.saves == 0) {
      remove_base(number);  // it was not whole
      continue;
    }
    base = number;
    tables = std::move(saved.tables);
  }
  std::vector<std::int64_t> numbers = numbers_in(folder_, kRecords);
  std::erase_if(numbers, [base](std::int64_t number) { return number < base; });
  if (numbers.empty() && base == 0) numbers.push_back(0), RecordFile(records_path(0), 0);
  for (std::size_t i = 0; i < std::max<std::size_t>(1, numbers.size()); ++i)
    if (numbers.empty() || numbers[i] != base + static_cast<std::int64_t>(i))
      throw Error(ErrorCode::corrupt, text(records_path(base + static_cast<std::int64_t>(i)).string(), " is missing"), {},
                  "all files that the server has written", kBeginAnew);
  std::int64_t bytes = 0;
  bool whole = base == 0;
  for (const std::int64_t number : numbers) {
    const std::int64_t before = std::exchange(bytes, 0);
    behind_base_ += before;
    bytes = read_records(records_path(number), number == numbers.back(), [&](std::span<const std::byte> message) {
      const AskHeader header = MessageReader(message).take<AskHeader>(1).front();
      const Ask ask = header.ask;
      if (ask == Ask::log_behind) {
        if (number > base && static_cast<std::int64_t>(header.number) != before)
          throw Error(ErrorCode::corrupt, text(records_path(number - 1).string(), " has lost its end: a host lost power"), {},
                      text(header.number, " bytes, and it has ", before), kBeginAnew);
        return;
      }
      // Other files of records than the base's begin with what is known by then.
      if (is_copy(ask) && (number != base || base == 0)) return;
      take(message);
      if (ask == Ask::copy_begin) load_tables({.folder = base_path(base), .before = tables}, shards.tables());
      whole = whole || ask == Ask::copy_end;
    });
    if (!whole)
      throw Error(ErrorCode::corrupt, text(records_path(number).string(), " does not say what the server held"), {},
                  "the records that a base begins with", kBeginAnew);
  }
  number_ = numbers.back();
  records_ = std::make_unique<RecordFile>(records_path(number_), bytes);
  if (base > 0) base_bytes_ = bytes_in(base_path(base));
}

void WriteAheadLog::add(std::span<const std::byte> message) { records_->append(message); }

bool WriteAheadLog::go_on(Shards& shards, bool other_snapshots) {
  try {
    if (copying_ && copying_->done.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
      Copying copied = std::move(*copying_);
      copying_.reset();
      if (const std::string problem = copied.done.get(); problem.empty()) {
        end_base(copied.number, copied.tables);
      } else {
        log::warning(text("a checkpoint's files are no base of the log: ", problem));
        remove_base(copied.number);
      }
    }
    if (writing_) {
      if (base_.go_on()) return true;
      const std::vector<SavedTable> tables = base_.written().value();
      const std::int64_t number = *writing_;
      writing_.reset();
      base_.abandon();
      end_base(number, tables);
      return true;
    }
    const std::int64_t behind = behind_base_ + records_->bytes();
    const bool due = (wanted_ || behind > std::max(least_bytes_, kBases * base_bytes_)) && behind >= not_before_;
    if (!due || other_snapshots || saving_ || copying_) return false;
    begin_records(shards);
    writing_ = number_;
    base_.begin({.folder = base_path(number_), .number = 1}, shards.tables());
  } catch (const std::exception& error) {
    log::warning(text("the log goes on behind its last base: ", error.what()));
    abandon_base();
    put_off();
  }
  return true;
}

void WriteAheadLog::put_off() { not_before_ = behind_base_ + records_->bytes() + kPutOff; }

void WriteAheadLog::begin_records(const Shards& shards) {
  auto next = std::make_unique<RecordFile>(records_path(number_ + 1), 0);
  behind_base_ += records_->bytes();
  const AskHeader behind{
      .ask = Ask::log_behind, .table = 0, .count = 0, .client = 0, .number = static_cast<std::uint64_t>(records_->bytes())};
  try {
    next->append(std::as_bytes(std::span(&behind, 1)));
  } catch (const Error&) {
    std::error_code ignored;  // it would say how long the records were now
    std::filesystem::remove(records_path(number_ + 1), ignored);
    throw;
  }
  records_ = std::move(next);
  ++number_;
  std::vector<std::byte> message(comm::kMostMessageBytes);
  shards.copy(
      0, [&] { return std::span(message); }, [&](std::size_t bytes) { add(std::span(message).first(bytes)); }, Shards::Rows::left_out);
}

void WriteAheadLog::end_base(std::int64_t number, const std::vector<SavedTable>& tables) {
  // What the base is nothing without has to be on the disk before older files go.
  synchronize(records_path(number));
  real_file_system().sync_directory(folder_);
  write_saved_folder(base_path(number), {.saves = 1, .tables = tables});
  // From here on the base counts, whatever becomes of older files.
  if (wanted_ && number > *wanted_) wanted_.reset();
  not_before_ = 0;
  try {
    remove_older(number);
  } catch (const std::exception& error) {
    log::warning(text("older files of the log stay: ", error.what()));
  }
}

void WriteAheadLog::remove_older(std::int64_t number) {
  behind_base_ = 0;
  for (const std::int64_t other : numbers_in(folder_, kRecords)) {
    if (other < number) real_file_system().remove_all(records_path(other));
    if (other >= number && other < number_) behind_base_ += static_cast<std::int64_t>(std::filesystem::file_size(records_path(other)));
  }
  for (const std::int64_t other : numbers_in(folder_, ""))
    if (other < number) remove_base(other);
  base_bytes_ = bytes_in(base_path(number));
}

void WriteAheadLog::remove_base(std::int64_t number) noexcept {
  std::error_code ignored;  // whoever reads the log finds that it is not whole
  std::filesystem::remove(base_path(number) / kTables, ignored);
  std::filesystem::remove_all(base_path(number), ignored);
}

void WriteAheadLog::abandon_base() noexcept {
  if (!writing_) return;
  base_.abandon();
  remove_base(*writing_);
  writing_.reset();
}

void WriteAheadLog::begin_save(const Shards& shards) {
  saving_.reset();
  if (copying_) return;
  try {
    begin_records(shards);
    saving_ = number_;
  } catch (const Error& error) {
    log::warning(text("the log goes on behind its last base: ", error.what()));
  }
}

void WriteAheadLog::end_save(const std::filesystem::path& folder, const std::optional<std::vector<SavedTable>>& tables) {
  const std::optional<std::int64_t> saved = std::exchange(saving_, std::nullopt);
  if (!saved || !tables) return;
  const std::int64_t number = *saved;
  const std::vector<std::string> files = files_of(*tables);
  try {
    real_file_system().create_directories(base_path(number));
    std::error_code refused;
    for (const std::string& file : files)
      if (!refused) std::filesystem::create_hard_link(folder / file, base_path(number) / file, refused);
    if (!refused) return end_base(number, *tables);
    // The folders are on different disks. The copies are made beside requests, if the save's files stay there so long.
    copying_ = Copying{number, *tables, std::async(std::launch::async, copied, folder, base_path(number), *tables)};
  } catch (const std::exception& error) {
    log::warning(text("the log goes on behind its last base: ", error.what()));
    if (!std::filesystem::exists(base_path(number) / kTables)) remove_base(number);
  }
}

}  // namespace tessera::ps
