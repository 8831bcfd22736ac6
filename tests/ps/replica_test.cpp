// What one of a pair does with messages that come late.
#include "ps/replica.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "ps/messages.hpp"

namespace tessera::ps {
namespace {

// Of a standby that reaches nobody by itself.
class Alone final : public Surroundings {
 public:
  Process partner_process() const override { return Process::listens; }
  std::unique_ptr<comm::Requester> connect_to_partner(const comm::RequestClient::Options&) const override {
    throw Error(ErrorCode::peer_lost, "there is no partner");
  }
  void stand_by(bool) override {}
  bool is_connected(comm::RequestServer::ClientId) const override { return true; }
  bool sleep() override { return false; }
};

using Message = std::vector<std::byte>;

Message message_of(const AskHeader& header, const std::string& words = {}) {
  Message message(sizeof header + words.size());
  std::memcpy(message.data(), &header, sizeof header);
  std::memcpy(message.data() + sizeof header, words.data(), words.size());
  return message;
}

// A copy of shards with one row, as the leader with this number sends it.
std::vector<Message> copy_by(std::uint64_t process, float value) {
  Shards shards;
  std::vector<std::byte> reply(comm::kMostMessageBytes);
  const std::string joining = to_json(Joining{}),
                    spec = to_json(TableSpec{
                        .name = "ads", .dimension = 1, .optimizer = {.rule = Rule::add}, .initializer = {.kind = InitialValues::zero}});
  shards.answer(message_of({.ask = Ask::join, .table = 0, .count = joining.size(), .client = 7, .number = 0}, joining), reply);
  shards.answer(message_of({.ask = Ask::open, .table = 0, .count = spec.size(), .client = 7, .number = 0}, spec), reply);
  std::string row(sizeof(Key) + sizeof(float), '\0');
  std::memcpy(row.data() + sizeof(Key), &value, sizeof value);
  shards.answer(message_of({.ask = Ask::push, .table = 0, .count = 1, .client = 7, .number = 1}, row), reply);
  std::vector<Message> messages;
  shards.copy(
      process, [&] { return std::span(reply); },
      [&](std::size_t bytes) { messages.emplace_back(reply.begin(), reply.begin() + static_cast<std::ptrdiff_t>(bytes)); });
  return messages;
}

class Standby : public testing::Test {
 protected:
  std::span<const std::byte> ask(comm::RequestServer::ClientId connection, const Message& message) {
    const auto bytes = replica_.answer({.client = connection, .bytes = message}, reply_);
    return std::span(reply_).first(bytes.value());
  }
  void take(comm::RequestServer::ClientId connection, const std::vector<Message>& copy) {
    for (const Message& message : copy) ask(connection, message);
  }
  bool leads_when_asked(comm::RequestServer::ClientId connection, std::uint64_t process) {
    const Message question = message_of({.ask = Ask::who_leads, .table = 0, .count = 0, .client = process, .number = 0});
    return MessageReader(ask(connection, question)).take<Leads>(1).front().leads != 0;
  }

  Alone alone_;
  Replica replica_{"here", {.pair = Pair{.first = Pair::First::stands_by, .partner = "there"}}, alone_};
  std::vector<std::byte> reply_ = std::vector<std::byte>(comm::kMostMessageBytes);
};

TEST_F(Standby, RefusesWhatIsLeftOfACopyThatCameOverAnEarlierConnection) {
  const std::vector<Message> early = copy_by(5, 1), late = copy_by(5, 2);
  ask(1, early.front());
  take(2, late);
  for (const Message& message : early) EXPECT_THROW(ask(1, message), Error);
  EXPECT_FALSE(replica_.shards().incomplete());
  std::vector<Message> held;
  replica_.shards().copy(
      5, [&] { return std::span(reply_); },
      [&](std::size_t bytes) { held.emplace_back(reply_.begin(), reply_.begin() + static_cast<std::ptrdiff_t>(bytes)); });
  EXPECT_EQ(held, late);
}

TEST_F(Standby, LeadsWhenItsPartnerHasBegunAnew) {
  take(1, copy_by(5, 1));
  EXPECT_TRUE(leads_when_asked(2, 6));
  EXPECT_TRUE(replica_.leads());
}

TEST_F(Standby, LeadsThenAlsoWhereItsLeaderHeldNothing) {
  std::vector<Message> copy;
  Shards().copy(
      5, [&] { return std::span(reply_); },
      [&](std::size_t bytes) { copy.emplace_back(reply_.begin(), reply_.begin() + static_cast<std::ptrdiff_t>(bytes)); });
  take(1, copy);
  EXPECT_TRUE(leads_when_asked(2, 6));
}

TEST_F(Standby, DoesNotLeadWhereItsLeaderHasAskedBeforeItLed) {
  take(1, copy_by(5, 1));
  EXPECT_FALSE(leads_when_asked(2, 5));
}

TEST_F(Standby, DoesNotLeadForAQuestionOverAnEarlierConnection) {
  take(2, copy_by(5, 1));
  EXPECT_THROW(leads_when_asked(1, 4), Error);
  EXPECT_FALSE(replica_.leads());
}

TEST_F(Standby, DoesNotLeadWithAPartOfACopy) {
  std::vector<Message> copy = copy_by(5, 1);
  copy.pop_back();
  take(1, copy);
  EXPECT_FALSE(leads_when_asked(2, 6));
}

}  // namespace
}  // namespace tessera::ps
