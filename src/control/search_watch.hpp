// What `tessera` shows of a search while it runs, and how Ctrl-C ends it.
#pragma once

#include <memory>

#include "search/watch.hpp"

namespace tessera::control {

enum class OnInterrupt {
  stop_search,  // the first Ctrl-C ends the search with its best so far, the second the process
  end_process   // as everywhere else
};

// From a second on, one line on stderr renews itself where that is a live terminal. The destructor erases it and leaves Ctrl-C as it was.
// Make it before other threads: those that it does not know must not be the ones that Ctrl-C interrupts.
class SearchWatch {
 public:
  explicit SearchWatch(OnInterrupt on_interrupt);
  ~SearchWatch();
  SearchWatch(const SearchWatch&) = delete;
  SearchWatch& operator=(const SearchWatch&) = delete;

  search::Watch* watch();
  bool stopped();

 private:
  class Watcher;
  std::unique_ptr<Watcher> watcher_;
};

}  // namespace tessera::control
