#include "train/assign.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.hpp"

namespace tessera::train {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max() / 4;

class Assignment {
 public:
  Assignment(const std::vector<std::vector<std::int64_t>>& costs, const std::vector<std::int64_t>& room)
      : costs_(costs), room_(room), members_(room.size()), moves_(room.size(), std::vector<Move>(room.size())), class_of_(costs.size()) {}

  // The classes that give up a member on the shortest path make room for the item.
  void add(int item) {
    const int target = find_path(item);
    std::vector<int> changed = {target};
    int to = target;
    for (int from = before_[index(to)]; from >= 0; to = from, from = before_[index(to)]) {
      put(moves_[index(from)][index(to)].item, to);
      changed.push_back(from);
    }
    put(item, to);
    --room_[index(target)];
    for (const int one : changed) find_moves(one);
  }

  const std::vector<int>& classes() const { return class_of_; }

 private:
  // The member of a class that another one costs least to take.
  struct Move {
    int item = -1;
    std::int64_t cost = kNever;
  };

  static std::size_t index(int i) { return static_cast<std::size_t>(i); }
  int count() const { return static_cast<int>(room_.size()); }

  int find_path(int item) {
    std::vector<std::int64_t> cost = costs_[index(item)];
    before_.assign(room_.size(), -1);
    for (bool shorter = true; shorter;) {
      shorter = false;
      for (int from = 0; from < count(); ++from)
        for (int to = 0; to < count(); ++to) {
          const Move& move = moves_[index(from)][index(to)];
          if (move.item < 0 || cost[index(from)] + move.cost >= cost[index(to)]) continue;
          cost[index(to)] = cost[index(from)] + move.cost;
          before_[index(to)] = from;
          shorter = true;
        }
    }
    int best = -1;
    for (int one = 0; one < count(); ++one)
      if (room_[index(one)] > 0 && (best < 0 || cost[index(one)] < cost[index(best)])) best = one;
    return best;
  }

  void put(int item, int to) {
    std::erase(members_[index(class_of_[index(item)])], item);
    class_of_[index(item)] = to;
    members_[index(to)].push_back(item);
  }

  void find_moves(int from) {
    for (int to = 0; to < count(); ++to) {
      Move best;
      for (const int item : members_[index(from)]) {
        const std::int64_t cost = costs_[index(item)][index(to)] - costs_[index(item)][index(from)];
        if (to != from && (cost < best.cost || (cost == best.cost && item < best.item))) best = {item, cost};
      }
      moves_[index(from)][index(to)] = best;
    }
  }

  const std::vector<std::vector<std::int64_t>>& costs_;
  std::vector<std::int64_t> room_;
  std::vector<std::vector<int>> members_;
  std::vector<std::vector<Move>> moves_;  // from a class to another
  std::vector<int> class_of_;
  std::vector<int> before_;  // by class, on the shortest path
};

}  // namespace

std::vector<int> assign(const std::vector<std::vector<std::int64_t>>& costs, const std::vector<std::int64_t>& room) {
  ensure(std::accumulate(room.begin(), room.end(), std::int64_t{0}) >= static_cast<std::int64_t>(costs.size()),
         "there is room for all items");
  Assignment assignment(costs, room);
  for (std::size_t item = 0; item < costs.size(); ++item) assignment.add(static_cast<int>(item));
  return assignment.classes();
}

}  // namespace tessera::train
