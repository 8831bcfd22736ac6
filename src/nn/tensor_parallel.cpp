#include "nn/tensor_parallel.hpp"

#include "base/clock.hpp"

namespace tessera::nn {

comm::DataType data_type_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat ? comm::DataType::f32 : comm::DataType::bf16;
}

void wait(std::span<const comm::Handle> handles, const Pass& pass) {
  const Seconds begin = real_clock().now();
  for (const comm::Handle& handle : handles) handle.wait();
  if (pass.exchanges != nullptr) pass.exchanges->push_back({begin, real_clock().now()});
}

namespace {

bool alone(const Pass& pass) { return !pass.tensor_group || pass.tensor_group.size() == 1; }
bool cuts_rows(const Pass& pass) { return pass.sequence_parallel && !alone(pass); }

void wait(const Pass& pass, const comm::Handle& handle) { wait(std::span(&handle, 1), pass); }

std::size_t count_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

// With as many times the rows.
at::Tensor stacked(const at::Tensor& rows, std::int64_t times) {
  std::vector<std::int64_t> shape = rows.sizes().vec();
  shape.front() *= times;
  return at::empty(shape, rows.options());
}

}  // namespace

std::int64_t divided(const model::BlockSpec& spec, const std::string& key, int degree) {
  const std::int64_t whole = spec.dim(key);
  ensure(whole % degree == 0, text(spec.name, ": ", key, " ", whole, " does not divide by the tensor-parallel degree ", degree));
  return whole / degree;
}

void all_reduce(at::Tensor& tensor, const Pass& pass, comm::Reduction reduction) {
  if (alone(pass)) return;
  wait(pass, pass.tensor_group.all_reduce(tensor.data_ptr(), count_of(tensor), data_type_of(tensor), reduction));
}

at::Tensor all_gather_columns(const at::Tensor& tensor, const Pass& pass) {
  if (alone(pass)) return tensor;
  const std::int64_t ranks = pass.tensor_group.size();
  at::Tensor all = at::empty({ranks, tensor.size(0), tensor.size(1)}, tensor.options());
  wait(pass, pass.tensor_group.all_gather(tensor.data_ptr(), all.data_ptr(), count_of(tensor), data_type_of(tensor)));
  return all.transpose(0, 1).reshape({tensor.size(0), ranks * tensor.size(1)});
}

Rows::Rows(const at::Tensor& activations, const Pass& pass)
    : batch(activations.size(0)),
      seq(activations.size(1)),
      parts(cuts_rows(pass) ? pass.tensor_group.size() : 1),
      part(cuts_rows(pass) ? pass.tensor_group.rank() : 0),
      options(activations.options()) {
  seq *= parts;
}

at::Tensor all_rows(const at::Tensor& own, const Pass& pass) { return PendingExchange::all_rows(own, pass).finish(pass); }

at::Tensor own_sum(at::Tensor partial, const Pass& pass) {
  if (!cuts_rows(pass)) {
    all_reduce(partial, pass);
    return partial;
  }
  const std::int64_t ranks = pass.tensor_group.size();
  ensure(partial.size(0) % ranks == 0, text(ranks, " sequence-parallel ranks do not divide ", partial.size(0), " rows"));
  at::Tensor own = at::empty({partial.size(0) / ranks, partial.size(1)}, partial.options());
  wait(pass, pass.tensor_group.reduce_scatter(partial.data_ptr(), own.data_ptr(), count_of(own), data_type_of(own)));
  return own;
}

PendingExchange PendingExchange::all_rows(at::Tensor own, const Pass& pass) {
  PendingExchange out;
  out.result_ = own;
  if (!cuts_rows(pass)) return out;
  out.result_ = stacked(own, pass.tensor_group.size());
  out.handle_ = pass.tensor_group.all_gather(own.data_ptr(), out.result_.data_ptr(), count_of(own), data_type_of(own));
  out.input_ = std::move(own);
  return out;
}

PendingExchange PendingExchange::all_reduce(at::Tensor sums, const Pass& pass) {
  PendingExchange out;
  if (!alone(pass)) out.handle_ = pass.tensor_group.all_reduce(sums.data_ptr(), count_of(sums), data_type_of(sums));
  out.result_ = std::move(sums);
  return out;
}

at::Tensor PendingExchange::finish(const Pass& pass) {
  if (handle_) wait(pass, *handle_);
  input_.reset();
  return std::move(result_);
}

}  // namespace tessera::nn
