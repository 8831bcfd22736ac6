// What runs one after the other, and what has to meet: the queues in which programs' instructions wait for their turn. For
// the check and the simulator.
#pragma once

#include <functional>
#include <vector>

#include "program/program.hpp"

namespace tessera::program {

// Instructions of one program that run in order: its computing, its messages to or from one peer of one kind, its
// collectives of one group.
struct Stream {
  int program = 0;     // index into the programs
  int meeting = -1;    // index into Streams::meetings; -1 for computing
  bool sends = false;  // of messages
  std::vector<int> instructions;
};

// Streams whose heads run together: a sender's and a receiver's, the members' of a group, or one alone.
struct Meeting {
  enum class Kind { message, collective, alone } kind = Kind::alone;
  std::vector<int> streams;
  int expected = 1;  // programs that must come; fewer streams mean that one never does
};

struct Streams {
  std::vector<Stream> streams;
  std::vector<Meeting> meetings;
  std::vector<std::vector<int>> of_program;  // streams of each program; the first is its computing
};

// `program_of` says which program stands for a world rank: that of the rank, or that of a rank which does the same.
Streams streams_of(const std::vector<Program>& programs, const std::function<int(int rank)>& program_of);

bool is_message(Op op);
bool is_send(Op op);

}  // namespace tessera::program
