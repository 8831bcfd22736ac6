#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/digest.hpp"
#include "checkpoint/element.hpp"
#include "checkpoint/manifest.hpp"

namespace tessera::checkpoint {
namespace {

// Data is hashed and written by chunks of this size: small enough that the write finds in the cache what the hash has read.
constexpr std::size_t kChunk = 256 << 10;

Cut cut_of(const Piece& piece) { return {piece.split_dim, piece.split_index, piece.split_size, piece.flat_begin, piece.flat_end}; }

// A tensor that lies whole in the file keeps its name and shape, so that any reader of safetensors finds it; of others the
// name says what they are.
StoredTensor stored_as(const Piece& piece, std::int64_t begin) {
  const Cut cut = cut_of(piece);
  if (const std::string problem = problem_of(piece.shape, cut); !problem.empty() || piece.data.numel() != cut.count())
    throw Error(ErrorCode::internal,
                "the piece of '" + piece.name + "' to be saved is not one: " + (problem.empty() ? "its data has another size" : problem));
  StoredTensor stored{piece.name, element_type(piece.data.scalar_type()), piece.shape, begin,
                      begin + static_cast<std::int64_t>(piece.data.nbytes())};
  if (cut.count() == element_count(piece.shape)) return stored;
  stored.shape = {cut.count()};
  if (cut.split_dim >= 0) stored.name += text(":", cut.split_dim, ".", cut.split_index, "/", cut.split_size);
  stored.name += text("[", cut.flat_begin, ":", cut.flat_end, "]");
  return stored;
}

}  // namespace

Writer::Writer(FileSystem& files, std::filesystem::path folder, std::int64_t step, int rank, int world_size)
    : files_(files),
      folder_(std::move(folder)),
      temporary_(step_folder(folder_, step).concat(".tmp")),
      step_(step),
      rank_(rank),
      world_size_(world_size) {
  ensure(step >= 0 && rank >= 0 && rank < world_size, "a checkpoint needs a step and a rank of the world");
}

std::filesystem::path Writer::shard(const char* extension) const { return temporary_ / shard_name(rank_, extension); }

void Writer::abandon() noexcept {
  try {
    files_.remove_all(temporary_);
  } catch (const std::exception&) {
    // What is left is never read, and the next start tries again.
  }
}

void Writer::write(const std::vector<Piece>& pieces) { write_or_explain(pieces, nullptr); }
void Writer::write(const std::vector<Piece>& pieces, LivePieces& live) { write_or_explain(pieces, &live); }

void Writer::write_or_explain(const std::vector<Piece>& pieces, LivePieces* live) {
  try {
    write_shard(pieces, live);
  } catch (const Error& problem) {
    throw Error(problem.code(), text("the checkpoint of step ", step_, " was not written: ", problem.message()),
                {problem.where().file.empty() ? temporary_.string() : problem.where().file, 0, 0, rank_, {}}, problem.expected(),
                problem.code() == ErrorCode::io ? "make room there or point the run elsewhere; earlier checkpoints are as they were"
                                                : problem.hint());
  }
}

void Writer::write_shard(const std::vector<Piece>& pieces, LivePieces* live) {
  // Wide elements first keeps every tensor aligned in the file.
  std::vector<const Piece*> order;
  for (const Piece& piece : pieces) order.push_back(&piece);
  std::stable_sort(order.begin(), order.end(),
                   [](const Piece* a, const Piece* b) { return a->data.element_size() > b->data.element_size(); });
  std::vector<StoredTensor> layout;
  for (const Piece* piece : order) layout.push_back(stored_as(*piece, layout.empty() ? 0 : layout.back().end));
  const std::string header = safetensors_header(
      layout, {{"format", "pt"}, {"writer", "tessera"}, {"step", text(step_)}, {"rank", text(rank_)}, {"world_size", text(world_size_)}});

  files_.create_directories(temporary_);
  auto file = files_.create(shard("safetensors"));
  file->append(std::as_bytes(std::span(header)));
  Manifest part;
  const std::int64_t header_bytes = static_cast<std::int64_t>(header.size());
  Digest digest;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Piece& piece = *order[i];
    digest.reset();
    const auto write = [&](std::span<const std::byte> chunk) {
      digest.add(chunk);
      file->append(chunk);
    };
    const std::size_t bytes = piece.data.nbytes();
    for (std::size_t begin = 0; begin < bytes; begin += kChunk) {
      const std::size_t count = std::min(kChunk, bytes - begin);
      if (live != nullptr)
        live->read(static_cast<std::size_t>(order[i] - pieces.data()), begin, count, write);
      else
        write(bytes_of(piece.data).subspan(begin, count));
    }
    StoredPieces& tensor = part.tensors[piece.name];
    tensor.shape = piece.shape;
    tensor.type = layout[i].type;
    tensor.pieces.push_back({cut_of(piece), 0, header_bytes + layout[i].begin, layout[i].end - layout[i].begin, digest.hex()});
  }
  file->sync();
  file->close();

