// Training rows whose values take fewer bits.
#pragma once

#include <memory>
#include <vector>

#include "core/row/entry_accessor.h"
#include "core/row/segments.h"

namespace monolith::core {

// Rows hold the compact values of all segments, then their optimizer states as ever. Values are
// rounded to the nearest by Init, Assign and Restore, and at random, right on average, by AssignAdd
// and Optimize. Dumps hold plain floats, from which Restore gives the same bytes again.
// Throws std::invalid_argument if the storage is unknown.
[[nodiscard]] std::unique_ptr<EntryAccessor> MakeCompactAccessor(std::vector<Segment> segments,
                                                                 EntryConfig::Storage storage);

}  // namespace monolith::core
