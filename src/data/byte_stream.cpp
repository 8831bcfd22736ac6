#include "data/byte_stream.hpp"

#include <zlib.h>
#include <zstd.h>
#include <algorithm>
#include <vector>

#include "base/file_system.hpp"
#include "data/in_file.hpp"

namespace tessera::data {
namespace {

constexpr std::size_t kPiece = 1 << 20;

class Plain final : public ByteStream {
 public:
  explicit Plain(const SourceFile& file) : map_(file.path) {}
  std::string_view next() override {
    if (given_) return {};
    given_ = true;
    return {reinterpret_cast<const char*>(map_.bytes().data()), map_.bytes().size()};
  }
  std::uint64_t file_position(std::uint64_t content) const override { return content; }

 private:
  MappedFile map_;
  bool given_ = false;
};

// What decompressors share: the file, and a piece that a decoder fills.
class Compressed : public ByteStream {
 public:
  Compressed(const SourceFile& file, std::string format) : file_(file), format_(std::move(format)), map_(file.path), piece_(kPiece) {}

  std::string_view next() final {
    for (;;) {
      const std::size_t before = used_;
      const std::size_t made = decode(map_.bytes().subspan(used_), piece_);
      if (made > 0) return {piece_.data(), made};
      if (used_ > before) continue;
      if (!between_parts_ || used_ < map_.bytes().size()) fail("it is cut off");
      return {};
    }
  }
  std::uint64_t file_position(std::uint64_t) const final { return used_; }

 protected:
  // Decodes some of `input`, the file from used_ on, into `output`; returns how many bytes that made, and sets used_ and between_parts_.
  virtual std::size_t decode(std::span<const std::byte> input, std::span<char> output) = 0;
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorCode::corrupt, text("this file is no whole ", format_, " file: ", problem), in_file(file_.path),
                text(format_, ", as its name says"), "fetch or compress the file again");
  }

  std::size_t used_ = 0;
  bool between_parts_ = false;  // all that was begun has ended: the file may end here

 private:
  const SourceFile file_;
  const std::string format_;
  const MappedFile map_;
  std::vector<char> piece_;
};

class Gzip final : public Compressed {
 public:
  explicit Gzip(const SourceFile& file) : Compressed(file, "gzip") {
    constexpr int kLargestWindow = 15, kGzipHeader = 16;
    ensure(inflateInit2(&stream_, kLargestWindow + kGzipHeader) == Z_OK, "zlib does not start");
  }
  ~Gzip() override { inflateEnd(&stream_); }

 private:
  std::size_t decode(std::span<const std::byte> input, std::span<char> output) override {
    // Between the parts of a file that was made of several stand zeros at most.
    if (between_parts_ && std::all_of(input.begin(), input.end(), [](std::byte byte) { return byte == std::byte{0}; })) {
      used_ += input.size();
      return 0;
    }
    if (between_parts_) inflateReset(&stream_);
    constexpr std::size_t kMost = 1 << 30;  // zlib counts in 32 bits
    const std::size_t given = std::min(input.size(), kMost);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(input.data()));
    stream_.avail_in = static_cast<uInt>(given);
    stream_.next_out = reinterpret_cast<Bytef*>(output.data());
    stream_.avail_out = static_cast<uInt>(output.size());
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) fail(stream_.msg != nullptr ? stream_.msg : zError(result));
    used_ += given - stream_.avail_in;
    between_parts_ = result == Z_STREAM_END;
    return output.size() - stream_.avail_out;
  }

  z_stream stream_{};
};

class Zstd final : public Compressed {
 public:
  explicit Zstd(const SourceFile& file) : Compressed(file, "Zstandard"), stream_(ZSTD_createDStream()) {
    ensure(stream_ != nullptr, "zstd does not start");
    // Large text collections are often packed with --long=31.
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
  }
  ~Zstd() override { ZSTD_freeDStream(stream_); }

 private:
  std::size_t decode(std::span<const std::byte> input, std::span<char> output) override {
    if (between_parts_ && input.empty()) return 0;
    ZSTD_inBuffer from{input.data(), input.size(), 0};
    ZSTD_outBuffer to{output.data(), output.size(), 0};
    const std::size_t result = ZSTD_decompressStream(stream_, &to, &from);
    if (ZSTD_isError(result) != 0) fail(ZSTD_getErrorName(result));
    used_ += from.pos;
    between_parts_ = result == 0;
    return to.pos;
  }

  ZSTD_DStream* stream_;
};

}  // namespace

std::unique_ptr<ByteStream> open_bytes(const SourceFile& file) {
  if (file.compression == Compression::gzip) return std::make_unique<Gzip>(file);
  if (file.compression == Compression::zstd) return std::make_unique<Zstd>(file);
  return std::make_unique<Plain>(file);
}

}  // namespace tessera::data
