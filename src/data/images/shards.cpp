// Tar archives as webdataset writes them: members of one key stand behind each other, KEY.jpg with its label in KEY.cls.
#include <algorithm>
#include <charconv>
#include <optional>

#include "base/hash.hpp"
#include "data/images/image_source.hpp"
#include "data/images/tar_index.hpp"
#include "data/in_file.hpp"

namespace tessera::data {
namespace {

// The path up to the first dot of the file's name.
std::string key_of(const std::string& member) {
  const std::size_t slash = member.rfind('/');
  return member.substr(0, member.find('.', slash == std::string::npos ? 0 : slash + 1));
}

class Shards final : public ImageSource {
 public:
  explicit Shards(const std::vector<std::filesystem::path>& shards) : shards_(shards) {
    for (std::size_t k = 0; k < shards_.size(); ++k) add(k);
    if (labels_.empty())
      throw Error(ErrorCode::invalid_config, "the archive holds no images", in_file(shards_.front()),
                  "members KEY.jpg or KEY.png with KEY.cls");
  }

  Image read(std::int64_t index) const override {
    const Place& place = places_[static_cast<std::size_t>(index)];
    const std::string bytes = read_part(shards_[place.shard], place.member.begin, place.member.size);
    return decode_image(std::as_bytes(std::span(bytes)), name(index));
  }
  std::string name(std::int64_t index) const override {
    const Place& place = places_[static_cast<std::size_t>(index)];
    return text(shards_[place.shard].string(), ": ", place.member.name);
  }

 private:
  struct Place {
    std::size_t shard;
    TarMember member;
  };

  void add(std::size_t shard) {
    std::string key;
    const TarMember* image = nullptr;
    std::optional<std::int32_t> label;
    const auto finish = [&] {
      if (image != nullptr && !label)
        throw Error(ErrorCode::invalid_config, text("the image ", image->name, " has no label"), in_file(shards_[shard]),
                    text(key, ".cls beside it"));
      if (image == nullptr && label)
        throw Error(ErrorCode::invalid_config, text("the label ", key, ".cls has no image"), in_file(shards_[shard]),
                    text(key, ".jpg or ", key, ".png beside it"));
      if (image == nullptr) return;
      labels_.push_back(*label);
      content_hash_ = hash64(image->name, seed_of(content_hash_, image->size, static_cast<std::uint64_t>(*label)));
      places_.push_back({shard, *image});
    };
    const std::vector<TarMember> members = index_tar(shards_[shard]);
    for (const TarMember& member : members) {
      if (const std::string own = key_of(member.name); own != key) {
        finish();
        key = own;
        image = nullptr;
        label.reset();
      }
      if (is_image_name(member.name)) image = &member;
      if (member.name.ends_with(".cls")) label = read_label(shards_[shard], member);
    }
    finish();
  }

  static std::int32_t read_label(const std::filesystem::path& shard, const TarMember& member) {
    constexpr std::uint64_t kMostDigits = 32;
    const std::string digits = read_part(shard, member.begin, std::min(member.size, kMostDigits));
    std::int32_t label = -1;
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), label);
    if (problem != std::errc() || label < 0 ||
        std::string_view(end, digits.data() + digits.size()).find_first_not_of(" \r\n") != std::string_view::npos)
      throw Error(ErrorCode::invalid_config, text("the label ", member.name, " is no number"), in_file(shard),
                  "the number of a class, from 0 on");
    return label;
  }

  std::vector<std::filesystem::path> shards_;
  std::vector<Place> places_;
};

}  // namespace

std::unique_ptr<ImageSource> open_shards(const std::vector<std::filesystem::path>& shards) { return std::make_unique<Shards>(shards); }

}  // namespace tessera::data
