#include "data/token_cache.hpp"

#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "data/in_file.hpp"

namespace tessera::data {
namespace {

static_assert(std::endian::native == std::endian::little, "the file's numbers are little-endian");
static_assert(std::atomic<std::uint8_t>::is_always_lock_free);

constexpr std::size_t kBlockBytes = 1 << 20;
constexpr std::uint32_t kVersion = 2;
constexpr std::int64_t kNarrowVocab = 1 << 16;
// Tokens are handed out as 32-bit integers.
constexpr std::uint64_t kLargestVocab = std::uint64_t{1} << 31;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t width;
  std::uint64_t vocab;
  char fingerprint[32];
  std::uint64_t checksum;
};
struct Footer {
  char magic[8];
  std::uint64_t tokens;
  std::uint64_t documents;
  std::uint64_t blocks;
  std::uint64_t skipped;
  std::uint64_t index_checksum;
  std::uint64_t file_size;
  std::uint64_t header_checksum;
  std::uint64_t checksum;
};
static_assert(sizeof(Header) == 64 && sizeof(Footer) == 72);
constexpr std::string_view kHeaderMagic = "TSRTOKEN", kFooterMagic = "TSRTKEND";

template <typename Part>
std::uint64_t checksum_of(const Part& part) {
  return hash64(std::as_bytes(std::span(&part, 1)).first(sizeof(Part) - sizeof(std::uint64_t)));
}

std::uint64_t padded(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

}  // namespace

struct TokenCacheWriter::State {
  FileSystem& files;
  std::filesystem::path path, temporary;
  std::unique_ptr<WritableFile> file;
  Header header{};
  std::vector<std::byte> block;
  std::vector<std::uint64_t> document_ends, text_begins, sums;
  std::uint64_t text_begin = 0;  // of the document under way
  std::uint64_t tokens = 0;

  // Takes back what was written.
  void discard() {
    file.reset();
    try {
      files.remove_all(temporary);
    } catch (const Error&) {
      // The disk refuses; the file keeps its temporary name and nobody will read it.
    }
  }
  void flush() {
    if (block.empty()) return;
    sums.push_back(hash64(block));
    file->append(block);
    block.clear();
  }
};

TokenCacheWriter::TokenCacheWriter(FileSystem& files, const std::filesystem::path& path, std::int64_t vocab, const std::string& fingerprint)
    : state_(new State{.files = files,
                       .path = path,
                       .temporary = {},
                       .file = nullptr,
                       .header = {},
                       .block = {},
                       .document_ends = {},
                       .text_begins = {},
                       .sums = {},
                       .text_begin = 0,
                       .tokens = 0}) {
  ensure(fingerprint.size() == sizeof(Header::fingerprint), "a fingerprint has 32 digits");
  Header& header = state_->header;
  std::memcpy(header.magic, kHeaderMagic.data(), kHeaderMagic.size());
  header.version = kVersion;
  header.width = vocab <= kNarrowVocab ? 2 : 4;
  header.vocab = static_cast<std::uint64_t>(vocab);
  std::memcpy(header.fingerprint, fingerprint.data(), fingerprint.size());
  header.checksum = checksum_of(header);
  state_->temporary = path;
  state_->temporary += text(".tmp.", ::getpid(), ".", std::random_device()());
  state_->file = files.create(state_->temporary);
  state_->block.reserve(kBlockBytes);
  try {
    state_->file->append(std::as_bytes(std::span(&header, 1)));
  } catch (const Error&) {
    state_->discard();
    throw;
  }
}

TokenCacheWriter::~TokenCacheWriter() {
  if (state_->file) state_->discard();
}

void TokenCacheWriter::append(std::span<const std::uint32_t> tokens) {
  State& s = *state_;
  s.tokens += tokens.size();
  for (std::uint32_t token : tokens) {
    ensure(token < s.header.vocab, "a token outside of the vocabulary");
    const std::size_t size = s.block.size();
    s.block.resize(size + s.header.width);
    std::memcpy(s.block.data() + size, &token, s.header.width);
    if (s.block.size() == kBlockBytes) s.flush();
  }
}

void TokenCacheWriter::end_prompt() { state_->text_begin = state_->tokens; }

void TokenCacheWriter::end_document() {
  State& s = *state_;
  s.document_ends.push_back(s.tokens);
  s.text_begins.push_back(s.text_begin);
  s.text_begin = s.tokens;
}

void TokenCacheWriter::finish(std::uint64_t skipped) {
  State& s = *state_;
  s.flush();
  const std::uint64_t bytes = s.tokens * s.header.width;
  const std::byte zeros[8]{};
  s.file->append(std::span(zeros).first(padded(bytes) - bytes));
  std::vector<std::uint64_t> index = s.document_ends;
  index.insert(index.end(), s.text_begins.begin(), s.text_begins.end());
  index.insert(index.end(), s.sums.begin(), s.sums.end());
  s.file->append(std::as_bytes(std::span(index)));
  Footer footer{};
  std::memcpy(footer.magic, kFooterMagic.data(), kFooterMagic.size());
  footer.tokens = s.tokens;
  footer.documents = s.document_ends.size();
  footer.blocks = s.sums.size();
  footer.skipped = skipped;
  footer.index_checksum = hash64(std::as_bytes(std::span(index)));
  footer.file_size = sizeof(Header) + padded(bytes) + index.size() * sizeof(std::uint64_t) + sizeof(Footer);
  footer.header_checksum = s.header.checksum;
  footer.checksum = checksum_of(footer);
  s.file->append(std::as_bytes(std::span(&footer, 1)));
  s.file->sync();
  s.file->close();
  s.files.rename(s.temporary, s.path);
  s.file.reset();
  s.files.sync_directory(s.path.parent_path());
}

struct TokenCache::State {
  std::filesystem::path path;
  MappedFile map;
  Header header{};
  Footer footer{};
  std::string fingerprint;
  std::span<const std::byte> tokens, sums, documents, text_begins;
  std::unique_ptr<std::atomic<std::uint8_t>[]> checked;  // 1 for blocks that were found whole

