#include "interop/galvatron/front.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

namespace tessera::interop::galvatron {
namespace {

struct Point {
  int memory = 0;
  double compute = 0;
  double exposed = 0;
  int before = -1;  // the point without its last layer, in the trail
  int item = -1;
  int id = -1;  // where the trail keeps this point
};

// Drops what another point beats in all three.
std::vector<Point> undominated(std::vector<Point> points) {
  std::ranges::stable_sort(points, {}, [](const Point& point) { return std::tuple(point.memory, point.compute, point.exposed); });
  std::map<double, double> stairs;  // exposed by compute, of points that are not worse in both
  std::vector<Point> out;
  for (const Point& point : points) {
    const auto next = stairs.upper_bound(point.compute);
    if (next != stairs.begin() && std::prev(next)->second <= point.exposed) continue;
    auto from = stairs.lower_bound(point.compute);
    while (from != stairs.end() && from->second >= point.exposed) from = stairs.erase(from);
    stairs.emplace(point.compute, point.exposed);
    out.push_back(point);
  }
  return out;
}

// The items that no other item beats; of equal ones the first.
std::vector<int> worthwhile(const std::vector<Item>& items) {
  std::vector<int> out;
  for (int i = 0; i < static_cast<int>(items.size()); ++i) {
    const Item& a = items[i];
    const bool beaten = std::ranges::any_of(items, [&](const Item& b) {
      if (b.compute > a.compute || b.exposed > a.exposed || b.memory > a.memory) return false;
      const bool equal = b.compute == a.compute && b.exposed == a.exposed && b.memory == a.memory;
      return !equal || &b < &a;
    });
    if (!beaten) out.push_back(i);
  }
  return out;
}

// The best fractional mix of one layer with `average` MB: its value, and by how much another MB would lower it, which is the Lagrange
// multiplier of the memory.
struct Relaxed {
  double value = kInfinity;
  double multiplier = 0;
};

Relaxed relax(const std::vector<Item>& items, double compute, double exposed, double average) {
  const auto value = [&](const Item& item) { return compute * item.compute + exposed * item.exposed; };
  // One item that fits, or two around the average: the optimum lies on the lower hull.
  Relaxed best;
  for (const Item& light : items) {
    if (light.memory > average) continue;
    if (value(light) < best.value) best = {value(light), 0};
    for (const Item& heavy : items) {
      if (heavy.memory <= average || value(heavy) >= value(light)) continue;
      const double multiplier = (value(light) - value(heavy)) / (heavy.memory - light.memory);
      const double mixed = value(light) - multiplier * (average - light.memory);
      if (mixed < best.value) best = {mixed, multiplier};
    }
  }
  return best;
}

// A cutoff with what the layers still to come cost at least.
class Bound {
 public:
  Bound(const Cutoff& cutoff, const std::vector<Item>& items, int layers, int room) : cutoff_(cutoff) {
    multiplier_ = relax(items, cutoff.compute, cutoff.exposed, static_cast<double>(room) / layers).multiplier;
    for (const Item& item : items) per_layer_ = std::min(per_layer_, value(item.compute, item.exposed, item.memory));
    // The same sums arise in another order of additions: a hair of tolerance keeps the mix that the cutoff was made of.
    most_ = cutoff.most + multiplier_ * room + 1e-9 * std::abs(cutoff.most);
  }
  bool allows(const Point& point, int rest) const { return value(point.compute, point.exposed, point.memory) + rest * per_layer_ <= most_; }

 private:
  double value(double compute, double exposed, int memory) const {
    return cutoff_.compute * compute + cutoff_.exposed * exposed + multiplier_ * memory;
  }
  Cutoff cutoff_;
  double multiplier_ = 0, per_layer_ = kInfinity, most_ = 0;
};

}  // namespace

double least(const std::vector<Item>& items, int layers, int room, double compute, double exposed) {
  return room < 0 ? kInfinity : relax(items, compute, exposed, static_cast<double>(room) / layers).value * layers;
}

std::vector<Mix> pareto_mixes(const std::vector<Item>& items, int layers, int room, const std::vector<Cutoff>& cutoffs) {
  const std::vector<int> useful = worthwhile(items);
  int lightest = std::numeric_limits<int>::max();
  for (int i : useful) lightest = std::min(lightest, items[i].memory);
  std::vector<Bound> bounds;
  for (const Cutoff& cutoff : cutoffs)
    if (cutoff.most < kInfinity) bounds.emplace_back(cutoff, items, layers, room);
  std::vector<Point> trail = {Point{}};
  trail[0].id = 0;
  std::vector<std::vector<Point>> fronts(layers + 1);
  fronts[0] = trail;
  for (int item : useful)
    for (int count = 1; count <= layers; ++count) {
      std::vector<Point> points = fronts[count];
      const int rest = layers - count;
      for (const Point& point : fronts[count - 1]) {
        const Point next{point.memory + items[item].memory, point.compute + items[item].compute, point.exposed + items[item].exposed,
                         point.id, item};
        if (next.memory + static_cast<long long>(rest) * lightest > room) continue;
        if (std::ranges::all_of(bounds, [&](const Bound& bound) { return bound.allows(next, rest); })) points.push_back(next);
      }
      fronts[count] = undominated(std::move(points));
      for (Point& point : fronts[count]) {
        if (point.id >= 0) continue;
        point.id = static_cast<int>(trail.size());
        trail.push_back(point);
      }
    }
  // Memory no longer matters: it fits.
  std::vector<Point> last = fronts[layers];
  for (Point& point : last) point.memory = 0;
  std::vector<Mix> mixes;
  for (const Point& point : undominated(std::move(last))) {
    Mix mix{point.compute, point.exposed, std::vector<int>(items.size(), 0)};
    for (const Point* at = &point; at->item >= 0; at = &trail[at->before]) ++mix.counts[at->item];
    mixes.push_back(std::move(mix));
  }
  return mixes;
}

}  // namespace tessera::interop::galvatron
