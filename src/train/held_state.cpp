#include "train/held_state.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/cut.hpp"

namespace tessera::train {

using checkpoint::Cut;
using checkpoint::Piece;
using nlohmann::json;

namespace {

constexpr std::uint32_t kSize = 0;
constexpr std::uint32_t kWords = 1;
constexpr std::uint32_t kData = 2;

comm::Group group_of(comm::Communicator& comm) {
  std::vector<int> ranks(static_cast<std::size_t>(comm.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return comm.group(ranks, "state");
}

Cut cut_of(const Piece& piece) { return {piece.split_dim, piece.split_index, piece.split_size, piece.flat_begin, piece.flat_end}; }

std::byte* bytes_of(const Piece& piece) { return static_cast<std::byte*>(piece.data.data_ptr()); }

// All of a piece but its data.
json described(const std::vector<Piece>& pieces) {
  json out = json::array();
  for (const Piece& piece : pieces)
    out.push_back({piece.name, piece.shape, static_cast<int>(piece.data.scalar_type()), piece.split_dim, piece.split_index,
                   piece.split_size, piece.flat_begin, piece.flat_end});
  return out;
}

// A piece of another rank, of whose data only the type is known.
struct Described {
  Piece piece;
  at::ScalarType type;
};

std::vector<Described> pieces_in(const json& described) {
  std::vector<Described> out;
  for (const json& one : described)
    out.push_back({{one[0], one[1], one[3], one[4], one[5], one[6], one[7], {}}, static_cast<at::ScalarType>(one[2].get<int>())});
  return out;
}

json json_of(const checkpoint::State& state) {
  return {{"step", state.step}, {"tokens", state.tokens}, {"seed", state.seed}, {"extra", state.extra}};
}

checkpoint::State state_in(const json& object) {
  checkpoint::State state;
  state.step = object.at("step");
  state.tokens = object.at("tokens");
  state.seed = object.at("seed");
  state.extra = object.at("extra").get<std::map<std::string, double>>();
  return state;
}

// What every rank says, by rank.
std::vector<std::string> said_by_all(const comm::Group& group, const std::string& own) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.size()));
  const auto size = static_cast<std::int64_t>(own.size());
  group.all_gather(&size, sizes.data(), 1, comm::DataType::i64).wait();
  std::vector<std::string> out;
  for (int rank = 0; rank < group.size(); ++rank) {
    std::string said = rank == group.rank() ? own : std::string();
    said.resize(static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)]));
    group.broadcast(said.data(), said.size(), comm::DataType::u8, rank).wait();
    out.push_back(std::move(said));
  }
  return out;
}

// Ranges of elements, apart from each other.
class Covered {
 public:
  bool holds(std::int64_t begin, std::int64_t end) const {
    const auto after = ranges_.upper_bound(begin);
    return after != ranges_.begin() && std::prev(after)->second >= end;
  }
  void add(std::int64_t begin, std::int64_t end) {
    auto next = ranges_.upper_bound(begin);
    if (next != ranges_.begin() && std::prev(next)->second >= begin) next = std::prev(next);
    while (next != ranges_.end() && next->first <= end) {
      begin = std::min(begin, next->first);
      end = std::max(end, next->second);
      next = ranges_.erase(next);
    }
    ranges_[begin] = end;
  }

 private:
  std::map<std::int64_t, std::int64_t> ranges_;
};

// Elements of a held piece that become those of a wanted one.
struct Run {
  std::size_t held;
  std::size_t wanted;
  std::int64_t from;
  std::int64_t to;
  std::int64_t count;
};
using Runs = std::vector<Run>;

// Where each rank takes from: by taker, by giver.
std::vector<std::vector<Runs>> runs_of(const std::vector<std::vector<Described>>& held, const std::vector<std::vector<Described>>& wanted) {
  const std::size_t ranks = held.size();
  std::vector<std::map<std::string, std::vector<std::size_t>>> places(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    for (std::size_t i = 0; i < held[rank].size(); ++i) places[rank][held[rank][i].piece.name].push_back(i);
  std::vector<std::vector<Runs>> out(ranks, std::vector<Runs>(ranks));
  for (std::size_t taker = 0; taker < ranks; ++taker)
    for (std::size_t w = 0; w < wanted[taker].size(); ++w) {
      const auto& [target, type] = wanted[taker][w];
      const std::int64_t count = target.flat_end - target.flat_begin;
      Covered covered;
      // Its own first, then those of the ranks behind it, so that not all take from the same one.
      for (std::size_t k = 0; k < ranks && !covered.holds(0, count); ++k) {
        const std::size_t giver = (taker + k) % ranks;
        const auto found = places[giver].find(target.name);
        if (found == places[giver].end()) continue;
        for (const std::size_t h : found->second) {
          const auto& [source, source_type] = held[giver][h];
          if (source.shape != target.shape || source_type != type)
            throw Error(ErrorCode::invalid_config,
                        text("rank ", giver, " holds '", target.name, "' in another shape or type than rank ", taker, " wants it"));
          checkpoint::for_overlap(target.shape, cut_of(source), cut_of(target),
                                  [&](std::int64_t from, std::int64_t to, std::int64_t length) {
                                    if (covered.holds(to, to + length)) return;
                                    covered.add(to, to + length);
                                    out[taker][giver].push_back({h, w, from, to, length});
                                  });
        }
      }
      if (count > 0 && !covered.holds(0, count))
        throw Error(ErrorCode::not_found, text("no rank holds all of '", target.name, "' that rank ", taker, " wants"), {},
                    "ranks that hold the whole state together", "go on from the last checkpoint");
    }
  return out;
}

std::size_t bytes_in(const Runs& runs, const std::vector<Described>& wanted) {
  std::size_t bytes = 0;
  for (const Run& run : runs) bytes += static_cast<std::size_t>(run.count) * c10::elementSize(wanted[run.wanted].type);
  return bytes;
}

}  // namespace

