#include <algorithm>
#include <optional>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"
#include "data/clicks/click_lines.hpp"
#include "data/dataset.hpp"
#include "data/mixture.hpp"
#include "data/source.hpp"

namespace tessera::data {
namespace {

class ClickDataset final : public Dataset {
 public:
  ClickDataset(const model::DataSpec& spec, const ClickShape& shape, std::uint64_t seed, std::unique_ptr<ClickLines> lines)
      : where_(spec.where), shape_(shape), lines_(std::move(lines)) {
    const std::int64_t size = lines_->size();
    first_validation_ = static_cast<std::int64_t>(static_cast<double>(size) * spec.train_fraction);
    train_ = first_validation_;
    validation_ = size - first_validation_;
    if (spec.negatives < 1) keep_negatives(spec.negatives, seed);
    if ((train_ < 1 && spec.train_fraction > 0) || (validation_ < 1 && spec.train_fraction < 1))
      throw Error(ErrorCode::invalid_config, text("the source has ", size, " lines: too few to train and to validate on"), where_,
                  "at least one for each", "use more lines, or data.split.train: 1.0 to go without validation");
    if (train_ > 0) order_.emplace(std::vector<std::int64_t>{train_}, std::vector<double>(), seed);
    if (std::string note = lines_->note(); !note.empty()) notes_.push_back(std::move(note));
  }

  std::int64_t train_samples() const override { return train_; }
  std::int64_t validation_samples() const override { return validation_; }
  std::int64_t targets_per_sample() const override { return 1; }
  std::int64_t counted_targets(std::int64_t) const override { return 1; }
  std::uint64_t content_hash() const override {
    const std::uint64_t hash = seed_of(lines_->content_hash(), static_cast<std::uint64_t>(train_), static_cast<std::uint64_t>(validation_));
    return shape_.history > 0 ? seed_of(hash, static_cast<std::uint64_t>(shape_.history), shape_.target) : hash;
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
    out.push_back({"keys", {static_cast<std::int64_t>(shape_.tables()), shape_.lookups}, FieldType::key, -1});
    if (shape_.history > 0) out.push_back({"history", {shape_.history}, FieldType::key, -1});
    return out;
  }

  void fill(const Draw& draw, const std::vector<Row>& rows) const override {
    ensure(draw.sample >= 0 && draw.sample < train_, text("sample ", draw.sample, " of ", train_));
    read(kept_.empty() ? draw.sample : kept_[static_cast<std::size_t>(draw.sample)], rows);
  }
  void fill_validation(std::int64_t index, const std::vector<Row>& rows) const override {
    ensure(index >= 0 && index < validation_, text("sample ", index, " of ", validation_));
    read(first_validation_ + index, rows);
  }

 private:
  void read(std::int64_t line, const std::vector<Row>& rows) const {
    const std::size_t keys = shape_.dense > 0 ? 2 : 1;
    const auto keys_at = [&](std::size_t place) {
      return rows.size() > place ? std::get<std::span<std::uint64_t>>(rows[place]) : std::span<std::uint64_t>();
    };
    lines_->read(line, {.label = std::get<std::span<std::int32_t>>(rows.at(0))[0],
                        .dense = keys == 2 && rows.size() > 1 ? std::get<std::span<float>>(rows[1]) : std::span<float>(),
                        .keys = keys_at(keys),
                        .history = keys_at(keys + 1)});
  }

  // A line's own number and the seed decide, so that all ranks keep the same.
  void keep_negatives(double share, std::uint64_t seed) {
    for (std::int64_t line = 0; line < first_validation_; ++line)
      if (lines_->clicked(line) || Random(seed_of(seed, static_cast<std::uint64_t>(line), kNegatives)).uniform() < share)
        kept_.push_back(line);
    notes_.push_back(text("data.negatives: ", kept_.size(), " of ", first_validation_, " training lines are kept"));
    train_ = std::ssize(kept_);
  }

  static constexpr std::uint64_t kNegatives = 0x6E656761;
  Where where_;
  ClickShape shape_;
  std::unique_ptr<ClickLines> lines_;
  std::int64_t train_ = 0;
  std::int64_t first_validation_ = 0;
  std::int64_t validation_ = 0;
  std::vector<std::int64_t> kept_;  // with negatives that are left out, the lines of training samples
  std::optional<Mixture> order_;    // of lines to train on, where there are some
};

}  // namespace

std::unique_ptr<Dataset> open_clicks(const model::DataSpec& spec, const model::ModelSpec& model, std::uint64_t seed) {
  need_source(spec);
  const ClickShape shape = click_shape(model);
  if (spec.synthetic) return std::make_unique<ClickDataset>(spec, shape, seed, make_synthetic_lines(shape, seed));
  ensure(spec.format.has_value(), "a click log has a format, which read_job asks for");
  auto lines = *spec.format == model::ClickFormat::parquet ? open_parquet_lines(spec, shape) : open_text_lines(spec, model, shape);
  return std::make_unique<ClickDataset>(spec, shape, seed, std::move(lines));
}

}  // namespace tessera::data
