#include "comm/proof.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/error.hpp"

namespace tessera::comm {
namespace {

std::string_view name_of(Statement statement) {
  switch (statement) {
    case Statement::rank_0_knows_the_secret: return "tessera rendezvous 1: rank 0";
    case Statement::claim: return "tessera rendezvous 1: claim";
    case Statement::answer: return "tessera rendezvous 1: answer";
    case Statement::launcher_knows_the_secret: return "tessera launcher 1: launcher";
    case Statement::agent_knows_the_secret: return "tessera launcher 1: agent";
    case Statement::server_knows_the_secret: return "tessera requests 1: server";
    case Statement::asks_to_be_a_client: return "tessera requests 1: client";
    case Statement::takes_the_client: return "tessera requests 1: session";
  }
  return {};
}

// With its length before it, so that no two lists of parts are the same bytes.
void append(std::string& to, std::string_view part) {
  for (int shift = 0; shift < 64; shift += 8) to.push_back(static_cast<char>(part.size() >> shift & 0xff));
  to += part;
}

}  // namespace

std::string proof_of(const Conversation& conversation, Statement statement, std::string_view body) {
  std::string said;
  for (const std::string_view part :
       {name_of(statement), std::string_view(conversation.rank_nonce), std::string_view(conversation.host_nonce), body})
    append(said, part);
  // Too short to be anybody's secret.
  const std::string key = conversation.secret.empty() ? "no secret" : conversation.secret;
  std::string proof(kProofBytes, '\0');
  unsigned int length = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(said.data()), said.size(),
           reinterpret_cast<unsigned char*>(proof.data()), &length);
  ensure(made != nullptr && length == kProofBytes, "libcrypto makes no HMAC-SHA256");
  return proof;
}

bool is_proof(const std::string& proof, const Conversation& conversation, Statement statement, std::string_view body) {
  const std::string right = proof_of(conversation, statement, body);
  return proof.size() == right.size() && CRYPTO_memcmp(proof.data(), right.data(), right.size()) == 0;
}

}  // namespace tessera::comm