  [[noreturn]] void corrupt(const std::string& message) const {
    throw Error(ErrorCode::corrupt, "the token cache is damaged: " + message, in_file(path), "the file as it was written",
                "delete it; the next run builds it again from the source");
  }

  void open(const std::string& expected) {
    const auto bytes = map.bytes();
    if (bytes.size() < sizeof(Header) + sizeof(Footer)) corrupt(text("it has only ", bytes.size(), " bytes"));
    std::memcpy(&header, bytes.data(), sizeof header);
    if (std::string_view(header.magic, sizeof header.magic) != kHeaderMagic) corrupt("it does not begin as a token cache");
    if (header.checksum != checksum_of(header)) corrupt("the checksum of its header does not fit");
    if (header.version != kVersion || (header.width != 2 && header.width != 4))
      corrupt(text("it has version ", header.version, ", expected ", kVersion));
    std::memcpy(&footer, bytes.data() + bytes.size() - sizeof footer, sizeof footer);
    if (std::string_view(footer.magic, sizeof footer.magic) != kFooterMagic || footer.checksum != checksum_of(footer) ||
        footer.file_size != bytes.size()) {
      corrupt("it is truncated or its end is damaged");
    }
    if (footer.header_checksum != header.checksum) corrupt("its beginning and its end belong to different files");
    if (header.vocab < 1 || header.vocab > kLargestVocab) corrupt(text("its vocabulary has ", header.vocab, " tokens"));
    // A checksum does not say who computed it: no sum below may wrap around.
    const std::uint64_t most = bytes.size() / 2;
    if (footer.tokens > most || footer.documents > most || footer.blocks > most) corrupt("its counts do not fit its size");
    const std::uint64_t token_bytes = footer.tokens * header.width;
    const std::uint64_t index_bytes = (2 * footer.documents + footer.blocks) * sizeof(std::uint64_t);
    if (sizeof(Header) + padded(token_bytes) + index_bytes + sizeof(Footer) != bytes.size() ||
        footer.blocks != (token_bytes + kBlockBytes - 1) / kBlockBytes) {
      corrupt("its counts do not fit its size");
    }
    tokens = bytes.subspan(sizeof(Header), token_bytes);
    const auto index = bytes.subspan(sizeof(Header) + padded(token_bytes), index_bytes);
    if (hash64(index) != footer.index_checksum) corrupt("the checksum of its index does not fit");
    documents = index.first(footer.documents * sizeof(std::uint64_t));
    text_begins = index.subspan(documents.size(), documents.size());
    sums = index.subspan(2 * documents.size());
    check_documents();
    fingerprint.assign(header.fingerprint, sizeof header.fingerprint);
    if (!expected.empty() && expected != fingerprint) corrupt("it was made of another source or with another tokenizer");
    checked = std::make_unique<std::atomic<std::uint8_t>[]>(footer.blocks);
  }

  void check_documents() const {
    std::uint64_t begin = 0;
    for (std::uint64_t i = 0; i < footer.documents; ++i) {
      const std::uint64_t end = number(documents, i);
      if (end < begin || end > footer.tokens) corrupt(text("document ", i, " ends behind token ", end, " and begins behind token ", begin));
      if (const std::uint64_t first = number(text_begins, i); first < begin || first > end)
        corrupt(text("the text of document ", i, " begins at token ", first, ", outside of it"));
      begin = end;
    }
  }

