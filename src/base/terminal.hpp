// What a stream of this process can show.
#pragma once

namespace tessera {

// Whether the descriptor is a terminal on which lines can be rewritten: TERM is neither unset nor "dumb".
bool is_live_terminal(int descriptor);
// Whether to colour what goes there: a live terminal, and NO_COLOR (https://no-color.org) is unset or empty.
bool color_wanted(int descriptor);
// Columns of the terminal, else what COLUMNS says; 0 where neither does.
int columns_of(int descriptor);

}  // namespace tessera
