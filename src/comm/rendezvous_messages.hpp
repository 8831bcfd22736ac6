// Internal. What ranks tell each other at the rendezvous, as data and as JSON, in the order in which it is said:
//
//   rank    Greeting    a number that this rank has just drawn
//   rank 0  Challenge   a number that rank 0 has just drawn, and the proof that rank 0 knows the secret
//   rank    Claim       who this rank is, sealed: the proof is over every byte of it and over both numbers
//   rank 0  Answer      all ranks, or why not, sealed in the same way
//   all     reached     what each rank can reach, and what all can
//
// Until the claim is proved nothing of the run is said. The readers throw corrupt for anything that the writers do not write.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

namespace tessera::comm {

// What a rank tells the others about itself.
struct Introduction {
  std::string network_address;  // opaque bytes of the transport
  std::string host;             // equal for ranks that may share memory; empty: never
  int process = 0;
  int segment = -1;         // descriptor number of its shared segment in that process
  std::uint64_t nonce = 0;  // stands at the segment's start
  std::string gpu = {};     // equal for ranks that have the same one; empty: none
};

struct Greeting {
  std::string nonce;
};

struct Challenge {
  std::string nonce;
  std::string proof;
};

// JSON as text, so that the proof is over the very bytes that are read.
struct Sealed {
  std::string body;
  std::string proof;
};

struct Claim {
  std::string task;
  int rank = 0;
  int world_size = 0;
  Introduction self;
  std::int64_t epoch = 0;
};

struct Refusal {
  std::string reason;
};
struct Absence {
  std::vector<int> ranks;
};
struct Roll {
  std::vector<Introduction> ranks;
};
using Answer = std::variant<Refusal, Absence, Roll>;

nlohmann::json to_json(const Greeting& greeting);
nlohmann::json to_json(const Challenge& challenge);
nlohmann::json to_json(const Sealed& sealed);
Greeting greeting_from(const nlohmann::json& message);
Challenge challenge_from(const nlohmann::json& message);
Sealed sealed_from(const nlohmann::json& message);

// Bodies of sealed messages.
std::string to_body(const Claim& claim);
std::string to_body(const Answer& answer);
Claim claim_from(const std::string& body);
Answer answer_from(const std::string& body, int world_size);

// World ranks that one rank reaches; those of all ranks, in rank order.
nlohmann::json reached_to_json(const std::vector<int>& reached);
nlohmann::json all_reached_to_json(const std::vector<std::vector<int>>& all);
std::vector<int> reached_from(const nlohmann::json& message, int world_size);
std::vector<std::vector<int>> all_reached_from(const nlohmann::json& message, int world_size);

}  // namespace tessera::comm
