#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <future>

#include "checkpoint/checkpoint_helper.hpp"

namespace tessera::checkpoint {
namespace {

// Halts at its n-th append until the owner has begun to keep, as a slow disk would.
class HaltingDisk final : public FileSystem {
 public:
  explicit HaltingDisk(std::int64_t halt_at) : halt_at_(halt_at) {}
  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override { return std::make_unique<File>(*this, path); }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override { real_file_system().rename(from, to); }
  void sync_directory(const std::filesystem::path& path) override { real_file_system().sync_directory(path); }
  void create_directories(const std::filesystem::path& path) override { real_file_system().create_directories(path); }
  void remove_all(const std::filesystem::path& path) override { real_file_system().remove_all(path); }

  std::promise<void> halted;
  std::promise<void> go_on;

 private:
  class File final : public WritableFile {
   public:
    File(HaltingDisk& disk, const std::filesystem::path& path) : disk_(disk), file_(real_file_system().create(path)) {}
    void append(std::span<const std::byte> data) override {
      if (disk_.appends_++ == disk_.halt_at_) {
        disk_.halted.set_value();
        disk_.go_on.get_future().wait();
      }
      file_->append(data);
    }
    void sync() override { file_->sync(); }
    void close() override { file_->close(); }

   private:
    HaltingDisk& disk_;
    std::unique_ptr<WritableFile> file_;
  };
  const std::int64_t halt_at_;
  std::int64_t appends_ = 0;
};

Piece piece_of(const std::string& name, const at::Tensor& flat) { return {name, flat.sizes().vec(), -1, 0, 1, 0, flat.numel(), flat}; }

// Wherever the writer stands when the owner comes to change what is being written.
TEST(LivePieces, AreWrittenAsTheyWereWhenTheyAreChangedMeanwhile) {
  constexpr std::int64_t kCount = 200000;  // four chunks of a file
  for (std::int64_t halt_at = 0; halt_at < 9; ++halt_at) {
    const TemporaryFolder folder;
    Tensors expected;
    std::vector<Piece> pieces;
    for (const char* name : {"first", "second"}) {
      const at::Tensor tensor = at::full({kCount}, pieces.size() + 1.0, at::TensorOptions().dtype(at::kFloat));
      pieces.push_back(piece_of(name, tensor));
      expected[name] = tensor.clone();
    }
    HaltingDisk disk(halt_at);
    LivePieces live(pieces);
    Writer writer(disk, folder.path(), 1, 0, 1);
    auto writing = std::async(std::launch::async, [&] { writer.write(pieces, live); });
    disk.halted.get_future().wait();
    auto keeping = std::async(std::launch::async, [&] {
      live.keep(0, 2);
      for (Piece& piece : pieces) piece.data.fill_(-1);
    });
    disk.go_on.set_value();
    keeping.get();
    writing.get();
    writer.commit({});
    EXPECT_EQ(difference(Reader(step_folder(folder.path(), 1)), expected), "") << "halted at append " << halt_at;
  }
}

}  // namespace
}  // namespace tessera::checkpoint
