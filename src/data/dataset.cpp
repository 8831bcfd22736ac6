#include "data/dataset.hpp"

#include <functional>
#include <numeric>

#include "base/error.hpp"
#include "data/text_dataset.hpp"
#include "model/forms.hpp"

namespace tessera::data {

std::int64_t Field::count() const { return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()); }

std::unique_ptr<Dataset> open_dataset(const model::DataSpec& spec, const model::ModelSpec& model, std::uint64_t seed,
                                      const std::filesystem::path& cache_dir, const ProgressCallback& progress) {
  if (model::reads_images(model)) return open_images(spec, model, seed);
  if (model::reads_clicks(model)) return open_clicks(spec, model, seed);
  if (model::classifies_text(model)) return open_labelled_text(spec, model, seed, cache_dir, progress);
  ensure(spec.mask || model::predicts_next_token(model), "a model that predicts what is masked needs data.mask, which read_job sets");
  return TextDataset::open(spec, model.dim("seq"), model.dim("vocab"), seed, cache_dir, progress);
}

const TextDataset* as_text(const Dataset& dataset) { return dynamic_cast<const TextDataset*>(&dataset); }

}  // namespace tessera::data
