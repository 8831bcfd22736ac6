// Internal: what the timelines of all reports show, and in which colours.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "program/program.hpp"

namespace tessera::cli {

// Kinds of pieces are numbers below kKindCount. Those that stand for no instruction:
constexpr int kExposed = 9;   // communication while the rank does not compute
constexpr int kWork = 11;     // computing outside of the instructions
constexpr int kReading = 12;  // of samples
constexpr int kKindCount = 14;
int kind_of(program::Op op);
// [[name, lane, colour], ...]; lane 0 is computation, 1 messages, 2 collectives.
nlohmann::ordered_json kinds_json();

// As a share of the step: anything shorter cannot be told apart on a page.
constexpr double kShortest = 1.0 / 2000;

// A stretch of a rank's time, in seconds.
struct Piece {
  double begin;
  double end;
  int kind;
  int micro_batch;       // -1 for none, and where several were joined
  int words = -1;        // index into what the page says of pieces
  int instruction = -1;  // -1 for none, and where several were joined
};

// Neighbours of one kind that are shorter than `shortest` become one. `pieces` is by begin.
std::vector<Piece> joined(const std::vector<Piece>& pieces, double shortest);

}  // namespace tessera::cli
