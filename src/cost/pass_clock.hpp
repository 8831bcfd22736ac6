// Internal: plays a block's pass (program/block_pass.hpp) on three streams: computing, the link inside a domain, and the links that leave
// it.
#pragma once

#include <array>
#include <vector>

#include "program/block_pass.hpp"

namespace tessera::cost {

enum class LinkStream { inside, leaving };
inline constexpr int kLinkStreams = 2;
inline constexpr int kAxes = 4;  // of model::Exchange

struct TimedExchange {
  double seconds = 0;  // alone on its link
  LinkStream link = LinkStream::inside;
  model::Exchange::Axis axis = model::Exchange::Axis::tensor;
};

struct PlayedPass {
  double seconds = 0;                          // from the first step to the end of the last
  std::array<double, kAxes> exposed = {};      // of these, by the axis of the exchange: waiting for it, and computing's loss beside it
  std::array<double, kLinkStreams> busy = {};  // seconds in which the pass's own exchanges have the link
};

// `computing`: seconds of each operator of the pass, undisturbed. `exchanges`: of each step of `pass.exchanges`. Computing takes
// 1 + `slowdown` times as long while an exchange runs beside it; exchanges over one link queue. Linear in the number of steps.
PlayedPass play(const program::BlockPass& pass, const std::vector<double>& computing, const std::vector<TimedExchange>& exchanges,
                double slowdown);

// Seconds that an exchange of `exchange` seconds adds to computing that is independent of it, when its link is free for `free` seconds of
// that time: what computing loses beside it or, if that is more, what remains of the exchange afterwards.
double added_beside(double exchange, double free, double slowdown);

}  // namespace tessera::cost
