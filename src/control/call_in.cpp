#include "control/call_in.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>

#include "base/clock.hpp"
#include "base/hex.hpp"
#include "base/secret.hpp"
#include "comm/fields.hpp"

namespace tessera::control {
namespace {

using comm::Conversation;
using comm::Statement;
using nlohmann::json;

constexpr Seconds kProofPatience(10);
constexpr std::size_t kMostStrangers = 1024;
constexpr std::chrono::milliseconds kConnectPatience(2000);

std::vector<std::string> own_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {"127.0.0.1"};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  std::vector<std::string> addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET || (entry->ifa_flags & IFF_UP) == 0) continue;
    char digits[INET_ADDRSTRLEN] = {};
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, digits, sizeof digits);
    addresses.emplace_back(digits);
  }
  std::stable_partition(addresses.begin(), addresses.end(), [](const std::string& address) { return !address.starts_with("127."); });
  return addresses;
}

std::string own_address_of(int fd) {
  sockaddr_in own{};
  socklen_t size = sizeof own;
  char digits[INET_ADDRSTRLEN] = {};
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0) ::inet_ntop(AF_INET, &own.sin_addr, digits, sizeof digits);
  return digits;
}

std::string proof_in(const json& message) { return comm::bytes_in(message, "proof", comm::kProofBytes); }
std::string nonce_in(const json& message) { return comm::bytes_in(message, "nonce", comm::kNonceBytes); }
std::string hex_of(const Conversation& talk, Statement statement) { return to_hex(comm::proof_of(talk, statement)); }

// The next message, or none where the line ends or `until` comes first.
std::optional<json> wait_for(Line& line, Seconds until) {
  for (;;) {
    const bool open = line.pump();
    if (auto message = line.next_json()) return message;
    const double left = (until - real_clock().now()).value;
    if (!open || left <= 0) return std::nullopt;
    std::vector<pollfd> watched;
    line.watch(watched);
    ::poll(watched.data(), watched.size(), static_cast<int>(1000 * std::min(left, 1.0)));
  }
}

// Whether who answers there knows the secret.
bool proves(Line& line, const std::string& secret, Seconds until) {
  Conversation talk{secret, random_bytes(comm::kNonceBytes), {}};
  line.send_json({{"nonce", to_hex(talk.rank_nonce)}});
  const auto answer = wait_for(line, until);
  if (!answer) return false;
  talk.host_nonce = nonce_in(*answer);
  if (!comm::is_proof(proof_in(*answer), talk, Statement::launcher_knows_the_secret)) return false;
  line.trust();
  line.send_json({{"proof", hex_of(talk, Statement::agent_knows_the_secret)}});
  return true;
}

}  // namespace

Reception::Reception(std::string secret) : secret_(std::move(secret)) {
  listener_ = comm::Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof any;
  if (!listener_ || ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&any), size) != 0 || ::listen(listener_.get(), 1024) != 0 ||
      ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&any), &size) != 0)
    throw_errno("listen for", "the ranks of the run", errno);
  for (const std::string& address : own_addresses()) places_.push_back(text(address, ":", ntohs(any.sin_port)));
}

void Reception::watch(std::vector<pollfd>& watched) const {
  watched.push_back({listener_.get(), POLLIN, 0});
  for (const Stranger& stranger : strangers_) stranger.caller.line.watch(watched);
}

std::vector<Reception::Caller> Reception::admit() {
  const Seconds now = real_clock().now();
  while (strangers_.size() < kMostStrangers) {
    comm::Descriptor arrived = comm::accept_from(listener_);
    if (!arrived) break;
    comm::configure_connection(arrived.get());
    std::string address = comm::address_of_peer(arrived.get());
    std::string met_at = own_address_of(arrived.get());
    strangers_.push_back({{Line(std::move(arrived), {}), std::move(address), std::move(met_at)}, {secret_, {}, {}}, now});
  }
  std::vector<Caller> admitted;
  for (Stranger& stranger : strangers_) {
    try {
      hear(stranger);
    } catch (const Error&) {
      stranger.lost = true;  // no agent of ours speaks like this
    }
    stranger.lost = stranger.lost || now - stranger.since > kProofPatience;
    if (stranger.proved) admitted.push_back(std::move(stranger.caller));
  }
  std::erase_if(strangers_, [](const Stranger& stranger) { return stranger.proved || stranger.lost; });
  return admitted;
}

void Reception::hear(Stranger& stranger) {
  Line& line = stranger.caller.line;
  stranger.lost = !line.pump();
  while (!stranger.proved) {
    const auto message = line.next_json();
    if (!message) return;
    Conversation& talk = stranger.talk;
    if (talk.rank_nonce.empty()) {
      talk.rank_nonce = nonce_in(*message);
      talk.host_nonce = random_bytes(comm::kNonceBytes);
      line.send_json({{"nonce", to_hex(talk.host_nonce)}, {"proof", hex_of(talk, Statement::launcher_knows_the_secret)}});
    } else if (comm::is_proof(proof_in(*message), talk, Statement::agent_knows_the_secret)) {
      line.trust();
      stranger.proved = true;
    } else {
      stranger.lost = true;
      return;
    }
  }
}

Line call(const std::vector<std::string>& places, const std::string& secret, Seconds patience) {
  const Seconds until = real_clock().now() + patience;
  while (real_clock().now() < until) {
    for (const std::string& place : places) {
      comm::Descriptor connection = comm::connect_once(comm::parse_host_port(place), kConnectPatience);
      if (!connection) continue;
      comm::configure_connection(connection.get());
      Line line(std::move(connection), {});
      try {
        // Another host may have the address, too: a loopback's, or that of a bridge for containers.
        if (proves(line, secret, real_clock().now() + kProofPatience)) return line;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::corrupt) throw;
      }
    }
    real_clock().sleep(Seconds(0.2));
  }
  std::string all;
  for (const std::string& place : places) all += (all.empty() ? "" : ", ") + place;
  throw Error(ErrorCode::deadline_exceeded, text("`tessera train` answers at none of ", all), {},
              "a network that joins this host with the one where `tessera train` runs", "start it on a host that the others reach");
}

}  // namespace tessera::control
