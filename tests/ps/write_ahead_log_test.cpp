// Servers that write what they acknowledge to a log, and begin anew with it.
#include "ps/write_ahead_log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/error.hpp"
#include "base/free_port.hpp"
#include "base/random.hpp"
#include "base/temporary_folder.hpp"
#include "ps/disk_helper.hpp"
#include "ps/killed_server.hpp"
#include "ps/lifecycle_messages.hpp"
#include "ps/move.hpp"
#include "ps/training_helper.hpp"

namespace tessera::ps {
namespace {

using testing::HasSubstr;

// A server that is killed again and again, after some milliseconds each time, and started at once.
class RestartedServer {
 public:
  RestartedServer(const std::string& place, const ServerOptions& options, int kills)
      : kills_(static_cast<std::atomic<int>*>(mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    const pid_t parent = getpid();
    id_ = fork();
    if (id_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close_range(3, ~0U, 0);
    Random random(5);
    for (; *kills_ < kills; ++*kills_) {
      KilledServer server(place, options);
      usleep(static_cast<useconds_t>(20'000 + random.below(120'000)));
    }
    const KilledServer last(place, options);
    pause();
    _exit(0);
  }
  ~RestartedServer() {
    ::kill(id_, SIGKILL);
    waitpid(id_, nullptr, 0);
    munmap(kills_, sizeof(int));
  }
  RestartedServer(const RestartedServer&) = delete;
  RestartedServer& operator=(const RestartedServer&) = delete;
  int kills() const { return *kills_; }

 private:
  std::atomic<int>* kills_;
  pid_t id_ = -1;
};

TEST(Log, NothingAcknowledgedIsLostOrDoubledWhenTheServerIsKilledAndStartedAgain) {
  const char* const wanted = std::getenv("TESSERA_PS_KILLS");
  const int kills = wanted ? std::atoi(wanted) : 12;
  const TemporaryFolder folder;
  const std::string place = free_loopback_place();
  const RestartedServer server(place, {.log = ServerLog{.folder = folder.path(), .base_after = Bytes(4 << 20)}}, kills);
  Counting counting(place);
  int turns = 0;
  while (server.kills() < kills) {
    counting.push();
    if (++turns % 10 == 0) counting.expect_all();
  }
  counting.push();
  counting.expect_all();
  std::int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    if (entry.is_regular_file()) bytes += static_cast<std::int64_t>(entry.file_size());
  std::cout << kills << " kills during " << counting.pushes << " pushes; the log has " << bytes << " bytes\n";
  EXPECT_LT(bytes, 64 << 20);
}

// A server's shards and its log, without sockets.
struct Logged {
  explicit Logged(const std::filesystem::path& folder)
      : log(std::make_unique<WriteAheadLog>(ServerLog{.folder = folder, .base_after = Bytes(100'000)})) {
    log->restore(shards, [this](std::span<const std::byte> message) { answer(shards, message); });
  }
  void take(std::span<const std::byte> message) {
    log->add(message);
    answer(shards, message);
  }
  Shards shards;
  std::unique_ptr<WriteAheadLog> log;
};

TEST(Log, GivesWhatTheServerHeldToTheBit) {
  const TemporaryFolder folder;
  Messages messages(4);
  Random random(9);
  auto server = std::make_unique<Logged>(folder.path());
  Shards other;  // without a log
  const auto take = [&](const std::vector<std::byte>& message) {
    server->take(message);
    answer(other, message);
  };
  for (const std::vector<std::byte>& message : messages.begin()) take(message);
  std::set<std::string> bases;
  for (int life = 0; life < 12; ++life) {
    for (int i = 0; i < 60; ++i) {
      take(messages.next());
      for (std::uint64_t some = random.below(4); some > 0; --some) server->log->go_on(server->shards, false);
      if (random.below(40) == 0) server->log->abandon_base();
    }
    server = nullptr;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      if (std::filesystem::exists(entry.path() / "tables.json")) bases.insert(entry.path().filename());
    server = std::make_unique<Logged>(folder.path());
    expect_same(server->shards, other);
  }
  EXPECT_GT(bases.size(), 3u);
  EXPECT_GT(other.tables().front()->lifecycle_counts().evicted, 1000u);
}

std::filesystem::path last_records(const std::filesystem::path& folder) {
  std::map<int, std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".log") files[std::stoi(entry.path().stem())] = entry.path();
  return files.rbegin()->second;
}

TEST(Log, EndsBehindTheLastWholeMessage) {
  const TemporaryFolder folder;
  Messages messages(8);
  Shards all, all_but_last;
  std::vector<std::byte> last;
  {
    Logged server(folder.path());
    for (const std::vector<std::byte>& message : messages.begin()) {
      server.take(message);
      answer(all_but_last, message);
    }
    for (int i = 0; i < 20; ++i) {
      if (!last.empty()) answer(all_but_last, last);
      last = messages.next();
      server.take(last);
    }
  }
  const std::filesystem::path records = last_records(folder.path());
  std::filesystem::resize_file(records, std::filesystem::file_size(records) - 1);
  {
    Logged server(folder.path());
    expect_same(server.shards, all_but_last);
    // The client asks again for what was not acknowledged.
    server.take(last);
  }
  answer(all_but_last, last);
  Logged server(folder.path());
  expect_same(server.shards, all_but_last);
}

TEST(Log, IsOfOneServer) {
  const TemporaryFolder folder;
  const Logged server(folder.path());
  try {
    const WriteAheadLog other(ServerLog{.folder = folder.path()});
    ADD_FAILURE() << "two write to one log";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("another server writes its log to"));
  }
}

// What a server says that begins with this log, however often it does.
std::string refusal_of(const std::filesystem::path& folder) {
  std::string said;
  for (int times = 0; times < 2; ++times) try {
      const Logged server(folder);
      return "nothing";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt);
      said = error.what();
    }
  return said;
}

TEST(Log, ThatIsDamagedIsRefusedAndLosesNothing) {
  const TemporaryFolder folder, copies;
  const std::filesystem::path damaged = copies / "log";
  Messages messages(8);
  {
    Logged server(folder.path());
    for (const std::vector<std::byte>& message : messages.begin()) server.take(message);
    for (int i = 0; i < 200; ++i) {
      server.take(messages.next());
      while (server.log->go_on(server.shards, false)) {}
    }
    // Another file of records behind the one of the base.
    server.log->want_base();
    server.log->go_on(server.shards, false);
    server.take(messages.next());
  }
  const std::filesystem::path last = last_records(folder.path()).filename();
  ASSERT_NE(last, "0.log");
  const auto said_of = [&](const std::string& name, const auto& damage) {
    std::filesystem::remove_all(damaged);
    std::filesystem::copy(folder.path(), damaged, std::filesystem::copy_options::recursive);
    damage(damaged / name);
    return refusal_of(damaged);
  };
  const auto flip = [](std::uint64_t at) {
    return [at](const std::filesystem::path& path) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(at));
      const char byte = static_cast<char>(file.get() ^ 1);
      file.seekp(static_cast<std::streamoff>(at));
      file.put(byte);
    };
  };
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    if (entry.path().extension() == ".log") files.push_back(entry.path().filename());
  ASSERT_EQ(files.size(), 2u);
  const std::string first = files[0] == last ? files[1] : files[0];
  EXPECT_THAT(said_of(first, flip(60)), HasSubstr("is damaged at byte 40"));
  EXPECT_THAT(said_of(last, flip(60)), HasSubstr("is damaged at byte 40"));
  EXPECT_THAT(said_of(first, [](const auto& path) { std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1); }),
              HasSubstr("is cut short at byte"));
  const auto without_last_record = [](const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::uint64_t begin = 0;
    for (std::uint32_t head[2]; file.read(reinterpret_cast<char*>(head), sizeof head);) {
      const auto end = begin + sizeof head + head[0];
      if (end == std::filesystem::file_size(path)) break;
      file.seekg(static_cast<std::streamoff>(begin = end));
    }
    std::filesystem::resize_file(path, begin);
  };
  EXPECT_THAT(said_of(first, without_last_record), HasSubstr("has lost its end"));
  EXPECT_THAT(said_of(first, [](const auto& path) { std::filesystem::resize_file(path, 0); }),
              HasSubstr("does not say what the server held"));
  EXPECT_THAT(said_of(first, [](const auto& path) { std::filesystem::remove(path); }), HasSubstr("is missing"));
  EXPECT_EQ(said_of(last, [](const auto&) {}), "nothing");
}

