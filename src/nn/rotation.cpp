#include "nn/rotation.hpp"

#include "nn/parameter_row.hpp"
#include "nn/sequence.hpp"

namespace tessera::nn {
namespace {

kernels::RopeFrequencies frequencies_of(const model::BlockSpec& spec) {
  if (!spec.dims.contains("rope_factor")) return {.theta = spec.real("rope_theta")};
  if (spec.dims.contains("rope_beta_fast"))
    return {.theta = spec.real("rope_theta"),
            .factor = spec.real("rope_factor"),
            .original_seq = spec.real("rope_original_seq"),
            .yarn = true,
            .beta_fast = spec.real("rope_beta_fast"),
            .beta_slow = spec.real("rope_beta_slow"),
            .whole_pairs = has(spec, "rope_whole_pairs"),
            .amplitude = spec.real("rope_amplitude")};
  return {spec.real("rope_theta"), spec.real("rope_factor"), spec.real("rope_low_freq"), spec.real("rope_high_freq"),
          spec.real("rope_original_seq")};
}

}  // namespace

Rotation::Rotation(const model::BlockSpec& spec, std::int64_t dim, at::Device device)
    : dim_(dim), frequencies_(frequencies_of(spec)), table_(kernels::rope_table(spec.dim("seq"), dim, frequencies_, device)) {}

const at::Tensor& Rotation::table(const Rows& rows, const Pass& pass) {
  const std::int64_t reached = pass.position + rows.seq;
  if (reached > table_.size(1)) table_ = kernels::rope_table(2 * reached, dim_, frequencies_, table_.device());
  return table_;
}

at::Tensor Rotation::positions(const Rows& rows, const Pass& pass) {
  if (const at::Tensor positions = pass.batch->find("positions"); positions.defined() || !pass.context_group) return positions;
  const SequenceCut cut = sequence_cut(pass);
  return cut.positions(rows.seq * cut.size, rows.options.device()).repeat({rows.batch, 1});
}

}  // namespace tessera::nn
