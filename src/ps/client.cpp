#include "ps/client.hpp"

#include <cstring>
#include <optional>

#include "ps/batch.hpp"
#include "ps/messages.hpp"

namespace tessera::ps {
namespace {

void copy_row(const float* from, float* to, std::size_t dimension) { std::memcpy(to, from, dimension * sizeof(float)); }

}  // namespace

struct Client::Impl {
  struct OpenTable {
    std::size_t dimension;
    std::vector<std::uint32_t> ids;  // at each server
    Batch batch = {};                // the last one
  };

  Impl(std::vector<std::string> places, const std::string& secret, Seconds deadline) : requests(std::move(places), secret, deadline) {}

  // Sends every server what `write` lays into each message for the items [begin, end) of the server's `counts`, several messages at a time, and hands each
  // reply to `read`. Where a server refuses one, the others are still answered.
  template <typename Write, typename Read>
  void exchange(const std::vector<std::size_t>& counts, std::size_t step, const Write& write, const Read& read) {
    std::vector<std::size_t> sent(counts.size(), 0), taken(counts.size(), 0);
    std::optional<Error> refused;
    for (bool left = true; left;) {
      left = false;
      for (std::size_t server = 0; server < counts.size(); ++server)
        for (std::size_t& begin = sent[server]; begin < counts[server] && requests.under_way(server) < comm::RequestClient::kMostUnderWay;) {
          const std::size_t end = std::min(begin + step, counts[server]);
          MessageWriter out(requests.next_request(server));
          write(server, begin, end, out);
          requests.send(server, out.written());
          begin = end;
        }
      for (std::size_t server = 0; server < counts.size(); ++server) {
        if (requests.under_way(server) == 0) continue;
        const std::size_t begin = taken[server], end = std::min(begin + step, counts[server]);
        taken[server] = end;
        try {
          read(server, begin, end, MessageReader(requests.take_reply(server)));
        } catch (const Error& error) {
          if (error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::deadline_exceeded) throw;
          if (!refused) refused = error;
        }
        left |= taken[server] < counts[server];
      }
    }
    if (refused) throw *refused;
  }

  static void add_header(MessageWriter& out, Ask ask, std::uint32_t table, std::size_t count) { out.add<AskHeader>(1).front() = {ask, table, count}; }

  std::vector<std::size_t> one_each() const { return std::vector<std::size_t>(requests.servers(), 1); }
  static std::vector<std::size_t> counts_of(Batch& batch) {
    std::vector<std::size_t> counts;
    for (const Batch::Part& part : batch.parts()) counts.push_back(part.keys.size());
    return counts;
  }

  comm::RequestClient requests;
  std::vector<OpenTable> tables;
};

Client::Client(std::vector<std::string> places, const std::string& secret, Seconds deadline) : impl_(std::make_unique<Impl>(std::move(places), secret, deadline)) {}
Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

Client::TableId Client::open(const TableSpec& spec) {
  check(spec);
  const std::string json = to_json(spec);
  Impl::OpenTable table{static_cast<std::size_t>(spec.dimension), std::vector<std::uint32_t>(impl_->requests.servers())};
  impl_->exchange(
      impl_->one_each(), 1,
      [&](std::size_t, std::size_t, std::size_t, MessageWriter& out) {
        Impl::add_header(out, Ask::open, 0, json.size());
        out.add(std::span<const char>(json));
      },
      [&](std::size_t server, std::size_t, std::size_t, MessageReader in) { table.ids[server] = in.take<Opened>(1).front().table; });
  impl_->tables.push_back(std::move(table));
  return impl_->tables.size() - 1;
}

void Client::pull(TableId id, std::span<const Key> keys, std::span<float> values, Absent absent) {
  Impl::OpenTable& table = impl_->tables.at(id);
  const std::size_t dimension = table.dimension;
  table.batch.deal(keys, impl_->requests.servers());
  std::vector<Batch::Part>& parts = table.batch.parts();
  for (Batch::Part& part : parts) part.tickets.resize(part.keys.size());
  impl_->exchange(
      Impl::counts_of(table.batch), keys_of_a_message(static_cast<int>(dimension)),
      [&](std::size_t server, std::size_t begin, std::size_t end, MessageWriter& out) {
        Impl::add_header(out, absent == Absent::create ? Ask::pull : Ask::pull_or_zeros, table.ids[server], end - begin);
        out.add(std::span<const Key>(parts[server].keys).subspan(begin, end - begin));
      },
      [&](std::size_t server, std::size_t begin, std::size_t end, MessageReader in) {
        std::ranges::copy(in.take<Ticket>(end - begin), parts[server].tickets.begin() + static_cast<std::ptrdiff_t>(begin));
        const std::span<const float> rows = in.take<float>((end - begin) * dimension);
        for (std::size_t i = begin; i < end; ++i) copy_row(rows.data() + (i - begin) * dimension, values.data() + parts[server].positions[i] * dimension, dimension);
      });
  for (const Batch::Repeat& repeat : table.batch.repeats()) copy_row(values.data() + repeat.first * dimension, values.data() + repeat.position * dimension, dimension);
}

PushResult Client::push(TableId id, std::span<const Key> keys, std::span<const float> gradients) {
  Impl::OpenTable& table = impl_->tables.at(id);
  const std::size_t dimension = table.dimension;
  if (!table.batch.is_of(keys)) table.batch.deal(keys, impl_->requests.servers());
  std::vector<Batch::Part>& parts = table.batch.parts();
  PushResult result;
  impl_->exchange(
      Impl::counts_of(table.batch), keys_of_a_message(static_cast<int>(dimension)),
      [&](std::size_t server, std::size_t begin, std::size_t end, MessageWriter& out) {
        const Batch::Part& part = parts[server];
        Impl::add_header(out, part.tickets.empty() ? Ask::push : Ask::push_tickets, table.ids[server], end - begin);
        out.add(std::span<const Key>(part.keys).subspan(begin, end - begin));
        if (!part.tickets.empty()) out.add(std::span<const Ticket>(part.tickets).subspan(begin, end - begin));
        const std::span<float> sums = out.add<float>((end - begin) * dimension);
        for (std::size_t i = begin; i < end; ++i) {
          float* const sum = sums.data() + (i - begin) * dimension;
          copy_row(gradients.data() + part.positions[i] * dimension, sum, dimension);
          for (std::uint32_t at = table.batch.next(part.positions[i]); at != Batch::kNone; at = table.batch.next(at))
            for (std::size_t d = 0; d < dimension; ++d) sum[d] += gradients[at * dimension + d];
        }
      },
      [&](std::size_t, std::size_t, std::size_t, MessageReader in) {
        const PushResult part = in.take<PushResult>(1).front();
        result.applied += part.applied;
        result.refused += part.refused;
      });
  return result;
}

std::vector<std::vector<TableStatus>> Client::status() {
  std::vector<std::vector<TableStatus>> all(impl_->requests.servers());
  impl_->exchange(
      impl_->one_each(), 1, [&](std::size_t, std::size_t, std::size_t, MessageWriter& out) { Impl::add_header(out, Ask::status, 0, 0); },
      [&](std::size_t server, std::size_t, std::size_t, MessageReader in) {
        const std::span<const char> json = in.take_rest();
        all[server] = status_from_json({json.begin(), json.end()});
      });
  return all;
}

}  // namespace tessera::ps
