// How many ids were looked up in this process, and how many of them had a row.
#pragma once

#include <cstddef>

namespace monolith::ops {

// Notes a lookup of `asked` ids. Thread-safe.
void CountLookup(std::size_t asked, std::size_t found);

}  // namespace monolith::ops
