// Fields of messages that other processes wrote. Each throws corrupt for a field that is missing, of another type or out of
// its range.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::comm {

// Throws corrupt with what was wrong, and what was expected.
[[noreturn]] void refuse_message(const std::string& what, const std::string& expected = {});

const nlohmann::json& field_of(const nlohmann::json& message, const char* name);
std::string text_in(const nlohmann::json& message, const char* name, std::size_t longest);
// Bytes that stand there in hexadecimal digits.
std::string bytes_in(const nlohmann::json& message, const char* name, std::size_t longest);
std::int64_t integer_in(const nlohmann::json& message, const char* name, std::int64_t least, std::int64_t most);
std::uint64_t unsigned_of(const nlohmann::json& value, const char* name);
// World ranks, none twice, in ascending order.
std::vector<int> ranks_of(const nlohmann::json& value, const char* name, int world_size);

}  // namespace tessera::comm
