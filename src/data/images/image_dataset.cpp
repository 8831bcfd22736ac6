#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "data/dataset.hpp"
#include "data/images/image_source.hpp"
#include "data/images/transform.hpp"
#include "data/mixture.hpp"
#include "data/permutation.hpp"
#include "data/source.hpp"

namespace tessera::data {
namespace {

// Which images validate, where the source does not say so, is the same for all seeds: evaluations of different runs compare.
constexpr std::uint64_t kSplitSeed = 0x76616C69;

// Random pixels of the model's size.
class SyntheticImages final : public ImageSource {
 public:
  SyntheticImages(const ImageShape& shape, std::int64_t classes, std::int64_t size, std::uint64_t seed) : shape_(shape), seed_(seed) {
    for (std::int64_t index = 0; index < size; ++index)
      labels_.push_back(static_cast<std::int32_t>(
          Random(seed_of(seed_, static_cast<std::uint64_t>(index), 1)).below(static_cast<std::uint64_t>(classes))));
  }
  Image read(std::int64_t index) const override {
    Image image = blank(shape_.side, shape_.side, shape_.channels);
    Random random(seed_of(seed_, static_cast<std::uint64_t>(index), 2));
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < image.pixels.size(); ++i) {
      bits = i % 8 == 0 ? random.next() : bits >> 8;
      image.pixels[i] = static_cast<std::uint8_t>(bits);
    }
    return image;
  }
  std::string name(std::int64_t index) const override { return text("synthetic image ", index); }

 private:
  ImageShape shape_;
  std::uint64_t seed_;
};

ImageSets synthetic_sets(const ImageShape& shape, std::int64_t classes, std::uint64_t seed) {
  constexpr std::int64_t kTrain = 1 << 16, kValidation = 256;
  ImageSets sets;
  sets.train = std::make_unique<SyntheticImages>(shape, classes, kTrain, seed);
  sets.validation = std::make_unique<SyntheticImages>(shape, classes, kValidation, seed_of(seed, kSplitSeed));
  return sets;
}

void check_classes(const ImageSource& source, std::int64_t classes, const Where& where) {
  if (source.class_count() > classes)
    throw Error(ErrorCode::invalid_config, text("the source has ", source.class_count(), " classes, and model.classes is ", classes), where,
                text("model.classes of at least ", source.class_count()), text("set model.classes to ", source.class_count()));
}

class ImageDataset final : public Dataset {
 public:
  ImageDataset(const model::DataSpec& spec, const ImageShape& shape, std::int64_t classes, std::uint64_t seed, ImageSets sets)
      : spec_(spec.images),
        on_error_(spec.records.on_error),
        where_(spec.where),
        shape_(shape),
        seed_(seed),
        synthetic_(spec.synthetic),
        sets_(std::move(sets)) {
    notes_ = std::move(sets_.notes);
    check_classes(*sets_.train, classes, where_);
    if (sets_.validation) check_classes(*sets_.validation, classes, where_);
    if (!synthetic_ && sets_.train->class_count() < classes)
      notes_.push_back(text("the source has ", sets_.train->class_count(), " classes, and the model ", classes));
    const std::int64_t size = sets_.train->size();
    train_ = size;
    if (sets_.validation) {
      validation_ = sets_.validation->size();
    } else {
      train_ = static_cast<std::int64_t>(static_cast<double>(size) * spec.train_fraction);
      validation_ = size - train_;
      if (train_ < 1 || (validation_ < 1 && spec.train_fraction < 1))
        throw Error(ErrorCode::invalid_config, text("the source has ", size, " images: too few to train and to validate on"), where_,
                    "at least one for each", "use more images, or data.split.train: 1.0 to go without validation");
      if (validation_ > 0) split_.emplace(static_cast<std::uint64_t>(size), kSplitSeed);
    }
    order_.emplace(std::vector<std::int64_t>{train_}, std::vector<double>(), seed);
  }

  std::int64_t train_samples() const override { return train_; }
  std::int64_t validation_samples() const override { return validation_; }
  std::int64_t targets_per_sample() const override { return 1; }
  std::int64_t counted_targets(std::int64_t) const override { return 1; }

  std::uint64_t content_hash() const override {
    std::string said = text(shape_.channels, ' ', shape_.side, ' ', spec_.resize, ' ', static_cast<int>(spec_.crop), ' ', spec_.padding,
                            ' ', spec_.scale_least, ' ', spec_.scale_most, ' ', spec_.flip, ' ', spec_.mixup, ' ', spec_.jitter.brightness,
                            ' ', spec_.jitter.contrast, ' ', spec_.jitter.saturation, ' ', spec_.jitter.hue);
    for (const auto* values : {&spec_.mean, &spec_.std})
      for (const double value : *values) said += text(' ', value);
    return seed_of(hash64(said), synthetic_ ? seed_ : source_hash(), static_cast<std::uint64_t>(train_),
                   static_cast<std::uint64_t>(validation_));
  }
  std::uint64_t source_hash() const override {
    if (synthetic_) return 0;
    return seed_of(sets_.train->content_hash(), sets_.validation ? sets_.validation->content_hash() : 0);
  }

  std::vector<Draw> draws(std::int64_t step, std::int64_t global_batch) const override {
    ensure(step >= 0 && global_batch > 0, "a step and a batch");
    if (global_batch > train_)
      throw Error(ErrorCode::invalid_config, text("a batch has ", global_batch, " images but the training split has only ", train_), where_,
                  text("train.global_batch of at most ", train_), "use more images, or a smaller train.global_batch");
    return draws_of(*order_, step, global_batch);
  }

