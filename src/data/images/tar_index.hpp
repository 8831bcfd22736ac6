// internal: what a tar archive holds and where.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::data {

struct TarMember {
  std::string name;
  std::uint64_t begin = 0;  // of its content in the file
  std::uint64_t size = 0;
};

// The files in an archive that is not compressed, in its order; of USTAR, GNU's and pax's kinds. Reads headers alone. Throws corrupt, io.
// Samples are read at random, so places are asked for, which no archive library tells.
std::vector<TarMember> index_tar(const std::filesystem::path& archive);

// Reads `size` bytes of a file from `begin` on. Throws io, or corrupt if the file ends earlier.
std::string read_part(const std::filesystem::path& file, std::uint64_t begin, std::uint64_t size);

}  // namespace tessera::data
