#include "comm/rendezvous_messages.hpp"

#include <climits>

#include "base/error.hpp"
#include "base/hex.hpp"
#include "comm/fields.hpp"
#include "comm/frames.hpp"
#include "comm/proof.hpp"

namespace tessera::comm {
namespace {

using nlohmann::json;

// Of the protocol below; ranks of another one are told so.
constexpr int kProtocol = 2;
// An address of UCX takes some hundred bytes for each adapter.
constexpr std::size_t kLongestAddress = 16 << 10;
constexpr std::size_t kLongestName = 4 << 10;

std::string exactly(std::string bytes, std::size_t size, const char* name) {
  if (bytes.size() != size) refuse_message(text("'", name, "' has ", bytes.size(), " bytes"), text(size));
  return bytes;
}

// A name need not be UTF-8.
std::string dumped(const json& message) { return message.dump(-1, ' ', false, json::error_handler_t::replace); }

json json_of(const Introduction& one) {
  return {{"address", to_hex(one.network_address)},
          {"host", one.host},
          {"process", one.process},
          {"segment", one.segment},
          {"nonce", one.nonce},
          {"gpu", one.gpu}};
}

Introduction introduction_from(const json& message) {
  if (!message.is_object()) refuse_message("a rank does not introduce itself");
  return {bytes_in(message, "address", kLongestAddress),
          text_in(message, "host", kLongestName),
          static_cast<int>(integer_in(message, "process", 0, INT_MAX)),
          static_cast<int>(integer_in(message, "segment", -1, INT_MAX)),
          unsigned_of(field_of(message, "nonce"), "nonce"),
          text_in(message, "gpu", kLongestName)};
}

}  // namespace

json to_json(const Greeting& greeting) { return {{"tessera", kProtocol}, {"nonce", to_hex(greeting.nonce)}}; }
json to_json(const Challenge& challenge) { return {{"nonce", to_hex(challenge.nonce)}, {"proof", to_hex(challenge.proof)}}; }
json to_json(const Sealed& sealed) { return {{"body", sealed.body}, {"proof", to_hex(sealed.proof)}}; }

Greeting greeting_from(const json& message) {
  integer_in(message, "tessera", kProtocol, kProtocol);
  return {exactly(bytes_in(message, "nonce", kNonceBytes), kNonceBytes, "nonce")};
}

Challenge challenge_from(const json& message) {
  return {exactly(bytes_in(message, "nonce", kNonceBytes), kNonceBytes, "nonce"),
          exactly(bytes_in(message, "proof", kProofBytes), kProofBytes, "proof")};
}

Sealed sealed_from(const json& message) {
  return {text_in(message, "body", kLongestProven), exactly(bytes_in(message, "proof", kProofBytes), kProofBytes, "proof")};
}

std::string to_body(const Claim& claim) {
  return dumped(
      {{"task", claim.task}, {"rank", claim.rank}, {"world", claim.world_size}, {"self", json_of(claim.self)}, {"epoch", claim.epoch}});
}

Claim claim_from(const std::string& body) {
  const json message = parse_object(body);
  return {text_in(message, "task", kLongestName), static_cast<int>(integer_in(message, "rank", 0, INT_MAX)),
          static_cast<int>(integer_in(message, "world", 0, INT_MAX)), introduction_from(field_of(message, "self")),
          integer_in(message, "epoch", 0, INT64_MAX)};
}

std::string to_body(const Answer& answer) {
  json message;
  if (const auto* refusal = std::get_if<Refusal>(&answer)) message["refused"] = refusal->reason;
  if (const auto* absence = std::get_if<Absence>(&answer)) message["absent"] = absence->ranks;
  if (const auto* roll = std::get_if<Roll>(&answer)) {
    message["ranks"] = json::array();
    for (const Introduction& one : roll->ranks) message["ranks"].push_back(json_of(one));
  }
  return dumped(message);
}

Answer answer_from(const std::string& body, int world_size) {
  const json message = parse_object(body);
  if (message.contains("refused")) return Refusal{text_in(message, "refused", kLongestUnproven)};
  if (message.contains("absent")) return Absence{ranks_of(message["absent"], "absent", world_size)};
  const json& ranks = field_of(message, "ranks");
  if (!ranks.is_array() || ranks.size() != static_cast<std::size_t>(world_size))
    refuse_message("'ranks' does not list all ranks", text(world_size));
  Roll roll;
  for (const json& one : ranks) roll.ranks.push_back(introduction_from(one));
  return roll;
}

json reached_to_json(const std::vector<int>& reached) { return {{"reached", reached}}; }
json all_reached_to_json(const std::vector<std::vector<int>>& all) { return {{"all", all}}; }

std::vector<int> reached_from(const json& message, int world_size) { return ranks_of(field_of(message, "reached"), "reached", world_size); }

std::vector<std::vector<int>> all_reached_from(const json& message, int world_size) {
  const json& lists = field_of(message, "all");
  if (!lists.is_array() || lists.size() != static_cast<std::size_t>(world_size))
    refuse_message("'all' does not say what each rank reaches", text(world_size, " lists"));
  std::vector<std::vector<int>> all;
  for (const json& one : lists) all.push_back(ranks_of(one, "all", world_size));
  return all;
}

}  // namespace tessera::comm
