#include "control/agent_messages.hpp"

#include "base/hex.hpp"
#include "comm/fields.hpp"

namespace tessera::control {
namespace {

using comm::bytes_in;
using comm::field_of;
using comm::integer_in;
using comm::refuse_message;
using comm::text_in;
using nlohmann::json;

constexpr std::size_t kLongestName = 1024;
constexpr std::size_t kLongestText = 16 << 20;
constexpr std::size_t kMostWords = 100'000;
constexpr std::int64_t kMostThreads = 1 << 16;

bool flag_in(const json& message, const char* name) {
  const json& value = field_of(message, name);
  if (!value.is_boolean()) refuse_message(text("'", name, "' is neither true nor false"));
  return value.get<bool>();
}

const json& list_in(const json& message, const char* name) {
  const json& value = field_of(message, name);
  if (!value.is_array() || value.size() > kMostWords) refuse_message(text("'", name, "' is no list"));
  return value;
}

std::string word_of(const json& value, const char* name) {
  if (!value.is_string() || value.get_ref<const std::string&>().size() > kLongestText)
    refuse_message(text("'", name, "' does not hold words"));
  std::string word = value.get<std::string>();
  // It would end a word of a command, or a path, early.
  if (word.find('\0') != std::string::npos) refuse_message(text("'", name, "' holds a word with a zero byte"));
  return word;
}

std::vector<std::string> words_in(const json& message, const char* name) {
  std::vector<std::string> words;
  for (const json& one : list_in(message, name)) words.push_back(word_of(one, name));
  return words;
}

int rank_in(const json& message) { return static_cast<int>(integer_in(message, "rank", 0, kMostRanks - 1)); }

json json_of(const Hello& hello) {
  return {{"kind", "hello"},    {"version", hello.version}, {"host", hello.host},   {"node", hello.node},      {"address", hello.address},
          {"port", hello.port}, {"index", hello.index},     {"count", hello.count}, {"cluster", hello.cluster}};
}
Hello hello_from(const json& message) {
  return {text_in(message, "version", kLongestName),
          text_in(message, "host", kLongestName),
          text_in(message, "node", kLongestName),
          text_in(message, "address", kLongestName),
          static_cast<int>(integer_in(message, "port", 0, 65535)),
          static_cast<int>(integer_in(message, "index", 0, kMostRanks - 1)),
          static_cast<int>(integer_in(message, "count", 1, kMostRanks)),
          text_in(message, "cluster", kLongestText)};
}

json json_of(const Start& start) {
  json ranks = json::array();
  for (const Start::Rank& rank : start.ranks) {
    json environment = json::array();
    for (const auto& [name, value] : rank.environment) environment.push_back({name, value});
    ranks.push_back({{"rank", rank.rank}, {"threads", rank.threads}, {"arguments", rank.arguments}, {"environment", environment}});
  }
  return {{"kind", "start"},        {"folder", start.folder}, {"needed", start.needed},
          {"secret", start.secret}, {"pins", start.pins},     {"ranks", ranks}};
}
Start start_from(const json& message) {
  Start start{text_in(message, "folder", kLongestText),
              words_in(message, "needed"),
              text_in(message, "secret", kLongestText),
              flag_in(message, "pins"),
              {}};
  for (const json& one : list_in(message, "ranks")) {
    Start::Rank rank{rank_in(one), static_cast<int>(integer_in(one, "threads", 0, kMostThreads)), words_in(one, "arguments"), {}};
    for (const json& variable : list_in(one, "environment")) {
      if (!variable.is_array() || variable.size() != 2) refuse_message("'environment' does not hold pairs");
      rank.environment.emplace_back(word_of(variable[0], "environment"), word_of(variable[1], "environment"));
    }
    start.ranks.push_back(std::move(rank));
  }
  return start;
}

json json_of(const Tell& tell) { return {{"kind", "tell"}, {"kill", tell.kill}}; }

json json_of(const Wrote& wrote) {
  return {{"kind", "wrote"}, {"rank", wrote.rank}, {"errors", wrote.stream == Stream::errors}, {"bytes", to_hex(wrote.bytes)}};
}
Wrote wrote_from(const json& message) {
  return {rank_in(message), flag_in(message, "errors") ? Stream::errors : Stream::output, bytes_in(message, "bytes", kLongestText)};
}

json json_of(const Ended& ended) {
  return {{"kind", "ended"}, {"rank", ended.end.rank}, {"status", ended.end.status}, {"report", ended.end.report}};
}
Ended ended_from(const json& message) {
  return {{rank_in(message), static_cast<int>(integer_in(message, "status", 0, 0xffff)), text_in(message, "report", kLongestText)}};
}

json json_of(const Refused& refused) { return {{"kind", "refused"}, {"error", refused.error}}; }
json json_of(const Beat&) { return {{"kind", "beat"}}; }

}  // namespace

json to_json(const AgentMessage& message) {
  return std::visit([](const auto& one) { return json_of(one); }, message);
}

AgentMessage agent_message_from(const json& message) {
  const std::string kind = text_in(message, "kind", 16);
  if (kind == "hello") return hello_from(message);
  if (kind == "start") return start_from(message);
  if (kind == "tell") return Tell{flag_in(message, "kill")};
  if (kind == "wrote") return wrote_from(message);
  if (kind == "ended") return ended_from(message);
  if (kind == "refused") return Refused{text_in(message, "error", kLongestText)};
  if (kind == "beat") return Beat{};
  refuse_message(text("there is no kind '", kind, "'"), "hello, start, tell, wrote, ended, refused or beat");
}

}  // namespace tessera::control
