#include "train/placement.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "model/forms.hpp"
#include "train/assign.hpp"

namespace tessera::train {
namespace {

bool same_host(const plan::Plan& plan, int a, int b) {
  const plan::RankPlace& first = plan.ranks.at(static_cast<std::size_t>(a));
  const plan::RankPlace& second = plan.ranks.at(static_cast<std::size_t>(b));
  return first.group == second.group && first.node == second.node;
}

// Holders whose experts the same classes reach without leaving their hosts.
struct Hosts {
  std::vector<int> of_holder;
  std::vector<std::vector<bool>> crosses;  // [host][class]
};

Hosts hosts_of(const Seats& seats) {
  Hosts out;
  for (int holder = 0; holder < seats.holders(); ++holder) {
    std::vector<bool> column;
    for (const std::vector<bool>& row : seats.crosses) column.push_back(row[static_cast<std::size_t>(holder)]);
    const auto same = std::find(out.crosses.begin(), out.crosses.end(), column);
    out.of_holder.push_back(static_cast<int>(same - out.crosses.begin()));
    if (same == out.crosses.end()) out.crosses.push_back(std::move(column));
  }
  return out;
}

// Items stay in their own slots where these are of the class that they are given, and fill the others in order.
// `class_of_slot` is by slot, `given` by item; the item of each slot.
std::vector<std::int64_t> in_slots(const std::vector<int>& class_of_slot, const std::vector<int>& given) {
  std::vector<std::int64_t> item_of(class_of_slot.size(), -1);
  std::map<int, std::vector<std::size_t>> left;  // by class, the last one first
  for (std::size_t slot = class_of_slot.size(); slot-- > 0;)
    if (class_of_slot[slot] == given[slot])
      item_of[slot] = static_cast<std::int64_t>(slot);
    else
      left[class_of_slot[slot]].push_back(slot);
  for (std::size_t item = 0; item < given.size(); ++item) {
    if (item_of[item] == static_cast<std::int64_t>(item)) continue;
    std::vector<std::size_t>& slots = left.at(given[item]);
    item_of[slots.back()] = static_cast<std::int64_t>(item);
    slots.pop_back();
  }
  return item_of;
}

std::vector<std::int64_t> room_of(const std::vector<int>& class_of_slot, std::size_t classes) {
  std::vector<std::int64_t> room(classes, 0);
  for (const int one : class_of_slot) ++room[static_cast<std::size_t>(one)];
  return room;
}

}  // namespace

Seats seats_of(const model::ModelSpec& model, const plan::Plan& plan, const std::vector<program::Program>& programs) {
  Seats out;
  const auto blocks = model.blocks();
  for (const model::BlockInstance& block : blocks)
    if (model::routes_to_experts(*block.spec)) out.blocks.push_back(block.index);
  out.experts = blocks[static_cast<std::size_t>(out.blocks.front())].spec->dim("experts");
  out.class_of_place.resize(static_cast<std::size_t>(plan.global_batch));
  for (const program::Program& program : programs) {
    const program::Cut& cut = program.cut_of(out.blocks.front());
    std::vector<bool> row;
    for (const int holder : program.groups.at(static_cast<std::size_t>(cut.expert_group)).ranks)
      row.push_back(!same_host(plan, program.rank, holder));
    const auto same = std::find(out.crosses.begin(), out.crosses.end(), row);
    const int own = static_cast<int>(same - out.crosses.begin());
    if (same == out.crosses.end()) out.crosses.push_back(std::move(row));
    out.class_of_rank.push_back(own);
    for (std::int64_t m = 0; m < program.micro_batches; ++m)
      std::fill_n(out.class_of_place.begin() + program.first_sample(m, cut), cut.micro_batch_size, own);
  }
  return out;
}

TokenRates::TokenRates(std::span<const std::int64_t> copies, int holders) : holders_(holders), rates_(copies.size()) {
  const auto width = static_cast<std::size_t>(holders);
  std::vector<double> all(width, 0.0);
  for (std::size_t i = 0; i < copies.size(); ++i) all[i % width] += static_cast<double>(copies[i]);
  const double total = std::max(1.0, std::accumulate(all.begin(), all.end(), 0.0));
  constexpr double kPrior = 8;  // copies of the average token that each one counts beside its own
  for (std::size_t begin = 0; begin < copies.size(); begin += width) {
    double own = 0;
    for (std::size_t i = 0; i < width; ++i) own += static_cast<double>(copies[begin + i]);
    for (std::size_t i = 0; i < width; ++i)
      rates_[begin + i] = static_cast<std::int64_t>(static_cast<double>(kUnit) *
                                                    (static_cast<double>(copies[begin + i]) + kPrior * all[i] / total) / (own + kPrior));
  }
}

std::vector<std::int64_t> TokenRates::expected(std::span<const std::int32_t> tokens) const {
  std::vector<std::int64_t> out(static_cast<std::size_t>(holders_), 0);
  for (const std::int32_t token : tokens)
    for (std::size_t holder = 0; holder < out.size(); ++holder)
      out[holder] += rates_[static_cast<std::size_t>(token) * out.size() + holder];
  return out;
}

std::vector<std::int64_t> place_samples(const Seats& seats, const std::vector<std::vector<std::int64_t>>& copies) {
  std::vector<std::vector<std::int64_t>> costs;
  for (const std::vector<std::int64_t>& of_sample : copies) {
    std::vector<std::int64_t>& cost = costs.emplace_back();
    for (const std::vector<bool>& crosses : seats.crosses) {
      std::int64_t sum = 0;
      for (std::size_t holder = 0; holder < crosses.size(); ++holder)
        if (crosses[holder]) sum += of_sample[holder];
      cost.push_back(sum);
    }
  }
  return in_slots(seats.class_of_place, assign(costs, room_of(seats.class_of_place, seats.crosses.size())));
}

std::int64_t crossing(const Seats& seats, const std::vector<std::vector<std::int64_t>>& copies, const std::vector<std::int64_t>& samples) {
  std::int64_t sum = 0;
  for (std::size_t place = 0; place < samples.size(); ++place) {
    const std::vector<bool>& crosses = seats.crosses[static_cast<std::size_t>(seats.class_of_place[place])];
    for (std::size_t holder = 0; holder < crosses.size(); ++holder)
      if (crosses[holder]) sum += copies[static_cast<std::size_t>(samples[place])][holder];
  }
  return sum;
}

std::vector<int> place_experts(const Seats& seats, std::span<const std::int64_t> copies, std::int64_t move) {
  const Hosts hosts = hosts_of(seats);
  std::vector<int> host_of_label;
  for (std::int64_t label = 0; label < seats.experts; ++label)
    host_of_label.push_back(hosts.of_holder[static_cast<std::size_t>(label / seats.experts_each())]);
  std::vector<std::vector<std::int64_t>> costs;
  for (std::size_t expert = 0; expert < host_of_label.size(); ++expert) {
    std::vector<std::int64_t>& cost = costs.emplace_back();
    for (std::size_t host = 0; host < hosts.crosses.size(); ++host) {
      std::int64_t sum = static_cast<int>(host) == host_of_label[expert] ? 0 : move;
      for (std::size_t one = 0; one < seats.crosses.size(); ++one)
        if (hosts.crosses[host][one]) sum += copies[expert * seats.crosses.size() + one];
      cost.push_back(sum);
    }
  }
  const auto expert_of_label = in_slots(host_of_label, assign(costs, room_of(host_of_label, hosts.crosses.size())));
  std::vector<int> label_of(expert_of_label.size());
  for (std::size_t label = 0; label < expert_of_label.size(); ++label)
    label_of[static_cast<std::size_t>(expert_of_label[label])] = static_cast<int>(label);
  return label_of;
}

std::int64_t crossing(const Seats& seats, std::span<const std::int64_t> copies) {
  std::int64_t sum = 0;
  const auto classes = seats.crosses.size();
  for (std::size_t i = 0; i < copies.size(); ++i) {
    const auto holder = static_cast<std::size_t>(static_cast<std::int64_t>(i / classes) % seats.experts / seats.experts_each());
    if (seats.crosses[i % classes][holder]) sum += copies[i];
  }
  return sum;
}

}  // namespace tessera::train
