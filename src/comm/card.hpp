// Internal. What a rank is doing in a group, shown to the others so that a rank in a different collective is reported.
#pragma once

#include <cstdint>
#include <string>

#include "comm/operation.hpp"

namespace tessera::comm {

struct Card {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  std::int32_t kind = 0;
  std::int32_t type = 0;
  std::int32_t reduction = 0;
  std::int32_t peer = 0;
  bool operator==(const Card&) const = default;
};

Card card_of(const Operation& operation);
// "all_reduce #5 of 1024 f32 (sum)"
std::string to_text(const Card& card, const Group::State& group);
// Ends the task, naming both sides, when `theirs` (of group rank `other`) differs from what this rank does.
bool check_card(const Operation& operation, const Card& theirs, int other);

}  // namespace tessera::comm
