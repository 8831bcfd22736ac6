#include <ATen/ops/empty.h>
#include <cstring>
#include <utility>

#include "base/config.hpp"
#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/digest.hpp"
#include "checkpoint/element.hpp"
#include "checkpoint/manifest.hpp"

namespace tessera::checkpoint {
namespace {

[[noreturn]] void refuse_changed(const std::filesystem::path& file, const std::string& problem) {
  throw Error(ErrorCode::corrupt, problem, {file.string(), 0, 0, -1, {}}, {},
              "the file was changed or damaged; move the folder of this step away to take the checkpoint before it");
}

}  // namespace

struct Reader::Impl {
  std::filesystem::path folder;
  Manifest manifest;
  std::vector<MappedFile> files;
  std::map<std::string, TensorInfo> infos;
  std::map<std::string, std::vector<bool>> verified;  // by piece of a tensor

  std::filesystem::path path_of(int file) const { return folder / manifest.files[static_cast<std::size_t>(file)].name; }

  void open_files() {
    for (const ShardFile& shard : manifest.files) {
      const auto path = folder / shard.name;
      const auto status = std::filesystem::symlink_status(path);
      if (!std::filesystem::exists(status)) refuse_changed(path, "a file of the checkpoint is missing");
      // No save makes links, and one may lead anywhere.
      if (!std::filesystem::is_regular_file(status)) refuse_changed(path, "a file of the checkpoint is a link, or no file");
      files.emplace_back(path);
      const auto bytes = files.back().bytes();
      if (static_cast<std::int64_t>(bytes.size()) != shard.bytes)
        refuse_changed(path, text("the file has ", bytes.size(), " bytes instead of ", shard.bytes));
      if (digest_of(bytes.first(static_cast<std::size_t>(shard.header_bytes))) != shard.header_digest)
        refuse_changed(path, text("the header (bytes 0 to ", shard.header_bytes, ") does not match its digest"));
    }
  }

  void index_tensors() {
    for (const auto& [name, tensor] : manifest.tensors) {
      infos[name] = {name, tensor.shape, scalar_type(tensor.type)};
      verified[name].resize(tensor.pieces.size());
    }
  }

  std::span<const std::byte> bytes_of(const StoredPiece& piece) const {
    return files[static_cast<std::size_t>(piece.file)].bytes().subspan(static_cast<std::size_t>(piece.offset),
                                                                       static_cast<std::size_t>(piece.bytes));
  }

  // The piece's bytes, after they have been found to be right.
  std::span<const std::byte> checked(const std::string& name, std::size_t index) {
    const StoredPiece& piece = manifest.tensors.at(name).pieces[index];
    const auto bytes = bytes_of(piece);
    if (!verified.at(name)[index]) {
      if (digest_of(bytes) != piece.digest)
        refuse_changed(path_of(piece.file),
                       text("tensor '", name, "' does not match its digest (", piece.bytes, " bytes from offset ", piece.offset, ")"));
      verified.at(name)[index] = true;
    }
    return bytes;
  }

  // "w.exp_avg" of a checkpoint that has "w" and says that it holds weights alone.
  bool is_unbegun_state(const std::string& name) const {
    const std::size_t dot = name.rfind('.');
    const auto weights_only = manifest.state.extra.find(kWeightsOnly);
    if (weights_only == manifest.state.extra.end() || weights_only->second == 0 || dot == std::string::npos) return false;
    return !infos.contains(name) && infos.contains(name.substr(0, dot)) &&
           (name.ends_with(".exp_avg") || name.ends_with(".exp_avg_sq") || name.ends_with(".momentum"));
  }