TEST(Log, TrainsOnAndLoadsAsAServerWithoutOne) {
  const TemporaryFolder folder, saved;
  const std::string place = free_loopback_place();
  constexpr std::uint64_t kRows = 3000;
  const TableSpec spec{.name = "t", .dimension = 3, .type = RowType::bf16, .consistency = Consistency::synchronous};
  const KilledServer plain;
  KilledServer logged(place, {.log = ServerLog{.folder = folder.path(), .base_after = Bytes(1 << 30)}});  // its bases are those of saves
  std::vector<std::unique_ptr<Client>> there, here;
  for (const int index : {0, 1}) {
    const ClientOptions options{.reconnect = Seconds(30), .worker = Worker{.index = index, .count = 2, .run = 1}};
    there.push_back(std::make_unique<Client>(std::vector{plain.place}, "", options));
    here.push_back(std::make_unique<Client>(std::vector{place}, "", options));
  }
  for (const auto& clients : {&there, &here})
    for (const auto& client : *clients) client->open(spec);
  const auto train = [&](int first, int last) {
    for (const auto& clients : {&there, &here})
      for (int step = first; step < last; ++step)
        for (int worker = 0; worker < 2; ++worker) train_step(*(*clients)[static_cast<std::size_t>(worker)], 0, kRows, 3, worker, step);
  };
  const auto again = [&] {
    logged.kill();
    logged.start();
  };
  train(0, 5);
  again();
  train(5, 9);
  for (const auto& clients : {&there, &here}) {
    const std::filesystem::path to = saved.path() / (clients == &there ? "there" : "here");
    clients->front()->begin_save(to);
    clients->front()->finish_save();
  }
  train(9, 12);
  // What was before the save is no part of the log any more.
  for (int turn = 0; turn < 500 && std::filesystem::exists(folder.path() / "0.log"); ++turn) usleep(10'000);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "0.log"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "1" / "tables.json"));
  again();
  for (const auto& clients : {&there, &here}) clients->front()->load(saved.path() / (clients == &there ? "there" : "here"));
  again();
  train(12, 15);
  again();
  std::vector<Key> keys(kRows);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<float> first(3 * kRows), second(3 * kRows);
  there.front()->pull(0, keys, first, Absent::zeros);
  here.front()->pull(0, keys, second, Absent::zeros);
  EXPECT_EQ(first, second);
}

TEST(Log, KeepsWhatMovesFromItsServerAndWhatStays) {
  const TemporaryFolder folder;
  const std::string place = free_loopback_place();
  // A base is due at every moment.
  KilledServer logged(place, {.log = ServerLog{.folder = folder.path(), .base_after = Bytes(1)}});
  const KilledServer other;
  Counting counting(place);
  const auto push = [&] {
    for (int i = 0; i < 3; ++i) counting.push();
  };
  push();
  Move move({place}, {place, other.place}, "", counting.client.opened());
  move.copy();
  push();
  usleep(100'000);
  move.finish();
  counting.client.go_on_at({place, other.place}, "", 1);
  usleep(100'000);
  move.drop();
  push();
  for (int times = 0; times < 2; ++times) {
    logged.kill();
    logged.start();
    push();
    counting.expect_all();
  }
}

TEST(Log, HoldsRowsThatMemoryHasNoRoomFor) {
  const TemporaryFolder folder, rows;
  const std::string place = free_loopback_place();
  ServerOptions options = on_disk(rows.path());
  options.log = ServerLog{.folder = folder.path(), .base_after = Bytes(2 << 20)};
  KilledServer server(place, options);
  const KilledServer other;
  LargeTable logged({place}), expected({other.place});
  std::uint64_t seed = 0;
  const auto push = [&] {
    for (LargeTable* const table : {&logged, &expected}) table->push(seed);
    ++seed;
  };
  const auto begin_anew = [&] {
    EXPECT_GT(logged.on_disk(), Bytes(0));
    server.kill();
    server.start();
    ASSERT_EQ(logged.values(), expected.values());
    EXPECT_GT(logged.on_disk(), Bytes(0));
  };
  while (seed < 8) push();
  begin_anew();
  // Then with a base, whose rows were read from the disk.
  const auto has_base = [&] {
    return std::ranges::any_of(std::filesystem::directory_iterator(folder.path()),
                               [](const auto& entry) { return std::filesystem::exists(entry.path() / "tables.json"); });
  };
  while (!has_base() && seed < 300) push();
  EXPECT_TRUE(has_base());
  push();
  begin_anew();
}

}  // namespace
}  // namespace tessera::ps
