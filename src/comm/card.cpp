#include "comm/card.hpp"

#include "comm/engine.hpp"

namespace tessera::comm {

Card card_of(const Operation& op) {
  return {op.sequence,
          op.count,
          static_cast<std::int32_t>(op.kind),
          static_cast<std::int32_t>(op.type),
          static_cast<std::int32_t>(op.reduction),
          op.peer};
}

std::string to_text(const Card& card, const Group::State& group) {
  const Kind kind = static_cast<Kind>(card.kind);
  std::string what = text(name_of(kind), " #", card.sequence);
  if (kind != Kind::barrier) what += text(" of ", card.count, " ", name_of(static_cast<DataType>(card.type)));
  if (kind == Kind::all_reduce || kind == Kind::reduce_scatter) what += text(" (", name_of(static_cast<Reduction>(card.reduction)), ")");
  if (kind != Kind::broadcast) return what;
  // Another process wrote it.
  const bool known = card.peer >= 0 && static_cast<std::size_t>(card.peer) < group.ranks.size();
  what += known ? text(" from rank ", group.ranks[static_cast<std::size_t>(card.peer)]) : std::string(" from no rank of the group");
  return what;
}

bool check_card(const Operation& operation, const Card& theirs, int other) {
  const Card own = card_of(operation);
  if (own == theirs) return true;
  const Group::State& group = *operation.group;
  // Both sides write the same sentence: the lower rank first.
  const bool first = group.rank < other;
  const int low = group.ranks[static_cast<std::size_t>(first ? group.rank : other)];
  const int high = group.ranks[static_cast<std::size_t>(first ? other : group.rank)];
  group.engine->fail({ErrorCode::internal, -1,
                      text("the ranks of group ", group.name(), " parted: rank ", low, " joined ", to_text(first ? own : theirs, group),
                           ", rank ", high, " joined ", to_text(first ? theirs : own, group))});
  return false;
}

}  // namespace tessera::comm
