// How two processes prove to each other that they know a run's secret, without saying it: HMAC-SHA256 (RFC 2104) over what is
// said and over a number that each of them has just drawn, so that what was said in one conversation proves nothing in another.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::comm {

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;

// One connection between a rank and rank 0.
struct Conversation {
  std::string secret;  // empty: a run without one, whose proofs prove nothing
  std::string rank_nonce;
  std::string host_nonce;
};

// What is proved; a proof of one is none of another.
enum class Statement {
  rank_0_knows_the_secret,  // at the rendezvous
  claim,
  answer,
  launcher_knows_the_secret,  // between a launcher and its agents on other hosts, where rank_nonce is the agent's
  agent_knows_the_secret,
  server_knows_the_secret,  // between a client and a server (comm/requests.hpp), where rank_nonce is the client's
  asks_to_be_a_client,
  takes_the_client
};

// kProofBytes bytes.
std::string proof_of(const Conversation& conversation, Statement statement, std::string_view body = {});
// Takes as long for a wrong proof as for the right one.
bool is_proof(const std::string& proof, const Conversation& conversation, Statement statement, std::string_view body = {});

}  // namespace tessera::comm
