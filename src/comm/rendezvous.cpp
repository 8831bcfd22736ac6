#include "comm/rendezvous.hpp"

#include <poll.h>

#include <algorithm>
#include <thread>

namespace tessera::comm {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

// A rank waits a little longer than rank 0, so that it hears from rank 0 who is missing.
constexpr milliseconds kHearsay(1500);
constexpr milliseconds kRetry(20);

SteadyClock::time_point after(Seconds patience) {
  return SteadyClock::now() +
         std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(std::min(patience.value, 1e8)));
}

milliseconds left_until(SteadyClock::time_point deadline) {
  return std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(deadline - SteadyClock::now()) + milliseconds(1));
}

std::string to_hex(const std::string& bytes) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string hex;
  for (const unsigned char byte : bytes) {
    hex.push_back(digits[byte >> 4]);
    hex.push_back(digits[byte & 15]);
  }
  return hex;
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

json to_json(const Introduction& one) {
  return {{"address", to_hex(one.network_address)},
          {"host", one.host},
          {"process", one.process},
          {"segment", one.segment},
          {"nonce", one.nonce}};
}

Introduction introduction_from(const json& message) {
  return {from_hex(message.at("address")), message.at("host"), message.at("process"), message.at("segment"), message.at("nonce")};
}

std::string list_of(const std::vector<int>& ranks) {
  std::string list = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) list += text(i ? ", " : "", ranks[i]);
  return list;
}

// All ranks are started together, however long their collectives may take.
Seconds patience_of(const Options& options) { return std::min(options.deadline, Seconds(300)); }

[[noreturn]] void throw_absent(const Options& options, const std::vector<int>& absent) {
  throw Error(ErrorCode::deadline_exceeded,
              text(list_of(absent), " did not come to the rendezvous ", options.rendezvous, " of task '", options.task, "' within ",
                   to_text(patience_of(options))),
              {.file = {}, .rank = options.rank, .block = {}}, text("all ", options.world_size, " ranks"),
              "see in their logs whether they started, and whether their hosts reach this address");
}

// Why this newcomer cannot be let in; empty when it can.
std::string objection(const Options& options, const json& hello, const Meeting& meeting) {
  if (hello.value("task", "") != options.task)
    return text("rank 0 at ", options.rendezvous, " belongs to task '", options.task, "', this rank to task '", hello.value("task", ""),
                "'");
  if (hello.value("world", 0) != options.world_size)
    return text("rank 0 was started for ", options.world_size, " ranks, this rank for ", hello.value("world", 0));
  const int rank = hello.value("rank", -1);
  if (rank < 1 || rank >= options.world_size) return text("there is no rank ", rank, " among ", options.world_size, " ranks");
  if (meeting.sockets[static_cast<std::size_t>(rank)].open()) return text("rank ", rank, " is there already");
  return {};
}

std::vector<int> absent_ranks(const Meeting& meeting) {
  std::vector<int> absent;
  for (std::size_t rank = 1; rank < meeting.sockets.size(); ++rank) {
    if (!meeting.sockets[rank].open()) absent.push_back(static_cast<int>(rank));
  }
  return absent;
}

// Waits until one of the sockets has something to read; false at the deadline.
bool wait_any(std::vector<pollfd>& waiting, SteadyClock::time_point deadline) {
  return poll(waiting.data(), waiting.size(), static_cast<int>(std::min<std::int64_t>(left_until(deadline).count(), 1000))) > 0 ||
         SteadyClock::now() < deadline;
}

void admit(const Options& options, Meeting& meeting, FrameSocket& newcomer, const json& hello) {
  const std::string problem = objection(options, hello, meeting);
  if (!problem.empty()) {
    newcomer.send({{"refused", problem}, {"code", "invalid_config"}});
    newcomer.close();
    return;
  }
  const auto rank = static_cast<std::size_t>(hello.at("rank").get<int>());
  meeting.ranks[rank] = introduction_from(hello.at("self"));
  meeting.sockets[rank] = std::move(newcomer);
}

