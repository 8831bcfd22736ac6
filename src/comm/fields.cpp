#include "comm/fields.hpp"

#include "base/error.hpp"
#include "base/hex.hpp"

namespace tessera::comm {
namespace {

using nlohmann::json;

std::int64_t integer_of(const json& value, const char* name, std::int64_t least, std::int64_t most) {
  // What is too large for the type would be read as negative.
  const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() <= INT64_MAX);
  const std::int64_t number = fits ? value.get<std::int64_t>() : 0;
  if (!fits || number < least || number > most) refuse_message(text("'", name, "' is no such number"), text(least, " to ", most));
  return number;
}

}  // namespace

void refuse_message(const std::string& what, const std::string& expected) {
  throw Error(ErrorCode::corrupt, "a message between ranks cannot be read: " + what, {}, expected, "start all ranks with the same version");
}

const json& field_of(const json& message, const char* name) {
  const auto found = message.find(name);
  if (found == message.end()) refuse_message(text("it has no '", name, "'"));
  return *found;
}

std::string text_in(const json& message, const char* name, std::size_t longest) {
  const json& value = field_of(message, name);
  const auto* string = value.get_ptr<const std::string*>();
  if (string == nullptr || string->size() > longest)
    refuse_message(text("'", name, "' is no such text"), text("at most ", longest, " bytes"));
  return *string;
}

std::string bytes_in(const json& message, const char* name, std::size_t longest) {
  const auto bytes = from_hex(text_in(message, name, 2 * longest));
  if (!bytes) refuse_message(text("'", name, "' is not written in hexadecimal digits"));
  return *bytes;
}

std::int64_t integer_in(const json& message, const char* name, std::int64_t least, std::int64_t most) {
  return integer_of(field_of(message, name), name, least, most);
}

std::uint64_t unsigned_of(const json& value, const char* name) {
  if (!value.is_number_unsigned()) refuse_message(text("'", name, "' is no such number"), "0 or more");
  return value.get<std::uint64_t>();
}

std::vector<int> ranks_of(const json& value, const char* name, int world_size) {
  if (!value.is_array()) refuse_message(text("'", name, "' is no list of ranks"));
  std::vector<int> ranks;
  for (const json& one : value) {
    ranks.push_back(static_cast<int>(integer_of(one, name, 0, world_size - 1)));
    if (ranks.size() > 1 && ranks[ranks.size() - 2] >= ranks.back()) refuse_message(text("'", name, "' is not in ascending order"));
  }
  return ranks;
}

}  // namespace tessera::comm
