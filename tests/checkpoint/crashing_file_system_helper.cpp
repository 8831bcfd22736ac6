#include "checkpoint/crashing_file_system_helper.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace tessera::checkpoint {
namespace {

bool lies_in(const std::filesystem::path& path, const std::filesystem::path& folder) {
  return path == folder || path.string().starts_with(folder.string() + "/");
}

std::filesystem::path moved(const std::filesystem::path& path, const std::filesystem::path& from, const std::filesystem::path& to) {
  return lies_in(path, from) ? std::filesystem::path(to.string() + path.string().substr(from.string().size())) : path;
}

}  // namespace

class CrashingFileSystem::File final : public WritableFile {
 public:
  File(CrashingFileSystem& disk, std::filesystem::path path)
      : disk_(disk), path_(std::move(path)), file_(real_file_system().create(path_)) {}
  void append(std::span<const std::byte> data) override {
    disk_.begin("write " + path_.string());
    file_->append(data);
    disk_.synced_bytes_.try_emplace(path_, synced_);
  }
  void sync() override {
    disk_.begin("sync " + path_.string());
    synced_ = std::filesystem::file_size(path_);
    disk_.synced_bytes_.erase(path_);
  }
  void close() override {
    disk_.begin("close " + path_.string());
    file_->close();
  }

 private:
  CrashingFileSystem& disk_;
  std::filesystem::path path_;
  std::unique_ptr<WritableFile> file_;
  std::uint64_t synced_ = 0;
};

void CrashingFileSystem::begin(const std::string& operation) {
  if (operations_ >= lose_at_) throw PowerLoss();
  ++operations_;
  last_operation_ = operation;
}

void CrashingFileSystem::forget(const std::filesystem::path& path) {
  std::erase_if(synced_bytes_, [&](const auto& entry) { return lies_in(entry.first, path); });
  std::erase_if(unsynced_names_, [&](const auto& name) { return lies_in(name, path); });
  std::erase_if(unsynced_renames_, [&](const auto& rename) { return lies_in(rename.to, path) || lies_in(rename.from, path); });
}

std::unique_ptr<WritableFile> CrashingFileSystem::create(const std::filesystem::path& path) {
  begin("create " + path.string());
  unsynced_names_.push_back(path);
  return std::make_unique<File>(*this, path);
}

void CrashingFileSystem::rename(const std::filesystem::path& from, const std::filesystem::path& to) {
  begin("rename " + from.string() + " to " + to.string());
  real_file_system().rename(from, to);
  std::map<std::filesystem::path, std::uint64_t> bytes;
  for (const auto& [path, synced] : synced_bytes_) bytes[moved(path, from, to)] = synced;
  synced_bytes_ = std::move(bytes);
  for (auto& name : unsynced_names_) name = moved(name, from, to);
  unsynced_renames_.push_back({from, to});
}

void CrashingFileSystem::sync_directory(const std::filesystem::path& path) {
  begin("sync folder " + path.string());
  std::erase_if(unsynced_names_, [&](const auto& name) { return name.parent_path() == path; });
  std::erase_if(unsynced_renames_, [&](const auto& rename) { return rename.to.parent_path() == path; });
}

void CrashingFileSystem::create_directories(const std::filesystem::path& path) {
  begin("make folder " + path.string());
  real_file_system().create_directories(path);
}

void CrashingFileSystem::remove_all(const std::filesystem::path& path) {
  begin("remove " + path.string());
  real_file_system().remove_all(path);
  forget(path);
}

void CrashingFileSystem::lose_unsynced(Random& random) {
  for (const auto& [path, synced] : synced_bytes_) {
    std::string content = read_whole(path);
    content.resize(synced + random.below(content.size() - synced + 1));
    for (std::size_t i = synced; i < content.size(); ++i)
      if (random.below(4) == 0) content[i] = static_cast<char>(random.next());
    write_whole(real_file_system(), path, content);
  }
  for (const auto& path : unsynced_names_)
    if (random.below(2) == 0) std::filesystem::remove(path);
  // Renames reach the disk in their order, so some of the last ones are undone.
  for (std::size_t undone = random.below(unsynced_renames_.size() + 1); undone > 0; --undone) {
    const Rename& rename = unsynced_renames_[unsynced_renames_.size() - 1];
    if (std::filesystem::exists(rename.to) && !std::filesystem::exists(rename.from)) std::filesystem::rename(rename.to, rename.from);
    unsynced_renames_.pop_back();
  }
}

}  // namespace tessera::checkpoint
