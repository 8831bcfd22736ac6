#include "ps/serving_server.hpp"

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "base/secret.hpp"
#include "comm/requests.hpp"
#include "ps/messages.hpp"

namespace tessera::ps {

struct ServingServer::Impl {
  Impl(const std::string& given_place, const std::string& secret, const ServingTable& served)
      : place(given_place), table(served), requests(given_place, secret) {
    std::memcpy(&instance, random_bytes(sizeof instance).data(), sizeof instance);
  }

  std::size_t answer(std::span<const std::byte> request, std::span<std::byte> reply) {
    MessageReader in(request);
    MessageWriter out(reply);
    const AskHeader header = in.take<AskHeader>(1).front();
    switch (header.ask) {
      case Ask::join: join(in.take<char>(header.count)); break;
      case Ask::open: out.add<Opened>(1).front() = open(in.take<char>(header.count)); break;
      case Ask::wait: out.add<Seen>(1).front() = seen(header); break;
      case Ask::pull_or_zeros: pull(header, in, out); break;
      case Ask::status: out.add(std::span<const char>(to_json(status()))); break;
      case Ask::pull: refuse("a pull that creates rows", "pull with Absent::zeros");
      default: refuse("more than look-ups", "push to the parameter servers that train the table, and export it again");
    }
    return out.written();
  }

  [[noreturn]] void refuse(const char* asked, const char* instead) const {
    throw Error(
        ErrorCode::invalid_config,
        text("a client asks for ", asked, ", and the table '", table.name(), "' at ", place, " is finished: its rows do not change"), {},
        "look-ups", instead);
  }
  void join(std::span<const char> json) const {
    if (joining_from_json({json.begin(), json.end()}).worker)
      refuse("a place among workers that train", "look up without ClientOptions::worker");
  }
  Opened open(std::span<const char> json) const {
    const TableSpec spec = spec_from_json({json.begin(), json.end()});
    if (spec.name != table.name() || spec.dimension != table.dimension())
      throw Error(ErrorCode::invalid_config,
                  text("a client opens the table '", spec.name, "' of dimension ", spec.dimension, ", which ", place, " does not serve"),
                  {}, text("'", table.name(), "' of dimension ", table.dimension()));
    if (spec.wire != RowType::fp32) refuse("rows that are rounded on their way", "open the table with wire fp32");
    return {0};
  }
  Seen seen(const AskHeader& header) const { return {static_cast<std::int64_t>(header.number), instance}; }
  void pull(const AskHeader& header, MessageReader& in, MessageWriter& out) {
    const std::size_t most = keys_of_a_message(table.dimension());
    if (header.table != 0) throw Error(ErrorCode::not_found, text("this server has no table ", header.table), {}, "", "open it first");
    if (header.count > most)
      throw Error(ErrorCode::corrupt, text("a client asks for ", header.count, " keys at once"), {}, text(most, " at most"));
    const Seconds begin = real_clock().now();
    const std::span<const Key> keys = in.take<Key>(header.count);
    out.add<Seen>(1).front() = seen(header);
    std::ranges::fill(out.add<Ticket>(keys.size()), Ticket{});
    found += table.find(keys, out.add<float>(keys.size() * static_cast<std::size_t>(table.dimension())));
    pulled += keys.size();
    pulls.add(real_clock().now() - begin);
  }
  ServerStatus status() const {
    return {.backup = {},
            .tables = {{.name = table.name(),
                        .dimension = table.dimension(),
                        .rows = table.rows(),
                        .memory = {.index = table.index_bytes(), .rows = table.row_bytes(), .hits = found, .misses = pulled - found},
                        .keys_pulled = pulled,
                        .latencies = {.pulls = pulls, .pushes = {}}}}};
  }

  std::string place;
  const ServingTable& table;
  comm::RequestServer requests;
  std::uint64_t instance = 0;
  std::uint64_t pulled = 0, found = 0;  // keys
  Latencies pulls = {};
};

ServingServer::ServingServer(const std::string& place, const std::string& secret, const ServingTable& table)
    : impl_(std::make_unique<Impl>(place, secret, table)) {}
ServingServer::~ServingServer() = default;

void ServingServer::serve(const std::stop_token& stop) {
  impl_->requests.serve([this](const comm::RequestServer::Request& request,
                               std::span<std::byte> reply) -> std::optional<std::size_t> { return impl_->answer(request.bytes, reply); },
                        stop);
}

}  // namespace tessera::ps
