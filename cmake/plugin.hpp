// What a plug-in includes, where Tessera is installed.
#pragma once

#include "nn/plugin.hpp"  // IWYU pragma: export
