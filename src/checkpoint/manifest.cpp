#include "checkpoint/manifest.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/plain_name.hpp"
#include "checkpoint/json_integer.hpp"

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
  piece.file = integer_of<int>(json.at("file"));
  piece.offset = integer_of(json.at("offset"));
  piece.bytes = integer_of(json.at("bytes"));
  piece.cut.flat_begin = integer_of(json.at("range").at(0));
  piece.cut.flat_end = integer_of(json.at("range").at(1));
  if (json.contains("split")) {
    piece.cut.split_dim = integer_of<int>(json.at("split").at(0));
    piece.cut.split_index = integer_of<int>(json.at("split").at(1));
    piece.cut.split_size = integer_of<int>(json.at("split").at(2));
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
  state.step = integer_of(json.at("step"));
  state.tokens = integer_of(json.at("tokens"));
  state.seed = integer_of<std::uint64_t>(json.at("seed"));
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
    manifest.files.push_back(
        {file.at("name"), integer_of(file.at("bytes")), integer_of(file.at("header_bytes")), file.at("header_xxh3_128")});
  for (const auto& [name, entry] : json.at("tensors").items()) {
    StoredPieces& tensor = manifest.tensors[name];
    tensor.shape = integers_of(entry.at("shape"));
    tensor.type = element_type_of(entry.at("dtype"), path);
    for (const Json& piece : entry.at("pieces")) tensor.pieces.push_back(piece_of(piece));
  }
  return manifest;
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& problem, const std::string& expected = {}) {
  throw Error(ErrorCode::corrupt, problem, {path.string(), 0, 0, -1, {}}, expected,
              "the file was changed or damaged; move the folder of this step away to take the checkpoint before it");
}

void check_files(const Manifest& manifest, const std::filesystem::path& path) {
  for (const ShardFile& file : manifest.files) {
    if (!is_plain_name(file.name)) refuse(path, "'" + file.name + "' cannot be a file of the checkpoint", "a file of this folder");
    if (file.header_bytes < 0 || file.header_bytes > file.bytes)
      refuse(path, text("the header of ", file.name, " has ", file.header_bytes, " of the file's ", file.bytes, " bytes"));
  }
}

void check_piece(const Manifest& manifest, const StoredPieces& tensor, const StoredPiece& piece, const std::string& which,
                 const std::filesystem::path& path) {
  if (piece.file < 0 || piece.file >= static_cast<int>(manifest.files.size()))
    refuse(path, text(which, " lies in file ", piece.file, " of ", manifest.files.size()));
  if (const std::string problem = problem_of(tensor.shape, piece.cut); !problem.empty()) refuse(path, which + " is not one: " + problem);
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(piece.cut.count(), size_of(tensor.type), &bytes) || piece.bytes != bytes)
    refuse(path, text(which, " has ", piece.bytes, " bytes"), text(piece.cut.count(), " elements of type ", name_of(tensor.type)));
  const ShardFile& file = manifest.files[static_cast<std::size_t>(piece.file)];
  if (piece.offset < file.header_bytes || piece.offset > file.bytes - piece.bytes)
    refuse(path, text(which, " has ", piece.bytes, " bytes from offset ", piece.offset),
           text("data of ", file.name, ", bytes ", file.header_bytes, " to ", file.bytes));
}

// Pieces that shared bytes would let a small file stand for tensors that no memory holds.
void check_pieces(const Manifest& manifest, const std::filesystem::path& path) {
  struct Extent {
    int file;
    std::int64_t begin, end;
    const std::string* tensor;
  };
  std::vector<Extent> extents;
  for (const auto& [name, tensor] : manifest.tensors)
    for (const StoredPiece& piece : tensor.pieces) {
      check_piece(manifest, tensor, piece, "a piece of tensor '" + name + "'", path);
      if (piece.bytes > 0) extents.push_back({piece.file, piece.offset, piece.offset + piece.bytes, &name});
    }
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return std::pair(a.file, a.begin) < std::pair(b.file, b.begin); });
  for (std::size_t i = 1; i < extents.size(); ++i)
    if (extents[i].file == extents[i - 1].file && extents[i].begin < extents[i - 1].end)
      refuse(path, text("pieces of tensors '", *extents[i - 1].tensor, "' and '", *extents[i].tensor, "' lie in the same bytes"));
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
    Manifest manifest = manifest_of(Json::parse(text), path);
    check_files(manifest, path);
    check_pieces(manifest, path);
    return manifest;
  } catch (const std::exception& problem) {
    if (dynamic_cast<const Error*>(&problem) != nullptr) throw;
    throw Error(ErrorCode::corrupt, tessera::text("the file is not as it should be: ", problem.what()), {path.string(), 0, 0, -1, {}});
  }
}

void require_whole(const Manifest& manifest, const std::filesystem::path& path) {
  for (const auto& [name, tensor] : manifest.tensors) {
    std::vector<Cut> cuts;
    for (const StoredPiece& piece : tensor.pieces) cuts.push_back(piece.cut);
    if (element_count(tensor.shape) < 0) refuse(path, "the shape of tensor '" + name + "' is not one");
    if (!covers_once(tensor.shape, std::move(cuts)))
      refuse(path, "the pieces of tensor '" + name + "' do not make up the tensor exactly once");
  }
}

std::string shard_name(int rank, const char* extension) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "rank-%05d.%s", rank, extension);
  return buffer;
}

}  // namespace tessera::checkpoint