Meeting host(const Options& options, const Introduction& own) {
  const Descriptor listener = listen_at(parse_host_port(options.rendezvous));
  const auto deadline = after(patience_of(options));
  Meeting meeting;
  meeting.ranks.resize(static_cast<std::size_t>(options.world_size));
  meeting.sockets.resize(static_cast<std::size_t>(options.world_size));
  meeting.ranks[0] = own;
  std::vector<FrameSocket> strangers;
  while (true) {
    const std::vector<int> absent = absent_ranks(meeting);
    if (absent.empty()) break;
    std::vector<pollfd> waiting{{listener.get(), POLLIN, 0}};
    for (const FrameSocket& stranger : strangers) waiting.push_back({stranger.fd(), POLLIN, 0});
    if (!wait_any(waiting, deadline)) {
      for (FrameSocket& socket : meeting.sockets) {
        if (socket.open()) socket.send({{"absent", absent}});
      }
      throw_absent(options, absent);
    }
    while (Descriptor arrived = accept_from(listener)) strangers.emplace_back(std::move(arrived));
    // A rank that died while it waited may come again: perhaps it is among the strangers.
    for (FrameSocket& socket : meeting.sockets) {
      if (socket.open() && !socket.receive()) socket.close();
    }
    for (FrameSocket& stranger : strangers) {
      try {
        const bool alive = stranger.receive();
        if (const auto hello = stranger.next()) {
          admit(options, meeting, stranger, *hello);
        } else if (!alive) {
          stranger.close();
        }
      } catch (const std::exception&) {
        stranger.close();  // no rank speaks like this
      }
    }
    std::erase_if(strangers, [](const FrameSocket& stranger) { return !stranger.open(); });
  }
  json all = json::array();
  for (const Introduction& one : meeting.ranks) all.push_back(to_json(one));
  for (FrameSocket& socket : meeting.sockets) {
    if (socket.open()) socket.send({{"ranks", all}});
  }
  return meeting;
}

// One message from this socket, or an Error; `who` is the rank at the other end.
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

Meeting join(const Options& options, const Introduction& own) {
  const HostPort place = parse_host_port(options.rendezvous);
  const auto deadline = after(patience_of(options));
  while (true) {
    Descriptor connection = connect_once(place, std::min(left_until(deadline), milliseconds(2000)));
    if (!connection) {
      if (SteadyClock::now() > deadline) throw_absent(options, {0});
      std::this_thread::sleep_for(kRetry);
      continue;
    }
    FrameSocket socket(std::move(connection));
    socket.send({{"task", options.task}, {"rank", options.rank}, {"world", options.world_size}, {"self", to_json(own)}});
    json answer;
    try {
      answer = receive_one(options, socket, 0, deadline + kHearsay);
    } catch (const Error& error) {
      // Rank 0 of an earlier run may just be closing at this port.
      if (error.code() != ErrorCode::peer_lost || SteadyClock::now() > deadline) throw;
      std::this_thread::sleep_for(kRetry);
      continue;
    }
    if (answer.contains("absent")) throw_absent(options, answer.at("absent").get<std::vector<int>>());
    if (answer.contains("refused")) {
      throw Error(ErrorCode::invalid_config, text("refused at the rendezvous: ", answer.at("refused").get<std::string>()),
                  {.file = {}, .rank = options.rank, .block = {}}, "one task, one world size and one process per rank at each rendezvous",
                  "start all ranks with the same files and the same version, and give each task a port of its own");
    }
    Meeting meeting;
    for (const json& one : answer.at("ranks")) meeting.ranks.push_back(introduction_from(one));
    meeting.sockets.resize(1);
    meeting.sockets[0] = std::move(socket);
    return meeting;
  }
}

}  // namespace

Meeting meet(const Options& options, const Introduction& own) { return options.rank == 0 ? host(options, own) : join(options, own); }

std::vector<json> exchange(const Options& options, Meeting& meeting, const json& own) {
  const auto deadline = after(patience_of(options));
  if (options.rank != 0) {
    meeting.sockets[0].send({{"own", own}});
    return receive_one(options, meeting.sockets[0], 0, deadline).at("all").get<std::vector<json>>();
  }
  std::vector<json> all(meeting.sockets.size());
  all[0] = own;
  for (std::size_t rank = 1; rank < meeting.sockets.size(); ++rank) {
    all[rank] = receive_one(options, meeting.sockets[rank], static_cast<int>(rank), deadline).at("own");
  }
  for (std::size_t rank = 1; rank < meeting.sockets.size(); ++rank) {
    meeting.sockets[rank].send({{"all", all}});
    while (!meeting.sockets[rank].flush() && SteadyClock::now() < deadline) std::this_thread::sleep_for(kRetry);
  }
  return all;
}

}  // namespace tessera::comm
