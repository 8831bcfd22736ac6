// The secret of a run: what its ranks know and nobody else does. It proves that a process belongs to the run, and never stands on a
// command line or in a log.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace tessera {

// The variables that hold the secret itself, or the path of a file that holds it.
inline constexpr const char* kSecretVariable = "TESSERA_SECRET";
inline constexpr const char* kSecretFileVariable = "TESSERA_SECRET_FILE";
// The variable that holds the secret of the parameter servers of a run, where it is not the run's own; empty: they have none.
inline constexpr const char* kServersSecretVariable = "TESSERA_SERVERS_SECRET";
// Characters that a secret must have at least, and at most.
inline constexpr std::size_t kShortestSecret = 32;
inline constexpr std::size_t kLongestSecret = 1024;

// Bytes from the system's random source. Throws io.
std::string random_bytes(std::size_t count);
// A new secret: 64 hexadecimal digits from the system's random source.
std::string make_secret();
// The secret in TESSERA_SECRET or, where that is not set, in the file that TESSERA_SECRET_FILE names; white space at its ends does not
// count. None where neither is set. Throws invalid_config for one that is too short or too long, and for a file that anybody but its
// owner can read or that another user owns; not_found or io for a file that cannot be read.
std::optional<std::string> secret_from_environment();
// What TESSERA_SERVERS_SECRET holds, or the above; empty: none. Throws likewise.
std::string servers_secret_from_environment();

}  // namespace tessera