  // The model looks tokens up in a table of as many rows.
  template <typename Token>
  void check_tokens(std::span<const std::byte> part, std::size_t begin) const {
    Token largest = 0;
    for (std::size_t at = 0; at + sizeof(Token) <= part.size(); at += sizeof(Token)) {
      Token token;
      std::memcpy(&token, part.data() + at, sizeof token);
      largest = std::max(largest, token);
    }
    if (largest >= header.vocab)
      corrupt(text("bytes ", sizeof(Header) + begin, " to ", sizeof(Header) + begin + part.size(), " hold token ", largest,
                   " of a vocabulary of ", header.vocab));
  }

  static std::uint64_t number(std::span<const std::byte> list, std::uint64_t index) {
    std::uint64_t value;
    std::memcpy(&value, list.data() + index * sizeof value, sizeof value);
    return value;
  }

  void check_block(std::uint64_t block) const {
    if (checked[block].load(std::memory_order_relaxed) == 1) return;
    const auto begin = block * kBlockBytes;
    const auto part = tokens.subspan(begin, std::min<std::uint64_t>(kBlockBytes, tokens.size() - begin));
    if (hash64(part) != number(sums, block)) {
      corrupt(text("the checksum of its bytes ", sizeof(Header) + begin, " to ", sizeof(Header) + begin + part.size(), " does not fit"));
    }
    header.width == 2 ? check_tokens<std::uint16_t>(part, begin) : check_tokens<std::uint32_t>(part, begin);
    checked[block].store(1, std::memory_order_relaxed);
  }
};

TokenCache::TokenCache(const std::filesystem::path& path, const std::string& fingerprint)
    : state_(new State{.path = path,
                       .map = MappedFile(path),
                       .header = {},
                       .footer = {},
                       .fingerprint = {},
                       .tokens = {},
                       .sums = {},
                       .documents = {},
                       .text_begins = {},
                       .checked = {}}) {
  state_->open(fingerprint);
}
TokenCache::~TokenCache() = default;
TokenCache::TokenCache(TokenCache&&) noexcept = default;

std::int64_t TokenCache::size() const { return static_cast<std::int64_t>(state_->footer.tokens); }
std::int64_t TokenCache::vocab() const { return static_cast<std::int64_t>(state_->header.vocab); }
std::int64_t TokenCache::document_count() const { return static_cast<std::int64_t>(state_->footer.documents); }
const std::string& TokenCache::fingerprint() const { return state_->fingerprint; }
std::uint64_t TokenCache::content_hash() const { return state_->footer.index_checksum; }
const std::filesystem::path& TokenCache::path() const { return state_->path; }

std::int64_t TokenCache::document_begin(std::int64_t index) const {
  ensure(index >= 0 && index <= document_count(), "a document outside of the cache");
  return index == 0 ? 0 : static_cast<std::int64_t>(State::number(state_->documents, static_cast<std::uint64_t>(index) - 1));
}

std::int64_t TokenCache::text_begin(std::int64_t index) const {
  ensure(index >= 0 && index < document_count(), "a document outside of the cache");
  return static_cast<std::int64_t>(State::number(state_->text_begins, static_cast<std::uint64_t>(index)));
}

std::int64_t TokenCache::document_of(std::int64_t token) const {
  ensure(token >= 0 && token < size(), "a token outside of the cache");
  std::int64_t first = 0, behind = document_count();
  while (first < behind) {
    const std::int64_t middle = first + (behind - first) / 2;
    if (document_begin(middle + 1) > token) {
      behind = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

std::int64_t TokenCache::skipped() const { return static_cast<std::int64_t>(state_->footer.skipped); }

void TokenCache::read(std::int64_t first, std::span<std::int32_t> out) const {
  ensure(first >= 0 && first <= size() && static_cast<std::int64_t>(out.size()) <= size() - first, "tokens outside of the cache");
  if (out.empty()) return;
  const std::uint64_t width = state_->header.width;
  const std::uint64_t begin = static_cast<std::uint64_t>(first) * width, end = begin + out.size() * width;
  for (std::uint64_t block = begin / kBlockBytes; block <= (end - 1) / kBlockBytes; ++block) state_->check_block(block);
  const std::byte* from = state_->tokens.data() + begin;
  if (width == 4) {
    std::memcpy(out.data(), from, out.size_bytes());
    return;
  }
  for (std::int32_t& token : out) {
    std::uint16_t narrow;
    std::memcpy(&narrow, from, sizeof narrow);
    token = narrow;
    from += sizeof narrow;
  }
}

void TokenCache::verify() const {
  for (std::uint64_t block = 0; block < state_->footer.blocks; ++block) state_->check_block(block);
}

bool TokenCache::is_cache(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) || std::filesystem::file_size(path, error) < sizeof(Header)) return false;
  const MappedFile map(path);
  return std::memcmp(map.bytes().data(), kHeaderMagic.data(), kHeaderMagic.size()) == 0;
}

}  // namespace tessera::data
