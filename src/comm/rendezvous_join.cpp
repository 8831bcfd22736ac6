// The side of the ranks other than 0.
#include <algorithm>
#include <thread>

#include "base/secret.hpp"
#include "comm/proof.hpp"
#include "comm/rendezvous.hpp"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

// A rank waits a little longer than rank 0, so that it hears from rank 0 who is missing.
constexpr milliseconds kHearsay(1500);
constexpr milliseconds kJoinAgain(20);

[[noreturn]] void throw_not_of_this_run(const Options& options) {
  const std::string what = options.secret.empty() ? text("rank ", options.rank, " has no secret, and rank 0 at ", options.rendezvous,
                                                         " belongs to a run that has one")
                                                  : text("rank 0 at ", options.rendezvous, " does not know the secret of rank ",
                                                         options.rank, ": it has another one or none, or belongs to another run");
  throw Error(ErrorCode::invalid_config, what, {.file = {}, .rank = options.rank, .block = {}},
              text("the same secret on every rank, in ", kSecretVariable, " or in the file that ", kSecretFileVariable, " names"),
              "see that the launcher passes the variable on to every host, and give each run a port of its own");
}

[[noreturn]] void throw_refused(const Options& options, const std::string& reason) {
  throw Error(ErrorCode::invalid_config, "refused at the rendezvous: " + reason, {.file = {}, .rank = options.rank, .block = {}},
              "one task, one world size and one process per rank at each rendezvous",
              "start all ranks with the same files and the same version, and give each task a port of its own");
}

// Rank 0's answer to this rank's claim, and the proof of both.
Answer converse(const Options& options, const Introduction& own, FrameSocket& socket, SteadyClock::time_point deadline) {
  Conversation talk{options.secret, random_bytes(kNonceBytes), {}};
  socket.send(to_json(Greeting{talk.rank_nonce}));
  const Challenge challenge = challenge_from(receive_one(options, socket, 0, deadline + kHearsay));
  talk.host_nonce = challenge.nonce;
  if (!is_proof(challenge.proof, talk, Statement::rank_0_knows_the_secret)) throw_not_of_this_run(options);
  socket.trust();
  const std::string claim = to_body(Claim{options.task, options.rank, options.world_size, own, options.epoch});
  socket.send(to_json(Sealed{claim, proof_of(talk, Statement::claim, claim)}));
  const Sealed sealed = sealed_from(receive_one(options, socket, 0, deadline + kHearsay));
  if (!is_proof(sealed.proof, talk, Statement::answer, sealed.body)) throw_not_of_this_run(options);
  return answer_from(sealed.body, options.world_size);
}

}  // namespace

Meeting join_rendezvous(const Options& options, const Introduction& own) {
  const HostPort place = parse_host_port(options.rendezvous);
  const auto deadline = rendezvous_deadline(options);
  while (true) {
    Descriptor connection = connect_once(place, std::min(left_until(deadline), milliseconds(2000)));
    if (!connection) {
      if (SteadyClock::now() > deadline) throw_absent(options, {0});
      std::this_thread::sleep_for(kJoinAgain);
      continue;
    }
    FrameSocket socket(std::move(connection));
    Answer answer;
    try {
      answer = converse(options, own, socket, deadline);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::corrupt)
        throw Error(ErrorCode::invalid_config,
                    text("what listens at ", options.rendezvous, " does not speak as rank 0 of this run: ", error.message()),
                    {.file = {}, .rank = options.rank, .block = {}}, "rank 0 of the same version",
                    "give the run a port of its own, and start all ranks with the same version");
      // Rank 0 of an earlier run may just be closing at this port, or rank 0 had too many strangers before it.
      if (error.code() != ErrorCode::peer_lost || SteadyClock::now() > deadline) throw;
      std::this_thread::sleep_for(kJoinAgain);
      continue;
    }
    if (const auto* absence = std::get_if<Absence>(&answer)) throw_absent(options, absence->ranks);
    if (const auto* refusal = std::get_if<Refusal>(&answer)) throw_refused(options, refusal->reason);
    Meeting meeting;
    meeting.ranks = std::get<Roll>(std::move(answer)).ranks;
    meeting.sockets.resize(1);
    meeting.sockets[0] = std::move(socket);
    return meeting;
  }
}

}  // namespace tessera::comm