  const TensorInfo& info(const std::string& name) const {
    if (const auto found = infos.find(name); found != infos.end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [known, info] : infos) names.push_back(known);
    const auto guess = nearest(name, names);
    throw Error(ErrorCode::not_found, "the checkpoint has no tensor '" + name + "'", {folder.string(), 0, 0, -1, {}},
                guess ? "'" + *guess + "'" : text("one of its ", names.size(), " tensors"),
                "was it saved with the same model and optimizer?");
  }
};

Reader::Reader(std::filesystem::path step_folder) : impl_(std::make_unique<Impl>()) {
  impl_->folder = std::move(step_folder);
  const auto path = impl_->folder / kManifestName;
  if (!std::filesystem::exists(path))
    throw Error(ErrorCode::not_found, "no complete checkpoint here", {impl_->folder.string(), 0, 0, -1, {}},
                "a folder with a manifest.json");
  impl_->manifest = parse_manifest(read_whole(path), path);
  require_whole(impl_->manifest, path);
  impl_->open_files();
  impl_->index_tensors();
}

Reader::~Reader() = default;
Reader::Reader(Reader&&) noexcept = default;

const State& Reader::state() const { return impl_->manifest.state; }
bool Reader::has(const std::string& name) const { return impl_->infos.contains(name); }
const TensorInfo& Reader::tensor(const std::string& name) const { return impl_->info(name); }

std::vector<TensorInfo> Reader::tensors() const {
  std::vector<TensorInfo> out;
  for (const auto& [name, info] : impl_->infos) out.push_back(info);
  return out;
}

at::Tensor Reader::read(const std::string& name) const {
  const TensorInfo& info = impl_->info(name);
  Piece whole{name, info.shape, -1, 0, 1, 0, element_count(info.shape), {}};
  read_piece(whole);
  return whole.data.view(info.shape);
}

void Reader::read_piece(Piece& target) const {
  if (impl_->is_unbegun_state(target.name)) {
    if (!target.data.defined()) target.data = at::empty({target.flat_end - target.flat_begin}, at::TensorOptions().dtype(at::kFloat));
    target.data.zero_();
    return;
  }
  const TensorInfo& info = impl_->info(target.name);
  const Cut cut{target.split_dim, target.split_index, target.split_size, target.flat_begin, target.flat_end};
  const Where where{impl_->folder.string(), 0, 0, -1, {}};
  if (target.shape != info.shape)
    throw Error(ErrorCode::invalid_config, text("tensor '", target.name, "' has the shape ", c10::IntArrayRef(info.shape)), where,
                text(c10::IntArrayRef(target.shape)), "the checkpoint is of another model");
  if (const std::string problem = problem_of(target.shape, cut); !problem.empty())
    throw Error(ErrorCode::internal, "the piece of '" + target.name + "' to be read is not one: " + problem);
  if (!target.data.defined()) target.data = at::empty({cut.count()}, at::TensorOptions().dtype(info.dtype));
  if (target.data.scalar_type() != info.dtype)
    throw Error(ErrorCode::invalid_config, text("tensor '", target.name, "' is of type ", c10::toString(info.dtype)), where,
                c10::toString(target.data.scalar_type()), "was it saved with another kind of optimizer or precision?");
  ensure(target.data.is_contiguous() && target.data.device().is_cpu() && target.data.numel() == cut.count(),
         "'" + target.name + "' can be read only into a contiguous tensor of its size on the CPU");

  const StoredPieces& stored = impl_->manifest.tensors.at(target.name);
  const std::size_t width = static_cast<std::size_t>(size_of(stored.type));
  auto* destination = static_cast<std::byte*>(target.data.mutable_data_ptr());
  std::int64_t filled = 0;
  for (std::size_t i = 0; i < stored.pieces.size(); ++i) {
    const std::byte* source = nullptr;
    filled += for_overlap(stored.shape, stored.pieces[i].cut, cut, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
      if (source == nullptr) source = impl_->checked(target.name, i).data();
      std::memcpy(destination + static_cast<std::size_t>(to) * width, source + static_cast<std::size_t>(from) * width,
                  static_cast<std::size_t>(count) * width);
    });
  }
  if (filled != cut.count())
    throw Error(ErrorCode::corrupt, text("the checkpoint holds ", filled, " of ", cut.count(), " elements of tensor '", target.name, "'"),
                where);
}

void Reader::verify() const {
  for (const auto& [name, tensor] : impl_->manifest.tensors)
    for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
      impl_->verified.at(name)[i] = false;
      impl_->checked(name, i);
    }
}

}  // namespace tessera::checkpoint
