#include "plan/galvatron/front.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace tessera::plan::galvatron {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Point {
  int memory = 0;
  double compute = 0;
  double exposed = 0;
  int before = -1;  // the point without its last layer, in the trail
  int item = -1;
  int id = -1;      // where the trail keeps this point
};

// Keeps (compute, exposed) pairs that are not worse in both; says whether a new one is worth having.
class Staircase {
 public:
  bool add(double compute, double exposed) {
    auto next = steps_.upper_bound(compute);
    if (next != steps_.begin() && std::prev(next)->second <= exposed) return false;
    auto from = steps_.lower_bound(compute);
    while (from != steps_.end() && from->second >= exposed) from = steps_.erase(from);
    steps_.emplace(compute, exposed);
    return true;
  }

 private:
  std::map<double, double> steps_;
};

bool before(const Point& a, const Point& b) {
  if (a.memory != b.memory) return a.memory < b.memory;
  if (a.compute != b.compute) return a.compute < b.compute;
  return a.exposed < b.exposed;
}

// Drops what another point beats in all three.
std::vector<Point> undominated(std::vector<Point> points) {
  std::stable_sort(points.begin(), points.end(), before);
  Staircase stairs;
  std::vector<Point> out;
  for (const Point& point : points)
    if (stairs.add(point.compute, point.exposed)) out.push_back(point);
  return out;
}

// The items that no other item beats; of equal ones the first.
std::vector<int> worthwhile(const std::vector<Item>& items) {
  std::vector<int> out;
  for (int i = 0; i < static_cast<int>(items.size()); ++i) {
    const Item& a = items[i];
    const bool beaten = std::any_of(items.begin(), items.end(), [&](const Item& b) {
      if (b.compute > a.compute || b.exposed > a.exposed || b.memory > a.memory) return false;
      const bool equal = b.compute == a.compute && b.exposed == a.exposed && b.memory == a.memory;
      return !equal || &b < &a;
    });
    if (!beaten) out.push_back(i);
  }
  return out;
}

}  // namespace

double least_compute(const std::vector<Item>& items, int layers, int room) {
  if (room < 0) return kInfinity;
  // The best single item that fits and the best pair around the average: the optimum of the relaxation lies on their hull.
  const double average = static_cast<double>(room) / layers;
  double best = kInfinity;
  for (const Item& light : items) {
    if (light.memory > average) continue;
    best = std::min(best, light.compute);
    for (const Item& heavy : items)
      if (heavy.memory > average && heavy.compute < light.compute) {
        const double share = (average - light.memory) / (heavy.memory - light.memory);
        best = std::min(best, light.compute + share * (heavy.compute - light.compute));
      }
  }
  return best * layers;
}

std::vector<Mix> pareto_mixes(const std::vector<Item>& items, int layers, int room, double limit) {
  const std::vector<int> useful = worthwhile(items);
  if (useful.empty()) return {};
  int lightest = items[useful[0]].memory;
  double quickest = items[useful[0]].compute;
  for (int i : useful) {
    lightest = std::min(lightest, items[i].memory);
    quickest = std::min(quickest, items[i].compute);
  }
  // The same sums arise in another order of additions; a hair of tolerance keeps the mix that `limit` was made of.
  const double most = limit + 1e-9 * std::abs(limit);
  std::vector<Point> trail = {Point{}};
  trail[0].id = 0;
  std::vector<std::vector<Point>> fronts(layers + 1);
  fronts[0] = trail;
  for (int item : useful)
    for (int count = 1; count <= layers; ++count) {
      std::vector<Point> points = fronts[count];
      const int rest = layers - count;
      for (const Point& point : fronts[count - 1]) {
        const Point next{point.memory + items[item].memory, point.compute + items[item].compute, point.exposed + items[item].exposed, point.id, item};
        if (static_cast<long long>(next.memory) + static_cast<long long>(rest) * lightest > room || next.compute + rest * quickest > most) continue;
        points.push_back(next);
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

}  // namespace tessera::plan::galvatron
