// What a stream of this process can show.
#pragma once

namespace tessera {

// The variable by which a launcher says that it shows this process's stderr on a terminal of its own: its columns, and " color" where
// that is wanted.
inline constexpr const char* kShownElsewhere = "TESSERA_SHOWN_ON";

// Whether the descriptor is a terminal on which lines can be rewritten: TERM is neither unset nor "dumb".
bool is_live_terminal(int descriptor);
// Whether to colour what goes there: a live terminal, and NO_COLOR (https://no-color.org) is unset or empty.
bool color_wanted(int descriptor);
// Columns of the terminal, else what COLUMNS says; 0 where neither does.
int columns_of(int descriptor);

}  // namespace tessera
