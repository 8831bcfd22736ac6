#include "nn/tensor_parallel.hpp"

#include "base/clock.hpp"

namespace tessera::nn {

void wait(std::span<const Exchange> exchanges, const Pass& pass) {
  const Seconds begin = real_clock().now();
  for (const Exchange& exchange : exchanges) exchange.wait();
  if (pass.exchanges != nullptr) pass.exchanges->push_back({begin, real_clock().now()});
}

void wait(const Exchange& exchange, const Pass& pass) { wait(std::span(&exchange, 1), pass); }

namespace {

bool alone(const Pass& pass) { return !pass.tensor_group || pass.tensor_group.size() == 1; }
bool cuts_rows(const Pass& pass) { return pass.sequence_parallel && !alone(pass); }

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
  wait(nn::all_reduce(pass.tensor_group, tensor, reduction), pass);
}

at::Tensor all_gather_columns(const at::Tensor& tensor, const Pass& pass) {
  if (alone(pass)) return tensor;
  const std::int64_t ranks = pass.tensor_group.size();
  at::Tensor all = at::empty({ranks, tensor.size(0), tensor.size(1)}, tensor.options());
  wait(all_gather(pass.tensor_group, tensor, all), pass);
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
  wait(reduce_scatter(pass.tensor_group, partial, own), pass);
  return own;
}

at::Tensor own_sum_of(at::Tensor x, std::int64_t width, const Pass& pass,
                      const std::function<void(const at::Tensor& rows, at::Tensor& out)>& product) {
  const std::int64_t rows = x.size(0);
  at::Tensor out = at::empty({rows, width}, x.options());
  if (alone(pass) || cuts_rows(pass)) {
    product(x, out);
    x.reset();
    return own_sum(std::move(out), pass);
  }
  const int pieces = model::summed_pieces(rows, Bytes(static_cast<std::int64_t>(out.nbytes())));
  std::vector<Exchange> sums;
  for (int piece = 0; piece < pieces; ++piece) {
    at::Tensor part = out.narrow(0, piece * (rows / pieces), rows / pieces);
    product(x.narrow(0, piece * (rows / pieces), rows / pieces), part);
    sums.push_back(nn::all_reduce(pass.tensor_group, part));
  }
  x.reset();
  wait(sums, pass);
  return out;
}

PendingExchange PendingExchange::all_rows(at::Tensor own, const Pass& pass) {
  PendingExchange out;
  out.result_ = own;
  if (!cuts_rows(pass)) return out;
  out.result_ = stacked(own, pass.tensor_group.size());
  out.exchange_ = all_gather(pass.tensor_group, own, out.result_);
  out.input_ = std::move(own);
  return out;
}

PendingExchange PendingExchange::all_reduce(at::Tensor sums, const Pass& pass) {
  PendingExchange out;
  if (!alone(pass)) out.exchange_ = nn::all_reduce(pass.tensor_group, sums);
  out.result_ = std::move(sums);
  return out;
}

at::Tensor PendingExchange::finish(const Pass& pass) {
  if (exchange_) wait(*exchange_, pass);
  input_.reset();
  return std::move(result_);
}

}  // namespace tessera::nn
