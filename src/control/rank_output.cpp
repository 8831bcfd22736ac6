#include "control/rank_output.hpp"

#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <fstream>
#include <utility>

#include "base/clock.hpp"
#include "base/file_system.hpp"
#include "base/log.hpp"

namespace tessera::control {
namespace {

constexpr std::size_t kMostWaiting = 1 << 20;
constexpr std::size_t kMostOfALine = 64 << 10;
constexpr const char* kEraseLine = "\r\033[K";
constexpr Seconds kLastWords(2);

// A pipe or terminal that can be written takes at least PIPE_BUF bytes at once; more might wait.
std::size_t write_without_waiting(Stream stream, std::string_view bytes) {
  constexpr std::size_t kAtOnce = 4096;
  const int descriptor = stream == Stream::output ? STDOUT_FILENO : STDERR_FILENO;
  std::size_t done = 0;
  while (done < bytes.size()) {
    pollfd ready{descriptor, POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) return done;
    const ssize_t taken = ::write(descriptor, bytes.data() + done, std::min(kAtOnce, bytes.size() - done));
    if (taken < 0) return errno == EINTR || errno == EAGAIN ? done : bytes.size();  // nobody listens any more
    done += static_cast<std::size_t>(taken);
  }
  return done;
}

// A line as it stands at its end: what was rewritten and control sequences (ESC [ ... letter) are left out.
std::string settled(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (const std::size_t last = line.rfind('\r'); last != std::string_view::npos) line.remove_prefix(last + 1);
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\033') {
      out += line[i];
      continue;
    }
    if (i + 1 < line.size() && line[i + 1] == '[')
      for (i += 2; i < line.size() && (line[i] < '@' || line[i] > '~');) ++i;
  }
  return out;
}

}  // namespace

std::string rank_log_name(int rank) {
  const std::string digits = std::to_string(rank);
  return "rank-" + std::string(digits.size() < 3 ? 3 - digits.size() : 0, '0') + digits + ".txt";
}

RankOutput::RankOutput(Options options) : options_(std::move(options)), errors_(options_.hosts.size()), output_(options_.hosts.size()) {
  if (!options_.write) options_.write = write_without_waiting;
  if (!options_.record) options_.record = [](const std::string& line) { log::record(log::Level::info, line); };
  if (!options_.logs) return;
  real_file_system().create_directories(*options_.logs);
  for (std::size_t rank = 0; rank < options_.hosts.size(); ++rank)
    if (const auto path = log_of(static_cast<int>(rank)); !std::ofstream(path, std::ios::app))
      throw Error(ErrorCode::io, text("cannot write ", path.string()));
}

std::filesystem::path RankOutput::log_of(int rank) const { return *options_.logs / rank_log_name(rank); }

RankOutput::~RankOutput() {
  for (std::size_t rank = 0; rank < errors_.size(); ++rank) ended(static_cast<int>(rank));
  const Seconds until = real_clock().now() + kLastWords;
  flush();
  while (!(waiting_[0].empty() && waiting_[1].empty()) && real_clock().now() < until) {
    real_clock().sleep(Seconds(0.01));
    flush();
  }
}

void RankOutput::wrote(int rank, Stream stream, std::string_view bytes) {
  const bool as_it_is = rank == 0 && stream == Stream::errors && options_.live;
  if (as_it_is) show(stream, bytes);
  std::string& begun = (stream == Stream::output ? output_ : errors_).at(static_cast<std::size_t>(rank)).begun;
  begun += bytes;
  std::size_t begin = 0;
  for (std::size_t end; (end = begun.find('\n', begin)) != std::string::npos; begin = end + 1)
    take(rank, stream, begun.substr(begin, end - begin));
  begun.erase(0, begin);
  // Of a line that renews itself only the newest state can still matter.
  if (const std::size_t last = begun.rfind('\r'); last != std::string::npos && last > 0) begun.erase(0, last);
  if (begun.size() > kMostOfALine) begun.erase(0, begun.size() - kMostOfALine);
  if (as_it_is && !bytes.empty()) in_live_line_ = !begun.empty() && begun != "\r" && begun != kEraseLine;
}

void RankOutput::ended(int rank, const std::string& how) {
  for (const Stream stream : {Stream::output, Stream::errors}) {
    std::string& begun = (stream == Stream::output ? output_ : errors_).at(static_cast<std::size_t>(rank)).begun;
    const std::string line = std::exchange(begun, {});
    if (settled(line).empty()) continue;
    if (rank == 0 && stream == Stream::errors && options_.live) show(stream, "\n");
    take(rank, stream, line);
    in_live_line_ = false;
  }
  if (!how.empty()) keep(rank, how);
}

void RankOutput::take(int rank, Stream stream, const std::string& line) {
  const std::string words = settled(line);
  keep(rank, words);
  if (rank == 0 && stream == Stream::output)
    show(stream, line + "\n");
  else if (rank == 0 && !options_.live)
    show(stream, line + "\n");
  else if (rank != 0)
    say(text("rank ", rank, " @ ", options_.hosts.at(static_cast<std::size_t>(rank))), words);
}

void RankOutput::keep(int rank, const std::string& line) {
  // Opened for each line: there may be more ranks than files that a process may hold open. A disk that is full ends no training.
  if (options_.logs) std::ofstream(log_of(rank), std::ios::app) << line << "\n";
}

void RankOutput::say(const std::string& who, const std::string& line) {
  const std::string whole = "[" + who + "] " + line;
  options_.record(whole);
  show_line(whole);
}

void RankOutput::show_line(const std::string& line) {
  // Rank 0 renews its line at the next step.
  show(Stream::errors, (in_live_line_ ? kEraseLine : "") + line + "\n");
  in_live_line_ = false;
}

void RankOutput::show(Stream stream, std::string_view bytes) {
  std::string& waiting = waiting_[stream == Stream::output ? 0 : 1];
  waiting += bytes;
  flush();
  if (waiting.size() > kMostWaiting) waiting.erase(0, waiting.size() - kMostWaiting);
}

void RankOutput::flush() {
  for (const Stream stream : {Stream::output, Stream::errors}) {
    std::string& waiting = waiting_[stream == Stream::output ? 0 : 1];
    if (!waiting.empty()) waiting.erase(0, options_.write(stream, waiting));
  }
}

}  // namespace tessera::control
