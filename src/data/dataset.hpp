// The samples of a training run, whatever they are: their split, their order, and the rows of numbers that each has.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "data/progress.hpp"
#include "model/job.hpp"

namespace tessera::data {

enum class FieldType { whole, real, key };  // i32, f32, u64

// One of the rows of numbers that a sample has.
struct Field {
  std::string name;
  std::vector<std::int64_t> shape;  // of a sample; empty: a single number
  FieldType type = FieldType::whole;
  std::int32_t absent = 0;  // what stands in the row of a sample that is not there, and does not count; -1 of a key: all bits

  std::int64_t count() const;  // numbers of a sample
};

// The room for a field of one sample, in the order of its shape, the last extent running fastest.
using Row = std::variant<std::span<std::int32_t>, std::span<float>, std::span<std::uint64_t>>;

class Tokenizer;

// A training sample as an epoch draws it.
struct Draw {
  std::int64_t sample = 0;
  std::int64_t epoch = 0;
  friend bool operator==(const Draw&, const Draw&) = default;
};

// A sample's id stays the same in all epochs and under all plans, and what it holds depends on (seed, epoch, id) alone: resuming needs the
// step alone. Immutable; safe to use from several threads and processes.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t train_samples() const = 0;
  virtual std::int64_t validation_samples() const = 0;
  virtual std::int64_t targets_per_sample() const = 0;  // counted or not: a text's length, 1 of an image or a click
  // Identifies all samples and their split, without reading them. The ranks of one job must agree on it.
  virtual std::uint64_t content_hash() const = 0;
  // Identifies the content of the sources, however it is cut into samples; 0 for synthetic data.
  virtual std::uint64_t source_hash() const = 0;

  // The training samples of a step, in the batch's order, global_batch of them. Every epoch is a permutation that depends on (seed, epoch)
  // alone, of all samples or, of sources with weights, of their shares; an epoch ends within a step where it ends. Constant time and memory
  // per sample. Throws invalid_config when one batch is larger than the training split.
  virtual std::vector<Draw> draws(std::int64_t step, std::int64_t global_batch) const = 0;

  // What a sample has; the same of all.
  virtual std::vector<Field> fields() const = 0;
  // The first so many fields of a training sample, 0 <= draw.sample < train_samples(), in the order of fields(). Throws corrupt for what is
  // damaged.
  virtual void fill(const Draw& draw, const std::vector<Row>& rows) const = 0;
  // The same for validation samples, 0 <= index < validation_samples(), which are the same in all runs.
  virtual void fill_validation(std::int64_t index, const std::vector<Row>& rows) const = 0;
  // The targets of a training sample that count; the loss of a step is the mean over those of its whole batch.
  virtual std::int64_t counted_targets(std::int64_t sample) const = 0;

  // What makes tokens of the texts; null where there are none.
  virtual const Tokenizer* tokenizer() const { return nullptr; }

  // What was left out, skipped or cut while reading, a line each.
  const std::vector<std::string>& notes() const { return notes_; }

 protected:
  std::vector<std::string> notes_;
};

class TextDataset;

// What the model reads: images where it has an image size, click logs where it has tables, otherwise text, with labels where it tells
// classes. Throws as TextDataset::open, open_labelled_text, open_images and open_clicks do; an empty cache_dir means default_cache_dir().
std::unique_ptr<Dataset> open_dataset(const model::DataSpec& spec, const model::ModelSpec& model, std::uint64_t seed,
                                      const std::filesystem::path& cache_dir = {}, const ProgressCallback& progress = {});
// Null where the samples are no sequences of a text.
const TextDataset* as_text(const Dataset& dataset);

// Labelled images (data/images). One that cannot be read is an error, or the next sample in its place (RecordSpec::on_error). Fields:
// "images" f32 [channels, image, image] and "labels", a class from 0 on; of absent samples -1. With mixup also "mixed_labels" and
// "mixed_weight" f32: the sample is (1 - weight) parts of its own image and label and `weight` parts of the other's. Validation images come
// from the source's own, where it has such, else from a random part of all that is the same for all seeds. Throws not_found (with the
// nearest name), invalid_config (no labels, an empty class, more classes than the model has), corrupt, io.
std::unique_ptr<Dataset> open_images(const model::DataSpec& spec, const model::ModelSpec& model, std::uint64_t seed);

// Texts with a class each, DataSpec::records.field and .label of JSONL or Parquet. Fields: "tokens", seq whole numbers: a token that marks
// the begin ([CLS], <s>), the text or as much as there is room for, one that marks its end ([SEP], </s>), and padding; where the tokenizer
// has none of these, its end-of-text token. "positions", which begin anew at the padding, and "labels", a class from 0 on; of absent
// samples -1. Labels that are whole numbers below model.classes are the classes; others are numbered in their order. A random part of the
// texts, the same for all seeds, validates. Throws as TextDataset::open does, and invalid_config for more classes than the model has.
std::unique_ptr<Dataset> open_labelled_text(const model::DataSpec& spec, const model::ModelSpec& model, std::uint64_t seed,
                                            const std::filesystem::path& cache_dir, const ProgressCallback& progress = {});

// A click log, or random lines (data/clicks). Fields: "labels", 0 or 1, of absent samples -1; where the model has `dense` above 0, "dense"
// f32 [dense]; "keys" u64 [tables, lookups], of absent samples kNoKey (data/clicks/keys.hpp). The last lines validate, as a log is in the
// order of time. Throws not_found (with the nearest name), invalid_config (too few lines; an id that its table does not have), corrupt, io.
std::unique_ptr<Dataset> open_clicks(const model::DataSpec& spec, const model::ModelSpec& model, std::uint64_t seed);

// $TESSERA_CACHE, or .cache/tessera in the current folder.
std::filesystem::path default_cache_dir();

}  // namespace tessera::data
