#include "comm/levels.hpp"

#include <algorithm>
#include <map>

namespace tessera::comm {

std::optional<Levels> levels_of(const std::vector<int>& hosts, int rank) {
  Levels out;
  std::map<int, std::size_t> index_of;
  for (std::size_t member = 0; member < hosts.size(); ++member) {
    if (hosts[member] < 0) return {};
    const auto [found, fresh] = index_of.try_emplace(hosts[member], out.ranks.size());
    if (fresh) out.ranks.emplace_back();
    std::vector<int>& here = out.ranks[found->second];
    if (static_cast<int>(member) == rank) {
      out.host = found->second;
      out.place = here.size();
    }
    here.push_back(static_cast<int>(member));
  }
  const auto equal = [&](const std::vector<int>& host) { return host.size() == out.ranks.front().size(); };
  if (out.ranks.size() < 2 || out.ranks.front().size() < 2 || !std::all_of(out.ranks.begin(), out.ranks.end(), equal)) return {};
  return out;
}

}  // namespace tessera::comm
