#include "nn/tensor_parallel.hpp"

#include <ATen/ops/empty.h>

#include "base/clock.hpp"

namespace tessera::nn {
namespace {

comm::DataType type_of(const at::Tensor& tensor) { return tensor.scalar_type() == at::kFloat ? comm::DataType::f32 : comm::DataType::bf16; }

bool alone(const Pass& pass) { return !pass.tensor_group || pass.tensor_group.size() == 1; }

void wait(const Pass& pass, Seconds begin, const comm::Handle& handle) {
  handle.wait();
  if (pass.exchanges != nullptr) pass.exchanges->push_back({begin, real_clock().now()});
}

}  // namespace

std::int64_t divided(const model::BlockSpec& spec, const std::string& key, int degree) {
  const std::int64_t whole = spec.dim(key);
  ensure(whole % degree == 0, text(spec.name, ": ", key, " ", whole, " does not divide by the tensor-parallel degree ", degree));
  return whole / degree;
}

void all_reduce(at::Tensor& tensor, const Pass& pass, comm::Reduction reduction) {
  if (alone(pass)) return;
  const Seconds begin = real_clock().now();
  wait(pass, begin, pass.tensor_group.all_reduce(tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), type_of(tensor), reduction));
}

at::Tensor all_gather_columns(const at::Tensor& tensor, const Pass& pass) {
  if (alone(pass)) return tensor;
  const std::int64_t ranks = pass.tensor_group.size();
  at::Tensor all = at::empty({ranks, tensor.size(0), tensor.size(1)}, tensor.options());
  const Seconds begin = real_clock().now();
  wait(pass, begin,
       pass.tensor_group.all_gather(tensor.data_ptr(), all.data_ptr(), static_cast<std::size_t>(tensor.numel()), type_of(tensor)));
  return all.transpose(0, 1).reshape({tensor.size(0), ranks * tensor.size(1)});
}

}  // namespace tessera::nn
