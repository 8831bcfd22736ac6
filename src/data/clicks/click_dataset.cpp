#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"
#include "data/clicks/click_file.hpp"
#include "data/clicks/keys.hpp"
#include "data/dataset.hpp"
#include "data/mixture.hpp"
#include "data/source.hpp"
#include "model/forms.hpp"

namespace tessera::data {
namespace {

// What a model reads of a line.
struct ClickShape {
  std::int64_t dense;
  std::int64_t tables;
  std::int64_t lookups;
};

// Lines by their number, those for training first. Immutable; safe to use from several threads.
class ClickLines {
 public:
  virtual ~ClickLines() = default;
  virtual std::int64_t size() const = 0;
  virtual void read(std::int64_t index, const ClickRoom& room) const = 0;
  virtual std::uint64_t content_hash() const = 0;
  virtual std::uint64_t source_hash() const = 0;
};

class LoggedLines final : public ClickLines {
 public:
  LoggedLines(std::unique_ptr<ClickFormat> format, ClickFile file) : format_(std::move(format)), file_(std::move(file)) {}
  std::int64_t size() const override { return file_.size(); }
  void read(std::int64_t index, const ClickRoom& room) const override {
    const std::string problem = format_->read(file_.line(index), room);
    if (!problem.empty()) throw Error(ErrorCode::corrupt, text("a line of the click log has changed since it was first read: ", problem));
  }
  std::uint64_t content_hash() const override { return source_hash(); }
  std::uint64_t source_hash() const override { return file_.content_hash(); }

 private:
  std::unique_ptr<ClickFormat> format_;
  ClickFile file_;
};

// One label in four is 1, whatever stands beside it.
class SyntheticLines final : public ClickLines {
 public:
  SyntheticLines(const ClickShape& shape, std::vector<std::int64_t> rows, std::uint64_t seed)
      : shape_(shape), rows_(std::move(rows)), seed_(seed) {}
  std::int64_t size() const override { return (1 << 20) + 4096; }
  void read(std::int64_t index, const ClickRoom& room) const override {
    constexpr std::uint64_t kUnbounded = 1 << 20;
    Random random(seed_of(seed_, static_cast<std::uint64_t>(index), 0x636C6963));
    room.label = random.below(4) == 0 ? 1 : 0;
    for (float& value : room.dense) value = static_cast<float>(4 * random.uniform());
    for (std::size_t i = 0; i < room.keys.size(); ++i) {
      const std::size_t table = i / static_cast<std::size_t>(shape_.lookups);
      room.keys[i] = key_of(table, random.below(rows_[table] > 0 ? static_cast<std::uint64_t>(rows_[table]) : kUnbounded));
    }
  }
  std::uint64_t content_hash() const override { return seed_; }
  std::uint64_t source_hash() const override { return 0; }

 private:
  ClickShape shape_;
  std::vector<std::int64_t> rows_;
  std::uint64_t seed_;
};

class ClickDataset final : public Dataset {
 public:
  ClickDataset(const model::DataSpec& spec, const ClickShape& shape, std::uint64_t seed, std::unique_ptr<ClickLines> lines)
      : where_(spec.where), shape_(shape), lines_(std::move(lines)) {
    const std::int64_t size = lines_->size();
    train_ = static_cast<std::int64_t>(static_cast<double>(size) * spec.train_fraction);
    validation_ = size - train_;
    if (train_ < 1 || (validation_ < 1 && spec.train_fraction < 1))
      throw Error(ErrorCode::invalid_config, text("the source has ", size, " lines: too few to train and to validate on"), where_,
                  "at least one for each", "use more lines, or data.split.train: 1.0 to go without validation");
    order_.emplace(std::vector<std::int64_t>{train_}, std::vector<double>(), seed);
  }
  void add_note(std::string note) {
    if (!note.empty()) notes_.push_back(std::move(note));
  }

  std::int64_t train_samples() const override { return train_; }
  std::int64_t validation_samples() const override { return validation_; }
  std::int64_t targets_per_sample() const override { return 1; }
  std::int64_t counted_targets(std::int64_t) const override { return 1; }
  std::uint64_t content_hash() const override {
    return seed_of(lines_->content_hash(), static_cast<std::uint64_t>(train_), static_cast<std::uint64_t>(validation_));
  }
  std::uint64_t source_hash() const override { return lines_->source_hash(); }

  std::vector<Draw> draws(std::int64_t step, std::int64_t global_batch) const override {
    ensure(step >= 0 && global_batch > 0, "a step and a batch");
    if (global_batch > train_)
      throw Error(ErrorCode::invalid_config,
                  text("a batch has ", global_batch, " samples but the training split has only ", train_, " lines"), where_,
                  text("train.global_batch of at most ", train_), "use more lines, or a smaller train.global_batch");
    return draws_of(*order_, step, global_batch);
  }

  std::vector<Field> fields() const override {
    std::vector<Field> out = {{"labels", {}, FieldType::whole, -1}};
    if (shape_.dense > 0) out.push_back({"dense", {shape_.dense}, FieldType::real, 0});
    out.push_back({"keys", {shape_.tables, shape_.lookups}, FieldType::key, -1});
    return out;
  }

  void fill(const Draw& draw, const std::vector<Row>& rows) const override {
    ensure(draw.sample >= 0 && draw.sample < train_, text("sample ", draw.sample, " of ", train_));
    read(draw.sample, rows);
  }
  void fill_validation(std::int64_t index, const std::vector<Row>& rows) const override {
    ensure(index >= 0 && index < validation_, text("sample ", index, " of ", validation_));
    read(train_ + index, rows);
  }

 private:
  void read(std::int64_t line, const std::vector<Row>& rows) const {
    const std::size_t keys = shape_.dense > 0 ? 2 : 1;
    lines_->read(line, {.label = std::get<std::span<std::int32_t>>(rows.at(0))[0],
                        .dense = keys == 2 && rows.size() > 1 ? std::get<std::span<float>>(rows[1]) : std::span<float>(),
                        .keys = rows.size() > keys ? std::get<std::span<std::uint64_t>>(rows[keys]) : std::span<std::uint64_t>()});
  }

  Where where_;
  ClickShape shape_;
  std::unique_ptr<ClickLines> lines_;
  std::int64_t train_ = 0;
  std::int64_t validation_ = 0;
  std::optional<Mixture> order_;
};

}  // namespace

std::unique_ptr<Dataset> open_clicks(const model::DataSpec& spec, const model::ModelSpec& model, std::uint64_t seed) {
  need_source(spec);
  const ClickShape shape{model.dim("dense"), model.dim("tables"), model.dim("lookups")};
  const std::vector<std::int64_t> rows = model::table_rows(model);
  if (spec.synthetic) return std::make_unique<ClickDataset>(spec, shape, seed, std::make_unique<SyntheticLines>(shape, rows, seed));
  const model::SourceSpec& source = spec.sources.front();
  if (std::filesystem::is_directory(source.path))
    throw Error(ErrorCode::invalid_config, source.path.string() + " is a folder", source.where, "the file of a click log");
  ensure(spec.format.has_value(), "a click log has a format, which read_job asks for");
  std::unique_ptr<ClickFormat> format = make_click_format(*spec.format, model, spec.where);
  ClickFile file(open_source(source.path, {}, source.where).files.front().path, *format, rows, shape.dense, shape.lookups,
                 spec.records.on_error, source.where);
  const std::string note = file.note();
  auto dataset = std::make_unique<ClickDataset>(spec, shape, seed, std::make_unique<LoggedLines>(std::move(format), std::move(file)));
  dataset->add_note(note);
  return dataset;
}

}  // namespace tessera::data
