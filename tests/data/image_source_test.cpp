#include "data/images/image_source.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <functional>

#include "base/temporary_folder.hpp"
#include "data/compressed_files.hpp"
#include "data/image_files.hpp"

namespace tessera::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

ImageSets open(const std::filesystem::path& root) {
  Where where;
  where.file = "train.yaml";
  where.line = 3;
  return open_image_sets(root, where);
}

std::string refusal_of(ErrorCode code, const std::filesystem::path& root) {
  try {
    open(root);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "nothing was thrown";
}

std::vector<std::int32_t> labels_of(const ImageSource& source) {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < source.size(); ++i) out.push_back(source.label(i));
  return out;
}

// The first pixel of each image.
std::vector<int> firsts_of(const ImageSource& source, int channel = 0) {
  std::vector<int> out;
  for (std::int64_t i = 0; i < source.size(); ++i) out.push_back(source.read(i).pixels[static_cast<std::size_t>(channel)]);
  return out;
}

TEST(Idx, HoldsImagesAndLabelsOfBothSetsPlainOrCompressed) {
  const TemporaryFolder folder;
  folder.write("train-images-idx3-ubyte", idx_images(3, 5, 4));
  folder.write("train-labels-idx1-ubyte", idx_labels({7, 0, 9}));
  folder.write("t10k-images-idx3-ubyte.gz", gzipped(idx_images(2, 5, 4)));
  folder.write("t10k-labels-idx1-ubyte.gz", gzipped(idx_labels({1, 2})));
  const ImageSets sets = open(folder.path());
  EXPECT_THAT(labels_of(*sets.train), ElementsAre(7, 0, 9));
  EXPECT_THAT(firsts_of(*sets.train), ElementsAre(0, 1, 2));
  EXPECT_EQ(sets.train->class_count(), 10);
  const Image image = sets.train->read(2);
  EXPECT_EQ(image.width, 5);
  EXPECT_EQ(image.height, 4);
  EXPECT_EQ(image.channels, 1);
  ASSERT_NE(sets.validation, nullptr);
  EXPECT_THAT(labels_of(*sets.validation), ElementsAre(1, 2));
  EXPECT_NE(sets.train->content_hash(), sets.validation->content_hash());
}

TEST(Idx, IsRefusedWhereLabelsAreMissingOrOthersOrTheFileIsCutOff) {
  const TemporaryFolder folder;
  folder.write("train-images-idx3-ubyte", idx_images(3, 5, 4));
  EXPECT_THAT(refusal_of(ErrorCode::invalid_config, folder.path()),
              AllOf(HasSubstr("train-images-idx3-ubyte: the images have no labels"), HasSubstr("train-labels-idx1-ubyte beside it")));
  folder.write("train-labels-idx1-ubyte", idx_labels({1, 2}));
  EXPECT_THAT(refusal_of(ErrorCode::invalid_config, folder.path()),
              HasSubstr("there are 3 images, and 2 labels in train-labels-idx1-ubyte"));
  folder.write("train-labels-idx1-ubyte", idx_labels({1, 2, 3}).substr(0, 10));
  EXPECT_THAT(refusal_of(ErrorCode::corrupt, folder.path()), HasSubstr("the file has 2 bytes of labels"));
  folder.write("train-images-idx3-ubyte", "no images");
  EXPECT_THAT(refusal_of(ErrorCode::corrupt, folder.path()), HasSubstr("this file holds no images"));
  folder.write("train-images-idx3-ubyte", big_endian(0x803) + big_endian(0xFFFFFFFF) + big_endian(0xFFFFFFFF) + big_endian(0xFFFFFFFF));
  EXPECT_THAT(refusal_of(ErrorCode::corrupt, folder.path()), HasSubstr("its header says otherwise"));
}

