#include "train/batch_loader.hpp"

#include <ATen/ops/empty.h>
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace tessera::train {
namespace {

nn::Batch empty_batch(const std::vector<data::Field>& fields, std::int64_t samples, std::int64_t first_sample) {
  nn::Batch batch;
  batch.first_sample = first_sample;
  for (const data::Field& field : fields) {
    std::vector<std::int64_t> shape = {samples};
    shape.insert(shape.end(), field.shape.begin(), field.shape.end());
    batch.tensors[field.name] = at::empty(shape, field.type == data::FieldType::real ? at::kFloat : at::kLong);  // keys: their bits
  }
  return batch;
}

// Fills rows of batches. Whole numbers come as i32, and tensors hold them as i64.
class RowFiller {
 public:
  RowFiller(const std::vector<data::Field>& fields, const BatchLoader::FillSample& fill) : fields_(fields), fill_(fill) {
    for (const data::Field& field : fields_)
      whole_.emplace_back(field.type == data::FieldType::whole ? static_cast<std::size_t>(field.count()) : 0);
  }

  void fill(nn::Batch& batch, std::int64_t row) {
    std::vector<data::Row> rows;
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      const auto count = static_cast<std::size_t>(fields_[f].count());
      switch (fields_[f].type) {
        case data::FieldType::whole: rows.emplace_back(std::span(whole_[f])); break;
        case data::FieldType::real: rows.emplace_back(std::span(begin_of<float>(batch, f, row), count)); break;
        case data::FieldType::key:
          rows.emplace_back(std::span(reinterpret_cast<std::uint64_t*>(begin_of<std::int64_t>(batch, f, row)), count));
      }
    }
    if (!fill_(batch.first_sample + row, rows))
      for (std::size_t f = 0; f < fields_.size(); ++f)
        std::visit(
            [&](auto values) {
              std::fill(values.begin(), values.end(), static_cast<typename decltype(values)::value_type>(fields_[f].absent));
            },
            rows[f]);
    for (std::size_t f = 0; f < fields_.size(); ++f)
      if (fields_[f].type == data::FieldType::whole) std::copy(whole_[f].begin(), whole_[f].end(), begin_of<std::int64_t>(batch, f, row));
  }

 private:
  template <typename Number>
  Number* begin_of(nn::Batch& batch, std::size_t field, std::int64_t row) const {
    return batch.tensors.at(fields_[field].name).data_ptr<Number>() + row * fields_[field].count();
  }

  const std::vector<data::Field>& fields_;
  const BatchLoader::FillSample& fill_;
  std::vector<std::vector<std::int32_t>> whole_;
};

// Calls work(next) of several threads, this one among them, until each index has been given out; `make` makes what a thread works with.
// Throws the first error.
template <typename Make>
void in_threads(int threads, std::size_t count, const Make& make) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;  // guards `error`
  std::exception_ptr error;
  const auto work = [&] {
    try {
      auto one = make();
      for (std::size_t index = next++; index < count; index = next++) one(index);
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < std::min(static_cast<std::size_t>(threads), count); ++i) others.emplace_back(work);
    work();
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace

Batches BatchLoader::load(const program::Program& program, const FillSample& fill) const {
  struct Sample {
    nn::Batch* batch;
    std::int64_t row;
  };
  Batches out;
  std::vector<Sample> samples;
  for (const program::Cut& cut : program.cuts) {
    const auto same = std::find_if(program.cuts.begin(), program.cuts.end(), [&](const program::Cut& one) {
      return one.micro_batch_size == cut.micro_batch_size && one.samples_before == cut.samples_before;
    });
    const auto index = static_cast<std::size_t>(same - program.cuts.begin());
    if (index < out.size()) {
      out.push_back(out[index]);
      continue;
    }
    std::vector<nn::Batch>& batches = out.emplace_back();
    for (std::int64_t m = 0; m < program.micro_batches; ++m)
      batches.push_back(empty_batch(fields_, cut.micro_batch_size, program.first_sample(m, cut)));
    for (nn::Batch& batch : batches)
      for (std::int64_t row = 0; row < cut.micro_batch_size; ++row) samples.push_back({&batch, row});
  }
  in_threads(threads_, samples.size(), [&] {
    return [&, filler = RowFiller(fields_, fill)](std::size_t index) mutable { filler.fill(*samples[index].batch, samples[index].row); };
  });
  return out;
}

std::shared_future<Batches> BatchLoader::begin(std::int64_t step, const program::Program& program, FillSample fill) {
  begun_step_ = step;
  begun_ = std::async(std::launch::async, [this, &program, fill = std::move(fill)] { return load(program, fill); }).share();
  return begun_;
}

Batches BatchLoader::take(std::int64_t step, const program::Program& program, const FillSample& fill) {
  if (!begun_.valid() || begun_step_ != step) return load(program, fill);
  return std::exchange(begun_, {}).get();
}

}  // namespace tessera::train
