#include "cli/report_timeline.hpp"

#include <algorithm>
#include <array>
#include <map>

namespace tessera::cli {
namespace {

using program::Op;

struct Kind {
  const char* name;
  int lane;
  const char* colour;
};
constexpr std::array<Kind, kKindCount> kKinds = {Kind{"forward", 0, "#0072B2"},           Kind{"backward", 0, "#E69F00"},
                                                 Kind{"backward input", 0, "#E69F00"},    Kind{"backward weight", 0, "#F0E442"},
                                                 Kind{"optimizer step", 0, "#D55E00"},    Kind{"send", 1, "#56B4E9"},
                                                 Kind{"receive", 1, "#999999"},           Kind{"reduce", 2, "#009E73"},
                                                 Kind{"gather parameters", 2, "#CC79A7"}, Kind{"exposed communication", 0, "#8c6bb1"},
                                                 Kind{"gather inputs", 2, "#117733"},     Kind{"norm and clearing", 0, "#b08d57"},
                                                 Kind{"reading samples", 0, "#88a0a8"},   Kind{"rows of tables", 2, "#332288"}};

}  // namespace

int kind_of(Op op) {
  switch (op) {
    case Op::forward: return 0;
    case Op::backward: return 1;
    case Op::backward_input: return 2;
    case Op::backward_weight: return 3;
    case Op::optimizer_step: return 4;
    case Op::send_activation:
    case Op::send_gradient: return 5;
    case Op::receive_activation:
    case Op::receive_gradient: return 6;
    case Op::gather_parameters: return 8;
    case Op::gather_activation:
    case Op::gather_gradient: return 10;
    case Op::pull_rows:
    case Op::push_rows: return 13;
    default: return 7;
  }
}

nlohmann::ordered_json kinds_json() {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Kind& kind : kKinds) out.push_back({kind.name, kind.lane, kind.colour});
  return out;
}

std::vector<Piece> joined(const std::vector<Piece>& pieces, double shortest) {
  std::map<int, std::size_t> open;  // by lane, the last piece
  std::vector<Piece> out;
  for (const Piece& piece : pieces) {
    const int lane = kKinds[piece.kind].lane;
    const auto last = open.find(lane);
    if (last != open.end() && out[last->second].kind == piece.kind && piece.end - piece.begin < shortest &&
        piece.begin - out[last->second].end < shortest) {
      Piece& longer = out[last->second];
      longer.end = std::max(longer.end, piece.end);
      longer.micro_batch = longer.words = longer.instruction = -1;
      continue;
    }
    open[lane] = out.size();
    out.push_back(piece);
  }
  return out;
}

}  // namespace tessera::cli
