// Internal: times pieces of work on all workers of a communicator at once, in rounds.
#pragma once

#include <functional>
#include <vector>

#include "base/units.hpp"
#include "comm/comm.hpp"
#include "profile/profile.hpp"

namespace tessera::train {

// At least one value.
double median_of(std::vector<double> values);

// How fast hosts are that take so long for the same work, beside the slowest one; empty where they count as equal. Hosts within a quarter
// of each other do: one that shares cores or memory with others is slower than its like for minutes, and a plan for that is a worse one
// when it has passed. For what stays, a run is rebalanced. Hosts that count as equal have the speed of the slowest among them.
std::vector<double> speeds_of(const std::vector<double>& seconds);

// What was measured of one thing, a value a round.
class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  bool empty() const { return values_.empty(); }
  std::size_t count() const { return values_.size(); }
  double at(std::size_t round) const { return values_[round]; }
  // With the narrowest interval between two of the samples that covers the median with at least 92 % (of five the smallest and the
  // largest, of ten the second and the ninth; the order statistics of the sign test), or all of them where there are fewer than five.
  // At least one sample.
  profile::MeasuredValue median() const;
  // Whether that interval is narrow beside the larger of the median and `scale`.
  bool settled(double scale = 0) const;

 private:
  std::vector<double> values_;
};

// Called by all workers alike; what it returns is equal on all of them.
class Meter {
 public:
  // `sample`: how long a sample lasts at least.
  Meter(comm::Communicator& comm, Seconds sample) : comm_(comm), sample_(sample.value) {}

  // The slowest worker's seconds for `work`, which all begin together.
  double time(const std::function<void()>& work) const;
  double slowest(double seconds) const;
  // The median and each end of the interval.
  profile::MeasuredValue slowest(const profile::MeasuredValue& own) const {
    return {slowest(own.median), slowest(own.low), slowest(own.high)};
  }
  std::vector<double> of_all(double own) const;  // by rank
  bool all(bool holds) const { return slowest(holds ? 0 : 1) == 0; }
  void together() const { comm_.world().barrier().wait(); }
  double sample() const { return sample_; }
  // How often to repeat what takes so long, so that a sample lasts long enough.
  int repeats(double seconds) const;
  // Repeats what comes before a sample for a while: who has waited may compute ahead of its share of a core for a moment.
  void warm(const std::function<void()>& work) const;
  bool past(Seconds deadline) const;

  // A machine's speed drifts over seconds and minutes: `round` takes one sample of everything, so that the drift meets all of it
  // alike. Five rounds (numbered from 0), and up to ten in all until `settled` or the budget is spent; once it is spent twice, three will
  // do.
  void rounds(Seconds budget, const std::function<void(int)>& round, const std::function<bool()>& settled) const;

 private:
  comm::Communicator& comm_;
  double sample_;
};

}  // namespace tessera::train
