#include <algorithm>
#include <optional>

#include "base/config.hpp"
#include "data/images/image_source.hpp"
#include "data/in_file.hpp"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_in(const fs::path& folder, const std::string& prefix, const std::string& ending) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name.starts_with(prefix) && name.ends_with(ending)) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// "train", "images", 3 -> train-images-idx3-ubyte, which is also spelled train-images.idx3-ubyte, or either with .gz.
std::optional<fs::path> find_idx(const fs::path& root, const std::string& set, const std::string& what, int extents) {
  for (const char* between : {"-", "."})
    for (const char* ending : {"", ".gz"})
      if (const fs::path file = root / text(set, "-", what, between, "idx", extents, "-ubyte", ending); fs::exists(file)) return file;
  return std::nullopt;
}

std::unique_ptr<ImageSource> open_idx_set(const fs::path& root, const std::string& set) {
  const auto images = find_idx(root, set, "images", 3);
  if (!images) return nullptr;
  const auto labels = find_idx(root, set, "labels", 1);
  if (!labels)
    throw Error(ErrorCode::invalid_config, "the images have no labels", in_file(*images), text(set, "-labels-idx1-ubyte beside it"),
                "fetch it, too");
  return open_idx(*images, *labels);
}

bool open_cifar_sets(const fs::path& root, ImageSets& sets) {
  const std::vector<fs::path> batches = files_in(root, "data_batch_", ".bin");
  const fs::path test = root / (batches.empty() ? "test.bin" : "test_batch.bin");
  const int label_bytes = batches.empty() ? 2 : 1;
  if (batches.empty() && !fs::exists(root / "train.bin")) return false;
  sets.train = open_cifar(batches.empty() ? std::vector<fs::path>{root / "train.bin"} : batches, label_bytes);
  if (fs::exists(test)) sets.validation = open_cifar({test}, label_bytes);
  return true;
}

std::unique_ptr<ImageSource> open_folder(const fs::path& folder, const ImageSource* train, const Where& where,
                                         std::vector<std::string>& notes) {
  if (const auto shards = files_in(folder, "", ".tar"); !shards.empty()) return open_shards(shards);
  return open_class_folders(folder, train != nullptr ? train->classes() : std::vector<std::string>(), where, notes);
}

void refuse_missing(const fs::path& root, const Where& where) {
  std::vector<std::string> beside;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root.has_parent_path() ? root.parent_path() : ".", ignored))
    beside.push_back(entry.path().filename().string());
  const auto guess = nearest(root.filename().string(), beside);
  throw Error(ErrorCode::not_found, text("there is no source ", root.string()), where, "a folder of images, or a .tar",
              guess ? "did you mean '" + *guess + "'?" : "");
}

}  // namespace

ImageSets open_image_sets(const fs::path& root, const Where& where) {
  ImageSets sets;
  std::error_code ignored;
  if (!fs::exists(root, ignored)) refuse_missing(root, where);
  if (!fs::is_directory(root, ignored)) {
    if (root.extension() != ".tar")
      throw Error(ErrorCode::invalid_config, text(root.string(), " is no source of images"), where,
                  "a folder, or a .tar that is not compressed");
    sets.train = open_shards({root});
    return sets;
  }
  if ((sets.train = open_idx_set(root, "train"))) {
    sets.validation = open_idx_set(root, "t10k");
    return sets;
  }
  if (open_cifar_sets(root, sets)) return sets;
  const bool divided = fs::is_directory(root / "train", ignored);
  sets.train = open_folder(divided ? root / "train" : root, nullptr, where, sets.notes);
  for (const char* name : {"val", "validation"})
    if (divided && !sets.validation && fs::is_directory(root / name, ignored))
      sets.validation = open_folder(root / name, sets.train.get(), where, sets.notes);
  return sets;
}

}  // namespace tessera::data