  std::vector<Field> fields() const override {
    std::vector<Field> out = {{"images", {shape_.channels, shape_.side, shape_.side}, FieldType::real, 0},
                              {"labels", {}, FieldType::whole, -1}};
    if (spec_.mixup > 0) {
      out.push_back({"mixed_labels", {}, FieldType::whole, -1});
      out.push_back({"mixed_weight", {}, FieldType::real, 0});
    }
    return out;
  }

  void fill(const Draw& draw, const std::vector<Row>& rows) const override {
    ensure(draw.sample >= 0 && draw.sample < train_, text("sample ", draw.sample, " of ", train_));
    const std::span<float> image = std::get<std::span<float>>(rows.at(0));
    Random random(seed_of(seed_, static_cast<std::uint64_t>(draw.epoch), static_cast<std::uint64_t>(draw.sample), 0x696D6167));
    const std::int32_t label = read(draw.sample, random, image);
    std::int32_t other = label;
    float weight = 0;
    if (spec_.mixup > 0) {
      weight = static_cast<float>(1 - draw_beta(spec_.mixup, random));
      const auto partner = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(train_)));
      std::vector<float> mixed(image.size());
      other = read(partner, random, mixed);
      for (std::size_t i = 0; i < mixed.size(); ++i) image[i] += weight * (mixed[i] - image[i]);
    }
    put_labels(label, other, weight, rows);
  }

  void fill_validation(std::int64_t index, const std::vector<Row>& rows) const override {
    ensure(index >= 0 && index < validation_, text("sample ", index, " of ", validation_));
    const ImageSource& source = sets_.validation ? *sets_.validation : *sets_.train;
    const auto [image, at] = first_readable(source, index, validation_,
                                            [&](std::int64_t sample) { return sets_.validation ? sample : place_of(train_ + sample); });
    transform(image, spec_, shape_, source.name(at), std::get<std::span<float>>(rows.at(0)));
    put_labels(source.label(at), source.label(at), 0, rows);
  }

 private:
  // Where sample `index` of the training set, then of what is split off it, stands in the source.
  std::int64_t place_of(std::int64_t index) const {
    return split_ ? static_cast<std::int64_t>(split_->at(static_cast<std::uint64_t>(index))) : index;
  }
  // An image that cannot be read is replaced by the next sample that can, where the job says so. Returns the image and its place.
  template <typename PlaceOf>
  std::pair<Image, std::int64_t> first_readable(const ImageSource& source, std::int64_t sample, std::int64_t samples,
                                                const PlaceOf& place_of) const {
    for (std::int64_t tried = 0;; ++tried) {
      const std::int64_t place = place_of((sample + tried) % samples);
      try {
        return {source.read(place), place};
      } catch (const Error& error) {
        if (on_error_ == model::OnError::stop || error.code() != ErrorCode::corrupt || tried + 1 == samples) throw;
        const std::lock_guard lock(mutex_);
        if (replaced_.insert(source.name(place)).second)
          log::warning(text(source.name(place), " cannot be read, and the next sample stands in its place (data.on_error: skip)"));
      }
    }
  }
  // A training image; returns its label.
  std::int32_t read(std::int64_t sample, Random& random, std::span<float> out) const {
    const auto [image, place] = first_readable(*sets_.train, sample, train_, [&](std::int64_t one) { return place_of(one); });
    transform(image, spec_, shape_, random, sets_.train->name(place), out);
    return sets_.train->label(place);
  }
  static void put_labels(std::int32_t label, std::int32_t other, float weight, const std::vector<Row>& rows) {
    if (rows.size() > 1) std::get<std::span<std::int32_t>>(rows[1])[0] = label;
    if (rows.size() > 2) std::get<std::span<std::int32_t>>(rows[2])[0] = other;
    if (rows.size() > 3) std::get<std::span<float>>(rows[3])[0] = weight;
  }

  model::ImageSpec spec_;
  model::OnError on_error_;
  Where where_;
  ImageShape shape_;
  std::uint64_t seed_;
  bool synthetic_;
  ImageSets sets_;
  std::int64_t train_ = 0;
  std::int64_t validation_ = 0;
  std::optional<Permutation> split_;
  std::optional<Mixture> order_;
  mutable std::mutex mutex_;  // guards `replaced_`: images that could not be read
  mutable std::set<std::string> replaced_;
};

}  // namespace

std::unique_ptr<Dataset> open_images(const model::DataSpec& spec, const model::ModelSpec& model, std::uint64_t seed) {
  need_source(spec);
  const ImageShape shape{static_cast<int>(model.dim("channels")), static_cast<int>(model.dim("image"))};
  const std::int64_t classes = model.dim("classes");
  if (shape.channels != 1 && shape.channels != 3)
    throw Error(ErrorCode::invalid_config, text("images are grey or coloured, and model.channels is ", shape.channels), spec.where,
                "model.channels: 1 or 3");
  if (spec.synthetic) return std::make_unique<ImageDataset>(spec, shape, classes, seed, synthetic_sets(shape, classes, seed));
  if (spec.sources.size() != 1)
    throw Error(ErrorCode::invalid_config, text("data names ", spec.sources.size(), " sources of images"), spec.where, "one source");
  const model::SourceSpec& source = spec.sources.front();
  return std::make_unique<ImageDataset>(spec, shape, classes, seed, open_image_sets(source.path, source.where));
}

}  // namespace tessera::data