TEST(Cifar, HoldsTenClassesInSeveralFiles) {
  const TemporaryFolder folder;
  folder.write("data_batch_1.bin", cifar_record({3}, 10, 20, 30) + cifar_record({9}, 40, 50, 60));
  folder.write("data_batch_2.bin", cifar_record({1}, 70, 80, 90));
  folder.write("test_batch.bin", cifar_record({5}, 1, 2, 3));
  const ImageSets sets = open(folder.path());
  EXPECT_THAT(labels_of(*sets.train), ElementsAre(3, 9, 1));
  EXPECT_THAT(firsts_of(*sets.train, 0), ElementsAre(10, 40, 70));
  EXPECT_THAT(firsts_of(*sets.train, 1), ElementsAre(20, 50, 80));
  EXPECT_THAT(firsts_of(*sets.train, 2), ElementsAre(30, 60, 90));
  EXPECT_THAT(sets.train->name(2), HasSubstr("data_batch_2.bin, image 0"));
  EXPECT_THAT(labels_of(*sets.validation), ElementsAre(5));
}

TEST(Cifar, HoldsAHundredClassesByTheirFineLabels) {
  const TemporaryFolder folder;
  folder.write("train.bin", cifar_record({19, 99}, 1, 2, 3));
  folder.write("test.bin", cifar_record({4, 42}, 4, 5, 6));
  const ImageSets sets = open(folder.path());
  EXPECT_THAT(labels_of(*sets.train), ElementsAre(99));
  EXPECT_THAT(firsts_of(*sets.train, 2), ElementsAre(3));
  EXPECT_THAT(labels_of(*sets.validation), ElementsAre(42));
  folder.write("train.bin", "x");
  EXPECT_THAT(refusal_of(ErrorCode::corrupt, folder.path()), HasSubstr("records of 2 labels and 3 x 32 x 32 pixels, 3074 bytes each"));
}

TEST(ClassFolders, AreClassesInTheOrderOfTheirNames) {
  const TemporaryFolder folder;
  folder.write("train/dog/2.png", png_of(plain(4, 4, {20})));
  folder.write("train/dog/1.PNG", png_of(plain(4, 4, {10})));
  folder.write("train/cat/deep/3.jpeg", jpeg_of(plain(4, 4, {30})));
  folder.write("train/cat/readme.txt", "about cats");
  folder.write("train/.thumbnails/4.png", "");
  folder.write("val/dog/5.png", png_of(plain(4, 4, {50})));
  const ImageSets sets = open(folder.path());
  EXPECT_THAT(sets.train->classes(), ElementsAre("cat", "dog"));
  EXPECT_THAT(labels_of(*sets.train), ElementsAre(0, 1, 1));
  EXPECT_THAT(firsts_of(*sets.train), ElementsAre(30, 10, 20));
  EXPECT_THAT(labels_of(*sets.validation), ElementsAre(1));
  EXPECT_THAT(sets.notes, ElementsAre(HasSubstr("1 files of")));
  // Without `train` the folder's own folders are the classes.
  EXPECT_THAT(labels_of(*open(folder / "train").train), ElementsAre(0, 1, 1));
  EXPECT_EQ(open(folder / "train").validation, nullptr);
}

TEST(ClassFolders, AreRefusedWhereOneIsEmptyOrUnknownAndImagesWhereTheyAreCutOff) {
  const TemporaryFolder folder;
  folder.write("train/cat/1.jpg", jpeg_of(patterned(32, 32, 3)).substr(0, 700));
  EXPECT_THAT(
      [&] {
        try {
          open(folder.path()).train->read(0);
        } catch (const Error& error) {
          return std::string(error.what());
        }
        return std::string();
      }(),
      AllOf(HasSubstr("train/cat/1.jpg: the image cannot be read"), HasSubstr("fetch it again")));
  folder.write("val/owl/1.png", png_of(plain(4, 4, {1})));
  EXPECT_THAT(refusal_of(ErrorCode::invalid_config, folder.path()),
              HasSubstr("val/owl: there is no class of this name among the training images"));
  folder.write("train/owl/notes.txt", "no image");
  EXPECT_THAT(refusal_of(ErrorCode::invalid_config, folder.path()), HasSubstr("train/owl: the folder of this class holds no images"));
  EXPECT_THAT(refusal_of(ErrorCode::invalid_config, folder / "val/owl"), HasSubstr("holds neither folders nor sets of images"));
  const TemporaryFolder fetched;
  fetched.write("cifar-10-python.tar.gz", "not unpacked");
  EXPECT_THAT(refusal_of(ErrorCode::invalid_config, fetched.path()), HasSubstr("unpack cifar-10-python.tar.gz"));
  fetched.write("data_batch_1", "for Python");
  EXPECT_THAT(refusal_of(ErrorCode::invalid_config, fetched.path()), HasSubstr("these are CIFAR's files for Python"));
  EXPECT_THAT(refusal_of(ErrorCode::not_found, folder / "trian"), HasSubstr("did you mean 'train'?"));
}

