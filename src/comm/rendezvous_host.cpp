// The side of rank 0.
#include <poll.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/secret.hpp"
#include "comm/proof.hpp"
#include "comm/rendezvous.hpp"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

// Connected, and not known yet to be of this run.
struct Stranger {
  FrameSocket socket;
  Conversation talk;  // without nonces until it has greeted
  SteadyClock::time_point since;
  std::string from;
  bool greeted() const { return !talk.rank_nonce.empty(); }
};

class Host {
 public:
  Host(const Options& options, const Introduction& own)
      : options_(options), listener_(listen_at(parse_host_port(options.rendezvous))), deadline_(rendezvous_deadline(options)) {
    const auto world = static_cast<std::size_t>(options.world_size);
    meeting_.ranks.resize(world);
    meeting_.sockets.resize(world);
    meeting_.ranks[0] = own;
    talks_.resize(world);
  }

  Meeting run() {
    for (std::vector<int> absent = absent_ranks(); !absent.empty(); absent = absent_ranks()) {
      wait();
      if (SteadyClock::now() > deadline_) {
        answer_all(Absence{absent});
        throw_absent(options_, absent, unproven());
      }
      look_after_ranks();
      accept();
      for (Stranger& stranger : strangers_) hear(stranger);
      std::erase_if(strangers_, [](const Stranger& stranger) { return !stranger.socket.open(); });
    }
    answer_all(Roll{meeting_.ranks});
    return std::move(meeting_);
  }

 private:
  std::vector<int> absent_ranks() const {
    std::vector<int> absent;
    for (std::size_t rank = 1; rank < meeting_.sockets.size(); ++rank) {
      if (!meeting_.sockets[rank].open()) absent.push_back(static_cast<int>(rank));
    }
    return absent;
  }

  // Until somebody comes or says something, at most a second; shorter while strangers fill the room, whose time runs out soon.
  void wait() const {
    const bool full = strangers_.size() >= kMostStrangers;
    std::vector<pollfd> waiting{{full ? -1 : listener_.get(), POLLIN, 0}};
    for (const Stranger& stranger : strangers_) waiting.push_back({stranger.socket.fd(), POLLIN, 0});
    const milliseconds patience = std::min(left_until(deadline_), full ? kGrace / 10 : milliseconds(1000));
    poll(waiting.data(), waiting.size(), static_cast<int>(patience.count()));
  }

  // A rank that died while it waited may come again.
  void look_after_ranks() {
    for (FrameSocket& socket : meeting_.sockets) {
      if (socket.open() && !socket.receive()) socket.close();
    }
  }

  void accept() {
    const auto now = SteadyClock::now();
    while (true) {
      if (strangers_.size() >= kMostStrangers && !make_room(now)) return;
      Descriptor arrived = accept_from(listener_);
      if (!arrived) return;
      std::string from = address_of_peer(arrived.get());
      strangers_.push_back({FrameSocket(std::move(arrived)), {options_.secret, {}, {}}, now, std::move(from)});
    }
  }

  // Ranks speak as soon as they are connected: who has said nothing goes first, then who has been here for longest. False where all have
  // just come.
  bool make_room(SteadyClock::time_point now) {
    const auto first = std::min_element(strangers_.begin(), strangers_.end(), [](const Stranger& a, const Stranger& b) {
      return a.greeted() != b.greeted() ? b.greeted() : a.since < b.since;
    });
    if (now - first->since < kGrace) return false;
    note_unproven(*first);
    strangers_.erase(first);
    return true;
  }

  void hear(Stranger& stranger) {
    try {
      const bool alive = stranger.socket.receive();
      while (stranger.socket.open()) {
        const auto message = stranger.socket.next();
        if (!message) break;
        stranger.greeted() ? judge(stranger, sealed_from(*message)) : challenge(stranger, greeting_from(*message));
      }
      if (!stranger.socket.open() || (alive && SteadyClock::now() - stranger.since < kProofPatience)) return;
    } catch (const Error&) {
      // No rank speaks like this.
    }
    note_unproven(stranger);
    stranger.socket.close();
  }

  void challenge(Stranger& stranger, const Greeting& greeting) {
    stranger.talk.rank_nonce = greeting.nonce;
    stranger.talk.host_nonce = random_bytes(kNonceBytes);
    stranger.socket.send(to_json(Challenge{stranger.talk.host_nonce, proof_of(stranger.talk, Statement::rank_0_knows_the_secret)}));
  }

  void judge(Stranger& stranger, const Sealed& sealed) {
    if (!is_proof(sealed.proof, stranger.talk, Statement::claim, sealed.body)) {
      note_unproven(stranger);
      stranger.socket.close();
      return;
    }
    stranger.socket.trust();
    const Claim claim = claim_from(sealed.body);
    const std::string problem = objection(claim);
    if (!problem.empty()) {
      answer(stranger.socket, stranger.talk, Refusal{problem});
      stranger.socket.close();
      return;
    }
    const auto rank = static_cast<std::size_t>(claim.rank);
    meeting_.ranks[rank] = claim.self;
    meeting_.sockets[rank] = std::move(stranger.socket);
    stranger.socket.close();
    talks_[rank] = std::move(stranger.talk);
  }

  // Why this rank of the run cannot be let in; empty when it can.
  std::string objection(const Claim& claim) const {
    if (claim.task != options_.task)
      return text("rank 0 at ", options_.rendezvous, " belongs to task '", options_.task, "', this rank to task '", claim.task, "'");
    if (claim.epoch != options_.epoch)
      return text("the ranks of task '", options_.task, "' are in epoch ", options_.epoch, ", this rank is in epoch ", claim.epoch);
    if (claim.world_size != options_.world_size)
      return text("rank 0 was started for ", options_.world_size, " ranks, this rank for ", claim.world_size);
    if (claim.rank < 1 || claim.rank >= options_.world_size)
      return text("there is no rank ", claim.rank, " among ", options_.world_size, " ranks");
    if (meeting_.sockets[static_cast<std::size_t>(claim.rank)].open()) return text("rank ", claim.rank, " is there already");
    return {};
  }

  static void answer(FrameSocket& socket, const Conversation& talk, const Answer& answer) {
    const std::string body = to_body(answer);
    socket.send(to_json(Sealed{body, proof_of(talk, Statement::answer, body)}));
  }

  void answer_all(const Answer& said) {
    for (std::size_t rank = 1; rank < meeting_.sockets.size(); ++rank) {
      if (meeting_.sockets[rank].open()) answer(meeting_.sockets[rank], talks_[rank], said);
    }
  }

  void note_unproven(const Stranger& stranger) {
    ++unproven_;
    last_unproven_ = stranger.from;
    log::debug(text("a connection from ", stranger.from, " did not prove that it belongs to the run"));
  }

  std::string unproven() const {
    if (unproven_ == 0) return {};
    return text("; ", unproven_, unproven_ == 1 ? " connection, from " : " connections, the last one from ", last_unproven_,
                ", did not prove to know the secret of the run");
  }

  const Options& options_;
  const Descriptor listener_;
  const SteadyClock::time_point deadline_;
  Meeting meeting_;
  std::vector<Conversation> talks_;  // by rank
  std::vector<Stranger> strangers_;
  std::int64_t unproven_ = 0;
  std::string last_unproven_;
};

}  // namespace

Meeting host_rendezvous(const Options& options, const Introduction& own) { return Host(options, own).run(); }

}  // namespace tessera::comm
