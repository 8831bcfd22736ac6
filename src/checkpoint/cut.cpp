#include "checkpoint/cut.hpp"

#include <algorithm>
#include <tuple>

#include "base/error.hpp"
#include "model/model.hpp"

namespace tessera::checkpoint {
namespace {

std::int64_t extent_of(const std::vector<std::int64_t>& shape, const Cut& cut) { return shape[static_cast<std::size_t>(cut.split_dim)]; }

// Elements at one place along a dimension and those before it.
std::int64_t elements_within(const std::vector<std::int64_t>& shape, int dimension) {
  std::int64_t count = 1;
  for (std::size_t d = static_cast<std::size_t>(dimension) + 1; d < shape.size(); ++d) count *= shape[d];
  return count;
}

// Places along the cut dimension that the parts before this one hold.
std::int64_t before(const std::vector<std::int64_t>& shape, const Cut& cut) {
  const std::int64_t whole = extent_of(shape, cut);
  const std::int64_t each = model::shard_extent(whole, cut.split_size);
  return each == 0 || cut.split_index >= model::shard_extent(whole, each) ? whole : each * cut.split_index;
}

// Runs of a cut: run k stands at local [k * length, (k + 1) * length) of the part, and at global k * stride + offset.
struct Runs {
  std::int64_t length;
  std::int64_t stride;
  std::int64_t offset;
  std::int64_t begin;  // local
  std::int64_t end;

  Runs(const std::vector<std::int64_t>& shape, const Cut& cut) : begin(cut.flat_begin), end(cut.flat_end) {
    if (cut.split_dim < 0) {
      length = stride = std::max<std::int64_t>(1, element_count(shape));
      offset = 0;
      return;
    }
    const std::int64_t inner = std::max<std::int64_t>(1, elements_within(shape, cut.split_dim));
    stride = std::max<std::int64_t>(1, inner * extent_of(shape, cut));
    length = std::max<std::int64_t>(1, inner * model::real_extent(extent_of(shape, cut), cut.split_size, cut.split_index));
    offset = inner * before(shape, cut);
  }
  std::int64_t global(std::int64_t local) const { return local / length * stride + offset + local % length; }
  // Where the run that holds `local` ends.
  std::int64_t run_end(std::int64_t local) const { return std::min(end, (local / length + 1) * length); }
  // The first local position whose global one is not below `position`.
  std::int64_t at_or_after(std::int64_t position) const {
    const std::int64_t run = position / stride;
    return run * length + std::clamp<std::int64_t>(position - run * stride - offset, 0, length);
  }
};

}  // namespace

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
  // Of a tensor without elements, too, the strides must be numbers.
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, std::max<std::int64_t>(1, extent), &count)) return -1;
    empty |= extent == 0;
  }
  return empty ? 0 : count;
}

std::int64_t part_count(const std::vector<std::int64_t>& shape, const Cut& cut) {
  const std::int64_t all = element_count(shape);
  if (cut.split_dim < 0 || all == 0) return all;
  const std::int64_t whole = extent_of(shape, cut);
  return all / whole * model::real_extent(whole, cut.split_size, cut.split_index);
}

std::string problem_of(const std::vector<std::int64_t>& shape, const Cut& cut) {
  if (element_count(shape) < 0) return "its shape is not one";
  if (cut.split_size < 1 || cut.split_index < 0 || cut.split_index >= cut.split_size)
    return text("it is part ", cut.split_index, " of ", cut.split_size);
  if (cut.split_dim < 0 && cut.split_size != 1) return "it is cut, but along no dimension";
  if (cut.split_dim >= static_cast<int>(shape.size())) return text("it is cut along dimension ", cut.split_dim, " of ", shape.size());
  if (cut.flat_begin < 0 || cut.flat_end < cut.flat_begin || cut.flat_end > part_count(shape, cut))
    return text("its range ", cut.flat_begin, " to ", cut.flat_end, " is not within ", part_count(shape, cut), " elements");
  return {};
}

std::int64_t for_overlap(const std::vector<std::int64_t>& shape, const Cut& source, const Cut& target,
                         const std::function<void(std::int64_t, std::int64_t, std::int64_t)>& copy) {
  const Runs from(shape, source);
  const Runs to(shape, target);
  std::int64_t total = 0;
  std::int64_t s = from.begin;
  std::int64_t t = to.begin;
  while (s < from.end && t < to.end) {
    const std::int64_t source_at = from.global(s);
    const std::int64_t target_at = to.global(t);
    if (source_at < target_at) {
      s = from.at_or_after(target_at);
    } else if (target_at < source_at) {
      t = to.at_or_after(source_at);
    } else {
      const std::int64_t count = std::min(from.run_end(s) - s, to.run_end(t) - t);
      copy(s - from.begin, t - to.begin, count);
      total += count;
      s += count;
      t += count;
    }
  }
  return total;
}

bool covers_once(const std::vector<std::int64_t>& shape, std::vector<Cut> cuts) {
  if (element_count(shape) == 0) return true;
  std::erase_if(cuts, [](const Cut& cut) { return cut.count() == 0; });
  std::sort(cuts.begin(), cuts.end(),
            [](const Cut& a, const Cut& b) { return std::tie(a.split_index, a.flat_begin) < std::tie(b.split_index, b.flat_begin); });
  std::int64_t covered = 0;
  for (const Cut& cut : cuts) {
    if (cut.split_dim != cuts.front().split_dim || cut.split_size != cuts.front().split_size) return false;
    // In this order, the elements of the parts before and of this one so far are all there exactly when the sum fits.
    const std::int64_t others = cut.split_dim < 0 ? 0 : element_count(shape) / extent_of(shape, cut) * before(shape, cut);
    if (covered != others + cut.flat_begin) return false;
    covered += cut.count();
  }
  return covered == element_count(shape);
}

}  // namespace tessera::checkpoint
