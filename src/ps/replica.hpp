// Internal. A server's shards and its part in a pair, whatever carries the messages: which of the two leads, what the other one is handed,
// when it takes over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "base/file_system.hpp"
#include "comm/requests.hpp"
#include "ps/saves.hpp"
#include "ps/server.hpp"
#include "ps/shards.hpp"
#include "ps/write_ahead_log.hpp"

namespace tessera::ps {

// At a place: whether one listens there. Unknown: the host cannot be reached.
enum class Process { listens, ended, unknown };

// What a replica reaches its partner and its clients through: sockets, or what a test puts in their place.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  // These two are also called by the thread that asks who leads (Replica::ask_at_start), and may take half a second, and the deadline.
  virtual Process partner_process() const = 0;
  // Throws as comm::RequestClient does.
  virtual std::unique_ptr<comm::Requester> connect_to_partner(const comm::RequestClient::Options& options) const = 0;
  // See comm::RequestServer.
  virtual void stand_by(bool standby) = 0;
  virtual bool is_connected(comm::RequestServer::ClientId client) const = 0;
  // Sleeps until the partner is looked at again. False: the server is to stop.
  virtual bool sleep() = 0;
};

// The partner leads, and this server must not acknowledge anything any more.
struct Superseded : std::exception {};

// Not thread-safe.
class Replica {
 public:
  Replica(std::string place, const ServerOptions& options, Surroundings& surroundings);

  // To be called once, before all else: reads the log. Throws as WriteAheadLog::restore() does.
  void restore();
  // See comm::RequestServer::Answer. Throws Superseded.
  std::optional<std::size_t> answer(const comm::RequestServer::Request& request, std::span<std::byte> reply);
  // What one of a pair does beside answering, from time to time. Throws Superseded.
  void look_at_partner();
  // Writes a little of a save, or of the log's base. False: there is nothing to write.
  bool go_on_saving();

  // One of a pair that holds nothing, and has heard of no leader, finds out what it is: ask_at_start() on a thread of its own, as the
  // partner may be asking, too; then decide() with what came of it.
  bool undecided() const { return pair_ && !leads_ && !leader_; }
  enum class Start { leads, waits };
  Start ask_at_start() const;
  void decide(Start start);

  bool leads() const { return leads_; }
  // Whether everything that it acknowledges is at its partner, too.
  bool has_backup() const { return backup_ != nullptr; }
  const Shards& shards() const { return shards_; }
  // See Shards::took.
  void took(std::span<const std::byte> request, Seconds seconds) { shards_.took(request, seconds); }

 private:
  void lead(const char* why);
  std::optional<std::size_t> answer_logged(const comm::RequestServer::Request& request, std::span<std::byte> reply);
  // Whether a worker that joins has to wait, as those of a run of another name are connected. Throws invalid_config once it has.
  bool waits_for_other_run(const comm::RequestServer::Request& request);
  void wait_for_backup(bool refused_here);
  void go_on_without_backup();
  // Whether the partner has been given everything; `perhaps`: its last word is missing.
  enum class Copied { no, perhaps, whole };
  Copied take_backup();
  Leads ask_who_leads(bool self_leads) const;
  // A load's: empties the tables, and loads what it names, if anything.
  void load(std::span<const std::byte> request);
  std::optional<std::size_t> save_or_load(const comm::RequestServer::Request& request, std::span<std::byte> reply);
  std::size_t say_status(std::span<std::byte> reply) const;
  std::size_t say_who_leads(std::span<const std::byte> request, std::span<std::byte> reply);

  std::string place_;
  std::optional<Pair> pair_;
  Surroundings& surroundings_;
  Shards shards_;
  Saves saves_{real_file_system()};  // of the shards' tables
  std::filesystem::path saves_to_ = {};
  std::unique_ptr<WriteAheadLog> log_ = {};
  std::uint64_t process_ = 0;  // random; constant, as two threads read it
  bool leads_ = false;
  std::unordered_map<Workers::ClientNumber, comm::RequestServer::ClientId> connections_ = {};  // of a leader's clients: the last ones
  std::unique_ptr<comm::Requester> backup_;                                                    // of a leader whose standby has everything
  std::optional<comm::RequestServer::ClientId> leader_ = {};                                   // of a standby: who has asked it last
  std::uint64_t process_of_leader_ = 0;                                                        // that has given it a copy
  std::uint64_t process_of_backup_ = 0;                                                        // that has taken one
};

}  // namespace tessera::ps
