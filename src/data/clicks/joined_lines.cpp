#include <algorithm>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "data/clicks/click_lines.hpp"

namespace tessera::data {
namespace {

class JoinedLines final : public ClickLines {
 public:
  explicit JoinedLines(std::vector<std::unique_ptr<ClickLines>> files) : files_(std::move(files)) {
    for (const auto& file : files_) {
      begins_.push_back(size_);
      size_ += file->size();
      content_hash_ = seed_of(content_hash_, file->content_hash());
      source_hash_ = seed_of(source_hash_, file->source_hash());
      if (const std::string note = file->note(); !note.empty()) note_ += (note_.empty() ? "" : "; ") + note;
    }
  }
  std::int64_t size() const override { return size_; }
  void read(std::int64_t index, const ClickRoom& room) const override {
    const std::size_t file = file_of(index);
    files_[file]->read(index - begins_[file], room);
  }
  bool clicked(std::int64_t index) const override {
    const std::size_t file = file_of(index);
    return files_[file]->clicked(index - begins_[file]);
  }
  std::uint64_t content_hash() const override { return content_hash_; }
  std::uint64_t source_hash() const override { return source_hash_; }
  std::string note() const override { return note_; }

 private:
  std::size_t file_of(std::int64_t index) const {
    ensure(index >= 0 && index < size_, text("line ", index, " of ", size_));
    return static_cast<std::size_t>(std::ranges::upper_bound(begins_, index) - begins_.begin()) - 1;
  }

  std::vector<std::unique_ptr<ClickLines>> files_;  // each has lines
  std::vector<std::int64_t> begins_;
  std::int64_t size_ = 0;
  std::uint64_t content_hash_ = 0, source_hash_ = 0;
  std::string note_;
};

}  // namespace

std::unique_ptr<ClickLines> joined_lines(std::vector<std::unique_ptr<ClickLines>> files) {
  ensure(!files.empty(), "lines of at least one file");
  if (files.size() == 1) return std::move(files.front());
  return std::make_unique<JoinedLines>(std::move(files));
}

}  // namespace tessera::data
