#include "control/host_file.hpp"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "base/config.hpp"
#include "base/file_system.hpp"
#include "base/problems.hpp"

namespace tessera::control {
namespace {

constexpr const char* kForm = "HOST [slots=N] [address=ADDRESS], one host a line";
constexpr int kMostSlots = 4096;

[[noreturn]] void refuse(const std::string& what, const Where& where, const std::string& expected = kForm, const std::string& hint = {}) {
  throw Error(ErrorCode::invalid_config, what, where, expected, hint);
}

// What ssh takes for a host and a shell for a plain word, and neither for an option.
bool is_host_name(std::string_view name) {
  const auto plain = [](unsigned char c) { return std::isalnum(c) != 0 || std::string_view(".-_:@%[]").find(c) != std::string_view::npos; };
  return !name.empty() && name.front() != '-' && name.front() != '@' && name.back() != '@' &&
         std::all_of(name.begin(), name.end(), plain) && std::count(name.begin(), name.end(), '@') <= 1 &&
         name.find("@-") == std::string_view::npos;
}

int slots_of(const std::string& value, const Where& where) {
  int slots = 0;
  const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), slots);
  if (problem != std::errc() || end != value.data() + value.size() || slots < 1 || slots > kMostSlots)
    refuse("slots=" + value, where, text("slots=N, the ranks that the host may run at most: 1 to ", kMostSlots));
  return slots;
}

Host host_of(std::istringstream& words, std::string name, const Where& where) {
  if (!is_host_name(name)) refuse("'" + name + "' is no name of a host", where);
  Host host{std::move(name), {}, {}, where};
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    if (key != "slots" && key != "address") {
      const auto near = nearest(key, {"slots", "address"});
      refuse("'" + word + "' behind the host's name", where, kForm, near ? text("did you mean ", *near, "=...?") : "");
    }
    if (equals == std::string::npos) refuse("'" + word + "' has no value", where);
    const std::string value = word.substr(equals + 1);
    if (key == "slots") {
      if (host.slots) refuse("slots= stands twice", where);
      host.slots = slots_of(value, where);
    } else {
      if (!host.address.empty()) refuse("address= stands twice", where);
      if (!is_host_name(value) || value.find('@') != std::string::npos)
        refuse("address=" + value, where, "the name or the number by which the other hosts reach this one");
      host.address = value;
    }
  }
  return host;
}

}  // namespace

std::vector<Host> parse_hosts(std::string_view content, const std::string& file) {
  std::vector<Host> hosts;
  Problems problems;
  int line = 0;
  for (std::size_t begin = 0; begin <= content.size();) {
    const std::size_t end = std::min(content.find('\n', begin), content.size());
    std::string words(content.substr(begin, end - begin));
    begin = end + 1;
    ++line;
    words.erase(std::min(words.find('#'), words.size()));
    std::istringstream stream(words);
    std::string name;
    if (!(stream >> name)) continue;
    problems.attempt([&] {
      Host host = host_of(stream, std::move(name), {.file = file, .line = line, .block = {}});
      const auto same = std::find_if(hosts.begin(), hosts.end(), [&](const Host& one) { return one.name == host.name; });
      if (same != hosts.end())
        refuse(text("'", host.name, "' is in line ", same->where.line, " already"), host.where, "each host once",
               "say with slots=N how many ranks it may run");
      hosts.push_back(std::move(host));
    });
  }
  problems.raise();
  if (hosts.empty()) refuse("no host is listed", {.file = file, .block = {}});
  return hosts;
}

std::vector<Host> read_host_file(const std::filesystem::path& path) { return parse_hosts(read_whole(path), path.string()); }

std::string to_text(const std::vector<Host>& hosts) {
  std::string out;
  for (const Host& host : hosts) {
    out += host.name;
    if (host.slots) out += text(" slots=", *host.slots);
    if (!host.address.empty()) out += " address=" + host.address;
    out += "\n";
  }
  return out;
}

}  // namespace tessera::control
