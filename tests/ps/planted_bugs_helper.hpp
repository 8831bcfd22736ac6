// How planted bugs change what servers are sent and what they send.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ps/simulated_network_helper.hpp"

namespace tessera::ps::simulation {

// A server's connection to the other one of its pair.
std::unique_ptr<comm::Requester> tampered(std::unique_ptr<comm::Requester> link, World& world);
// What a client asks a leader.
void tamper_with_request(std::vector<std::byte>& message, World& world);
// And what it is answered; `step`: the number in the request before it was changed.
void tamper_with_reply(std::span<const std::byte> request, std::span<std::byte> reply, std::uint64_t step, World& world);

}  // namespace tessera::ps::simulation