std::string pax_record(const std::string& key, const std::string& value) {
  // The length counts its own digits, of which records of 100 to 999 bytes have three.
  const std::string rest = " " + key + "=" + value + "\n";
  return std::to_string(rest.size() + 3) + rest;
}

TEST(Shards, HoldImagesWithTheirLabels) {
  const TemporaryFolder folder;
  const std::string grey = png_of(plain(4, 4, {10})), other = png_of(plain(4, 4, {20})), third = jpeg_of(plain(8, 8, {30}));
  const std::string long_name = "a/" + std::string(120, 'n') + ".png";
  folder.write("b.tar", tar_member("0002.jpg", third) + tar_member("0002.cls", "4\n") + std::string(1024, '\0'));
  folder.write("a.tar", tar_member("0000.cls", "7") + tar_member("0000.png", grey) + tar_member("0000.json", "{}") +
                            tar_member("PaxHeaders/x", pax_record("path", long_name), 'x') + tar_member("short", other) +
                            tar_member("././@LongLink", "a/" + std::string(120, 'n') + ".cls" + '\0', 'L') + tar_member("short", "3") +
                            std::string(1024, '\0'));
  const ImageSets sets = open(folder.path());
  EXPECT_THAT(labels_of(*sets.train), ElementsAre(7, 3, 4));
  EXPECT_THAT(firsts_of(*sets.train), ElementsAre(10, 20, 30));
  EXPECT_THAT(sets.train->name(2), HasSubstr("b.tar: 0002.jpg"));
  EXPECT_EQ(sets.validation, nullptr);
  EXPECT_THAT(labels_of(*open(folder / "b.tar").train), ElementsAre(4));
}

TEST(Shards, AreRefusedWithoutLabelsCutOffOrCompressed) {
  const TemporaryFolder folder;
  const std::string image = png_of(plain(4, 4, {10}));
  folder.write("a.tar", tar_member("0.png", image) + tar_member("1.png", image) + tar_member("1.cls", "0"));
  EXPECT_THAT(refusal_of(ErrorCode::invalid_config, folder.path()),
              AllOf(HasSubstr("a.tar: the image 0.png has no label"), HasSubstr("0.cls beside it")));
  folder.write("a.tar", tar_member("0.png", image) + tar_member("0.cls", "cat"));
  EXPECT_THAT(refusal_of(ErrorCode::invalid_config, folder.path()), HasSubstr("the label 0.cls is no number"));
  folder.write("a.tar", tar_member("0.cls", "1"));
  EXPECT_THAT(refusal_of(ErrorCode::invalid_config, folder.path()), HasSubstr("the label 0.cls has no image"));
  folder.write("a.tar", tar_member("0.png", image).substr(0, 530));
  EXPECT_THAT(refusal_of(ErrorCode::corrupt, folder.path()), HasSubstr("it is cut off"));
  folder.write("a.tar", gzipped(tar_member("0.png", image) + std::string(2000, 'x')) + std::string(600, 'x'));
  EXPECT_THAT(refusal_of(ErrorCode::corrupt, folder.path()), HasSubstr("the checksum of a header is wrong"));
  folder.write("a.tar", tar_member("notes.txt", "nothing"));
  EXPECT_THAT(refusal_of(ErrorCode::invalid_config, folder.path()), HasSubstr("the archive holds no images"));
}

}  // namespace
}  // namespace tessera::data