HeldState copied(const HeldState& held) {
  HeldState out = held;
  for (Piece& piece : out.pieces) piece.data = piece.data.clone();
  return out;
}

HeldState joined(HeldState held, const HeldState& other) {
  if (held.pieces.empty()) return other;
  ensure(other.pieces.empty() || held.state.step == other.state.step, "what is joined is of the same step");
  held.pieces.insert(held.pieces.end(), other.pieces.begin(), other.pieces.end());
  return held;
}

HeldState pass_on(comm::Communicator& comm, const HeldState& held, int to, int from) {
  const comm::Group group = group_of(comm);
  const std::string words = json{{"state", json_of(held.state)}, {"pieces", described(held.pieces)}}.dump();
  const auto size = static_cast<std::int64_t>(words.size());
  std::int64_t coming = 0;
  std::vector<comm::Handle> sends = {group.send(std::as_bytes(std::span(&size, 1)), to, kSize),
                                     group.send(std::as_bytes(std::span(words)), to, kWords)};
  group.receive(std::as_writable_bytes(std::span(&coming, 1)), from, kSize).wait();
  std::string said(static_cast<std::size_t>(coming), ' ');
  group.receive(std::as_writable_bytes(std::span(said)), from, kWords).wait();
  for (const Piece& piece : held.pieces) sends.push_back(group.send({bytes_of(piece), piece.data.nbytes()}, to, kData));
  const json object = json::parse(said);
  HeldState out{state_in(object.at("state")), {}};
  std::vector<comm::Handle> receives;
  for (Described& one : pieces_in(object.at("pieces"))) {
    one.piece.data = at::empty({one.piece.flat_end - one.piece.flat_begin}, at::TensorOptions().dtype(one.type));
    receives.push_back(group.receive({bytes_of(one.piece), one.piece.data.nbytes()}, from, kData));
    out.pieces.push_back(std::move(one.piece));
  }
  for (const auto* handles : {&receives, &sends})
    for (const comm::Handle& handle : *handles) handle.wait();
  return out;
}

void fill_from_all(comm::Communicator& comm, const std::vector<Piece>& held, std::vector<Piece>& wanted) {
  const comm::Group group = group_of(comm);
  std::vector<std::vector<Described>> held_by;
  std::vector<std::vector<Described>> wanted_by;
  for (const std::string& said : said_by_all(group, json{{"held", described(held)}, {"wanted", described(wanted)}}.dump())) {
    const json object = json::parse(said);
    held_by.push_back(pieces_in(object.at("held")));
    wanted_by.push_back(pieces_in(object.at("wanted")));
  }
  const auto runs = runs_of(held_by, wanted_by);
  const auto me = static_cast<std::size_t>(group.rank());
  const auto ranks = static_cast<std::size_t>(group.size());
  // One message from each rank to each other one, run after run.
  std::vector<std::vector<std::byte>> going(ranks);
  std::vector<std::vector<std::byte>> coming(ranks);
  std::vector<comm::Handle> handles;
  const auto peer = [](std::size_t rank) { return static_cast<int>(rank); };
  for (std::size_t giver = 0; giver < ranks; ++giver) {
    coming[giver].resize(giver == me ? 0 : bytes_in(runs[me][giver], wanted_by[me]));
    if (!coming[giver].empty()) handles.push_back(group.receive(coming[giver], peer(giver), kData));
  }
  for (std::size_t taker = 0; taker < ranks; ++taker) {
    for (const Run& run : runs[taker][me]) {
      const std::size_t element = held[run.held].data.element_size();
      const std::byte* begin = bytes_of(held[run.held]) + static_cast<std::size_t>(run.from) * element;
      const std::size_t bytes = static_cast<std::size_t>(run.count) * element;
      if (taker == me)
        std::memmove(bytes_of(wanted[run.wanted]) + static_cast<std::size_t>(run.to) * element, begin, bytes);
      else
        going[taker].insert(going[taker].end(), begin, begin + bytes);
    }
    if (!going[taker].empty()) handles.push_back(group.send(going[taker], peer(taker), kData));
  }
  for (const comm::Handle& handle : handles) handle.wait();
  for (std::size_t giver = 0; giver < ranks; ++giver) {
    if (giver == me) continue;
    const std::byte* next = coming[giver].data();
    for (const Run& run : runs[me][giver]) {
      const std::size_t element = wanted[run.wanted].data.element_size();
      const std::size_t bytes = static_cast<std::size_t>(run.count) * element;
      std::memcpy(bytes_of(wanted[run.wanted]) + static_cast<std::size_t>(run.to) * element, next, bytes);
      next += bytes;
    }
  }
}

checkpoint::State agreed_state(comm::Communicator& comm, const HeldState& held) {
  const json own = held.pieces.empty() ? json() : json_of(held.state);
  std::optional<json> first;
  for (const std::string& said : said_by_all(group_of(comm), own.dump())) {
    const json state = json::parse(said);
    if (state.is_null()) continue;
    if (first && *first != state)
      throw Error(ErrorCode::invalid_config, text("ranks hold different states: ", first->dump(), " and ", state.dump()), {},
                  "the same step on all ranks that hold something",
                  "go on from a snapshot that all have of one step, or from the last checkpoint");
    first = state;
  }
  if (!first) throw Error(ErrorCode::not_found, "no rank holds any state");
  return state_in(*first);
}

}  // namespace tessera::train
