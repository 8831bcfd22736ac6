#include "checkpoint/manifest.hpp"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/hash.hpp"

namespace tessera::checkpoint {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kFormat = "tessera-checkpoint";
constexpr int kVersion = 1;

// The last lines of the file; the digest is that of everything before them.
std::string seal(const std::string& body) { return "\"xxh3_128\": \"" + hash128_hex(body) + "\"\n}\n"; }

// JSON has no infinities; the losses of a run that went wrong do.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(text(value)); }
double number_of(const Json& value) { return value.is_string() ? std::stod(value.get<std::string>()) : value.get<double>(); }

Json json_of(const StoredPiece& piece) {
  Json json = {
      {"file", piece.file}, {"offset", piece.offset}, {"bytes", piece.bytes}, {"range", {piece.cut.flat_begin, piece.cut.flat_end}}};
  if (piece.cut.split_dim >= 0) json["split"] = {piece.cut.split_dim, piece.cut.split_index, piece.cut.split_size};
  json["xxh3_128"] = piece.digest;
  return json;
}

StoredPiece piece_of(const Json& json) {
  StoredPiece piece;
  piece.file = json.at("file");
  piece.offset = json.at("offset");
  piece.bytes = json.at("bytes");
  piece.cut.flat_begin = json.at("range").at(0);
  piece.cut.flat_end = json.at("range").at(1);
  if (json.contains("split")) {
    piece.cut.split_dim = json.at("split").at(0);
    piece.cut.split_index = json.at("split").at(1);
    piece.cut.split_size = json.at("split").at(2);
  }
  piece.digest = json.at("xxh3_128");
  return piece;
}

Json json_of(const State& state) {
  Json extra = Json::object();
  for (const auto& [name, value] : state.extra) extra[name] = number(value);
  return {{"step", state.step},
          {"tokens", state.tokens},
          {"seed", state.seed},
          {"model_fingerprint", state.model_fingerprint},
          {"extra", extra},
          {"plan", state.plan_json},
          {"train_yaml", state.train_yaml}};
}

State state_of(const Json& json) {
  State state;
  state.step = json.at("step");
  state.tokens = json.at("tokens");
  state.seed = json.at("seed");
  state.model_fingerprint = json.at("model_fingerprint");
  state.plan_json = json.at("plan");
  state.train_yaml = json.at("train_yaml");
  for (const auto& [name, value] : json.at("extra").items()) state.extra[name] = number_of(value);
  return state;
}

Manifest manifest_of(const Json& json, const std::filesystem::path& path) {
  Manifest manifest;
  if (json.at("format") != kFormat || json.at("version") != kVersion)
    throw Error(ErrorCode::corrupt, "a checkpoint of a format that this version does not know", {path.string(), 0, 0, -1, {}},
                text(kFormat, " version ", kVersion), "load it with the version of Tessera that wrote it");
  manifest.state = state_of(json.at("state"));
  for (const Json& file : json.at("files"))
    manifest.files.push_back({file.at("name"), file.at("bytes"), file.at("header_bytes"), file.at("header_xxh3_128")});
  for (const auto& [name, entry] : json.at("tensors").items()) {
    StoredPieces& tensor = manifest.tensors[name];
    tensor.shape = entry.at("shape").get<std::vector<std::int64_t>>();
    tensor.type = element_type_of(entry.at("dtype"), path);
    for (const Json& piece : entry.at("pieces")) tensor.pieces.push_back(piece_of(piece));
  }
  return manifest;
}

}  // namespace

std::string to_text(const Manifest& manifest) {
  Json files = Json::array();
  for (const ShardFile& file : manifest.files)
    files.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"header_bytes", file.header_bytes}, {"header_xxh3_128", file.header_digest}});
  try {
    // One line for each tensor: for people, and for diff.
    std::string body = text("{\n\"format\": \"", kFormat, "\",\n\"version\": ", kVersion, ",\n\"state\": ", json_of(manifest.state).dump(),
                            ",\n\"files\": ", files.dump(), ",\n\"tensors\": {");
    bool first = true;
    for (const auto& [name, tensor] : manifest.tensors) {
      Json pieces = Json::array();
      for (const StoredPiece& piece : tensor.pieces) pieces.push_back(json_of(piece));
      const Json entry = {{"dtype", name_of(tensor.type)}, {"shape", tensor.shape}, {"pieces", pieces}};
      body += (first ? "\n" : ",\n") + Json(name).dump() + ": " + entry.dump();
      first = false;
    }
    body += "\n},\n";
    return body + seal(body);
  } catch (const nlohmann::json::exception& problem) {
    throw Error(ErrorCode::invalid_config, text("what the checkpoint should hold is not UTF-8 text: ", problem.what()));
  }
}

Manifest parse_manifest(const std::string& text, const std::filesystem::path& path) {
  const std::size_t sealed = seal({}).size();
  const std::string body = text.substr(0, text.size() < sealed ? 0 : text.size() - sealed);
  if (body.empty() || text.substr(body.size()) != seal(body))
    throw Error(ErrorCode::corrupt, "the file does not match the digest at its end", {path.string(), 0, 0, -1, {}}, {},
                "it was changed or damaged; take an earlier checkpoint");
  try {
    return manifest_of(Json::parse(text), path);
  } catch (const std::exception& problem) {
    if (dynamic_cast<const Error*>(&problem) != nullptr) throw;
    throw Error(ErrorCode::corrupt, tessera::text("the file is not as it should be: ", problem.what()), {path.string(), 0, 0, -1, {}});
  }
}

std::string shard_name(int rank, const char* extension) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "rank-%05d.%s", rank, extension);
  return buffer;
}

}  // namespace tessera::checkpoint
