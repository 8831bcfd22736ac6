// tessera-fuzz list | TARGET SECONDS SEED FOLDER | replay TARGET FILE: what `./dev bench fuzz` runs, one process for each target. In
// FOLDER, `current` is the input being read; whoever started us finds it there when a sanitizer, a limit or a signal ends us.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/file_system.hpp"
#include "base/hash.hpp"
#include "fuzz/fuzz.hpp"

namespace tessera::fuzz {
namespace {

constexpr std::size_t kSize = 1 << 20;
// CPU seconds, with sanitizers: a hundred times what any honest file takes.
constexpr int kSlowest = 10;

// A file that keeps what was written when the process dies at any moment: 8 bytes of length, then the input.
class CurrentInput {
 public:
  explicit CurrentInput(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || ::ftruncate(file, kSize) != 0) throw_errno("cannot write", path, errno);
    void* memory = ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) throw_errno("cannot map", path, errno);
    ::close(file);
    bytes_ = static_cast<char*>(memory);
  }
  ~CurrentInput() { ::munmap(bytes_, kSize); }
  CurrentInput(const CurrentInput&) = delete;
  CurrentInput& operator=(const CurrentInput&) = delete;

  void set(const std::string& input) {
    const std::uint64_t length = std::min(input.size(), kSize - sizeof length);
    std::memcpy(bytes_, &length, sizeof length);
    std::memcpy(bytes_ + sizeof length, input.data(), length);
  }

 private:
  char* bytes_ = nullptr;
};

void end_when_too_slow() {
  // abort() shows the sanitizer's stack: where the time went.
  std::signal(SIGPROF, [](int) { std::abort(); });
}

void restart_watch() {
  const itimerval limit{{0, 0}, {kSlowest, 0}};
  ::setitimer(ITIMER_PROF, &limit, nullptr);
}

int replay(const Target& target, const std::string& file) {
  restart_watch();
  const Judgement judgement = judge(target, read_whole(file));
  const char* words[] = {"read", "refused", "DEFECT"};
  std::cout << words[static_cast<int>(judgement.verdict)] << (judgement.what.empty() ? "" : ": ") << judgement.what << '\n';
  return judgement.verdict == Verdict::defect ? 1 : 0;
}

int run(const Target& target, double seconds, std::uint64_t seed, const std::string& folder) {
  CurrentInput current(folder + "/current");
  const Report report = fuzz(target, {.seconds = seconds, .seed = seed, .before = [&](const std::string& input) {
                                        current.set(input);
                                        restart_watch();
                                      }});
  nlohmann::ordered_json defects = nlohmann::ordered_json::array();
  for (const auto& [what, input] : report.defects) {
    const std::string file = folder + "/" + target.name + "-" + hash128_hex(input).substr(0, 12);
    write_whole(real_file_system(), file, input);
    defects.push_back({{"what", what}, {"file", file}});
  }
  std::cout << nlohmann::ordered_json{{"target", target.name},       {"executions", report.executions},
                                      {"read", report.read},         {"refused", report.refused},
                                      {"edges", report.edges},       {"corpus", report.corpus},
                                      {"slowest_s", report.slowest}, {"defects", defects}}
                   .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
            << '\n';
  return 0;
}

int start(const std::vector<std::string>& words) {
  end_when_too_slow();
  if (words.size() == 1 && words[0] == "list") {
    for (const std::string& name : target_names()) std::cout << name << '\n';
    return 0;
  }
  if (words.size() == 3 && words[0] == "replay") return replay(target_called(words[1]), words[2]);
  if (words.size() == 4) return run(target_called(words[0]), std::stod(words[1]), std::stoull(words[2]), words[3]);
  std::cerr << "usage: tessera-fuzz list | TARGET SECONDS SEED FOLDER | replay TARGET FILE\n";
  return 2;
}

}  // namespace
}  // namespace tessera::fuzz

int main(int count, char** words) {
  try {
    return tessera::fuzz::start({words + 1, words + count});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}
