// What parameter servers read: the messages of clients and of other servers, files of tables, and what a folder says of them.
#include <cstring>
#include <memory>
#include <span>

#include "base/file_system.hpp"
#include "base/temporary_folder.hpp"
#include "comm/requests.hpp"
#include "fuzz/checks.hpp"
#include "ps/messages.hpp"
#include "ps/saves.hpp"
#include "ps/shards.hpp"
#include "ps/table_blocks.hpp"
#include "ps/table_file.hpp"

namespace tessera::fuzz {
namespace {

using namespace ps;

constexpr std::uint64_t kClient = 7;
constexpr int kDimension = 2;

TableSpec spec_of(bool lives) {
  TableSpec spec{.name = "ads", .dimension = kDimension, .optimizer = {.rule = Rule::adagrad}};
  if (lives) spec.lifecycle = Lifecycle{.admission = {.after = 2}, .waiting_keys = 1000};
  return spec;
}

template <typename... Parts>
std::string message(Ask ask, std::size_t count, std::uint64_t number, const Parts&... parts) {
  std::string out;
  const auto add = [&out](const auto& part) { out.append(reinterpret_cast<const char*>(&part), sizeof part); };
  add(AskHeader{.ask = ask, .table = 0, .count = count, .client = kClient, .number = number});
  (add(parts), ...);
  return out;
}

std::string words(Ask ask, const std::string& json) { return message(ask, json.size(), 0) + json; }

// As a server is given them: at a multiple of 16, and with all the room that an answer may take.
class Server {
 public:
  void answer(const std::string& request) {
    std::memcpy(request_.get(), request.data(), request.size());
    shards_.answer({request_.get(), request.size()}, {reply_.get(), comm::kMostMessageBytes});
  }

 private:
  static constexpr std::size_t kRoom = comm::kMostMessageBytes + 64;
  std::unique_ptr<std::byte[]> request_ = std::make_unique<std::byte[]>(kRoom), reply_ = std::make_unique<std::byte[]>(kRoom);
  Shards shards_;
};

// A file whose first block says `head`, and that has these rows; its checksums are right.
std::string file_with(const std::string& head, const TemporaryFolder& folder) {
  const Table table(spec_of(true));
  const std::vector<Key> keys = {1, 2, 3};
  const std::vector<std::byte> rows(keys.size() * (sizeof(Key) + table.stored_row_bytes()));
  {
    BlockWriter blocks(real_file_system(), folder.path() / "made");
    blocks.add(BlockKind::head, 1, std::as_bytes(std::span(head)));
    blocks.add(BlockKind::erased, keys.size(), std::as_bytes(std::span(keys)));
    blocks.add(BlockKind::rows, keys.size(), rows);
    blocks.finish();
  }
  return read_whole(folder.path() / "made");
}

std::string head_in(const std::string& file) {
  BlockHead head{};
  if (file.size() < sizeof head) return file;
  std::memcpy(&head, file.data(), sizeof head);
  return file.substr(sizeof head, head.bytes);
}

}  // namespace

Target ps_message_target() {
  Target target;
  target.refusals = {ErrorCode::corrupt, ErrorCode::invalid_config, ErrorCode::not_found};
  const Key key = 5;
  const float one = 1;
  const Joining joining{.worker = Worker{.index = 0, .count = 2, .run = 1}, .patience = Seconds(1)};
  target.seeds = {words(Ask::join, to_json(joining)),
                  words(Ask::open, to_json(spec_of(true))),
                  message(Ask::pull, 1, 0, key),
                  message(Ask::pull_or_zeros, 2, 0, key, key + 1),
                  message(Ask::push, 1, 1, key, one, one, Impressions{}),
                  message(Ask::push_tickets, 1, 1, std::uint64_t{3}, key, Ticket{}, one, one, Impressions{}),
                  message(Ask::learning_rate, 1, 1, one),
                  message(Ask::end_period, 0, 1),
                  message(Ask::evict, 1, 1, EvictPart{.part = 1, .parts = 2}),
                  message(Ask::move_begin, 1, 0, MoveOrder{.before = {0, 1}, .after = {1, 2}, .changed = 0}),
                  message(Ask::move_rows, 0, 0),
                  message(Ask::move_waiting, 1, 0, std::uint64_t{64}),
                  message(Ask::put, 0, 1, PutHeader{.erased = 1}, key),
                  message(Ask::put_waiting, 64, 1, std::uint64_t{0}) + std::string(64, '\1'),
                  message(Ask::put_counts, 1, 1, MoveBegun{.push_count = 3, .period = 1, .padding = 0}),
                  message(Ask::keep, 1, 1, KeepPart{.part = 0, .parts = 2, .share = {1, 3}}),
                  message(Ask::copy_rows, 0, 0),
                  message(Ask::copy_waiting, 64, 0) + std::string(64, '\2'),
                  message(Ask::copy_end, 0, 0)};
  target.read = [server = std::make_shared<Server>()](const std::string& input) {
    if (input.size() > comm::kMostMessageBytes) throw Error(ErrorCode::corrupt, "no connection brings so much at once");
    *server = Server();
    server->answer(words(Ask::join, to_json(Joining{})));
    server->answer(words(Ask::open, to_json(spec_of(true))));
    server->answer(message(Ask::move_begin, 1, 0, MoveOrder{.before = {0, 1}, .after = {}, .changed = 0}));
    server->answer(input);
  };
  return target;
}

Target table_file_target() {
  Target target;
  target.refusals = {ErrorCode::corrupt, ErrorCode::invalid_config};
  const auto folder = std::make_shared<TemporaryFolder>();
  Table table(spec_of(true));
  TableSave save(table, real_file_system(), folder->path() / "rows");
  while (save.save_some()) {}
  target.seeds = {file_with(head_in(read_whole(folder->path() / "rows")), *folder)};
  target.inner = head_in;
  target.outer = [folder](const std::string& head) { return file_with(head, *folder); };
  target.read = [folder](const std::string& input) {
    const std::filesystem::path path = folder->write("any", input);
    Table into(spec_of(true));
    load_table(into, std::span(&path, 1));
  };
  return target;
}

Target saved_tables_target() {
  Target target;
  target.refusals = {ErrorCode::corrupt};
  const auto folder = std::make_shared<TemporaryFolder>();
  write_saved_folder(folder->path(), {.saves = 2, .tables = {{.name = "ads", .servers = {{.files = {"a.rows", "b.rows"}, .last = "1"}}}}});
  target.seeds = {read_whole(folder->path() / "tables.json")};
  target.read = [folder](const std::string& input) {
    folder->write("tables.json", input);
    const SavedFolder read = read_saved_folder(folder->path());
    const std::string written = to_json(read.tables);
    must_pass("what was written is refused", [&] { must_be_equal(written, to_json(saved_tables_from_json(written)), "the tables"); });
  };
  return target;
}

}  // namespace tessera::fuzz
