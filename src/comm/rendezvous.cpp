#include "comm/rendezvous.hpp"

#include <algorithm>
#include <thread>

#include "base/secret.hpp"

namespace tessera::comm {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr milliseconds kRetry(20);

Seconds patience_of(const Options& options) { return std::min(options.deadline, Seconds(300)); }

std::string list_of(const std::vector<int>& ranks) {
  std::string list = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) list += text(i ? ", " : "", ranks[i]);
  return list;
}

// Users of this host may join a run without a secret; users of others never.
void check_secret(const Options& options) {
  if (!options.secret.empty() || is_loopback(parse_host_port(options.rendezvous))) return;
  throw Error(ErrorCode::invalid_config,
              text("rank ", options.rank, " has no secret of the run, and other hosts can reach the rendezvous ", options.rendezvous,
                   ": whoever does could join"),
              {.file = {}, .rank = options.rank, .block = {}},
              text("the same secret in the environment of every rank: ", kSecretVariable, ", or ", kSecretFileVariable,
                   " with the path of a file that only its owner can open"),
              text("make one before the ranks are started: export ", kSecretVariable,
                   "=$(openssl rand -hex 32); srun passes it on, mpirun with -x ", kSecretVariable));
}

}  // namespace

SteadyClock::time_point rendezvous_deadline(const Options& options) {
  const double seconds = std::min(patience_of(options).value, 1e8);
  return SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(seconds));
}

void throw_absent(const Options& options, const std::vector<int>& absent, const std::string& also) {
  throw Error(ErrorCode::deadline_exceeded,
              text(list_of(absent), " did not come to the rendezvous ", options.rendezvous, " of task '", options.task, "' within ",
                   to_text(patience_of(options)), also),
              {.file = {}, .rank = options.rank, .block = {}}, text("all ", options.world_size, " ranks"),
              "see in their logs whether they started, and whether their hosts reach this address");
}

json receive_one(const Options& options, FrameSocket& socket, int who, SteadyClock::time_point deadline) {
  while (true) {
    if (auto message = socket.next()) return *message;
    socket.flush();
    const bool open = socket.receive();
    if (auto message = socket.next()) return *message;
    if (!open)
      throw Error(ErrorCode::peer_lost, text("rank ", who, " went away during the rendezvous"),
                  {.file = {}, .rank = options.rank, .block = {}}, {}, text("see rank ", who, "'s log"));
    if (SteadyClock::now() > deadline) throw_absent(options, {who});
    wait_readable(socket.fd(), std::min(left_until(deadline), socket.has_unsent() ? kRetry : milliseconds(1000)));
  }
}

Meeting meet(const Options& options, const Introduction& own) {
  check_secret(options);
  return options.rank == 0 ? host_rendezvous(options, own) : join_rendezvous(options, own);
}

std::vector<std::vector<int>> exchange_reached(const Options& options, Meeting& meeting, const std::vector<int>& own) {
  const auto deadline = rendezvous_deadline(options);
  if (options.rank != 0) {
    meeting.sockets[0].send(reached_to_json(own));
    return all_reached_from(receive_one(options, meeting.sockets[0], 0, deadline), options.world_size);
  }
  std::vector<std::vector<int>> all(meeting.sockets.size());
  all[0] = own;
  for (std::size_t rank = 1; rank < meeting.sockets.size(); ++rank)
    all[rank] = reached_from(receive_one(options, meeting.sockets[rank], static_cast<int>(rank), deadline), options.world_size);
  for (std::size_t rank = 1; rank < meeting.sockets.size(); ++rank) {
    meeting.sockets[rank].send(all_reached_to_json(all));
    while (!meeting.sockets[rank].flush() && SteadyClock::now() < deadline) std::this_thread::sleep_for(kRetry);
  }
  return all;
}

}  // namespace tessera::comm
