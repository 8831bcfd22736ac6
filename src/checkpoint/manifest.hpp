// Internal: the manifest of a checkpoint, and what each rank tells rank 0 about its file. Text whose own digest stands at its end, so that
// any changed bit shows.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/cut.hpp"
#include "checkpoint/safetensors.hpp"
#include "checkpoint/state.hpp"

namespace tessera::checkpoint {

// A safetensors file of one rank.
struct ShardFile {
  std::string name;  // "rank-00003.safetensors"; in the folder of the manifest
  std::int64_t bytes = 0;
  std::int64_t header_bytes = 0;
  std::string header_digest;
};

// A piece as it lies in a file.
struct StoredPiece {
  Cut cut;
  int file = 0;             // index into the list of files
  std::int64_t offset = 0;  // bytes, in the whole file
  std::int64_t bytes = 0;
  std::string digest;
};

struct StoredPieces {
  std::vector<std::int64_t> shape;
  ElementType type = ElementType::f32;
  std::vector<StoredPiece> pieces;
};

struct Manifest {
  State state;
  std::vector<ShardFile> files;
  std::map<std::string, StoredPieces> tensors;
};

std::string to_text(const Manifest& manifest);
// Throws corrupt, naming `path`, when the digest or the content is not right. Of what it returns, every file's name is plain (no way out
// of the folder), every piece is a valid cut of its tensor, as long as that cut says, and lies in its file behind the header, where no
// other piece lies.
Manifest parse_manifest(const std::string& text, const std::filesystem::path& path);
// Throws corrupt unless the pieces make up every tensor exactly once. What one rank says of its file need not pass.
void require_whole(const Manifest& manifest, const std::filesystem::path& path);

inline constexpr const char* kManifestName = "manifest.json";
std::string shard_name(int rank, const char* extension);

}  // namespace tessera::checkpoint
