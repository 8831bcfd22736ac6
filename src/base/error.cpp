#include "base/error.hpp"

#include <cstring>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

std::string location(const Where& where) {
  std::string out = where.file;
  if (where.line > 0) out += text(out.empty() ? "line " : ":", where.line);
  if (where.line > 0 && where.column > 0) out += text(":", where.column);
  if (where.rank >= 0) out += text(out.empty() ? "" : ", ", "rank ", where.rank);
  if (!where.block.empty()) out += text(out.empty() ? "" : ", ", "block ", where.block);
  return out;
}

}  // namespace

Error::Error(ErrorCode code, std::string message, Where where, std::string expected, std::string hint)
    : code_(code), message_(std::move(message)), where_(std::move(where)), expected_(std::move(expected)), hint_(std::move(hint)) {
  const std::string place = location(where_);
  text_ = place.empty() ? message_ : place + ": " + message_;
  if (!expected_.empty()) text_ += "; expected " + expected_;
  if (!hint_.empty()) text_ += "\n  " + hint_;
}

Error::Error(std::vector<Error> several) : Error(several.at(0)) {
  others_.assign(several.begin() + 1, several.end());
  for (const Error& other : others_) text_ += "\n" + other.text_;
}

std::vector<Error> Error::each() const {
  std::vector<Error> out = {Error(code_, message_, where_, expected_, hint_)};
  out.insert(out.end(), others_.begin(), others_.end());
  return out;
}

const char* name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_config: return "invalid_config";
    case ErrorCode::not_found: return "not_found";
    case ErrorCode::corrupt: return "corrupt";
    case ErrorCode::io: return "io";
    case ErrorCode::resource_exhausted: return "resource_exhausted";
    case ErrorCode::peer_lost: return "peer_lost";
    case ErrorCode::deadline_exceeded: return "deadline_exceeded";
    case ErrorCode::interrupted: return "interrupted";
    case ErrorCode::internal: return "internal";
  }
  return "internal";
}

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_config: return 2;
    case ErrorCode::not_found:
    case ErrorCode::corrupt: return 3;
    case ErrorCode::io: return 4;
    case ErrorCode::resource_exhausted: return 5;
    case ErrorCode::peer_lost:
    case ErrorCode::deadline_exceeded: return 6;
    case ErrorCode::interrupted: return 75;  // EX_TEMPFAIL of sysexits.h: try again
    case ErrorCode::internal: return 70;
  }
  return 70;
}

namespace {

nlohmann::json json_of(const Error& error) {
  nlohmann::json body = {{"code", name_of(error.code())}, {"message", error.message()}};
  const Where& where = error.where();
  if (!where.file.empty()) body["file"] = where.file;
  if (where.line > 0) body["line"] = where.line;
  if (where.column > 0) body["column"] = where.column;
  if (where.rank >= 0) body["rank"] = where.rank;
  if (!where.block.empty()) body["block"] = where.block;
  if (!error.expected().empty()) body["expected"] = error.expected();
  if (!error.hint().empty()) body["hint"] = error.hint();
  return body;
}

}  // namespace

std::string to_json(const Error& error) {
  nlohmann::json out = {{"error", json_of(error)}};
  if (const std::vector<Error> all = error.each(); all.size() > 1)
    for (const Error& one : all) out["errors"].push_back(json_of(one));
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void ensure(bool condition, const std::string& message) {
  if (!condition) throw Error(ErrorCode::internal, message);
}

void throw_errno(const std::string& action, const std::string& path, int error_number) {
  const ErrorCode code = error_number == ENOENT ? ErrorCode::not_found : ErrorCode::io;
  std::string hint;
  if (error_number == ENOSPC) hint = "free some space on that disk, or write elsewhere; nothing that was complete before has been changed";
  throw Error(code, text("cannot ", action, " ", path, ": ", std::strerror(error_number)), {}, {}, hint);
}

}  // namespace tessera
