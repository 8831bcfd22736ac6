#include "nn/row_dropout.hpp"

#include <ATen/ops/empty_like.h>

#include "nn/dropout.hpp"
#include "nn/kernels/dropout.hpp"
#include "nn/sequence.hpp"

namespace tessera::nn {
namespace {

std::vector<kernels::RowPlace> places_of(std::int64_t width, int site, const Rows& rows, const Pass& pass) {
  const std::vector<std::uint64_t> seeds = sample_seeds(rows.batch, site, pass);
  const SequenceCut cut = sequence_cut(pass);
  const at::Tensor positions = cut.positions(rows.seq * cut.size, at::kCPU);
  const std::int64_t* position = positions.const_data_ptr<std::int64_t>();
  std::vector<kernels::RowPlace> places;
  places.reserve(static_cast<std::size_t>(rows.own()));
  for (std::int64_t row = rows.first(); row < rows.first() + rows.own(); ++row)
    places.push_back({seeds[static_cast<std::size_t>(row / rows.seq)], position[row % rows.seq] * width});
  return places;
}

}  // namespace

double dropped_share(const model::BlockSpec& spec) {
  const auto found = spec.dims.find("dropout");
  return found == spec.dims.end() ? 0 : found->second;
}

RowDropout::RowDropout(const model::BlockSpec& spec, Site site) : probability_(dropped_share(spec)), site_(site) {}

void RowDropout::apply(at::Tensor& x, const Rows& rows, const Pass& pass) const {
  if (drops(pass)) kernels::dropout_rows(x, probability_, places_of(x.size(1), site_, rows, pass), x);
}

at::Tensor RowDropout::applied(const at::Tensor& grad, const Rows& rows, const Pass& pass) const {
  if (!drops(pass)) return grad;
  at::Tensor out = at::empty_like(grad);
  kernels::dropout_rows(grad, probability_, places_of(grad.size(1), site_, rows, pass), out);
  return out;
}

}  // namespace tessera::nn
