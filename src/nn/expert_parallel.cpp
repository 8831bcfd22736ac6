#include "nn/expert_parallel.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <numeric>

#include "nn/tensor_parallel.hpp"

namespace tessera::nn {
namespace {

std::int64_t ranks_of(const Pass& pass) { return pass.expert_group ? pass.expert_group.size() : 1; }

// `to` rows of `rows` for each rank, in their order; `from` rows of each.
PendingRows exchange(const at::Tensor& rows, const std::vector<std::int64_t>& to, const std::vector<std::int64_t>& from, const Pass& pass) {
  if (to.size() == 1) return {{}, rows, {}};
  const comm::Group& group = pass.expert_group;
  std::vector<std::int64_t> shape = rows.sizes().vec();
  shape.front() = std::accumulate(from.begin(), from.end(), std::int64_t{0});
  at::Tensor out = at::empty(shape, rows.options());
  std::vector<Exchange> exchanges;
  std::int64_t begin = 0;
  std::int64_t own = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::int64_t count = from[static_cast<std::size_t>(rank)];
    if (rank == group.rank())
      own = begin;
    else if (count > 0)
      exchanges.push_back(receive(group, out.narrow(0, begin, count), rank, 0));
    begin += count;
  }
  begin = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    const std::int64_t count = to[static_cast<std::size_t>(rank)];
    const at::Tensor part = rows.narrow(0, begin, count);
    if (rank == group.rank())
      out.narrow(0, own, count).copy_(part);
    else if (count > 0)
      exchanges.push_back(send(group, part, rank, 0));
    begin += count;
  }
  return {rows, std::move(out), std::move(exchanges)};
}

}  // namespace

at::Tensor PendingRows::finish(const Pass& pass) {
  if (!exchanges_.empty()) wait(exchanges_, pass);
  exchanges_.clear();
  source_.reset();
  return std::move(rows_);
}

ExpertRoutes::ExpertRoutes(const at::Tensor& counts, const Pass& pass) {
  const std::int64_t ranks = ranks_of(pass);
  // Whoever asks other ranks for rows has to know how many.
  const at::Tensor on_host = counts.to(at::kCPU);
  received_counts_ = on_host.view({ranks, -1});
  if (ranks > 1) {
    const at::Tensor own = received_counts_;
    received_counts_ = at::empty_like(own);
    wait(all_to_all(pass.expert_group, own, received_counts_), pass);
  }
  add_up(on_host);
}

ExpertRoutes::ExpertRoutes(const at::Tensor& counts, at::Tensor received_counts) : received_counts_(std::move(received_counts)) {
  add_up(counts.to(at::kCPU));
}

void ExpertRoutes::add_up(const at::Tensor& counts) {
  const std::int64_t ranks = received_counts_.size(0);
  const std::int64_t experts = received_counts_.size(1);
  const std::int64_t* const own = counts.data_ptr<std::int64_t>();
  const std::int64_t* const theirs = received_counts_.data_ptr<std::int64_t>();
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    to_.push_back(std::accumulate(own + rank * experts, own + (rank + 1) * experts, std::int64_t{0}));
    const std::int64_t begin = received_;
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      const std::int64_t count = theirs[rank * experts + expert];
      if (count > 0) segments_.push_back({expert, received_, count});
      received_ += count;
    }
    from_.push_back(received_ - begin);
  }
}

PendingRows ExpertRoutes::to_experts(const at::Tensor& rows, const Pass& pass) const { return exchange(rows, to_, from_, pass); }

PendingRows ExpertRoutes::from_experts(const at::Tensor& rows, const Pass& pass) const { return exchange(rows, from_, to_, pass); }

}  // namespace tessera::nn
