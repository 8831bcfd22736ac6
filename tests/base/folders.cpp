#include "base/folders.hpp"

namespace tessera {

// These paths are compiled in here alone: what another checkout has compiled of the tests is then found in the compiler's cache.
const char* const kSourceFolder = TESSERA_SOURCE_DIR;
const char* const kBinaryFolder = TESSERA_BINARY_DIR;

}  // namespace tessera
