// Rows that go from the servers of a run to other ones while it trains, as a snapshot gives them, and what these do with them.
#include <algorithm>
#include <cstring>

#include "ps/batch.hpp"
#include "ps/shards.hpp"

namespace tessera::ps {
namespace {

// Rows that are looked at before others are answered again, in turns.
constexpr std::size_t kRowsOfATurn = 1 << 13;
constexpr int kTurns = 8;
// That changes may lay aside between two requests for rows; whoever asked for them has gone, where it is more.
constexpr std::size_t kMostAside = std::size_t{256} << 20;
constexpr std::size_t kRoom = comm::kMostMessageBytes - sizeof(AskHeader) - sizeof(MoveRows);

template <typename T>
void drop_first(std::vector<T>& items, std::size_t count) {
  items.erase(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(count));
}

}  // namespace

void Shards::stop_move(Shard& shard) {
  if (!shard.move) return;
  // Deltas of a save would miss what has changed since the save before this move.
  shard.table.abandon_snapshot();
  shard.move.reset();
}

bool Shards::moving() const {
  return std::ranges::any_of(shards_, [](const Shard& shard) { return shard.move != nullptr; });
}

void Shards::stop_moves() {
  for (Shard& shard : shards_) stop_move(shard);
}

void Shards::begin_move(const AskHeader& header, MessageReader& in, MessageWriter& out) {
  Shard& shard = shard_of(header);
  const MoveOrder order = in.take<MoveOrder>(1).front();
  const auto refuse = [&] {
    stop_move(shard);
    throw Error(ErrorCode::not_found, text("the move of table ", shard.spec.name, " has ended on this server: a save, or another process"),
                {}, "", "begin it again with all rows");
  };
  if (order.changed == 0)
    stop_move(shard);
  else if (!shard.move || !shard.move->over || shard.move->too_many)
    refuse();
  shard.move = std::make_unique<Move>(Move{.order = order});
  const auto moves = [move = shard.move.get()](Key key) { return has(move->order.before, key) && !has(move->order.after, key); };
  SnapshotBegun begun = shard.table.begin_snapshot(order.changed == 0 ? SnapshotRows::all : SnapshotRows::changed,
                                                   [moves, move = shard.move.get()](Key key, std::span<const std::byte> stored) {
                                                     if (move->too_many || !moves(key)) return;
                                                     move->too_many = move->rows.size() + stored.size() > kMostAside;
                                                     move->keys.push_back(key);
                                                     move->rows.insert(move->rows.end(), stored.begin(), stored.end());
                                                   });
  if (order.changed != 0 && begun.rows == SnapshotRows::all) refuse();
  std::erase_if(begun.erased, [&](Key key) { return !moves(key); });
  shard.move->erased = std::move(begun.erased);
  out.add<MoveBegun>(1).front() = {.push_count = shard.table.push_count(), .period = shard.table.period(), .padding = 0};
}

void Shards::move_rows(const AskHeader& header, MessageWriter& out) {
  Shard& shard = shard_of(header);
  if (!shard.move)
    throw Error(ErrorCode::not_found, text("no rows of table ", shard.spec.name, " go to other servers"), {}, "",
                "a save has ended the move, or the server has begun anew: begin it again");
  Move& move = *shard.move;
  const std::size_t row_bytes = shard.table.stored_row_bytes();
  if (header.count == move.batch + 1)
    next_batch(shard);
  else if (header.count != move.batch)
    throw Error(ErrorCode::not_found, text("a client asks for batch ", header.count, " of rows, and ", move.batch, " have been given"), {},
                "", "the server has begun anew: begin the move again");
  MoveRows& told = out.add<MoveRows>(1).front();
  out.add(std::span<const Key>(move.erased).first(move.sent_erased));
  out.add(std::span<const Key>(move.keys).first(move.sent_rows));
  out.add(std::span<const std::byte>(move.rows).first(move.sent_rows * row_bytes));
  const bool all = move.sent_erased == move.erased.size() && move.sent_rows == move.keys.size();
  told = {.erased = move.sent_erased, .rows = move.sent_rows, .more = move.over && all ? 0u : 1u};
}

// The batch before has arrived.
void Shards::next_batch(Shard& shard) {
  Move& move = *shard.move;
  const std::size_t row_bytes = shard.table.stored_row_bytes(), most = kRoom / (sizeof(Key) + row_bytes);
  drop_first(move.erased, move.sent_erased);
  drop_first(move.keys, move.sent_rows);
  drop_first(move.rows, move.sent_rows * row_bytes);
  for (int turn = 0; turn < kTurns && !move.over && move.keys.size() < most; ++turn)
    move.over = !shard.table.continue_snapshot(kRowsOfATurn);
  if (move.too_many) {
    const std::string name = shard.spec.name;
    stop_move(shard);
    throw Error(ErrorCode::resource_exhausted,
                text("more rows of table ", name, " have changed, or have gone to the disk, than can be held for other servers"), {},
                text(kMostAside, " bytes between two requests for them"), "begin the move again while less is trained");
  }
  ++move.batch;
  move.sent_erased = std::min(move.erased.size(), kRoom / sizeof(Key));
  move.sent_rows = std::min(move.keys.size(), (kRoom - move.sent_erased * sizeof(Key)) / (sizeof(Key) + row_bytes));
}

void Shards::move_waiting(const AskHeader& header, MessageReader& in, MessageWriter& out) {
  const std::span<const std::byte> all = shard_of(header).table.waiting();
  const std::size_t begin = std::min<std::size_t>(in.take<std::uint64_t>(1).front(), all.size());
  out.add(all.subspan(begin, std::min(all.size() - begin, comm::kMostMessageBytes / 2)));
}

PushResult Shards::put(const AskHeader& header, MessageReader& in) {
  Shard& shard = shard_of(header);
  Table& table = shard.table;
  if (header.ask == Ask::put_waiting) {
    const std::uint64_t begin = in.take<std::uint64_t>(1).front();
    table.add_waiting(begin, in.take<std::byte>(header.count));
    return {};
  }
  if (header.ask == Ask::put_counts) {
    const MoveBegun counts = in.take<MoveBegun>(1).front();
    table.set_push_count(std::max(table.push_count(), counts.push_count));
    table.set_lifecycle(std::max(table.period(), counts.period), table.lifecycle_counts());
    return {};
  }
  if (header.ask == Ask::keep) {
    const KeepPart kept = in.take<KeepPart>(1).front();
    if (kept.part >= kept.parts) throw Error(ErrorCode::corrupt, text("a client speaks of part ", kept.part, " of ", kept.parts));
    stop_move(shard);
    return {.applied = static_cast<std::int64_t>(table.erase_others(kept.part, kept.parts, kept.share))};
  }
  const PutHeader told = in.take<PutHeader>(1).front();
  table.erase(in.take<Key>(told.erased));
  const std::span<const Key> keys = in.take<Key>(header.count);
  table.restore(keys, in.take<std::byte>(keys.size() * table.stored_row_bytes()));
  return {.applied = static_cast<std::int64_t>(keys.size())};
}

}  // namespace tessera::ps
