// Where tests find what is not compiled into them.
#pragma once

namespace tessera {

/// The checkout that these tests were built from, as an absolute path.
extern const char* const kSourceFolder;
/// What CMake built them in: the programs are in its bin.
extern const char* const kBinaryFolder;

}  // namespace tessera
