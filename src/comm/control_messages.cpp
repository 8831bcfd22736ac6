#include "comm/control_messages.hpp"

#include "comm/fields.hpp"
#include "comm/frames.hpp"

namespace tessera::comm {
namespace {

using nlohmann::json;

json json_of(const Heartbeat& heartbeat) {
  json places = json::array();
  for (const auto& [rank, place] : heartbeat.places) places.push_back({{"rank", rank}, {"place", place}});
  return {{"kind", "heartbeat"}, {"without", heartbeat.without}, {"place", heartbeat.place}, {"places", places}};
}

Heartbeat heartbeat_from(const json& message, int world_size) {
  Heartbeat heartbeat{.without = ranks_of(field_of(message, "without"), "without", world_size),
                      .place = text_in(message, "place", kLongestPlace)};
  const json& places = field_of(message, "places");
  if (!places.is_array()) refuse_message("'places' is no list");
  for (const json& one : places) {
    if (!one.is_object()) refuse_message("'places' does not hold objects");
    if (!heartbeat.places.emplace(static_cast<int>(integer_in(one, "rank", 0, world_size - 1)), text_in(one, "place", kLongestPlace))
             .second)
      refuse_message("'places' names a rank twice");
  }
  return heartbeat;
}

json json_of(const Failure& failure) {
  return {{"kind", "failed"}, {"code", static_cast<int>(failure.code)}, {"rank", failure.rank}, {"message", failure.message}};
}

json json_of(const Closing& closing) {
  json joined = json::array();
  for (const auto& [key, count] : closing.joined) joined.push_back({key, count});
  return {{"kind", "closing"}, {"rank", closing.rank}, {"joined", joined}};
}

json json_of(const End&) { return {{"kind", "end"}}; }

Closing closing_from(const json& message, int world_size) {
  Closing closing;
  closing.rank = static_cast<int>(integer_in(message, "rank", 0, world_size - 1));
  const json& joined = field_of(message, "joined");
  if (!joined.is_array()) refuse_message("'joined' is no list");
  for (const json& one : joined) {
    if (!one.is_array() || one.size() != 2) refuse_message("'joined' does not hold pairs");
    if (!closing.joined.emplace(unsigned_of(one[0], "joined"), unsigned_of(one[1], "joined")).second)
      refuse_message("'joined' names a group twice");
  }
  return closing;
}

}  // namespace

json to_json(const ControlMessage& message) {
  return std::visit([](const auto& one) { return json_of(one); }, message);
}

ControlMessage control_message_from(const json& message, int world_size) {
  const std::string kind = text_in(message, "kind", 16);
  if (kind == "heartbeat") return heartbeat_from(message, world_size);
  if (kind == "failed")
    return Failure{static_cast<ErrorCode>(integer_in(message, "code", 0, static_cast<int>(ErrorCode::internal))),
                   static_cast<int>(integer_in(message, "rank", -1, world_size - 1)), text_in(message, "message", kLongestProven)};
  if (kind == "closing") return closing_from(message, world_size);
  if (kind == "end") return End{};
  refuse_message(text("there is no kind '", kind, "'"), "heartbeat, failed, closing or end");
}

}  // namespace tessera::comm
