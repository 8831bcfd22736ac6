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

  // Sends every server what `write` lays into each message for the items [begin, end) of the server's, several messages at a time, and
  // hands each reply to `read`. `count` is how many items a server has; while `more` returns true, calling it makes some more. Where a
  // server refuses a message, the others are still answered.
  template <typename More, typename Count, typename Write, typename Read>
  void exchange(std::size_t step, const More& more, const Count& count, const Write& write, const Read& read) {
    const std::size_t servers = requests.servers();
    std::vector<std::size_t> sent(servers, 0), taken(servers, 0);
    std::optional<Error> refused;
    const auto send = [&](std::size_t server) {
      const std::size_t end = std::min(sent[server] + step, count(server));
      MessageWriter out(requests.next_request(server));
      write(server, sent[server], end, out);
      requests.send(server, out.written());
      sent[server] = end;
    };
    const auto take = [&](std::size_t server) {
      const std::size_t begin = taken[server];
      taken[server] = std::min(begin + step, count(server));
      try {
        read(server, begin, taken[server], MessageReader(requests.take_reply(server)));
      } catch (const Error& error) {
        if (error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::deadline_exceeded) throw;
        if (!refused) refused = error;
      }
    };
    for (bool growing = true, left = true; growing || left;) {
      growing = growing && more();
      left = false;
      for (std::size_t server = 0; server < servers; ++server) {
        while (requests.under_way(server) < kMost && sent[server] + (growing ? step - 1 : 0) < count(server)) send(server);
        if (requests.under_way(server) > (growing ? kMost - 1 : 0)) take(server);
        left |= taken[server] < count(server);
      }
    }
    if (refused) throw *refused;
  }
  // What is asked of every server once.
  template <typename Write, typename Read>
  void ask_each(const Write& write, const Read& read) {
    exchange(
        1, [] { return false; }, [](std::size_t) { return std::size_t{1}; },
        [&](std::size_t server, std::size_t, std::size_t, MessageWriter& out) { write(server, out); },
        [&](std::size_t server, std::size_t, std::size_t, MessageReader in) { read(server, in); });
  }

  static void add_header(MessageWriter& out, Ask ask, std::uint32_t table, std::size_t count) {
    out.add<AskHeader>(1).front() = {ask, table, count};
  }

  static constexpr std::size_t kMost = comm::RequestClient::kMostUnderWay;
  // Of keys that are dealt before servers are asked for them: more than go into a message, so that there is one to send each time.
  static constexpr std::size_t kDealt = 16384;

  comm::RequestClient requests;
  std::vector<OpenTable> tables;
};

Client::Client(std::vector<std::string> places, const std::string& secret, Seconds deadline)
    : impl_(std::make_unique<Impl>(std::move(places), secret, deadline)) {}
Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

Client::TableId Client::open(const TableSpec& spec) {
  check(spec);
  const std::string json = to_json(spec);
  Impl::OpenTable table{static_cast<std::size_t>(spec.dimension), std::vector<std::uint32_t>(impl_->requests.servers())};
  impl_->ask_each(
      [&](std::size_t, MessageWriter& out) {
        Impl::add_header(out, Ask::open, 0, json.size());
        out.add(std::span<const char>(json));
      },
      [&](std::size_t server, MessageReader in) { table.ids[server] = in.take<Opened>(1).front().table; });
  impl_->tables.push_back(std::move(table));
  return impl_->tables.size() - 1;
}

void Client::pull(TableId id, std::span<const Key> keys, std::span<float> values, Absent absent) {
  Impl::OpenTable& table = impl_->tables.at(id);
  const std::size_t dimension = table.dimension;
  table.batch.start(keys, impl_->requests.servers());
  std::vector<Batch::Part>& parts = table.batch.parts();
  impl_->exchange(
      keys_of_a_message(static_cast<int>(dimension)), [&] { return table.batch.deal(Impl::kDealt); },
      [&](std::size_t server) { return parts[server].keys.size(); },
      [&](std::size_t server, std::size_t begin, std::size_t end, MessageWriter& out) {
        Impl::add_header(out, absent == Absent::create ? Ask::pull : Ask::pull_or_zeros, table.ids[server], end - begin);
        out.add(std::span<const Key>(parts[server].keys).subspan(begin, end - begin));
      },
      [&](std::size_t server, std::size_t begin, std::size_t end, MessageReader in) {
        const std::span<const Ticket> tickets = in.take<Ticket>(end - begin);
        parts[server].tickets.insert(parts[server].tickets.end(), tickets.begin(), tickets.end());
        const std::span<const float> rows = in.take<float>((end - begin) * dimension);
        for (std::size_t i = begin; i < end; ++i)
          copy_row(rows.data() + (i - begin) * dimension, values.data() + parts[server].positions[i] * dimension, dimension);
      });
  for (const Batch::Repeat& repeat : table.batch.repeats())
    copy_row(values.data() + repeat.first * dimension, values.data() + repeat.position * dimension, dimension);
}

PushResult Client::push(TableId id, std::span<const Key> keys, std::span<const float> gradients) {
  Impl::OpenTable& table = impl_->tables.at(id);
  const std::size_t dimension = table.dimension;
  if (!table.batch.is_of(keys)) {
    table.batch.start(keys, impl_->requests.servers());
    table.batch.deal(keys.size());
  }
  std::vector<Batch::Part>& parts = table.batch.parts();
  PushResult result;
  impl_->exchange(
      keys_of_a_message(static_cast<int>(dimension)), [] { return false; }, [&](std::size_t server) { return parts[server].keys.size(); },
      [&](std::size_t server, std::size_t begin, std::size_t end, MessageWriter& out) {
        const Batch::Part& part = parts[server];
        Impl::add_header(out, part.tickets.size() < part.keys.size() ? Ask::push : Ask::push_tickets, table.ids[server], end - begin);
        out.add(std::span<const Key>(part.keys).subspan(begin, end - begin));
        if (part.tickets.size() == part.keys.size()) out.add(std::span<const Ticket>(part.tickets).subspan(begin, end - begin));
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
  impl_->ask_each([&](std::size_t, MessageWriter& out) { Impl::add_header(out, Ask::status, 0, 0); },
                  [&](std::size_t server, MessageReader in) {
                    const std::span<const char> json = in.take_rest();
                    all[server] = status_from_json({json.begin(), json.end()});
                  });
  return all;
}

}  // namespace tessera::ps
