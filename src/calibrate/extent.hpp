// What rows of measured steps hold, as calibrations say it.
#pragma once

#include <vector>

#include "calibrate/row.hpp"
#include "profile/extent.hpp"

namespace tessera::calibrate {

// Around the plans of these rows, quantity by quantity. What only rows have that leave it open (Row::stated) is assumed.
profile::Extent extent_of(const std::vector<const Row*>& rows);

}  // namespace tessera::calibrate
