#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <cmath>
#include <functional>
#include <set>

#include "base/error.hpp"
#include "base/temporary_folder.hpp"
#include "data/dataset.hpp"
#include "data/error_helper.hpp"
#include "data/image_files.hpp"

namespace tessera::data {
namespace {

using testing::HasSubstr;

model::ModelSpec image_model(int channels, int side, int classes) {
  model::ModelSpec model;
  model.arch = "resnet18";
  model.dims = {{"channels", channels}, {"image", side}, {"classes", classes}};
  return model;
}

model::DataSpec image_spec(const std::filesystem::path& source) {
  model::DataSpec spec;
  spec.sources = {{.path = source}};
  spec.where.file = "train.yaml";
  return spec;
}

struct Shown {
  explicit Shown(const Dataset& dataset) : image(static_cast<std::size_t>(dataset.fields()[0].count())) {}
  std::vector<Row> rows(const Dataset& dataset) {
    std::vector<Row> out = {image, std::span(&label, 1), std::span(&mixed_label, 1), std::span(&mixed_weight, 1)};
    out.resize(dataset.fields().size());
    return out;
  }
  std::vector<float> image;
  std::int32_t label = -5, mixed_label = -5;
  float mixed_weight = -5;
};
Shown shown(const Dataset& dataset, std::int64_t sample, std::int64_t epoch) {
  Shown out(dataset);
  dataset.fill({sample, epoch}, out.rows(dataset));
  return out;
}
Shown validated(const Dataset& dataset, std::int64_t index) {
  Shown out(dataset);
  dataset.fill_validation(index, out.rows(dataset));
  return out;
}

// The pixels of image i are i, its label i modulo 10.
std::filesystem::path counted_images(const TemporaryFolder& folder, int count) {
  std::string labels;
  for (int i = 0; i < count; ++i) labels += static_cast<char>(i % 10);
  folder.write("idx/train-images-idx3-ubyte", idx_images(count, 6, 6));
  folder.write("idx/train-labels-idx1-ubyte", idx_labels(labels));
  return folder / "idx";
}

int index_of(const Shown& sample) { return static_cast<int>(std::lround(sample.image[0] * 255)); }

TEST(Images, AreTensorsOfTheModelsShape) {
  const TemporaryFolder folder;
  const auto dataset = open_dataset(image_spec(counted_images(folder, 40)), image_model(3, 8, 10), 1);
  const auto fields = dataset->fields();
  ASSERT_EQ(fields.size(), 2u);
  EXPECT_EQ(fields[0].name, "images");
  EXPECT_EQ(fields[0].shape, (std::vector<std::int64_t>{3, 8, 8}));
  EXPECT_EQ(fields[0].type, FieldType::real);
  EXPECT_EQ(fields[1].name, "labels");
  EXPECT_EQ(fields[1].count(), 1);
  EXPECT_EQ(fields[1].absent, -1);
  EXPECT_EQ(dataset->targets_per_sample(), 1);
  EXPECT_EQ(as_text(*dataset), nullptr);
  const Shown sample = shown(*dataset, 3, 0);
  EXPECT_EQ(sample.label, index_of(sample) % 10);
  for (const float value : sample.image) EXPECT_EQ(value, sample.image[0]);
}

TEST(Images, AreSplitAtRandomAndTheSameForAllSeeds) {
  const TemporaryFolder folder;
  auto spec = image_spec(counted_images(folder, 100));
  spec.train_fraction = 0.8;
  const auto dataset = open_dataset(spec, image_model(1, 6, 10), 1), other = open_dataset(spec, image_model(1, 6, 10), 2);
  ASSERT_EQ(dataset->train_samples(), 80);
  ASSERT_EQ(dataset->validation_samples(), 20);
  std::set<int> seen, late;
  for (std::int64_t i = 0; i < 80; ++i) seen.insert(index_of(shown(*dataset, i, 0)));
  for (std::int64_t i = 0; i < 20; ++i) {
    const Shown sample = validated(*dataset, i);
    EXPECT_EQ(sample.label, index_of(sample) % 10);
    EXPECT_EQ(sample.image, validated(*other, i).image);
    late.insert(index_of(sample));
    seen.insert(index_of(sample));
  }
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_LT(*late.begin(), 50);  // not the end of the file
}

TEST(Images, EveryEpochIsAPermutation) {
  const TemporaryFolder folder;
  auto spec = image_spec(counted_images(folder, 100));
  spec.train_fraction = 0.8;
  const auto dataset = open_dataset(spec, image_model(1, 6, 10), 1);
  std::vector<Draw> all;
  for (std::int64_t step = 0; step < 10; ++step)
    for (const Draw& draw : dataset->draws(step, 16)) all.push_back(draw);
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    std::set<std::int64_t> samples;
    for (std::int64_t i = 80 * epoch; i < 80 * (epoch + 1); ++i) {
      EXPECT_EQ(all[static_cast<std::size_t>(i)].epoch, epoch);
      samples.insert(all[static_cast<std::size_t>(i)].sample);
    }
    EXPECT_EQ(samples.size(), 80u);
  }
  EXPECT_EQ(open_dataset(spec, image_model(1, 6, 10), 1)->draws(7, 16), dataset->draws(7, 16));
  EXPECT_NE(open_dataset(spec, image_model(1, 6, 10), 2)->draws(7, 16), dataset->draws(7, 16));
  EXPECT_THAT(error_of([&] { dataset->draws(0, 81); }), HasSubstr("a batch has 81 images but the training split has only 80"));
}

TEST(Images, AreAugmentedBySeedEpochAndSampleAlone) {
  const TemporaryFolder folder;
  folder.write("set/cat/1.png", png_of(patterned(40, 30, 3)));
  folder.write("set/dog/2.png", png_of(patterned(30, 40, 3)));
  auto spec = image_spec(folder / "set");
  spec.train_fraction = 1;
  spec.images.crop = model::CropKind::random_resized;
  spec.images.flip = true;
  const auto dataset = open_dataset(spec, image_model(3, 16, 2), 1), again = open_dataset(spec, image_model(3, 16, 2), 1);
  const Shown first = shown(*dataset, 0, 4);
  shown(*dataset, 1, 4);
  EXPECT_EQ(shown(*dataset, 0, 4).image, first.image);
  EXPECT_EQ(shown(*again, 0, 4).image, first.image);
  EXPECT_NE(shown(*dataset, 0, 5).image, first.image);
  EXPECT_NE(shown(*open_dataset(spec, image_model(3, 16, 2), 2), 0, 4).image, first.image);
}

TEST(Images, AreMixedWithAnotherOfTheTrainingSplit) {
  const TemporaryFolder folder;
  auto spec = image_spec(counted_images(folder, 100));
  spec.train_fraction = 0.8;
  const auto plain_set = open_dataset(spec, image_model(1, 6, 10), 1);
  spec.images.mixup = 0.4;
  const auto dataset = open_dataset(spec, image_model(1, 6, 10), 1);
  ASSERT_EQ(dataset->fields().size(), 4u);
  EXPECT_EQ(dataset->fields()[2].name, "mixed_labels");
  EXPECT_EQ(dataset->fields()[3].name, "mixed_weight");
  int mixed = 0;
  for (std::int64_t i = 0; i < 80; ++i) {
    const Shown own = shown(*plain_set, i, 0), sample = shown(*dataset, i, 0);
    EXPECT_EQ(sample.label, own.label);
    ASSERT_GE(sample.mixed_weight, 0);
    ASSERT_LE(sample.mixed_weight, 1);
    if (sample.mixed_weight < 0.01f) continue;
    // The partner's pixels follow from the mixture, and its label from its pixels.
    const double partner = (sample.image[0] - (1 - sample.mixed_weight) * own.image[0]) / sample.mixed_weight * 255;
    ASSERT_NEAR(partner, std::round(partner), 0.01);
    EXPECT_EQ(static_cast<int>(std::lround(partner)) % 10, sample.mixed_label);
    ++mixed;
  }
  EXPECT_GT(mixed, 40);
  const Shown late = validated(*dataset, 3);
  EXPECT_EQ(late.image, validated(*plain_set, 3).image);
  EXPECT_EQ(late.mixed_weight, 0);
  EXPECT_NE(dataset->content_hash(), plain_set->content_hash());
  EXPECT_EQ(dataset->source_hash(), plain_set->source_hash());
}

TEST(Images, OfASourceWithAValidationSetAreNotSplit) {
  const TemporaryFolder folder;
  const auto root = counted_images(folder, 20);
  folder.write("idx/t10k-images-idx3-ubyte", idx_images(5, 6, 6));
  folder.write("idx/t10k-labels-idx1-ubyte", idx_labels({4, 3, 2, 1, 0}));
  const auto dataset = open_dataset(image_spec(root), image_model(1, 6, 10), 1);
  EXPECT_EQ(dataset->train_samples(), 20);
  EXPECT_EQ(dataset->validation_samples(), 5);
  EXPECT_EQ(validated(*dataset, 1).label, 3);
}

TEST(Images, ThatCannotBeReadAreReplacedByTheNextWhereTheJobSaysSo) {
  const TemporaryFolder folder;
  for (const char* name : {"cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"})
    folder.write(name, png_of(plain(4, 4, {static_cast<std::uint8_t>(name[0] == 'c' ? 10 : 200)})));
  folder.write("cat/2.png", "no image");
  model::DataSpec spec = image_spec(folder.path());
  spec.train_fraction = 1;
  const auto labels = [&] {
    const auto dataset = open_images(spec, image_model(1, 4, 2), 1);
    std::vector<std::int32_t> out;
    for (std::int64_t sample = 0; sample < 4; ++sample) {
      const Shown one = shown(*dataset, sample, 0);
      EXPECT_EQ(one.image.front() < 0.5F, one.label == 0);
      out.push_back(one.label);
    }
    return out;
  };
  EXPECT_THROW(labels(), Error);
  spec.records.on_error = model::OnError::skip;
  EXPECT_THAT(labels(), testing::ElementsAre(0, 1, 1, 1));
}

TEST(Images, NeedAsManyClassesInTheModel) {
  const TemporaryFolder folder;
  const auto root = counted_images(folder, 20);
  const std::string error = error_of([&] { open_dataset(image_spec(root), image_model(1, 6, 4), 1); });
  EXPECT_THAT(error, HasSubstr("the source has 10 classes, and model.classes is 4"));
  EXPECT_THAT(error, HasSubstr("set model.classes to 10"));
  EXPECT_THAT(open_dataset(image_spec(root), image_model(1, 6, 12), 1)->notes(),
              testing::ElementsAre("the source has 10 classes, and the model 12"));
  EXPECT_THAT(error_of([&] { open_dataset(image_spec(root), image_model(2, 6, 10), 1); }), HasSubstr("model.channels: 1 or 3"));
}

TEST(Images, SyntheticOnesHaveTheModelsShapeAndFollowTheSeed) {
  model::DataSpec spec;
  spec.synthetic = true;
  const auto dataset = open_dataset(spec, image_model(3, 32, 1000), 1);
  const Shown sample = shown(*dataset, 17, 0);
  EXPECT_EQ(sample.image.size(), 3u * 32 * 32);
  EXPECT_GT(std::set(sample.image.begin(), sample.image.end()).size(), 200u);
  EXPECT_EQ(shown(*open_dataset(spec, image_model(3, 32, 1000), 1), 17, 3).image, sample.image);
  EXPECT_NE(shown(*open_dataset(spec, image_model(3, 32, 1000), 2), 17, 0).image, sample.image);
  EXPECT_NE(shown(*dataset, 18, 0).image, sample.image);
  std::set<std::int32_t> labels;
  for (std::int64_t i = 0; i < 200; ++i) labels.insert(shown(*dataset, i, 0).label);
  EXPECT_GT(labels.size(), 150u);
  EXPECT_LT(*labels.rbegin(), 1000);
  EXPECT_GT(dataset->validation_samples(), 0);
  EXPECT_EQ(dataset->source_hash(), 0u);
}

}  // namespace
}  // namespace tessera::data
