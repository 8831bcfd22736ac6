// Streams are the queues in which instructions run one after the other; a connection joins the streams whose ranks must act together. The
// check and the simulator run programs by them.
#pragma once

#include <functional>
#include <vector>

#include "program/program.hpp"

namespace tessera::program {

// Instructions of one program that run in order: all that compute; or the messages of one kind to or from one peer; or the collectives of
// one group.
struct Stream {
  int program = 0;      // index into the programs
  int connection = -1;  // index into Streams::connections; -1 for computing
  bool sends = false;   // of messages
  std::vector<int> instructions;
};

// Streams whose first waiting instructions run together: the sender's and the receiver's, or those of the members of a group. A
// collective without a group is a connection of one stream.
struct Connection {
  enum class Kind { message, collective, alone } kind = Kind::alone;
  std::vector<int> streams;
  int expected = 1;  // programs that must take part; with fewer streams one of them has no such instruction, and the others wait for ever
};

struct Streams {
  std::vector<Stream> streams;
  std::vector<Connection> connections;
  std::vector<std::vector<int>> of_program;  // indices of the streams of each program; the first computes
};

// `program_of(rank)` is the index of the program that stands for a world rank: the program of the rank, or of a rank that does the same.
Streams streams_of(const std::vector<Program>& programs, const std::function<int(int rank)>& program_of);

}  // namespace tessera::program
