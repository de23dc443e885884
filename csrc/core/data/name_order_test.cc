#include "core/data/name_order.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace monolith::core {
namespace {

TEST(SameBytes, ComparesAllOfThem) {
  for (std::size_t size = 0; size < 40; ++size) {
    const std::string name(size, 'a');
    EXPECT_TRUE(SameBytes(name, std::string(size, 'a')));
    EXPECT_FALSE(SameBytes(name, name + "a"));
    for (std::size_t at = 0; at < size; ++at) {
      std::string other = name;
      other[at] = 'b';
      EXPECT_FALSE(SameBytes(name, other)) << at << " of " << size;
    }
  }
}

TEST(NameOrder, LooksUpEachNameOnceAndExpectsWhatCameLast) {
  NameOrder order;
  int lookups = 0;
  const auto column_of = [&](std::string_view text) {
    ++lookups;
    return static_cast<int>(text.size());
  };
  const auto read = [&](const std::vector<std::string>& names) {
    std::string columns;
    NameOrder::Name* last = order.start();
    for (const std::string& name : names) {
      last = order.Follow(last, name, column_of);
      columns += std::to_string(last->column);
    }
    return columns;
  };
  EXPECT_EQ(order.start()->next, nullptr);
  EXPECT_EQ(read({"a", "bb", "ccc"}), "123");
  EXPECT_EQ(read({"a", "ccc", "bb"}), "132");
  EXPECT_EQ(lookups, 3);
  EXPECT_EQ(order.start()->next->text, "a");
  EXPECT_EQ(order.start()->next->next->text, "ccc");
  NameOrder moved = std::move(order);
  EXPECT_EQ(moved.start()->next->next->text, "ccc");
}

TEST(NameOrder, RemembersABoundedNumberOfNames) {
  NameOrder order;
  NameOrder::Name* last = order.start();
  const auto column_of = [](std::string_view) { return 7; };
  int remembered = 0;
  for (int i = 0; i < 10000; ++i) {
    NameOrder::Name* name = order.Follow(last, std::to_string(i), column_of);
    if (name == nullptr) continue;
    ++remembered;
    last = name;
  }
  EXPECT_EQ(remembered, (1 << 12) - 1);
  EXPECT_EQ(order.Follow(order.start(), "5", column_of)->column, 7);
}

}  // namespace
}  // namespace monolith::core
