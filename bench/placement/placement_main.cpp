// tessera_bench_placement: the solvers alone, on routing with a known locality. Samples are of as many topics as there are hosts, and each
// topic has as many experts in each block as a host holds, anywhere at first. A copy goes to an expert of its sample's topic with the
// probability `locality`, and to any expert otherwise; no placement lets fewer than (1 - locality) (hosts - 1) / hosts of all copies cross.
// Prints a JSON object for each size.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "train/placement.hpp"

namespace {

using namespace tessera::train;
using Rows = std::vector<std::vector<std::int64_t>>;

struct Case {
  int hosts;
  int per_host;
  int samples;
  int blocks;
  int experts;
  double locality;
};

constexpr int kCopies = 512;  // of a sample in each block
constexpr int kRounds = 3;

Seats seats_of(const Case& one) {
  Seats seats;
  seats.experts = one.experts;
  for (int host = 0; host < one.hosts; ++host) {
    std::vector<bool>& row = seats.crosses.emplace_back();
    for (int holder = 0; holder < one.hosts * one.per_host; ++holder) row.push_back(holder / one.per_host != host);
  }
  for (int place = 0; place < one.samples; ++place) seats.class_of_place.push_back(place * one.hosts / one.samples);
  return seats;
}

// Copies of each sample for each expert, [blocks][sample][expert].
std::vector<Rows> routed(const Case& one, std::mt19937& random) {
  std::vector<int> topics;
  for (int sample = 0; sample < one.samples; ++sample) topics.push_back(sample % one.hosts);
  std::shuffle(topics.begin(), topics.end(), random);
  std::vector<Rows> out;
  for (int block = 0; block < one.blocks; ++block) {
    std::vector<int> experts(static_cast<std::size_t>(one.experts));
    std::iota(experts.begin(), experts.end(), 0);
    std::shuffle(experts.begin(), experts.end(), random);
    const int each = one.experts / one.hosts;
    Rows& rows = out.emplace_back();
    for (const int topic : topics) {
      std::vector<std::int64_t>& row = rows.emplace_back(experts.size(), 0);
      for (int copy = 0; copy < kCopies; ++copy) {
        const bool own = std::uniform_real_distribution()(random) < one.locality;
        const int any = static_cast<int>(random() % static_cast<unsigned>(own ? each : one.experts));
        ++row[static_cast<std::size_t>(experts[static_cast<std::size_t>(own ? topic * each + any : any)])];
      }
    }
  }
  return out;
}

double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

nlohmann::ordered_json solved(const Case& one) {
  std::mt19937 random(1);
  const Seats seats = seats_of(one);
  const std::vector<Rows> copies = routed(one, random);
  std::vector<std::vector<int>> labels(copies.size(), std::vector<int>(static_cast<std::size_t>(one.experts)));
  for (std::vector<int>& of_block : labels) std::iota(of_block.begin(), of_block.end(), 0);
  const auto by_holder = [&] {
    Rows out(static_cast<std::size_t>(one.samples), std::vector<std::int64_t>(static_cast<std::size_t>(seats.holders()), 0));
    for (std::size_t block = 0; block < copies.size(); ++block)
      for (std::size_t sample = 0; sample < out.size(); ++sample)
        for (std::size_t expert = 0; expert < labels[block].size(); ++expert)
          out[sample][static_cast<std::size_t>(labels[block][expert] / seats.experts_each())] += copies[block][sample][expert];
    return out;
  };
  const double all = static_cast<double>(one.blocks) * one.samples * kCopies;
  std::vector<std::int64_t> samples(static_cast<std::size_t>(one.samples));
  std::iota(samples.begin(), samples.end(), 0);
  nlohmann::ordered_json out = {{"hosts", one.hosts},       {"samples", one.samples},
                                {"blocks", one.blocks},     {"experts", one.experts},
                                {"locality", one.locality}, {"fixed", crossing(seats, by_holder(), samples) / all}};
  double of_samples = 0;
  double of_experts = 0;
  for (int round = 0; round < kRounds; ++round) {
    const Rows before = by_holder();
    auto begin = std::chrono::steady_clock::now();
    samples = place_samples(seats, before);
    of_samples = std::max(of_samples, since(begin));
    if (round == 0) out["samples_placed"] = crossing(seats, before, samples) / all;
    if (round + 1 == kRounds) break;
    for (std::size_t block = 0; block < copies.size(); ++block) {
      const auto classes = static_cast<std::size_t>(seats.classes());
      std::vector<std::int64_t> of_labels(static_cast<std::size_t>(one.experts) * classes, 0);
      for (std::size_t place = 0; place < samples.size(); ++place)
        for (std::size_t expert = 0; expert < labels[block].size(); ++expert)
          of_labels[static_cast<std::size_t>(labels[block][expert]) * classes + static_cast<std::size_t>(seats.class_of_place[place])] +=
              copies[block][static_cast<std::size_t>(samples[place])][expert];
      begin = std::chrono::steady_clock::now();
      const std::vector<int> moved = place_experts(seats, of_labels, 0);
      of_experts = std::max(of_experts, since(begin));
      for (int& label : labels[block]) label = moved[static_cast<std::size_t>(label)];
    }
  }
  out["both_placed"] = crossing(seats, by_holder(), samples) / all;
  out["least"] = (1 - one.locality) * (one.hosts - 1) / one.hosts;
  out["seconds_for_samples"] = of_samples;
  out["seconds_for_experts_of_a_block"] = of_experts;
  return out;
}

}  // namespace

int main() {
  for (const Case& one : {Case{2, 2, 32, 4, 16, 0.6}, Case{2, 4, 256, 24, 64, 0.6}, Case{4, 8, 1024, 32, 128, 0.6},
                          Case{4, 8, 1024, 32, 128, 0.3}, Case{16, 8, 4096, 32, 256, 0.6}})
    std::cout << solved(one).dump() << std::endl;
}
