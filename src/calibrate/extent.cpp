#include "calibrate/extent.hpp"

#include "cost/extrapolation.hpp"

namespace tessera::calibrate {
namespace {

// Whether the row's source says it: a quantity, or a word of Extent::with.
bool is_stated(const Stated& stated, const std::string& name) {
  if (name == "network") return stated.network;
  if (name == "tokens") return stated.micro_batch;
  if (name == "experts") return stated.experts;
  if (name == "replicas" || name.rfind("zero-", 0) == 0) return stated.zero;
  if (name == "interleaved" || name == "1f1b" || name == "chunks") return stated.chunks;
  if (name == "bf16" || name == "fp8" || name == "fp4") return stated.precision;
  if (name == "sequence parallelism") return stated.sequence_parallel;
  if (name.rfind("recompute ", 0) == 0) return stated.recompute;
  return true;
}

profile::Extent extent_of_one(const Row& row) {
  profile::Extent out = cost::extent_of(row.plan, row.model, row.cluster, 0, row.stack.format);
  for (const auto& [name, range] : out.ranges)
    if (!is_stated(row.stated, name)) out.assumed.insert(name);
  for (const std::string& word : out.with)
    if (!is_stated(row.stated, word)) out.assumed.insert(word);
  return out;
}

}  // namespace

profile::Extent extent_of(const std::vector<const Row*>& rows) {
  profile::Extent out;
  for (const Row* row : rows) out.add(extent_of_one(*row));
  return out;
}

}  // namespace tessera::calibrate