  part.state.step = step_;
  part.state.extra = {{"rank", rank_}, {"world_size", world_size_}};
  part.files.push_back({shard_name(rank_, "safetensors"), header_bytes + (layout.empty() ? 0 : layout.back().end), header_bytes,
                        digest_of(std::as_bytes(std::span(header)))});
  const std::string summary = to_text(part);
  file = files_.create(shard("json"));
  file->append(std::as_bytes(std::span(summary)));
  file->sync();
  file->close();
  files_.sync_directory(temporary_);
}

void Writer::commit(const State& state) {
  ensure(rank_ == 0, "rank 0 commits a checkpoint");
  try {
    publish(state);
  } catch (const Error& problem) {
    abandon();
    throw Error(problem.code(), text("the checkpoint of step ", step_, " was not committed: ", problem.message()), problem.where(),
                problem.expected(),
                problem.code() == ErrorCode::io ? "make room there or point the run elsewhere; earlier checkpoints are as they were"
                                                : problem.hint());
  }
}

void Writer::publish(const State& state) {
  Manifest manifest;
  manifest.state = state;
  manifest.state.step = step_;
  for (int rank = 0; rank < world_size_; ++rank) {
    const auto path = temporary_ / shard_name(rank, "json");
    Manifest part = parse_manifest(read_whole(path), path);
    const std::map<std::string, double> expected = {{"rank", rank}, {"world_size", world_size_}};
    if (part.files.size() != 1 || part.files[0].name != shard_name(rank, "safetensors") || part.state.extra != expected ||
        part.state.step != step_)
      throw Error(ErrorCode::corrupt, text("what rank ", rank, " says about its file is of another save"), {path.string(), 0, 0, rank, {}});
    manifest.files.push_back(std::move(part.files[0]));
    for (auto& [name, tensor] : part.tensors) {
      StoredPieces& whole = manifest.tensors[name];
      if (whole.pieces.empty()) {
        whole.shape = tensor.shape;
        whole.type = tensor.type;
      }
      if (whole.shape != tensor.shape || whole.type != tensor.type)
        throw Error(ErrorCode::internal, text("rank ", rank, " saved '", name, "' with another shape or type than the ranks before it"));
      for (StoredPiece& piece : tensor.pieces) {
        piece.file = rank;
        whole.pieces.push_back(std::move(piece));
      }
    }
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    std::vector<Cut> cuts;
    for (const StoredPiece& piece : tensor.pieces) cuts.push_back(piece.cut);
    if (!covers_once(tensor.shape, std::move(cuts)))
      throw Error(ErrorCode::internal, "the pieces of '" + name + "' from all ranks do not make up the tensor exactly once");
  }

  const std::string content = to_text(manifest);
  auto file = files_.create(temporary_ / kManifestName);
  file->append(std::as_bytes(std::span(content)));
  file->sync();
  file->close();
  // All that the ranks said is in the manifest now; nor may files of an earlier, interrupted save stay.
  for (const auto& entry : std::filesystem::directory_iterator(temporary_)) {
    const std::string name = entry.path().filename();
    const bool listed =
        std::any_of(manifest.files.begin(), manifest.files.end(), [&](const ShardFile& shard) { return shard.name == name; });
    if (name != kManifestName && !listed) files_.remove_all(entry.path());
  }
  files_.sync_directory(temporary_);

  const std::filesystem::path final_folder = step_folder(folder_, step_);
  const std::filesystem::path replaced = std::filesystem::path(final_folder).concat(".replaced");
  const bool replaces = std::filesystem::exists(final_folder);
  if (replaces) {
    files_.remove_all(replaced);
    files_.rename(final_folder, replaced);
  }
  files_.rename(temporary_, final_folder);
  files_.sync_directory(folder_);
  if (replaces) files_.remove_all(replaced);
}

}  // namespace tessera::checkpoint
