// Manifests that match their own digest and are wrong all the same: what someone wrote by hand.
#include "checkpoint/manifest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/expect_error.hpp"
#include "base/hash.hpp"
#include "checkpoint/checkpoint_helper.hpp"

namespace tessera::checkpoint {
namespace {

using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

// A tensor in two files, and one without elements.
Manifest whole() {
  Manifest manifest;
  manifest.files = {{"rank-00000.safetensors", 104, 80, "d"}, {"rank-00001.safetensors", 88, 80, "d"}};
  manifest.tensors["w"] = {{2, 4}, ElementType::f32, {{{-1, 0, 1, 0, 6}, 0, 80, 24, "d"}, {{-1, 0, 1, 6, 8}, 1, 80, 8, "d"}}};
  manifest.tensors["none"] = {{0, 3}, ElementType::i64, {}};
  return manifest;
}

std::string refusal(const Manifest& manifest) {
  const Error error = error_of([&] { require_whole(parse_manifest(to_text(manifest), "a/manifest.json"), "a/manifest.json"); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_EQ(error.where().file, "a/manifest.json");
  return error.what();
}

std::string refusal_with(const std::function<void(Manifest&, StoredPiece&)>& change) {
  Manifest manifest = whole();
  change(manifest, manifest.tensors["w"].pieces[0]);
  return refusal(manifest);
}

// The text with other words, and a digest that fits them.
std::string refusal_of_text(const std::string& from, const std::string& to) {
  std::string text = to_text(whole());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " is not in\n" << text;
  text.replace(at, from.size(), to);
  const std::string body = text.substr(0, text.rfind("\"xxh3_128\""));
  const std::string sealed = body + "\"xxh3_128\": \"" + hash128_hex(body) + "\"\n}\n";
  const Error error = error_of([&] { parse_manifest(sealed, "a/manifest.json"); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_EQ(error.where().file, "a/manifest.json");
  return error.what();
}

TEST(Manifest, IsReadAsItWasWritten) {
  const Manifest manifest = parse_manifest(to_text(whole()), "a/manifest.json");
  require_whole(manifest, "a/manifest.json");
  EXPECT_EQ(to_text(manifest), to_text(whole()));
}

TEST(Manifest, NamesOnlyFilesOfItsFolder) {
  for (const char* name : {"../rank-00000.safetensors", "/etc/passwd", "..", "", "a/b", ".hidden"})
    EXPECT_THAT(refusal_with([&](Manifest& manifest, StoredPiece&) { manifest.files[0].name = name; }),
                AllOf(HasSubstr(text("'", name, "' cannot be a file of the checkpoint")), HasSubstr("expected a file of this folder")));
}

TEST(Manifest, HoldsHeadersThatFitTheirFiles) {
  for (const std::int64_t bytes : {std::int64_t{-1}, std::int64_t{105}})
    EXPECT_THAT(refusal_with([&](Manifest& manifest, StoredPiece&) { manifest.files[0].header_bytes = bytes; }),
                HasSubstr(text("the header of rank-00000.safetensors has ", bytes, " of the file's 104 bytes")));
}

TEST(Manifest, HoldsPiecesThatLieInTheirFiles) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t offset : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{79}, std::int64_t{81}, kMost})
    EXPECT_THAT(refusal_with([&](Manifest&, StoredPiece& piece) { piece.offset = offset; }),
                AllOf(HasSubstr(text("a piece of tensor 'w' has 24 bytes from offset ", offset)),
                      HasSubstr("expected data of rank-00000.safetensors, bytes 80 to 104")));
  for (const int file : {-1, 2})
    EXPECT_THAT(refusal_with([&](Manifest&, StoredPiece& piece) { piece.file = file; }), HasSubstr(text("lies in file ", file, " of 2")));
}

TEST(Manifest, HoldsPiecesAsLongAsTheyShouldBe) {
  EXPECT_THAT(refusal_with([](Manifest&, StoredPiece& piece) { piece.bytes = 20; }),
              AllOf(HasSubstr("a piece of tensor 'w' has 20 bytes"), HasSubstr("expected 6 elements of type F32")));
  // 2^62 elements of 4 bytes are 2^64 bytes, which 64 bits take for none.
  EXPECT_THAT(refusal_with([](Manifest& manifest, StoredPiece& piece) {
                manifest.tensors["w"].shape = {std::int64_t{1} << 62};
                piece.cut.flat_end = std::int64_t{1} << 62;
                piece.bytes = 0;
              }),
              HasSubstr("has 0 bytes"));
}

TEST(Manifest, HoldsCutsThatTheTensorHas) {
  EXPECT_THAT(refusal_with([](Manifest&, StoredPiece& piece) { piece.cut.flat_end = 9; }), HasSubstr("its range 0 to 9 is not within 8"));
  EXPECT_THAT(refusal_with([](Manifest& manifest, StoredPiece&) { manifest.tensors["w"].shape = {-2, -4}; }), HasSubstr("shape"));
  // The strides of a tensor without elements overflow as well.
  EXPECT_THAT(refusal_with([](Manifest& manifest, StoredPiece&) {
                manifest.tensors["w"].shape = {0, std::int64_t{1} << 62, 4};
              }),
              HasSubstr("shape"));
  EXPECT_THAT(refusal_with([](Manifest& manifest, StoredPiece&) { manifest.tensors["none"].shape = {-1}; }), HasSubstr("'none'"));
}

TEST(Manifest, HoldsEachElementOnceAndEachByteOnce) {
  EXPECT_THAT(refusal_with([](Manifest& manifest, StoredPiece&) { manifest.tensors["w"].pieces.pop_back(); }),
              HasSubstr("the pieces of tensor 'w' do not make up the tensor exactly once"));
  // As many elements as there should be, but some twice and some never.
  EXPECT_THAT(refusal_with([](Manifest& manifest, StoredPiece&) {
                manifest.tensors["w"].pieces[1].cut = {-1, 0, 1, 4, 6};
              }),
              HasSubstr("exactly once"));
  EXPECT_THAT(refusal_with([](Manifest& manifest, StoredPiece&) {
                manifest.tensors["twin"] = {{1}, ElementType::f32, {{{-1, 0, 1, 0, 1}, 0, 100, 4, "d"}}};
              }),
              HasSubstr("pieces of tensors 'w' and 'twin' lie in the same bytes"));
}

TEST(Manifest, HoldsWholeNumbersThatFit) {
  EXPECT_THAT(refusal_of_text("\"offset\":80", "\"offset\":80.5"), HasSubstr("80.5 in place of a whole number"));
  EXPECT_THAT(refusal_of_text("\"file\":0", "\"file\":4294967296"), HasSubstr("4294967296 in place of a whole number of up to 32 bits"));
  EXPECT_THAT(refusal_of_text("\"bytes\":24", "\"bytes\":18446744073709551615"), HasSubstr("18446744073709551615"));
  EXPECT_THAT(refusal_of_text("\"shape\":[2,4]", "\"shape\":\"8\""), HasSubstr("string in place of a list"));
  EXPECT_THAT(refusal_of_text("\"tokens\":0", "\"tokens\":[]"), HasSubstr("array in place of a whole number"));
}

TEST(Manifest, IsNotFollowedThroughALink) {
  const TemporaryFolder folder;
  save(folder.path(), 1, make_tensors(1));
  const auto shard = step_folder(folder.path(), 1) / "rank-00000.safetensors";
  const auto elsewhere = folder.path() / "elsewhere";
  std::filesystem::rename(shard, elsewhere);
  std::filesystem::create_symlink(elsewhere, shard);
  const Error error = error_of([&] { Reader(step_folder(folder.path(), 1)); });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank-00000.safetensors"), HasSubstr("is a link")));
}

}  // namespace
}  // namespace tessera::checkpoint
