#include "ps/shards.hpp"

#include <algorithm>
#include <cstring>

#include "base/secret.hpp"
#include "ps/row_values.hpp"

namespace tessera::ps {
namespace {

std::span<const Key> keys_of(const Table& table, const AskHeader& header, MessageReader& in) {
  const std::size_t most = keys_of_a_message(table.spec().dimension);
  if (header.count > most)
    throw Error(ErrorCode::corrupt, text("a client asks for ", header.count, " keys at once"), {}, text(most, " at most"));
  return in.take<Key>(header.count);
}

std::optional<TableStatus::Life> life_of(const Table& table) {
  if (!table.spec().lifecycle) return {};
  return TableStatus::Life{.period = table.period(), .counts = table.lifecycle_counts()};
}

}  // namespace

Shards::Shards(const std::optional<TableStorage>& storage) : storage_(storage) { renew_instance(); }

void Shards::renew_instance() { std::memcpy(&instance_, random_bytes(sizeof instance_).data(), sizeof instance_); }

std::optional<std::size_t> Shards::answer(std::span<const std::byte> request, std::span<std::byte> reply, Seconds waited) {
  MessageReader in(request);
  MessageWriter out(reply);
  const AskHeader header = in.take<AskHeader>(1).front();
  switch (header.ask) {
    case Ask::join: join(header, in.take<char>(header.count)); return out.written();
    case Ask::open: out.add<Opened>(1).front() = open(in.take<char>(header.count)); return out.written();
    case Ask::pull:
    case Ask::pull_or_zeros:
    case Ask::wait:
      if (header.ask == Ask::wait ? wait(header, out) : pull(header, in, out)) return out.written();
      if (waited > workers_.at(header.client).patience) throw_waited(header, waited);
      return {};
    case Ask::move_begin: begin_move(header, in, out); return out.written();
    case Ask::move_rows: move_rows(header, out); return out.written();
    case Ask::move_waiting: move_waiting(header, in, out); return out.written();
    case Ask::who_leads:
    case Ask::status:
    case Ask::save:
    case Ask::saved:
    case Ask::load:
    case Ask::log_behind:
    case Ask::log_refused: break;  // the server's affair
    case Ask::copy_begin:
    case Ask::copy_rows:
    case Ask::copy_sums:
    case Ask::copy_waiting:
    case Ask::copy_end: take_copy(header, in); return out.written();
    case Ask::push:
    case Ask::push_tickets:
    case Ask::learning_rate:
    case Ask::end_step:
    case Ask::end_period:
    case Ask::evict:
    case Ask::put:
    case Ask::put_waiting:
    case Ask::put_counts:
    case Ask::keep: answer_numbered(header, in, out); return out.written();
  }
  throw Error(ErrorCode::corrupt, text("a client asks for ", static_cast<std::uint32_t>(header.ask), ", which this server does not know"),
              {}, "", "run the same version on both");
}

Shards::Shard& Shards::shard_of(const AskHeader& header) {
  if (header.table >= shards_.size())
    throw Error(ErrorCode::not_found, text("this server has no table ", header.table), {}, "",
                "open the table at the start: the server may have begun anew");
  return shards_[header.table];
}

Opened Shards::open(std::span<const char> json) {
  const TableSpec spec = spec_from_json({json.begin(), json.end()});
  for (std::uint32_t table = 0; table < shards_.size(); ++table) {
    const TableSpec& there = shards_[table].spec;
    if (there.name != spec.name) continue;
    const std::string has = to_json(there), asked = to_json(spec);
    if (has != asked)
      throw Error(ErrorCode::invalid_config, text("table ", spec.name, " is there already, and is another one: ", has), {}, asked,
                  "give the table another name");
    return {table};
  }
  shards_.emplace_back(spec, storage_);
  return {static_cast<std::uint32_t>(shards_.size() - 1)};
}

void Shards::join(const AskHeader& header, std::span<const char> json) {
  const Workers::Client& client = workers_.join(header.client, joining_from_json({json.begin(), json.end()}));
  if (!client.worker || client.applied > 0) return;
  // Another one may have had its place, in a step that it has not ended.
  for (Shard& shard : shards_) shard.sums.forget(workers_.ended(client), *client.worker);
}

void Shards::answer_numbered(const AskHeader& header, MessageReader& in, MessageWriter& out) {
  Workers::Client& client = workers_.at(header.client);
  std::optional<PushResult>& result = client.results[header.number % client.results.size()];
  if (header.number > client.applied + 1)
    throw Error(ErrorCode::not_found,
                text("a client goes on at its message ", header.number, ", and this server has seen ", client.applied, " of them"), {}, "",
                "the server was restored from an older state: go on from the last checkpoint");
  if (header.number == client.applied + 1) {
    client.applied = header.number;
    result.reset();
    result = apply(header, client, in);
  } else if (header.number + client.results.size() <= client.applied || !result) {
    throw Error(ErrorCode::corrupt, text("a client asks anew for its message ", header.number, ", which was refused or is long past"));
  }
  out.add<PushResult>(1).front() = *result;
}

PushResult Shards::apply(const AskHeader& header, const Workers::Client& client, MessageReader& in) {
  switch (header.ask) {
    case Ask::end_step: end_step(client); return {};
    case Ask::learning_rate: shard_of(header).table.set_learning_rate(in.take<float>(1).front()); return {};
    case Ask::end_period:
    case Ask::evict: return end_period(header, in);
    case Ask::put:
    case Ask::put_waiting:
    case Ask::put_counts:
    case Ask::keep: return put(header, in);
    default: return push(header, client, in);
  }
}

PushResult Shards::end_period(const AskHeader& header, MessageReader& in) {
  Table& table = shard_of(header).table;
  if (!table.spec().lifecycle)
    throw Error(ErrorCode::invalid_config, text("a period of table ", table.spec().name, " is to end, and it has no lifecycle"), {},
                "a table that was opened with one");
  if (header.ask == Ask::end_period) {
    table.end_period();
    return {.applied = static_cast<std::int64_t>(table.size())};
  }
  const EvictPart part = in.take<EvictPart>(1).front();
  if (part.part >= part.parts) throw Error(ErrorCode::corrupt, text("a client speaks of part ", part.part, " of ", part.parts));
  return {.applied = static_cast<std::int64_t>(table.evict(part.part, part.parts))};
}

std::optional<Seen> Shards::seen(const AskHeader& header, int staleness) {
  const auto step = static_cast<std::int64_t>(header.number);
  const Workers::Client& client = workers_.at(header.client);
  const std::int64_t slowest = client.worker ? workers_.slowest() : step;
  if (slowest >= step - staleness) return Seen{slowest, instance_};
  return {};
}

void Shards::throw_waited(const AskHeader& header, Seconds waited) {
  throw Error(ErrorCode::deadline_exceeded,
              text("a worker that has ended ", header.number, " steps has waited ", to_text(waited), " for worker ",
                   workers_.slowest_worker(), " of ", workers_.count(), ", which has ended ", workers_.slowest()),
              {}, "", "see that it runs; what takes it longer may be evaluating, saving, or a slow host");
}

bool Shards::wait(const AskHeader& header, MessageWriter& out) {
  const std::optional<Seen> all = seen(header, 0);
  if (all) out.add<Seen>(1).front() = *all;
  return all.has_value();
}

bool Shards::pull(const AskHeader& header, MessageReader& in, MessageWriter& out) {
  Shard& shard = shard_of(header);
  Table& table = shard.table;
  const TableSpec& spec = table.spec();
  const std::optional<Seen> all = seen(header, spec.consistency == Consistency::synchronous ? 0 : spec.staleness);
  if (!all) return false;
  out.add<Seen>(1).front() = *all;
  const std::span<const Key> keys = keys_of(table, header, in);
  const std::span<Ticket> tickets = out.add<Ticket>(keys.size());
  const auto dimension = static_cast<std::size_t>(spec.dimension);
  const std::size_t count = keys.size() * dimension;
  const std::span<float> values = spec.wire == RowType::fp32 ? out.add<float>(count) : scratch(count);
  table.pull(keys, values, tickets, header.ask == Ask::pull ? Absent::create : Absent::zeros);
  if (spec.wire != RowType::fp32)
    for (std::size_t i = 0; i < keys.size(); ++i)
      store_nearest(spec.wire, values.subspan(i * dimension, dimension), out.add<std::byte>(row_bytes(spec.wire, spec.dimension)).data());
  shard.pulled += keys.size();
  return true;
}

std::span<float> Shards::scratch(std::size_t floats) {
  scratch_.resize(std::max(scratch_.size(), floats));
  return std::span(scratch_).first(floats);
}

std::span<const float> Shards::take_gradients(const TableSpec& spec, std::size_t rows, MessageReader& in) {
  const auto dimension = static_cast<std::size_t>(spec.dimension);
  if (spec.wire == RowType::fp32) return in.take<float>(rows * dimension);
  const std::size_t bytes = row_bytes(spec.wire, spec.dimension);
  const std::span<const std::byte> packed = in.take<std::byte>(rows * bytes);
  const std::span<float> gradients = scratch(rows * dimension);
  for (std::size_t i = 0; i < rows; ++i) load_row(spec.wire, packed.data() + i * bytes, gradients.subspan(i * dimension, dimension));
  return gradients;
}

PushResult Shards::push(const AskHeader& header, const Workers::Client& client, MessageReader& in) {
  Shard& shard = shard_of(header);
  Table& table = shard.table;
  const std::uint64_t instance = header.ask == Ask::push_tickets ? in.take<std::uint64_t>(1).front() : 0;
  const std::span<const Key> keys = keys_of(table, header, in);
  std::span<const Ticket> tickets;
  if (header.ask == Ask::push_tickets) {
    tickets = in.take<Ticket>(keys.size());
    if (instance != instance_) tickets = {};
  }
  const std::span<const float> gradients = take_gradients(table.spec(), keys.size(), in);
  const std::span<const Impressions> impressions = in.take<Impressions>(table.spec().lifecycle ? keys.size() : 0);
  const bool waits = client.worker && table.spec().consistency == Consistency::synchronous;
  const PushResult result = waits ? shard.sums.add(workers_.ended(client), *client.worker, keys, gradients, impressions)
                                  : table.push(keys, gradients, tickets, impressions);
  shard.pushed += keys.size();
  shard.refused += static_cast<std::uint64_t>(result.refused);
  return result;
}

void Shards::end_step(const Workers::Client& client) {
  if (!client.worker)
    throw Error(ErrorCode::invalid_config, "a client that is no worker ends a step", {}, "a worker's index and how many there are");
  const std::int64_t before = workers_.slowest();
  workers_.end_step(client);
  if (workers_.slowest() == before) return;
  for (Shard& shard : shards_) shard.sums.apply(before, shard.table);
}

std::vector<Table*> Shards::tables() {
  std::vector<Table*> all;
  for (Shard& shard : shards_) all.push_back(&shard.table);
  return all;
}

void Shards::empty_tables() {
  for (Shard& shard : shards_) {
    shard.move.reset();
    shard.table = Table(shard.spec, storage_);
    shard.sums = {};
  }
  renew_instance();
}

void Shards::took(std::span<const std::byte> request, Seconds seconds) {
  const AskHeader header = MessageReader(request).take<AskHeader>(1).front();
  const bool pulls = header.ask == Ask::pull || header.ask == Ask::pull_or_zeros;
  if (!pulls && header.ask != Ask::push && header.ask != Ask::push_tickets) return;
  AnswerLatencies& kept = shard_of(header).latencies;
  (pulls ? kept.pulls : kept.pushes).add(seconds);
}

ServerStatus Shards::status() const {
  ServerStatus status{
      .backup = {}, .workers = workers_.count(), .slowest = workers_.slowest(), .fastest = workers_.fastest(), .tables = {}};
  for (const Shard& shard : shards_)
    status.tables.push_back({.name = shard.table.spec().name,
                             .dimension = shard.table.spec().dimension,
                             .rows = shard.table.size(),
                             .memory = shard.table.memory(),
                             .keys_pulled = shard.pulled,
                             .keys_pushed = shard.pushed,
                             .gradients_refused = shard.refused,
                             .lifecycle = life_of(shard.table),
                             .latencies = shard.latencies});
  return status;
}

}  // namespace tessera::ps
